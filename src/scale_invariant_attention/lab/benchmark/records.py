"""Benchmark results as CSV with a `#` header of provenance, and the targets that they are held to."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from .problem import FORWARD, FORWARD_AND_BACKWARD


@dataclass(frozen=True)
class Timing:
    """One rival at one problem: spreads of its times and of its ratios to SDPA round by round.

    Reading speed is that of keys and values and counts to decode only. What was not measured is
    None, and so is an end of a spread that an early run did not record.
    """

    shape: str
    length: int
    pass_name: str
    rival: str
    median_ms: float
    low_ms: float
    high_ms: float
    tenth_ms: float | None
    ninetieth_ms: float | None
    ratio_to_sdpa: float
    ratio_low: float
    ratio_high: float
    gflops: float
    share_of_peak: float
    gigabytes_per_second: float | None
    share_of_bandwidth: float | None
    peak_memory_mib: float | None
    rounds: int


@dataclass(frozen=True)
class Ratio:
    """A figure of one comparison with its quartiles over the rounds, and what it should be.

    `unit` is "ratio", "share" or "microseconds", `sense` "at most" or "at least", and `medians_ms`
    tells the times behind the figure, as in "cpu 1.2; sdpa 1.4".
    """

    comparison: str
    shape: str
    length: int
    pass_name: str
    figure: float
    low: float
    high: float
    unit: str
    sense: str
    target: float
    met: bool
    medians_ms: str
    rounds: int


@dataclass(frozen=True)
class ModelTiming:
    """A step of a whole model, and its time relative to the same with plain RoPE on SDPA.

    Of a step that decodes, also the share of its time that is spent in attention.
    """

    model: str
    pass_name: str
    batch: int
    length: int
    median_ms: float
    low_ms: float
    high_ms: float
    baseline_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    target: float
    met: bool
    attention_share: float | None
    rounds: int


Record = TypeVar("Record", Timing, Ratio, ModelTiming)

_READERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: lambda text: text == "yes",
    float | None: lambda text: float(text) if text else None,
}


def write_records(path: Path, origin: dict[str, str], records: Sequence[Record]) -> None:
    """Write header and rows; a file that is there is replaced, by the whole new one or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", newline="") as file:
        file.writelines(f"# {name}: {value}\n" for name, value in origin.items())
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_columns(type(records[0])))
        writer.writerows([_text(value) for value in asdict(record).values()] for record in records)
    partial.replace(path)


def read_records(path: Path, kind: type[Record]) -> tuple[dict[str, str], list[Record]]:
    """The inverse of :func:`write_records`: the header, and rows of a kind."""
    lines = path.read_text().splitlines()
    header = (line[2:].partition(": ") for line in lines if line.startswith("# "))
    table = csv.reader(line for line in lines if not line.startswith("#"))
    columns = next(table, [])
    if columns != _columns(kind):
        raise ValueError(f"{path} must have the columns {_columns(kind)}, got {columns}")
    readers = [_READERS[field.type] for field in fields(kind)]
    rows = [
        kind(*(read(text) for read, text in zip(readers, texts, strict=True))) for texts in table
    ]
    return {name: value for name, _, value in header}, rows


def _columns(kind: type[Record]) -> list[str]:
    # "pass" is a word of the language.
    return ["pass" if field.name == "pass_name" else field.name for field in fields(kind)]


def _text(value: str | float | bool | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


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
