import pytest

from scale_invariant_attention.lab.benchmark import grid
from scale_invariant_attention.lab.benchmark.problem import Problem
from scale_invariant_attention.lab.benchmark.records import held_to_targets


@pytest.fixture
def timing(bounds):
    """A function that makes a row of a problem, a rival and its time as a part of SDPA's."""

    def make(shape, length, pass_name, rival, ratio):
        problem = Problem.named(shape, str(length), pass_name)
        seconds = [problem.flops / (80e9 / factor) for factor in (0.98, 1.0, 1.02)]
        times = [ratio * second for second in seconds]
        return grid.timing(problem, rival, times, seconds, bounds, None)

    return make


def test_times_and_shares_are_held_to_their_targets(timing):
    rows = [
        timing("6x128", 512, "forward", "cpu", 0.69),
        timing("6x128", 512, "forward+backward", "cpu", 0.76),
        timing("6x128", 8192, "forward", "cpu", 1.2),
        timing("6x128", 8192, "forward", "tiled", 0.5),
        timing("6x128", 777, "forward", "cpu", 0.5),
        timing("6x128", 8192, "decode", "cpu", 0.5),
    ]
    found = held_to_targets(rows, "cpu")
    assert [(r.length, r.pass_name, r.unit, r.sense, r.target, r.met) for r in found] == [
        (512, "forward", "ratio", "at most", 0.70, True),
        (8192, "forward", "ratio", "at most", 0.92, False),
        (512, "forward+backward", "ratio", "at most", 0.75, False),
        (8192, "forward", "share", "at least", 0.72, False),
    ]
    share = found[-1]
    assert share.figure == pytest.approx(0.8 / 1.2)
    assert share.low < share.figure < share.high


def test_a_share_that_is_high_enough(timing):
    *_, share = held_to_targets([timing("12x64", 32768, "forward", "cpu", 1.0)], "cpu")
    assert share.met
    assert share.figure == pytest.approx(0.8)


def test_without_the_backend_nothing_is_claimed(timing):
    assert held_to_targets([timing("6x128", 512, "forward", "tiled", 0.5)], "cpu") == []
