"""Deviation from scale invariance as one number: the slope of mass against distance.

Attention is scale-invariant if every range of distance `[a, b)` gets mass in proportion to log(b / a),
as weights that fall like 1/t do. So mass over log(b / a) against distance, on logarithmic axes, has

    slope 0                    scale-invariant
    slope 1                    the same weight at every distance: distant text dominates
    slope v - 1 + mu / a_t     the transform on Gaussian scores of variance v and mean mu, beyond tau
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

# Nearer distances are excluded: there the transform hardly changes attention.
LOCAL = 10

# If the context truncates the last range, it counts only if it ends at this multiple of its start or
# later.
NARROWEST = 2.0


def mass_slope(edges: Sequence[int], mass: Tensor, *, local: int = LOCAL) -> Tensor:
    """Least-squares slope ``[...]`` of mass ``[..., G]`` in the ranges between `edges`.

    Mass may be unnormalised. NaN if fewer than two ranges are beyond `local`, or one has no mass.

    >>> edges = (0, 10, 100, 1000)
    >>> mass_slope(edges, torch.tensor([10.0, 90.0, 900.0])).round(decimals=4)
    tensor(1., dtype=torch.float64)
    >>> mass_slope(edges, torch.tensor([10.0, 2.0, 2.0]))
    tensor(0., dtype=torch.float64)
    """
    ranges = [(place, *both) for place, both in enumerate(pairwise(edges)) if both[0] >= local]
    if ranges and ranges[-1][2] < NARROWEST * ranges[-1][1]:
        ranges.pop()
    if len(ranges) < 2:
        return torch.full(mass.shape[:-1], math.nan, dtype=torch.float64)
    widths = torch.tensor(
        [math.log(stop / start) for _, start, stop in ranges], dtype=torch.float64
    )
    sizes = torch.tensor([stop - start for _, start, stop in ranges], dtype=torch.float64)
    # The logarithmic mean of a range's ends, for which a constant weight has slope 1.
    x = (sizes / widths).log()
    chosen = mass[..., [place for place, _, _ in ranges]].double().cpu()
    y = (chosen / widths).log()
    x = x - x.mean()
    slope = ((y - y.mean(-1, keepdim=True)) * x).sum(-1) / x.square().sum()
    return slope.where(slope.isfinite(), math.nan)
