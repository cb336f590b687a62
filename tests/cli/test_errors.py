import pytest
import typer

from scale_invariant_attention.cli.errors import plain_errors


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
