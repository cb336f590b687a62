"""The report of a run: what it derives, and that its records can be read back."""

import pytest

from scale_invariant_attention.lab.benchmark import grid
from scale_invariant_attention.lab.benchmark.machine_report import (
    backward_passes,
    machine_report,
    write_machine_report,
)
from scale_invariant_attention.lab.benchmark.problem import Problem
from scale_invariant_attention.lab.benchmark.records import Timing, read_records
from scale_invariant_attention.provenance import provenance


@pytest.fixture
def rows(bounds):
    """SDPA takes 1 and 3 ms, the other 2 and 6: backward alone 2 and 4."""
    times = {("sdpa", "forward"): 1, ("sdpa", "forward+backward"): 3}
    times |= {("tiled", "forward"): 2, ("tiled", "forward+backward"): 6}
    return [
        grid.timing(
            Problem(2, 32, 64, pass_name), rival, [ms / 1e3] * 3, [1.0] * 3, bounds, memory=None
        )
        for (rival, pass_name), ms in times.items()
    ]


def test_the_backward_pass_is_the_difference(rows):
    sdpa, tiled = backward_passes(rows, "sdpa")
    assert (sdpa.milliseconds, tiled.milliseconds) == (pytest.approx(2), pytest.approx(4))
    assert tiled.ratio_to_sdpa == pytest.approx(2)
    # Backward is two and a half times the work of forward.
    work = 2.5 * Problem(2, 32, 64, "forward").flops
    assert tiled.teraflops == pytest.approx(work / 4e-3 / 1e12)
    assert tiled.share_of_peak == pytest.approx(work / 4e-3 / 1e9 / 100)


def test_without_both_passes_there_is_no_backward(rows):
    assert backward_passes(rows[:1], "sdpa") == []
    assert backward_passes(rows[2:], "sdpa") == []


def test_the_records_are_read_back(rows, bounds, tmp_path):
    origin = provenance() | bounds.record()
    origin |= {"device": "Some GPU", "dtype": "bfloat16", "batch": "batch 1", "triton": "3.7.1"}
    text = machine_report(origin, rows, {}, ["flash-attn at 2x32: no room"], "sdpa")
    path = tmp_path / "new" / "report.md"
    write_machine_report(path, text)
    read_origin, read_rows = read_records(path, Timing)
    assert read_origin == origin
    assert [row.rival for row in read_rows] == [row.rival for row in rows]
    assert "# Benchmark of Some GPU, bfloat16" in text
    assert "- flash-attn at 2x32: no room" in text
    assert "| driver |" not in text
