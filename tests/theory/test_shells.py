"""Theorem 1 in n dimensions: shells of the integer lattice keep their mass and negentropy."""

import itertools
import math
import sys

import pytest
import torch

from scale_invariant_attention.theory import (
    Plain,
    ScaleInvariantTransform,
    expected_range_mass,
    expected_shell_mass,
    expected_shell_negentropy,
)
from scale_invariant_attention.theory._conditions import lattice_points
from scale_invariant_attention.theory.transform import scale_invariant_gain_and_bias


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_lattice_points_are_those_of_a_count_one_by_one(dimensions):
    below, reach = 30, 6
    expected = [0] * below
    for point in itertools.product(range(-reach, reach + 1), repeat=dimensions):
        squared = sum(x * x for x in point)
        if squared < below:
            expected[squared] += 1
    assert lattice_points(below, dimensions).tolist() == expected


def proven_bounds(start, stop, dimensions, power=0, tau=1.0):
    """The least and the greatest sum of ``f(r) = (r / tau + 1)^-power`` over the lattice of a shell.

    Every lattice point stands for the unit cube around it, whose points y are at most h, half of its
    diagonal, nearer to the origin or farther from it: f(y + h) <= f(r) <= f(y - h). The cubes cover the
    shell from start + h to stop - h, and lie in the one from start - h to stop + h. Over these,

        f(y + h) = (tau / y)^power * (y / (y + h + tau))^power,   f(y - h) <= (tau / y)^power if tau >= h

    are integrated with the fraction at its least, which is that of the inner radius.
    """
    h, n = math.sqrt(dimensions) / 2, dimensions
    assert power == 0 or tau >= h
    sphere = 2 * math.pi ** (n / 2) / math.gamma(n / 2)

    def integral(low, high):
        if power == n:
            return math.log(high / low)
        return (high ** (n - power) - low ** (n - power)) / (n - power)

    fraction = (start + h) / (start + 2 * h + tau)
    unit = sphere * tau**power
    return (
        unit * fraction**power * integral(start + h, stop - h),
        unit * integral(start - h, stop + h),
    )


def test_plain_attention_counts_the_keys_of_a_shell():
    low, high = proven_bounds(100, 200, 2)
    assert low <= expected_shell_mass(Plain(), 100, 200, 2) / math.exp(0.5) <= high


def test_a_shell_of_the_line_is_a_range_on_both_sides():
    transform = ScaleInvariantTransform()
    # The same terms, summed in another order: each of the 45 additions rounds once.
    assert expected_shell_mass(transform, 5, 50, 1) == pytest.approx(
        2 * expected_range_mass(transform, 5, 50), rel=45 * sys.float_info.epsilon
    )
    assert transform.shell_mass_limit(3) == 2 * transform.range_mass_limit(3)


# The radii of shells in so many dimensions: the squares of the radii are counted one by one.
RADII = {1: (100, 200, 400, 800), 2: (40, 80, 160), 3: (20, 40, 80)}


@pytest.mark.parametrize("ratio", [2, 3])
@pytest.mark.parametrize("dimensions", RADII)
@pytest.mark.parametrize(
    "settings", [{}, {"alpha": 2.0, "beta": 5.0}, {"alpha": 1.0, "beta": 0.5}], ids=str
)
def test_theorem_1_mass_and_negentropy_of_shells_tend_to_their_limits(dimensions, ratio, settings):
    transform = ScaleInvariantTransform(tau=1.0, dimensions=dimensions, **settings)
    mass_limit = transform.shell_mass_limit(ratio)
    negentropy_limit = transform.shell_negentropy_limit(ratio)
    # Three roundings on either side.
    exactly = pytest.approx(mass_limit, rel=6 * sys.float_info.epsilon)
    assert negentropy_limit * transform.alpha / transform.beta == exactly
    gaps = []
    for radius in RADII[dimensions]:
        low, high = proven_bounds(radius, ratio * radius, dimensions, dimensions)
        mass = expected_shell_mass(transform, radius, ratio * radius, dimensions)
        negentropy = expected_shell_negentropy(transform, radius, ratio * radius, dimensions)
        for found, limit, factor in (
            (mass, mass_limit, transform.alpha),
            (negentropy, negentropy_limit, transform.beta),
        ):
            assert factor * low <= found <= factor * high
            assert factor * low <= limit <= factor * high
        gaps.append(abs(mass / mass_limit - 1))
    # They shrink as 1 / r does, and the last radius is at least four times the first.
    assert gaps[-1] < gaps[0] / 2


@pytest.mark.parametrize("wrong", [1, 3])
def test_another_power_keeps_no_shell(wrong):
    # In the plane, mass grows with the power of a line, and vanishes with that of space.
    transform = ScaleInvariantTransform(tau=1.0, dimensions=wrong)
    bounds = [proven_bounds(r, 2 * r, 2, wrong) for r in (25, 200)]
    for r, (low, high) in zip((25, 200), bounds, strict=True):
        assert low <= expected_shell_mass(transform, r, 2 * r, 2) / transform.alpha <= high
    (near_low, near_high), (far_low, far_high) = bounds
    assert near_high < far_low if wrong == 1 else far_high < near_low


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_scores_of_any_spread_keep_their_shells(sigma):
    transform = ScaleInvariantTransform.for_scores(sigma, 2.0, dimensions=2)
    low, high = (transform.alpha * it for it in proven_bounds(100, 200, 2, 2, tau=2.0))
    assert low <= expected_shell_mass(transform, 100, 200, 2, sigma=sigma) <= high
    assert low <= transform.shell_mass_limit(2) <= high
    assert transform.gain(torch.tensor(0)).item() == 1.0


def test_gain_and_bias_are_the_law_of_n_dimensions():
    r, tau, n = torch.tensor([0.0, 1.0, 2**0.5, 50.0], dtype=torch.float64), 3.0, 2
    u = torch.log1p(r / tau)
    gain, bias = scale_invariant_gain_and_bias(r, tau, dimensions=n)
    torch.testing.assert_close(gain, torch.sqrt(1 + 2 * n * u))
    torch.testing.assert_close(bias, -2 * n * u)
    transform = ScaleInvariantTransform(tau, dimensions=n)
    torch.testing.assert_close(transform.gain(r), gain)
    torch.testing.assert_close(transform.bias(r), bias)
    torch.testing.assert_close(
        transform.expected_weight(r), math.exp(0.5) * (r / tau + 1) ** -float(n)
    )


def test_sums_over_a_line_name_what_n_dimensions_have():
    transform = ScaleInvariantTransform(dimensions=2)
    for wrong, right in (
        (lambda: transform.range_mass(1, 2), "expected_shell_mass"),
        (lambda: transform.range_negentropy(1, 2), "expected_shell_negentropy"),
        (lambda: transform.range_mass_limit(2), "shell_mass_limit"),
        (lambda: transform.range_negentropy_limit(2), "shell_negentropy_limit"),
    ):
        with pytest.raises(ValueError, match=f"2 dimensions: use {right}"):
            wrong()
    with pytest.raises(ValueError, match="dimensions must be at least 1, got 0"):
        ScaleInvariantTransform(dimensions=0)
