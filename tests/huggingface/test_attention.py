"""Converted models match the definition for every family, mask and position."""

import copy
import math

import pytest
import torch
from hugging_face_models import (
    FAMILIES,
    by_definition,
    converted,
    left_padded,
    some_tokens,
    tiny,
    transform,
)
from own_schemes import own_scheme
from tiny_models import HYBRIDS

from scale_invariant_attention import huggingface, schemes

LENGTH = 23


def both(model, **changes):
    """A model and its copy by definition, in float64."""
    model = model.double()
    return model, by_definition(copy.deepcopy(model), **changes)


def assert_same(model, defined, mask=None, **arguments):
    with torch.no_grad():
        got = model(**arguments, use_cache=False).logits
        expected = defined(**arguments, use_cache=False).logits
    shown = torch.ones(got.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    torch.testing.assert_close(got[shown], expected[shown], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_kind_of_input_matches_the_definition(family):
    model, defined = both(converted(family))
    assert_same(model, defined, input_ids=some_tokens(2, LENGTH))

    ids, mask = left_padded([some_tokens(LENGTH), some_tokens(11, seed=1)])
    assert_same(model, defined, mask, input_ids=ids, attention_mask=mask)
    ids, mask = ids.flip(1), mask.flip(1)
    assert_same(model, defined, mask, input_ids=ids, attention_mask=mask)
    counted = (mask.cumsum(1) - 1).clamp(min=0)
    assert_same(model, defined, mask, input_ids=ids, attention_mask=mask, position_ids=counted)

    if family == "gpt-oss":
        return  # transformers' own mask does not separate its sequences; ours does, see below
    packed = torch.cat([torch.arange(9), torch.arange(LENGTH - 9)])[None]
    assert_same(model, defined, input_ids=some_tokens(2, LENGTH), position_ids=packed)


def test_the_transform_changes_logits():
    plain, ids = tiny(), some_tokens(1, LENGTH)
    by_scheme = {name: converted(scheme=name) for name in ("p-rope", "scale-invariant-p-rope")}
    with torch.no_grad():
        logits = [model(ids).logits for model in (plain, *by_scheme.values())]
    assert not torch.allclose(logits[0], logits[1], atol=0.1)
    assert not torch.allclose(logits[1], logits[2], atol=0.1)


def test_switching_the_implementation_applies_the_transform_and_keeps_the_rotary():
    model = tiny()
    rotary = copy.deepcopy(model.config.rope_parameters)
    model.set_attn_implementation("scale_invariant")
    assert model.config.rope_parameters == rotary
    assert_same(*both(model), input_ids=some_tokens(2, LENGTH))


def test_positions_with_gaps_count_as_distances():
    model, defined = both(converted())
    ids, mask = some_tokens(2, LENGTH), torch.ones(2, LENGTH, dtype=torch.long)
    gaps = torch.arange(LENGTH) + 40 * (torch.arange(LENGTH) > 7)
    # Without a mask transformers treats a gap as the start of another sequence.
    assert_same(model, defined, input_ids=ids, attention_mask=mask, position_ids=gaps[None])
    assert_same(model, defined, input_ids=ids, position_ids=gaps[None])


def test_padding_between_tokens_is_hidden_and_counted_only_if_positions_count_it():
    model, defined = both(converted())
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, 5:9] = 0
    counted = mask.cumsum(1) - 1
    ids = some_tokens(2, LENGTH)
    assert_same(model, defined, mask, input_ids=ids, attention_mask=mask)
    assert_same(model, defined, mask, input_ids=ids, attention_mask=mask, position_ids=counted)


def test_positions_that_restart_separate_documents_also_with_a_mask():
    model = converted()
    ids = some_tokens(1, LENGTH)
    packed = torch.cat([torch.arange(9), torch.arange(LENGTH - 9)])[None]
    ones = torch.ones_like(ids)
    with torch.no_grad():
        expected = model(ids, position_ids=packed).logits
        got = model(ids, position_ids=packed, attention_mask=ones).logits
    assert torch.equal(got, expected)


def slopes(distance):
    by_head = torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(4)], dtype=distance.dtype)
    return torch.ones_like(distance), -by_head.reshape(1, -1, 1, 1) * distance


def unchanged(distance):
    return torch.ones_like(distance), torch.zeros_like(distance)


def log_n(position_ids):
    # The scale is a float32 parameter.
    start = torch.tensor(64 / math.lgamma(65)).double()
    return start * (position_ids + 1).double().log()[:, None, :, None]


@pytest.mark.parametrize(
    ("scheme", "distance", "query"),
    [
        ("scale-invariant-rope", transform, None),
        ("scale-invariant-nope", transform, None),
        ("alibi", slopes, None),
        ("logn-rope", unchanged, log_n),
        ("logn-p-rope", unchanged, log_n),
        ("logn-ntk", unchanged, log_n),
        ("rope-ntk", unchanged, None),
        ("p-rope", unchanged, None),
        ("nope", unchanged, None),
        ("yarn", unchanged, None),
    ],
)
def test_every_scheme_matches_its_definition(scheme, distance, query):
    options = {"factor": 4.0} if scheme == "yarn" else {}
    model = converted(scheme=scheme, **options)
    changes = {} if query is None else {"query": query}
    model, defined = both(model, distance=distance, **changes)
    assert_same(model, defined, input_ids=some_tokens(2, LENGTH))
    packed = torch.cat([torch.arange(9), torch.arange(LENGTH - 9)])[None]
    assert_same(model, defined, input_ids=some_tokens(2, LENGTH), position_ids=packed)


def test_a_registered_scheme_matches_its_definition():
    with own_scheme() as name:
        model, defined = both(converted(scheme=name), distance=slopes)
        assert_same(model, defined, input_ids=some_tokens(2, LENGTH))


def test_every_named_scheme_converts_but_those_with_gates_or_a_memory():
    model, ids = tiny(), some_tokens(1, LENGTH)
    for scheme in schemes.names():
        slots = schemes.get(scheme)
        if slots.has_memory:
            continue
        if any(each.key_bias is not None for each in slots.pattern):
            with pytest.raises(NotImplementedError, match=rf"scheme '{scheme}' has ForgetGate\(\)"):
                huggingface.convert(model, scheme)
            continue
        options = {"factor": 4.0} if scheme == "yarn" else HYBRIDS.get(scheme, {})
        huggingface.convert(model, scheme, **options)
        with torch.no_grad():
            assert model(ids).logits.isfinite().all()


@pytest.mark.parametrize("learn_tau", [False, True])
def test_one_tau_per_head(learn_tau):
    taus = [0.5, 3.0, 10.0, 80.0]

    def by_head(distance):
        growth = torch.log(distance / torch.tensor(taus).double().reshape(1, -1, 1, 1) + 1)
        return torch.sqrt(1 + 2 * growth), -2 * growth

    if learn_tau:
        model = converted(learn_tau=True).double()
        for module in model.modules():
            if hasattr(module, "log_tau"):
                module.log_tau.data = torch.tensor(taus).double().log()
    else:
        model = converted(tau=taus)
    assert_same(*both(model, distance=by_head), input_ids=some_tokens(2, LENGTH))


@pytest.mark.parametrize("with_mean", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt-neox"])
def test_the_transform_knows_the_scores_of_every_head(family, with_mean):
    generator = torch.Generator().manual_seed(0)
    spread = 0.5 + 3 * torch.rand(2, 4, generator=generator, dtype=torch.float64)
    mean = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    calibration = huggingface.Calibration(spread, mean if with_mean else None)
    model, defined = both(converted(family, "scale-invariant-rope", calibration=calibration))

    def of_layer(sigma, mu):
        def by_distance(distance):
            growth = 2 * torch.log(distance / 10 + 1)
            gain = torch.sqrt(1 + growth / sigma**2)
            return gain, -growth - (gain - 1) * mu

        return by_distance

    for module in defined.modules():
        if hasattr(module, "definition"):
            sigma, mu = (it[module.layer_idx].reshape(1, -1, 1, 1) for it in (spread, mean))
            module.definition["distance"] = of_layer(sigma, mu * with_mean)
    assert_same(model, defined, input_ids=some_tokens(2, LENGTH))


@pytest.mark.parametrize("family", FAMILIES)
def test_later_tokens_never_change_earlier_outputs(family):
    model = converted(family)
    ids, mask = left_padded([some_tokens(LENGTH), some_tokens(15, seed=1)])
    changed = ids.clone()
    changed[:, 17:] = some_tokens(2, LENGTH - 17, seed=5)
    packed = torch.cat([torch.arange(9), torch.arange(LENGTH - 9)])[None]
    for arguments in ({}, {"attention_mask": mask}, {"position_ids": packed}):
        with torch.no_grad():
            before, after = (model(x, **arguments).logits for x in (ids, changed))
        assert torch.equal(before[:, :17], after[:, :17])
        assert not torch.equal(before[:, 17:], after[:, 17:])


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_separate(family):
    model = converted(family).double()
    first, second = some_tokens(1, 9), some_tokens(1, 14, seed=1)
    packed = torch.cat([torch.arange(9), torch.arange(14)])[None]
    with torch.no_grad():
        together = model(torch.cat([first, second], dim=1), position_ids=packed).logits
        apart = torch.cat([model(first).logits, model(second).logits], dim=1)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)


def test_a_mask_of_pairs_equals_positions_that_restart():
    model = converted("mistral").double()
    ids = some_tokens(2, LENGTH)
    token = torch.arange(LENGTH)
    document = (token >= 9).long()
    pairs = (token[:, None] >= token) & (document[:, None] == document)
    pairs = pairs & (token[:, None] - token < 5)
    packed = torch.cat([torch.arange(9), torch.arange(LENGTH - 9)])[None]
    bias = torch.zeros(LENGTH, LENGTH).double().masked_fill(~pairs, torch.finfo(torch.float64).min)
    with torch.no_grad():
        expected = model(ids, position_ids=packed).logits
        for mask in (pairs, bias):
            got = model(ids, position_ids=packed, attention_mask=mask[None, None]).logits
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_padding_as_a_mask_of_pairs():
    model = converted().double()
    ids, mask = left_padded([some_tokens(LENGTH), some_tokens(11, seed=1)])
    pairs = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & mask.bool()[:, None]
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
        got = model(ids, attention_mask=pairs[:, None]).logits
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_as_accurate_as_the_definition(dtype):
    model, defined = both(converted())
    ids = some_tokens(2, LENGTH)
    with torch.no_grad():
        exact = defined(ids).logits
        lost = (defined.to(dtype)(ids).logits - exact).abs().max()
        assert (model.to(dtype)(ids).logits - exact).abs().max() < 2 * lost


def test_no_mask_of_pairs_is_built():
    """The mask of 64 tokens has a few rows, not one entry per pair."""
    model = converted()
    ids = some_tokens(1, 64)
    seen = []

    def look(module, arguments, named):
        seen.append(named["attention_mask"].numel())

    model.model.layers[0].self_attn.register_forward_pre_hook(look, with_kwargs=True)
    with torch.no_grad():
        model(ids)
    assert seen == [3 * 2 * 64]
