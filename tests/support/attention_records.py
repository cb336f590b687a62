"""Synthetic attention records, in the form written by `lab.experiments.attention`."""

from small_records import record_of

from scale_invariant_attention.lab.experiments import table1
from scale_invariant_attention.lab.measurements import (
    AttentionMeans,
    LayerAttention,
    LengthAttention,
    Mean,
    ScoreMoments,
)

LENGTHS = (256, 1024, 4096)


def attention_record(scheme, layers=2, heads=2):
    """A record with recognisable values: shares and entropies grow with length."""
    [trial] = table1.attention_trials("mini", (scheme,), (0,))
    by_length = tuple(_at_length(length, layers, heads) for length in LENGTHS)
    return record_of(trial, attention=by_length)


def _at_length(length, layers, heads):
    edges = (0, 10, 100, *([1000] if length > 1000 else []), length)
    ranges = len(edges) - 1
    overall = AttentionMeans(
        share=(Mean(1 / ranges, 0.01),) * ranges,
        entropy=tuple(Mean(float(index), 0.01) for index in range(ranges)),
        global_entropy=(Mean(length / 1000, 0.01),),
        recent_share=(Mean(100 / length, 0.01),),
    )
    return LengthAttention(
        length, edges, overall, tuple(_layer(layer, heads, ranges) for layer in range(layers))
    )


def _layer(layer, heads, ranges):
    normal = (-3.0, 0.0, 3.0)
    scores = ScoreMoments(
        mean=(0.5,) * heads,
        variance=(4.0,) * heads,
        skewness=(0.0,) * heads,
        kurtosis=(3.0,) * heads,
        quantiles=(tuple(2 * it + 0.5 for it in normal),) * heads,
        normal_quantiles=normal,
        pairs=100,
    )
    by_range = ((1.0,) * ranges,) * heads
    by_head = (0.5,) * heads
    return LayerAttention(
        layer, by_range, by_range, (1.0,) * ranges, by_head, by_head, scores, scores
    )
