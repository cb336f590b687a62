"""Comparisons: what they work out of a round, and that every one of them runs."""

import pytest
import torch

from scale_invariant_attention.lab.benchmark import comparisons
from scale_invariant_attention.lab.benchmark.comparisons import (
    Figure,
    Lengths,
    Trial,
    compared,
    trials,
)
from scale_invariant_attention.lab.benchmark.problem import Problem
from scale_invariant_attention.lab.benchmark.rivals import rival_named

TINY = Lengths(usual=16, flex=(16,), window=4, windowed=32, decode=64)
PROBLEM = Problem(2, 8, 16, "forward")


@pytest.fixture
def times(monkeypatch):
    """A function that sets the seconds of every side, round by round."""

    def pretend(**seconds):
        monkeypatch.setattr(comparisons, "interleaved", lambda runs, _: seconds)

    return pretend


@pytest.fixture
def all_trials(monkeypatch):
    monkeypatch.setattr(comparisons, "cores", lambda: 2)
    # tiled stands in for FlexAttention, which would have to compile.
    tiled, sdpa = rival_named("tiled"), rival_named("sdpa")
    return list(trials(tiled, sdpa, tiled, read_gigabytes_per_second=10.0, at=TINY))


def figures(trials, name):
    return [figure for trial in trials for figure in trial.figures if name in figure.comparison]


def test_the_median_over_rounds_counts(times):
    times(a=[1.0, 2.0, 9.0], b=[2.0, 2.0, 3.0])
    figure = Figure("a to b", lambda t: t["a"] / t["b"], target=1.5)
    (row,) = compared(Trial(PROBLEM, dict, [figure], calls=10), seconds=1)
    assert (row.low, row.figure, row.high) == (0.75, 1.0, 2.0)
    assert (row.comparison, row.shape, row.length, row.pass_name) == (
        "a to b",
        "2x8",
        16,
        "forward",
    )
    assert (row.met, row.rounds, row.medians_ms) == (True, 3, "a 200; b 200")


@pytest.mark.parametrize(
    ("name", "turn", "value", "sense", "target"),
    [
        ("transform by tau", {"tau": 3, "tables": 1, "identity": 2}, 1.5, "at most", 1.05),
        ("transform by tables", {"tau": 1, "tables": 3, "identity": 2}, 1.5, "at most", 1.05),
        ("table gradients", {"learned": 6, "fixed": 5, "forward": 1}, 0.25, "at most", 0.10),
        ("window", {"window": 1, "full": 8}, 0.125, "at most", 0.10),
        ("relative to SDPA", {"tiled": 1, "sdpa": 2}, 0.5, "at most", 1.00),
        ("speed-up", {"one": 3, "two": 2}, 1.5, "at least", 1.85),
        ("tiny call", {"tiled": 0.003, "sdpa": 0.001}, 10, "at most", 30),
    ],
)
def test_what_is_worked_out_of_a_round(all_trials, name, turn, value, sense, target):
    for figure in figures(all_trials, name):
        assert figure.of_round(turn) == pytest.approx(value)
        assert (figure.sense, figure.target) == (sense, target)
    assert figures(all_trials, name)


def test_decoding_is_held_against_the_bandwidth(all_trials):
    for trial in all_trials:
        for figure in figures([trial], "read bandwidth"):
            # As long as reading keys and values takes at the very least.
            seconds = trial.problem.cache_bytes / 10e9
            assert figure.of_round({"tiled": 2 * seconds}) == pytest.approx(0.5)
            assert (figure.sense, figure.target) == ("at least", 0.70)


def test_every_comparison_runs(all_trials):
    assert len(all_trials) == 4 + 2 + 2 + 4 + 2 + 8 + 2
    for trial in all_trials:
        for run in trial.runs().values():
            run()


def test_full_comparisons_are_of_the_lengths_that_targets_are_about():
    tiled, sdpa = rival_named("tiled"), rival_named("sdpa")
    full = list(trials(tiled, sdpa, tiled, 10.0, comparisons.FULL))
    assert {trial.problem.length for trial in full} == {16, 4096, 8192, 16384, 65536}


def test_threads_are_as_many_as_before_afterwards(all_trials):
    (trial, *_) = [trial for trial in all_trials if "speed-up" in trial.names]
    before = torch.get_num_threads()
    for run in trial.runs().values():
        run()
        assert torch.get_num_threads() == before


def test_one_core_and_no_flex_leave_comparisons_out(monkeypatch):
    monkeypatch.setattr(comparisons, "cores", lambda: 1)
    names = [t.names for t in trials(rival_named("tiled"), rival_named("sdpa"), None, 10.0, TINY)]
    assert len(names) == 4 + 2 + 4 + 2 + 2
    assert not [name for name in names if "speed-up" in name or "flex" in name]
