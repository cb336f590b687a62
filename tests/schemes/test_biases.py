"""Biases of other papers against their formulas, written out for every query and key."""

import math

import pytest
import torch
from torch.func import functional_call

from scale_invariant_attention import schemes
from scale_invariant_attention.schemes import (
    APE,
    NAPE,
    T5,
    KerpleLog,
    KerplePower,
    Sandwich,
    ScaleInvariant,
    TokenPositions,
)

HEADS = 5
# Neighbours, the bounds of T5's buckets, and far distances.
POSITIONS = [0, 1, 2, 3, 14, 15, 16, 17, 31, 32, 33, 127, 128, 129, 300, 4096, 65_535]
LEARNED = [T5(), KerpleLog(), KerplePower(), APE()]
FIXED = [Sandwich(), NAPE()]


def other_values(module):
    """The module in float64 with parameters it does not start with, by name."""
    module = module.double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module, {name: value.tolist() for name, value in module.named_parameters()}


def kerple_log(t, head, learned):
    r1, r2 = (math.exp(learned[name][head]) for name in ("log_r1", "log_r2"))
    return 1, -r1 * math.log(1 + r2 * t)


def kerple_power(t, head, learned):
    r1, r2 = math.exp(learned["log_r1"][head]), 2 / (1 + math.exp(-learned["logit_r2"][head]))
    assert r1 > 0 and 0 < r2 < 2
    return 1, -r1 * t**r2


def ape(t, head, learned):
    damping, delta, beta, gamma = (
        math.exp(learned[f"log_{name}"][head]) for name in ("damping", "delta", "beta", "gamma")
    )
    return 1 / (1 + damping * t), -delta * t - beta * math.log(1 + t) - gamma * math.sqrt(t)


def t5(t, head, learned):
    if t < 16:
        return 1, learned["bias"][head][t]
    # Sixteen ranges, each from one bound up to the next, in the ratio 8 ** (1/16).
    bounds = [16 * (128 / 16) ** (k / 16) for k in range(17)]
    ranges = [k for k in range(16) if bounds[k] <= t + 1e-9]
    return 1, learned["bias"][head][16 + ranges[-1]]


def sandwich(t, head, learned):
    """The inner product of the embeddings of two positions at this distance."""
    product = 0.0
    for k in range(1, 65):
        frequency = 10_000 ** (-2 * k / 128)
        i, j = (t + 7) * frequency, 7 * frequency
        product += math.sin(i) * math.sin(j) + math.cos(i) * math.cos(j)
    return 1, (product - 64) / ((head + 1) * 8 / HEADS)


def nape(t, head, learned):
    return 1, [-t, -t / 2, 0, 0, 0][head]


@pytest.mark.parametrize(
    ("distance", "formula"),
    [
        (KerpleLog(), kerple_log),
        (KerplePower(), kerple_power),
        (APE(), ape),
        (T5(), t5),
        (Sandwich(), sandwich),
        (NAPE(), nape),
    ],
)
def test_tables_are_those_of_the_paper(distance, formula):
    module, learned = other_values(distance.build(HEADS))
    gain, bias = module(torch.arange(POSITIONS[-1] + 1, dtype=torch.float64))
    gain = gain.expand(HEADS, -1)
    assert gain.dtype == bias.dtype == torch.float64 and bias.shape == gain.shape
    for head in range(HEADS):
        for i in POSITIONS:
            for j in [position for position in POSITIONS if position <= i]:
                found = gain[head, i - j].item(), bias[head, i - j].item()
                assert found == pytest.approx(formula(i - j, head, learned), rel=1e-12, abs=1e-11)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("sqrt-log-n", lambda n: math.sqrt(2 * math.log(n))),
        ("inkling", lambda n: 1 + 0.1 * math.log(max(1, n / 100))),
    ],
)
def test_query_scales_are_those_of_the_source(name, formula):
    options = {"train_length": 100} if name == "inkling" else {}
    module = schemes.get(name, **options).query_scale.build(HEADS)
    for positions in (torch.tensor(POSITIONS), torch.tensor([POSITIONS, POSITIONS[::-1]])):
        factors = module(TokenPositions(positions, context_length=10**6))
        assert factors.dtype == torch.float64
        assert factors.shape == (*positions.shape[:-1], 1, len(POSITIONS))
        rows = positions.reshape(-1, len(POSITIONS))
        for row, found in zip(rows, factors.flatten(0, -2), strict=True):
            expected = [formula(i + 1) for i in row.tolist()]
            assert found.tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (8, 20), (7, 50), (2, 2), (64, 4096)]
)
def test_t5_has_the_buckets_of_transformers(buckets, max_distance):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    module = T5(buckets, max_distance).build(heads=1).double()
    with torch.no_grad():
        module.bias.copy_(torch.arange(buckets))
    _, found = module(torch.arange(10_000, dtype=torch.float64))
    expected = modeling.T5Attention._relative_position_bucket(
        -torch.arange(10_000), False, buckets, max_distance
    )
    assert torch.equal(found[0].long(), expected)


def test_kerple_starts_at_random_within_its_papers_ranges():
    torch.manual_seed(0)
    log, power = KerpleLog().build(10_000), KerplePower().build(10_000)
    ranges = [
        (log.log_r1.exp(), 2),
        (log.log_r2.exp(), 1),
        (power.log_r1.exp(), 1),
        (2 * power.logit_r2.sigmoid(), 2),
    ]
    for values, below in ranges:
        assert 0.0099 < values.min() < 0.02 and 0.99 * below < values.max() < below
        assert values.mean().item() == pytest.approx(below / 2, rel=0.02)
    assert not torch.equal(log.log_r1, KerpleLog().build(10_000).log_r1)


def test_the_others_start_the_same_in_every_layer():
    for distance in (T5(), APE(), *FIXED):
        first, second = (distance.build(3).state_dict() for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert not T5().build(3).bias.any()
    assert APE(delta=0.25).build(3).log_delta.exp().tolist() == pytest.approx([0.25] * 3)
    assert not any(list(distance.build(3).parameters()) for distance in FIXED)


@pytest.mark.parametrize("distance", LEARNED)
def test_gradients_of_what_is_learned(distance):
    module, _ = other_values(distance.build(2))
    names = [name for name, _ in module.named_parameters()]
    distances = torch.tensor([0.0, 1.0, 20.0, 200.0], dtype=torch.float64)

    def tables(*values):
        return functional_call(module, dict(zip(names, values, strict=True)), distances)

    values = [value.detach().requires_grad_() for value in module.parameters()]
    assert all(value.shape[0] == 2 for value in values)
    assert torch.autograd.gradcheck(tables, values)


@pytest.mark.parametrize("distance", [*LEARNED, *FIXED])
def test_nothing_is_added_at_distance_zero(distance):
    module = distance.build(HEADS)
    gain, bias = module(torch.zeros(1, dtype=torch.float64))
    assert (gain == 1).all() and (bias == 0).all()


def test_whatever_kerple_learns_it_penalises_distance():
    for module in (KerpleLog().build(3), KerplePower().build(3)):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.tensor([-20.0, 0.0, 20.0]))
        gain, bias = module(torch.arange(1000, dtype=torch.float64))
        assert (gain == 1).all() and bias.isfinite().all()
        assert (bias.diff() < 0).all()


@pytest.mark.parametrize("heads", [1, 2, 6, 7])
def test_nape_leaves_half_of_the_heads_without_positions(heads):
    _, bias = NAPE().build(heads)(torch.arange(4, dtype=torch.float64))
    assert bias[:, 1].tolist() == [-1 / h for h in range(1, heads // 2 + 1)] + [0.0] * -(
        -heads // 2
    )


def test_the_bias_of_the_transform_is_kerples():
    """-2 log(1 + t/tau) is KERPLE-log with r1 = 2 and r2 = 1/tau; the paper's gain comes on top."""
    kerple = KerpleLog().build(1).double()
    with torch.no_grad():
        kerple.log_r1.fill_(math.log(2))
        kerple.log_r2.fill_(-math.log(10.0))
    t = torch.arange(5000, dtype=torch.float64)
    (_, found), (gain, bias) = kerple(t), ScaleInvariant().build(1)(t)
    torch.testing.assert_close(found[0], bias, rtol=1e-13, atol=0)
    torch.testing.assert_close(gain.square(), 1 - bias)


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match=r"max_distance must .* got 16"):
        T5(max_distance=16)
    with pytest.raises(ValueError, match="dimensions must be even, got 7"):
        Sandwich(dimensions=7)
    with pytest.raises(ValueError, match=r"gamma must be greater than 0, got 0"):
        APE(gamma=0.0)
