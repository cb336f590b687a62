"""Results in one CSV: a `#` header that says where they come from, and one row a measurement."""

import csv
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import scale_invariant_attention as sia


@dataclass(frozen=True)
class Row:
    """One rival at one problem: quartiles of times and of its ratios to SDPA round by round."""

    shape: str
    length: int
    pass_name: str
    rival: str
    median_ms: float
    low_ms: float
    high_ms: float
    ratio_to_sdpa: float
    ratio_low: float
    ratio_high: float
    gflops: float
    share_of_peak: float
    peak_memory_mib: float | None
    rounds: int


# "pass" is a word of the language.
COLUMNS = ["pass" if field.name == "pass_name" else field.name for field in fields(Row)]


def provenance() -> dict[str, str]:
    """When, from which commit, with which versions and on what machine, how busy before."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "version": sia.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "threads": str(torch.get_num_threads()),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def write_results(path: Path, origin: dict[str, str], rows: list[Row]) -> None:
    """Write header and rows; a file that is there is replaced."""
    with path.open("w", newline="") as file:
        file.writelines(f"# {name}: {value}\n" for name, value in origin.items())
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([_text(value) for value in asdict(row).values()])


def read_results(path: Path) -> tuple[dict[str, str], list[Row]]:
    """The inverse of :func:`write_results`."""
    lines = path.read_text().splitlines()
    header = (line[2:].partition(": ") for line in lines if line.startswith("# "))
    table = csv.reader(line for line in lines if not line.startswith("#"))
    columns = next(table, [])
    if columns != COLUMNS:
        raise ValueError(f"{path} must have the columns {COLUMNS}, got {columns}")
    return {name: value for name, _, value in header}, [_row(values) for values in table]


def _row(values: list[str]) -> Row:
    readers: dict[Any, Callable[[str], Any]] = {
        str: str,
        int: int,
        float: float,
        float | None: lambda text: float(text) if text else None,
    }
    pairs = zip(fields(Row), values, strict=True)
    return Row(*(readers[field.type](value) for field, value in pairs))


def _text(value: str | int | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _commit() -> str:
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return "unknown"
    return commit + (" with changes" if _git("status", "--porcelain", "-uno") else "")


def _git(*arguments: str) -> str:
    try:
        command = ("git", *arguments)
        here = Path(__file__).parent
        return subprocess.run(
            command, cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
