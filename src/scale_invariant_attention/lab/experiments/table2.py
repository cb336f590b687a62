"""Table 2: needles found at the training length and beyond it, for every scheme, with three seeds.

    sia reproduce table2 --scale mini        on CPUs, about two hours on two cores, and as much again
                                             where the models of table1 are not there
    torchrun --nproc-per-node 8 -m scale_invariant_attention.cli reproduce table2 --scale paper

Every model of Table 1 is fine-tuned to answer, at the end of a text, what was hidden in it. Models whose
folders are not there are trained first. Expected, as in the paper: every scheme finds needles at the
training length; beyond it RoPE and ALiBi find none, and scale-invariant p-RoPE does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...training import TrainingConfig
from .evaluations import Evaluation, NeedleEvaluation
from .table1 import SEEDS, loss_trials
from .trials import TrainingTrial

# Fields that training and fine-tuning must have in common: the model, and how it is computed.
SHARED = (
    *("scheme_options", "vocab_size", "layers", "width", "heads", "qk_norm", "length"),
    *("precision", "backend", "compile", "checkpoint_activations", "parallel"),
)


# The schedule is the paper's: a hundred steps up, a hundred constant, a hundred down.
SCHEDULE = {"steps": 300, "warmup_steps": 100, "constant_steps": 100, "validate_every": 100}

MINI = {
    **SCHEDULE,
    "task": "needles",
    # Three of the paper's sentences would be most of a context of 256 bytes.
    "task_options": {"needles": 1, "digits": 7},
    "batch_size": 32,
    "first_length": 80,
    "growth_steps": 200,
}

# Fields of a training that make it a fine-tuning on needles.
FINE_TUNING: Mapping[str, Mapping[str, Any]] = {
    "mini": MINI,
    "mini-500": MINI,
    "small": {**MINI, "batch_size": 16},
    "paper": {
        **SCHEDULE,
        "task": "needles",
        "data": "shards:c4",
        "batch_size": 64,
        "validation_tokens": 1_048_576,
    },
}
EVALUATIONS = {
    "mini": NeedleEvaluation((256, 1024, 4096), examples=200),
    "mini-500": NeedleEvaluation((256, 1024, 4096), examples=50),
    "small": NeedleEvaluation((512, 2048, 8192), examples=200),
    "paper": NeedleEvaluation((4096, 16_384, 65_536), examples=200),
}


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
    changes = changes or {}
    starts = loss_trials(scale, names, seeds, {**(before or {}), **shared_fields(changes)})
    return fine_tuned(starts, scale, changes, evaluation)


def shared_fields(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a fine-tuning that the training before it must have too."""
    return {name: value for name, value in changes.items() if name in SHARED}


def fine_tuned(
    starts: Sequence[TrainingTrial],
    scale: str,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """The fine-tuning on needles of the model of each trial."""
    fields = {**FINE_TUNING[scale], **(changes or {})}
    measured = EVALUATIONS[scale].changed(evaluation)
    return [_fine_tuning(start, fields, measured) for start in starts]


def _fine_tuning(
    start: TrainingTrial, fields: Mapping[str, Any], evaluation: Evaluation
) -> TrainingTrial:
    shared = start.trained_as and _fine_tuning(start.trained_as, fields, evaluation)
    values = {**start.config.to_dict(), **fields, "start": start.training_name}
    return TrainingTrial(
        f"needles-{start.name}",
        TrainingConfig.from_dict(values),
        evaluation,
        trained_as=shared,
        starts_from=None if shared else start,
    )
