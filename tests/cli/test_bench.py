"""`sia bench`: measurements, records, and errors."""

import sys
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from scale_invariant_attention import provenance
from scale_invariant_attention.attention import self_check
from scale_invariant_attention.cli import app
from scale_invariant_attention.lab.benchmark import comparisons, grid, models, rivals
from scale_invariant_attention.lab.benchmark.bounds import Bounds
from scale_invariant_attention.lab.benchmark.problem import PASSES
from scale_invariant_attention.lab.benchmark.records import ModelTiming, Ratio, Timing, read_records
from scale_invariant_attention.model import GPTConfig

QUICK = ("--quick", "--no-memory", "--rivals", "tiled", "--seconds", "0")


@pytest.fixture(autouse=True)
def known_machine(monkeypatch):
    """Bounds without measuring them, and a commit without changes."""
    found = Bounds(100.0, "a guess", 10.0, "another")
    monkeypatch.setattr(Bounds, "measure", lambda: found)
    origin = provenance.provenance() | {"commit": "abc"}
    monkeypatch.setattr(provenance, "provenance", lambda: dict(origin))


@pytest.fixture
def output(tmp_path):
    return tmp_path / "results" / "attention.csv"


def run(output, *options):
    return CliRunner().invoke(app, ["bench", "--output", str(output), *options])


def test_a_quick_run_prints_the_bound_first_and_records_every_problem(output):
    done = run(output, *QUICK, "--lengths", "48")
    assert done.exit_code == 0
    assert done.output.index("Bounds: 100 GFLOP/s (a guess)") < done.output.index("to SDPA")
    assert done.output.splitlines()[-1] == f"Written to {output}"
    origin, rows = read_records(output, Timing)
    assert origin["rivals"] == "sdpa tiled"
    assert Bounds.from_record(origin) == Bounds.measure()
    assert [(row.length, row.pass_name, row.rival) for row in rows] == [
        (48, pass_name, rival)
        for pass_name in ("decode", "forward", "forward+backward")
        for rival in ("sdpa", "tiled")
    ]


def test_lists_take_commas_and_spaces_and_repetition(output):
    lists = ("--lengths", "16,24", "--lengths", "32 40", "--passes", "forward", "--shapes", "1x8")
    assert run(output, *QUICK, *lists).exit_code == 0
    _, rows = read_records(output, Timing)
    assert sorted({row.length for row in rows}) == [16, 24, 32, 40]


def test_an_interrupted_run_resumes(output, monkeypatch):
    options = (*QUICK, "--passes", "forward")
    measure = grid.measure_problem

    def interrupted(problem, *arguments, **settings):
        if problem.length == 256:
            raise KeyboardInterrupt
        return measure(problem, *arguments, **settings)

    monkeypatch.setattr(grid, "measure_problem", interrupted)
    assert run(output, *options).exit_code != 0
    before = read_records(output, Timing)
    assert {row.length for row in before[1]} == {128}

    monkeypatch.setattr(grid, "measure_problem", measure)
    done = run(output, *options, "--resume")
    assert done.exit_code == 0
    assert "2x32, 128 tokens, forward\nalready recorded\n" in done.output
    origin, rows = read_records(output, Timing)
    assert origin == before[0]
    assert rows[:2] == before[1]
    assert [row.length for row in rows[2:]] == [256, 256]


def test_a_run_with_other_rivals_is_not_resumed(output):
    options = ("--quick", "--no-memory", "--lengths", "16", "--passes", "decode", "--seconds", "0")
    assert run(output, *options, "--rivals", "tiled").exit_code == 0
    done = run(output, *options, "--rivals", "eager", "--resume")
    assert done.exit_code == 2
    assert "recorded with rivals 'sdpa tiled', and this is 'sdpa eager'" in done.output


def test_skipped_rivals_come_with_a_reason(output):
    options = ("--quick", "--no-memory", "--rivals", "eager,tiled", "--lengths", "64")
    limits = ("--memory-limit", "0", "--slowest", "0")
    done = run(output, *options, *limits, "--passes", "forward", "--seconds", "0")
    assert done.exit_code == 0
    assert "without eager: 5 score matrices would take 0.0 GiB" in done.output
    assert "without tiled: a run would take about" in done.output
    assert [row.rival for row in read_records(output, Timing)[1]] == ["sdpa"]


def test_nothing_is_measured_if_a_rival_is_wrong(output, monkeypatch):
    contenders = rivals.contenders()
    right = contenders["tiled"].attention
    contenders["wrong"] = replace(
        contenders["tiled"], name="wrong", attention=lambda *i, **c: 1.0001 * right(*i, **c)
    )
    monkeypatch.setattr(rivals, "contenders", lambda device="cpu": contenders)
    done = run(output, "--quick", "--rivals", "tiled,wrong")
    assert done.exit_code == 1
    complaint, last = done.stderr.splitlines()
    assert complaint.startswith("wrong is wrong (causal): output errs by")
    assert last == "Nothing was measured."
    assert done.stdout == ""
    assert not output.exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--shapes", "6by128"], "got '6by128'"),
        (["--lengths", "0"], "got '0'"),
        (["--passes", "sideways"], "got 'sideways'"),
        (["--rivals", "nobody"], "rival 'nobody' cannot take part: there is no such rival"),
        (["--seconds", "-1"], "--seconds"),
    ],
)
def test_invalid_options(output, options, complaint):
    done = run(output, "--quick", *options)
    assert done.exit_code == 2
    assert complaint in done.output
    assert not output.exists()


def test_flex_can_be_left_out(output):
    options = ("--quick", "--no-memory", "--lengths", "16", "--passes", "decode", "--seconds", "0")
    assert run(output, *options, "--rivals", "tiled,flex", "--no-flex").exit_code == 0
    assert read_records(output, Timing)[0]["rivals"] == "sdpa tiled"


def test_options_before_a_subcommand_are_refused(output):
    done = CliRunner().invoke(app, ["bench", "--quick", "ratios", "--output", str(output)])
    assert done.exit_code == 2
    assert "--quick belongs to `sia bench` itself" in done.output


@pytest.fixture
def few_comparisons(monkeypatch):
    monkeypatch.setattr(comparisons, "TINY_CALLS", 2)
    # No length is that of a full run.
    tiny = comparisons.Lengths(
        usual=16, flex=(16,), window=4, windowed=32, decode=64, grouped=64, chunk=64, side=4
    )
    monkeypatch.setattr(comparisons, "QUICK", tiny)


def ratios(output, *options):
    return CliRunner().invoke(app, ["bench", "ratios", "--output", str(output), *options])


def test_ratios_are_recorded_with_their_targets(output, few_comparisons):
    options = ("--quick", "--no-flex", "--backend", "tiled", "--seconds", "0")
    done = ratios(output, *options)
    assert done.exit_code == 0
    assert done.output.index("Bounds: 100 GFLOP/s") < done.output.index("at most")
    assert "without flex: not requested" in done.output
    origin, rows = read_records(output, Ratio)
    assert origin["backend"] == "tiled"
    assert f"{sum(row.met for row in rows)} of {len(rows)} targets met." in done.output


def test_a_declined_comparison_is_skipped(output, few_comparisons, monkeypatch):
    contenders = rivals.contenders()
    tiled = contenders["tiled"].attention

    def without_window(*inputs, window=None, **contract):
        if window is not None:
            raise NotImplementedError("no windows today")
        return tiled(*inputs, **contract)

    contenders["tiled"] = replace(contenders["tiled"], attention=without_window)
    monkeypatch.setattr(rivals, "contenders", lambda device="cpu": contenders)
    done = ratios(output, "--quick", "--no-flex", "--backend", "tiled", "--seconds", "0")
    assert done.exit_code == 0
    assert "without window of 4, to the whole triangle: no windows today" in done.output
    assert not [row for row in read_records(output, Ratio)[1] if "window" in row.comparison]


@pytest.mark.parametrize(
    ("backend", "complaint"),
    [("nobody", "'nobody' cannot take part"), ("eager", "'eager' is not a backend; backends are")],
)
def test_ratios_need_a_backend(output, backend, complaint):
    done = ratios(output, "--quick", "--backend", backend)
    assert done.exit_code == 2
    assert "--backend" in done.output
    assert complaint in done.output


@pytest.fixture
def tiny_models(monkeypatch):
    """Two tiny models."""
    config = GPTConfig(vocab_size=16, layers=1, width=16, heads=1)
    tiny = [
        models.ModelProblem("tiny", config, name, 1, 8) for name in (models.TRAIN, models.DECODE)
    ]
    monkeypatch.setattr(models, "model_problems", lambda quick: tiny)


def test_models_are_recorded_and_written_up(output, tiny_models):
    assert run(output, *QUICK, "--lengths", "16", "--passes", "forward").exit_code == 0
    recorded = output.with_name("models.csv")
    options = ("--output", str(recorded), "--seconds", "0")
    done = CliRunner().invoke(app, ["bench", "models", *options])
    assert done.exit_code == 0
    assert "of RoPE on SDPA; target: at most 1.05" in done.output
    assert "of the time per token in attention" in done.output
    _, rows = read_records(recorded, ModelTiming)
    assert [row.pass_name for row in rows] == [models.TRAIN, models.DECODE]

    page = output.parent / "benchmark.md"
    options = ("--results", str(output), "--models", str(recorded), "--output", str(page))
    assert CliRunner().invoke(app, ["bench", "page", *options]).exit_code == 0
    assert "## Models" in page.read_text()


def test_a_recorded_run_is_drawn_and_written_up(output, few_comparisons):
    assert run(output, *QUICK, "--lengths", "16").exit_code == 0
    compared = output.with_name("ratios.csv")
    quick = ("--quick", "--no-flex", "--backend", "tiled", "--seconds", "0")
    assert ratios(compared, *quick).exit_code == 0

    source = ("--results", str(output))
    drawn = CliRunner().invoke(app, ["bench", "plot", *source, "--output", str(output.parent)])
    assert drawn.exit_code == 0
    assert drawn.output.splitlines() == [
        str(output.parent / f"benchmark-{name}.png") for name in ("ratio", "peak", "decode")
    ]
    page = output.parent / "new" / "benchmark.md"
    options = (*source, "--ratios", str(compared), "--output", str(page))
    written = CliRunner().invoke(app, ["bench", "page", *options])
    assert written.exit_code == 0
    assert written.output.strip() == str(page)
    assert "## Targets" in page.read_text()


@pytest.mark.parametrize("command", ["plot", "page"])
@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "does not exist"), ("a,b\n", "must have the columns")]
)
def test_missing_or_foreign_files_cannot_be_shown(tmp_path, command, content, complaint):
    results = tmp_path / "other.csv"
    if content is not None:
        results.write_text(content)
    options = ("--results", str(results), "--output", str(tmp_path / "out"))
    done = CliRunner().invoke(app, ["bench", command, *options])
    assert done.exit_code == 2
    assert "--results" in done.output
    assert complaint in done.output


def test_without_matplotlib_the_extra_is_named(output, monkeypatch):
    assert run(output, *QUICK, "--lengths", "16", "--passes", "forward").exit_code == 0
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    figures = output.parent / "figures"
    options = ("--results", str(output), "--output", str(figures))
    done = CliRunner().invoke(app, ["bench", "plot", *options])
    assert done.exit_code == 1
    assert not figures.exists()
    assert 'pip install "scale-invariant-attention[plots]"' in done.stderr


HALF = ("--dtype", "bfloat16", "--quick", "--no-memory", "--seconds", "0", "--lengths", "64")


def test_another_dtype_goes_the_way_of_a_gpu_and_ends_in_one_report(output):
    """The path of `--device cuda` but for the clock and the rivals that need a GPU."""
    report = output.with_name("report.md")
    done = run(output, *HALF, "--rivals", "tiled,eager", "--report", str(report))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == f"To send back: {report}"
    text = report.read_text()
    assert "# Benchmark of cpu, bfloat16" in text
    assert "No backend on this device needs one." in text
    assert "TFLOP/s | share of peak" in text
    assert "GB/s | share of bandwidth" in text
    assert "## Backward alone" in text
    # The records are all in it.
    assert read_records(report, Timing) == read_records(output, Timing)
    origin, rows = read_records(report, Timing)
    assert (origin["dtype"], origin["device"], origin["batch"]) == ("bfloat16", "cpu", "batch 1")
    assert {"driver", "triton"} & origin.keys() == {"triton"}
    assert len(rows) == 3 * 3


def test_elsewhere_a_wrong_rival_is_left_out_and_reported(output, monkeypatch):
    contenders = rivals.contenders()
    wrong = replace(contenders["eager"], attention=lambda q, k, v: 1.1 * rivals.eager(q, k, v))
    contenders["eager"] = wrong
    monkeypatch.setattr(rivals, "contenders", lambda device="cpu": contenders)
    report = output.with_name("report.md")
    options = ("--rivals", "eager", "--passes", "forward", "--report", str(report))
    done = run(output, *HALF, *options)
    assert done.exit_code == 0
    assert "without eager is wrong (forward): output errs by" in done.output
    assert "- without eager is wrong" in report.read_text()
    assert [row.rival for row in read_records(output, Timing)[1]] == ["sdpa"]


def test_a_rival_that_fails_in_one_pass_takes_part_in_the_others(output, monkeypatch):
    def without_backward(query, key, value):
        if query.requires_grad:
            raise NotImplementedError("no backward today")
        return rivals.eager(query, key, value)

    contenders = rivals.contenders()
    contenders["eager"] = replace(contenders["eager"], attention=without_backward)
    monkeypatch.setattr(rivals, "contenders", lambda device="cpu": contenders)
    report = output.with_name("report.md")
    assert run(output, *HALF, "--rivals", "eager", "--report", str(report)).exit_code == 0
    said = "- without eager raises NotImplementedError (forward+backward): no backward today"
    assert said in report.read_text()
    rows = read_records(output, Timing)[1]
    assert {row.pass_name for row in rows if row.rival == "sdpa"} == set(PASSES)
    assert {row.pass_name for row in rows if row.rival == "eager"} == {"forward", "decode"}


def test_a_backend_that_failed_its_self_check_is_not_timed(output, monkeypatch):
    found = self_check.Difference("window", "float32", "output", 0.5, 1e-6)
    outcomes = {"tiled": self_check.Outcome("tiled", differences=(found,))}
    monkeypatch.setattr("scale_invariant_attention.attention.run_self_checks", lambda _: outcomes)
    report = output.with_name("report.md")
    options = ("--rivals", "tiled", "--passes", "decode", "--report", str(report))
    assert run(output, *HALF, *options).exit_code == 0
    assert "- without tiled: it failed its self-check" in report.read_text()
    assert [row.rival for row in read_records(output, Timing)[1]] == ["sdpa"]


def test_self_checks_stand_in_the_report(output, monkeypatch):
    found = self_check.Difference("window", "float32", "output", 0.5, 1e-6)
    outcomes = {
        "good": self_check.Outcome("good", closest=found, seconds=1.25),
        "bad": self_check.Outcome("bad", differences=(found,)),
    }
    monkeypatch.setattr("scale_invariant_attention.attention.run_self_checks", lambda _: outcomes)
    report = output.with_name("report.md")
    options = ("--rivals", "eager", "--passes", "decode", "--report", str(report))
    assert run(output, *HALF, *options).exit_code == 0
    text = report.read_text()
    assert (
        "| good | passed | 0.0 | 1.2 | window, float32: output errs by 0.5, allowed is 1e-06 |"
        in text
    )
    assert "| bad | **FAILED**: window, float32: output errs by 0.5" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_cuda(output):
    done = run(output, "--device", "cuda")
    assert done.exit_code == 2
    assert "finds no GPU on this machine" in done.output
    done = run(output, "--device", "tpu")
    assert done.exit_code == 2
    assert "device must be cpu or cuda, got 'tpu'" in done.output
    done = run(output, "--dtype", "int8")
    assert "dtype must be one of float32, bfloat16, float16; got 'int8'" in done.output
