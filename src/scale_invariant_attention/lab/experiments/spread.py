"""How the recommended spread of tau over the heads was chosen.

    sia reproduce spread --scale mini            loss by length
    sia reproduce spread-needles --scale mini    needles found, after fine-tuning as for Table 2

Candidates are compared with seeds that the tables do not use. Losses are of validation text that Table 1
does not score, and needles are hidden in text of the training split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...arguments import did_you_mean
from ...schemes.named import SPREAD
from .catalogue import SELECTION_SEED
from .spread_candidates import SPREAD_CANDIDATES
from .table1 import SCALES, scale_named
from .table2 import fine_tuned, shared_fields
from .trials import TrainingTrial

# Tokens per step of the fine-tuning on needles, at every length.
TOKENS = 8192
SEEDS = (SELECTION_SEED, SELECTION_SEED + 1)


def spread_trials(
    scale: str = "mini",
    candidates: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """One training per candidate and seed.

    >>> [trial.name for trial in spread_trials("mini", ("1-to-30-half",))]
    ['spread-1-to-30-half-seed-3', 'spread-1-to-30-half-seed-4']
    """
    text = {"skip": SCALES[scale].evaluation.tokens, **(evaluation or {})}
    return [
        _trial(scale, candidate, seed, changes, text)
        for seed in seeds
        for candidate in candidates or SPREAD_CANDIDATES
    ]


def spread_needle_trials(
    scale: str = "mini",
    candidates: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """The fine-tuning of each candidate on needles.

    >>> [trial] = spread_needle_trials("mini", ("1-to-30-half",), seeds=(3,))
    >>> trial.name, trial.evaluation.split
    ('needles-spread-1-to-30-half-seed-3', 'train')
    """
    changes = changes or {}
    starts = spread_trials(scale, candidates, seeds, {**(before or {}), **shared_fields(changes)})
    return [
        trial
        for start in starts
        for trial in fine_tuned(
            [start],
            scale,
            {"batch_size": TOKENS // start.config.length, **changes},
            {"split": "train", "lengths": start.evaluation.lengths, **(evaluation or {})},
        )
    ]


def _trial(
    scale: str,
    candidate: str,
    seed: int,
    changes: Mapping[str, Any] | None,
    evaluation: Mapping[str, Any],
) -> TrainingTrial:
    if candidate not in SPREAD_CANDIDATES:
        hint, known = did_you_mean(candidate, SPREAD_CANDIDATES), ", ".join(SPREAD_CANDIDATES)
        raise ValueError(f"there is no candidate {candidate!r}{hint}; the candidates are: {known}")
    sizes, options = scale_named(scale), dict(SPREAD_CANDIDATES[candidate])
    scheme, length = options.pop("scheme", SPREAD.name), options.pop("length", None)
    fields: dict[str, Any] = {"scheme_options": options}
    if length is not None:
        fields = sizes.at_length(scheme, length)
        fields["scheme_options"] |= options
        evaluation = {"lengths": (length, 4 * length, 16 * length), **evaluation}
    trial = sizes.trial(scheme, seed, {**fields, **(changes or {})}, evaluation)
    return replace(trial, name=f"spread-{candidate}-seed-{seed}")
