"""Score statistics of a layer: the transform assumes independent N(0, 1)."""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from ._scores import LayerScores

# The first token is often an attention sink, with scores unlike any others.
FIRST_KEYS = 1

# A histogram around the mean: quantiles are accurate to 1/256 of the spread.
BINS = 8192
REACH = 16.0
# Evenly spaced on the axis of a normal quantile plot, up to three standard deviations either way.
NORMAL_QUANTILES = tuple(eighths / 8 for eighths in range(-24, 25))

# The powers whose sums give the four moments.
POWERS = (1, 2, 3, 4)


class Moments:
    """The first four moments of rows of values that arrive in pieces, in float64.

    Powers are summed about the mean of the first piece, which avoids cancellation where the mean is
    far from zero.

    >>> moments = Moments()
    >>> for piece in torch.arange(8.0).chunk(2):
    ...     moments.add(piece.view(1, 4))
    >>> moments.central[:2]
    (tensor([3.5000], dtype=torch.float64), tensor([5.2500], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.count = 0  # of values in each row
        self._shift = torch.zeros(0, dtype=torch.float64)
        self._sums = torch.zeros(len(POWERS), 0, dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        """Add values ``[rows, any number]``."""
        if values.shape[1] == 0:
            return
        values = values.double()
        if self.count == 0:
            self._shift = values.mean(1)
            self._sums = values.new_zeros(len(POWERS), len(values))
        centred = values - self._shift.unsqueeze(1)
        self._sums = self._sums + torch.stack([centred.pow(power).sum(1) for power in POWERS])
        self.count += values.shape[1]

    @property
    def central(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean, (biased) variance, third and fourth central moment of each row, ``[rows]``."""
        if self.count == 0:
            raise ValueError("moments need values, got none: no query sees a key that counts")
        mean, second, third, fourth = self._sums / self.count
        return (
            self._shift + mean,
            (second - mean**2).clamp(min=0),
            third - 3 * mean * second + 2 * mean**3,
            fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4,
        )


@dataclass(frozen=True, eq=False)
class ScoreStatistics:
    """Moments ``[H]`` and quantiles ``[H, Q]`` of each head's scores, with the quantiles of N(0, 1)."""

    mean: Tensor
    variance: Tensor
    skewness: Tensor  # 0 for a Gaussian, and NaN where nothing varies
    kurtosis: Tensor  # the excess over a Gaussian's; NaN where nothing varies
    quantiles: Tensor
    normal_quantiles: tuple[float, ...]
    pairs: int  # query-key pairs per head


class ScoreGathering:
    """Statistics of one layer's scores over several texts, without keys at positions < `first_keys`."""

    def __init__(self, first_keys: int = FIRST_KEYS) -> None:
        self.first_keys = first_keys
        self.moments = Moments()
        # Bins start at `_low`. The first tile sets them for all tiles; values outside are clamped.
        self._low = self._width = torch.zeros(0, dtype=torch.float64)
        self._counts = torch.zeros(0, BINS, dtype=torch.float64)

    def add(self, scores: LayerScores, rows: Tensor | None = None) -> None:
        """Add the queries at indices `rows`, with all their visible keys; None is every query."""
        for tile in scores.tiles(rows):
            counted = tile.visible & (tile.key_positions >= self.first_keys).unsqueeze(-2)
            counted = counted.expand(tile.scores.shape[0], -1, -1)
            values = tile.scores.transpose(0, 1)[:, counted].double()
            if values.shape[1]:
                self.moments.add(values)
                self._count(values)

    def _count(self, values: Tensor) -> None:
        if not len(self._counts):
            mean, variance, *_ = self.moments.central
            spread = variance.sqrt().clamp(min=1e-6).maximum(1e-6 * mean.abs())
            self._low, self._width = mean - REACH * spread, 2 * REACH * spread / BINS
            self._counts = values.new_zeros(len(values), BINS)
        bins = ((values - self._low.unsqueeze(1)) / self._width.unsqueeze(1)).long()
        self._counts.scatter_add_(1, bins.clamp_(0, BINS - 1), torch.ones_like(values))

    @property
    def statistics(self) -> ScoreStatistics:
        """Statistics of everything added so far."""
        mean, variance, third, fourth = self.moments.central
        return ScoreStatistics(
            mean,
            variance,
            third / variance.pow(1.5),
            fourth / variance.square() - 3,
            self._quantiles(),
            NORMAL_QUANTILES,
            self.moments.count,
        )

    def _quantiles(self) -> Tensor:
        """Quantiles of the histogram, interpolated linearly inside bins."""
        levels = [NormalDist().cdf(quantile) for quantile in NORMAL_QUANTILES]
        shares = self._counts / self._counts.sum(1, keepdim=True)
        below = shares.cumsum(1)
        level = torch.tensor(levels, dtype=below.dtype, device=below.device)
        bins = torch.searchsorted(below, level.repeat(len(below), 1)).clamp(max=BINS - 1)
        share = shares.gather(1, bins)
        inside = ((level - below.gather(1, bins)) / share.clamp(min=1e-300) + 1).clamp(0, 1)
        return self._low.unsqueeze(1) + (bins + inside) * self._width.unsqueeze(1)


def score_statistics(
    scores: LayerScores, rows: Tensor | None = None, *, first_keys: int = FIRST_KEYS
) -> ScoreStatistics:
    """Moments and quantiles of each head's scores, over the visible keys of some queries.

    Args:
        scores: the layer; `scores.before_rotary` is the same layer without rotation.
        rows: queries by index, such as `spread_rows`; None is every query.
        first_keys: keys at positions below this are excluded.

    >>> query, key = torch.nn.functional.rms_norm(torch.randn(2, 1, 2, 300, 64), [64]).unbind()
    >>> statistics = score_statistics(LayerScores(0, query, key))
    >>> statistics.variance.round()
    tensor([1., 1.], dtype=torch.float64)
    """
    gathering = ScoreGathering(first_keys)
    gathering.add(scores, rows)
    return gathering.statistics
