"""Errors that users can fix, printed as one sentence, and the status that a command then ends with."""

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from .printable import printable

# The status of a process that was interrupted.
INTERRUPTED = 130


@contextmanager
def plain_errors(*others: type[Exception]) -> Iterator[None]:
    """Print wrong values, file errors, missing packages or backends and `others`, and exit with 1.

    Any other exception is a bug and keeps its traceback.
    """
    fixable: tuple[type[Exception], ...] = (
        *(ValueError, TypeError, OSError, ModuleNotFoundError, NotImplementedError),
        *others,
    )
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of the output closed the pipe
    except fixable as error:
        typer.echo(fit(f"Error: {sentence(error)}"), err=True)
        raise typer.Exit(1) from error


@contextmanager
def fitted_usage_errors() -> Iterator[None]:
    """Wrap the messages of refused parameters like all other errors."""
    try:
        yield
    except typer.BadParameter as error:
        prefix = "Error: "
        text = fit(prefix + error.format_message()).removeprefix(prefix)
        error.format_message = lambda: text  # type: ignore[method-assign]
        raise


@contextmanager
def resumable() -> Iterator[None]:
    """Say on an interrupt that rerunning the command resumes it, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Interrupted. Rerun the same command to resume.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def fit(text: str) -> str:
    """Wrap a message at spaces to the width of the terminal; unchanged if it goes to a file or a pipe.

    Words, such as paths without spaces, are never split.
    """
    if not sys.stderr.isatty():
        return text
    from rich.console import Console

    # Of standard error: standard output may go to a file.
    width = Console(stderr=True).width
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def sentence(error: Exception) -> str:
    """The printable message of an error, without the system's error number.

    >>> sentence(OSError(28, "the disk is full; free some space"))
    'the disk is full; free some space'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return printable(error.strerror)
    return printable(str(error))
