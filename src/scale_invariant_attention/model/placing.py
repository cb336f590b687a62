"""Where the tokens of a call stand and what they see: the same for every layer of a model.

Shapes: B batch, L tokens of the call, N tokens with those of a cache before them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..schemes import TokenPositions
from .cache import KeyValueCache

# Beyond any position, and twice as far still an integer of 64 bits.
FAR = 2**61


@dataclass(frozen=True, eq=False)
class Placing:
    """TokenPositions for the scheme, and for attention what it must know beyond the number of keys."""

    places: TokenPositions
    visibility: dict[str, Any]  # arguments of the op
    span: int  # no distance reaches it


def placing(
    tokens: Tensor,
    positions: Tensor | None,
    documents: Tensor | None,
    token_mask: Tensor | None,
    context_length: int | Tensor | None,
) -> Placing:
    """The placing of a call without a cache."""
    length = tokens.shape[1]
    if positions is None and documents is None and token_mask is None:
        counted = torch.arange(length, device=tokens.device)
        given = length if context_length is None else _by_row(context_length)
        return Placing(TokenPositions(counted, given), {}, length)
    runs = None if documents is None else document_runs(documents.expand_as(tokens).long())
    if positions is None:
        positions = default_positions(runs, token_mask)
        span = length
    else:
        positions = positions.expand_as(tokens).long()
        span = None
    first, lengths = document_extents(positions, runs, token_mask)
    visibility: dict[str, Any] = {}
    if runs is not None:
        visibility["key_documents"] = runs
    if token_mask is not None:
        visibility["key_mask"] = token_mask
    if span is None or token_mask is not None:
        visibility["key_positions"] = _from_first(positions, first, token_mask)
    reached = lengths if context_length is None else _by_row(context_length)
    return Placing(
        TokenPositions(positions, reached), visibility, _longest(lengths) if span is None else span
    )


def cached_placing(
    tokens: Tensor, positions: Tensor | None, token_mask: Tensor | None, cache: KeyValueCache
) -> Placing:
    """The placing of tokens that follow those of a cache, which gets their positions and mask."""
    start, end = cache.length, cache.length + tokens.shape[1]
    if positions is None and token_mask is None and not cache.keeps_positions:
        counted = torch.arange(start, end, device=tokens.device)
        return Placing(TokenPositions(counted, _by_row(cache.context_for(end))), {}, end)
    if not cache.keeps_positions:
        earlier = torch.arange(start, device=tokens.device).expand(tokens.shape[0], -1)
        cache.keep_positions(earlier, torch.ones_like(earlier, dtype=torch.bool), start=0)
    if token_mask is None:
        token_mask = torch.ones_like(tokens, dtype=torch.bool)
    if positions is None:
        positions = _following(token_mask, *cache.positions_and_mask(start))
    positions = positions.expand_as(tokens).long()
    cache.keep_positions(positions, token_mask, start)
    key_positions, key_mask = cache.positions_and_mask(end)
    first, lengths = document_extents(key_positions, None, key_mask)
    visibility = {
        "query_positions": _from_first(positions, first, token_mask),
        "key_positions": _from_first(key_positions, first, key_mask),
        "key_mask": key_mask,
    }
    context_length = _by_row(cache.context_for(lengths.squeeze(1)))
    return Placing(TokenPositions(positions, context_length), visibility, _longest(lengths))


def _following(token_mask: Tensor, earlier: Tensor, earlier_mask: Tensor) -> Tensor:
    """Positions ``[B, L]`` behind those before them ``[B, N]``; a row of padding so far starts at 0."""
    counted = token_mask.long().cumsum(1)
    if earlier.shape[1] == 0:
        return (counted - 1).clamp(min=0)
    last = earlier.masked_fill(~earlier_mask, -FAR).amax(1, keepdim=True)
    begun = earlier_mask.any(1, keepdim=True)
    return torch.where(begun, last + counted, (counted - 1).clamp(min=0))


def default_positions(runs: Tensor | None, token_mask: Tensor | None) -> Tensor:
    """Positions ``[B, L]`` that count the tokens of each document, padding left out.

    `runs` are the documents as :func:`document_runs` numbers them; `token_mask` is bool ``[B, L]``,
    False for padding, which stands where the token before it does. One of them may be None.

    >>> default_positions(torch.tensor([[0, 0, 0, 1, 1]]), None)
    tensor([[0, 1, 2, 0, 1]])
    >>> default_positions(None, torch.tensor([[False, False, True, True]]))
    tensor([[0, 0, 0, 1]])
    """
    if token_mask is None:
        assert runs is not None
        token_mask = torch.ones_like(runs, dtype=torch.bool)
    real = token_mask.long()
    counted = real.cumsum(1)
    if runs is None:
        return (counted - 1).clamp(min=0)
    starts = runs.diff(dim=1, prepend=torch.full_like(runs[:, :1], -1)) > 0
    # What was counted before the first token of each document.
    before = torch.where(starts, counted - real, 0).cummax(1).values
    return (counted - before - 1).clamp(min=0)


def document_runs(documents: Tensor) -> Tensor:
    """Documents ``[B, L]`` numbered in their order: a number that comes back is a new document.

    >>> document_runs(torch.tensor([[7, 7, 5, 5, 7]]))
    tensor([[0, 0, 1, 1, 2]])
    """
    changes = documents.diff(dim=1, prepend=documents[:, :1]) != 0
    return changes.long().cumsum(1)


def document_extents(
    positions: Tensor, runs: Tensor | None, token_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The first position of every token's document, and how far from it its positions reach.

    Both ``[B, 1 or L]``; padding does not count, and a document of padding alone has the length 1.

    >>> document_extents(torch.tensor([[5, 6, 7, 0, 1]]), torch.tensor([[0, 0, 0, 1, 1]]), None)
    (tensor([[5, 5, 5, 0, 0]]), tensor([[3, 3, 3, 2, 2]]))
    """
    first, last = positions, positions
    if token_mask is not None:
        first = first.masked_fill(~token_mask, FAR)
        last = last.masked_fill(~token_mask, -FAR)
    if runs is None:
        first, last = first.amin(1, keepdim=True), last.amax(1, keepdim=True)
    else:
        zeros = torch.zeros_like(positions)
        first = zeros.scatter_reduce(1, runs, first, "amin", include_self=False).gather(1, runs)
        last = zeros.scatter_reduce(1, runs, last, "amax", include_self=False).gather(1, runs)
    return first, (last - first + 1).clamp(min=1)


def _from_first(positions: Tensor, first: Tensor, token_mask: Tensor | None) -> Tensor:
    """Positions ``[B, N]`` counted from the first of their document, and padding at 0.

    Attention looks at distances alone, and needs tables as long as the largest.
    """
    counted = positions - first
    return counted if token_mask is None else counted.masked_fill(~token_mask, 0)


def _by_row(lengths: int | Tensor) -> int | Tensor:
    """One number, or ``[B]`` as ``[B, 1]``."""
    return lengths.unsqueeze(-1) if isinstance(lengths, Tensor) else lengths


def _longest(lengths: Tensor) -> int:
    return int(lengths.amax()) if lengths.numel() else 1
