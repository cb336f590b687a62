"""Benchmark results as CSV with a `#` header of provenance, and the targets that they are held to."""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from ...files import replace_file
from .problem import FORWARD, FORWARD_AND_BACKWARD, Problem


@dataclass(frozen=True)
class Timing:
    """One rival at one problem: spreads of its times and of its ratios to SDPA in the same rounds.

    Bandwidth is that of reading keys and values, measured for decoding only. What was not measured is
    None.
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

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.shape.partition("x")[0])

    @property
    def share_of_bound(self) -> float:
        """Share of the bound that applies: of bandwidth for decoding, of peak arithmetic otherwise."""
        return self.share_of_peak if self.share_of_bandwidth is None else self.share_of_bandwidth

    def with_quartiles(self, share: float) -> tuple[float, float, float]:
        """A share of a bound, followed by its lower and upper quartile."""
        return share, share * self.median_ms / self.high_ms, share * self.median_ms / self.low_ms


@dataclass(frozen=True)
class Ratio:
    """The result of one comparison with its quartiles over the rounds, and its target.

    `unit` is "ratio", "share" or "microseconds", `sense` "at most" or "at least"; `medians_ms` are the
    times of both sides, as in "cpu 1.2; sdpa 1.4".
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

    @property
    def shown(self) -> str:
        """Median and quartiles, with more digits than targets have: a near miss must not look met."""
        digits = ".3f" if self.unit == RATIO else ".1f"
        figure, low, high = (
            in_unit(value, self.unit, digits) for value in (self.figure, self.low, self.high)
        )
        return f"{figure} ({low} to {high})"

    @property
    def shown_target(self) -> str:
        """The target in words."""
        return f"{self.sense} {in_unit(self.target, self.unit)}"


@dataclass(frozen=True)
class ModelTiming:
    """A step of a whole model, relative to the same with plain RoPE on SDPA.

    `attention_share` is the share of the time spent in attention, for decoding.
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


@dataclass(frozen=True)
class ContextParallelTiming:
    """Processes that share a sequence, relative to one process with all threads: time and memory.

    Times and memory are those of the slowest and the largest process, processor time is per thread.
    """

    shape: str
    length: int
    pass_name: str
    method: str
    layout: str
    processes: int
    threads: int
    median_s: float
    low_s: float
    high_s: float
    ratio: float
    processor_s: float
    processor_ratio: float
    peak_memory_mib: float
    memory_ratio: float
    rounds: int


Record = TypeVar("Record", Timing, Ratio, ModelTiming, ContextParallelTiming)

# What encloses records in Markdown.
FENCE = "```csv"

_READERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: lambda text: text == "yes",
    float | None: lambda text: float(text) if text else None,
}


def write_records(path: Path, origin: dict[str, str], records: Sequence[Record]) -> None:
    """Write header and rows; an existing file is replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, records_text(origin, records).encode())


def records_text(origin: dict[str, str], records: Sequence[Record]) -> str:
    """Header and rows as text."""
    file = StringIO(newline="")
    file.writelines(f"# {name}: {value}\n" for name, value in origin.items())
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_columns(type(records[0])))
    writer.writerows([_text(value) for value in asdict(record).values()] for record in records)
    return file.getvalue()


def read_records(path: Path, kind: type[Record]) -> tuple[dict[str, str], list[Record]]:
    """The inverse of :func:`write_records`, also for a report that encloses them: header and rows."""
    text = path.read_text(encoding="utf-8")
    enclosed = re.search(rf"^{FENCE}$(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = (enclosed[1] if enclosed else text).strip().splitlines()
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
    # "pass" is a keyword.
    return ["pass" if field.name == "pass_name" else field.name for field in fields(kind)]


def _text(value: str | float | bool | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


AT_MOST, AT_LEAST = "at most", "at least"
RATIO, SHARE, MICROSECONDS = "ratio", "share", "microseconds"

# Time relative to SDPA, by length.
TIME_TO_SDPA = {
    FORWARD: {512: 0.70, 1024: 0.70, 2048: 0.85, 4096: 0.92, 8192: 0.92, 16384: 0.92},
    FORWARD_AND_BACKWARD: {512: 0.75, 1024: 0.75, 2048: 0.90, 4096: 0.95, 8192: 0.95, 16384: 0.95},
}
# Share of the machine's multiply-adds: forward, from this length.
SHARE_OF_PEAK = 0.72
SHARE_OF_PEAK_FROM = 4096

# Time with the transform, relative to gain 1 and bias 0.
TRANSFORM_COST = 1.05
# Time with a bias per key and head, relative to none.
KEY_BIAS_COST = 1.05
# Time relative to compiled FlexAttention.
TIME_TO_FLEX = 0.45
# Time with a window of 512 tokens, relative to all of 16k.
WINDOW_TIME = 0.10
# Time of tokens on a grid of 64 x 64, relative to as many with positions.
GRID_TIME = 1.50
# One query against 64k keys: time relative to SDPA, and share of the machine's bandwidth.
DECODE_TIME_TO_SDPA = 1.00
SHARE_OF_BANDWIDTH = 0.70
# Speed-up of two threads over one.
SPEED_UP = 1.85
# Time in bfloat16 relative to SDPA in bfloat16, on CPUs with AVX512-BF16.
HALF_TIME_TO_SDPA = {FORWARD: 0.50, FORWARD_AND_BACKWARD: 0.65}
# Bytes per second of a bfloat16 cache, relative to one in float32.
HALF_BANDWIDTH = 0.85
# The last 16 to 32 queries against a cache: time relative to SDPA with a mask.
CHUNK_TIME_TO_SDPA = 0.80
# Microseconds of a tiny call above SDPA's.
CALL_OVERHEAD = 15.0
# Time that gradients of gain and bias add to the backward pass.
TABLE_GRADIENTS = 0.10
# A step of a whole model, relative to plain RoPE on SDPA.
MODEL_TIME_TO_ROPE = 1.05


def is_met(figure: float, sense: str, target: float) -> bool:
    """Whether a result meets its target.

    >>> is_met(0.9, "at most", 0.92), is_met(0.9, "at least", 0.92)
    (True, False)
    """
    return figure <= target if sense == AT_MOST else figure >= target


def held_to_targets(timings: Sequence[Timing], backend: str) -> list[Ratio]:
    """The results of a backend in the grid that have a target."""
    mine = sorted(
        (row for row in timings if row.rival == backend and row.pass_name in TIME_TO_SDPA),
        key=lambda row: (row.pass_name, row.heads, row.length),
    )
    times, shares = [], []
    for row in mine:
        source = (f"{row.rival} {row.median_ms:.6g}", row.rounds)
        target = TIME_TO_SDPA[row.pass_name].get(row.length)
        if target is not None:
            spread = (row.ratio_to_sdpa, row.ratio_low, row.ratio_high)
            name = "time relative to SDPA"
            times.append(held_to_target(row, name, spread, RATIO, AT_MOST, target, *source))
        if row.pass_name == FORWARD and row.length >= SHARE_OF_PEAK_FROM:
            spread = row.with_quartiles(row.share_of_peak)
            held = (SHARE, AT_LEAST, SHARE_OF_PEAK)
            shares.append(held_to_target(row, "share of peak arithmetic", spread, *held, *source))
    return [*times, *shares]


def held_to_target(
    at: Problem | Timing,
    comparison: str,
    spread: tuple[float, float, float],
    unit: str,
    sense: str,
    target: float,
    medians_ms: str,
    rounds: int,
) -> Ratio:
    """A result at the shape, length and pass of `at`; `spread` is its median and quartiles."""
    return Ratio(
        comparison,
        at.shape,
        at.length,
        at.pass_name,
        *spread,
        unit=unit,
        sense=sense,
        target=target,
        met=is_met(spread[0], sense, target),
        medians_ms=medians_ms,
        rounds=rounds,
    )


def in_unit(value: float, unit: str, digits: str = "") -> str:
    """A number with its unit; `digits` is a format such as ".3f".

    >>> in_unit(0.72, "share"), in_unit(0.7194, "share", ".1f"), in_unit(30.0, "microseconds")
    ('72 %', '71.9 %', '30 us')
    """
    if unit == SHARE:
        return f"{100 * value:{digits or 'g'}} %"
    return f"{value:{digits or 'g'}}{' us' if unit == MICROSECONDS else ''}"
