"""The transform: the published figures, exactness, precision, dtypes, and what it refuses."""

import math
import random
import re
from decimal import Decimal, localcontext

import pytest
import torch

from scale_invariant_attention.theory import ScaleInvariantTransform
from scale_invariant_attention.theory.transform import scale_invariant_gain_and_bias

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGER = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]

# distance, gain, bias, expected weight: as printed, for tau = 10.
PUBLISHED = [
    (0, 1, 0, 1.648721),
    (1, 1.0912, -0.1906, 1.498838),
    (10, 1.5448, -1.3863, 0.824361),
    (100, 2.4074, -4.7958, 0.149884),
    (1000, 3.1985, -9.2302, 0.016324),
    (4095, 3.6104, -12.0348, 0.004016),
    (16383, 3.9754, -14.8040, 0.001006),
    (65535, 4.3100, -17.5758, 0.000252),
]


@pytest.mark.parametrize(("distance", "gain", "bias", "weight"), PUBLISHED)
def test_published_table(distance, gain, bias, weight):
    transform = ScaleInvariantTransform()
    t = torch.tensor(distance)
    assert transform.gain(t).item() == pytest.approx(gain, abs=0.5e-4)
    assert transform.bias(t).item() == pytest.approx(bias, abs=0.5e-4)
    assert transform.expected_weight(t).item() == pytest.approx(weight, abs=0.5e-6)


@pytest.mark.parametrize("dtype", FLOATING + INTEGER)
@pytest.mark.parametrize("tau", [1e-3, 0.3, 10.0, 1e6])
def test_distance_zero_is_left_alone_exactly(dtype, tau):
    transform = ScaleInvariantTransform(tau=tau)
    zero = torch.zeros(3, dtype=dtype)
    assert transform.gain(zero).tolist() == [1.0] * 3
    assert [str(bias) for bias in transform.bias(zero).tolist()] == ["0.0"] * 3


SIGMAS = [1e-3, 0.1, 0.7, 1.0, 2.3, 9.0, 30.0]


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("tau", [0.3, 10.0])
def test_scores_of_any_spread_are_left_alone_at_distance_zero(sigma, tau):
    transform = ScaleInvariantTransform.for_scores(sigma, tau)
    zero = torch.zeros(3, dtype=torch.int64)
    assert transform.gain(zero).tolist() == [1.0] * 3
    assert [str(bias) for bias in transform.bias(zero).tolist()] == ["0.0"] * 3


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("mu", [0.0, -2.5, 1.5])
def test_the_transform_for_scores_agrees_with_fifty_digit_arithmetic(sigma, mu):
    distances = [0, 1, 2, 9, 10, 4095, 10**6, 10**9]
    with localcontext() as context:
        context.prec = 50
        growth = [2 * (Decimal(d) / 10 + 1).ln() for d in distances]
        gains = [(1 + each / Decimal(sigma) ** 2).sqrt() for each in growth]
        biases = [
            -each - (gain - 1) * Decimal(mu) for each, gain in zip(growth, gains, strict=True)
        ]
    t = torch.tensor(distances, dtype=torch.float64)
    gain, bias = scale_invariant_gain_and_bias(t, 10.0, sigma, mu)
    close = {"rel": 1e-13, "abs": 1e-13}
    assert gain.tolist() == pytest.approx(list(map(float, gains)), **close)
    assert bias.tolist() == pytest.approx(list(map(float, biases)), **close)
    if mu == 0:
        transform = ScaleInvariantTransform.for_scores(sigma)
        assert transform.gain(t).tolist() == pytest.approx(gain.tolist(), **close)
        assert transform.bias(t).tolist() == pytest.approx(bias.tolist(), **close)


def test_the_paper_is_the_case_of_unit_variance():
    assert ScaleInvariantTransform.for_scores(1.0, tau=3.0) == ScaleInvariantTransform(tau=3.0)
    t = torch.arange(1000, dtype=torch.float64)
    for ours, papers in zip(
        scale_invariant_gain_and_bias(t, 10.0, 1.0, 0.0),
        scale_invariant_gain_and_bias(t, 10.0),
        strict=True,
    ):
        assert torch.equal(ours, papers)


def test_the_widest_scores_get_a_bias_alone():
    gain, bias = scale_invariant_gain_and_bias(torch.arange(1000.0).double(), 10.0, 1e9)
    assert torch.equal(gain, torch.ones_like(gain))
    assert torch.equal(bias, ScaleInvariantTransform().bias(torch.arange(1000)))


@pytest.mark.parametrize("sigma", [0.0, -1.0, 1e3, math.inf, math.nan])
def test_a_sigma_without_a_finite_alpha_is_refused(sigma):
    with pytest.raises(ValueError, match=r"sigma must .* got"):
        ScaleInvariantTransform.for_scores(sigma)


@pytest.mark.parametrize(
    "transform",
    [
        ScaleInvariantTransform(),
        ScaleInvariantTransform(tau=0.01),
        ScaleInvariantTransform(tau=3.0, alpha=0.2, beta=5.0),
        ScaleInvariantTransform(tau=250.0, alpha=4.0, beta=6.0),
    ],
    ids=repr,
)
def test_agrees_with_fifty_digit_arithmetic_up_to_a_billion(transform):
    draw = random.Random(0)
    distances = [0, 1, 2, 9, 10, 4095, 65535, 10**6, 2**24 + 1, 10**9]
    distances += [int(10 ** draw.uniform(0, 9)) for _ in range(50)]
    t = torch.tensor(distances)
    with localcontext() as context:
        context.prec = 50
        tau, alpha, beta = map(Decimal, (transform.tau, transform.alpha, transform.beta))
        squares = [
            2 * ((d / tau + 1).ln() - alpha.ln() + beta / alpha) for d in map(Decimal, distances)
        ]
        gains = [float(square.sqrt()) for square in squares]
        biases = [float(beta / alpha - square) for square in squares]
        weights = [float(alpha / (d / tau + 1)) for d in map(Decimal, distances)]
    # The absolute part covers constants of order beta/alpha, rounded once or twice.
    rounding = 8 * torch.finfo(torch.float64).eps
    close = {"rel": rounding, "abs": rounding * max(1.0, transform.beta / transform.alpha)}
    assert transform.gain(t).tolist() == pytest.approx(gains, **close)
    assert transform.bias(t).tolist() == pytest.approx(biases, **close)
    assert transform.expected_weight(t).tolist() == pytest.approx(weights, rel=rounding)


@pytest.mark.parametrize("method", ["gain", "bias", "expected_weight"])
@pytest.mark.parametrize("dtype", FLOATING + INTEGER)
def test_low_precision_distances_are_upcast_before_the_arithmetic(method, dtype):
    evaluate = getattr(ScaleInvariantTransform(), method)
    distance = torch.tensor([[0, 1, 7], [50, 99, 127]], dtype=dtype)
    out = evaluate(distance)
    exact = evaluate(distance.to(torch.float64))
    assert out.dtype == (dtype if dtype.is_floating_point else torch.float64)
    assert out.shape == distance.shape
    assert torch.equal(out, exact.to(out.dtype))


@pytest.mark.parametrize("method", ["gain", "bias", "expected_weight"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
def test_any_shape(method, shape):
    out = getattr(ScaleInvariantTransform(), method)(torch.ones(shape, dtype=torch.int64))
    assert out.shape == shape


@pytest.mark.parametrize("method", ["gain", "bias", "expected_weight"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_distances_below_zero_count_as_zero(method, dtype):
    evaluate = getattr(ScaleInvariantTransform(alpha=1.0, beta=2.0), method)
    hidden = torch.tensor([-1, -10, -11, -1_000_000], dtype=dtype)
    assert torch.equal(evaluate(hidden), evaluate(torch.zeros_like(hidden)))


@pytest.mark.parametrize("method", ["gain", "bias", "expected_weight"])
@pytest.mark.parametrize(
    ("distance", "shown"),
    [
        (3, "3 (int)"),
        ([1, 2], "[1, 2] (list)"),
        (None, "None"),
        (torch.tensor([True]), "tensor([True])"),
        (torch.tensor(1j), "tensor(0.+1.j)"),
    ],
)
def test_distance_must_be_a_real_tensor(method, distance, shown):
    with pytest.raises(TypeError, match="^distance must .*" + re.escape(shown)):
        getattr(ScaleInvariantTransform(), method)(distance)


@pytest.mark.parametrize("name", ["tau", "alpha", "beta", "sigma"])
@pytest.mark.parametrize(
    ("value", "error", "condition"),
    [
        (0, ValueError, "{name} must be greater than 0"),
        (-1.5, ValueError, "{name} must be greater than 0"),
        (math.nan, ValueError, "finite"),
        (math.inf, ValueError, "finite"),
        (True, TypeError, "real number"),
        ("10", TypeError, "real number"),
        (None, TypeError, "real number"),
        (1j, TypeError, "real number"),
        (torch.tensor(1.0), TypeError, "real number"),
    ],
)
def test_invalid_parameters(name, value, error, condition):
    with pytest.raises(error) as raised:
        ScaleInvariantTransform(**{name: value})
    message = str(raised.value)
    assert message.startswith(name)
    assert repr(value) in message
    assert condition.format(name=name) in message


def test_beta_below_the_boundary_is_refused():
    with pytest.raises(
        ValueError, match=r"beta must be at least alpha \* log\(alpha\).*beta=3\.0.*alpha=4\.0"
    ):
        ScaleInvariantTransform(alpha=4.0, beta=3.0)


def test_a_ratio_that_overflows_is_refused():
    with pytest.raises(ValueError, match=r"beta / alpha.*1e-200"):
        ScaleInvariantTransform(alpha=1e-200, beta=1e200)


def test_the_boundary_itself_is_valid_and_has_no_local_gain():
    draw = random.Random(1)
    for _ in range(1000):
        log_alpha = draw.uniform(1e-6, 20)
        alpha = math.exp(log_alpha)
        # Two ways to compute the same bound, which round differently.
        for beta in (alpha * math.log(alpha), alpha * log_alpha):
            transform = ScaleInvariantTransform(alpha=alpha, beta=beta)
            assert transform.gain(torch.tensor(0)).item() == 0.0
            assert transform.gain(torch.tensor(5)).item() > 0.0


def test_numbers_become_floats_so_equal_transforms_are_equal_keys():
    assert repr(ScaleInvariantTransform(tau=10)) == repr(ScaleInvariantTransform(tau=10.0))
    assert len({ScaleInvariantTransform(tau=10), ScaleInvariantTransform()}) == 1


@pytest.mark.parametrize(
    ("start", "mass"), [(10, 28.4471), (100, 36.6228), (1000, 37.8230), (10**4, 37.9491)]
)
def test_published_decade_masses(start, mass):
    assert ScaleInvariantTransform().range_mass(start, 10 * start) == pytest.approx(
        mass, abs=0.5e-4
    )


def test_published_limit():
    assert ScaleInvariantTransform().range_mass_limit(10) == pytest.approx(37.9632, abs=0.5e-4)


@pytest.mark.parametrize("tau", [1e-3, 0.5, 1.0, 10.0, 1e4])
@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (0, 1),
        (0, 5),
        (0, 20),
        (3, 17),
        (15, 16),
        (16, 17),
        (100, 1000),
        (10**9, 10**9 + 1),
        (10**9, 10**9 + 500),
    ],
)
def test_closed_sums_are_exact_for_narrow_and_far_ranges(tau, start, stop):
    transform = ScaleInvariantTransform(tau=tau, alpha=0.7, beta=1.9)
    total = math.fsum(1 / (t / tau + 1) for t in range(start, stop))
    assert transform.range_mass(start, stop) == pytest.approx(0.7 * total, rel=1e-14)
    assert transform.range_negentropy(start, stop) == pytest.approx(1.9 * total, rel=1e-14)


def test_closed_sums_take_constant_time_however_wide_the_range():
    transform = ScaleInvariantTransform()
    assert transform.range_mass(10**30, 10**31) == pytest.approx(
        transform.range_mass_limit(10), rel=1e-14
    )


def test_closed_sums_match_the_digamma_function():
    transform = ScaleInvariantTransform(tau=3.0)
    low, high = torch.special.digamma(
        torch.tensor([20.0, 700.0], dtype=torch.float64) + 3.0
    ).tolist()
    assert transform.range_mass(20, 700) == pytest.approx(
        transform.alpha * 3 * (high - low), rel=1e-13
    )


@pytest.mark.parametrize("method", ["range_mass", "range_negentropy"])
@pytest.mark.parametrize(
    ("start", "stop", "error", "shown"),
    [
        (-1, 5, ValueError, "start must be at least 0, got -1"),
        (5, 5, ValueError, "stop must be greater than start, got stop=5 and start=5"),
        (5, 4, ValueError, "stop must be greater than start, got stop=4 and start=5"),
        (1.0, 5, TypeError, "start must be an integer, got 1.0"),
        (1, 5.5, TypeError, "stop must be an integer, got 5.5"),
        (True, 5, TypeError, "start must be an integer, got True"),
        (0, "9", TypeError, "stop must be an integer, got '9'"),
    ],
)
def test_invalid_ranges(method, start, stop, error, shown):
    with pytest.raises(error, match=re.escape(shown)):
        getattr(ScaleInvariantTransform(), method)(start, stop)


@pytest.mark.parametrize("method", ["range_mass_limit", "range_negentropy_limit"])
@pytest.mark.parametrize(
    ("ratio", "error", "shown"),
    [
        (1, ValueError, "ratio must be greater than 1, got 1"),
        (0.5, ValueError, "ratio must be greater than 1, got 0.5"),
        (math.inf, ValueError, "ratio must be finite, got inf"),
        ("2", TypeError, "ratio must be a real number, got '2'"),
    ],
)
def test_invalid_ratios(method, ratio, error, shown):
    with pytest.raises(error, match=re.escape(shown)):
        getattr(ScaleInvariantTransform(), method)(ratio)
