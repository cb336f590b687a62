from contextlib import nullcontext

import pytest

from scale_invariant_attention.lab.benchmark import timing
from scale_invariant_attention.lab.benchmark.timing import Spread, clock_for, interleaved


def test_rivals_take_turns():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = interleaved(runs, seconds=0)
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_rounds_go_on_until_the_time_is_up():
    assert len(interleaved({"a": lambda: None}, seconds=0.01)["a"]) > 3


def test_the_spread_of_eleven_values():
    assert Spread.of(range(11)) == (1, 2.5, 5, 7.5, 9)


def test_a_clock_can_be_given():
    assert interleaved({"a": lambda: None}, 0, clock=lambda run: 7.0) == {"a": [7.0] * 3}


@pytest.fixture
def fake_gpu(monkeypatch):
    """Events that write down the order of what happens, on a CPU."""
    happened = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            happened.append("event")

        def elapsed_time(self, other):
            assert self is not other
            return 250.0

    class Buffer:
        def zero_(self):
            happened.append("flush")

    monkeypatch.setattr(timing.torch, "empty", lambda size, **_: Buffer())
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: happened.append("synchronise"))
    return happened


def test_a_gpu_is_timed_by_events_after_its_cache_was_flushed(fake_gpu):
    clock = clock_for("cuda")
    assert clock(lambda: fake_gpu.append("run")) == 0.25
    assert fake_gpu == ["flush", "event", "run", "event", "synchronise"]
