"""Many trainings, several at a time, each recorded when it is done and never done twice.

A trial is trained in a folder of its own, which may be thrown away, and leaves one JSON file, which is
what tables and figures are made from.
"""

import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..data import SameTokens
from ..evaluation import loss_by_length, loss_by_position
from ..files import replace_file
from ..provenance import provenance
from ..training import TrainingConfig, read_metrics, train
from ..training.corpus import open_corpus
from ..training.runs import METRICS

# How often a run is looked at that is going on, in seconds.
GLANCE = 1.0


@dataclass(frozen=True)
class Evaluation:
    """What is measured of a trained model: its loss at `lengths`, and by position up to the longest."""

    lengths: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Trial:
    """A training with a name, which is that of its folder and of its record."""

    name: str
    config: TrainingConfig
    evaluation: Evaluation


def recorded(trial: Trial, results: Path) -> dict[str, Any] | None:
    """The record of a trial, if there is one of the same configuration and evaluation."""
    path = results / f"{trial.name}.json"
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    wanted = json.loads(json.dumps(_asked_for(trial)))
    # Fields that are newer than the record have their defaults in it.
    config = TrainingConfig().to_dict() | record.get("config", {})
    asked = record | {"config": config}
    return record if all(asked.get(name) == value for name, value in wanted.items()) else None


def run_trials(
    trials: Sequence[Trial],
    runs: Path,
    results: Path,
    *,
    workers: int,
    watch: Callable[[int], object] = lambda steps: None,
    done: Callable[[Trial, dict[str, Any]], object] = lambda trial, record: None,
) -> None:
    """Train and record what is not recorded yet, `workers` trials at a time, each on one core.

    A trial that fails, or is stopped by Ctrl-C, ends all; what is recorded stays, and what is trained in
    part goes on when this is called again.

    Args:
        trials: in the order in which they are to start.
        runs: the folder for the folders of their trainings.
        results: the folder for their records.
        workers: how many at a time.
        watch: called now and then with the steps made in all trials together, recorded ones included.
        done: called with each record, those that are there first.
    """
    remaining = []
    for trial in trials:
        record = recorded(trial, results)
        if record is None:
            remaining.append(trial)
        else:
            done(trial, record)
    # Processes of their own: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=workers, mp_context=context) as pool:
        going: dict[Future[dict[str, Any]], Trial] = {
            pool.submit(_run, trial, runs / trial.name, results): trial for trial in remaining
        }
        try:
            while going:
                ended, _ = wait(going, timeout=GLANCE, return_when=FIRST_COMPLETED)
                for future in ended:
                    done(going.pop(future), future.result())
                open_names = {trial.name for trial in going.values()}
                watch(sum(_steps(trial, runs, open_names) for trial in trials))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(trial: Trial, folder: Path, results: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    model = train(trial.config, folder, device="cpu")
    corpus = open_corpus(trial.config.data, "validation", trial.config.vocab_size)
    lengths = trial.evaluation.lengths
    tokens = SameTokens(corpus, lengths, at_most=trial.evaluation.tokens)
    record = _asked_for(trial) | {
        "losses": [asdict(row) for row in loss_by_length(model, tokens)],
        "by_position": [asdict(row) for row in loss_by_position(model, corpus, max(lengths))],
        "training": read_metrics(folder),
        "corpus": corpus.fingerprint(),
        "provenance": provenance(),
    }
    results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    replace_file(results / f"{trial.name}.json", text.encode())
    return record


def _asked_for(trial: Trial) -> dict[str, Any]:
    return {"config": trial.config.to_dict(), "evaluation": asdict(trial.evaluation)}


def _steps(trial: Trial, runs: Path, open_names: set[str]) -> int:
    """How many steps of a trial are made: all, unless it is going on or waits."""
    if trial.name not in open_names:
        return trial.config.steps
    metrics = runs / trial.name / METRICS
    lines = read_metrics(metrics.parent) if metrics.exists() else []
    return int(lines[-1]["step"]) if lines else 0
