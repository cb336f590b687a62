"""Conversions in which layers differ: against attention by definition with a rotary per layer."""

import copy
import math
import re
import warnings

import pytest
import torch
from hugging_face_models import (
    CONFIGS,
    by_definition,
    converted,
    left_padded,
    some_tokens,
    tiny,
    transform,
)
from transformers import AutoModelForCausalLM, Cohere2Config

from scale_invariant_attention import huggingface
from scale_invariant_attention.huggingface.settings import KEY

LENGTH = 30
EXACT = {"rtol": 0.0, "atol": 1e-9}
WINDOW = 7
# One scheme per layer of the tiny models, each with another rotary.
PATTERN, OPTIONS = "rope,scale-invariant-nope", {"rope.window": WINDOW}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:scale_invariant_attention")


@pytest.fixture(autouse=True)
def cohere2(monkeypatch):
    """A family whose global layers have no rotary, and whose pairs are neighbours."""
    sizes = CONFIGS["gpt-oss"]().to_dict()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("vocab_size", "max_position_embeddings", "pad_token_id", "bos_token_id")
    names += ("initializer_range", "num_key_value_heads", "sliding_window", "layer_types")
    given = {name: sizes[name] for name in names}
    monkeypatch.setitem(
        CONFIGS, "cohere2", lambda: Cohere2Config(**given, eos_token_id=None, logit_scale=1.0)
    )


def plain(distance):
    return torch.ones_like(distance), torch.zeros_like(distance)


def within(window, distance_function):
    def function(distance):
        gain, bias = distance_function(distance)
        return gain, bias.masked_fill(distance >= window, -math.inf)

    return function


def attention_of(model):
    return [
        module
        for module in model.modules()
        if hasattr(module, "layer_idx") and hasattr(module, "q_proj")
    ]


def defined(model, distances, still=()):
    """The model with attention by definition in each layer, without rotation in the layers `still`."""
    by_definition(model)

    def unrotated(module, arguments, named):
        cosine, sine = named["position_embeddings"]
        ones = (torch.ones_like(cosine), torch.zeros_like(sine))
        return arguments, {**named, "position_embeddings": ones}

    for module in attention_of(model):
        module.definition["distance"] = distances[module.layer_idx]
        if module.layer_idx in still:
            module.register_forward_pre_hook(unrotated, with_kwargs=True)
    return model


@torch.no_grad()
def logits(model, tokens, **given):
    return model(tokens, **given).logits


FAMILIES = ["llama", "qwen3", "mistral", "mixtral", "gpt-oss", "cohere2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_has_its_own_scheme_and_rotary(family):
    tokens = some_tokens(2, LENGTH)
    found = logits(converted(family, PATTERN, **OPTIONS).double(), tokens)
    expected = defined(tiny(family).double(), [within(WINDOW, plain), transform], still=[1])
    torch.testing.assert_close(found, logits(expected, tokens), **EXACT)
    everywhere = logits(converted(family, "scale-invariant-nope").double(), tokens)
    assert not torch.allclose(found, everywhere)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt-oss"])
def test_it_is_saved_loaded_and_undone(family, tmp_path):
    tokens, original = some_tokens(2, LENGTH), tiny(family)
    before = logits(original, tokens)
    model = huggingface.convert(copy.deepcopy(original), PATTERN, **OPTIONS)
    expected = logits(model, tokens)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded, tokens), expected)
    assert torch.equal(logits(copy.deepcopy(loaded), tokens), expected)
    again = AutoModelForCausalLM.from_config(loaded.config)
    again.load_state_dict(loaded.state_dict())
    assert torch.equal(logits(again.eval(), tokens), expected)
    # Other conversions start from the original.
    one = huggingface.convert(loaded, "scale-invariant-rope")
    same = huggingface.convert(copy.deepcopy(original), "scale-invariant-rope")
    assert torch.equal(logits(one, tokens), logits(same, tokens))
    restored = huggingface.convert(one, "rope")
    assert torch.equal(logits(restored, tokens), before)
    assert restored.config.rope_parameters == original.config.rope_parameters
    assert not hasattr(restored.config, KEY)
    assert not [module for module in restored.modules() if module._forward_pre_hooks]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt-oss"])
def test_generation_with_a_cache_equals_that_without(family, cache):
    """Also of padded prompts, and beyond the window."""
    model = converted(family, PATTERN, **OPTIONS).double()
    rows = [some_tokens(size, seed=size) for size in (9, 4)]
    tokens, mask = left_padded(rows)
    settings = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
    if cache == "dynamic":
        del settings["cache_implementation"]
    found = model.generate(tokens, attention_mask=mask, **settings)
    for row, alone in zip(found, rows, strict=True):
        expected = alone[None]
        for _ in range(12):
            chosen = logits(model, expected)[:, -1].argmax(-1, keepdim=True)
            expected = torch.cat([expected, chosen], 1)
        assert row[-len(expected[0]) :].tolist() == expected[0].tolist()


def test_later_tokens_change_nothing_and_packed_texts_are_separate():
    model, tokens = converted("llama", PATTERN, **OPTIONS), some_tokens(1, LENGTH)
    whole = logits(model, tokens)
    changed = tokens.clone()
    changed[:, 20:] = some_tokens(1, 10, seed=1)
    assert torch.equal(logits(model, changed)[:, :20], whole[:, :20])
    positions = torch.cat([torch.arange(20), torch.arange(10)])[None]
    packed = logits(model, changed, position_ids=positions)
    torch.testing.assert_close(packed[:, :20], whole[:, :20])
    torch.testing.assert_close(packed[:, 20:], logits(model, changed[:, 20:]))


def test_windows_hide_what_is_beyond_them():
    model = converted("llama", "rope,nope", **{"rope.window": 4, "nope.window": 5})
    tokens = some_tokens(1, LENGTH)
    changed = tokens.clone()
    changed[0, 0] = 1 + tokens[0, 0] % 90
    before, after = logits(model, tokens), logits(model, changed)
    reach = 3 + 4
    assert torch.equal(before[:, reach + 1 :], after[:, reach + 1 :])
    assert (before[:, : reach + 1] != after[:, : reach + 1]).any(-1).all()


@pytest.mark.parametrize("scheme", ["scale-invariant-rope", "scale-invariant-nope"])
@pytest.mark.parametrize("family", ["gemma3", "gpt-oss", "cohere2"])
def test_global_layers_alone(family, scheme, tmp_path):
    """The first of two layers is local: it keeps its rotary and its window of 5."""
    tokens, original = some_tokens(2, LENGTH), tiny(family)
    model = huggingface.convert(copy.deepcopy(original), scheme, layers="global")
    assert getattr(model.config, KEY)["layers"] == [1]
    still = [1] if scheme.endswith("nope") else []
    expected = defined(copy.deepcopy(original).double(), [plain, transform], still)
    found = copy.deepcopy(model).double()
    torch.testing.assert_close(logits(found, tokens), logits(expected, tokens), **EXACT)
    if family == "gemma3":
        kinds = model.config.rope_parameters
        assert kinds["sliding_attention"] == original.config.rope_parameters["sliding_attention"]
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded, tokens), logits(model, tokens))
    restored = huggingface.convert(loaded, "rope")
    torch.testing.assert_close(logits(restored, tokens), logits(original, tokens))


def test_chosen_layers_of_a_model_whose_layers_are_alike():
    tokens = some_tokens(2, LENGTH)
    model = huggingface.convert(tiny().double(), "scale-invariant-nope", layers=[0])
    expected = defined(tiny().double(), [transform, plain], still=[0])
    torch.testing.assert_close(logits(model, tokens), logits(expected, tokens), **EXACT)
    names = [name for name, _ in model.named_modules() if name.endswith("position_scheme")]
    assert len(names) == 2


def test_global_layers_can_be_extended_without_fine_tuning():
    model, tokens = tiny("gpt-oss"), some_tokens(4, LENGTH)
    calibration = huggingface.measure_scores(model, [tokens])
    with warnings.catch_warnings(action="error"):
        huggingface.convert(
            model,
            "scale-invariant-rope",
            **{"layers": "global", "calibration": calibration, "rotary": "ntk", "factor": 4},
        )
    local, far = (module.position_scheme.scheme.distance for module in attention_of(model))
    assert not hasattr(local, "sigma")
    assert list(far.sigma) == calibration.spread[1].tolist()
    assert logits(model, tokens).isfinite().all()


def test_what_layers_learn_is_trained():
    options = {**OPTIONS, "scale-invariant-nope.learn_tau": True}
    model, tokens = converted("llama", PATTERN, **options).train(), some_tokens(2, LENGTH)
    learned = {name: it for name, it in model.named_parameters() if "position_scheme" in name}
    assert list(learned) == ["model.layers.1.self_attn.position_scheme.distance.log_tau"]
    model.gradient_checkpointing_enable()
    model(tokens, labels=tokens).loss.backward()
    checkpointed = {name: it.grad.clone() for name, it in model.named_parameters()}
    model.gradient_checkpointing_disable()
    model.zero_grad()
    model(tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, checkpointed[name])
    assert all((it.grad != 0).all() for it in learned.values())


def test_scores_are_those_of_each_layer():
    model, tokens = converted("llama", PATTERN, **OPTIONS), some_tokens(1, LENGTH)
    seen = []
    huggingface.transformers_scores(model, tokens, seen.append)
    assert [it.visibility.window for it in seen] == [WINDOW, None]
    assert not torch.equal(seen[0].query, seen[0].unrotated[0])
    assert torch.equal(seen[1].query, seen[1].unrotated[0])


@pytest.mark.slow
def test_layers_compile():
    torch.compiler.reset()
    model, tokens = converted("llama", PATTERN, **OPTIONS), some_tokens(1, LENGTH)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(logits(compiled, tokens), logits(model, tokens))


@pytest.mark.parametrize(
    ("family", "scheme", "given", "error", "message"),
    [
        (
            "llama",
            "rope,rope,nope",
            {},
            ValueError,
            "pattern of 3 schemes, and the model has 2 layers",
        ),
        (
            "llama",
            "rope",
            {"layers": "global"},
            ValueError,
            r"indices of layers, got 'global': .*'llama'",
        ),
        ("llama", "rope", {"layers": "local"}, ValueError, "layers must be 'global', or indices"),
        (
            "llama",
            "rope",
            {"layers": []},
            ValueError,
            r"layers must be 'global', or indices .* got \[\]",
        ),
        ("llama", "rope", {"layers": [2]}, ValueError, "layers must be below the model's 2, got 2"),
        ("llama", "rope", {"layers": [-1]}, ValueError, "layers must be at least 0"),
        (
            "gemma3",
            PATTERN,
            {"layers": "global"},
            ValueError,
            "layers must be None for scheme 'rope,",
        ),
        ("llama", PATTERN, {"rotary": "yarn", "factor": 2}, ValueError, "rotary must be None for"),
        ("llama", PATTERN, {"window": 3}, TypeError, r"no option 'window' \(did you mean"),
        ("gpt-neox", PATTERN, {"layers": [0]}, ValueError, "layers must be None"),
    ],
)
def test_what_layers_cannot_have_is_refused(family, scheme, given, error, message):
    model = tiny(family)
    before = model.config.to_dict()
    with pytest.raises(error, match=message):
        huggingface.convert(model, scheme, **given)
    assert model.config.to_dict() == before


def test_a_rotary_per_kind_cannot_differ_within_a_kind():
    model = tiny("gemma3", layer_types=["full_attention"] * 2)
    with pytest.raises(NotImplementedError, match=re.escape("gives layers of one kind several")):
        huggingface.convert(model, PATTERN)


def test_a_pattern_that_changes_nothing_is_the_original():
    model = huggingface.convert(tiny(), "rope,rope")
    assert not hasattr(model.config, KEY)
    with warnings.catch_warnings(action="error"):
        huggingface.convert(tiny(), "rope,rope")
    with pytest.warns(UserWarning, match="must be fine-tuned before use"):
        huggingface.convert(tiny(), "rope,rope", **{"rope.window": 8})
