"""Associative recall for every scheme: retrieval without language, in minutes on two cores.

    sia reproduce recall

Models are trained from nothing on pairs of keys and values in noise, and asked for the values of keys in
contexts up to 16 times as long. It tells what a scheme can find from what it knows of language.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ... import schemes
from .evaluations import RecallEvaluation
from .scales import SCALES
from .table1 import SEEDS
from .trials import Trial

# So few values that knowing which are there says little of the one asked for.
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


def trials(
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: RecallEvaluation = EVALUATION,
) -> list[Trial]:
    """All trials, seed by seed.

    >>> [trial.name for trial in trials(("rope", "yarn"), seeds=(0,))]
    ['recall-rope-seed-0', 'recall-yarn-seed-0']
    """
    return [
        _trial(name, seed, {**RECIPE, **(changes or {})}, evaluation)
        for seed in seeds
        for name in names or schemes.names()
    ]


def _trial(
    scheme: str, seed: int, changes: Mapping[str, Any], evaluation: RecallEvaluation
) -> Trial:
    made = SCALES["mini"].trial(scheme, seed, changes)
    as_other = None
    if made.trained_as is not None:
        as_other = _trial(schemes.trained_as(scheme), seed, changes, evaluation)
    return Trial(f"recall-{made.name}", made.config, evaluation, as_other)
