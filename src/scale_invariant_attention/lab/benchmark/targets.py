"""What a fused backend is held to; the page says of each whether a recorded run has met it."""

from collections.abc import Iterator, Sequence

from .problem import FORWARD, FORWARD_AND_BACKWARD
from .records import Ratio, Timing

AT_MOST, AT_LEAST = "at most", "at least"
RATIO, SHARE, MICROSECONDS = "ratio", "share", "microseconds"

# Of SDPA's time, by length.
TIME_TO_SDPA = {
    FORWARD: {512: 0.70, 1024: 0.70, 2048: 0.85, 4096: 0.92, 8192: 0.92, 16384: 0.92},
    FORWARD_AND_BACKWARD: {512: 0.75, 1024: 0.75, 2048: 0.90, 4096: 0.95, 8192: 0.95, 16384: 0.95},
}
# Of the fused multiply-adds that the machine can do: forward, at lengths from here on.
SHARE_OF_PEAK = 0.72
SHARE_OF_PEAK_FROM = 4096

# The time with the transform, to that with gain 1 and bias 0.
TRANSFORM_COST = 1.05
# Of the time of compiled FlexAttention.
TIME_TO_FLEX = 0.45
# The time with a window of 512 tokens, to that with all of 16k.
WINDOW_TIME = 0.10
# One query against 64k keys: of SDPA's time, and of the bandwidth of the machine.
DECODE_TIME_TO_SDPA = 1.00
SHARE_OF_BANDWIDTH = 0.70
# With two threads, to one.
SPEED_UP = 1.85
# Microseconds of a tiny call beyond SDPA's.
CALL_OVERHEAD = 30.0
# What gradients of gain and bias add to the time of the backward pass.
TABLE_GRADIENTS = 0.10
# A step of a whole model, to the same with plain RoPE on SDPA.
MODEL_TIME_TO_ROPE = 1.05


def is_met(figure: float, sense: str, target: float) -> bool:
    """Whether a figure is at most, or at least, its target.

    >>> is_met(0.9, "at most", 0.92), is_met(0.9, "at least", 0.92)
    (True, False)
    """
    return figure <= target if sense == AT_MOST else figure >= target


def held_to_targets(timings: Sequence[Timing], backend: str) -> list[Ratio]:
    """The figures of a backend in the grid that have a target."""
    mine = sorted(
        (row for row in timings if row.rival == backend and row.pass_name in TIME_TO_SDPA),
        key=lambda row: (row.pass_name, int(row.shape.partition("x")[0]), row.length),
    )
    return [*_times(mine), *_shares(mine)]


def _times(rows: Sequence[Timing]) -> Iterator[Ratio]:
    for row in rows:
        target = TIME_TO_SDPA[row.pass_name].get(row.length)
        if target is not None:
            spread = (row.ratio_to_sdpa, row.ratio_low, row.ratio_high)
            yield _ratio(row, "time relative to SDPA", spread, RATIO, AT_MOST, target)


def _shares(rows: Sequence[Timing]) -> Iterator[Ratio]:
    for row in rows:
        if row.pass_name == FORWARD and row.length >= SHARE_OF_PEAK_FROM:
            work = row.share_of_peak * row.median_ms
            spread = (row.share_of_peak, work / row.high_ms, work / row.low_ms)
            yield _ratio(row, "share of peak arithmetic", spread, SHARE, AT_LEAST, SHARE_OF_PEAK)


def _ratio(
    row: Timing,
    comparison: str,
    spread: tuple[float, float, float],
    unit: str,
    sense: str,
    target: float,
) -> Ratio:
    return Ratio(
        comparison,
        row.shape,
        row.length,
        row.pass_name,
        *spread,
        unit=unit,
        sense=sense,
        target=target,
        met=is_met(spread[0], sense, target),
        medians_ms=f"{row.rival} {row.median_ms:.6g}",
        rounds=row.rounds,
    )
