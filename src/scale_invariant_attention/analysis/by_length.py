"""Attention by context length: the same queries after longer and longer contexts.

Contexts of every length end with the same tokens, and the attention of their last queries over all keys
is measured. So only the text before these queries differs, also for schemes that depend on the context
length. Score statistics use queries spread evenly over the context.

Shapes: C contexts, H heads, G ranges.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..arguments import integer
from ..theory import Estimate
from ._scores import LayerScores, ScoreSource, last_rows, spread_rows
from .ranges import DECADE, checked_edges, range_edges, range_profile
from .score_statistics import ScoreGathering, ScoreStatistics

QUERIES = 16
RECENT = 100
SCORED_QUERIES = 64

# Significant digits of recorded numbers.
DIGITS = 5

# Tokens per call of the model, unless a single context is longer.
TOKENS_AT_ONCE = 16_384


# The fields of `LayerAttention` that are recorded as means over contexts.
MEANS = ("share", "entropy", "keys", "global_entropy", "recent_share")


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """Attention of one layer at one context length: means over queries, entropies in nats."""

    layer: int
    share: Tensor  # [C, H, G], fraction of all attention
    entropy: Tensor  # [C, H, G], inside each range
    keys: Tensor  # [C, G], number that a query sees in a range, if it sees any
    global_entropy: Tensor  # [C, H]
    recent_share: Tensor  # [C, H], fraction on the nearest tokens
    scores: ScoreStatistics
    unrotated_scores: ScoreStatistics | None  # None if query and key before rotary are unknown


@dataclass(frozen=True, eq=False)
class LengthAttention:
    """Attention of all layers at context length `length`, by the ranges between `edges`."""

    length: int
    edges: tuple[int, ...]
    layers: tuple[LayerAttention, ...]

    def overall(self, name: str) -> list[Estimate]:
        """A field averaged over all layers and heads: one estimate per range, or a single one.

        The samples are contexts. A layer that sees no key of a range does not count towards its entropy.
        """
        stacked = torch.stack([getattr(layer, name) for layer in self.layers]).nanmean((0, 2))
        return [Estimate(values) for values in stacked.reshape(len(stacked), -1).unbind(1)]

    def to_dict(self) -> dict[str, Any]:
        """Record as JSON values: by layer and head, and over all of them."""
        return {
            "length": self.length,
            "edges": list(self.edges),
            "overall": {
                name: [_estimate_numbers(estimate) for estimate in self.overall(name)]
                for name in MEANS
                if name != "keys"
            },
            "layers": [
                {
                    "layer": layer.layer,
                    **{name: _numbers(getattr(layer, name).mean(0)) for name in MEANS},
                    "scores": _score_numbers(layer.scores),
                    "unrotated_scores": _score_numbers(layer.unrotated_scores),
                }
                for layer in self.layers
            ],
        }


def attention_by_length(
    source: ScoreSource,
    tokens: Tensor,
    lengths: Sequence[int],
    *,
    edges: Sequence[int] | None = None,
    ratio: float = DECADE,
    recent: int = RECENT,
    queries: int = QUERIES,
    progress: Callable[[int], object] = lambda read: None,
) -> list[LengthAttention]:
    """Mass and entropy by range, and score statistics, of every layer at every length.

    Args:
        source: the model, as ``functools.partial(gpt_scores, model)``.
        tokens: contexts ``[C, longest]``; at each length their last tokens are read.
        lengths: context lengths in tokens.
        edges: of the ranges of distance, starting at 0; edges beyond a length are dropped.
        ratio: of successive edges if none are given: decades by default.
        recent: number of nearest tokens for `recent_share`.
        queries: number of queries at the end of a context to measure.
        progress: called with the number of tokens read so far.

    >>> from functools import partial
    >>> from scale_invariant_attention.analysis import gpt_scores
    >>> from scale_invariant_attention.model import GPT, GPTConfig
    >>> source = partial(gpt_scores, GPT(GPTConfig.preset("mini")))
    >>> short, long = attention_by_length(source, torch.zeros(1, 64, dtype=torch.long), (32, 64))
    >>> long.edges, long.layers[0].share.shape
    ((0, 10, 64), torch.Size([1, 4, 2]))
    """
    given = None if edges is None else checked_edges(edges)
    recent = integer("recent", recent, at_least=1)
    queries = integer("queries", queries, at_least=1)
    for length in lengths:
        if integer("lengths", length, at_least=2) > tokens.shape[1]:
            raise ValueError(
                f"lengths must be at most the {tokens.shape[1]} tokens of a context, got {length}; "
                f"give longer contexts or shorter lengths"
            )
    attention: list[LengthAttention] = []
    read = 0
    for length in lengths:
        if given is None:
            edges = range_edges(length, ratio)
        else:
            edges = (*(edge for edge in given if edge < length), length)
        gathering = _Gathering(edges, recent, queries)
        at_once = max(1, TOKENS_AT_ONCE // length)
        for first in range(0, len(tokens), at_once):
            batch = tokens[first : first + at_once, -length:]
            source(batch, gathering.add)
            read += batch.numel()
            progress(read)
        attention.append(LengthAttention(length, edges, gathering.layers()))
    return attention


@dataclass
class _Gathering:
    """Accumulated results of every layer, over all contexts of a length."""

    edges: tuple[int, ...]
    recent: int
    queries: int
    parts: dict[int, list[tuple[Tensor, ...]]] = field(default_factory=dict)
    scores: dict[int, tuple[ScoreGathering, ScoreGathering]] = field(default_factory=dict)

    def add(self, scores: LayerScores) -> None:
        """Add one layer of a batch of contexts."""
        length = scores.query.shape[2]
        finer = tuple(sorted({*self.edges, min(self.recent, length)}))
        profile = range_profile(scores, finer, last_rows(length, self.queries))
        merged = profile.merged(self.edges)
        # A query that sees no key of a range has no entropy in it.
        unseen = (merged.keys == 0).unsqueeze(1)
        self.parts.setdefault(scores.layer, []).append(
            (
                merged.share.mean(2),
                merged.entropy.masked_fill(unseen, torch.nan).nanmean(2),
                merged.keys.double().masked_fill(merged.keys == 0, torch.nan).nanmean(1),
                profile.global_entropy.mean(2),
                profile.recent_share(self.recent).mean(2),
            )
        )
        rows = spread_rows(length, SCORED_QUERIES)
        new = ScoreGathering(), ScoreGathering()
        rotated, unrotated = self.scores.setdefault(scores.layer, new)
        rotated.add(scores, rows)
        if scores.rotary_known:
            unrotated.add(scores.before_rotary, rows)

    def layers(self) -> tuple[LayerAttention, ...]:
        """All layers, in order."""
        return tuple(self._layer(layer) for layer in sorted(self.parts))

    def _layer(self, layer: int) -> LayerAttention:
        means = (torch.cat(pieces).cpu() for pieces in zip(*self.parts[layer], strict=True))
        rotated, unrotated = self.scores[layer]
        return LayerAttention(
            layer,
            **dict(zip(MEANS, means, strict=True)),
            scores=rotated.statistics,
            unrotated_scores=unrotated.statistics if unrotated.moments.count else None,
        )


def _score_numbers(statistics: ScoreStatistics | None) -> dict[str, Any] | None:
    if statistics is None:
        return None
    tensors = ("mean", "variance", "skewness", "kurtosis", "quantiles")
    return {
        **{name: _numbers(getattr(statistics, name)) for name in tensors},
        "normal_quantiles": list(statistics.normal_quantiles),
        "pairs": statistics.pairs,
    }


def _estimate_numbers(estimate: Estimate) -> dict[str, float | None]:
    error = _short(estimate.standard_error) if len(estimate.values) > 1 else None
    return {"mean": _short(estimate.mean), "standard_error": error}


def _numbers(values: Tensor) -> list[Any]:
    """Nested lists of rounded numbers."""
    if values.ndim > 1:
        return [_numbers(row) for row in values]
    return [_short(value) for value in values.tolist()]


def _short(value: float) -> float | None:
    """Rounded to `DIGITS` digits; None if not finite, for JSON."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
