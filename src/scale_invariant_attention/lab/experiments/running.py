"""Running many trials: each is recorded when it is done, and none is done twice.

Small trials run side by side, each on one core; large ones in turn, each on all devices that torchrun
was given.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ...files import check_writable
from ...training.loop import Progress
from ...training.ranks import open_ranks
from ..records import Record
from .trials import Trial, find_record, ignore, record_trial

# Seconds between two looks at trainings that are running.
GLANCE = 1.0


def run_side_by_side(
    trials: Sequence[Trial],
    runs: Path,
    results: Path,
    *,
    workers: int,
    modules: Sequence[str] = (),
    watch: Callable[[Mapping[str, int]], object] = ignore,
    notice: Callable[[str], object] = ignore,
    done: Callable[[Any, Record[Any]], object] = ignore,
) -> None:
    """Train and record what is not recorded yet, `workers` trainings at a time, each on one core.

    Folders of trainings are inside `runs`, records in `results`. A trial that fails, or Ctrl-C, ends all
    of them; records stay, and interrupted trainings resume when this is called again. Workers first
    import `modules`, such as those that register schemes. `watch` is called now and then with the steps
    done in each trial, by its name; `notice` with what a user should know; `done` with each record,
    first with those that exist already.
    """
    remaining: dict[str, list[Trial]] = {}
    for trial, record in _with_records(trials, runs, results):
        if record is None:
            remaining.setdefault(trial.training_name, []).append(trial)
        else:
            done(trial, record)
    waiting = list(remaining.values())
    running: list[Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(Worker(waiting.pop(0), runs, results, modules))
            answered = wait([worker.answer for worker in running], timeout=GLANCE)
            for worker in [worker for worker in running if worker.answer in answered]:
                running.remove(worker)
                for trial, record in zip(worker.group, worker.records(), strict=True):
                    done(trial, record)
            steps = {trial.name: sum(trial.training_steps.values()) for trial in trials}
            for group in (*waiting, *(worker.group for worker in running)):
                steps |= {trial.name: trial.steps_trained(runs) for trial in group}
            watch(steps)
    except KeyboardInterrupt:
        names = ", ".join(worker.group[0].name for worker in running)
        notice(f"Stopping, in a few seconds: {names}")
        raise
    finally:
        for worker in running:
            worker.ask_to_stop()
        for worker in running:
            worker.join()


def run_in_turn(
    trials: Sequence[Trial],
    runs: Path,
    results: Path,
    *,
    device: torch.device | str | None = None,
    watch: Callable[[Any, Progress], object] = ignore,
    notice: Callable[[str], object] = ignore,
    done: Callable[[Any, Record[Any]], object] = ignore,
) -> None:
    """Train and record what is not recorded yet, one trial after the other, each on all ranks.

    Resumes when it is called again. Folders as for :func:`run_side_by_side`; `device` and `notice` as
    for ``train``. `watch` is called with every step of a trial, `done` with each record, on rank 0.
    """
    with open_ranks(device) as ranks:
        for trial, record in _with_records(trials, runs, results):
            if record is None:
                if ranks.rank == 0:
                    notice(f"{trial.name}, in {runs / trial.training_name}")
                model = trial.train(runs, device=device, watch=partial(watch, trial), notice=notice)
                record = ranks.on_first(
                    partial(record_trial, trial, model, runs, results, ranks.device)
                )
            if ranks.rank == 0 and record is not None:
                done(trial, record)


def total_steps(trials: Sequence[Trial]) -> int:
    """Steps of all trainings that trials need, each training once."""
    return sum({name: n for trial in trials for name, n in trial.training_steps.items()}.values())


def steps_done(trials: Sequence[Trial], steps: Mapping[str, int]) -> int:
    """Steps done of all trainings, each training once, from the steps done in each trial."""
    done: dict[str, int] = {}
    for trial in trials:
        left = steps.get(trial.name, 0)
        for name, whole in trial.training_steps.items():
            done[name] = max(done.get(name, 0), min(left, whole))
            left = max(0, left - whole)
    return sum(done.values())


def _with_records(
    trials: Sequence[Trial], runs: Path, results: Path
) -> list[tuple[Trial, Record[Any] | None]]:
    """Trials with their records, once it is known that the others can be trained and recorded."""
    found = [(trial, find_record(trial, results)) for trial in trials]
    for trial in (trial for trial, record in found if record is None):
        check_writable(results)
        trial.check()
        trial.check_folders(runs)
    return found


class WorkerDiedError(RuntimeError):
    """A worker process was killed from outside."""


class Worker:
    """A process that trains and records trials which share a training, on one core.

    It is spawned, because torch's threads do not survive a fork, and ends with the process that
    started it.
    """

    def __init__(
        self, group: Sequence[Trial], runs: Path, results: Path, modules: Sequence[str] = ()
    ) -> None:
        self.group = group
        context = multiprocessing.get_context("spawn")
        self.answer, sender = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(group, runs, results, modules, os.getpid(), sender), daemon=True
        )
        self._process.start()
        # The worker alone holds the other end, so that its death is noticed.
        sender.close()

    def records(self) -> list[Record[Any]]:
        """The records of its trials, once it has answered; an error of the worker is raised here."""
        try:
            outcome = self.answer.recv()
        except EOFError as error:
            self._process.join()
            raise WorkerDiedError(
                f"the process of {self.group[0].name} was killed (exit code "
                f"{self._process.exitcode}), perhaps for lack of memory. Rerun the same command to "
                f"resume, with fewer workers if need be"
            ) from error
        self._process.join()
        if isinstance(outcome, BaseException):
            raise outcome
        return list(outcome)

    def ask_to_stop(self) -> None:
        """Let it save a checkpoint and end."""
        self._process.terminate()

    def join(self) -> None:
        """Wait until it has ended."""
        self._process.join()


def _work(
    group: Sequence[Trial],
    runs: Path,
    results: Path,
    modules: Sequence[str],
    parent: int,
    answer: Connection,
) -> None:
    def end_with_parent(progress: Progress) -> None:
        # A parent that was killed cannot ask for a stop: ask as it would have.
        if os.getppid() != parent:
            signal.raise_signal(signal.SIGTERM)

    outcome: list[Record[Any]] | BaseException
    try:
        for module in modules:
            import_module(module)
        torch.set_num_threads(1)
        cpu = torch.device("cpu")
        model = group[0].train(runs, device="cpu", watch=end_with_parent)
        outcome = [record_trial(trial, model, runs, results, cpu) for trial in group]
    except BaseException as error:
        outcome = error
    # The parent may be gone.
    with suppress(BrokenPipeError):
        answer.send(outcome)
