"""Score statistics: against numpy-like definitions in float64, and what they leave out."""

from statistics import NormalDist

import pytest
import torch

from scale_invariant_attention.analysis import (
    LayerScores,
    score_statistics,
    spread_rows,
)
from scale_invariant_attention.analysis import _scores as tiling
from scale_invariant_attention.analysis.score_statistics import BINS, REACH, Moments, ScoreGathering


def random_scores(length=200, shift=0.0, **settings):
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 2, 3, length, 16, generator=generator, dtype=torch.float64).unbind()
    key[..., 0] += shift
    query[..., 0] = query[..., 0] * 0.1 + shift
    return LayerScores(0, query, key, **settings)


def dense(scores, rows=None):
    """The scores of all visible pairs but those with the first key, ``[H, pairs]``."""
    values = scores.query @ scores.key.mT * scores.query.shape[-1] ** -0.5
    length = values.shape[-1]
    counted = torch.ones(length, length, dtype=torch.bool).tril()
    counted[:, 0] = False
    if rows is not None:
        keep = torch.zeros(length, dtype=torch.bool)
        keep[rows] = True
        counted &= keep.unsqueeze(1)
    return values.transpose(0, 1)[:, :, counted].flatten(1)


@pytest.mark.parametrize("shift", [0.0, 30.0])
@pytest.mark.parametrize("rows", [None, spread_rows(200, 7)])
def test_moments_and_quantiles(shift, rows, monkeypatch):
    monkeypatch.setattr(tiling, "TILE_PAIRS", 3000)
    scores = random_scores(shift=shift)
    found, values = score_statistics(scores, rows), dense(scores, rows)
    mean, variance = values.mean(1), values.var(1, unbiased=False)
    z = (values - mean.unsqueeze(1)) / variance.sqrt().unsqueeze(1)
    close = {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(found.mean, mean, **close)
    torch.testing.assert_close(found.variance, variance, **close)
    torch.testing.assert_close(found.skewness, z.pow(3).mean(1), **close)
    torch.testing.assert_close(found.kurtosis, z.pow(4).mean(1) - 3, **close)
    assert found.pairs == values.shape[1]
    levels = [NormalDist().cdf(quantile) for quantile in found.normal_quantiles]
    for row, head in zip(found.quantiles, values, strict=True):
        # Quantiles of the histogram: as many values below as there should be, to a bin's width.
        width = 2 * 2 * REACH * float(variance.max().sqrt()) / BINS
        below = [(float((head < q - width).double().mean()), q) for q in row.tolist()]
        above = [float((head < q + width).double().mean()) for q in row.tolist()]
        for level, (low, _), high in zip(levels, below, above, strict=True):
            assert low - 1e-12 <= level <= high + 1e-12


def test_gaussian_scores_lie_on_the_diagonal():
    """Random directions of many dimensions: unit variance, and quantiles as those of N(0, 1)."""
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 1, 1, 700, 256, generator=generator).unbind()
    normed = [torch.nn.functional.rms_norm(it, [256]) for it in (query, key)]
    found = score_statistics(LayerScores(0, *normed))
    assert float((found.variance - 1).abs().max()) < 0.05
    inner = [i for i, q in enumerate(found.normal_quantiles) if abs(q) <= 2]
    expected = torch.tensor([found.normal_quantiles[i] for i in inner], dtype=torch.float64)
    assert float((found.quantiles[0, inner] - expected).abs().max()) < 0.1


def test_a_sink_is_left_out():
    scores = random_scores()
    scores.key[:, :, 0] *= 1000
    assert float(score_statistics(scores).variance.max()) < 3
    assert float(score_statistics(scores, first_keys=0).variance.max()) > 1000


def test_texts_add_up():
    """Two texts one after the other are a batch of both."""
    both = random_scores()
    gathering = ScoreGathering()
    for row in range(2):
        gathering.add(LayerScores(0, both.query[row : row + 1], both.key[row : row + 1]))
    one, other = gathering.statistics, score_statistics(both)
    torch.testing.assert_close(one.kurtosis, other.kurtosis)
    torch.testing.assert_close(one.quantiles, other.quantiles, rtol=0, atol=0.02)


def test_scores_that_do_not_vary():
    query = torch.ones(1, 1, 20, 4)
    found = score_statistics(LayerScores(0, query, query))
    assert found.variance.tolist() == [0.0]
    assert float((found.quantiles - 2).abs().max()) < 1e-4


def test_nothing_to_count_is_said():
    query = torch.ones(1, 1, 1, 4)
    with pytest.raises(ValueError, match="no query sees a key that counts"):
        score_statistics(LayerScores(0, query, query))
    with pytest.raises(ValueError, match="moments need values"):
        _ = Moments().central
