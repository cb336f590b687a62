"""Encoders on the command line: trained, and refused by what is about the next token."""

import pytest
from tiny_training import options
from typer.testing import CliRunner

from scale_invariant_attention.cli import app


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of an encoder's training."""
    folder = str(tmp_path_factory.mktemp("encoder") / "run")
    words = options(task="masked-text", vocab_size=257, steps=2, validate_every=0)
    done = CliRunner().invoke(app, ["train", "-o", folder, *words])
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("command", ["evaluate", "diagnose", "needle", "generate", "export"])
def test_commands_for_the_next_token_refuse_an_encoder(run, command, tmp_path):
    pytest.importorskip("transformers")
    words = {
        "generate": ["--tokens", "1,2", "--max-new-tokens", "2"],
        "export": ["--to", "hf", "-o", str(tmp_path / "exported")],
    }
    done = CliRunner().invoke(app, [command, run, *words.get(command, [])])
    assert done.exit_code != 0
    assert "is_causal=False" in " ".join(done.stderr.split())
    assert "Traceback" not in done.output


def test_a_model_for_the_next_token_does_not_start_from_an_encoder(run, tmp_path):
    words = options(task="copy", vocab_size=257, steps=2, validate_every=0)
    done = CliRunner().invoke(app, ["train", "-o", str(tmp_path / "run"), "--start", run, *words])
    assert done.exit_code != 0
    assert "is_causal is False there, True here" in " ".join(done.stderr.split())
