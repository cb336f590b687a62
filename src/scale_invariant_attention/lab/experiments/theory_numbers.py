"""The numbers of figures that need no model: Figures 2 and 6, the upper row of 1, and the transform.

Scores are independent N(0, 1). Entropies and shares are Monte-Carlo estimates with errors; the transform
and its expectations are exact.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ...analysis import gaussian_attention
from ...analysis.synthetic import SCHEDULES
from ...theory import Estimate, LogitSchedule, ScaleInvariantTransform, sample_range_entropy

SAMPLES = 128
LENGTHS = (256, 1024, 4096, 16_384, 65_536)
RATIOS = (2, 4, 10)
STARTS = (10, 18, 32, 56, 100, 178, 316, 562, 1000, 1778, 3162, 5623, 10_000)
TAUS = (0.1, 1.0, 10.0, 100.0)


def against_length(
    lengths: Sequence[int] = LENGTHS, samples: int = SAMPLES
) -> dict[str, list[dict[str, Any]]]:
    """For each schedule an entry a length, in the form that records have of a trained model.

    >>> rows = against_length((256,), samples=16)["plain"]
    >>> round(rows[0]["overall"]["recent_share"][0]["mean"], 1)
    0.4
    """
    return {name: [_entry(name, length, samples) for length in lengths] for name in SCHEDULES}


def _entry(name: str, length: int, samples: int) -> dict[str, Any]:
    found = gaussian_attention(name, length, samples=samples)
    inside = list(found.range_entropy.items())
    return {
        "length": length,
        # As if the ranges were neighbours, which these are.
        "edges": [*(start for (start, _), _ in inside), *(stop for (_, stop), _ in inside[-1:])],
        "overall": {
            "global_entropy": [_numbers(found.global_entropy)],
            "recent_share": [_numbers(found.recent_share)],
            "entropy": [_numbers(estimate) for _, estimate in inside],
        },
    }


def range_entropies(
    schedule: LogitSchedule,
    ratios: Sequence[int] = RATIOS,
    starts: Sequence[int] = STARTS,
    samples: int = SAMPLES,
) -> dict[str, list[dict[str, Any]]]:
    """The entropy inside ``[t, ratio * t)`` for each ratio and start.

    >>> from scale_invariant_attention.theory import Plain
    >>> rows = range_entropies(Plain(), ratios=(2,), starts=(1000,))["2"]
    >>> round(rows[0]["mean"], 2)
    6.41
    """
    return {
        str(ratio): [
            {
                "start": start,
                **_numbers(sample_range_entropy(schedule, start, ratio * start, samples=samples)),
            }
            for start in starts
        ]
        for ratio in ratios
    }


def transform_tables(taus: Sequence[float] = TAUS) -> dict[str, dict[str, list[float]]]:
    """Gain, bias, expected weight and, over tau, the expected mass of ``[t, 10 t)``, for each tau.

    >>> table = transform_tables((10.0,))["10"]
    >>> table["distance"][0], round(table["gain"][0], 4), round(table["bias"][0], 4)
    (1.0, 1.0912, -0.1906)
    """
    places = sorted({round(10 ** (step / 10)) for step in range(43)})
    distance = torch.tensor(places, dtype=torch.float64)
    tables = {}
    for tau in taus:
        transform = ScaleInvariantTransform(tau)
        tables[f"{tau:g}"] = {
            "distance": distance.tolist(),
            "gain": transform.gain(distance).tolist(),
            "bias": transform.bias(distance).tolist(),
            "weight": transform.expected_weight(distance).tolist(),
            "decade_mass": [transform.range_mass(t, 10 * t) / tau for t in places],
        }
    return tables


def _numbers(estimate: Estimate) -> dict[str, float]:
    return {"mean": estimate.mean, "standard_error": estimate.standard_error}
