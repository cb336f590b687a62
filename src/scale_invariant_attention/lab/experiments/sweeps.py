"""Scale-invariant p-RoPE with one option changed: tau, which is Figure 5, and the base of p-RoPE.

    sia reproduce tau --scale mini
    sia reproduce base --scale mini

Of tau the paper says: all near each other at the trained length, 10 best, the gap opening beyond it.
Of the base it says nothing; at another length than the paper's it is another, and this finds it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .scales import Scale
from .trials import Trial

SCHEME = "scale-invariant-p-rope"
VALUES = {
    "tau": (0.01, 0.1, 1.0, 10.0, 100.0),
    "base": (4.0, 16.0, 64.0, 1024.0),
}


def trials(
    scale: Scale,
    option: str,
    values: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
    changes: Mapping[str, Any] | None = None,
) -> list[Trial]:
    """A trial for each value of an option; the one with the scale's own value is that of Table 1.

    >>> from scale_invariant_attention.lab.experiments.scales import SCALES
    >>> [trial.name for trial in trials(SCALES["mini"], "tau", (1.0, 10.0))]
    ['scale-invariant-p-rope-tau-1-seed-0', 'scale-invariant-p-rope-seed-0']
    """
    own = getattr(scale, option)
    return [
        scale.trial(SCHEME, seed, changes, **({} if value == own else {option: value}))
        for seed in seeds
        for value in values or VALUES[option]
    ]
