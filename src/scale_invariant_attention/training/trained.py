"""A trained model from the folder of a run, a checkpoint or a saved model, with what is known of it."""

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..model import GPT, GPTConfig
from .checkpoints import NAME, Checkpoint, latest_checkpoint, load_checkpoint
from .config import TrainingConfig
from .runs import CHECKPOINTS, CONFIG, MODEL, differences, read_config


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, where it was found, and how it was trained, where that is known.

    `unfinished` is the step of the checkpoint that it was read from, if its training has not ended.
    """

    model: GPT
    path: Path
    training: TrainingConfig | None = None
    unfinished: int | None = None


def open_trained(
    folder: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> TrainedModel:
    """The model of a run, that of its last checkpoint while it is unfinished, or a saved model.

    Args:
        folder: of a run, one of its checkpoints, or one that ``GPT.save_pretrained`` wrote.
        device: where to put it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; give that of a run or of a model")
    if is_checkpoint(folder):
        training = _training_of(folder.absolute().parents[1])
        return _at_checkpoint(load_checkpoint(folder), training, device)
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(
            f"{folder} holds neither a run nor a model: it has no {CONFIG}; give the folder of one"
        )
    if not _holds_run(folder):
        return TrainedModel(GPT.from_pretrained(folder, device=device), folder)
    training = _training_of(folder)
    if (folder / MODEL / CONFIG).exists():
        model = GPT.from_pretrained(folder / MODEL, device=device)
        return TrainedModel(model, folder / MODEL, training)
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    if checkpoint is None:
        raise FileNotFoundError(
            f"the run in {folder} has saved no checkpoint yet; wait for its first, or go on with it"
        )
    return _at_checkpoint(checkpoint, training, device)


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is that of a checkpoint of a run."""
    return folder.absolute().parent.name == CHECKPOINTS and NAME.fullmatch(folder.name) is not None


def _at_checkpoint(
    checkpoint: Checkpoint, training: TrainingConfig, device: torch.device | str
) -> TrainedModel:
    model = GPT(training.model_config())
    model.load_state_dict(checkpoint.tensors["model"])
    unfinished = checkpoint.step if checkpoint.step < training.steps else None
    return TrainedModel(model.to(device), checkpoint.path, training, unfinished)


def _training_of(run: Path) -> TrainingConfig:
    try:
        return TrainingConfig.from_dict(read_config(run))
    except TypeError as error:
        raise ValueError(f"{run / CONFIG} is not the configuration of a run: {error}") from error


def _holds_run(folder: Path) -> bool:
    """Whether the configuration is that of a run; that of a model says that it is one."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(config, dict) and "model_type" not in config


def _comparable(config: GPTConfig) -> dict[str, Any]:
    """A configuration in which an option of 16 is one of 16.0."""
    options = {
        name: float(value) if type(value) is int else value
        for name, value in config.scheme_options.items()
    }
    return config.to_dict() | {"scheme_options": options}


def starting_weights(config: TrainingConfig) -> dict[str, Tensor]:
    """Those that a configuration starts from, of a model that differs in its trained length at most."""
    if config.start is None:
        raise ValueError("start must name a run or a model")
    found = open_trained(config.start)
    there, here = (_comparable(it) for it in (found.model.config, config.model_config()))
    different = list(differences(there | {"train_length": here["train_length"]}, here))
    if different:
        raise ValueError(
            f"start must be a model like the one to train, got {config.start!r}: {'; '.join(different)}"
        )
    return found.model.state_dict()
