from dataclasses import replace
from pathlib import Path

import pytest

from scale_invariant_attention.lab.benchmark.records import (
    Ratio,
    Timing,
    read_records,
    write_records,
)

TIMING = Timing("6x128", 64, "decode", "tiled", *map(float, range(12)), None, 5)
RATIO = Ratio(
    "a, b", "6x128", 64, "forward", 1.5, 1.25, 2.0, "ratio", "at most", 1.75, True, "a 3; b 2", 7
)
HEADER = {"cpu": "one: two", "load": "0.10"}


@pytest.mark.parametrize(
    "rows",
    [
        [TIMING, replace(TIMING, peak_memory_mib=2.5, tenth_ms=None)],
        [RATIO, replace(RATIO, met=False)],
    ],
    ids=["timings", "ratios"],
)
def test_results_survive_the_file(tmp_path, rows):
    path = tmp_path / "new folder" / "results.csv"
    write_records(path, HEADER, rows)
    assert read_records(path, type(rows[0])) == (HEADER, rows)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"must have the columns .*, got \['a', 'b'\]"):
        read_records(path, Timing)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "results.csv"
    write_records(path, HEADER, [TIMING])

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_records(path, HEADER, [TIMING, TIMING])
    assert read_records(path, Timing) == (HEADER, [TIMING])
