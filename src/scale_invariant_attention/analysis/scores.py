"""One layer's scores and logits, whatever model they come from, read in tiles of bounded size.

    score(i, j) = scale * q_i . k_j
    logit(i, j) = gain(t) * query_scale(i) * score(i, j) + bias(t)

Shapes: B batch, H query heads, L queries, N keys, D head size, R rows of interest.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..attention import DistanceAffine, Visibility
from ..attention.contract import AttentionCall, checked_call
from ..attention.numerics import compute_dtype

# Pairs of query and key in a tile, over all heads: eight megabytes in float64.
TILE_PAIRS = 2**20
TILE_ROWS = 64


@dataclass(frozen=True, eq=False)
class LayerScores:
    """What one layer's attention is computed from: all that statistics need to know of a model.

    Args:
        layer: its number, from 0.
        query: ``[B, H, L, D]``, rotated, without the factor `query_scale`.
        key: ``[B, Hk, N, D]``, rotated; H is a multiple of Hk.
        affine: gain and bias by distance; None is gain 1 and bias 0.
        scale: the factor of ``q . k``; None is ``1 / sqrt(D)``.
        visibility: the arguments of the op that say what a query sees: positions, mask, documents,
            window, sinks and is_causal.
        query_scale: a factor of the logits, broadcast to ``[B, H, L]``; None is 1.
        unrotated: query and key before rotary; None where nothing rotates.
        rotary_known: False where it is not known what query and key were before rotary.

    >>> query, key = torch.randn(2, 1, 4, 100, 32).unbind()
    >>> scores = LayerScores(0, query, key)
    >>> [tuple(tile.logits.shape) for tile in scores.tiles(last_rows(100, 3))]
    [(1, 4, 3, 100)]
    """

    layer: int
    query: Tensor
    key: Tensor
    affine: DistanceAffine | None = None
    scale: float | None = None
    visibility: Mapping[str, Any] = field(default_factory=dict)
    query_scale: Tensor | None = None
    unrotated: tuple[Tensor, Tensor] | None = None
    rotary_known: bool = True

    def __post_init__(self) -> None:
        self._call()

    @property
    def heads(self) -> int:
        """How many heads have queries."""
        return self.query.shape[1]

    @property
    def before_rotary(self) -> "LayerScores":
        """The same layer as if nothing rotated."""
        if not self.rotary_known:
            raise NotImplementedError(
                f"queries and keys of layer {self.layer} are not known before rotary (rotary_known is "
                f"False): only statistics after it can be had of this model"
            )
        if self.unrotated is None:
            return self
        query, key = self.unrotated
        return replace(self, query=query, key=key, unrotated=None)

    def tiles(self, rows: Tensor | None = None) -> "Iterator[Tile]":
        """Some queries, by index, with all their keys; None is every query. Tiles without a visible
        pair are left out."""
        call = self._call()
        visibility = call.visibility_with_positions()
        rows = torch.arange(self.query.shape[2]) if rows is None else rows
        rows = rows.to(self.query.device)
        batch, keys = self.query.shape[0], self.key.shape[2]
        at_once = max(1, TILE_PAIRS // (batch * self.heads * min(TILE_ROWS, max(1, len(rows)))))
        for first in range(0, len(rows), TILE_ROWS):
            part = rows[first : first + TILE_ROWS]
            queries = slice(first, first + len(part))
            chosen = _some_queries(visibility, part)
            query = call.query[:, :, part].to(compute_dtype(call.query.dtype))
            factor = self._factor(part)
            for start in range(0, keys, at_once):
                place = slice(start, min(start + at_once, keys))
                tile = chosen.tile(slice(None), place)
                if bool(tile.visible.any()):
                    yield _tile(call, tile, query, queries, place, factor)

    def _call(self) -> AttentionCall:
        """Everything checked as the op checks it; with no tables it has a tau, which nobody reads."""
        return checked_call(
            self.query,
            self.key,
            self.key,
            affine=self.affine,
            tau=1.0 if self.affine is None else None,
            visibility=Visibility(**self.visibility),
            scale=self.scale,
        )

    def _factor(self, rows: Tensor) -> Tensor | None:
        """``[..., R or 1, 1]``."""
        if self.query_scale is None:
            return None
        factor = self.query_scale.to(compute_dtype(self.query.dtype))
        factor = factor if factor.shape[-1] == 1 else factor[..., rows.to(factor.device)]
        return factor.unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class Tile:
    """Some queries and some keys: scores and logits ``[B, H, R, K]``, visibility ``[1 or B, R, K]``."""

    queries: slice  # which of the rows that were asked for
    scores: Tensor
    logits: Tensor  # -inf where the key is hidden
    distance: Tensor
    visible: Tensor
    key_positions: Tensor  # [1 or B, K]


class ScoreSource(Protocol):
    """A model as statistics see it: it reads tokens ``[B, L]`` and shows every layer's scores.

    `visit` is called with each layer while the model reads, so that never more than one is held.
    """

    def __call__(self, tokens: Tensor, visit: Callable[[LayerScores], object]) -> None:
        """Read `tokens` once."""
        ...


def last_rows(length: int, count: int) -> Tensor:
    """The last `count` queries of `length`, or all of fewer.

    >>> last_rows(10, 3)
    tensor([7, 8, 9])
    """
    return torch.arange(max(0, length - count), length)


def spread_rows(length: int, count: int) -> Tensor:
    """`count` queries of `length`, evenly spaced up to the last one, or all of fewer.

    >>> spread_rows(100, 4)
    tensor([24, 49, 74, 99])
    """
    count = min(length, count)
    return (torch.arange(1, count + 1) * length).div(max(1, count), rounding_mode="floor") - 1


def _some_queries(visibility: Visibility, rows: Tensor) -> Visibility:
    documents = visibility.query_documents
    return replace(
        visibility,
        query_positions=visibility.positions[0][..., rows],
        query_documents=None if documents is None else documents[..., rows],
    )


def _tile(
    call: AttentionCall,
    visibility: Visibility,
    query: Tensor,
    queries: slice,
    keys: slice,
    factor: Tensor | None,
) -> Tile:
    key = call.key[:, :, keys].to(query.dtype).repeat_interleave(call.group, dim=1)
    scores = call.scale * (query @ key.transpose(-2, -1))
    visible = visibility.visible
    distance = visibility.distance.expand_as(visible)
    logits = scores if factor is None else scores * factor
    if call.gain is not None and call.bias is not None:
        gain, bias = (_at(table.to(query.dtype), distance) for table in (call.gain, call.bias))
        if visibility.sink is not None:
            sink = visibility.sink.unsqueeze(1)
            gain, bias = torch.where(sink, 1, gain), torch.where(sink, 0, bias)
        logits = gain * logits + bias
    logits = torch.where(visible.unsqueeze(1), logits, -torch.inf)
    return Tile(queries, scores, logits, distance, visible, visibility.positions[1])


def _at(table: Tensor, distance: Tensor) -> Tensor:
    """``[1 or H, length]`` at distances ``[1 or B, R, K]``: ``[1 or B, 1 or H, R, K]``."""
    # Pairs beyond the table are hidden ones: the contract has checked it.
    return table[:, distance.clamp_max(table.shape[1] - 1)].transpose(0, 1)
