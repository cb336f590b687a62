"""Which keys a query sees, and at what distance: for whole calls, for tiles, and for blocks of tiles.

A key is visible to a query when it is not masked, lies in the same document, is not in the future
(if causal), and lies inside the window or is a sink.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from .contract import AttentionCall


@dataclass(frozen=True, eq=False)
class Geometry:
    """Positions, documents and masks of queries and keys that share them: ``[..., length]`` each.

    Leading dimensions broadcast, so that one geometry can be a batch (the reference) or one row of
    it (the tiled backend, for which batch rows with their own positions are separate problems).
    """

    query_positions: Tensor
    key_positions: Tensor
    key_mask: Tensor | None
    query_documents: Tensor | None
    key_documents: Tensor | None
    is_causal: bool
    window: int | None
    sinks: int

    TENSORS: ClassVar = (
        "query_positions",
        "key_positions",
        "key_mask",
        "query_documents",
        "key_documents",
    )

    @classmethod
    def of(cls, call: AttentionCall) -> "Geometry":
        """The geometry of a whole call, ``[1 or B, length]``."""
        query_positions, key_positions = call.query_positions, call.key_positions
        if query_positions is None or key_positions is None:
            query_length, key_length = call.query.shape[2], call.key.shape[2]
            key_positions = torch.arange(key_length, device=call.query.device)[None]
            start = key_length - query_length
            query_positions = torch.arange(start, key_length, device=call.query.device)[None]
        return cls(
            query_positions,
            key_positions,
            call.key_mask,
            call.query_documents,
            call.key_documents,
            call.is_causal,
            call.window,
            call.sinks,
        )

    @property
    def rows(self) -> int:
        """How many batch rows differ: 1 when all share one geometry."""
        optional = (self.key_mask, self.query_documents, self.key_documents)
        given = [part for part in optional if part is not None]
        return max(part.shape[0] for part in (self.query_positions, self.key_positions, *given))

    def row(self, index: int) -> "Geometry":
        """The geometry of one batch row, ``[length]``."""

        def pick(part: Tensor | None) -> Tensor | None:
            return None if part is None else part[min(index, part.shape[0] - 1)]

        picked = {name: pick(getattr(self, name)) for name in self.TENSORS}
        return replace(self, **picked)  # type: ignore[arg-type]

    def tile(self, queries: slice, keys: slice, backwards: bool = False) -> "Geometry":
        """The geometry of some queries, which may run backwards, and some keys."""

        def cut(name: str) -> Tensor | None:
            part = getattr(self, name)
            if part is None:
                return None
            if name.startswith("key"):
                return part[..., keys]  # type: ignore[no-any-return]
            return part[..., queries].flip(-1) if backwards else part[..., queries]  # type: ignore[no-any-return]

        return replace(self, **{name: cut(name) for name in self.TENSORS})  # type: ignore[arg-type]

    def collapsed(self) -> "Geometry":
        """The same geometry with what is equal in all rows held once, and no mask that hides nothing.

        It looks at values: not while tracing, and only worth it where looking is cheap.
        """
        parts: dict[str, Tensor | None] = {}
        for name in self.TENSORS:
            part: Tensor | None = getattr(self, name)
            if part is not None and part.shape[0] > 1 and bool((part == part[:1]).all()):
                part = part[:1]
            parts[name] = part
        if parts["key_mask"] is not None and bool(parts["key_mask"].all()):
            parts["key_mask"] = None
        return replace(self, **parts)  # type: ignore[arg-type]

    @property
    def distance(self) -> Tensor:
        """The distance of every pair, ``[..., Lq, Lk]``; 0 where causality hides the key."""
        offset = self.query_positions.unsqueeze(-1) - self.key_positions.unsqueeze(-2)
        return offset.clamp_min(0) if self.is_causal else offset.abs()

    @property
    def sink(self) -> Tensor | None:
        """Which keys are sinks, ``[..., 1, Lk]``; None when there are none by definition."""
        if self.sinks == 0:
            return None
        return (self.key_positions < self.sinks).unsqueeze(-2)

    @property
    def visible(self) -> Tensor:
        """Which pairs are visible, bool ``[..., Lq, Lk]`` (leading dimensions broadcast)."""
        queries, keys = self.query_positions.unsqueeze(-1), self.key_positions.unsqueeze(-2)
        visible = queries >= keys if self.is_causal else torch.ones_like(queries == keys)
        if self.window is not None:
            near, sink = self.distance < self.window, self.sink
            visible = visible & (near if sink is None else near | sink)
        if self.query_documents is not None and self.key_documents is not None:
            same = self.query_documents.unsqueeze(-1) == self.key_documents.unsqueeze(-2)
            visible = visible & same
        if self.key_mask is not None:
            visible = visible & self.key_mask.unsqueeze(-2)
        return visible


class BlockMap:
    """Which tiles of a one-row geometry hold no visible pair, and which nothing but visible pairs.

    Judged from the extremes of each block, in memory linear in the number of blocks. A tile called
    empty is empty and a tile called full is full; a tile called neither may still be either.
    """

    def __init__(self, geometry: Geometry, query_block: int, key_block: int) -> None:
        self.geometry = geometry
        mask = geometry.key_mask
        self.query_low, self.query_high = _extremes(geometry.query_positions, query_block)
        self.key_low, self.key_high = _extremes(geometry.key_positions, key_block, mask)
        self.all_unmasked = None
        if mask is not None:
            self.all_unmasked = _padded_blocks(mask, key_block, fill=True).all(-1)
        if geometry.query_documents is not None and geometry.key_documents is not None:
            self.query_documents = _extremes(geometry.query_documents, query_block)
            self.key_documents = _extremes(geometry.key_documents, key_block, mask)

    def rows(self, index: int | Tensor) -> tuple[Tensor, Tensor]:
        """Which key blocks may hold visible pairs with a query block, and which only visible ones.

        ``[key blocks]`` for one query block; ``[queries, key blocks]`` for an index ``[queries, 1]``.
        """
        geometry = self.geometry
        low, high = self.query_low[index], self.query_high[index]
        # Blocks whose keys are all masked have crossed extremes: low above high.
        some = self.key_low <= self.key_high
        full = some if self.all_unmasked is None else self.all_unmasked
        if geometry.is_causal:
            some = some & (self.key_low <= high)
            full = full & (self.key_high <= low)
        if geometry.window is not None:
            nearest = torch.maximum(low - self.key_high, self.key_low - high)
            farthest = torch.maximum(high - self.key_low, self.key_high - low)
            some_near, all_near = nearest < geometry.window, farthest < geometry.window
            if geometry.sinks > 0:
                some_near = some_near | (self.key_low < geometry.sinks)
                all_near = all_near | (self.key_high < geometry.sinks)
            some, full = some & some_near, full & all_near
        if geometry.query_documents is not None:
            first, last = (extreme[index] for extreme in self.query_documents)
            key_first, key_last = self.key_documents
            some = some & (key_first <= last) & (first <= key_last)
            full = full & (key_first == key_last) & (first == last) & (first == key_first)
        return some, some & full


def _extremes(values: Tensor, block: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The least and the greatest of each block, masked ones left out."""
    least, greatest = torch.iinfo(values.dtype).min // 4, torch.iinfo(values.dtype).max // 4
    low = values if mask is None else values.masked_fill(~mask, greatest)
    high = values if mask is None else values.masked_fill(~mask, least)
    return (
        _padded_blocks(low, block, fill=greatest).amin(-1),
        _padded_blocks(high, block, fill=least).amax(-1),
    )


def _padded_blocks(values: Tensor, block: int, fill: int | bool) -> Tensor:
    """``[length]`` as ``[blocks, block]``, the last block filled up."""
    missing = -values.shape[0] % block
    filling = values.new_full((missing,), fill)
    return torch.cat([values, filling]).reshape(-1, block)
