"""Arguments and options that several commands share, and readers of their values."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option
from typer.core import TyperCommand

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Number = TypeVar("Number", int, float)

ModelFolder = Annotated[
    Path,
    Argument(
        metavar="RUN",
        help="Folder of a run, of one of its checkpoints or of a saved model, or the name of a "
        "pretrained model.",
    ),
]
AnyModelFolder = Annotated[
    Path,
    Argument(
        metavar="RUN",
        help="Folder of a run, of one of its checkpoints, of a saved model or of a transformers model; "
        "or the name of a pretrained model.",
    ),
]
Lengths = Annotated[
    str | None,
    Option(
        metavar="N,N,...",
        help="Context lengths; by default those that the run validates at, or 256,1024,4096.",
    ),
]
Data = Annotated[
    str | None,
    Option(
        metavar="DATA",
        help="standard-library, text:PATH or shards:PATH, whose validation split is used; by "
        "default what the run was trained on.",
    ),
]
Device = Annotated[str | None, Option(help="By default a GPU if there is one, otherwise the CPU.")]
AsJson = Annotated[bool, Option("--json", help="Print the results as JSON, and nothing else.")]
Tokenizer = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help='The tokenizer of the training data, if it is not recorded: "bytes", a file of the '
        'tokenizers library ending in .json, or a tiktoken encoding such as "gpt2".',
    ),
]
DocumentStart = Annotated[
    str | None,
    Option(
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

        formatter.write_paragraph()
        with formatter.indentation():
            names = ", ".join(field.name for field in fields(TrainingConfig))
            formatter.write_text(f"Fields: {names}.")
        super().format_epilog(ctx, formatter)


# Settings of such a command: options that it does not know are fields.
TRAINING_COMMAND: dict[str, Any] = {
    "cls": TrainingCommand,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "options_metavar": "[OPTIONS] [--FIELD VALUE]...",
}


def numbers(
    option: str, text: str | None, kind: type[Number] = int, *, at_least: Number | None = None
) -> tuple[Number, ...]:
    """Read the value of an option that takes several numbers; empty if it is not given.

    >>> numbers("--lengths", "256,1024")
    (256, 1024)
    """
    try:
        found = () if text is None else tuple(map(kind, text.split(",")))
    except ValueError as error:
        noun = "whole numbers" if kind is int else "numbers"
        raise typer.BadParameter(
            f"{option} must be {noun} separated by commas, got {text!r}"
        ) from error
    if at_least is not None and min(found, default=at_least) < at_least:
        raise typer.BadParameter(f"{option} must be at least {at_least} each, got {text!r}")
    return found


def device_named(name: str | None) -> "torch.device":
    """The device of the option --device."""
    from ..training.ranks import find_device

    return or_bad_parameter(lambda: find_device(name), "--device")


def check_data_option(data: str | None) -> None:
    """Refuse a value of the option --data that does not name a corpus."""
    from ..training.training_data import check_data

    if data is not None:
        or_bad_parameter(lambda: check_data(data), "--data")


def or_bad_parameter(build: Callable[[], T], option: str | None = None) -> T:
    """Call `build`, turning its errors about values into usage errors."""
    try:
        return build()
    except (ValueError, TypeError) as error:
        hint = None if option is None else f"'{option}'"
        raise typer.BadParameter(str(error), param_hint=hint) from error
