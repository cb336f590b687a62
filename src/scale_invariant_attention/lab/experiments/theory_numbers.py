"""The numbers of figures that need no model: Figures 2 and 6, the upper row of 1, and the transform.

Scores are independent N(0, 1). Entropies and shares are Monte-Carlo estimates with errors; the transform
and its expectations are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...analysis import gaussian_attention
from ...analysis.synthetic import SCHEDULES
from ...theory import Estimate, LogitSchedule, ScaleInvariantTransform, sample_range_entropy
from ..measurements import AttentionMeans, LengthAttention, Mean

SAMPLES = 128
LENGTHS = (256, 1024, 4096, 16_384, 65_536)
RATIOS = (2, 4, 10)
STARTS = (10, 18, 32, 56, 100, 178, 316, 562, 1000, 1778, 3162, 5623, 10_000)
TAUS = (0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class TransformTable:
    """Gain, bias, expected weight and, over tau, the expected mass of ``[t, 10 t)`` by distance t."""

    distance: Sequence[float]
    gain: Sequence[float]
    bias: Sequence[float]
    weight: Sequence[float]
    decade_mass: Sequence[float]


def against_length(
    lengths: Sequence[int] = LENGTHS, samples: int = SAMPLES
) -> dict[str, list[LengthAttention]]:
    """Attention by length for each schedule, as records hold that of a trained model.

    >>> rows = against_length((256,), samples=16)["plain"]
    >>> round(rows[0].recent_share.mean, 1)
    0.4
    """
    return {name: [_at_length(name, length, samples) for length in lengths] for name in SCHEDULES}


def _at_length(name: str, length: int, samples: int) -> LengthAttention:
    found = gaussian_attention(name, length, samples=samples)
    overall = AttentionMeans(
        share=(),
        entropy=tuple(map(_mean, found.range_entropy.values())),
        global_entropy=(_mean(found.global_entropy),),
        recent_share=(_mean(found.recent_share),),
    )
    # The ranges are adjacent.
    edges = sorted({edge for edges in found.range_entropy for edge in edges})
    return LengthAttention(length, tuple(edges), overall, layers=())


def range_entropies(
    schedule: LogitSchedule,
    ratios: Sequence[int] = RATIOS,
    starts: Sequence[int] = STARTS,
    samples: int = SAMPLES,
) -> dict[str, dict[int, Mean]]:
    """The entropy inside ``[t, ratio * t)``, by ratio, then by t.

    >>> from scale_invariant_attention.theory import Plain
    >>> entropies = range_entropies(Plain(), ratios=(2,), starts=(1000,))
    >>> round(entropies["2"][1000].mean, 2)
    6.41
    """
    return {
        str(ratio): {
            start: _mean(sample_range_entropy(schedule, start, ratio * start, samples=samples))
            for start in starts
        }
        for ratio in ratios
    }


def transform_tables(taus: Sequence[float] = TAUS) -> dict[str, TransformTable]:
    """The table of each tau.

    >>> table = transform_tables((10.0,))["10"]
    >>> table.distance[0], round(table.gain[0], 4), round(table.bias[0], 4)
    (1.0, 1.0912, -0.1906)
    """
    distances = sorted({round(10 ** (step / 10)) for step in range(43)})
    distance = torch.tensor(distances, dtype=torch.float64)
    tables = {}
    for tau in taus:
        transform = ScaleInvariantTransform(tau)
        tables[f"{tau:g}"] = TransformTable(
            distance.tolist(),
            transform.gain(distance).tolist(),
            transform.bias(distance).tolist(),
            transform.expected_weight(distance).tolist(),
            [transform.range_mass(t, 10 * t) / tau for t in distances],
        )
    return tables


def _mean(estimate: Estimate) -> Mean:
    return Mean(estimate.mean, estimate.standard_error)
