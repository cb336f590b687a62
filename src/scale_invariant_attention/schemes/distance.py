"""The third slot of a scheme: a gain and a bias for the logits at every distance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ..arguments import positive_number, real_number
from ..theory.schedules import alibi_bias, alibi_slopes
from ..theory.transform import scale_invariant_gain_and_bias

# What the transform depends on besides distance.
VALUES = ("tau", "sigma", "mu")


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
    """Gain ``sqrt(1 + 2 u / sigma^2)`` and bias ``-2 u - (gain - 1) mu``, with ``u = log1p(t/tau)``.

    `tau` is one number, or one per head. With `highest_tau` the heads are spread from `tau` to it, each
    the same factor above the one before. `sigma` and `mu` are the standard deviation and the mean of the
    scores, one number or one per head; the defaults are those of normalised queries and keys. With
    `learn_tau` or `learn_sigma` every head of every layer learns its own, starting from these values.
    `without` leaves out a part, to measure what it contributes: the "gain", the "bias", or "sparsity",
    the second of the paper's conditions, which leaves gain 1 and bias ``-u``.

    >>> ScaleInvariant(tau=1.0, highest_tau=9.0).tau_of_heads(3)
    (1.0, 3.0, 9.0)
    """

    tau: float | Sequence[float] = 10.0
    highest_tau: float | None = None
    learn_tau: bool = False
    without: str | None = None
    sigma: float | Sequence[float] = 1.0
    mu: float | Sequence[float] = 0.0
    learn_sigma: bool = False

    def __post_init__(self) -> None:
        for name in ("learn_tau", "learn_sigma"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.without not in (None, "gain", "bias", "sparsity"):
            raise ValueError(
                f"without must be 'gain', 'bias', 'sparsity' or None, got {self.without!r}"
            )
        for name in VALUES:
            given, check = getattr(self, name), real_number if name == "mu" else positive_number
            if isinstance(given, list | tuple):
                object.__setattr__(self, name, tuple(check(name, each) for each in given))
            else:
                check(name, given)
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
            return _of_heads("tau", self.tau, heads)
        return geometric_spread(self.tau, self.highest_tau or self.tau, heads)

    def build(self, heads: int) -> nn.Module:
        """A layer's tables, with parameters ``[heads]``, the logarithms of what is learned."""
        # One row of tables is enough for heads that are the same.
        same = not isinstance(self.tau, Sequence) and self.highest_tau is None
        taus = self.tau_of_heads(heads)
        learned = {"tau": self.learn_tau, "sigma": self.learn_sigma}
        for name in ("sigma", "mu"):
            _of_heads(name, getattr(self, name), heads)
        return ScaleInvariantTables(
            taus[0] if same else taus,
            self.sigma,
            self.mu,
            heads,
            learned=[name for name, is_learned in learned.items() if is_learned],
            without=self.without,
        )


def _of_heads(name: str, values: float | Sequence[float], heads: int) -> tuple[float, ...]:
    """One value per head."""
    if not isinstance(values, Sequence):
        return (values,) * heads
    if len(values) != heads:
        right = f"one number, or a list of {heads}, one per head"
        raise ValueError(f"{name} must be {right}; got a list of {len(values)}")
    return tuple(values)


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
    """The transform with tau, sigma and mu, each one number or one per head.

    Parameters are the logarithms of what is learned, which keep it positive.
    """

    def __init__(
        self,
        tau: float | Sequence[float],
        sigma: float | Sequence[float],
        mu: float | Sequence[float],
        heads: int,
        *,
        learned: Sequence[str] = (),
        without: str | None = None,
    ) -> None:
        super().__init__()
        self.without = without
        self._fixed = {"tau": tau, "sigma": sigma, "mu": mu}
        for name in learned:
            values = _of_heads(name, self._fixed.pop(name), heads)
            logarithms = torch.tensor([math.log(value) for value in values])
            self.register_parameter(f"log_{name}", nn.Parameter(logarithms))

    @property
    def is_papers(self) -> bool:
        """Whether tau alone gives the tables: sigma is 1, mu is 0, and no part is left out."""
        unit = self._fixed.get("sigma") == 1.0 and self._fixed["mu"] == 0.0
        return unit and self.without is None

    def value(self, name: str, device: torch.device) -> float | Tensor:
        """tau, sigma or mu: one number, or float64 ``[heads]``."""
        if name not in self._fixed:
            logarithm: Tensor = getattr(self, f"log_{name}")
            return logarithm.double().exp()
        fixed = self._fixed[name]
        if isinstance(fixed, Sequence):
            return torch.tensor(fixed, dtype=torch.float64, device=device)
        return fixed

    def forward(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Tables ``[length]`` or ``[heads, length]``."""
        tau, sigma, mu = (_column(self.value(name, distance.device)) for name in VALUES)
        if self.without in ("gain", "sparsity"):
            # Without a gain, a mean shifts nothing.
            _, bias = scale_invariant_gain_and_bias(distance, tau)
            return torch.ones_like(distance), bias if self.without == "gain" else bias / 2
        gain, bias = scale_invariant_gain_and_bias(distance, tau, sigma, mu)
        if self.without == "bias":
            return gain, torch.zeros_like(distance)
        return gain, bias


def _column(value: float | Tensor) -> float | Tensor:
    return value.unsqueeze(-1) if isinstance(value, Tensor) else value
