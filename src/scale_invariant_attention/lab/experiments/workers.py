"""A process that trains on one core, ends with the one that started it, and tells how it ended."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from ...training.loop import Progress
from .records import Record
from .training_trials import train_trial
from .trials import Trial, make_record


class WorkerDiedError(RuntimeError):
    """A process that was training was killed by somebody else."""


class Worker:
    """A process that trains and records trials which share a training, on one core.

    A process of its own for each, started anew: torch's threads do not survive a fork.
    """

    def __init__(self, group: Sequence[Trial], runs: Path, results: Path) -> None:
        self.group = group
        context = multiprocessing.get_context("spawn")
        self.answer, sender = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(group, runs, results, os.getpid(), sender), daemon=True
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
    group: Sequence[Trial], runs: Path, results: Path, parent: int, answer: Connection
) -> None:
    def end_with_parent(progress: Progress) -> None:
        # A parent that was killed cannot say so; ask as it would have.
        if os.getppid() != parent:
            signal.raise_signal(signal.SIGTERM)

    outcome: list[Record] | BaseException
    try:
        torch.set_num_threads(1)
        model = train_trial(group[0], runs, device="cpu", watch=end_with_parent)
        folder = runs / group[0].training.name
        outcome = [
            make_record(trial, model, folder, results, torch.device("cpu")) for trial in group
        ]
    except BaseException as error:
        outcome = error
    # Nobody may be there to be told.
    with suppress(BrokenPipeError):
        answer.send(outcome)
