"""Biases by distance of other papers: T5, KERPLE, Sandwich, NAPE and APE.

What they learn, they learn per layer and head.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..arguments import integer, positive_number
from .distance import BiasTables

# KERPLE keeps its parameters above this.
SMALLEST = 0.01
APE_PARAMETERS = ("damping", "delta", "beta", "gamma")


@dataclass(frozen=True)
class T5:
    """Gain 1, and a learned bias per bucket of distances, which starts at 0.

    The first half of the `buckets` have one distance each, the others ranges of equal ratios up to
    `max_distance`; the last has all beyond.
    """

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        integer("buckets", self.buckets, at_least=2)
        integer("max_distance", self.max_distance, at_least=self.buckets // 2 + 1)

    def build(self, heads: int) -> nn.Module:
        """A layer's table, a parameter ``[heads, buckets]``."""
        return T5Tables(heads, self.buckets, self.max_distance)


class T5Tables(nn.Module):
    """Gain 1, and a bias per bucket of distances and head."""

    def __init__(self, heads: int, buckets: int, max_distance: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(heads, buckets))
        self.max_distance = max_distance

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """A gain ``[length]`` and a bias ``[heads, length]``."""
        buckets = self.bias.shape[1]
        exact = buckets // 2
        # In ratios, the position of a distance between `exact` and `max_distance`.
        along = (distance.clamp(min=exact) / exact).log() / math.log(self.max_distance / exact)
        ranges = (exact + (along * (buckets - exact)).floor()).clamp(max=buckets - 1)
        bucket = torch.where(distance < exact, distance, ranges).long()
        return torch.ones_like(distance), self.bias.double()[:, bucket]


@dataclass(frozen=True)
class KerpleLog:
    """Gain 1 and bias ``-r1 log(1 + r2 t)``, with `r1` and `r2` learned.

    They start at random numbers below 2 and 1.
    """

    def build(self, heads: int) -> nn.Module:
        """A layer's tables, whose parameters ``[heads]`` are the logarithms of `r1` and `r2`."""
        return KerpleLogTables(heads)


class KerpleLogTables(nn.Module):
    """Gain 1 and bias ``-r1 log(1 + r2 t)``."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_r1 = nn.Parameter(_drawn(heads, below=2.0).log())
        self.log_r2 = nn.Parameter(_drawn(heads, below=1.0).log())

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """A gain ``[length]`` and a bias ``[heads, length]``."""
        r1, r2 = _column(self.log_r1).exp(), _column(self.log_r2).exp()
        return torch.ones_like(distance), 0 - r1 * (r2 * distance).log1p()


@dataclass(frozen=True)
class KerplePower:
    """Gain 1 and bias ``-r1 t ^ r2``, with `r1` and `r2`, below 2, learned.

    They start at random numbers below 1 and 2.
    """

    def build(self, heads: int) -> nn.Module:
        """A layer's tables, with parameters ``[heads]``: the log of `r1`, the logit of half of `r2`."""
        return KerplePowerTables(heads)


class KerplePowerTables(nn.Module):
    """Gain 1 and bias ``-r1 t ^ r2``."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_r1 = nn.Parameter(_drawn(heads, below=1.0).log())
        self.logit_r2 = nn.Parameter((_drawn(heads, below=2.0) / 2).logit(eps=SMALLEST / 2))

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """A gain ``[length]`` and a bias ``[heads, length]``."""
        r1, r2 = _column(self.log_r1).exp(), 2 * _column(self.logit_r2).sigmoid()
        return torch.ones_like(distance), 0 - r1 * distance**r2


@dataclass(frozen=True)
class Sandwich:
    """Gain 1, and as bias the inner product of two sinusoidal position embeddings, less at t = 0.

    It is ``sum(cos(t / 10000 ^ (2k / dimensions)) - 1)`` over k from 1 to ``dimensions / 2``, divided by
    ``8 h / heads`` in head h = 1 .. heads.
    """

    dimensions: int = 128

    def __post_init__(self) -> None:
        if integer("dimensions", self.dimensions, at_least=2) % 2:
            raise ValueError(f"dimensions must be even, got {self.dimensions}")

    def build(self, heads: int) -> nn.Module:
        """A module without parameters."""
        return SandwichTables(heads, self.dimensions)


class SandwichTables(nn.Module):
    """Gain 1, and the bias of `Sandwich`."""

    def __init__(self, heads: int, dimensions: int) -> None:
        super().__init__()
        self.heads = heads
        self.dimensions = dimensions

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """A gain ``[length]`` and a bias ``[heads, length]``."""
        pairs = torch.arange(1, self.dimensions // 2 + 1, device=distance.device).double()
        angles = distance.unsqueeze(-1) / 10_000 ** (2 * pairs / self.dimensions)
        product = (angles.cos() - 1).sum(-1)
        ratios = 8 * torch.arange(1, self.heads + 1, device=distance.device).double() / self.heads
        return torch.ones_like(distance), product / ratios.unsqueeze(-1)


@dataclass(frozen=True)
class NAPE:
    """Gain 1 and bias ``-t / h`` in heads h = 1 .. heads / 2; bias 0 in the other half of the heads."""

    def build(self, heads: int) -> nn.Module:
        """A module without parameters."""
        half = heads // 2
        return BiasTables([1 / (head + 1) for head in range(half)] + [0.0] * (heads - half))


@dataclass(frozen=True)
class APE:
    """Gain ``1 / (1 + damping t)`` and bias ``-delta t - beta log(1 + t) - gamma sqrt(t)``.

    All four are learned per head, and start from the given values.
    """

    damping: float = 0.01
    delta: float = 0.01
    beta: float = 0.1
    gamma: float = 0.1

    def __post_init__(self) -> None:
        for name in APE_PARAMETERS:
            positive_number(name, getattr(self, name))

    def build(self, heads: int) -> nn.Module:
        """A layer's tables, whose parameters ``[heads]`` are the logarithms of the four."""
        return APETables(heads, self)


class APETables(nn.Module):
    """Gain ``1 / (1 + damping t)`` and bias ``-delta t - beta log(1 + t) - gamma sqrt(t)``."""

    def __init__(self, heads: int, start: APE) -> None:
        super().__init__()
        for name in APE_PARAMETERS:
            logarithm = torch.full((heads,), math.log(getattr(start, name)))
            self.register_parameter(f"log_{name}", nn.Parameter(logarithm))

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Tables ``[heads, length]``."""
        damping, delta, beta, gamma = (
            _column(getattr(self, f"log_{name}")).exp() for name in APE_PARAMETERS
        )
        penalty = delta * distance + beta * distance.log1p() + gamma * distance.sqrt()
        return 1 / (1 + damping * distance), 0 - penalty


def _drawn(heads: int, below: float) -> Tensor:
    """Random numbers ``[heads]`` between `SMALLEST` and `below`."""
    return (below * torch.rand(heads)).clamp(min=SMALLEST)


def _column(parameter: Tensor) -> Tensor:
    return parameter.double().unsqueeze(-1)
