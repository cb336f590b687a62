"""Table 1: the loss at the trained length and beyond it, for every scheme, with three seeds.

    sia reproduce table1 --scale mini        on CPUs, about two hours on two cores
    torchrun --nproc-per-node 8 -m scale_invariant_attention.cli reproduce table1 --scale paper

In miniature less than a million parameters read the source of Python's standard library, trained at 256
bytes and evaluated at 256, 1024 and 4096. Expected, as in the paper: plain schemes break beyond the
trained length, LogN breaks less, ALiBi and scale-invariant p-RoPE hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ... import schemes
from .scales import Scale
from .trials import Trial

SEEDS = (0, 1, 2)


def trials(
    scale: Scale,
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
) -> list[Trial]:
    """All trials, seed by seed, so that every scheme has one result before any has two.

    `changes` are those of the recipe, for all of them.

    >>> from scale_invariant_attention.lab.experiments.scales import SCALES
    >>> [trial.name for trial in trials(SCALES["mini"], ("rope", "alibi"), seeds=(0, 1))]
    ['rope-seed-0', 'alibi-seed-0', 'rope-seed-1', 'alibi-seed-1']
    """
    return [scale.trial(name, seed, changes) for seed in seeds for name in names or schemes.names()]
