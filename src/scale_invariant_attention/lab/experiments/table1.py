"""Table 1 and what else is measured with its models.

    sia reproduce table1 --scale mini        on CPUs, about two hours on two cores
    torchrun --nproc-per-node 8 -m scale_invariant_attention.cli reproduce table1 --scale paper

Loss at the training length and beyond it, for every scheme, with three seeds. In miniature, less than a
million parameters read the source of Python's standard library, trained at 256 bytes and evaluated at
256, 1024 and 4096. Expected, as in the paper: plain schemes break beyond the training length, LogN
breaks less, ALiBi and scale-invariant p-RoPE hold.

    sia reproduce attention --scale mini     seconds for each model of Table 1 that is there

Attention by context length: the lower row of Figure 1, and the QQ plots. Expected, as in the paper: the
entropy of plain attention grows with length and its local share falls; LogN keeps entropy low and loses
the local share; scale-invariant attention keeps both.

    sia reproduce tau --scale mini
    sia reproduce base --scale mini

Scale-invariant p-RoPE with other values of tau, which is Figure 5, and with other bases of p-RoPE. For
tau the paper reports little difference at the training length, 10 best, and a gap that opens beyond it.
The base belongs to the training length; the one of the miniature was chosen by this sweep.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ... import schemes
from ._scales import SEEDS, scale_named
from .catalogue import ATTENTION_SCHEMES, SWEPT_VALUES
from .evaluations import AttentionEvaluation
from .trials import TrainingTrial

SWEPT_SCHEME = "scale-invariant-p-rope"
ATTENTION = {
    "mini": AttentionEvaluation((256, 512, 1024, 2048, 4096), contexts=16),
    "paper": AttentionEvaluation((4096, 16_384, 65_536), contexts=16),
}


def loss_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """The trials of Table 1, seed by seed, so that every scheme has one result before any has two.

    `changes` are fields of all trainings, `evaluation` fields of the evaluation.

    >>> [trial.name for trial in loss_trials("mini", ("rope", "alibi"), seeds=(0, 1))]
    ['rope-seed-0', 'alibi-seed-0', 'rope-seed-1', 'alibi-seed-1']
    """
    return [
        scale_named(scale).trial(name, seed, changes, evaluation)
        for seed in seeds
        for name in names or schemes.names()
    ]


def attention_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """One trial per scheme and seed, which measures the attention of a model of Table 1.

    >>> [trial] = attention_trials("mini", ("yarn",))
    >>> trial.name, trial.training_name
    ('attention-yarn-seed-0', 'rope-seed-0')
    """
    models = loss_trials(scale, names or ATTENTION_SCHEMES, seeds, changes)
    measured = ATTENTION[scale].changed(evaluation)
    return [
        TrainingTrial(f"attention-{it.name}", it.config, measured, trained_as=it.training)
        for it in models
    ]


def sweep_trials(
    option: str,
    scale: str = "mini",
    values: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """One trial per value of an option; the scale's own value is the trial of Table 1.

    >>> [trial.name for trial in sweep_trials("tau", "mini", (1.0, 10.0))]
    ['scale-invariant-p-rope-tau-1-seed-0', 'scale-invariant-p-rope-seed-0']
    """
    sizes = scale_named(scale)
    usual = getattr(sizes, option)
    return [
        sizes.trial(
            SWEPT_SCHEME, seed, changes, evaluation, **({} if value == usual else {option: value})
        )
        for seed in seeds
        for value in values or SWEPT_VALUES[option]
    ]
