"""Trials, each of which trains a model, evaluates it and leaves one record."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...model import GPT
from ...provenance import provenance
from ...training import TrainingConfig, read_metrics, train
from ...training.checkpoints import latest_checkpoint
from ...training.loop import Progress
from ...training.runs import CHECKPOINTS, METRICS, check_same_run, differences
from .._schema import to_json
from ..measurements import Provenance
from ..records import Record, TrainingCurve, TrainingRecord, Validation, read_record, write_record
from .evaluations import Evaluation

# Called after every step of a training.
Watch = Callable[[Progress], object]


def ignore(*news: object) -> None:
    """Take no notice: the default of callbacks."""


class DifferentRecordError(ValueError):
    """A file records another trial than the one of its name."""


class Trial(ABC):
    """A model to train and an evaluation of it; the record has the same name."""

    name: str
    config: Any
    evaluation: Evaluation

    @property
    @abstractmethod
    def training_name(self) -> str:
        """Name of the training whose weights are measured, and of its folder."""

    @property
    @abstractmethod
    def training_steps(self) -> Mapping[str, int]:
        """Steps of each training that the trial needs, by name, in order."""

    @property
    def printed_config(self) -> Mapping[str, Any]:
        """Configuration, as `--print-config` shows it."""
        return dict(to_json(self.config))

    @abstractmethod
    def check(self) -> None:
        """Refuse what could not be evaluated, before hours of training."""

    def check_folders(self, runs: Path) -> None:  # noqa: B027  most have nothing to refuse
        """Refuse folders inside `runs` that belong to other trainings, before hours of training."""

    @abstractmethod
    def train(
        self,
        runs: Path,
        *,
        device: torch.device | str | None = None,
        watch: Watch = ignore,
        notice: Callable[[str], object] = ignore,
    ) -> Any:
        """Train the model, or resume its training, in folders inside `runs`."""

    @abstractmethod
    def steps_trained(self, runs: Path) -> int:
        """Steps done so far, of all its trainings."""

    def news(self, runs: Path) -> str:
        """How far its trainings are, in words."""
        return f"step {self.steps_trained(runs):,} of {sum(self.training_steps.values()):,}"

    @abstractmethod
    def measure(self, model: Any, runs: Path, device: torch.device) -> Record[Any]:
        """Evaluate the trained model."""


def find_record(trial: Trial, results: Path) -> Record[Any] | None:
    """The record of a trial, None if there is none; the record of another trial is an error."""
    path = results / f"{trial.name}.json"
    if not path.exists():
        return None
    record = read_record(path, type(trial.config))
    check_record(record, trial, path)
    return record


def check_record(record: Record[Any], trial: Trial, path: Path) -> None:
    """Refuse the record in a file if it is of another trial than the one of its name."""
    recorded, wanted = (
        {"config": to_json(it.config), "evaluation": to_json(it.evaluation)}
        for it in (record, trial)
    )
    different = list(differences(recorded, wanted))
    if different:
        raise DifferentRecordError(
            f"{path} is the record of another trial: {'; '.join(different)}. Give another folder "
            f"for the records with --results, or move the file elsewhere"
        )


def record_trial(
    trial: Trial, model: Any, runs: Path, results: Path, device: torch.device
) -> Record[Any]:
    """Evaluate the trained model of a trial and write its record."""
    record = trial.measure(model, runs, device)
    write_record(record, results)
    return record


@dataclass(frozen=True)
class TrainingTrial(Trial):
    """A GPT that is trained and evaluated.

    With `trained_as`, the weights are those of another trial, read with the scheme of `config`. With
    `starts_from`, training starts from the model of that trial, whose name is ``config.start``.
    """

    name: str
    config: TrainingConfig
    evaluation: Evaluation
    trained_as: "TrainingTrial | None" = None
    starts_from: "TrainingTrial | None" = None

    @property
    def training(self) -> "TrainingTrial":
        """The trial that is trained for this one: mostly itself."""
        return self.trained_as or self

    @property
    def trainings(self) -> "list[TrainingTrial]":
        """All trials that must be trained for this one, in order: mostly itself alone."""
        before = self.training.starts_from
        return [*(before.trainings if before else ()), self.training]

    @property
    def training_name(self) -> str:
        """See :class:`Trial`."""
        return self.training.name

    @property
    def training_steps(self) -> dict[str, int]:
        """See :class:`Trial`."""
        return {it.name: it.config.steps for it in self.trainings}

    def check(self) -> None:
        """See :class:`Trial`."""
        self.evaluation.check(self.config)

    def train(self, runs: Path, **options: Any) -> GPT:
        """See :class:`Trial`; `options` are those of ``train``.

        The model that training starts from is trained first, unless this training has begun already.
        """
        this = self.training
        if this.starts_from is not None and not this._has_begun(runs):
            this.starts_from.train(runs, **options)
        return train(this._config_in(runs), runs / this.name, **options)

    def check_folders(self, runs: Path) -> None:
        """See :class:`Trial`."""
        this, defaults = self.training, TrainingConfig().to_dict()
        check_same_run(runs / this.name, this._config_in(runs).to_dict(), defaults=defaults)
        if this.starts_from is not None and not this._has_begun(runs):
            this.starts_from.check_folders(runs)

    def _has_begun(self, runs: Path) -> bool:
        return latest_checkpoint(runs / self.name / CHECKPOINTS) is not None

    def _config_in(self, runs: Path) -> TrainingConfig:
        """The configuration with the folder of the model that training starts from."""
        if self.starts_from is None:
            return self.config
        start = runs / self.starts_from.training_name
        return replace(self.config, start=str(start.absolute()))

    def steps_trained(self, runs: Path) -> int:
        """See :class:`Trial`."""
        training, metrics = self._latest(runs)
        # Earlier trainings are done, whether or not their folders are still there.
        before = sum(it.config.steps for it in training.trainings[:-1])
        return int(metrics[-1]["step"]) + before if metrics else 0

    def news(self, runs: Path) -> str:
        """See :class:`Trial`; with the loss of the last step."""
        training, metrics = self._latest(runs)
        losses = [line["loss"] for line in metrics if "loss" in line]
        if not losses:
            return "starting"
        what = "" if training is self.training else f", {training.name} first"
        step = f"step {metrics[-1]['step']:,} of {training.config.steps:,}"
        return f"{step}, loss {losses[-1]:.3f}{what}"

    def _latest(self, runs: Path) -> "tuple[TrainingTrial, list[dict[str, Any]]]":
        """The last of its trainings that has begun, or else the first, with its metrics."""
        for training in reversed(self.trainings):
            folder = runs / training.name
            metrics = read_metrics(folder) if (folder / METRICS).exists() else []
            if metrics:
                break
        return training, metrics

    def measure(self, model: GPT, runs: Path, device: torch.device) -> TrainingRecord:
        """See :class:`Trial`; the record has the metrics of the training too."""
        metrics = read_metrics(runs / self.training_name)
        if self.trained_as is not None:
            model = self._with_scheme(model)
        # A model that was trained in parts is returned on the CPU.
        model = model.to(device)
        with self.config.autocast(device):
            measured = self.evaluation.measure(model, self.config, device)
        curves = (
            [line[name] for line in metrics if name in line] for name in ("loss", "gradient_norm")
        )
        return Record(
            name=self.name,
            config=self.config,
            evaluation=self.evaluation,
            trained_as=self.training_name,
            **measured,
            training=TrainingCurve.rounded(*curves),
            validation=tuple(self._validation(line) for line in metrics if "validation" in line),
            seconds=round(sum(line.get("seconds", 0.0) for line in metrics), 1),
            provenance=Provenance(**provenance()),
        )

    def _with_scheme(self, model: GPT) -> GPT:
        """The weights of a model, read with the scheme of this trial."""
        other = GPT(self.config.model_config(), backend=self.config.backend)
        other.load_state_dict(model.state_dict())
        return other

    def _validation(self, line: Mapping[str, Any]) -> Validation:
        """A validation during training; if trained as another scheme, at the training length alone."""
        losses = {int(length): loss for length, loss in line["validation"].items()}
        if self.trained_as is not None:
            losses = {n: loss for n, loss in losses.items() if n == self.config.length}
        return Validation(line["step"], losses)
