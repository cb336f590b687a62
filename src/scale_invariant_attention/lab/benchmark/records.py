"""Results in a CSV: a `#` header that says where they come from, and one row a measurement."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar


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
