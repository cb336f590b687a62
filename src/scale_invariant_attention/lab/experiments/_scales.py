"""Scales of the experiments: in miniature on CPUs, and the paper's own on GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ... import schemes
from ...arguments import did_you_mean
from ...schemes.distance import ScaleInvariant
from ...schemes.rotary import ProportionalRoPE, TruncatedRoPE
from ...training import recipe
from .catalogue import number
from .evaluations import LossEvaluation
from .trials import TrainingTrial

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Scale:
    """The recipe of all trainings at a scale, its evaluation, and the options of its schemes.

    `base` belongs to the training length; every scheme with p-RoPE has it. Every scheme with the
    scale-invariant transform has `tau`.
    """

    recipe: str
    evaluation: LossEvaluation
    base: float
    tau: float

    def trial(
        self,
        scheme: str,
        seed: int,
        changes: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TrainingTrial:
        """A training of a scheme, named after the scheme, its `options` and the seed.

        `changes` are fields of the training, `evaluation` fields of its evaluation: neither is in the
        name.

        >>> SCALES["mini"].trial("scale-invariant-p-rope", seed=0, tau=0.1).name
        'scale-invariant-p-rope-tau-0.1-seed-0'
        >>> SCALES["mini"].trial("yarn", seed=1).training_name
        'rope-seed-1'
        """
        changes = changes or {}
        suffix = "".join(f"-{name}-{number(value)}" for name, value in options.items())
        given = changes.get("scheme_options", {})
        fields = {
            "scheme": scheme,
            "scheme_options": {**self.scheme_options(scheme), **given, **options},
            "seed": seed,
        }
        trained_as = schemes.trained_as(scheme)
        # Options may be such as only the scheme itself has.
        shares = trained_as != scheme and not options and "scheme_options" not in changes
        return TrainingTrial(
            f"{scheme}{suffix}-seed-{seed}",
            recipe(self.recipe, **{**changes, **fields}),
            self.evaluation.changed(evaluation),
            self.trial(trained_as, seed, changes, evaluation) if shares else None,
        )

    def scheme_options(self, scheme: str) -> dict[str, float]:
        """The options of a scheme that this scale sets.

        >>> SCALES["mini"].scheme_options("scale-invariant-p-rope")
        {'base': 16.0, 'tau': 10.0}
        """
        slots, names = schemes.get(scheme), schemes.options(scheme)
        filled = {
            "base": isinstance(slots.rotary, TruncatedRoPE | ProportionalRoPE),
            "tau": isinstance(slots.distance, ScaleInvariant),
        }
        return {name: getattr(self, name) for name in filled if filled[name] and name in names}


def scale_named(name: str) -> Scale:
    """The scale with this name."""
    if name not in SCALES:
        hint, known = did_you_mean(name, SCALES), ", ".join(SCALES)
        raise ValueError(f"there is no scale {name!r}{hint}; the scales are: {known}")
    return SCALES[name]


SCALES = {
    "mini": Scale("mini", LossEvaluation((256, 1024, 4096), 131_072), base=16.0, tau=10.0),
    "paper": Scale(
        "162m-4k", LossEvaluation((4096, 16_384, 65_536), 10_485_760), base=1024.0, tau=10.0
    ),
}
