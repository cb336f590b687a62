"""The two conditions, Theorem 1, and the entropy of given weights."""

import math
import random
import re

import pytest
import torch

from scale_invariant_attention.theory import (
    ALiBi,
    LogN,
    Plain,
    ScaleInvariantTransform,
    _conditions,
    expected_range_mass,
    expected_range_negentropy,
    expected_weight,
    expected_weight_log_weight,
    range_entropy,
    range_entropy_from_logits,
)


def random_transform(seed):
    """A valid transform, from far above the boundary to right on it."""
    draw = random.Random(seed)
    tau = 10 ** draw.uniform(-1, 2)
    alpha = 10 ** draw.uniform(-1, 1)
    boundary = max(alpha * math.log(alpha), 0.0)
    beta = boundary + draw.choice([0.0, 10 ** draw.uniform(-1, 1)])
    return ScaleInvariantTransform(tau=tau, alpha=alpha, beta=beta or 1.0)


TRANSFORMS = [ScaleInvariantTransform()] + [random_transform(seed) for seed in range(12)]


@pytest.mark.parametrize("schedule", [Plain(), LogN(50), ALiBi(0.5), *TRANSFORMS[:3]], ids=repr)
def test_gaussian_identities_against_quadrature(schedule):
    scores = torch.linspace(-20, 20, 20_001, dtype=torch.float64)
    density = torch.exp(-scores.square() / 2) / math.sqrt(2 * math.pi)
    t = torch.tensor([0, 1, 20, 300])
    logits = schedule.gain(t)[:, None] * scores + schedule.bias(t)[:, None]
    mass = torch.trapezoid(logits.exp() * density, scores)
    negentropy = torch.trapezoid(logits * logits.exp() * density, scores)
    torch.testing.assert_close(expected_weight(schedule, t), mass, rtol=1e-10, atol=0)
    torch.testing.assert_close(
        expected_weight_log_weight(schedule, t), negentropy, rtol=1e-10, atol=1e-14
    )


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_the_transform_solves_both_conditions(transform):
    t = torch.cat([torch.arange(100), torch.tensor([10**4, 10**6, 10**9])])
    falloff = 1 / (t.double() / transform.tau + 1)
    # exp and the cancellation in m + a^2 amplify the rounding of m and a^2.
    rounding = {"rtol": 1e-13, "atol": 0.0}
    torch.testing.assert_close(
        expected_weight(transform, t), transform.expected_weight(t), **rounding
    )
    torch.testing.assert_close(expected_weight(transform, t), transform.alpha * falloff, **rounding)
    product = expected_weight_log_weight(transform, t)
    slack = 64 * torch.finfo(torch.float64).eps * transform.alpha * (1 + transform.gain(t).square())
    assert (
        (product - transform.beta * falloff).abs() <= slack * falloff * (1 + transform.beta)
    ).all()


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5, 6.0])
@pytest.mark.parametrize("tau", [1.0, 10.0])
def test_theorem_1_holds_for_scores_of_any_spread(sigma, tau):
    transform = ScaleInvariantTransform.for_scores(sigma, tau)
    t = torch.cat([torch.arange(100), torch.tensor([10**4, 10**6, 10**9])])
    # The standard deviation of the logit is sqrt(sigma^2 + 2 log1p(t/tau)).
    variance = sigma**2 + 2 * torch.log1p(t.double() / tau)
    torch.testing.assert_close((sigma * transform.gain(t)).square(), variance)
    falloff = 1 / (t.double() / tau + 1)
    mass = expected_weight(transform, t, sigma=sigma)
    torch.testing.assert_close(mass, math.exp(sigma**2 / 2) * falloff, rtol=1e-12, atol=0)
    negentropy = expected_weight_log_weight(transform, t, sigma=sigma)
    torch.testing.assert_close(negentropy, sigma**2 * mass, rtol=1e-11, atol=0)
    for expected, limit in (
        (expected_range_mass, transform.range_mass_limit(10)),
        (expected_range_negentropy, transform.range_negentropy_limit(10)),
    ):
        masses = [expected(transform, t, 10 * t, sigma=sigma) for t in (100, 1000, 10_000)]
        assert masses == sorted(masses)
        assert masses[-1] == pytest.approx(limit, rel=1e-2)


@pytest.mark.parametrize("sigma", [0.5, 3.0])
def test_the_paper_s_transform_is_not_invariant_for_scores_of_another_spread(sigma):
    decades = [
        expected_range_mass(ScaleInvariantTransform(), t, 10 * t, sigma=sigma)
        for t in (100, 10_000)
    ]
    assert max(decades) / min(decades) > 10


@pytest.mark.parametrize("evaluate", [expected_weight, expected_weight_log_weight])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_expectations_are_rounded_once(evaluate, dtype):
    t = torch.tensor([-5, 0, 3, 100], dtype=dtype)
    transform = ScaleInvariantTransform()
    exact = evaluate(transform, t.double())
    assert torch.equal(evaluate(transform, t), exact.to(dtype))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 1000), (7, 50), (999, 100_000)])
def test_generic_sums_equal_the_closed_forms(transform, start, stop):
    mass = expected_range_mass(transform, start, stop)
    negentropy = expected_range_negentropy(transform, start, stop)
    assert mass == pytest.approx(transform.range_mass(start, stop), rel=1e-12)
    assert negentropy == pytest.approx(transform.range_negentropy(start, stop), rel=1e-11)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
@pytest.mark.parametrize("ratio", [2, 3, 10])
def test_theorem_1_ranges_converge_to_the_same_constant(transform, ratio):
    for start in (100, 1000, 10_000, 100_000):
        # The harmonic sum lies between two logarithms that are this close to ln(ratio).
        gap = transform.tau * max(transform.tau, 1.0) / start
        mass = expected_range_mass(transform, start, ratio * start)
        negentropy = expected_range_negentropy(transform, start, ratio * start)
        assert abs(mass - transform.range_mass_limit(ratio)) <= transform.alpha * gap
        assert abs(negentropy - transform.range_negentropy_limit(ratio)) <= transform.beta * gap


@pytest.mark.parametrize("expected_sum", [expected_range_mass, expected_range_negentropy])
def test_no_other_schedule_satisfies_theorem_1(expected_sum):
    starts = (100, 1000, 10_000)

    def decades(schedules):
        return [
            expected_sum(schedule, t, 10 * t) for schedule, t in zip(schedules, starts, strict=True)
        ]

    plain = decades([Plain()] * 3)
    assert plain[1] / plain[0] == pytest.approx(10)
    assert plain[2] / plain[1] == pytest.approx(10)
    fixed_length = decades([LogN(100_000)] * 3)
    assert fixed_length[2] / fixed_length[1] == pytest.approx(10)
    whole_context = decades([LogN(10 * t) for t in starts])
    assert whole_context[1] > 10 * whole_context[0]
    assert whole_context[2] > 10 * whole_context[1]
    # The gentlest of the published slopes for eight heads.
    alibi = [abs(total) for total in decades([ALiBi(2**-8)] * 3)]
    assert alibi[0] > alibi[1] > alibi[2]
    assert alibi[2] < 1e-10


def test_sums_longer_than_a_chunk(monkeypatch):
    schedule = ALiBi(0.001)
    t = torch.arange(5, 5000)
    for chunk in (1, 64, 4995, 10_000):
        monkeypatch.setattr(_conditions, "_CHUNK", chunk)
        mass = expected_range_mass(schedule, 5, 5000)
        negentropy = expected_range_negentropy(schedule, 5, 5000)
        assert mass == pytest.approx(expected_weight(schedule, t).sum().item(), rel=1e-14)
        assert negentropy == pytest.approx(
            expected_weight_log_weight(schedule, t).sum().item(), rel=1e-13
        )


def test_a_sum_over_several_real_chunks():
    transform = ScaleInvariantTransform()
    stop = 3 * _conditions._CHUNK + 17
    assert expected_range_mass(transform, 1, stop) == pytest.approx(
        transform.range_mass(1, stop), rel=1e-13
    )


@pytest.mark.parametrize("expected_sum", [expected_range_mass, expected_range_negentropy])
@pytest.mark.parametrize(
    ("start", "stop", "error", "shown"),
    [
        (-1, 5, ValueError, "start must be at least 0, got -1"),
        (5, 5, ValueError, "stop=5 and start=5"),
        (0.5, 5, TypeError, "start must be an integer, got 0.5"),
        (0, None, TypeError, "stop must be an integer, got None"),
    ],
)
def test_sums_refuse_invalid_ranges(expected_sum, start, stop, error, shown):
    with pytest.raises(error, match=re.escape(shown)):
        expected_sum(Plain(), start, stop)


def test_entropy_equals_that_of_the_renormalised_distribution():
    weights = torch.rand(2, 3, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inside = weights[..., 7:31]
    probabilities = inside / inside.sum(-1, keepdim=True)
    expected = -(probabilities * probabilities.log()).sum(-1)
    torch.testing.assert_close(range_entropy(weights, 7, 31), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(range_entropy(1e250 * weights, 7, 31), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        range_entropy_from_logits(weights.log(), 7, 31), expected, rtol=1e-14, atol=0
    )


def test_entropy_of_simple_weights():
    assert range_entropy(torch.ones(8)).item() == pytest.approx(math.log(8))
    assert range_entropy(torch.tensor([0.0, 5.0, 0.0])).item() == 0.0
    assert range_entropy(torch.tensor([4, 4, 0])).dtype == torch.float64
    assert range_entropy(torch.ones(8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_range_without_weight_has_no_entropy():
    weights = torch.tensor([[1.0, 0.0, 0.0], [1.0, 2.0, 2.0]])
    expected = torch.tensor([0.0, math.log(2)])
    torch.testing.assert_close(range_entropy(weights, start=1), expected)
    torch.testing.assert_close(range_entropy_from_logits(weights.log(), start=1), expected)


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4, 1e8])
def test_entropy_from_logits_does_not_move_with_a_common_shift(shift):
    logits = torch.tensor([3.0, 1.0, -2.0, -math.inf, 0.5], dtype=torch.float64)
    expected = range_entropy(logits.exp())
    torch.testing.assert_close(
        range_entropy_from_logits(logits + shift), expected, rtol=1e-7, atol=0
    )


def test_entropy_of_extreme_logits():
    assert (
        range_entropy_from_logits(torch.tensor([1e308, -1e308], dtype=torch.float64)).item() == 0.0
    )
    assert range_entropy_from_logits(
        torch.tensor([-1e308, -1e308], dtype=torch.float64)
    ).exp().item() == pytest.approx(2)


@pytest.mark.parametrize("entropy", [range_entropy, range_entropy_from_logits])
@pytest.mark.parametrize(
    ("values", "bounds", "error", "shown"),
    [
        (torch.ones(4), (-1, None), ValueError, "start must be at least 0, got -1"),
        (torch.ones(4), (2, 2), ValueError, "stop=2 and start=2"),
        (torch.ones(4), (0, 5), ValueError, "stop must be at most 4"),
        (torch.ones(4), (0.0, None), TypeError, "start must be an integer, got 0.0"),
        (torch.ones(0), (0, None), ValueError, "stop=0 and start=0"),
        (torch.ones(()), (0, None), ValueError, "at least one dimension"),
        ([1.0], (0, None), TypeError, "must be a tensor, got [1.0]"),
        (torch.ones(4, dtype=torch.bool), (0, None), TypeError, "integer or floating dtype"),
        (torch.tensor([1.0, math.nan]), (0, None), ValueError, "got nan"),
        (torch.tensor([1.0, math.inf]), (0, None), ValueError, "got inf"),
    ],
)
def test_entropy_refuses_invalid_arguments(entropy, values, bounds, error, shown):
    with pytest.raises(error, match=re.escape(shown)):
        entropy(values, *bounds)


def test_entropy_refuses_negative_weights():
    with pytest.raises(ValueError, match=r"weights must be .*non-negative, got -0\.25"):
        range_entropy(torch.tensor([1.0, -0.25]))
