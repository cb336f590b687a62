"""Opens trained models from the folder of a run, a checkpoint or a saved model."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files.json_files import read_json_object
from ..files.manifest import verified
from ..model import GPT, GPTConfig
from ..model.pretrained import RECORD, model_folder
from ..model.storage import MODEL_TYPE, SavedModelError, check_sizes
from .checkpoints import NAME, Checkpoint, latest_checkpoint, load_checkpoint
from .config import TrainingConfig
from .runs import CHECKPOINTS, CONFIG, METRICS, MODEL, differences, read_config


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, its path, and the configuration of its training, if known.

    `unfinished` is the step of the checkpoint it was read from, if its training has not ended.
    """

    model: GPT
    path: Path
    training: TrainingConfig | None = None
    unfinished: int | None = None


def open_trained(
    folder: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> TrainedModel:
    """Open the model of a run, of its last checkpoint if it is unfinished, or a saved model.

    `folder` is that of a run, of one of its checkpoints, or written by ``GPT.save_pretrained``; or it is
    the name of a pretrained model.
    """
    folder = model_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}; give the folder of a run or a model, or a name that sia "
            f"pretrained lists"
        )
    if is_checkpoint(folder):
        training = _training_of(folder.absolute().parents[1])
        return _at_checkpoint(load_checkpoint(folder), training, device)
    if not (folder / CONFIG).exists():
        problem = f"{folder} has no {CONFIG}, so it holds neither a run nor a model"
        raise FileNotFoundError(f"{problem}; give the folder of one")
    if not _holds_run(folder):
        _check_ours(folder)
        return TrainedModel(
            GPT.from_pretrained(folder, device=device), folder, _recorded_training(folder)
        )
    training = _training_of(folder)
    if (folder / MODEL / CONFIG).exists():
        model = GPT.from_pretrained(folder / MODEL, device=device)
        return TrainedModel(model, folder / MODEL, training)
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    if checkpoint is None:
        problem = f"the run in {folder} has saved no checkpoint yet"
        raise FileNotFoundError(f"{problem}; wait for its first, or resume it")
    return _at_checkpoint(checkpoint, training, device)


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint of a run."""
    return folder.absolute().parent.name == CHECKPOINTS and NAME.fullmatch(folder.name) is not None


def _at_checkpoint(
    checkpoint: Checkpoint, training: TrainingConfig, device: torch.device | str
) -> TrainedModel:
    config, tensors = training.model_config(), checkpoint.tensors["model"]
    try:
        check_sizes(config.to_dict(), tensors)
        model = GPT(config)
        model.load_state_dict(tensors)
    except (TypeError, ValueError, RuntimeError) as error:
        run = checkpoint.path.parents[1]
        raise ValueError(
            f"{checkpoint.path} does not fit {run / CONFIG}: {error}; restore either"
        ) from error
    unfinished = checkpoint.step if checkpoint.step < training.steps else None
    return TrainedModel(model.to(device), checkpoint.path, training, unfinished)


def _training_of(run: Path) -> TrainingConfig:
    values = read_config(run)
    try:
        return TrainingConfig.from_dict(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{run / CONFIG} is not the configuration of a run: {error}") from error


def _recorded_training(folder: Path) -> TrainingConfig | None:
    """The configuration in the record of a pretrained model; other saved models have none."""
    path = folder / RECORD
    if not path.exists():
        return None
    try:
        config = verified(read_json_object(path)).get("config")
        if not isinstance(config, dict):
            raise TypeError(f"config must be an object, got {config!r}")
        return TrainingConfig.from_dict(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not the record of a training: {error}; restore it") from error


def _holds_run(folder: Path) -> bool:
    """Whether the folder's configuration is that of a run; that of a model has a `model_type`."""
    try:
        return "model_type" not in read_config(folder)
    except ValueError:
        # Damaged: then by its other files.
        return (folder / METRICS).exists()


def _check_ours(folder: Path) -> None:
    """Name the commands for a model of transformers; other faults are found when it is opened."""
    try:
        kind = read_config(folder).get("model_type")
    except ValueError:
        return
    if kind != MODEL_TYPE:
        raise SavedModelError(
            f"{folder} holds a model of transformers, {kind!r}, not one of this package; sia generate, "
            f"sia evaluate and sia diagnose open it, and sia export {folder} --to sia -o MODEL converts "
            f"one that sia export wrote"
        )


def _comparable(config: GPTConfig) -> dict[str, Any]:
    """A configuration in which the options 16 and 16.0 are equal."""
    options = {
        name: float(value) if type(value) is int else value
        for name, value in config.scheme_options.items()
    }
    # Causal models are stored without `is_causal`.
    return config.to_dict() | {"scheme_options": options, "is_causal": config.is_causal}


def starting_weights(config: TrainingConfig) -> dict[str, Tensor]:
    """The weights that a configuration starts from; only the training lengths may differ."""
    if config.start is None:
        raise ValueError("start must name a run or a model")
    model = open_trained(config.start).model
    there, here = (_comparable(it) for it in (model.config, config.model_config()))
    different = list(differences(there | {"train_length": here["train_length"]}, here))
    if different:
        got = f"{config.start!r}: {'; '.join(different)}"
        raise ValueError(f"start must be a model like the one to train, got {got}")
    return model.state_dict()
