import pytest
import typer
from terminals import sia_on_a_terminal

from scale_invariant_attention.cli.errors import fit, plain_errors


class OwnError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("steps must be 1"), "Error: steps must be 1\n"),
        (OSError(28, "the disk is full"), "Error: the disk is full\n"),
        (FileNotFoundError(2, "No such file", "x"), "Error: [Errno 2] No such file: 'x'\n"),
        (OwnError("diverged"), "Error: diverged\n"),
    ],
)
def test_a_sentence_and_status_1(error, message, capsys):
    with pytest.raises(typer.Exit) as left, plain_errors(OwnError):
        raise error
    assert left.value.exit_code == 1
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("bug", [ZeroDivisionError(), OwnError(), BrokenPipeError()])
def test_other_exceptions_are_not_hidden(bug):
    with pytest.raises(type(bug)), plain_errors():
        raise bug


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (("train", "--scheme", "foo", "-o", "runs/x"), "alibi-p-rope"),
        (("evaluate", "no-such-model"), "sia pretrained lists"),
    ],
)
def test_long_messages_are_wrapped_at_spaces_on_a_terminal(words, last):
    lines = sia_on_a_terminal(*words).splitlines()
    assert max(map(len, lines)) <= 80
    assert last in " ".join(lines)
    assert not any(line.endswith("-") for line in lines)


def test_a_long_path_stays_in_one_piece(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    path = "/data/" + "x" * 60
    assert f"\n{path}\n" in fit(f"Error: there is no folder {path} and nothing else")
