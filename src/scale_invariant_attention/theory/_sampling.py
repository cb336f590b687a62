"""Monte Carlo estimates, with independent N(0, 1) scores, of quantities without a closed form.

Entropies and shares of attention are ratios of random sums, so their expectations do not follow
from the Gaussian identities. Distances are streamed: memory does not grow with the range.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import distance_range, integer
from ._distance import distance_chunks
from .running_softmax import RunningSoftmax
from .schedules import LogitSchedule

# Logits held at a time, over all samples: four megabytes per intermediate tensor.
_CHUNK = 2**19


@dataclass(frozen=True, eq=False)
class Estimate:
    """One value per independent sample, with their mean and its standard error.

    >>> estimate = Estimate(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> estimate.mean, round(estimate.standard_error, 4)
    (2.5, 0.6455)
    """

    values: Tensor

    @property
    def mean(self) -> float:
        """The average of `values`."""
        return float(self.values.mean())

    @property
    def standard_error(self) -> float:
        """The standard deviation of `values` over the square root of their number."""
        return float(self.values.std()) / math.sqrt(self.values.numel())


def sample_range_entropy(
    schedule: LogitSchedule, start: int, stop: int, *, samples: int = 256, seed: int = 0
) -> Estimate:
    """Entropy in nats of attention renormalised inside the distances `[start, stop)`.

    >>> from scale_invariant_attention.theory import Plain, ScaleInvariantTransform
    >>> plain = sample_range_entropy(Plain(), 1000, 2000)
    >>> sharpened = sample_range_entropy(ScaleInvariantTransform(), 1000, 2000)
    >>> sharpened.mean < plain.mean / 2
    True
    """
    bounds = distance_range(start, stop)
    generator = _generator(seed)
    pieces = _logit_pieces(schedule, bounds, integer("samples", samples, at_least=2), generator)
    return Estimate(RunningSoftmax(pieces).entropy)


def sample_recent_share(
    schedule: LogitSchedule, recent: int, length: int, *, samples: int = 256, seed: int = 0
) -> Estimate:
    """Share of attention on the nearest `recent` of `length` tokens.

    >>> from scale_invariant_attention.theory import Plain
    >>> share = sample_recent_share(Plain(), recent=100, length=1000)
    >>> abs(share.mean - 0.1) < 4 * share.standard_error
    True
    """
    recent = integer("recent", recent, at_least=1)
    length = integer("length", length, at_least=1)
    if recent > length:
        raise ValueError(f"recent must be at most length, got {recent=} and {length=}")
    samples = integer("samples", samples, at_least=2)
    generator = _generator(seed)
    near, far = (
        RunningSoftmax(_logit_pieces(schedule, bounds, samples, generator)).log_mass
        for bounds in ((0, recent), (recent, length))
    )
    return Estimate(torch.sigmoid(near - far))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(integer("seed", seed))


def _logit_pieces(
    schedule: LogitSchedule, bounds: tuple[int, int], samples: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Logits `[samples, distances]` over the whole range, a chunk at a time."""
    for distance in distance_chunks(*bounds, size=max(1, _CHUNK // samples)):
        scores = torch.randn(samples, distance.numel(), generator=generator, dtype=torch.float64)
        yield scores.mul_(schedule.gain(distance)).add_(schedule.bias(distance))
