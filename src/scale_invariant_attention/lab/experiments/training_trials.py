"""Training what a trial needs, each training in a folder of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...model import GPT
from ...training import read_metrics, train
from ...training.checkpoints import latest_checkpoint
from ...training.runs import CHECKPOINTS, METRICS
from .trials import Trial


def train_trial(trial: Trial, runs: Path, **options: Any) -> GPT:
    """The model of a trial, trained or gone on with in `runs`; `options` are those of ``train``.

    What it starts from is trained first, unless the training itself has been going on already.
    """
    this = trial.training
    config, folder = this.config, runs / this.name
    if this.starts_from is not None:
        start = runs / this.starts_from.training.name
        if latest_checkpoint(folder / CHECKPOINTS) is None:
            train_trial(this.starts_from, runs, **options)
        config = replace(config, start=str(start.absolute()))
    return train(config, folder, **options)


def steps_made(trial: Trial, runs: Path) -> int:
    """How many steps of its trainings are made."""
    for training in reversed(trial.trainings):
        folder = runs / training.name
        lines = read_metrics(folder) if (folder / METRICS).exists() else []
        if lines:
            # What came before is done, whether or not it is still there.
            before = training.trainings[:-1]
            return int(lines[-1]["step"]) + sum(it.config.steps for it in before)
    return 0
