"""Table 1: the loss at the trained length and beyond it, for every scheme, with three seeds.

    sia reproduce table1        in miniature, on CPUs; resumable, results as they come

Less than a million parameters on the source of Python's standard library, trained at 256 bytes and
evaluated at 256, 1024 and 4096. Expected, as in the paper: plain schemes break beyond the trained
length, LogN breaks less, ALiBi and scale-invariant p-RoPE hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import schemes
from ..training import recipe
from .trials import Evaluation, Trial

SEEDS = (0, 1, 2)
MINI_LENGTHS = (256, 1024, 4096)
MINI_TOKENS = 524_288

# The lowest frequency that rotates, and tau, belong to the trained length: the paper has 1024 and 10 at
# 4096 tokens. All p-RoPE schemes get the same base.
MINI_OPTIONS: dict[str, dict[str, Any]] = {
    "p-rope": {"base": 16.0},
    "logn-p-rope": {"base": 16.0},
    "scale-invariant-p-rope": {"base": 16.0, "tau": 10.0},
}


def mini_trials(names: tuple[str, ...] = (), seeds: tuple[int, ...] = SEEDS) -> list[Trial]:
    """All trials, seed by seed, so that every scheme has one result before any has two.

    >>> [trial.name for trial in mini_trials(("rope", "alibi"), seeds=(0, 1))]
    ['rope-seed-0', 'alibi-seed-0', 'rope-seed-1', 'alibi-seed-1']
    """
    return [
        Trial(
            f"{name}-seed-{seed}",
            recipe("mini", scheme=name, scheme_options=MINI_OPTIONS.get(name, {}), seed=seed),
            Evaluation(MINI_LENGTHS, MINI_TOKENS),
        )
        for seed in seeds
        for name in names or schemes.names()
    ]


@dataclass(frozen=True)
class Row:
    """A scheme's losses by length, each with one value a seed."""

    scheme: str
    losses: dict[int, list[float]]


def rows(records: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Records by scheme, in the order of ``schemes.names()``.

    >>> record = {"config": {"scheme": "rope"}, "losses": [{"length": 256, "loss": 1.5}]}
    >>> rows([record, record])
    [Row(scheme='rope', losses={256: [1.5, 1.5]})]
    """
    by_scheme: dict[str, dict[int, list[float]]] = {}
    for record in records:
        losses = by_scheme.setdefault(record["config"]["scheme"], {})
        for entry in record["losses"]:
            losses.setdefault(entry["length"], []).append(entry["loss"])
    return [Row(name, by_scheme[name]) for name in schemes.names() if name in by_scheme]
