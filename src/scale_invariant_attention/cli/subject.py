"""What the commands that measure a trained model have in common: which model, on what, where to."""

from pathlib import Path
from typing import Annotated

import typer

from ..training import TrainedModel
from ..training.trained import is_checkpoint
from ..training.training_data import STANDARD_LIBRARY

LENGTHS = (256, 1024, 4096)

Subject = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The folder of a run, of one of its checkpoints, or of a saved model."
    ),
]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...", help="By default those that the run validates at, or 256,1024,4096."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help=f"{STANDARD_LIBRARY}, text:FOLDER or shards:FOLDER; by default what the run was "
        f"trained on. Its validation split is used.",
    ),
]
Device = Annotated[str | None, typer.Option(help="By default a GPU if there is one, else the CPU.")]


def own_lengths(trained: TrainedModel) -> tuple[int, ...]:
    """Those that a run validates at."""
    return LENGTHS if trained.training is None else trained.training.validation_lengths


def chosen_lengths(given: str | None, own: tuple[int, ...]) -> tuple[int, ...]:
    """Those that were given, or else a model's own."""
    if given is None:
        return own
    try:
        return tuple(map(int, given.split(",")))
    except ValueError as error:
        raise ValueError(
            f"--lengths must be whole numbers with commas between them, got {given!r}"
        ) from error


def own_data(trained: TrainedModel) -> str:
    """What a model was trained on, as far as it is known."""
    if trained.training is not None:
        return trained.training.data
    if trained.model.config.vocab_size == 256:
        return STANDARD_LIBRARY
    raise ValueError(
        f"--data must be given for {trained.path}: a saved model does not tell what it was trained on"
    )


def beside(folder: Path, name: str) -> Path:
    """A folder for results: beside a checkpoint, whose own is as it was saved, and inside any other."""
    if is_checkpoint(folder):
        return folder.absolute().parents[1] / f"{name}-{folder.name}"
    return folder / name


def described(trained: TrainedModel) -> str:
    """A model in a line."""
    config = trained.model.config
    at = "" if config.train_length is None else f", trained at {config.train_length:,} tokens"
    state = (
        ""
        if trained.training is None or trained.unfinished is None
        else f": unfinished, at step {trained.unfinished:,} of {trained.training.steps:,}"
    )
    return f"{config.scheme}{at}, from {trained.path}{state}"
