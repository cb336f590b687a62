"""`sia report`: real runs and records as a web page, and errors for what is neither."""

import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from small_records import image_record, masked_record, task_record
from tiny_training import tiny_config
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.files.manifest import signed_text
from scale_invariant_attention.lab.experiments.evaluations import NeedleEvaluation, RecallEvaluation
from scale_invariant_attention.lab.experiments.trials import TrainingTrial, record_trial
from scale_invariant_attention.lab.records import write_record
from scale_invariant_attention.training import train

RESULTS = Path(__file__).parents[2] / "results" / "mini-500"
NEEDLE = {"needles": 1, "digits": 1, "cities": ["A"], "sentence": " {city}{number} "}
RECALL = {"keys": 4, "values": 4, "noise": 4, "pairs": 2, "queries": 2}


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def page_of(*words, folder):
    done = run("report", *words, "-o", folder)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{folder / 'index.html'}\n"
    return (folder / "index.html").read_text()


def data_of(page):
    [text] = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', page)
    return json.loads(text)


def lines_of(page, chart, panel=0):
    [found] = [it for it in data_of(page)["charts"] if it["name"] == chart]
    return {line["key"]: line for line in found["panels"][panel]["lines"]}


@pytest.fixture(scope="module")
def evaluated(trained):
    """A run with the results of `sia evaluate` and `sia needle`."""
    assert run("evaluate", trained, "--tokens", 512).exit_code == 0
    options = "needles=1,digits=1"
    words = ("--lengths", "96,128", "--examples", 3, "--depths", 2, "--options", options)
    assert run("needle", trained, *words).exit_code == 0
    return trained


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Records of needles and of recall, as `sia reproduce` writes them, of very short trainings."""
    results, runs = tmp_path_factory.mktemp("records"), tmp_path_factory.mktemp("runs")
    short = {"steps": 2, "validate_every": 0, "length": 64, "validation_lengths": (64,)}
    trials = [
        TrainingTrial(
            f"needles-{scheme}-seed-0",
            tiny_config(scheme=scheme, task="needles", task_options=NEEDLE, **short),
            NeedleEvaluation((64, 96), examples=4, depths=2),
        )
        for scheme in ("rope", "alibi")
    ]
    trials.append(
        TrainingTrial(
            "recall-rope-seed-0",
            tiny_config(scheme="rope", task="recall", task_options=RECALL, vocab_size=13, **short),
            RecallEvaluation((64, 96), examples=4),
        )
    )
    for trial in trials:
        model = train(trial.config, runs / trial.name)
        record_trial(trial, model, runs, results, torch.device("cpu"))
    return results


def test_a_run_shows_training_losses_positions_and_needles(evaluated, tmp_path):
    page = page_of(evaluated, folder=tmp_path)
    metrics = [json.loads(line) for line in (evaluated / "metrics.jsonl").read_text().splitlines()]
    [curve] = lines_of(page, "training-0").values()
    steps = [line for line in metrics if "loss" in line]
    assert curve["x"] == [line["step"] for line in steps]
    assert curve["y"] == pytest.approx([line["loss"] for line in steps], rel=1e-5)
    [validation] = lines_of(page, "training-0", panel=2).values()
    ends = [line["validation"]["64"] for line in metrics if "validation" in line]
    assert validation["y"] == pytest.approx(ends, rel=1e-5)
    results = json.loads((evaluated / "evaluation" / "evaluation.json").read_text())
    [losses] = lines_of(page, "loss-0").values()
    assert losses["y"] == pytest.approx([row["loss"] for row in results["by_length"]], rel=1e-5)
    [positions] = lines_of(page, "position-0").values()
    assert len(positions["y"]) == len(results["by_position"])
    found = json.loads((evaluated / "needles" / "needles.json").read_text())
    [shares] = lines_of(page, "needles-0").values()
    assert shares["y"] == [row["found"] / row["count"] for row in found["lengths"]]
    assert page.count('<td class="share-') == len(found["cells"])
    assert "unfinished" not in page


def test_records_of_needles_and_recall(records, tmp_path):
    page = page_of(records, folder=tmp_path)
    recorded = {it.stem: json.loads(it.read_text()) for it in records.iterdir()}
    lines = lines_of(page, "needles-0")
    assert list(lines) == ["RoPE, needles", "ALiBi, needles"]
    for scheme, label in (("rope", "RoPE, needles"), ("alibi", "ALiBi, needles")):
        rows = recorded[f"needles-{scheme}-seed-0"]["needles"]["lengths"]
        assert lines[label]["y"] == [row["found"] / row["count"] for row in rows]
        for row in rows:
            interval = f"{row['low']:.3f} to {row['high']:.3f}"
            assert f"{row['found'] / row['count']:.3f} <small>{interval}</small>" in page
    rows = recorded["recall-rope-seed-0"]["recall"]
    [line] = lines_of(page, "recall-0").values()
    assert line["y"] == [row["found"] / row["count"] for row in rows]
    # The losses of trainings on different tasks cannot be compared.
    names = [chart["name"] for chart in data_of(page)["charts"]]
    assert {"training-0", "training-1"} <= set(names)


def test_records_of_the_leaderboard(tmp_path):
    shares, losses = (0.9, 0.5, 0.25, 0.1), (0.01, 0.02, 0.05, 0.2)
    for scheme in ("rope", "alibi"):
        write_record(task_record("copy", scheme, 0, shares), tmp_path)
        write_record(task_record("fractal-noise", scheme, 0, losses), tmp_path)
    page = page_of(tmp_path, folder=tmp_path / "out")
    found = {line["key"]: line["y"] for line in lines_of(page, "tasks-0").values()}
    assert found == {"RoPE, copy": [*shares], "ALiBi, copy": [*shares]}
    assert page.count("0.500 <small>0.100 to 0.900</small>") == 2
    assert lines_of(page, "tasks-1")["ALiBi, fractal-noise"]["y"] == [*losses]
    assert "The task fractal-noise: 32 examples at each length." in page
    assert "Loss above the optimum, fractal-noise" in page


def test_records_of_masked_text_name_the_text_and_count_its_tokens(tmp_path):
    write_record(masked_record("rope", 0, (0.6, 0.5, 0.4)), tmp_path)
    page = page_of(tmp_path, folder=tmp_path / "out")
    on = "the validation split of standard-library, 131,072 tokens at each length."
    assert f"The task masked-text: {on}" in page


def test_attention_by_distance(tmp_path):
    recorded = RESULTS / "attention-rope-seed-0.json"
    longest = json.loads(recorded.read_text())["attention"][-1]
    page = page_of(recorded, folder=tmp_path)
    [line] = lines_of(page, "attention-0").values()
    assert line["y"] == pytest.approx([it["mean"] for it in longest["overall"]["share"]])
    assert line["x"][:2] == pytest.approx([3, (10 * 99) ** 0.5], rel=1e-5)
    for name in ("recent_share", "global_entropy"):
        assert f"<td>{longest['overall'][name][0]['mean']:.3f}</td>" in page
    assert "the nearest 100 tokens" in page


def test_a_diagnosis_of_a_run(evaluated, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(evaluated, folder)
    done = run("diagnose", folder, "--contexts", 2)
    assert done.exit_code == 0, done.output
    written = json.loads((folder / "diagnosis" / "diagnosis.json").read_text())
    page = page_of(folder, folder=tmp_path)
    [line] = lines_of(page, "attention-0").values()
    overall = written["attention"][-1]["overall"]
    assert line["y"] == pytest.approx([it["mean"] for it in overall["share"]], rel=1e-4)
    assert f"<td>{overall['recent_share'][0]['mean']:.3f}</td>" in page


def test_runs_and_records_together_and_an_unfinished_run(evaluated, records, tmp_path):
    unfinished = tmp_path / "unfinished"
    shutil.copytree(evaluated, unfinished)
    shutil.rmtree(unfinished / "model")
    shutil.rmtree(unfinished / "evaluation")
    shutil.rmtree(unfinished / "needles")
    lines = (unfinished / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= 6]
    # As a killed run leaves it.
    (unfinished / "metrics.jsonl").write_text("".join(kept) + '{"step": 7, "lo')
    page = page_of(evaluated, unfinished, records, folder=tmp_path / "out")
    assert "unfinished, at step 6 of 8" in page
    assert "1 unfinished" in page
    assert len(lines_of(page, "training-0")) == 2


def test_measurements_of_an_unfinished_run_are_marked(evaluated, tmp_path):
    shutil.copytree(evaluated, tmp_path / "run")
    path = tmp_path / "run" / "evaluation" / "evaluation.json"
    path.write_bytes(signed_text(json.loads(path.read_text()) | {"unfinished_at_step": 4}))
    page = page_of(tmp_path / "run", folder=tmp_path / "out")
    assert '<small class="state">evaluation.json was measured at step 4</small>' in page


def test_a_folder_of_runs_and_a_run_without_steps(evaluated, tmp_path):
    run_folder = tmp_path / "runs" / "begun"
    run_folder.mkdir(parents=True)
    shutil.copy(evaluated / "config.json", run_folder)
    page = page_of(tmp_path / "runs", folder=tmp_path / "out")
    assert "unfinished, at step 0 of 8" in page
    assert "Nothing has been measured yet" in page


def test_without_runs_the_page_is_the_explorer(tmp_path):
    page = page_of(folder=tmp_path)
    assert "<title>Attention explorer</title>" in page
    assert data_of(page)["charts"] == []
    page = page_of("--title", "Mine & yours", folder=tmp_path)
    assert "<title>Mine &amp; yours</title>" in page


def test_hostile_names_of_folders_stay_text(evaluated, tmp_path):
    hostile = tmp_path / "<script>alert(1)<"
    shutil.copytree(evaluated, hostile)
    page = page_of(hostile, evaluated, folder=tmp_path / "out")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;" in page


def damaged(records):
    record = json.loads((records / "recall-rope-seed-0.json").read_text())
    yield "torn.json", json.dumps(record)[:500], "is not JSON"
    yield "list.json", "[]", "must hold a JSON object, got list"
    yield "other.json", '{"name": 1}', "is not a record: it must have one of losses, needles"
    without = {name: value for name, value in record.items() if name != "provenance"}
    yield "less.json", json.dumps(without), "is not a record: provenance is missing; restore it"
    wrong = record | {"recall": [{**record["recall"][0], "found": 9, "count": 0}]}
    yield "wrong.json", json.dumps(wrong), "found must be from 0 to count, got 9 of 0"
    evaluation = {"lengths": [256], "tokens": 512}
    other = {name: it for name, it in record.items() if name != "recall"}
    other |= {"evaluation": evaluation, "by_position": []}
    loss = {"length": 256, "loss": math.nan, "standard_error": None, "tokens": 512}
    diverged = other | {"losses": [loss]}
    yield (
        "diverged.json",
        json.dumps(diverged),
        "must have a finite number as losses[0].loss, got nan",
    )
    nothing = other | {"losses": []}
    yield "nothing.json", json.dumps(nothing), "losses must have at least one length"
    strange = record | {"config": record["config"] | {"scheme": "none such"}}
    yield (
        "strange.json",
        json.dumps(strange),
        "the scheme 'none such', which is not registered here",
    )


def test_a_damaged_record_is_named_with_a_remedy(records, tmp_path):
    for name, text, message in damaged(records):
        path = tmp_path / name
        path.write_text(text)
        done = run("report", path, "-o", tmp_path / "out")
        assert done.exit_code == 1, name
        assert done.stderr.startswith("Error: ") and len(done.stderr.splitlines()) == 1
        assert str(path) in done.stderr and message in done.stderr
        assert re.search(r"; (restore|give|import)", done.stderr), done.stderr
    assert not (tmp_path / "out").exists()


def hostile(records):
    record = json.loads((records / "recall-rope-seed-0.json").read_text())
    row = record["recall"][0]
    for changes, message in (
        ({"recall": {}}, "recall must be a list, got {}"),
        ({"recall": [[]]}, "recall[0] must be an object, got []"),
        ({"recall": [row | {"length": "64"}]}, "recall[0].length must be an integer, got '64'"),
        ({"seconds": 10**400}, "seconds must be finite, got an integer of 1329 bits"),
        ({"seconds": math.inf}, "must have a finite number as seconds, got inf"),
        ({"config": []}, "config must be an object, got []"),
        ({"config": record["config"] | {"width": "32"}}, "config.width must be an integer"),
        ({"config": record["config"] | {"width": 2**40, "heads": 1}}, "config: width / heads must"),
        ({"provenance": "me"}, "provenance must be an object, got 'me'"),
    ):
        yield json.dumps(record | changes), message
    yield '{"recall": ' * 90 + "1" + "}" * 90, "must be nested at most 64 deep"


def test_a_hostile_record_is_named_with_its_field(records, tmp_path):
    path = tmp_path / "hostile.json"
    for text, message in hostile(records):
        path.write_text(text)
        done = run("report", path, "-o", tmp_path / "out")
        assert done.exit_code == 1, message
        assert done.stderr.startswith(f"Error: {path} ") and message in done.stderr, done.stderr
    path.unlink()
    os.mkfifo(path)
    done = run("report", tmp_path, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert f"{path} must be a file, got a pipe" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", '{"step": "1", "loss": 2}', "step must be an integer, got '1'"),
        ("metrics.jsonl", '{"step": 1, "loss": "2"}', "loss must be a real number, got '2'"),
        ("metrics.jsonl", '{"step": 1, "loss": [2]}', "loss must be a real number, got [2]"),
        ("metrics.jsonl", '{"step": 1, "loss": 1' + "0" * 400 + "}", "loss must be finite"),
        ("metrics.jsonl", '{"step": 1, "seconds": {}}', "seconds must be a real number, got {}"),
        (
            "metrics.jsonl",
            '{"step": 1, "validation": [1]}',
            "validation must be an object, got [1]",
        ),
        ("metrics.jsonl", '{"step": 1, "validation": {"x": 1}}', "'x'"),
        ("config.json", '{"width": 1099511627776, "heads": 1}', "width / heads must be at most"),
        ("config.json", '{"steps": Infinity}', "must have a finite number as steps, got inf"),
        ("config.json", '{"steps": "9"}', "steps must be an integer, got '9'"),
        ("config.json", '{"scheme_options": []}', "scheme_options must be a dict, got []"),
        ("evaluation/evaluation.json", '{"model": []}', "model must be text, got []"),
    ],
)
def test_a_hostile_file_of_a_run_is_named_with_its_field(evaluated, tmp_path, name, text, message):
    folder = tmp_path / "run"
    shutil.copytree(evaluated, folder)
    (folder / name).write_text(text + "\n")
    done = run("report", folder, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {folder / name} ") and message in done.stderr, (
        done.stderr
    )


def test_a_folder_that_is_not_a_run_is_refused(evaluated, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    shutil.copytree(evaluated, tmp_path / "broken")
    (tmp_path / "broken" / "evaluation" / "evaluation.json").write_text('{"data": {}}')
    for path, message in (
        (tmp_path / "missing", "there is no file or folder"),
        (tmp_path / "empty", "is empty; give a folder that sia train or sia reproduce wrote"),
        (tmp_path / "other", "has no config.json, no record and no run in it"),
        (evaluated / "model", "holds a saved model, not a run"),
        (
            tmp_path / "broken",
            "evaluation.json cannot be read: model is missing; rerun the command",
        ),
    ):
        done = run("report", path, "-o", tmp_path / "out")
        assert done.exit_code == 1
        assert str(path) in done.stderr and message in done.stderr
    assert not (tmp_path / "out").exists()


def test_records_of_images_have_a_page_of_their_own(tmp_path):
    (tmp_path / "results").mkdir()
    write_record(image_record("textures", "rope", 0, (0.9, 0.5, 0.2, 0.1)), tmp_path / "results")
    done = run("report", tmp_path / "results", "-o", tmp_path / "page")
    assert done.exit_code == 1
    assert "sia reproduce images-page writes one from them" in done.stderr
