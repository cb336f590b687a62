"""Associative recall for every scheme: retrieval without language, in minutes on two cores.

    sia reproduce recall

Models are trained from scratch on pairs of keys and values in noise, and asked for the values of keys in
contexts up to 16 times as long. This separates what a scheme can find from what it knows of language.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .evaluations import RecallEvaluation
from .table1 import SEEDS, loss_trials
from .trials import TrainingTrial

# So few values that knowing which ones occur says little about the one asked for.
TASK = {"keys": 16, "values": 4, "noise": 16, "pairs": 8, "queries": 8}
LENGTH = 64
RECIPE: Mapping[str, Any] = {
    "task": "recall",
    "task_options": TASK,
    "vocab_size": 37,
    "layers": 2,
    "width": 128,
    "heads": 4,
    "length": LENGTH,
    "first_length": 34,
    "growth_steps": 200,
    "batch_size": 32,
    "steps": 800,
    "validate_every": 100,
    "validation_tokens": 65_536,
    "validation_lengths": (LENGTH,),
}
EVALUATION = RecallEvaluation((LENGTH, 4 * LENGTH, 16 * LENGTH), examples=64)


def recall_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """All trials, seed by seed; `scale` must be "mini", the only one.

    >>> [trial.name for trial in recall_trials("mini", ("rope", "yarn"), seeds=(0,))]
    ['recall-rope-seed-0', 'recall-yarn-seed-0']
    """
    if scale != "mini":
        raise ValueError(f"recall has the scale 'mini' alone, got {scale!r}")
    measured = EVALUATION.changed(evaluation)
    models = loss_trials(scale, names, seeds, {**RECIPE, **(changes or {})})
    return [_recalling(model, measured) for model in models]


def _recalling(trial: TrainingTrial, evaluation: RecallEvaluation) -> TrainingTrial:
    shared = trial.trained_as and _recalling(trial.trained_as, evaluation)
    name = f"recall-{trial.name}"
    return replace(trial, name=name, evaluation=evaluation, trained_as=shared)
