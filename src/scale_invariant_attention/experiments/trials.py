"""Many trainings, each recorded when it is done and never done twice.

A trial is trained in a folder of its own, which may be thrown away, and leaves one JSON file, which is
what tables and figures are made from. Small trials run side by side, each on one core; large ones in
turn, each on all devices that torchrun was given.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..data import SameTokens, TokenSource, document_spans
from ..evaluation import PositionLoss, loss_by_length, loss_by_position
from ..files import check_writable, replace_file
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


def _ignore(*news: object) -> None:
    pass


def recorded(trial: Trial, results: Path) -> Record | None:
    """The record of a trial, if there is one; that of another training is never overwritten."""
    path = results / f"{trial.name}.json"
    if not path.exists():
        return None
    wanted = json.loads(json.dumps(_asked_for(trial)))
    try:
        record: Record = json.loads(path.read_text())
        # Fields that are newer than the record have the defaults.
        config = TrainingConfig.from_dict(record["config"]).to_dict()
        there = {"config": config, "evaluation": record["evaluation"]}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is no record of a trial ({type(error).__name__}: {error}); remove it, and it "
            f"will be made again"
        ) from error
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
    for trial, record in _with_records(trials, results):
        if record is None:
            remaining.setdefault(trial.training.name, []).append(trial)
        else:
            done(trial, record)
    waiting = [(group, runs / name) for name, group in remaining.items()]
    going: list[Worker] = []
    try:
        while waiting or going:
            while waiting and len(going) < workers:
                going.append(Worker(*waiting.pop(0), results))
            answered = wait([worker.answer for worker in going], timeout=GLANCE)
            for worker in [worker for worker in going if worker.answer in answered]:
                going.remove(worker)
                for trial, record in zip(worker.group, worker.records(), strict=True):
                    done(trial, record)
            unfinished = {trial.name for group, _ in waiting for trial in group}
            unfinished |= {trial.name for worker in going for trial in worker.group}
            watch({trial.name: _steps(trial, runs, unfinished) for trial in trials})
    finally:
        for worker in going:
            worker.stop()


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
        for trial, record in _with_records(trials, results):
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


class WorkerDiedError(RuntimeError):
    """A process that was training was killed by somebody else."""


class Worker:
    """A process that trains and records trials which share a training, on one core.

    A process of its own for each, started anew: torch's threads do not survive a fork.
    """

    def __init__(self, group: Sequence[Trial], folder: Path, results: Path) -> None:
        self.group = group
        context = multiprocessing.get_context("spawn")
        self.answer, sender = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(group, folder, results, os.getpid(), sender), daemon=True
        )
        self._process.start()
        # The other end is the worker's alone, so that its death is noticed.
        sender.close()

    def records(self) -> list[Record]:
        """What it recorded, once it has answered; what it failed of is raised here."""
        try:
            outcome = self.answer.recv()
        except EOFError as error:
            self._process.join()
            raise WorkerDiedError(
                f"the process of {self.group[0].name} was killed (exit code "
                f"{self._process.exitcode}), perhaps for want of memory. Run the same command again "
                f"to go on, with fewer workers if need be"
            ) from error
        self._process.join()
        if isinstance(outcome, BaseException):
            raise outcome
        found: list[Record] = outcome
        return found

    def stop(self) -> None:
        """Let it save where it is, and end."""
        self._process.terminate()
        self._process.join()


def _work(
    group: Sequence[Trial], folder: Path, results: Path, parent: int, answer: Connection
) -> None:
    def end_with_parent(progress: Progress) -> None:
        # A parent that was killed cannot say so; ask as it would have.
        if os.getppid() != parent:
            signal.raise_signal(signal.SIGTERM)

    outcome: list[Record] | BaseException
    try:
        torch.set_num_threads(1)
        model = train(group[0].training.config, folder, device="cpu", watch=end_with_parent)
        outcome = [_record(trial, model, folder, results, torch.device("cpu")) for trial in group]
    except BaseException as error:
        outcome = error
    # Nobody may be there to be told.
    with suppress(BrokenPipeError):
        answer.send(outcome)


def _with_records(trials: Sequence[Trial], results: Path) -> list[tuple[Trial, Record | None]]:
    """Trials with their records, once it is known that the others can be evaluated and recorded."""
    found = [(trial, recorded(trial, results)) for trial in trials]
    for trial in (trial for trial, record in found if record is None):
        check_writable(results)
        _tokens(trial, open_corpus(trial.config.data, "validation", trial.config.vocab_size))
    return found


def _record(trial: Trial, model: GPT, folder: Path, results: Path, device: torch.device) -> Record:
    corpus = open_corpus(trial.config.data, "validation", trial.config.vocab_size)
    tokens = _tokens(trial, corpus)
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
    # A line a name: short enough to keep, and to compare.
    lines = (
        f" {json.dumps(name)}: {json.dumps(it, allow_nan=False)}" for name, it in record.items()
    )
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    replace_file(results / f"{trial.name}.json", text.encode())
    # As it would be read: a record is the same whether it was just made or not.
    again: Record = json.loads(text)
    return again


def _tokens(trial: Trial, corpus: TokenSource) -> SameTokens:
    return SameTokens(corpus, trial.evaluation.lengths, at_most=trial.evaluation.tokens)


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
