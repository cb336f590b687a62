"""sia extend: a saved model, a text, and a folder to load the extended model from."""

import json

import pytest
from hugging_face_models import tiny
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from scale_invariant_attention.cli.commands import app

OPTIONS = ["--factor", "4", "--rotaries", "yarn,own", "--taus", "10,1", "--tokens", "128"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extend")
    tiny(max_position_embeddings=16, vocab_size=256).save_pretrained(folder / "model")
    lines = (f"line {number}: {number * number}\n" for number in range(120))
    (folder / "sample.txt").write_text("".join(lines))
    return folder


def run(*words):
    return CliRunner().invoke(app, ["extend", *map(str, words)], prog_name="sia")


def test_it_extends_prints_and_saves(folder):
    words = (folder / "model", "--text", folder / "sample.txt", "-o", folder / "out", *OPTIONS)
    result = run(*words)
    assert result.exit_code == 0, result.output
    found = json.loads((folder / "out" / "extension.json").read_text())
    before = found["losses"]["before"]["by_length"]
    assert [row["length"] for row in before] == [16, 64]
    assert f"{before[0]['loss']:.3f}" in result.output
    assert f"Chosen, for the lowest mean: {found['chosen']['rotary']}" in result.output
    assert "At the training length the extension costs" in result.output
    assert str(folder / "out" / "model") in result.output
    model = AutoModelForCausalLM.from_pretrained(folder / "out" / "model")
    assert model.config._attn_implementation == "scale_invariant"
    assert run(*words).output == result.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--factor", "64"], "text must have at least"),
        (["--rotaries", "yarm"], "rotaries must be one or more of"),
        (["--taus", "ten"], "--taus must be numbers"),
        (["--text", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_named(folder, changes, message):
    words = (folder / "model", "--text", folder / "sample.txt", "-o", folder / "not")
    result = run(*words, *OPTIONS, *changes)
    assert result.exit_code == 1
    assert message in result.output and "Traceback" not in result.output


def test_a_folder_without_a_model_is_named(folder):
    result = run(folder, "--text", folder / "sample.txt", "-o", folder / "not")
    assert result.exit_code == 1
    assert "has no config.json" in result.output
