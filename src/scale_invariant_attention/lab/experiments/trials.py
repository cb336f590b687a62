"""A trial: a training and its evaluation, and the one JSON file that is kept of both.

It is what tables and figures are made from; the folder of the training may be thrown away.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...files import check_writable
from ...model import GPT
from ...provenance import provenance
from ...training import TrainingConfig, read_metrics
from .evaluations import Evaluation
from .records import Record, read_record, shortened, write_record


@dataclass(frozen=True)
class Trial:
    """A training and its evaluation, with a name, which is that of its folder and of its record.

    If `trained_as` is given, the model is that of another trial, which reads as `config` has it. If
    `starts_from` is given, it is trained from the model of that trial, whose name `config.start` is.
    """

    name: str
    config: TrainingConfig
    evaluation: Evaluation
    trained_as: "Trial | None" = None
    starts_from: "Trial | None" = None

    @property
    def training(self) -> "Trial":
        """The trial that is trained for this one: mostly itself."""
        return self.trained_as or self

    @property
    def trainings(self) -> "list[Trial]":
        """What has to be trained for this one, in that order: mostly itself alone."""
        before = self.training.starts_from
        return [*(before.trainings if before else ()), self.training]

    @property
    def steps(self) -> int:
        """Those of all trainings."""
        return sum(training.config.steps for training in self.trainings)


def recorded(trial: Trial, results: Path) -> Record | None:
    """The record of a trial, if there is one."""

    def asked_for(record: Record) -> Record:
        # Fields that are newer than the record have the defaults.
        config = TrainingConfig.from_dict(record["config"]).to_dict()
        return {"config": config, "evaluation": record["evaluation"]}

    return read_record(results / f"{trial.name}.json", _asked_for(trial), asked_for)


def check_recordable(trial: Trial, results: Path) -> None:
    """Refuse, before hours of training, what could not be evaluated or recorded after it."""
    check_writable(results)
    trial.evaluation.check(trial.config)


def make_record(
    trial: Trial, model: GPT, folder: Path, results: Path, device: torch.device
) -> Record:
    """Evaluate a model and write the record of its trial, with the metrics of its training."""
    metrics = read_metrics(folder)
    if trial.trained_as is not None:
        model = _reading_as(trial.config, model, device)
    # A model that was trained in parts is given back on the CPU.
    model = model.to(device)
    with trial.config.autocast(device):
        measured = trial.evaluation.measure(model, trial.config, device)
    record = _asked_for(trial) | {
        "trained_as": trial.training.name,
        **measured,
        "training": {
            name: shortened(line[name] for line in metrics if name in line)
            for name in ("loss", "gradient_norm")
        },
        "validation": [_validation(trial, line) for line in metrics if "validation" in line],
        "seconds": round(sum(line.get("seconds", 0.0) for line in metrics), 1),
        "provenance": provenance(),
    }
    return write_record(results / f"{trial.name}.json", record)


def _reading_as(config: TrainingConfig, model: GPT, device: torch.device) -> GPT:
    """The same weights with another scheme."""
    other = GPT(config.model_config(), backend=config.backend)
    other.load_state_dict(model.state_dict())
    return other.to(device)


def _validation(trial: Trial, line: Mapping[str, Any]) -> dict[str, Any]:
    """A validation during training; of a model trained as another, at the trained length alone."""
    own = trial.trained_as is None
    trained = str(trial.config.length)
    losses = {n: loss for n, loss in line["validation"].items() if own or n == trained}
    return {"step": line["step"], "validation": losses}


def _asked_for(trial: Trial) -> Record:
    return {"config": trial.config.to_dict(), "evaluation": asdict(trial.evaluation)}
