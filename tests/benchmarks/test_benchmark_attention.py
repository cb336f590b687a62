"""The benchmark: what it counts, what it writes, and that it stays silent when a rival is wrong."""

import csv
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
import torch

COLUMNS = (
    "shape,length,pass,rival,median_ms,low_ms,high_ms,ratio_to_sdpa,ratio_low,ratio_high,gflops,"
    "share_of_peak,peak_memory_mib,rounds"
)


def script(path, *arguments):
    command = [sys.executable, str(path), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_a_quick_run_writes_results_that_can_be_plotted(benchmarks, tmp_path):
    results, picture = tmp_path / "results.csv", tmp_path / "attention.png"
    options = ("--quick", "--lengths", 48, "--rivals", "tiled", "--seconds", 0.01)
    output = script(benchmarks / "benchmark_attention.py", *options, "--output", results).stdout
    assert output.index("Bound: ") < output.index("to SDPA")

    lines = results.read_text().splitlines()
    header = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    assert {"date", "commit", "version", "torch", "python", "cpu", "threads"} <= set(header)
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert COLUMNS in lines
    cells = [(row["shape"], row["length"], row["pass"], row["rival"]) for row in rows]
    assert cells == list(
        product(["2x32"], ["48"], ["forward", "forward+backward"], ["sdpa", "tiled"])
    )
    for row in rows:
        assert 0 < float(row["low_ms"]) <= float(row["median_ms"]) <= float(row["high_ms"])
        assert float(row["share_of_peak"]) > 0
        assert float(row["peak_memory_mib"]) >= 0
        assert int(row["rounds"]) >= 5
        if row["rival"] == "sdpa":
            assert float(row["ratio_to_sdpa"]) == 1

    script(benchmarks / "plot_attention.py", results, "-o", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")

    page = tmp_path / "benchmark.md"
    script(benchmarks / "page_attention.py", results, "-o", page)
    for row in rows:
        line = f"| {row['length']} | {row['rival']} | {float(row['median_ms']):.1f} |"
        assert line in page.read_text()
    assert header["commit"][:12] in page.read_text()


def test_results_survive_the_file(load, tmp_path):
    results = load("results")
    row = results.Row("6x128", 64, "forward", "tiled", *map(float, range(8)), None, 5)
    rows = [row, replace(row, peak_memory_mib=2.5)]
    results.write_results(tmp_path / "results.csv", {"cpu": "one: two"}, rows)
    assert results.read_results(tmp_path / "results.csv") == ({"cpu": "one: two"}, rows)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"must have the columns .*, got \['a', 'b'\]"):
        results.read_results(tmp_path / "other.csv")


def test_every_rival_that_needs_no_compiler_is_right(load):
    fault = load("correctness").fault
    quick = (rival for rival in load("rivals").rivals().values() if rival.name != "flex")
    assert [found for rival in quick if (found := fault(rival)) is not None] == []


def spoilt_output(query, key, value, right):
    return right(query, key, value) * (1 + 1e-4)


def spoilt_gradient(query, key, value, right):
    return right(query, key.detach() + (key - key.detach()) * (1 + 1e-4), value)


def missing_head(query, key, value, right):
    return right(query, key, value)[:, 1:]


def not_a_number(query, key, value, right):
    return right(query, key, value) * torch.nan


def raising(query, key, value, right):
    raise NotImplementedError("not today")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (spoilt_output, "wrong is wrong: output errs by"),
        (spoilt_gradient, "wrong is wrong: key gradient errs by"),
        (not_a_number, "wrong is wrong: output errs by nan"),
        (missing_head, "wrong "),
        (raising, "wrong raises NotImplementedError: not today"),
    ],
)
def test_no_figures_for_a_wrong_rival(load, tmp_path, capsys, spoil, complaint):
    contenders = load("rivals").rivals()
    right = contenders["tiled"].attention
    contenders["wrong"] = replace(
        contenders["tiled"], name="wrong", attention=lambda q, k, v: spoil(q, k, v, right)
    )
    results = tmp_path / "results.csv"
    options = ["--quick", "--rivals", "tiled,wrong", "--output", str(results)]
    assert load("benchmark_attention").main(options, contenders) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(complaint)
    assert "tiled" not in printed.err
    assert printed.out == ""
    assert not results.exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--shapes", "6by128"], "got 6by128, 128"),
        (["--lengths", "0"], "got 2x32, 0"),
        (["--passes", "sideways"], "got 'sideways'"),
        (["--rivals", "nobody"], "rival 'nobody' cannot take part: rivals are sdpa, eager"),
    ],
)
def test_options_that_make_no_sense(load, capsys, options, complaint):
    with pytest.raises(SystemExit, match="2"):
        load("benchmark_attention").main(["--quick", *options])
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("heads", "head_dim", "length"), [(1, 1, 1), (2, 3, 7), (6, 128, 64)])
def test_flops_are_those_of_the_visible_pairs(load, heads, head_dim, length):
    pairs = sum(1 for i, j in product(range(length), repeat=2) if j <= i)
    forward = sum(2 * 2 * head_dim for _ in range(heads * pairs))
    problem = load("problem").Problem(heads, head_dim, length, backward=False)
    assert problem.flops == forward
    assert replace(problem, backward=True).flops == 3.5 * forward


def test_who_does_not_take_part(load):
    rivals = load("rivals").rivals()
    problem = load("problem").Problem.named("6x128", "4096", "forward+backward")
    scores = 4 * 6 * 4096**2
    eager = rivals["eager"]
    assert problem.objection(eager, memory_limit=eager.score_matrices * scores) is None
    refusal = problem.objection(eager, memory_limit=eager.score_matrices * scores - 1)
    assert refusal == "5 score matrices would take 1.9 GiB"
    assert problem.objection(rivals["tiled"], memory_limit=0) is None
    untrained = replace(rivals["tiled"], trains=False)
    assert problem.objection(untrained, memory_limit=0) == "it has no backward"
    assert replace(problem, backward=False).objection(untrained, memory_limit=0) is None


def test_rivals_take_turns(load):
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = load("timing").interleaved(runs, seconds=0, least_rounds=3)
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_quartiles(load):
    assert load("timing").Quartiles.of([5, 1, 2, 4, 3]) == (2, 3, 4)
