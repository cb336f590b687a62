"""sia extend: a saved model, a text, and a folder to load the extended model from."""

import json
import sys
from pathlib import Path

import pytest
from hugging_face_models import tiny
from transformers import AutoModelForCausalLM, BloomConfig, GPT2Config
from typer.testing import CliRunner

from scale_invariant_attention.cli.commands import app
from scale_invariant_attention.cli.extend import ROTARIES, _verdict
from scale_invariant_attention.evaluation.losses import LengthLoss
from scale_invariant_attention.huggingface import rotary
from scale_invariant_attention.huggingface.extension import Candidate, Extension, Losses

LENGTHS = (256, 1024, 4096)
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
    (chosen,) = (line for line in result.output.splitlines() if line.rstrip().endswith("  chosen"))
    assert chosen.startswith(f"{found['chosen']['rotary']}, tau {found['chosen']['tau']:g} ")
    assert "At the training length the extension costs" in result.output
    assert "bytes." in result.output.partition("Candidates")[0]
    assert str(folder / "out" / "model") in result.output
    model = AutoModelForCausalLM.from_pretrained(folder / "out" / "model")
    assert model.config._attn_implementation == "scale_invariant"
    assert run(*words).output == result.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--factor", "64"], "text must have at least"),
        (["--fine-tune", "40"], "fine_tune must be more than 5,120 tokens, got 40"),
    ],
)
def test_mistakes_are_named(folder, changes, message):
    words = (folder / "model", "--text", folder / "sample.txt", "-o", folder / "not")
    result = run(*words, *OPTIONS, *changes)
    assert result.exit_code == 1
    assert message in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--rotaries", "slowest"], "got 'slowest' (did you mean 'slow'?)"),
        (["--taus", "ten"], "--taus must be numbers"),
        (["--taus", "10,0"], "--taus must be greater than 0, got 0.0"),
        (["--factor", "1"], "--factor must be at least 2, got 1"),
        (["--text", "nowhere"], "--text must be a file or folder that exists, or standard-library"),
    ],
)
def test_mistakes_are_found_before_slow_imports(folder, changes, message, monkeypatch):
    # Any import from it now fails.
    monkeypatch.setitem(sys.modules, "transformers", None)
    words = (folder / "model", "--text", folder / "sample.txt", "-o", folder / "not")
    result = run(*words, *OPTIONS, *changes)
    assert result.exit_code == 2
    assert message in result.output and "Traceback" not in result.output


def test_the_names_of_rotaries_are_those_of_the_library():
    assert set(ROTARIES) == rotary.ROTARIES.keys()


def test_a_missing_tokenizer_is_named(folder):
    tiny(max_position_embeddings=16).save_pretrained(folder / "words")
    result = run(folder / "words", "--text", folder / "sample.txt", "-o", folder / "not", *OPTIONS)
    assert result.exit_code == 1
    assert "has no tokenizer.json to encode --text with" in result.output
    assert "--data" not in result.output


@pytest.mark.parametrize("kind", [BloomConfig, GPT2Config])
def test_models_that_cannot_be_converted_are_refused(kind, folder):
    config = kind(hidden_size=32, n_layer=1, n_head=2, vocab_size=256)
    name = config.model_type
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    result = run(folder / name, "--text", folder / "sample.txt", "-o", folder / "not", *OPTIONS)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert "has no rotary positions to replace" in line


def found(after, fine_tuned=None):
    """An extension with these losses at 256, 1,024 and 4,096 tokens, and 1.0, 2.0 and 3.0 before."""
    before, after, fine_tuned = (
        losses and Losses(tuple(map(LengthLoss, LENGTHS, losses, [None] * 3, LENGTHS)), (), ())
        for losses in ((1.0, 2.0, 3.0), after, fine_tuned)
    )
    chosen = Candidate("slow", 10.0, after)
    return Extension(256, 16, (chosen,), chosen, before, after, fine_tuned, Path("model"))


def test_the_verdict_says_how_far_an_extension_reaches():
    good = _verdict(found((1.01, 0.99, 1.02)))
    assert "costs +0.010 nats per token." in good
    assert good.endswith(
        "Up to 4,096 tokens the loss stays within 0.05 nats of its value at that length."
    )
    short = _verdict(found((1.22, 1.2, 2.25)))
    assert "Up to 1,024 tokens" in short and ", and not beyond.\nThe extension falls short" in short
    assert (
        "--fine-tune TOKENS and --rotaries slow,yarn" in short
        and "--rotaries slow-beyond,yarn-beyond,dynamic" in short
    )
    dear = _verdict(found((1.22, 1.2, 1.2)))
    assert "That costs much: try --fine-tune TOKENS" in dear
    tuned = _verdict(found((1.22, 1.2, 2.25), (1.03, 0.95, 0.92)))
    assert "costs +0.030 nats per token, fine-tuning included.\nUp to 4,096 tokens" in tuned
    assert "try" not in tuned


def test_a_folder_without_a_model_is_named(folder):
    result = run(folder, "--text", folder / "sample.txt", "-o", folder / "not")
    assert result.exit_code == 1
    assert "has no config.json" in result.output
