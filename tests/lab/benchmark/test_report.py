"""The page shows the numbers of the records, and their provenance."""

from dataclasses import replace
from pathlib import Path

import pytest

from scale_invariant_attention.lab.benchmark import grid
from scale_invariant_attention.lab.benchmark.problem import Problem
from scale_invariant_attention.lab.benchmark.records import ModelTiming, Ratio, Timing, read_records
from scale_invariant_attention.lab.benchmark.report import page
from scale_invariant_attention.provenance import provenance

ROOT = Path(__file__).parents[3]

SPEED_UP = Ratio(
    "speed-up by a second thread",
    *("1x64", 4096, "forward"),
    *(1.9, 1.8, 1.95, "ratio", "at least", 1.85, True),
    *("one 19; two 10", 5),
)


@pytest.fixture
def origin(bounds):
    return provenance() | bounds.record() | {"commit": "0123456789abcdef"}


@pytest.fixture
def row(bounds):
    problem = Problem(6, 128, 4096, "forward")
    return grid.timing(problem, "cpu", [0.2, 0.2, 0.3], [0.1, 0.1, 0.1], bounds, 2**21)


def test_every_row_is_a_line_of_its_table(origin, row):
    faster = replace(row, length=512, rival="sdpa", median_ms=1.234, share_of_peak=0.5)
    text = page(origin, [row, faster])
    assert "## 6 heads of 128, forward\n" in text
    slow, fast = (
        text.index("| 4,096 | cpu | 200.0 | 2.00 (2.00 to 2.50) | 129 % | 2 |"),
        text.index("| 512 | sdpa | 1.23 | 1 | 50 % | 2 |"),
    )
    assert fast < slow
    assert "decode" not in text


def test_decoding_has_its_bound_and_its_figure(origin, row):
    decode = replace(row, pass_name="decode", share_of_bandwidth=0.25, peak_memory_mib=None)
    text = page(origin, [decode])
    assert "| 4,096 | cpu | 200.0 | 2.00 (2.00 to 2.50) | 25 % |  |" in text
    assert "relative to 10 GB/s, another." in text.replace("\n", " ")
    assert "benchmark-decode.png" in text
    assert "benchmark-ratio.png" not in text


def test_targets_are_marked_as_they_were_recorded(origin, row):
    ratios = [
        SPEED_UP,
        replace(SPEED_UP, figure=1.5, met=False),
        replace(SPEED_UP, unit="microseconds", sense="at most", target=30.0),
    ]
    text = page(origin, [row], origin | {"backend": "cpu"}, ratios)
    line = "| speed-up by a second thread | 1 head of 64 | 4,096 | forward |"
    assert f"{line} 1.900 (1.800 to 1.950) | at least 1.85 | yes |" in text
    assert f"{line} 1.500 (1.800 to 1.950) | at least 1.85 | **no** |" in text
    assert f"{line} 1.9 us (1.8 us to 1.9 us) | at most 30 us | yes |" in text
    relative = "| time relative to SDPA | 6 heads of 128 | 4,096 | forward | 2.000 (2.000 to 2.500)"
    assert f"{relative} | at most 0.92 | **no** |" in text
    assert "3 of 5 are met" in text.replace("\n", " ")
    assert "at least 72 % | yes |" in text
    assert "benchmarks/results/ratios.csv" in text


def test_without_the_backend_there_are_no_targets(origin, row):
    text = page(origin, [replace(row, rival="tiled")])
    assert "Targets" not in text
    assert "ratios.csv" not in text


def test_models_are_told_with_their_target_and_the_share_of_attention(origin, row):
    step = ModelTiming(
        "mini",
        "training step",
        16,
        256,
        100.0,
        90.0,
        110.0,
        95.0,
        1.06,
        1.0,
        1.1,
        1.05,
        False,
        None,
        9,
    )
    decode = replace(step, pass_name="decode", ratio=0.8, met=True, attention_share=0.354)
    text = page(origin, [row], None, (), origin, [step, decode])
    assert "| 100.0 | 1.060 (1.000 to 1.100) | at most 1.05 | **no** |  |" in text
    assert "| 100.0 | 0.800 (1.000 to 1.100) | at most 1.05 | yes | 35% |" in text
    assert "benchmarks/results/models.csv" in text


def test_the_source_is_told(origin, row):
    text = page(origin | {"commit": "0123456789abcdef with changes"}, [row])
    assert "0123456789ab with changes" in text
    for name in ("date", "torch", "python", "load", "cpu", "peak_source"):
        assert origin[name] in text


def test_the_page_in_the_documentation_is_that_of_the_recorded_results():
    results = ROOT / "benchmarks" / "results"
    timings = read_records(results / "attention.csv", Timing)
    ratios = results / "ratios.csv"
    compared = read_records(ratios, Ratio) if ratios.exists() else (None, [])
    models = results / "models.csv"
    whole = read_records(models, ModelTiming) if models.exists() else (None, [])
    assert (ROOT / "docs" / "benchmark.md").read_text() == page(*timings, *compared, *whole)
