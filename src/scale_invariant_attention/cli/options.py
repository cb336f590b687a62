"""Arguments and options that several commands share, and readers of their values."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

T = TypeVar("T")

ModelFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="Folder of a run, of one of its checkpoints, or of a saved model."
    ),
]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...",
        help="Context lengths; by default those that the run validates at, or 256,1024,4096.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="standard-library, text:FOLDER or shards:FOLDER, whose validation split is used; by "
        "default what the run was trained on.",
    ),
]
Device = Annotated[
    str | None, typer.Option(help="By default a GPU if there is one, otherwise the CPU.")
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help='The tokenizer of the training data, if it is not recorded: "bytes", a file of the '
        'tokenizers library ending in .json, or a tiktoken encoding such as "gpt2".',
    ),
]
DocumentStart = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help="The token of a tokenizer file that starts every document; by default the one recorded "
        "with the data, or <|endoftext|>.",
    ),
]


class TrainingCommand(TyperCommand):
    """A command that also takes fields of ``TrainingConfig``, and lists them at the end of its help."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the list of fields, importing them only now."""
        from dataclasses import fields

        from ..training import TrainingConfig

        self.epilog = "Fields: " + ", ".join(field.name for field in fields(TrainingConfig)) + "."
        super().format_epilog(ctx, formatter)


# Settings of such a command: options that it does not know are fields.
TRAINING_COMMAND: dict[str, Any] = {
    "cls": TrainingCommand,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "options_metavar": "[OPTIONS] [--FIELD VALUE]...",
}


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read the value of an option that takes whole numbers.

    >>> whole_numbers("--lengths", "256,1024")
    (256, 1024)
    """
    try:
        return tuple(map(int, text.split(",")))
    except ValueError as error:
        raise ValueError(
            f"{option} must be whole numbers with commas between them, got {text!r}"
        ) from error


def or_bad_parameter(build: Callable[[], T]) -> T:
    """Call `build`, turning its errors about values into usage errors."""
    try:
        return build()
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
