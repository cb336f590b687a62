"""Scores and logits of one layer of any model, in tiles of bounded size.

    score(i, j) = scale * q_i . k_j
    logit(i, j) = gain(t) * query_scale(i) * score(i, j) + bias(t) + key_bias(j)

Shapes: B batch, H query heads, L queries, N keys, D head size, R rows of interest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..attention import DistanceAffine, Visibility
from ..attention.contract import AttentionCall, checked_call
from ..attention.numerics import compute_dtype
from ..model import GPT
from ..model.block import Attention, ForwardPass

# Query-key pairs per tile, over all heads: eight megabytes in float64.
TILE_PAIRS = 2**20
TILE_ROWS = 64


@dataclass(frozen=True, eq=False)
class LayerScores:
    """Inputs of one layer's attention: everything that statistics need from a model.

    Args:
        layer: its index, from 0.
        query: ``[B, H, L, D]``, rotated, without the factor `query_scale`.
        key: ``[B, Hk, N, D]``, rotated; H is a multiple of Hk.
        affine: gain and bias by distance; None is gain 1 and bias 0.
        scale: the factor of ``q . k``; None is ``1 / sqrt(D)``.
        visibility: positions, and which keys a query sees.
        query_scale: a factor of the logits, broadcast to ``[B, H, L]``; None is 1.
        key_bias: a bias of the logits per key, ``[B, H, N]``; None is 0. That of forget gates leaves out
            a constant per query: masses are known up to a factor, shares and entropies are not affected.
        unrotated: query and key before rotary; None if nothing rotates.
        rotary_known: False if query and key before rotary are unknown.

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
    visibility: Visibility = field(default_factory=Visibility)
    query_scale: Tensor | None = None
    key_bias: Tensor | None = None
    unrotated: tuple[Tensor, Tensor] | None = None
    rotary_known: bool = True

    def __post_init__(self) -> None:
        self._call()

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.query.shape[1]

    @property
    def before_rotary(self) -> "LayerScores":
        """The same layer without rotation."""
        if not self.rotary_known:
            raise NotImplementedError(
                f"queries and keys of layer {self.layer} before rotary are unknown for this model: "
                f"only statistics after rotary are available"
            )
        if self.unrotated is None:
            return self
        query, key = self.unrotated
        return replace(self, query=query, key=key, unrotated=None)

    def tiles(self, rows: Tensor | None = None) -> "Iterator[Tile]":
        """Tiles of the queries at `rows` (None: all) with their keys, if any pair in them is visible."""
        call = self._call()
        visibility = call.visibility_with_positions()
        documents, coordinates = visibility.query_documents, visibility.query_coordinates
        batch, _, length, _ = self.query.shape
        rows = (torch.arange(length) if rows is None else rows).to(self.query.device)
        keys = self.key.shape[2]
        at_once = max(1, TILE_PAIRS // (batch * self.heads * min(TILE_ROWS, max(1, len(rows)))))
        for first in range(0, len(rows), TILE_ROWS):
            some = rows[first : first + TILE_ROWS]
            queries = slice(first, first + len(some))
            chosen = replace(
                visibility,
                query_positions=visibility.positions[0][..., some],
                query_documents=None if documents is None else documents[..., some],
                query_coordinates=None if coordinates is None else coordinates[..., some],
            )
            query = call.query[:, :, some].to(compute_dtype(call.query.dtype))
            factor = self._factor(some)
            for start in range(0, keys, at_once):
                part = slice(start, min(start + at_once, keys))
                tile = chosen.tile(slice(None), part)
                if bool(tile.visible.any()):
                    yield _tile(call, tile, query, queries, part, factor)

    def _call(self) -> AttentionCall:
        """Everything checked as the op checks it; with no tables it has a tau, which nobody reads."""
        return checked_call(
            self.query,
            self.key,
            self.key,
            affine=self.affine,
            tau=1.0 if self.affine is None else None,
            visibility=self.visibility,
            scale=self.scale,
            key_bias=self.key_bias,
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
    """Scores and logits ``[B, H, R, K]`` and visibility ``[1 or B, R, K]`` of some queries and keys."""

    queries: slice  # indices into the requested rows
    scores: Tensor
    logits: Tensor  # -inf for hidden keys
    distance: Tensor
    visible: Tensor
    key_positions: Tensor  # [1 or B, K]


class ScoreSource(Protocol):
    """A model that reads tokens ``[B, L]`` and calls `visit` with every layer's scores.

    `visit` is called during the forward pass, so only one layer is in memory at a time.
    """

    def __call__(self, tokens: Tensor, visit: Callable[[LayerScores], object]) -> None:
        """Read `tokens` once."""


@torch.no_grad()
def gpt_scores(
    model: GPT, tokens: Tensor, visit: Callable[[LayerScores], object], **arguments: Any
) -> None:
    """Read tokens ``[B, L]`` and call `visit` with every layer's scores, the first layer first.

    `arguments` are those of ``GPT.hidden_states`` except the cache. The model is left as it was.
    ``functools.partial(gpt_scores, model)`` is a :class:`ScoreSource`.

    >>> from scale_invariant_attention.model import GPTConfig
    >>> model = GPT(GPTConfig.preset("mini"))
    >>> gpt_scores(model, torch.zeros(1, 50, dtype=torch.long), lambda it: print(it.query.shape))
    torch.Size([1, 4, 50, 32])
    torch.Size([1, 4, 50, 32])
    torch.Size([1, 4, 50, 32])
    torch.Size([1, 4, 50, 32])
    """
    if arguments.get("cache") is not None:
        raise ValueError("cache must be None: scores are captured from whole texts")
    model.config.check_is_causal("analysis by distance to earlier tokens")

    layers = [module for module in model.modules() if isinstance(module, Attention)]
    if any(layer.scheme.memory is not None for layer in layers):
        raise ValueError(
            "model must have a scheme without a memory: what a memory retrieves has no weight per key, "
            "and the attention inside segments is only a part of its output"
        )

    def look(module: Any, inputs: tuple[Any, ...]) -> None:
        visit(_layer_scores(module, *inputs))

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        model.hidden_states(tokens, **arguments)
    finally:
        for hook in hooks:
            hook.remove()


def _layer_scores(attention: Attention, x: Tensor, call: ForwardPass) -> LayerScores:
    plain = attention.queries_and_keys(x)
    rotate, dtype = call.rotate, compute_dtype(plain[0].dtype)
    query, key = plain if rotate is None else (rotate(plain[0]), rotate(plain[1]))
    return LayerScores(
        attention.layer,
        query,
        key,
        attention.affine(call, query),
        visibility=call.layout.visibility,
        query_scale=attention.scheme.query_factors(call.layout.tokens, dtype),
        key_bias=attention.key_bias(x, call),
        unrotated=None if rotate is None else plain,
    )


def last_rows(length: int, count: int) -> Tensor:
    """Indices of the last `count` of `length` queries, or of all if fewer.

    >>> last_rows(10, 3)
    tensor([7, 8, 9])
    """
    return torch.arange(max(0, length - count), length)


def spread_rows(length: int, count: int) -> Tensor:
    """Indices of `count` evenly spaced queries up to the last of `length`, or of all if fewer.

    >>> spread_rows(100, 4)
    tensor([24, 49, 74, 99])
    """
    count = min(length, count)
    return (torch.arange(1, count + 1) * length).div(max(1, count), rounding_mode="floor") - 1


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
    if call.gain is not None:
        gain, bias = (table.to(query.dtype) for table in call.tables_at(distance))
        if visibility.sink is not None:
            sink = visibility.sink.unsqueeze(1)
            gain, bias = torch.where(sink, 1, gain), torch.where(sink, 0, bias)
        logits = gain * logits + bias
    if call.key_bias is not None:
        logits = logits + call.key_bias[:, :, keys].unsqueeze(2)
    logits = torch.where(visible.unsqueeze(1), logits, -torch.inf)
    return Tile(queries, scores, logits, distance, visible, visibility.positions[1])
