"""`sia evaluate`: the tables, the record and the figure of a trained model."""

import json
import shutil
import sys

import pytest
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.data import SameTokens, standard_library
from scale_invariant_attention.evaluation import loss_by_length
from scale_invariant_attention.model import GPT, GPTConfig


def run(*words):
    return CliRunner().invoke(app, ["evaluate", *map(str, words)])


def rows(output):
    return [line.split() for line in output.splitlines() if line.strip()]


def test_tables_record_and_figure(trained, tmp_path):
    done = run(trained, "--lengths", "32,64,256", "--tokens", 1100, "-o", tmp_path)
    assert done.exit_code == 0, done.output
    found = rows(done.stdout)
    assert found[0][:2] == ["scale-invariant-p-rope,", "trained"]
    assert ["length", "loss", "standard", "error", "tokens"] in found
    same = SameTokens(standard_library("validation"), (32, 64, 256), at_most=1100)
    expected = loss_by_length(GPT.from_pretrained(trained / "model"), same)
    for row in expected:
        error = f"{row.standard_error:.4f}"
        assert [str(row.length), f"{row.loss:.4f}", error, "1,024"] in found
    record = json.loads((tmp_path / "evaluation.json").read_text())
    assert [row["loss"] for row in record["by_length"]] == [row.loss for row in expected]
    assert record["data"]["fingerprint"] == standard_library("validation").fingerprint()
    assert record["model"] == str(trained / "model")
    assert {"commit", "torch", "cpu"} <= record["provenance"].keys()
    positions = record["by_position"]
    assert positions[0]["start"] == 1
    assert positions[-1]["stop"] == 257
    assert positions[0]["documents"] == 4
    assert [f"{positions[-1]['start']}-256", f"{positions[-1]['loss']:.4f}"] == next(
        line for line in found if line[0].endswith("-256")
    )[:2]
    assert (tmp_path / "loss-by-position.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.splitlines()[-2:] == [
        str(tmp_path / "evaluation.json"),
        str(tmp_path / "loss-by-position.png"),
    ]


def test_defaults_come_from_the_run(trained):
    done = run(trained, "--tokens", 256, "--no-positions")
    assert done.exit_code == 0, done.output
    record = json.loads((trained / "evaluation" / "evaluation.json").read_text())
    assert [row["length"] for row in record["by_length"]] == [32, 64]
    assert record["by_position"] == []
    assert "By position" not in done.stdout
    assert not (trained / "evaluation" / "loss-by-position.png").exists()


def test_an_unfinished_run_says_so(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000008")
    done = run(tmp_path / "run", "--tokens", 256, "--no-positions")
    assert done.exit_code == 0, done.output
    first = done.stdout.splitlines()[0]
    assert first.endswith("checkpoints/step-00000006: unfinished, at step 6 of 8")


def test_results_of_a_checkpoint_stand_next_to_the_checkpoints(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000006"
    before = sorted(checkpoint.iterdir())
    done = run(checkpoint, "--tokens", 256, "--no-positions")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].endswith("step-00000006: unfinished, at step 6 of 8")
    assert (tmp_path / "run" / "evaluation-step-00000006" / "evaluation.json").exists()
    assert sorted(checkpoint.iterdir()) == before


def test_without_matplotlib_only_the_figure_is_missing(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run(trained, "--tokens", 256, "-o", tmp_path)
    assert done.exit_code == 0
    assert "No figure: figures need matplotlib" in done.stdout
    assert (tmp_path / "evaluation.json").exists()


def test_another_text(trained, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for number in range(60):
        (text / f"{number}.txt").write_text(f"{number} green bottles hanging on the wall. " * 9)
    command = (trained, "--data", f"text:{text}", "-o", tmp_path / "out")
    done = run(*command, "--lengths", "32,128")
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert record["data"]["name"] == f"text:{text}"
    done = run(*command, "--lengths", "512")
    assert done.exit_code == 2
    assert "--lengths must be below 3" in done.stderr
    assert "--no-positions" in done.stderr
    assert run(*command, "--lengths", "512", "--no-positions").exit_code == 0


def test_a_saved_model_with_another_vocabulary_needs_data(tmp_path):
    GPT(GPTConfig(vocab_size=300, layers=1, width=32, heads=2)).save_pretrained(tmp_path / "model")
    done = run(tmp_path / "model")
    assert done.exit_code == 1
    assert "--data must be given" in done.stderr
    done = run(tmp_path / "model", "--data", "standard-library", "--lengths", 64, "--tokens", 640)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lengths", "64,x"), "--lengths must be whole numbers separated by commas"),
        (("--lengths", "0"), "--lengths must be at least 1 each, got '0'"),
        (("--lengths", "64,100", "--tokens", "512"), "need a multiple of 1600 tokens to score"),
        (("--data", "books"), "data must be 'standard-library'"),
        (("--device", "gpu"), "device must be a name"),
    ],
)
def test_user_errors_are_one_sentence(trained, words, message):
    done = run(trained, *words)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert message in done.stderr.splitlines()[-1]


def test_a_folder_without_a_model(tmp_path):
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "neither a run nor a model" in done.stderr


def test_a_diverged_model_is_an_error(tmp_path):
    model = GPT(GPTConfig(vocab_size=256, layers=1, width=32, heads=2))
    model.head.weight.data.fill_(float("nan"))
    model.save_pretrained(tmp_path / "model")
    done = run(tmp_path / "model", "--lengths", 64, "--tokens", 640)
    assert done.exit_code == 1
    assert "the loss is not finite" in done.stderr
    assert not (tmp_path / "model" / "evaluation" / "evaluation.json").exists()


def test_an_earlier_result_is_kept_unless_it_is_the_same(trained, tmp_path):
    words = ("--tokens", 256, "-o", tmp_path)
    assert "Earlier results" not in run(trained, *words, "--lengths", "32,64").stdout
    first = (tmp_path / "evaluation.json").read_text()
    picture = (tmp_path / "loss-by-position.png").read_bytes()
    assert "Earlier results" not in run(trained, *words, "--lengths", "32,64").stdout
    assert not (tmp_path / "evaluation-1.json").exists()
    first = (tmp_path / "evaluation.json").read_text()
    done = run(trained, *words, "--lengths", "32")
    assert f"Earlier results are kept in {tmp_path / 'evaluation-1.json'}\n" in done.stdout
    assert (tmp_path / "evaluation-1.json").read_text() == first
    assert (tmp_path / "loss-by-position-1.png").read_bytes() == picture
    assert len(json.loads((tmp_path / "evaluation.json").read_text())["by_length"]) == 1
    run(trained, *words, "--lengths", "64")
    assert (tmp_path / "evaluation-2.json").exists()
