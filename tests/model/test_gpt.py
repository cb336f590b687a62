"""The whole model against its plain counterpart, its first values, its dtypes, and that it learns."""

import math

import pytest
import torch
import torch.nn.functional as F
from backend_names import WHOLE, takes_float64
from tiny_models import (
    ABSOLUTE,
    BY_CONTEXT,
    CASES,
    TRAINED,
    VOCABULARY,
    assert_same,
    plain_logits,
    random_tokens,
    tiny_config,
    tiny_model,
)

from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.schemes import ScaleInvariant, Scheme

LENGTH = 2 * TRAINED - 3


def test_the_cases_hold_every_scheme_that_depends_on_context_or_position():
    by_context = [case for case in CASES if tiny_config(case).scheme.depends_on_context]
    assert by_context == BY_CONTEXT
    counting = [
        case
        for case in CASES
        if any(
            scheme.query_scale is not None and not scheme.query_scale.depends_on_context
            for scheme in tiny_config(case).scheme.pattern
        )
    ]
    assert counting == ABSOLUTE


@pytest.mark.parametrize("heads", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_plain_implementation(case, heads):
    model = tiny_model(case, heads=heads, backend="reference")
    tokens = random_tokens(2, LENGTH)
    logits = model(tokens)
    assert logits.shape == (2, LENGTH, VOCABULARY) and logits.dtype == torch.float64
    for row in range(2):
        assert_same(logits[row], plain_logits(model, tokens[row]))


@pytest.mark.parametrize("length", [1, 2, TRAINED, TRAINED + 1])
@pytest.mark.parametrize("case", BY_CONTEXT)
def test_equals_the_plain_implementation_around_the_training_length(case, length):
    model = tiny_model(case)
    tokens = random_tokens(1, length)
    assert_same(model(tokens)[0], plain_logits(model, tokens[0]))


@pytest.mark.parametrize("case", BY_CONTEXT)
def test_another_context_length_by_number_and_by_row(case):
    model = tiny_model(case)
    tokens = random_tokens(2, LENGTH)
    for given, rows in [(40, [40, 40]), (torch.tensor([30, 5]), [30, 5])]:
        logits = model(tokens, context_length=given)
        for row, length in enumerate(rows):
            assert_same(logits[row], plain_logits(model, tokens[row], context_length=length))
    assert not torch.allclose(model(tokens, context_length=40), model(tokens))


@pytest.mark.parametrize("case", [case for case in CASES if case not in BY_CONTEXT])
def test_the_context_length_is_nothing_to_the_other_schemes(case):
    model = tiny_model(case)
    tokens = random_tokens(2, LENGTH)
    assert torch.equal(model(tokens, context_length=1000), model(tokens))


@pytest.mark.parametrize("backend", ["auto", *WHOLE])
@pytest.mark.parametrize("case", CASES)
def test_float32_is_as_exact_as_the_plain_implementation(case, backend):
    """Twice its error, and the rounding of a sum over the width: the bar for attention's kernels."""
    model = tiny_model(case, torch.float32, backend=backend)
    tokens = random_tokens(LENGTH)
    truth = plain_logits(model, tokens)
    plain_error = (plain_logits(model, tokens, dtype=torch.float32) - truth).abs().max()
    with torch.no_grad():
        logits = model(tokens[None])[0]
    assert logits.dtype == torch.float32
    rounding = torch.finfo(torch.float32).eps * truth.abs().max() * model.config.width**0.5
    assert (logits - truth).abs().max() <= 2 * plain_error + rounding


@pytest.mark.parametrize("case", CASES)
def test_a_long_text_in_float32(case):
    model = tiny_model(case, torch.float32)
    tokens = random_tokens(1, 20 * TRAINED)
    with torch.no_grad():
        logits = model(tokens)
        exact = model.double()(tokens)
    assert (logits - exact).abs().max() < 2e-4 * exact.abs().max()


@pytest.mark.parametrize("case", ["rope", "scale-invariant-p-rope", "logn-rope"])
def test_without_qk_norm_queries_and_keys_are_as_they_come(case):
    with_norm = tiny_model(case)
    model = GPT(tiny_config(case, qk_norm=False), backend="reference").double()
    model.load_state_dict(with_norm.state_dict())
    tokens = random_tokens(1, LENGTH)
    found = model(tokens)
    assert_same(found[0], plain_logits(model, tokens[0]))
    assert not torch.allclose(found, with_norm(tokens), atol=1e-3)


def test_a_scheme_of_ones_own_takes_the_place_of_the_named_one():
    own = GPT(tiny_config("rope"), scheme=Scheme(distance=ScaleInvariant(tau=0.5))).double()
    named = GPT(tiny_config("scale-invariant-nope", scheme_options={"tau": 0.5})).double()
    own.load_state_dict(tiny_model("rope").state_dict())
    named.load_state_dict(own.state_dict())
    tokens = random_tokens(1, LENGTH)
    assert torch.equal(own(tokens), named(tokens))


def test_loss_is_cross_entropy_of_the_logits():
    model = tiny_model("scale-invariant-p-rope")
    tokens, targets = random_tokens(2, LENGTH), random_tokens(2, LENGTH, seed=1)
    targets[0, 3:7] = -100
    logits = model(tokens).flatten(0, 1)
    assert_same(model(tokens, targets=targets), F.cross_entropy(logits, targets.flatten()))
    losses = model(tokens, targets, reduction="none")
    expected = F.cross_entropy(logits, targets.flatten(), reduction="none")
    assert_same(losses, expected.view(2, LENGTH))


@pytest.mark.parametrize("case", ["scale-invariant-p-rope", "logn-ntk", "learned tau"])
def test_first_values(case):
    torch.manual_seed(0)
    model = GPT(tiny_config(case, vocab_size=1000, width=192, heads=4))
    embedding = model.embedding.weight
    assert abs(embedding.mean()) < 0.01 and abs(embedding.std() - 1) < 0.01
    # A normal variable leaves 4.5 now and then among 192,000; a uniform one never leaves sqrt(3).
    assert embedding.abs().max() > 3.5
    assert not model.head.weight.any()
    for name, weight in model.blocks.named_parameters():
        if name.endswith(("output.weight", "down.weight")):
            assert not weight.any()
        elif name.endswith("scale"):
            mean_log = sum(math.log(n) for n in range(1, TRAINED + 1)) / TRAINED
            torch.testing.assert_close(weight, torch.full((4,), 1 / mean_log))
        elif name.endswith("log_tau"):
            torch.testing.assert_close(weight.exp(), torch.full((4,), 10.0))
        else:
            bound = weight.shape[1] ** -0.5
            assert 0.999 * bound < weight.max() <= bound
            assert -bound <= weight.min() < -0.999 * bound
            assert abs(weight.std() - bound / 3**0.5) < 0.01 * bound
    tokens = torch.randint(1000, (2, 9))
    torch.testing.assert_close(
        model(tokens, targets=tokens).item(), math.log(1000), rtol=1e-6, atol=0
    )


def test_initialise_redraws_and_leaves_what_a_scheme_made_alone():
    class Table(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.full((3, 8), 2.0))

        def forward(self, distance):
            bias = self.table.double()[:, : len(distance)]
            return torch.ones_like(distance), bias

    class Learned:
        def build(self, heads):
            return Table()

    model = GPT(tiny_config("nope"), scheme=Scheme(distance=Learned()))
    before = model.blocks[0].mlp.up.weight.clone()
    model.initialise()
    assert not torch.equal(model.blocks[0].mlp.up.weight, before)
    assert (model.blocks[1].attention.scheme.distance.table == 2).all()


@pytest.mark.parametrize("case", CASES)
def test_after_a_step_gradients_reach_every_parameter(case):
    torch.manual_seed(0)
    model = GPT(tiny_config(case))
    tokens = random_tokens(4, LENGTH)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        # The first step moves the head only, the second what writes to the residual stream.
        optimiser.zero_grad()
        model(tokens[:, :-1], targets=tokens[:, 1:]).backward()
        optimiser.step()
    model.zero_grad()
    model(tokens[:, :-1], targets=tokens[:, 1:]).backward()
    for name, weight in model.named_parameters():
        grad = weight.grad
        assert grad is not None and torch.isfinite(grad).all(), name
        if name == "embedding.weight":
            seen = torch.bincount(tokens[:, :-1].flatten(), minlength=VOCABULARY) > 0
            assert (grad.abs().amax(1) > 0).equal(seen)
        else:
            assert grad.abs().reshape(len(grad), -1).amax(1).count_nonzero() > 0.8 * len(grad), name


@pytest.mark.parametrize("backend", WHOLE)
@pytest.mark.parametrize("case", ["learned tau", "logn-rope", "alibi", "yarn"])
def test_gradients_are_those_of_the_plain_implementation(case, backend):
    """By finite differences of the plain implementation, along a random direction of all weights."""
    model = tiny_model(case, backend=backend if takes_float64(backend) else "reference")
    if not takes_float64(backend):
        model = model.float()
        model.backend = backend
    tokens, targets = random_tokens(1, LENGTH), random_tokens(1, LENGTH, seed=1)
    model(tokens, targets=targets).backward()
    state = {name: tensor.double() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    for chosen in ("embedding", "query.weight", "value", "up", "scale", "log_tau"):
        direction = {
            name: torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            for name, tensor in state.items()
            if chosen in name
        }
        if not direction:
            continue
        slope = sum(
            float((model.get_parameter(name).grad.double() * step).sum())
            for name, step in direction.items()
        )

        def loss(amount, direction=direction):
            moved = {
                n: t + amount * direction.get(n, torch.zeros_like(t)) for n, t in state.items()
            }
            other = tiny_model(case)
            other.load_state_dict(moved)
            return float(F.cross_entropy(plain_logits(other, tokens[0]), targets[0]))

        expected = (loss(1e-5) - loss(-1e-5)) / 2e-5
        tolerance = 1e-6 if takes_float64(backend) else 1e-4
        assert math.isclose(slope, expected, rel_tol=tolerance, abs_tol=tolerance), chosen


@pytest.mark.parametrize("case", CASES)
def test_learns_a_batch_by_heart(case):
    torch.manual_seed(0)
    model = GPT(tiny_config(case, heads=2))
    tokens = random_tokens(4, TRAINED + 3)
    # Every first token is another, so that all that follows can be known.
    tokens[:, 0] = torch.arange(4)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        loss = model(tokens[:, :-1], targets=tokens[:, 1:])
        loss.backward()
        optimiser.step()
        if loss < 0.05:
            break
    assert loss < 0.05


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_give_float32_logits(case, dtype):
    model = tiny_model(case, dtype)
    tokens = random_tokens(2, LENGTH)
    logits = model(tokens)
    assert logits.dtype == torch.float32
    exact = model.double()(tokens)
    # Some twenty roundings of the residual stream, each of half an eps.
    assert (logits - exact).abs().mean() < 10 * torch.finfo(dtype).eps * exact.abs().mean()


@pytest.mark.parametrize("case", CASES)
def test_autocast(case):
    model = tiny_model(case, torch.float32)
    tokens = random_tokens(2, LENGTH)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
        loss = model(tokens, targets=tokens)
    assert logits.dtype == loss.dtype == torch.float32
    exact = model(tokens)
    assert not torch.equal(logits, exact)
    assert (logits - exact).abs().mean() < 10 * torch.finfo(torch.bfloat16).eps * exact.abs().mean()
    loss.backward()
    assert all(
        p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters()
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint16])
def test_tokens_of_any_integer_dtype(dtype):
    model = tiny_model("scale-invariant-p-rope")
    tokens = random_tokens(2, 5)
    assert torch.equal(model(tokens.to(dtype)), model(tokens))


def test_the_presets_of_the_paper_have_its_sizes():
    for name, count in [("162m", 162_201_600), ("304m", 304_349_184)]:
        with torch.device("meta"):
            model = GPT(GPTConfig.preset(name))
        assert sum(parameter.numel() for parameter in model.parameters()) == count
        assert model.config.head_dim == 128
