"""What the attention of trained models does with length: the lower row of Figure 1, and the QQ plots.

    sia reproduce attention --scale mini        seconds for each model of Table 1 that is there

The models are those of Table 1; where the folder of one is gone, it is trained again. Expected, as in
the paper: the entropy of plain attention grows with length and its local share falls; LogN keeps entropy
low and loses the local share; scale-invariant attention keeps both.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .evaluations import AttentionEvaluation
from .scales import Scale
from .trials import Trial

SCHEMES = ("rope", "p-rope", "logn-p-rope", "alibi", "scale-invariant-p-rope")
EVALUATIONS: Mapping[str, AttentionEvaluation] = MappingProxyType(
    {
        "mini": AttentionEvaluation((256, 512, 1024, 2048, 4096), contexts=16),
        "paper": AttentionEvaluation((4096, 16_384, 65_536), contexts=16),
    }
)


def trials(
    scale: Scale,
    evaluation: AttentionEvaluation,
    names: Sequence[str] = SCHEMES,
    seeds: Sequence[int] = (0,),
    changes: Mapping[str, Any] | None = None,
) -> list[Trial]:
    """One for each scheme and seed, with the model of Table 1.

    >>> from scale_invariant_attention.lab.experiments.scales import SCALES
    >>> [trial] = trials(SCALES["mini"], EVALUATIONS["mini"], ("yarn",))
    >>> trial.name, trial.training.name
    ('attention-yarn-seed-0', 'rope-seed-0')
    """
    made = [scale.trial(name, seed, changes) for seed in seeds for name in names]
    return [
        Trial(f"attention-{trial.name}", trial.config, evaluation, trained_as=trial.training)
        for trial in made
    ]
