"""Table 2: needles found at the trained length and beyond it, for every scheme, with three seeds.

    sia reproduce table2 --scale mini        on CPUs, about two hours on two cores, and as much again
                                             where the models of table1 are gone
    torchrun --nproc-per-node 8 -m scale_invariant_attention.cli reproduce table2 --scale paper

Every model of Table 1 is trained a little more, to tell at the end of a text what was hidden in it.
Those whose folders are gone are trained again first. Expected, as in the paper: every scheme finds
needles at the trained length; beyond it RoPE and ALiBi find none, and scale-invariant p-RoPE does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import schemes
from ...training import TrainingConfig
from .evaluations import NeedleEvaluation
from .scales import Scale
from .table1 import SEEDS
from .trials import Trial

# What a model must have alike before and after, and how it is computed.
SHARED = (
    *("scheme_options", "vocab_size", "layers", "width", "heads", "qk_norm", "length"),
    *("precision", "backend", "compile", "checkpoint_activations", "parallel"),
)


@dataclass(frozen=True)
class FineTuning:
    """How models learn to find needles: what changes of their recipe, and what is measured."""

    changes: Mapping[str, Any]
    evaluation: NeedleEvaluation


def trials(
    scale: Scale,
    tuning: FineTuning,
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
) -> list[Trial]:
    """All trials, seed by seed.

    `changes` are those of the fine-tuning, `before` those of the training that it starts from; what both
    must have alike need be given once.

    >>> from scale_invariant_attention.lab.experiments.scales import SCALES
    >>> [trial] = trials(SCALES["mini"], FINE_TUNING["mini"], ("yarn",), seeds=(0,))
    >>> trial.name, [training.name for training in trial.trainings]
    ('needles-yarn-seed-0', ['rope-seed-0', 'needles-rope-seed-0'])
    """
    return [
        _trial(scale, tuning, name, seed, changes or {}, before or {})
        for seed in seeds
        for name in names or schemes.names()
    ]


def _trial(
    scale: Scale,
    tuning: FineTuning,
    scheme: str,
    seed: int,
    changes: Mapping[str, Any],
    before: Mapping[str, Any],
) -> Trial:
    shared = {name: value for name, value in changes.items() if name in SHARED}
    start = scale.trial(scheme, seed, {**before, **shared})
    fields = {**start.config.to_dict(), **tuning.changes, **changes, "start": start.training.name}
    shares = start.trained_as is not None
    return Trial(
        f"needles-{scheme}-seed-{seed}",
        TrainingConfig.from_dict(fields),
        tuning.evaluation,
        _trial(scale, tuning, schemes.trained_as(scheme), seed, changes, before)
        if shares
        else None,
        None if shares else start,
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
