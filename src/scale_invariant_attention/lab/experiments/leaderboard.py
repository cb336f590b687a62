"""The leaderboard: every scheme on every task of length generalisation, in minutes on two cores.

    sia reproduce leaderboard

Small models are trained from scratch at one length, and tested at 1, 4, 16 and 64 times that length. A
scheme of yours joins with one command, once a module of yours registers it:

    sia --import my_schemes reproduce leaderboard --schemes my-scheme
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...arguments import did_you_mean
from ...data.tasks import SEQUENCE_TASKS
from ...schemes.named import PAPER_SCHEMES, SPREAD
from ...training import TrainingConfig
from ..records import TrainingRecord, read_record
from .evaluations import TaskEvaluation
from .table1 import MINI, SEEDS
from .trials import TrainingTrial, check_record

LENGTH = 64
RECIPE: Mapping[str, Any] = {
    "layers": 2,
    "width": 128,
    "heads": 4,
    "length": LENGTH,
    "first_length": 16,
    "growth_steps": 200,
    "batch_size": 32,
    "steps": 500,
    "validate_every": 125,
    "validation_tokens": 65_536,
    "validation_lengths": (LENGTH,),
    "checkpoint_every": 250,
}
SCALE = MINI.for_length(LENGTH)
EVALUATION = TaskEvaluation((LENGTH, 4 * LENGTH, 16 * LENGTH, 64 * LENGTH), examples=32)
SCHEMES = tuple(scheme.name for scheme in (*PAPER_SCHEMES, SPREAD))
# The names of its trials and records begin with this.
PREFIX = "leaderboard"


@dataclass(frozen=True)
class Discipline:
    """A task of the leaderboard: what it probes, its options, and fields of its trainings."""

    title: str
    probes: str
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)


# By the name of the task, in the order of the page.
DISCIPLINES: Mapping[str, Discipline] = {
    "copy": Discipline("Copy", "keep one's place in a long source, and write its next symbol."),
    "reverse": Discipline("Reverse", "the same, with the source read backwards."),
    "sort": Discipline(
        "Sort", "find the next symbol in order, and count how often it is still to be written."
    ),
    "mqmtar": Discipline(
        "Multi-token recall",
        "find the value of a key among pairs that grow in number with the length.",
        # Keys of two letters take far more steps to learn.
        options={"key_letters": 256, "key_length": 1, "density": 0.15},
        recipe={"first_length": 40, "steps": 1000},
    ),
    "variable-tracking": Discipline(
        "Variable tracking",
        "follow a chain of assignments that noise pulls apart.",
        recipe={"first_length": 40, "steps": 1000},
    ),
    "flip-flop": Discipline("Flip-flop", "find the last write among instructions to ignore."),
    "2-back": Discipline("2-back", "attend to a fixed distance, however long the context is."),
    "local-count": Discipline(
        "Local count", "count tokens of the nearest run, however long the context is."
    ),
    "fractal-noise": Discipline(
        "Fractal noise", "weigh bits by a power of their distance, which has no scale."
    ),
    "motifs": Discipline(
        "Motifs", "continue Markov letters, and motifs that return after distances of all scales."
    ),
}


def leaderboard_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    tasks: Sequence[str] = (),
) -> list[TrainingTrial]:
    """All trials, seed by seed and task by task; `scale` must be "mini", the only one.

    >>> [trial.name for trial in leaderboard_trials(names=("rope", "yarn"), seeds=(0,), tasks=("copy",))]
    ['leaderboard-copy-rope-seed-0', 'leaderboard-copy-yarn-seed-0']
    """
    if scale != "mini":
        raise ValueError(f"leaderboard has the scale 'mini' alone, got {scale!r}")
    for task in tasks:
        if task not in DISCIPLINES:
            hint, known = did_you_mean(task, DISCIPLINES), ", ".join(DISCIPLINES)
            raise ValueError(f"there is no task {task!r}{hint}; the tasks are: {known}")
    measured = EVALUATION.changed(evaluation)
    return [
        _in_task(task, SCALE.trial(name, seed, {**recipe_of(task), **(changes or {})}), measured)
        for seed in seeds
        for task in tasks or DISCIPLINES
        for name in names or SCHEMES
    ]


def recipe_of(task: str) -> dict[str, Any]:
    """The fields of trainings in a task."""
    discipline = DISCIPLINES[task]
    own = {
        "task": task,
        "task_options": dict(discipline.options),
        "vocab_size": SEQUENCE_TASKS[task](**discipline.options).vocab_size,
    }
    return {**RECIPE, **own, **discipline.recipe}


def read_leaderboard(results: Path) -> list[TrainingRecord]:
    """The records of trials with unchanged settings in a folder, in the order of tasks and schemes."""
    found = []
    for path in sorted(results.glob(f"{PREFIX}-*.json")):
        record = read_record(path, TrainingConfig)
        [trial] = leaderboard_trials(
            names=(record.scheme,), seeds=(record.seed,), tasks=(record.config.task,)
        )
        check_record(record, trial, path)
        found.append(record)
    return found


def _in_task(task: str, trial: TrainingTrial, evaluation: TaskEvaluation) -> TrainingTrial:
    shared = trial.trained_as and _in_task(task, trial.trained_as, evaluation)
    name = f"{PREFIX}-{task}-{trial.name}"
    return replace(trial, name=name, evaluation=evaluation, trained_as=shared)
