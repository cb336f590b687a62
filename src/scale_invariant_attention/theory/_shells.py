"""Shells of the integer lattice: the conditions of scale invariance in n dimensions.

A query at the origin sees a key at every point with integer coordinates. The shell `[start, stop)` holds
the keys whose Euclidean distance `r` is in that range; those at one distance are counted together:

    E[Z] = sum over m of count(m) * E[e^L_r],   r = sqrt(m),   m = start^2 ... stop^2 - 1
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..arguments import distance_range, integer
from ._conditions import expected_weight, expected_weight_log_weight
from .schedules import LogitSchedule


def expected_shell_mass(
    schedule: LogitSchedule, start: int, stop: int, dimensions: int, *, sigma: float = 1.0
) -> float:
    """`E[Z[start, stop)]`: the expected weight summed over a shell of the lattice.

    `sigma` is the standard deviation of the scores.

    >>> from scale_invariant_attention.theory import ScaleInvariantTransform
    >>> transform = ScaleInvariantTransform(tau=1.0, dimensions=2)
    >>> [round(expected_shell_mass(transform, r, 2 * r, 2), 2) for r in (10, 100)], (
    ...     round(transform.shell_mass_limit(2), 2))
    ([6.33, 7.08], 7.18)
    """
    return _sum_over_shell(
        lambda r: expected_weight(schedule, r, sigma=sigma), start, stop, dimensions
    )


def expected_shell_negentropy(
    schedule: LogitSchedule, start: int, stop: int, dimensions: int, *, sigma: float = 1.0
) -> float:
    """`E[N[start, stop)]`: the expected weight times log-weight summed over a shell of the lattice.

    >>> from scale_invariant_attention.theory import ScaleInvariantTransform
    >>> transform = ScaleInvariantTransform(tau=1.0, dimensions=2)
    >>> [round(expected_shell_negentropy(transform, r, 2 * r, 2), 2) for r in (10, 100)]
    [6.33, 7.08]
    """
    return _sum_over_shell(
        lambda r: expected_weight_log_weight(schedule, r, sigma=sigma), start, stop, dimensions
    )


def _sum_over_shell(
    formula: Callable[[Tensor], Tensor], start: int, stop: int, dimensions: int
) -> float:
    first, end = distance_range(start, stop)
    counts = lattice_points(end**2, integer("dimensions", dimensions, at_least=1))
    squared = counts.nonzero().squeeze(1)
    squared = squared[squared >= first**2]
    return math.fsum((counts[squared] * formula(squared.double().sqrt())).tolist())


def lattice_points(below: int, dimensions: int) -> Tensor:
    """How many points of the lattice have each squared distance ``0 .. below - 1`` from the origin.

    >>> lattice_points(6, dimensions=2).tolist()
    [1.0, 4.0, 4.0, 0.0, 4.0, 8.0]
    """
    squares = torch.arange(math.isqrt(max(0, below - 1)) + 1).square()[:below]
    counts = torch.zeros(below, dtype=torch.float64)
    # On a line, 0 and one point on either side.
    counts[squares] = 2
    counts[:1] = 1
    for _ in range(dimensions - 1):
        more = counts.clone()
        for square in squares[1:].tolist():
            more[square:] += 2 * counts[: below - square]
        counts = more
    return counts
