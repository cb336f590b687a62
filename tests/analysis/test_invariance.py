"""The slope of mass: exact for power laws, and as in theory for the transform."""

import math
from itertools import pairwise

import pytest
import torch

from scale_invariant_attention.analysis import mass_slope, range_edges
from scale_invariant_attention.theory import (
    Plain,
    ScaleInvariantTransform,
    expected_range_mass,
)

EDGES = (0, 10, 100, 1000, 4096)


def masses(weight, edges=EDGES):
    t = torch.arange(edges[-1], dtype=torch.float64)
    weights = weight(t)
    return torch.stack([weights[a:b].sum() for a, b in pairwise(edges)])


@pytest.mark.parametrize("ratio", [2, 3, 10])
def test_power_laws(ratio):
    edges = range_edges(10_000, ratio)
    assert mass_slope(edges, masses(torch.ones_like, edges)).item() == pytest.approx(1.0)
    inverse = masses(lambda t: 1 / (t + 0.5), edges)
    assert mass_slope(edges, inverse).item() == pytest.approx(0.0, abs=1e-3)
    half = masses(lambda t: (t + 0.5) ** -0.5, edges)
    assert mass_slope(edges, half).item() == pytest.approx(0.5, abs=0.02)


def test_schedules():
    def slope(schedule, edges):
        pairs = pairwise(edges)
        return mass_slope(
            edges, torch.tensor([expected_range_mass(schedule, a, b) for a, b in pairs])
        ).item()

    assert slope(Plain(), EDGES) == pytest.approx(1.0)
    assert slope(ScaleInvariantTransform(tau=0.01), EDGES) == pytest.approx(0.0, abs=0.01)
    assert 0 < slope(ScaleInvariantTransform(tau=10.0), EDGES) < 0.1


@pytest.mark.parametrize(("variance", "mean"), [(0.5, 0.0), (1.3, 0.0), (1.0, -1.0)])
def test_scores_that_are_not_standard(variance, mean):
    """Slope v - 1 + mu / a_t, from the expectation of e^L for Gaussian scores."""
    transform = ScaleInvariantTransform(tau=1.0)

    def weight(t):
        gain, bias = transform.gain(t), transform.bias(t)
        return (bias + gain * mean + gain.square() * variance / 2).exp()

    edges = (0, 1000, 10_000, 100_000)
    gain = float(transform.gain(torch.tensor(10_000.0)))
    expected = variance - 1 + mean / gain
    assert mass_slope(edges, masses(weight, edges)).item() == pytest.approx(expected, abs=0.01)


def test_a_range_cut_short_does_not_count():
    edges = (0, 10, 100, 1000, 1010)
    mass = torch.tensor([1.0, 2.0, 2.0, 50.0])
    assert mass_slope(edges, mass).item() == 0.0


@pytest.mark.parametrize("edges", [(0, 10), (0, 10, 100), (0, 5, 9)])
def test_too_few_ranges(edges):
    assert math.isnan(mass_slope(edges, torch.ones(len(edges) - 1)).item())


def test_a_range_without_mass():
    assert math.isnan(mass_slope(EDGES, torch.tensor([1.0, 1.0, 1.0, 0.0])).item())
