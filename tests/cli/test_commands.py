import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from command_line import parse
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.cli.commands import COMMANDS

MODULE = [sys.executable, "-m", "scale_invariant_attention.cli"]
SCRIPT = [str(Path(sys.executable).parent / "sia")]

HEAVY = {"torch", "numpy", "transformers", "matplotlib", "tokenizers", "datasets", "rich"}


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
    for command, sentence in COMMANDS.items():
        assert re.search(rf"\n  {command} +{re.escape(sentence)}\n", run.output)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    run = CliRunner().invoke(app, [command, "--help"], prog_name="sia")
    assert run.exit_code == 0
    assert run.output.startswith(f"Usage: sia {command} ")
    assert "--install-completion" not in run.output


def all_commands(command, *words):
    """The words of a command and of all commands below it."""
    yield words
    for word in getattr(command, "commands", {}):
        yield from all_commands(command.get_command(None, word), *words, word)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_examples_that_parse_and_fit_80_columns(command):
    group = typer.main.get_command(app)
    for words in all_commands(group.get_command(None, command), command):
        printed = CliRunner().invoke(app, [*words, "--help"], prog_name="sia").output
        assert max(map(len, printed.splitlines())) <= 80
        _, _, examples = printed.rpartition("\n  Example")
        lines = examples.splitlines()[1:]
        assert lines, words
        for line in lines:
            assert line.startswith(f"    sia {words[0]}")
            parsed = shlex.split(line)[1:]
            parse(parsed[: parsed.index(">")] if ">" in parsed else parsed)


@pytest.mark.parametrize(("typed", "expected"), [("e", {"evaluate", "extend", "export"})])
def test_shells_complete_commands_without_importing_them(typed, expected):
    # What the script of --show-completion does in bash.
    variables = {"_SIA_COMPLETE": "complete_bash", "COMP_WORDS": f"sia {typed}", "COMP_CWORD": "1"}
    script = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print(*{HEAVY - {'rich'}} & set(sys.modules), file=sys.stderr))\n"
        "from scale_invariant_attention.cli import main\n"
        "main()"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert set(run.stdout.split()) == expected
    assert not run.stderr.strip()


def test_a_misspelt_command_gets_a_suggestion():
    run = CliRunner().invoke(app, ["docter"])
    assert run.exit_code == 2
    assert "No such command 'docter'. Did you mean 'doctor'?" in run.output


def modules_after(*arguments):
    """The modules that a command has imported when it ends."""
    script = (
        "import sys\n"
        "from scale_invariant_attention.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", script, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], []], ids=["help", "nothing"])
def test_the_list_of_commands_imports_nothing_heavy(arguments):
    assert not HEAVY & modules_after(*arguments)


def test_help_shows_the_defaults_of_the_library():
    """Choices are repeated in the signatures, which must not import the library."""
    from scale_invariant_attention.analysis.ranges import DECADE
    from scale_invariant_attention.data import PUBLISHED
    from scale_invariant_attention.data.encoding import DOCUMENT_START
    from scale_invariant_attention.data.making_shards import SHARD_TOKENS
    from scale_invariant_attention.lab.benchmark.report import BACKEND
    from scale_invariant_attention.lab.trained_models import LENGTHS

    def help_of(*command):
        return " ".join(CliRunner().invoke(app, [*command, "--help"]).output.split())

    assert f"[default: {BACKEND}]" in help_of("bench", "ratios")
    assert f"[default: {DECADE}]" in help_of("diagnose")
    assert ",".join(map(str, LENGTHS)) in help_of("evaluate")
    assert f"[default: {DOCUMENT_START}]" in help_of("data", "shards")
    assert f"[default: {SHARD_TOKENS};" in help_of("data", "shards")
    assert " or ".join(PUBLISHED) in help_of("data", "fetch")


LIGHT = [
    ["data"],
    *(["data", name] for name in ("show", "shards", "fetch", "check")),
    *([name] for name in ("bench", "diagnose", "doctor", "evaluate", "export", "figures")),
    *([name] for name in ("generate", "needle", "pretrained", "report", "reproduce")),
]


@pytest.mark.parametrize("command", LIGHT, ids=" ".join)
def test_the_help_of_these_commands_does_not_import_torch(command):
    assert not {"torch", "numpy"} & modules_after(*command, "--help")
