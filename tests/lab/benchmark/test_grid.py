"""The grid: what is measured, skipped and counted, and where a run resumes."""

from dataclasses import replace

import pytest

from scale_invariant_attention.lab.benchmark import grid
from scale_invariant_attention.lab.benchmark.problem import Problem, Setting
from scale_invariant_attention.lab.benchmark.records import write_records
from scale_invariant_attention.lab.benchmark.rivals import rival_named
from scale_invariant_attention.provenance import provenance


def test_the_whole_grid_is_cheapest_first():
    problems = grid.problems(grid.FULL)
    assert len(problems) == len(set(problems)) == 2 * (7 + 7 + 3)
    assert [p.flops for p in problems] == sorted(p.flops for p in problems)
    assert {p.length for p in problems if p.pass_name == "decode"} == {4096, 16384, 65536}


def test_lengths_that_are_given_hold_for_every_pass():
    problems = grid.problems(grid.QUICK, lengths=["48"])
    assert [(p.shape, p.length, p.pass_name) for p in problems] == [
        ("2x32", 48, "decode"),
        ("2x32", 48, "forward"),
        ("2x32", 48, "forward+backward"),
    ]


def test_figures_of_each_rival(bounds):
    problem = Problem(2, 32, 48, "forward+backward")
    rows = grid.measure_problem(
        problem, [rival_named("sdpa"), rival_named("tiled")], 0.01, bounds, memory=False
    )
    assert [row.rival for row in rows] == ["sdpa", "tiled"]
    assert rows[0].ratio_to_sdpa == rows[0].ratio_low == rows[0].ratio_high == 1
    for row in rows:
        assert 0 < row.tenth_ms <= row.low_ms <= row.median_ms <= row.high_ms <= row.ninetieth_ms
        assert row.gflops == pytest.approx(problem.flops / row.median_ms / 1e6)
        assert row.share_of_peak == pytest.approx(row.gflops / 100)
        assert (row.gigabytes_per_second, row.peak_memory_mib) == (None, None)
        assert row.rounds >= 3


def test_ratios_are_taken_round_by_round(bounds):
    problem = Problem(2, 32, 48, "forward")
    row = grid.timing(problem, "tiled", [1.0, 2.0, 9.0], [1.0, 1.0, 3.0], bounds, memory=2**20)
    assert (row.ratio_low, row.ratio_to_sdpa, row.ratio_high) == (1.5, 2, 2.5)
    assert row.median_ms == 2000
    assert row.peak_memory_mib == 1


def test_decoding_is_measured_by_what_is_read(bounds):
    problem = Problem(heads=10, head_dim=100, length=1000, pass_name="decode")
    row = grid.timing(problem, "tiled", [0.004] * 3, [0.002] * 3, bounds, memory=None)
    # Keys and values of a million floats each in 4 ms.
    assert row.gigabytes_per_second == pytest.approx(2)
    assert row.share_of_bandwidth == pytest.approx(0.2)
    assert row.ratio_to_sdpa == pytest.approx(2)


def test_a_slow_rival_sits_out_and_sdpa_never_does():
    problem = Problem(2, 32, 128, "forward")
    generous, strict = {"memory_limit": 2**30, "slowest": 60}, {"memory_limit": 2**30, "slowest": 0}
    assert grid.skipped_reason(problem, rival_named("tiled"), **generous) is None
    why = grid.skipped_reason(problem, rival_named("tiled"), **strict)
    assert why.startswith("a run would take about ")
    assert why.endswith("and 0 s are allowed")
    assert grid.skipped_reason(problem, rival_named("sdpa"), **strict) is None


def test_no_time_is_spent_on_a_rival_that_has_no_room():
    def never(*_):
        raise AssertionError

    greedy = replace(rival_named("eager"), attention=never)
    problem = Problem(2, 32, 128, "forward")
    assert "score matrices" in grid.skipped_reason(problem, greedy, memory_limit=0, slowest=60)


@pytest.fixture
def record(tmp_path, bounds):
    """A function that records one problem under a header with some changes."""
    problem = Problem(2, 32, 48, "forward")
    row = grid.timing(problem, "sdpa", [1.0] * 3, [1.0] * 3, bounds, memory=None)
    origin = provenance() | {"commit": "abc", "rivals": "sdpa tiled"} | bounds.record()

    def write(**changes):
        path = tmp_path / "results.csv"
        write_records(path, origin | changes, [row])
        return path, origin, row

    return write


def test_a_run_goes_on_where_it_was_broken_off(record, bounds):
    path, origin, row = record(date="yesterday", peak_gflops="50")
    header, rows = grid.read_resumable(path, origin)
    assert rows == [row]
    assert (header["date"], header["peak_gflops"]) == ("yesterday", "50")
    assert grid.is_recorded(Problem(2, 32, 48, "forward"), rows)
    for other in ((2, 32, 48, "decode"), (2, 32, 49, "forward"), (2, 16, 48, "forward")):
        assert not grid.is_recorded(Problem(*other), rows)


@pytest.mark.parametrize("name", ["commit", "torch", "cpu", "threads", "rivals"])
def test_no_run_goes_on_with_what_another_left(record, name):
    path, origin, _ = record(**{name: "other"})
    with pytest.raises(ValueError, match=f"with {name} 'other', and this is .* without --resume"):
        grid.read_resumable(path, origin)


def test_no_run_goes_on_from_uncommitted_changes(record):
    path, origin, _ = record(commit="abc with changes")
    with pytest.raises(ValueError, match="from uncommitted changes"):
        grid.read_resumable(path, origin | {"commit": "abc with changes"})


def test_on_gpus_a_batch_fills_them():
    setting = Setting("cuda", "bfloat16")
    problems = grid.problems(grid.GPU, setting=setting)
    assert {p.head_dim for p in problems} == {64, 128}
    assert {p.length for p in problems} == {2**n for n in range(10, 17)}
    assert {p.setting for p in problems} == {setting}
    for problem in problems:
        tokens = 131072 if problem.pass_name == "decode" else 16384
        assert problem.batch == max(1, tokens // problem.length)


def test_a_rival_that_raises_sits_out_with_the_reason():
    def refusing(*_):
        raise RuntimeError("No available kernel.\nAborting execution.")

    problem = Problem(2, 32, 64, "forward")
    rival = replace(rival_named("eager"), attention=refusing)
    why = grid.skipped_reason(problem, rival, memory_limit=2**30, slowest=60)
    assert why == "it raises RuntimeError: No available kernel."
