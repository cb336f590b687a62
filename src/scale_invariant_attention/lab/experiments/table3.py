"""Table 3: Infini-attention by the length of its segments, with three seeds.

    sia reproduce table3 --scale mini        on CPUs, hours on two cores
    torchrun --nproc-per-node 8 -m scale_invariant_attention.cli reproduce table3 --scale paper

Loss at the training length and beyond it, as in Table 1. The paper does not state how long segments are.
At its scale we take the 2,048 tokens of the publication on Infini-attention, half the training length;
smaller scales have shorter segments too. Expected, as in the paper: a loss above that of RoPE at the
training length, which hardly changes with length, and above that of scale-invariant p-RoPE everywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...training import recipe
from .catalogue import INFINI_SCHEMES, SEGMENT_LENGTHS
from .table1 import SEEDS, scale_named
from .trials import TrainingTrial


def segment_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """One trial per scheme and segment length; half the training length is the trial of Table 1.

    >>> [trial.name for trial in segment_trials("mini", ("infini-rope",), seeds=(0,))]
    ['infini-rope-seed-0', 'infini-rope-segments-64-seed-0', 'infini-rope-segments-32-seed-0']
    """
    sizes, trials = scale_named(scale), []
    usual = recipe(sizes.recipe, **{**sizes.changes, **(changes or {})}).length // 2
    for seed in seeds:
        for name in names or INFINI_SCHEMES:
            for length in SEGMENT_LENGTHS[scale]:
                own = {} if length == usual else {"segment_length": length}
                trial = sizes.trial(name, seed, changes, evaluation, **own)
                named = f"{name}-segments-{length}-seed-{seed}" if own else trial.name
                trials.append(replace(trial, name=named))
    return trials
