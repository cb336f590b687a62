"""Many trials, each recorded when it is done and never done twice.

Small ones run side by side, each on one core; large ones in turn, each on all devices that torchrun was
given.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

import torch

from ...training.loop import Progress
from ...training.ranks import open_ranks
from .records import Record
from .training_trials import steps_made, train_trial
from .trials import Trial, check_recordable, make_record, recorded
from .workers import Worker

# How often a run is looked at that is going on, in seconds.
GLANCE = 1.0


def _ignore(*news: object) -> None:
    pass


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
    waiting = list(remaining.values())
    going: list[Worker] = []
    try:
        while waiting or going:
            while waiting and len(going) < workers:
                going.append(Worker(waiting.pop(0), runs, results))
            answered = wait([worker.answer for worker in going], timeout=GLANCE)
            for worker in [worker for worker in going if worker.answer in answered]:
                going.remove(worker)
                for trial, record in zip(worker.group, worker.records(), strict=True):
                    done(trial, record)
            unfinished = {trial.name for group in waiting for trial in group}
            unfinished |= {trial.name for worker in going for trial in worker.group}
            watch(
                {
                    trial.name: steps_made(trial, runs) if trial.name in unfinished else trial.steps
                    for trial in trials
                }
            )
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
                model = train_trial(trial, runs, device=device, watch=watch, notice=notice)
                made = ranks.on_first(
                    partial(make_record, trial, model, folder, results, ranks.device)
                )
            else:
                made = record
            if ranks.rank == 0 and made is not None:
                done(trial, made)


def _with_records(trials: Sequence[Trial], results: Path) -> list[tuple[Trial, Record | None]]:
    """Trials with their records, once it is known that the others can be evaluated and recorded."""
    found = [(trial, recorded(trial, results)) for trial in trials]
    for trial in (trial for trial, record in found if record is None):
        check_recordable(trial, results)
    return found
