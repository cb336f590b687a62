"""One Markdown file about a benchmark run, to be sent back: machine, self-checks, tables and records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ...attention.self_check import Outcome
from ...files import replace_file
from ..reporting.pages import render
from .bounds import Bounds
from .problem import FORWARD, FORWARD_AND_BACKWARD, PASSES
from .records import FENCE, Timing, records_text

# Work of the backward pass relative to the forward pass: five products instead of two.
BACKWARD_WORK = 2.5


@dataclass(frozen=True)
class Backward:
    """The backward pass of a rival, from forward and backward together less the forward pass."""

    shape: str
    length: int
    rival: str
    milliseconds: float
    teraflops: float
    share_of_peak: float
    ratio_to_sdpa: float


def backward_passes(rows: Sequence[Timing], baseline: str) -> list[Backward]:
    """The backward passes of all rivals that have both measurements."""
    times = {(row.pass_name, row.shape, row.length, row.rival): row for row in rows}

    def milliseconds(shape: str, length: int, rival: str) -> float | None:
        both = times.get((FORWARD_AND_BACKWARD, shape, length, rival))
        forward = times.get((FORWARD, shape, length, rival))
        if both is None or forward is None or both.median_ms <= forward.median_ms:
            return None
        return both.median_ms - forward.median_ms

    found = []
    for row in rows:
        mine = milliseconds(row.shape, row.length, row.rival)
        theirs = milliseconds(row.shape, row.length, baseline)
        if row.pass_name != FORWARD or mine is None or theirs is None:
            continue
        # The forward pass did one unit of work in its own time.
        speed = BACKWARD_WORK * row.median_ms / mine
        found.append(
            Backward(
                row.shape,
                row.length,
                row.rival,
                mine,
                speed * row.gflops / 1e3,
                speed * row.share_of_peak,
                mine / theirs,
            )
        )
    return sorted(found, key=lambda it: (it.shape, it.length))


def machine_report(
    origin: Mapping[str, str],
    rows: Sequence[Timing],
    outcomes: Mapping[str, Outcome],
    left_out: Sequence[str],
    baseline: str,
) -> str:
    """The report as Markdown; :func:`read_records` reads its records back."""
    ordered = sorted(rows, key=lambda row: (PASSES.index(row.pass_name), row.shape, row.length))
    tables = groupby(ordered, key=lambda row: (row.pass_name, row.shape))
    return render(
        "machine_report.md",
        origin=origin,
        bounds=Bounds.from_record(dict(origin)),
        outcomes=outcomes,
        left_out=left_out,
        tables=[(*key, list(group)) for key, group in tables],
        backward=backward_passes(rows, baseline),
        fence=FENCE,
        records=records_text(dict(origin), rows) if rows else "",
    )


def write_machine_report(path: Path, text: str) -> None:
    """Write a report; an existing file is replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())
