"""Masked bytes for every scheme: encoders, which see both sides of a token, in minutes on two cores.

    sia reproduce masked

Small encoders are trained from scratch to predict hidden bytes of the source of Python's standard
library, and tested on texts up to 16 times as long. The hidden bytes are the same at every length: only
the context around them differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .evaluations import TaskEvaluation
from .leaderboard import SCHEMES
from .table1 import MINI, SEEDS
from .trials import TrainingTrial

LENGTH = 128
RECIPE: Mapping[str, Any] = {
    "task": "masked-text",
    "vocab_size": 257,
    "layers": 2,
    "width": 128,
    "heads": 4,
    "length": LENGTH,
    "batch_size": 16,
    "steps": 600,
    "validate_every": 150,
    "validation_tokens": 65_536,
    "validation_lengths": (LENGTH,),
    "checkpoint_every": 300,
}
SCALE = MINI.for_length(LENGTH)
EVALUATION = TaskEvaluation((LENGTH, 4 * LENGTH, 16 * LENGTH), examples=64)


def masked_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """All trials, seed by seed; `scale` must be "mini", the only one.

    >>> [trial.name for trial in masked_trials(names=("rope", "yarn"), seeds=(0,))]
    ['masked-rope-seed-0', 'masked-yarn-seed-0']
    """
    if scale != "mini":
        raise ValueError(f"masked has the scale 'mini' alone, got {scale!r}")
    measured = EVALUATION.changed(evaluation)
    fields = {**RECIPE, **(changes or {})}
    return [
        _masked(SCALE.trial(name, seed, fields), measured)
        for seed in seeds
        for name in names or SCHEMES
    ]


def _masked(trial: TrainingTrial, evaluation: TaskEvaluation) -> TrainingTrial:
    shared = trial.trained_as and _masked(trial.trained_as, evaluation)
    return replace(trial, name=f"masked-{trial.name}", evaluation=evaluation, trained_as=shared)
