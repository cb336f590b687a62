"""Score statistics of a layer: the transform assumes independent N(0, 1)."""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from ._scores import LayerScores, Tile

# The first token is often an attention sink, with scores unlike any others.
FIRST_KEYS = 1

# A histogram around the mean: quantiles are accurate to 1/256 of the spread.
BINS = 8192
REACH = 16.0
# Evenly spaced on the axis of a normal quantile plot, up to three standard deviations in both
# directions.
NORMAL_QUANTILES = tuple(place / 8 for place in range(-24, 25))

# The powers whose sums give the four moments.
POWERS = (1, 2, 3, 4)


class Moments:
    """Mean, variance, skewness and kurtosis of rows of values that arrive in pieces, in float64.

    Powers are summed about the mean of the first piece, which avoids cancellation where the mean is
    far from zero.

    >>> moments = Moments()
    >>> for piece in torch.arange(8.0).chunk(2):
    ...     moments.add(piece.view(1, 4))
    >>> moments.mean, moments.variance
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
    def mean(self) -> Tensor:
        """``[rows]``."""
        return self._shift + self._raw[0]

    @property
    def variance(self) -> Tensor:
        """``[rows]``, of all values rather than of a sample."""
        return self._central[0]

    @property
    def spread(self) -> Tensor:
        """The standard deviation, ``[rows]``."""
        return self.variance.sqrt()

    @property
    def skewness(self) -> Tensor:
        """``[rows]``; 0 for a Gaussian, and NaN where nothing varies."""
        variance, third, _ = self._central
        return third / variance.pow(1.5)

    @property
    def kurtosis(self) -> Tensor:
        """The excess over a Gaussian's, ``[rows]``; NaN where nothing varies."""
        variance, _, fourth = self._central
        return fourth / variance.square() - 3

    @property
    def _raw(self) -> Tensor:
        if self.count == 0:
            raise ValueError("moments need values, got none: no query sees a key that counts")
        return self._sums / self.count

    @property
    def _central(self) -> tuple[Tensor, Tensor, Tensor]:
        mean, second, third, fourth = self._raw
        return (
            (second - mean**2).clamp(min=0),
            third - 3 * mean * second + 2 * mean**3,
            fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4,
        )


@dataclass(frozen=True, eq=False)
class ScoreStatistics:
    """Moments ``[H]`` and quantiles ``[H, Q]`` of each head's scores, with the quantiles of N(0, 1)."""

    mean: Tensor
    variance: Tensor
    skewness: Tensor
    kurtosis: Tensor  # excess kurtosis
    quantiles: Tensor
    normal_quantiles: tuple[float, ...]
    pairs: int  # query-key pairs per head


class ScoreGathering:
    """Accumulates statistics of one layer's scores over several texts.

    Args:
        first_keys: keys at positions below this are excluded.
    """

    def __init__(self, first_keys: int = FIRST_KEYS) -> None:
        self.first_keys = first_keys
        self.moments = Moments()
        # Bins start at `_low`. The first tile sets them for all tiles; values outside are clamped.
        self._low = self._width = torch.zeros(0, dtype=torch.float64)
        self._counts = torch.zeros(0, BINS, dtype=torch.float64)

    def add(self, scores: LayerScores, rows: Tensor | None = None) -> None:
        """Add the queries at indices `rows`, with all their visible keys; None is every query."""
        for tile in scores.tiles(rows):
            values = _counted_scores(tile, self.first_keys)
            if values.shape[1]:
                self.moments.add(values)
                self._count(values)

    def _count(self, values: Tensor) -> None:
        if not len(self._counts):
            mean, spread = self.moments.mean, self.moments.spread
            spread = spread.clamp(min=1e-6).maximum(1e-6 * mean.abs())
            self._low, self._width = mean - REACH * spread, 2 * REACH * spread / BINS
            self._counts = values.new_zeros(len(values), BINS)
        bins = ((values - self._low.unsqueeze(1)) / self._width.unsqueeze(1)).long()
        self._counts.scatter_add_(1, bins.clamp_(0, BINS - 1), torch.ones_like(values))

    @property
    def statistics(self) -> ScoreStatistics:
        """Statistics of everything added so far."""
        moments = self.moments
        return ScoreStatistics(
            moments.mean,
            moments.variance,
            moments.skewness,
            moments.kurtosis,
            self._quantiles(),
            NORMAL_QUANTILES,
            moments.count,
        )

    def _quantiles(self) -> Tensor:
        """Quantiles of the histogram, interpolated linearly inside bins."""
        levels = [NormalDist().cdf(place) for place in NORMAL_QUANTILES]
        shares = self._counts / self._counts.sum(1, keepdim=True)
        below = shares.cumsum(1)
        wanted = torch.tensor(levels, dtype=below.dtype, device=below.device)
        place = torch.searchsorted(below, wanted.repeat(len(below), 1)).clamp(max=BINS - 1)
        here = shares.gather(1, place)
        inside = ((wanted - below.gather(1, place)) / here.clamp(min=1e-300) + 1).clamp(0, 1)
        return self._low.unsqueeze(1) + (place + inside) * self._width.unsqueeze(1)


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


def _counted_scores(tile: Tile, first_keys: int) -> Tensor:
    """Scores of visible pairs, without the first keys, ``[H, pairs]`` in float64."""
    counted = tile.visible & (tile.key_positions >= first_keys).unsqueeze(-2)
    counted = counted.expand(tile.scores.shape[0], -1, -1)
    return tile.scores.transpose(0, 1)[:, counted].double()
