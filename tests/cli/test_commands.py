import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scale_invariant_attention.cli import app

MODULE = [sys.executable, "-m", "scale_invariant_attention.cli"]
SCRIPT = [str(Path(sys.executable).parent / "sia")]


@pytest.mark.parametrize("command", [MODULE, SCRIPT], ids=["module", "script"])
def test_version_is_that_of_the_installed_package(command):
    run = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"scale-invariant-attention {version('scale-invariant-attention')}\n"
    assert run.stderr == ""


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_commands(arguments):
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0
    assert "Usage:" in run.output
    for command in ("bench", "data", "demo", "doctor", "evaluate", "generate", "report", "train"):
        assert f"\n  {command} " in run.output


def test_an_unknown_command_is_named():
    run = CliRunner().invoke(app, ["docter"])
    assert run.exit_code == 2
    assert "docter" in run.output
