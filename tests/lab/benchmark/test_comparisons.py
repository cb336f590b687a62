"""Comparisons: what they compute from a round, and that each of them runs."""

import pytest
import torch

from scale_invariant_attention.lab.benchmark import comparisons
from scale_invariant_attention.lab.benchmark.comparisons import (
    Comparison,
    Lengths,
    Quantity,
    all_comparisons,
    measure_comparison,
)
from scale_invariant_attention.lab.benchmark.problem import Problem
from scale_invariant_attention.lab.benchmark.rivals import rival_named

TINY = Lengths(usual=16, flex=(16,), window=4, windowed=32, decode=64, grouped=64, chunk=64, side=4)
PROBLEM = Problem(2, 8, 16, "forward")


@pytest.fixture
def times(monkeypatch):
    """A function that sets the seconds of every side, round by round."""

    def pretend(**seconds):
        monkeypatch.setattr(comparisons, "interleaved", lambda runs, _: seconds)

    return pretend


@pytest.fixture
def every_comparison(monkeypatch):
    monkeypatch.setattr(comparisons, "cores", lambda: 2)
    # tiled stands in for FlexAttention, which would have to compile.
    tiled, sdpa = rival_named("tiled"), rival_named("sdpa")
    return list(all_comparisons(tiled, sdpa, tiled, read_gigabytes_per_second=10.0, at=TINY))


def quantities(comparisons, name):
    return [it for each in comparisons for it in each.quantities if name in it.comparison]


def test_the_median_over_rounds_counts(times):
    times(a=[1.0, 2.0, 9.0], b=[2.0, 2.0, 3.0])
    quantity = Quantity("a to b", lambda t: t["a"] / t["b"], target=1.5)
    (row,) = measure_comparison(Comparison(PROBLEM, dict, [quantity], calls=10), seconds=1)
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
        ("key bias", {"with": 3, "without": 2}, 1.5, "at most", 1.05),
        ("window", {"window": 1, "full": 8}, 0.125, "at most", 0.10),
        ("a grid of 4 x 4", {"grid": 5, "line": 4}, 1.25, "at most", 1.50),
        ("one query, time relative to SDPA", {"tiled": 1, "sdpa": 2}, 0.5, "at most", 1.00),
        ("with a mask", {"tiled": 1, "sdpa": 2}, 0.5, "at most", 0.80),
        ("of bfloat16 to float32", {"float32": 3, "bfloat16": 2}, 0.75, "at least", 0.85),
        ("speed-up", {"one": 3, "two": 2}, 1.5, "at least", 1.85),
        ("tiny call", {"tiled": 0.003, "sdpa": 0.001}, 10, "at most", 15),
    ],
)
def test_the_number_computed_from_a_round(every_comparison, name, turn, value, sense, target):
    for quantity in quantities(every_comparison, name):
        assert quantity.of_round(turn) == pytest.approx(value)
        assert (quantity.sense, quantity.target) == (sense, target)
    assert quantities(every_comparison, name)


def test_decoding_is_compared_with_the_bandwidth(every_comparison):
    for comparison in every_comparison:
        for quantity in quantities([comparison], "read bandwidth"):
            # The least time in which keys and values can be read.
            seconds = comparison.problem.cache_bytes / 10e9
            assert quantity.of_round({"tiled": 2 * seconds}) == pytest.approx(0.5)
            assert (quantity.sense, quantity.target) == ("at least", 0.70)


def test_bfloat16_is_compared_with_sdpa_in_bfloat16(every_comparison):
    targets = {"forward": 0.50, "forward+backward": 0.65}
    for comparison in every_comparison:
        for quantity in quantities([comparison], "in bfloat16, time relative to SDPA"):
            assert comparison.problem.setting.dtype == torch.bfloat16
            assert quantity.target == targets.pop(comparison.problem.pass_name)
            assert quantity.of_round({"tiled": 1, "sdpa": 2}) == pytest.approx(0.5)
    assert not targets


def test_every_comparison_runs(every_comparison):
    assert len(every_comparison) == 4 + 2 + 4 + 2 + 4 + 2 + 2 + 2 + 1 + 3 + 8 + 2
    for comparison in every_comparison:
        for run in comparison.runs().values():
            run()


def test_full_comparisons_have_the_lengths_of_the_targets():
    tiled, sdpa = rival_named("tiled"), rival_named("sdpa")
    full = list(all_comparisons(tiled, sdpa, tiled, 10.0, comparisons.FULL))
    assert {comparison.problem.length for comparison in full} == {
        *(16, 4096, 8192, 16384, 65536, 131072)
    }


def test_the_number_of_threads_is_restored(every_comparison):
    (comparison, *_) = [
        comparison for comparison in every_comparison if "speed-up" in comparison.names
    ]
    before = torch.get_num_threads()
    for run in comparison.runs().values():
        run()
        assert torch.get_num_threads() == before


def test_comparisons_that_need_flex_or_a_second_core_are_skipped(monkeypatch):
    monkeypatch.setattr(comparisons, "cores", lambda: 1)
    names = [
        t.names
        for t in all_comparisons(rival_named("tiled"), rival_named("sdpa"), None, 10.0, TINY)
    ]
    assert len(names) == 4 + 2 + 4 + 4 + 2 + 2 + 2 + 1 + 3 + 2
    assert not [name for name in names if "speed-up" in name or "flex" in name]
