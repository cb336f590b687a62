from scale_invariant_attention.lab.benchmark.timing import Spread, interleaved


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
