"""The third slot of a scheme: a gain and a bias for the logits at every distance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ..arguments import positive_number
from ..theory.schedules import alibi_bias, alibi_slopes
from ..theory.transform import scale_invariant_gain_and_bias


class Distance(Protocol):
    """A gain and a bias by distance, and the parameters they have in each layer."""

    def build(self, heads: int) -> nn.Module:
        """The module of one layer, from float64 distances ``[length]`` to tables of gain and bias.

        Each table is float64, ``[length]`` or ``[heads, length]``.
        """


@dataclass(frozen=True)
class Unchanged:
    """Gain 1 and bias 0: the logits of ordinary attention."""

    def build(self, heads: int) -> nn.Module:
        """A module without parameters."""
        return BiasTables()


@dataclass(frozen=True)
class ALiBi:
    """Gain 1 and bias ``-slope * t``, with a fixed slope per head."""

    def build(self, heads: int) -> nn.Module:
        """A module without parameters."""
        return BiasTables(alibi_slopes(heads))


class BiasTables(nn.Module):
    """Gain 1, and bias ``-slope * t`` with one slope per head, or 0 without slopes."""

    def __init__(self, slopes: Sequence[float] = ()) -> None:
        super().__init__()
        self.slopes = slopes

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """A gain ``[length]`` and a bias ``[heads, length]``, or ``[length]`` without slopes."""
        if not self.slopes:
            return torch.ones_like(distance), torch.zeros_like(distance)
        slopes = torch.tensor(self.slopes, dtype=distance.dtype, device=distance.device)
        return torch.ones_like(distance), alibi_bias(distance, slopes.unsqueeze(-1))


@dataclass(frozen=True)
class ScaleInvariant:
    """Gain ``sqrt(1 + 2 log1p(t/tau))`` and bias ``-2 log1p(t/tau)``.

    `tau` is one number, or one per head. With `learn_tau` every head of every layer learns its own,
    starting from `tau`.
    """

    tau: float | Sequence[float] = 10.0
    learn_tau: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.learn_tau, bool):
            raise TypeError(f"learn_tau must be True or False, got {self.learn_tau!r}")
        if not isinstance(self.tau, list | tuple):
            positive_number("tau", self.tau)
            return
        if self.learn_tau:
            raise ValueError("tau must be one number with learn_tau=True, where every head starts")
        object.__setattr__(self, "tau", tuple(positive_number("tau", each) for each in self.tau))

    def build(self, heads: int) -> nn.Module:
        """A layer's tables; if tau is learned, with parameters ``[heads]``, the logarithms of tau."""
        if self.learn_tau:
            assert not isinstance(self.tau, Sequence)
            return LearnedTauTables(heads, self.tau)
        if isinstance(self.tau, Sequence) and len(self.tau) != heads:
            raise ValueError(
                f"tau must be one number or {heads}, one per head, got {len(self.tau)}"
            )
        return ScaleInvariantTables(self.tau)


class ScaleInvariantTables(nn.Module):
    """The transform with a fixed tau, one number or one per head."""

    def __init__(self, tau: float | Sequence[float]) -> None:
        super().__init__()
        self._tau = tau

    def tau(self, device: torch.device) -> float | Tensor:
        """One number, or float64 ``[heads]``."""
        if isinstance(self._tau, Sequence):
            return torch.tensor(self._tau, dtype=torch.float64, device=device)
        return self._tau

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Tables ``[length]`` or ``[heads, length]``."""
        tau = self.tau(distance.device)
        tau = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
        return scale_invariant_gain_and_bias(distance, tau)


class LearnedTauTables(ScaleInvariantTables):
    """The transform with one tau per head, learned as its logarithm so that it stays positive."""

    def __init__(self, heads: int, tau: float) -> None:
        super().__init__(tau)
        self.log_tau = nn.Parameter(torch.full((heads,), math.log(tau)))

    def tau(self, device: torch.device) -> Tensor:
        """float64 ``[heads]``."""
        return self.log_tau.double().exp()
