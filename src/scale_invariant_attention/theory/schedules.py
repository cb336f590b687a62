"""Logit schedules: what an attention scheme does to a unit-variance score at each distance.

L_t = gain(t) * S_t + bias(t),   S_t ~ N(0, 1),   so that   L_t ~ N(bias(t), gain(t)^2)
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..arguments import integer, positive_number
from .distance import at_distance


class LogitSchedule(Protocol):
    """A gain and a bias at every distance; `ScaleInvariantTransform` is one.

    >>> from scale_invariant_attention.theory import ScaleInvariantTransform
    >>> schedule: LogitSchedule = ScaleInvariantTransform()
    >>> schedule.gain(torch.tensor(0)).item()
    1.0
    """

    def gain(self, distance: Tensor) -> Tensor:
        """The standard deviation of the logit, of the shape of `distance`."""
        ...

    def bias(self, distance: Tensor) -> Tensor:
        """The mean of the logit, of the shape of `distance`."""
        ...


@dataclass(frozen=True)
class Plain:
    """Softmax attention as it is: gain 1, bias 0.

    >>> Plain().gain(torch.tensor([0, 5]))
    tensor([1., 1.], dtype=torch.float64)
    """

    def gain(self, distance: Tensor) -> Tensor:
        """1 everywhere."""
        return at_distance(distance, torch.ones_like)

    def bias(self, distance: Tensor) -> Tensor:
        """0 everywhere."""
        return at_distance(distance, torch.zeros_like)


@dataclass(frozen=True)
class LogN:
    """Logits sharpened as the context grows: gain `scale * log(length)`, bias 0.

    >>> LogN(length=1024).gain(torch.tensor([0, 5]))
    tensor([2.7726, 2.7726], dtype=torch.float64)
    """

    length: int
    scale: float = 0.4

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", integer("length", self.length, at_least=1))
        object.__setattr__(self, "scale", positive_number("scale", self.scale))

    def gain(self, distance: Tensor) -> Tensor:
        """`scale * log(length)` everywhere."""
        sharpness = self.scale * math.log(self.length)
        return at_distance(distance, lambda t: torch.full_like(t, sharpness))

    def bias(self, distance: Tensor) -> Tensor:
        """0 everywhere."""
        return at_distance(distance, torch.zeros_like)


@dataclass(frozen=True)
class ALiBi:
    """A linear penalty on distance: gain 1, bias `-slope * t`.

    >>> ALiBi(slope=0.25).bias(torch.tensor([-1, 0, 8]))
    tensor([ 0.,  0., -2.], dtype=torch.float64)
    """

    slope: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "slope", positive_number("slope", self.slope))

    def gain(self, distance: Tensor) -> Tensor:
        """1 everywhere."""
        return at_distance(distance, torch.ones_like)

    def bias(self, distance: Tensor) -> Tensor:
        """`-slope * t`."""
        # 0 - x rather than -x: no negative zero at distance zero.
        return at_distance(distance, lambda t: 0 - self.slope * t)
