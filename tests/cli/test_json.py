"""`--json`: commands print the record that they write, and nothing else."""

import json

import pytest
from typer.testing import CliRunner

from scale_invariant_attention.cli import app

FEW = {
    "evaluate": ("evaluation.json", "--lengths 32,64 --tokens 256 --no-positions"),
    "needle": ("needles.json", "--lengths 160 --examples 1 --options needles=1,digits=1"),
    "diagnose": ("diagnosis.json", "--lengths 64 --contexts 1"),
}


@pytest.mark.parametrize("command", FEW)
def test_prints_the_record_alone(command, trained, tmp_path):
    name, options = FEW[command]
    words = [command, str(trained), *options.split(), "-o", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.stdout == (tmp_path / name).read_text()
    assert "provenance" in json.loads(done.stdout)


@pytest.mark.parametrize("command", FEW)
def test_errors_leave_standard_output_empty(command, tmp_path):
    done = CliRunner().invoke(app, [command, str(tmp_path / "nothing"), "--json"])
    assert done.exit_code != 0
    assert done.stdout == ""
    assert "nothing" in done.stderr
