"""Table 2: needles found at the training length and beyond it, for every scheme, with three seeds.

    sia reproduce table2 --scale mini        on CPUs, about two hours on two cores, and as much again
                                             where the models of table1 are not there
    torchrun --nproc-per-node 8 -m scale_invariant_attention.cli reproduce table2 --scale paper

Every model of Table 1 is fine-tuned to answer, at the end of a text, what was hidden in it. Models whose
folders are not there are trained first. Expected, as in the paper: every scheme finds needles at the
training length; beyond it RoPE and ALiBi find none, and scale-invariant p-RoPE does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import schemes
from ...training import TrainingConfig
from ._scales import SEEDS, changed, scale_named
from .evaluations import NeedleEvaluation
from .trials import TrainingTrial

# Fields that training and fine-tuning must have in common: the model, and how it is computed.
SHARED = (
    *("scheme_options", "vocab_size", "layers", "width", "heads", "qk_norm", "length"),
    *("precision", "backend", "compile", "checkpoint_activations", "parallel"),
)


@dataclass(frozen=True)
class FineTuning:
    """Changes to the recipe of a training that make it a fine-tuning on needles, and its evaluation."""

    changes: Mapping[str, Any]
    evaluation: NeedleEvaluation


def needle_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """The trials of Table 2, seed by seed.

    `changes` are fields of the fine-tuning, `before` fields of the training that it starts from; fields
    that both must have in common need be given once. `evaluation` are fields of the evaluation.

    >>> [trial] = needle_trials("mini", ("yarn",), seeds=(0,))
    >>> trial.name, [training.name for training in trial.trainings]
    ('needles-yarn-seed-0', ['rope-seed-0', 'needles-rope-seed-0'])
    """
    scale_named(scale)
    return [
        _trial(scale, name, seed, changes or {}, evaluation or {}, before or {})
        for seed in seeds
        for name in names or schemes.names()
    ]


def _trial(
    scale: str,
    scheme: str,
    seed: int,
    changes: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    before: Mapping[str, Any],
) -> TrainingTrial:
    tuning = FINE_TUNING[scale]
    shared = {name: value for name, value in changes.items() if name in SHARED}
    start = scale_named(scale).trial(scheme, seed, {**before, **shared})
    fields = {**start.config.to_dict(), **tuning.changes, **changes, "start": start.training_name}
    trained_as = None
    if start.trained_as is not None:
        other = schemes.trained_as(scheme)
        trained_as = _trial(scale, other, seed, changes, evaluation, before)
    return TrainingTrial(
        f"needles-{scheme}-seed-{seed}",
        TrainingConfig.from_dict(fields),
        changed(tuning.evaluation, evaluation),
        trained_as,
        None if trained_as is not None else start,
    )


# The schedule is the paper's: a hundred steps up, a hundred constant, a hundred down.
SCHEDULE = {"steps": 300, "warmup_steps": 100, "constant_steps": 100}

FINE_TUNING = {
    "mini": FineTuning(
        {
            **SCHEDULE,
            "task": "needles",
            # Three of the paper's sentences would be most of a context of 256 bytes.
            "task_options": {"needles": 1, "digits": 7},
            "batch_size": 32,
            "first_length": 80,
            "growth_steps": 200,
            "validate_every": 100,
        },
        NeedleEvaluation((256, 1024, 4096), examples=50),
    ),
    "paper": FineTuning(
        {
            **SCHEDULE,
            "task": "needles",
            "data": "shards:c4",
            "batch_size": 64,
            "validate_every": 100,
            "validation_tokens": 1_048_576,
        },
        NeedleEvaluation((4096, 16_384, 65_536), examples=200),
    ),
}
