"""The segments of the tokens of a call: what attention inside them sees, and their slots in a memory.

Segments are counted from the start of each document, padding left out, so a document that is packed or
padded gives the same result as on its own.

Shapes: B batch, L tokens of the call, N keys: those kept from the current segment of a cache, then L.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..attention import Visibility
from ..schemes.memory import Segments
from ._cache import KeyValueCache, LayerCache
from .inputs import (
    TokenLayout,
    default_positions,
    document_extents,
    document_runs,
    from_first,
    longest,
)


@dataclass(frozen=True, eq=False)
class SegmentLayout:
    """The segments of a call, the same for every layer with segments of that length."""

    attention: TokenLayout
    """For attention inside segments, to keys ``[B, H, N, D]``, or to those of one segment if `folds`."""
    memory: Segments
    kept: int | Tensor = 0
    """The keys of the incomplete segment: the last so many of N, or indices ``[B, kept]``."""

    folds: bool = False
    """Whether rows are cut alike into several segments: then each is a row of its own for attention."""

    def fold(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values with a row per segment, ``[B S, H, T, D]``, if it `folds`."""
        if not self.folds:
            return query, key, value
        of_keys = replace(self.memory, offset=0)
        split = (self.memory.split(query), of_keys.split(key), of_keys.split(value))
        query, key, value = (it.transpose(1, 2).flatten(0, 1) for it in split)
        return query, key, value

    def unfold(self, attended: Tensor, tokens: int) -> Tensor:
        """The inverse of :meth:`fold` for the output of attention: ``[B, H, L, D]``."""
        if not self.folds:
            return attended
        count = self.memory.count
        rows = attended.reshape(len(attended) // count, count, *attended.shape[1:])
        return self.memory.join(rows.transpose(1, 2), tokens)

    def keep(self, keys: Tensor) -> Tensor:
        """The part of ``[B, H, N, D]`` that the next call needs, in memory of its own."""
        if isinstance(self.kept, int):
            return keys[:, :, keys.shape[2] - self.kept :].clone()
        index = self.kept[:, None, :, None]
        return keys.gather(2, index.expand(-1, keys.shape[1], -1, keys.shape[3]))


def segment_layouts(
    lengths: Collection[int], layout: TokenLayout, cache: LayerCache | None
) -> dict[int, SegmentLayout]:
    """The segments of a call for each of these lengths."""
    if not lengths:
        return {}
    assert cache is None or isinstance(cache, KeyValueCache)
    return {length: segment_layout(layout, length, cache) for length in lengths}


def segment_layout(
    layout: TokenLayout, length: int, cache: KeyValueCache | None = None
) -> SegmentLayout:
    """The segments of `length` tokens in a call, which may continue the text of a cache."""
    mask, documents = layout.visibility.key_mask, layout.visibility.key_documents
    if mask is None and documents is None:
        return _of_equal_rows(layout, length, cache)
    if cache is None:
        return _of_rows(layout, length, mask, documents)
    return _of_continued_rows(layout, length, cache)


def _of_equal_rows(layout: TokenLayout, length: int, cache: KeyValueCache | None) -> SegmentLayout:
    """Segments of rows without padding and documents."""
    positions, new = layout.visibility.key_positions, layout.tokens.positions.shape[-1]
    held = 0 if cache is None else cache.length % length
    keys = held + new
    begun = -(-keys // length)
    end = None if cache is None else keys
    # A single segment needs no empty slots.
    memory = Segments(begun, length, held, end=end) if begun > 1 else Segments(1, new, end=end)
    if positions is None:
        attention = replace(layout, visibility=Visibility(), span=min(keys, length))
        return SegmentLayout(attention, memory, keys % length, folds=begun > 1)
    runs = torch.arange(keys, device=positions.device) // length
    attention = _attention(layout, runs.expand_as(positions), positions, None)
    return SegmentLayout(attention, memory, keys % length)


def _of_rows(
    layout: TokenLayout, length: int, mask: Tensor | None, documents: Tensor | None
) -> SegmentLayout:
    """Segments of whole rows with padding or several documents."""
    positions, index = layout.visibility.key_positions, default_positions(documents, mask)
    tokens = index.shape[1]
    number, inside = index // length, index % length
    real = torch.ones_like(index, dtype=torch.bool) if mask is None else mask
    if documents is None:
        count = -(-tokens // length)
        memory = Segments(count, length, slots=torch.where(real, index, count * length))
    else:
        # Documents of one segment need no memory, and all others together at most this many segments.
        count = max(1, 2 * tokens // length)
        _, lengths = document_extents(index, documents, mask)
        part = real & (lengths > length)
        first = part & (inside == 0)
        segment = first.long().cumsum(1) - 1
        slots = torch.where(part, segment * length + inside, count * length)
        opening = torch.where(first & (number == 0), segment, count)
        begins = torch.zeros(len(index), count + 1, dtype=torch.bool, device=index.device)
        begins = begins.scatter(1, opening, True)[:, :count]
        memory = Segments(count, length, slots=slots, begins=begins)
        number = documents * tokens + number
    runs = document_runs(number)
    if positions is None:
        visibility = Visibility(key_documents=runs)
        return SegmentLayout(replace(layout, visibility=visibility, span=tokens), memory)
    return SegmentLayout(_attention(layout, runs, positions, mask), memory)


def _of_continued_rows(layout: TokenLayout, length: int, cache: KeyValueCache) -> SegmentLayout:
    """Segments of rows with padding or positions that continue those in a cache."""
    start, new = cache.length, layout.tokens.positions.shape[-1]
    positions, mask = cache.positions_and_mask(start + new)
    held, holds = _incomplete(mask[:, :start], length)
    positions = torch.cat([positions.gather(1, held), positions[:, start:]], 1)
    mask = torch.cat([holds, mask[:, start:]], 1)
    index, totals = default_positions(None, mask), mask.sum(1)
    slots, count, size = index[:, -new:], -(-longest(totals) // length), length
    if count < 2:
        # A single segment needs no empty slots.
        slots, count, size = torch.arange(new, device=index.device), 1, new
    memory = Segments(
        count,
        size,
        slots=torch.where(mask[:, -new:], slots, count * size),
        end=totals,
    )
    attention = _attention(layout, document_runs(index // length), positions, mask)
    return SegmentLayout(attention, memory, _incomplete(mask, length)[0])


def _incomplete(mask: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Indices ``[B, most]`` of the tokens of each row's last, incomplete segment, and which are tokens.

    >>> mask = torch.tensor([[False, True, True, True], [False, False, False, True]])
    >>> _incomplete(mask, 2)
    (tensor([[3], [3]]), tensor([[True],
        [True]]))
    """
    counted = mask.long().cumsum(1)
    totals = mask.sum(1, keepdim=True)
    tokens = totals % length
    slots = torch.arange(longest(tokens), device=mask.device)
    wanted = (totals - tokens + slots + 1).minimum(totals)
    return torch.searchsorted(counted, wanted), slots < tokens


def _attention(
    layout: TokenLayout, runs: Tensor, positions: Tensor, mask: Tensor | None
) -> TokenLayout:
    """Attention inside the segments that `runs` ``[B, N]`` number, to keys at `positions` ``[B, N]``."""
    first, lengths = document_extents(positions, runs, mask)
    visibility = Visibility(
        key_positions=from_first(positions, first, mask), key_mask=mask, key_documents=runs
    )
    return replace(layout, visibility=visibility, span=longest(lengths))
