"""The scale-invariant transform: a gain and a bias for the logit at every distance.

    L_t = a_t * S_t + m_t
    a_t^2 = 2 * (log(t/tau + 1) - log(alpha) + beta/alpha)
    m_t = -a_t^2 + beta/alpha

For scores `S_t ~ N(0, 1)` this makes `E[e^L_t] = alpha / (t/tau + 1)` and
`E[L_t e^L_t] = beta / (t/tau + 1)`, so that every range `[t, ratio * t)` of distances keeps its
expected mass and negentropy as `t` grows. Scores with the standard deviation sigma are divided by it
first; with `alpha = e^(sigma^2/2)` and `beta = sigma^2 alpha` distance zero is then left alone:

    L_t = sqrt(1 + 2 u / sigma^2) * S_t - 2 u,    u = log1p(t/tau)

In n dimensions shells take the place of ranges, and the power -n that of -1: `log(t/tau + 1)` and `u`
are multiplied by n, and nothing else changes.
"""

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import distance_range, integer, positive_number, ratio_above_one
from ._distance import at_distance

# Relative size of what the caller's own arithmetic may have rounded off.
_ROUNDING = 4 * sys.float_info.epsilon
# The largest sigma^2 for which alpha = e^(sigma^2/2) and beta = sigma^2 alpha are finite.
_LARGEST_VARIANCE = 1400.0


@dataclass(frozen=True)
class ScaleInvariantTransform:
    """Gain `a_t` and bias `m_t` with `tau`, the distance below which context counts as local.

    `alpha` and `beta` set the expected weight and the expected weight times log-weight at distance
    zero, for scores with mean 0 and the standard deviation `sigma`. The defaults are the only pair that
    leaves distance zero alone if `sigma` is 1: gain 1 and bias 0. For any other `sigma`,
    :meth:`for_scores` has that pair. Valid for `tau > 0`, `sigma > 0`, `alpha > 0` and
    `beta >= alpha * log(alpha)` with `beta > 0`. In n `dimensions`, distances are Euclidean, and weights
    fall with the n-th power of the distance.

    >>> transform = ScaleInvariantTransform(tau=10.0)
    >>> transform.gain(torch.tensor([0, 10, 1000]))
    tensor([1.0000, 1.5448, 3.1985], dtype=torch.float64)
    >>> transform.bias(torch.tensor([0, 10, 1000]))
    tensor([ 0.0000, -1.3863, -9.2302], dtype=torch.float64)
    """

    tau: float = 10.0
    alpha: float = math.exp(0.5)
    beta: float = math.exp(0.5)
    sigma: float = 1.0
    dimensions: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimensions", integer("dimensions", self.dimensions, at_least=1))
        for name in ("tau", "alpha", "beta", "sigma"):
            object.__setattr__(self, name, positive_number(name, getattr(self, name)))
        if self._headroom < 0:
            raise ValueError(
                f"beta must be at least alpha * log(alpha), got beta={self.beta!r} and "
                f"alpha={self.alpha!r}; pass beta >= {self.alpha * math.log(self.alpha)!r}"
            )
        if not math.isfinite(self._local_variance):
            raise ValueError(
                f"beta / alpha must be finite, got beta={self.beta!r} and "
                f"alpha={self.alpha!r}; pass a larger alpha or a smaller beta"
            )

    @classmethod
    def for_scores(
        cls, sigma: float, tau: float = 10.0, dimensions: int = 1
    ) -> "ScaleInvariantTransform":
        """The transform that leaves distance zero alone for scores of standard deviation `sigma`.

        `alpha = e^(sigma^2/2)` and `beta = sigma^2 alpha`; `sigma = 1` is the paper's.

        >>> transform = ScaleInvariantTransform.for_scores(sigma=3.0)
        >>> transform.gain(torch.tensor([0, 10, 1000]))
        tensor([1.0000, 1.0743, 1.4232], dtype=torch.float64)
        >>> transform.bias(torch.tensor([0, 10, 1000]))
        tensor([ 0.0000, -1.3863, -9.2302], dtype=torch.float64)
        """
        variance = positive_number("sigma", sigma) ** 2
        if not 0 < variance <= _LARGEST_VARIANCE:
            raise ValueError(
                f"sigma must be such that e^(sigma^2/2) is a finite number, at most "
                f"{math.sqrt(_LARGEST_VARIANCE):.0f} and above 1e-150, got {sigma!r}"
            )
        alpha = math.exp(variance / 2)
        return cls(tau, alpha, variance * alpha, sigma, dimensions)

    @property
    def _headroom(self) -> float:
        """`beta - alpha log(alpha)`, exactly 0 for a beta on the boundary but for rounding."""
        boundary = self.alpha * math.log(self.alpha)
        on_boundary = math.isclose(
            self.beta, boundary, rel_tol=_ROUNDING, abs_tol=_ROUNDING * self.alpha
        )
        return 0.0 if on_boundary else self.beta - boundary

    @property
    def _local_variance(self) -> float:
        """`a_0^2`, exactly `sigma^2` if distance zero is left alone, and exactly 0 on the boundary."""
        variance = 2 * (self._headroom / self.alpha)
        untouched = self.sigma**2
        same = math.isclose(variance, untouched, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
        return untouched if same else variance

    @property
    def _local_bias(self) -> float:
        """`m_0 = beta/alpha - a_0^2`, exactly 0 where distance zero is left alone."""
        ratio, variance = self.beta / self.alpha, self._local_variance
        return 0.0 if math.isclose(ratio, variance, rel_tol=_ROUNDING) else ratio - variance

    def gain(self, distance: Tensor) -> Tensor:
        """`a_t / sigma = sqrt(2 n log1p(t/tau) + a_0^2) / sigma`, of the shape of `distance`.

        Computed in float64. A floating `distance` gives its own dtype, an integer one float64.
        Distances below zero count as zero.

        >>> ScaleInvariantTransform().gain(torch.tensor(0.0))
        tensor(1.)
        """
        variance = self._local_variance
        return at_distance(
            distance,
            lambda t: (_growth(t, self.tau, self.dimensions) + variance).sqrt() / self.sigma,
        )

    def bias(self, distance: Tensor) -> Tensor:
        """`m_t = -2 n log1p(t/tau) + m_0`, of the shape of `distance`; dtypes as in `gain`.

        >>> ScaleInvariantTransform().bias(torch.tensor([-1, 0]))
        tensor([0., 0.], dtype=torch.float64)
        """
        return at_distance(
            distance, lambda t: self._local_bias - _growth(t, self.tau, self.dimensions)
        )

    def expected_weight(self, distance: Tensor) -> Tensor:
        """`E[e^L_t] = alpha / (t/tau + 1)^n`, of the shape of `distance`; dtypes as in `gain`.

        >>> ScaleInvariantTransform().expected_weight(torch.tensor([0, 10]))
        tensor([1.6487, 0.8244], dtype=torch.float64)
        """
        return at_distance(distance, lambda t: self.alpha / (t / self.tau + 1) ** self.dimensions)

    def range_mass(self, start: int, stop: int) -> float:
        """Expected sum of weights over the integers of `[start, stop)`, in constant time.

        `alpha tau (digamma(stop + tau) - digamma(start + tau))`.

        >>> round(ScaleInvariantTransform().range_mass(100, 1000), 4)
        36.6228
        """
        self._require_line("range_mass", "expected_shell_mass")
        return self.alpha * self.tau * _reciprocal_sum(*distance_range(start, stop), self.tau)

    def range_negentropy(self, start: int, stop: int) -> float:
        """Expected sum of weight times log-weight over the integers of `[start, stop)`.

        `beta tau (digamma(stop + tau) - digamma(start + tau))`, in constant time.

        >>> round(ScaleInvariantTransform(beta=2.0).range_negentropy(100, 1000), 4)
        44.4256
        """
        self._require_line("range_negentropy", "expected_shell_negentropy")
        return self.beta * self.tau * _reciprocal_sum(*distance_range(start, stop), self.tau)

    def range_mass_limit(self, ratio: float) -> float:
        """`alpha tau ln(ratio)`: the limit of the mass of `[t, ratio * t)` as `t` grows.

        >>> round(ScaleInvariantTransform().range_mass_limit(10), 4)
        37.9632
        """
        self._require_line("range_mass_limit", "shell_mass_limit")
        return self.alpha * self.tau * math.log(ratio_above_one(ratio))

    def range_negentropy_limit(self, ratio: float) -> float:
        """`beta tau ln(ratio)`: the limit of the negentropy of `[t, ratio * t)` as `t` grows.

        >>> round(ScaleInvariantTransform(beta=2.0).range_negentropy_limit(10), 4)
        46.0517
        """
        self._require_line("range_negentropy_limit", "shell_negentropy_limit")
        return self.beta * self.tau * math.log(ratio_above_one(ratio))

    def shell_mass_limit(self, ratio: float) -> float:
        """`alpha tau^n S ln(ratio)`: the limit of the mass of the shell `[r, ratio * r)` as `r` grows.

        `S` is the area of the unit sphere in n dimensions: 2 pi in the plane, and 2 on a line, whose
        shells have keys on both sides.

        >>> round(ScaleInvariantTransform(dimensions=2).shell_mass_limit(2), 1)
        718.0
        """
        return self.alpha * self._shell_limit(ratio)

    def shell_negentropy_limit(self, ratio: float) -> float:
        """`beta tau^n S ln(ratio)`: the limit of the negentropy of `[r, ratio * r)` as `r` grows.

        >>> round(ScaleInvariantTransform(beta=2.0, dimensions=2).shell_negentropy_limit(2), 1)
        871.0
        """
        return self.beta * self._shell_limit(ratio)

    def _shell_limit(self, ratio: float) -> float:
        n = self.dimensions
        sphere: float = 2 * math.pi ** (n / 2) / math.gamma(n / 2)
        return sphere * math.pow(self.tau, n) * math.log(ratio_above_one(ratio))

    def _require_line(self, name: str, instead: str) -> None:
        if self.dimensions != 1:
            raise ValueError(
                f"{name} sums over the distances of a line, and this transform has "
                f"{self.dimensions} dimensions: use {instead}"
            )


def scale_invariant_gain_and_bias(
    distance: Tensor,
    tau: float | Tensor,
    sigma: float | Tensor = 1.0,
    mu: float | Tensor = 0.0,
    dimensions: int = 1,
) -> tuple[Tensor, Tensor]:
    """Gain `sqrt(1 + 2 n u / sigma^2)` and bias `-2 n u - (gain - 1) mu`, with `u = log1p(t/tau)`.

    In n `dimensions`, for scores with the standard deviation `sigma` and the mean `mu`; differentiable
    in all three. The arithmetic runs in the dtype of `distance`, or in the widest one of the tensors.

    >>> gain, bias = scale_invariant_gain_and_bias(torch.tensor([0.0, 10.0]), torch.tensor(10.0))
    >>> gain.tolist(), bias.tolist()
    ([1.0, 1.544...], [0.0, -1.386...])
    """
    growth = _growth(distance, tau, dimensions)
    # A division by 1 would keep FlexAttention from compiling.
    is_unit = not isinstance(sigma, Tensor) and sigma == 1
    gain = torch.sqrt(1 + (growth if is_unit else growth / sigma**2))
    bias = 0 - growth
    has_mean = isinstance(mu, Tensor) or mu != 0
    return gain, bias - (gain - 1) * mu if has_mean else bias


def scale_invariant_slopes(
    distance: Tensor, tau: Tensor, dimensions: int = 1
) -> tuple[Tensor, Tensor]:
    """The derivatives of gain and bias by `tau`: `n u' / a_t` and `-2 n u'`, with `u = log1p(t/tau)`."""
    gain, _ = scale_invariant_gain_and_bias(distance, tau, dimensions=dimensions)
    slope = -dimensions * distance / (tau * (distance + tau))
    return slope / gain, -2 * slope


def _growth(distance: Tensor, tau: float | Tensor, dimensions: int) -> Tensor:
    """`a_t^2 - a_0^2 = m_0 - m_t`."""
    return 2 * dimensions * torch.log1p(distance / tau)


def _reciprocal_sum(start: int, stop: int, shift: float) -> float:
    """`sum of 1/(t + shift)` over the integers of `[start, stop)`, accurate to rounding.

    It is `digamma(stop + shift) - digamma(start + shift)`, but that difference loses the digits of
    a narrow range far away. The asymptotic series, subtracted term by term, keeps them; the terms
    nearest zero, where the series does not converge, are added one by one first.
    """
    total = 0.0
    while start < stop and start + shift < 16:
        total += 1 / (start + shift)
        start += 1
    low = start + shift
    width = stop - start
    near, far = 1 / low, 1 / (low + width)
    # B_2k / 2k: the coefficients of x^-2k in log(x) - 1/(2x) - digamma(x).
    coefficients = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)
    series = sum(
        coefficient * (near**power - far**power)
        for coefficient, power in zip(coefficients, range(2, 12, 2), strict=True)
    )
    return total + math.log1p(width / low) + (near - far) / 2 + series
