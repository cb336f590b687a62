"""What users can mend is told in a sentence, and ends a command with 1."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def plain_errors(*others: type[Exception]) -> Iterator[None]:
    """For wrong values, files and missing packages, and `others`; what else goes wrong is a bug."""
    mendable: tuple[type[Exception], ...] = (
        *(ValueError, TypeError, OSError, ModuleNotFoundError),
        *others,
    )
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads the output has had enough
    except mendable as error:
        typer.echo(f"Error: {sentence(error)}", err=True)
        raise typer.Exit(1) from error


def sentence(error: Exception) -> str:
    """What an error says, without the number that the system has for it.

    >>> sentence(OSError(28, "the disk is full; free some space"))
    'the disk is full; free some space'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error)
