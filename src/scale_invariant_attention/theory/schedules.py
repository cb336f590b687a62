"""Logit schedules: the gain and bias that a scheme applies to a unit-variance score at each distance.

L_t = gain(t) * S_t + bias(t),   S_t ~ N(0, 1),   so that   L_t ~ N(bias(t), gain(t)^2)
"""

import math
from dataclasses import dataclass
from typing import Protocol, overload

import torch
from torch import Tensor

from ..arguments import integer, positive_number
from ._distance import at_distance


class LogitSchedule(Protocol):
    """A gain and a bias at every distance; `ScaleInvariantTransform` is one.

    >>> from scale_invariant_attention.theory import ScaleInvariantTransform
    >>> schedule: LogitSchedule = ScaleInvariantTransform()
    >>> schedule.gain(torch.tensor(0)).item()
    1.0
    """

    def gain(self, distance: Tensor) -> Tensor:
        """The standard deviation of the logit, of the shape of `distance`."""

    def bias(self, distance: Tensor) -> Tensor:
        """The mean of the logit, of the shape of `distance`."""


@dataclass(frozen=True)
class Plain:
    """Plain softmax attention: gain 1, bias 0.

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
class LogN(Plain):
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
        sharpness = log_n_gain(self.length, self.scale)
        return at_distance(distance, lambda t: torch.full_like(t, sharpness))


@dataclass(frozen=True)
class ALiBi(Plain):
    """A linear penalty on distance: gain 1, bias `-slope * t`.

    >>> ALiBi(slope=0.25).bias(torch.tensor([-1, 0, 8]))
    tensor([ 0.,  0., -2.], dtype=torch.float64)
    """

    slope: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "slope", positive_number("slope", self.slope))

    def bias(self, distance: Tensor) -> Tensor:
        """`-slope * t`."""
        return at_distance(distance, lambda t: alibi_bias(t, self.slope))


@overload
def log_n_gain(length: int, scale: float) -> float: ...
@overload
def log_n_gain(length: Tensor, scale: Tensor) -> Tensor: ...
def log_n_gain(length: int | Tensor, scale: float | Tensor) -> float | Tensor:
    """LogN's factor of the logits, `scale * log(length)`, in float64."""
    if isinstance(length, Tensor) and isinstance(scale, Tensor):
        return scale.double() * length.double().log()
    return scale * math.log(length)


def alibi_bias(distance: Tensor, slope: float | Tensor) -> Tensor:
    """ALiBi's bias `-slope * t`."""
    # 0 - x rather than -x: no negative zero at distance zero.
    return 0 - slope * distance


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi's published slopes: geometric from ``2^(-8/heads)`` when `heads` is a power of two.

    Otherwise those of the next lower power of two, then every other slope of twice that number.

    >>> alibi_slopes(6)
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    heads = integer("heads", heads, at_least=1)
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-8 * (head + 1) / (2 * power)) for head in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]
