"""Many trainings, each recorded when it is done and never done twice.

A trial is trained in a folder of its own, which may be thrown away, and leaves one JSON file, which is
what tables and figures are made from. Small trials run side by side, each on one core; large ones in
turn, each on all devices that torchrun was given.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch

from ..data import SameTokens, TokenSource, document_spans
from ..evaluation import PositionLoss, loss_by_length, loss_by_position
from ..files import replace_file
from ..model import GPT
from ..provenance import provenance
from ..training import TrainingConfig, read_metrics, train
from ..training.corpus import open_corpus
from ..training.loop import Progress
from ..training.ranks import open_ranks
from ..training.runs import METRICS, differences

# How often a run is looked at that is going on, in seconds.
GLANCE = 1.0
# Digits of what is recorded of every step: a curve needs no more.
DIGITS = 5

Record = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """What is measured of a trained model: its loss at `lengths`, and by position up to the longest."""

    lengths: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Trial:
    """A training and its evaluation, with a name, which is that of its folder and of its record.

    If `trained_as` is given, the model is that of another trial, which reads as `config` has it.
    """

    name: str
    config: TrainingConfig
    evaluation: Evaluation
    trained_as: "Trial | None" = None

    @property
    def training(self) -> "Trial":
        """The trial that is trained for this one: mostly itself."""
        return self.trained_as or self


class DifferentRecordError(ValueError):
    """What is recorded under the name of a trial is another."""


class BrokenOffError(RuntimeError):
    """The trial of another process has failed, or was stopped, and this one ends with it."""


def _ignore(*news: object) -> None:
    pass


def recorded(trial: Trial, results: Path) -> Record | None:
    """The record of a trial, if there is one; that of another training is never overwritten."""
    path = results / f"{trial.name}.json"
    if not path.exists():
        return None
    record: Record = json.loads(path.read_text())
    wanted = json.loads(json.dumps(_asked_for(trial)))
    # Fields that are newer than the record have the defaults.
    config = TrainingConfig.from_dict(record["config"]).to_dict()
    there = {"config": config, "evaluation": record["evaluation"]}
    different = list(differences(there, wanted))
    if different:
        raise DifferentRecordError(
            f"{path} records something else: {'; '.join(different)}. Give another folder for the "
            f"results, or remove the file"
        )
    return record


def run_side_by_side(
    trials: Sequence[Trial],
    runs: Path,
    results: Path,
    *,
    workers: int,
    watch: Callable[[Mapping[str, int]], object] = _ignore,
    done: Callable[[Trial, Record], object] = _ignore,
) -> None:
    """Train and record what is not recorded yet, `workers` trainings at a time, each on one core.

    A trial that fails, or is stopped by Ctrl-C, ends all; what is recorded stays, and what is trained in
    part goes on when this is called again.

    Args:
        trials: in the order in which they are to start.
        runs: the folder for the folders of their trainings.
        results: the folder for their records.
        workers: how many at a time.
        watch: called now and then with the steps made in each trial, by its name.
        done: called with each record, those that are there first.
    """
    remaining: dict[str, list[Trial]] = {}
    for trial, record in [(trial, recorded(trial, results)) for trial in trials]:
        if record is None:
            remaining.setdefault(trial.training.name, []).append(trial)
        else:
            done(trial, record)
    # Processes of their own: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    broken_off = context.Event()
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_keep, initargs=(broken_off,)
    ) as pool:
        going: dict[Future[list[Record]], list[Trial]] = {
            pool.submit(_run_on_one_core, group, runs / name, results, os.getpid()): group
            for name, group in remaining.items()
        }
        try:
            while going:
                ended, _ = wait(going, timeout=GLANCE, return_when=FIRST_COMPLETED)
                for future in ended:
                    for trial, record in zip(going.pop(future), future.result(), strict=True):
                        done(trial, record)
                open_names = {trial.name for group in going.values() for trial in group}
                watch({trial.name: _steps(trial, runs, open_names) for trial in trials})
        except BaseException:
            broken_off.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_in_turn(
    trials: Sequence[Trial],
    runs: Path,
    results: Path,
    *,
    device: torch.device | str | None = None,
    watch: Callable[[Progress], object] = _ignore,
    notice: Callable[[str], object] = _ignore,
    done: Callable[[Trial, Record], object] = _ignore,
) -> None:
    """Train and record what is not recorded yet, one after the other, each on all ranks of torchrun.

    Broken off, it goes on when it is called again. Folders as for :func:`run_side_by_side`; `device`,
    `watch` and `notice` as for ``train``. `done` is called with each record, on rank 0.
    """
    with open_ranks(device) as ranks:
        for trial, record in [(trial, recorded(trial, results)) for trial in trials]:
            if record is None:
                folder = runs / trial.training.name
                if ranks.rank == 0:
                    notice(f"{trial.name}, in {folder}")
                config = trial.training.config
                model = train(config, folder, device=device, watch=watch, notice=notice)
                made = ranks.on_first(
                    lambda trial=trial, model=model, folder=folder: _record(  # type: ignore[misc]
                        trial, model, folder, results, ranks.device
                    )
                )
            else:
                made = record
            if ranks.rank == 0 and made is not None:
                done(trial, made)


# In a worker: whether the others have ended. Events cannot be handed over with the work.
_broken_off: Event


def _keep(broken_off: Event) -> None:
    global _broken_off  # noqa: PLW0603
    _broken_off = broken_off


def _run_on_one_core(
    group: Sequence[Trial], folder: Path, results: Path, parent: int
) -> list[Record]:
    """The records of trials that share a training."""

    def end_with_the_others(progress: Progress | None = None) -> None:
        # A parent that was killed could not say so.
        if _broken_off.is_set() or os.getppid() != parent:
            raise BrokenOffError(f"{folder.name} is no longer wanted")

    end_with_the_others()
    torch.set_num_threads(1)
    model = train(group[0].training.config, folder, device="cpu", watch=end_with_the_others)
    return [_record(trial, model, folder, results, torch.device("cpu")) for trial in group]


def _record(trial: Trial, model: GPT, folder: Path, results: Path, device: torch.device) -> Record:
    corpus = open_corpus(trial.config.data, "validation", trial.config.vocab_size)
    tokens = SameTokens(corpus, trial.evaluation.lengths, at_most=trial.evaluation.tokens)
    metrics = read_metrics(folder)
    if trial.trained_as is not None:
        model = _reading_as(trial.config, model, device)
    # A model that was trained in parts is given back on the CPU.
    model = model.to(device)
    with trial.config.autocast(device):
        by_length = loss_by_length(model, tokens, device=device)
        by_position = _by_position(model, corpus, trial.evaluation, device)
    record = _asked_for(trial) | {
        "trained_as": trial.training.name,
        "losses": [asdict(row) for row in by_length],
        "by_position": [asdict(row) for row in by_position],
        "training": {
            name: [float(f"{line[name]:.{DIGITS}g}") for line in metrics if name in line]
            for name in ("loss", "gradient_norm")
        },
        "validation": [_validation(trial, line) for line in metrics if "validation" in line],
        "seconds": round(sum(line.get("seconds", 0.0) for line in metrics), 1),
        "corpus": corpus.fingerprint(),
        "provenance": provenance(),
    }
    results.mkdir(parents=True, exist_ok=True)
    # A line a name: short enough to keep, and to compare.
    lines = (
        f" {json.dumps(name)}: {json.dumps(it, allow_nan=False)}" for name, it in record.items()
    )
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    replace_file(results / f"{trial.name}.json", text.encode())
    # As it would be read: a record is the same whether it was just made or not.
    again: Record = json.loads(text)
    return again


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


def _by_position(
    model: GPT, corpus: TokenSource, evaluation: Evaluation, device: torch.device
) -> list[PositionLoss]:
    """None where no document is long enough."""
    length = max(evaluation.lengths)
    if not len(document_spans(corpus, at_least=length + 1)):
        return []
    at_most = max(1, evaluation.tokens // length)
    return loss_by_position(model, corpus, length, at_most=at_most, device=device)


def _asked_for(trial: Trial) -> Record:
    return {"config": trial.config.to_dict(), "evaluation": asdict(trial.evaluation)}


def _steps(trial: Trial, runs: Path, open_names: set[str]) -> int:
    """How many steps of a trial are made: all, unless it is going on or waits."""
    if trial.name not in open_names:
        return trial.config.steps
    metrics = runs / trial.training.name / METRICS
    lines = read_metrics(metrics.parent) if metrics.exists() else []
    return int(lines[-1]["step"]) if lines else 0
