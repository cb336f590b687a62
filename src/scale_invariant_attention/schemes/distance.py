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

    `tau` is one number, or one per head. With `highest_tau` the heads are spread from `tau` to it, each
    the same factor above the one before. With `learn_tau` every head of every layer learns its own,
    starting from these values. `without` leaves out the "gain" or the "bias", to measure what it
    contributes.

    >>> ScaleInvariant(tau=1.0, highest_tau=8.0).tau_of_heads(4)
    (1.0, 2.0, 4.0, 8.0)
    """

    tau: float | Sequence[float] = 10.0
    highest_tau: float | None = None
    learn_tau: bool = False
    without: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.learn_tau, bool):
            raise TypeError(f"learn_tau must be True or False, got {self.learn_tau!r}")
        if self.without not in (None, "gain", "bias"):
            raise ValueError(f"without must be 'gain', 'bias' or None, got {self.without!r}")
        if isinstance(self.tau, list | tuple):
            taus = tuple(positive_number("tau", each) for each in self.tau)
            object.__setattr__(self, "tau", taus)
        else:
            positive_number("tau", self.tau)
        if self.highest_tau is None:
            return
        positive_number("highest_tau", self.highest_tau)
        if isinstance(self.tau, Sequence):
            raise ValueError(
                f"tau must be one number, the lowest, with highest_tau={self.highest_tau}, got "
                f"{list(self.tau)}; leave highest_tau out to give each head its own"
            )
        if self.highest_tau < self.tau:
            raise ValueError(
                f"highest_tau must be at least tau, which is {self.tau}, got {self.highest_tau}"
            )

    def tau_of_heads(self, heads: int) -> tuple[float, ...]:
        """tau of each of `heads` heads."""
        if isinstance(self.tau, Sequence):
            if len(self.tau) != heads:
                raise ValueError(
                    f"tau must be one number or {heads}, one per head, got {len(self.tau)}"
                )
            return tuple(self.tau)
        return geometric_spread(self.tau, self.highest_tau or self.tau, heads)

    def build(self, heads: int) -> nn.Module:
        """A layer's tables; if tau is learned, with parameters ``[heads]``, the logarithms of tau."""
        taus = self.tau_of_heads(heads)
        if self.learn_tau:
            return LearnedTauTables(taus, self.without)
        # One row of tables is enough for heads that are the same.
        same = not isinstance(self.tau, Sequence) and self.highest_tau is None
        return ScaleInvariantTables(taus[0] if same else taus, self.without)


def geometric_spread(lowest: float, highest: float, count: int) -> tuple[float, ...]:
    """`count` numbers from `lowest` to `highest` with equal ratios; a single one is their mean.

    >>> geometric_spread(1.0, 100.0, 3), geometric_spread(1.0, 100.0, 1)
    ((1.0, 10.0, 100.0), (10.0,))
    """
    if count == 1:
        return (math.sqrt(lowest * highest),)
    ratio = highest / lowest
    return tuple(lowest * ratio ** (each / (count - 1)) for each in range(count))


class ScaleInvariantTables(nn.Module):
    """The transform with a fixed tau, one number or one per head."""

    def __init__(self, tau: float | Sequence[float], without: str | None = None) -> None:
        super().__init__()
        self._tau = tau
        self.without = without

    def tau(self, device: torch.device) -> float | Tensor:
        """One number, or float64 ``[heads]``."""
        if isinstance(self._tau, Sequence):
            return torch.tensor(self._tau, dtype=torch.float64, device=device)
        return self._tau

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Tables ``[length]`` or ``[heads, length]``."""
        tau = self.tau(distance.device)
        tau = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
        gain, bias = scale_invariant_gain_and_bias(distance, tau)
        if self.without == "gain":
            return torch.ones_like(distance), bias
        if self.without == "bias":
            return gain, torch.zeros_like(distance)
        return gain, bias


class LearnedTauTables(ScaleInvariantTables):
    """The transform with one tau per head, learned as its logarithm so that it stays positive."""

    def __init__(self, taus: Sequence[float], without: str | None = None) -> None:
        super().__init__(taus, without)
        self.log_tau = nn.Parameter(torch.tensor([math.log(tau) for tau in taus]))

    def tau(self, device: torch.device) -> Tensor:
        """float64 ``[heads]``."""
        return self.log_tau.double().exp()
