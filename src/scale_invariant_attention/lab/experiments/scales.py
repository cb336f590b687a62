"""The scales of an experiment: in miniature on CPUs, and as in the paper on GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ... import schemes
from ...training import recipe
from .evaluations import LossEvaluation
from .trials import Trial


@dataclass(frozen=True)
class Scale:
    """The recipe of all trainings of an experiment, what is measured, and what belongs to its length.

    `base` is that of p-RoPE, the same in every scheme that has it; so is `tau`.
    """

    recipe: str
    evaluation: LossEvaluation
    base: float
    tau: float

    def trial(
        self, scheme: str, seed: int, changes: Mapping[str, Any] | None = None, **options: Any
    ) -> Trial:
        """A training of a scheme, named by the scheme, `options` of its own and the seed.

        `changes` are those of the recipe, which the name does not tell.

        >>> SCALES["mini"].trial("scale-invariant-p-rope", seed=0, tau=0.1).name
        'scale-invariant-p-rope-tau-0.1-seed-0'
        >>> SCALES["mini"].trial("yarn", seed=1).training.name
        'rope-seed-1'
        """
        changes = changes or {}
        own = "".join(f"-{name}-{number(value)}" for name, value in options.items())
        given = changes.get("scheme_options", {})
        fields = {
            "scheme": scheme,
            "scheme_options": {**self._options(scheme), **given, **options},
            "seed": seed,
        }
        trained_as = schemes.trained_as(scheme)
        # Options may be such as only the scheme itself has.
        shares = trained_as != scheme and not options and "scheme_options" not in changes
        return Trial(
            f"{scheme}{own}-seed-{seed}",
            recipe(self.recipe, **{**changes, **fields}),
            self.evaluation,
            self.trial(trained_as, seed, changes) if shares else None,
        )

    def _options(self, scheme: str) -> dict[str, float]:
        has_base = scheme.endswith("p-rope")
        has_tau = "tau" in schemes.options(scheme)
        return ({"base": self.base} if has_base else {}) | ({"tau": self.tau} if has_tau else {})


def number(value: float) -> str:
    """A number as names and tables have it, with all its digits.

    >>> number(10.0), number(0.01)
    ('10', '0.01')
    """
    return repr(float(value)).removesuffix(".0")


SCALES = {
    "mini": Scale("mini", LossEvaluation((256, 1024, 4096), 131_072), base=16.0, tau=10.0),
    "paper": Scale(
        "162m-4k", LossEvaluation((4096, 16_384, 65_536), 10_485_760), base=1024.0, tau=10.0
    ),
}
