"""Which blocks of the score matrix hold visible pairs: a bound from the extremes of each block."""

from collections.abc import Callable

import torch
from torch import Tensor

from ._coordinates import BEYOND
from .visibility import Visibility


class BlockMap:
    """Which tiles hold no visible pair, and which nothing but visible pairs.

    Computed from the extremes of each block, in memory linear in the number of blocks, for one batch
    row or for all of them. Tiles reported as empty or full are so; a tile reported as neither may still
    be either.
    """

    def __init__(self, visibility: Visibility, query_block: int, key_block: int) -> None:
        self.visibility = visibility
        mask = visibility.key_mask
        query_positions, key_positions = visibility.positions
        self.query_low, self.query_high = _extremes(query_positions, query_block)
        self.key_low, self.key_high = _extremes(key_positions, key_block, mask)
        self.all_unmasked = None
        if mask is not None:
            self.all_unmasked = _padded_blocks(mask, key_block, fill=True).all(-1)
        # A box around every block: its extremes by dimension.
        self.boxes = [
            (_extremes(queries, query_block), _extremes(keys, key_block))
            for whole in [visibility.coordinates]
            if whole is not None
            for queries, keys in zip(whole[0].unbind(-2), whole[1].unbind(-2), strict=True)
        ]
        if visibility.query_documents is not None and visibility.key_documents is not None:
            self.query_documents = _extremes(visibility.query_documents, query_block)
            self.key_documents = _extremes(visibility.key_documents, key_block, mask)

    def rows(self, index: int | Tensor) -> tuple[Tensor, Tensor]:
        """Which key blocks may hold visible pairs with a query block, and which only visible ones.

        ``[key blocks]`` for one query block; ``[queries, key blocks]`` for an index ``[queries, 1]``.
        """
        return self._tiles(lambda of_queries: of_queries[index], lambda of_keys: of_keys)

    def every(self) -> tuple[Tensor, Tensor]:
        """The same for all tiles: ``[..., query blocks, key blocks]``, leading dimensions broadcast."""
        return self._tiles(lambda queries: queries.unsqueeze(-1), lambda keys: keys.unsqueeze(-2))

    def _tiles(
        self, of_queries: Callable[[Tensor], Tensor], of_keys: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        visibility = self.visibility
        low, high = of_queries(self.query_low), of_queries(self.query_high)
        key_low, key_high = of_keys(self.key_low), of_keys(self.key_high)
        # A block whose keys are all masked has its low extreme above its high one.
        some = key_low <= key_high
        full = some if self.all_unmasked is None else of_keys(self.all_unmasked)
        if visibility.is_causal:
            some = some & (key_low <= high)
            full = full & (key_high <= low)
        if visibility.window is not None:
            nearest = torch.maximum(low - key_high, key_low - high)
            farthest = torch.maximum(high - key_low, key_high - low)
            reach = visibility.window
            if self.boxes:
                nearest, farthest = self._squared_spans(of_queries, of_keys)
                reach = min(reach, BEYOND) ** 2
            some_near, all_near = nearest < reach, farthest < reach
            if visibility.sinks > 0:
                some_near = some_near | (key_low < visibility.sinks)
                all_near = all_near | (key_high < visibility.sinks)
            some, full = some & some_near, full & all_near
        if visibility.query_documents is not None:
            first, last = (of_queries(extreme) for extreme in self.query_documents)
            key_first, key_last = (of_keys(extreme) for extreme in self.key_documents)
            some = some & (key_first <= last) & (first <= key_last)
            full = full & (key_first == key_last) & (first == last) & (first == key_first)
        return some, some & full

    def _squared_spans(
        self, of_queries: Callable[[Tensor], Tensor], of_keys: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Bounds of the squared distances between the boxes of blocks: the least and the greatest."""
        nearest = farthest = torch.zeros((), dtype=torch.int64)
        for (low, high), (key_low, key_high) in self.boxes:
            ahead = of_queries(high) - of_keys(key_low)
            behind = of_keys(key_high) - of_queries(low)
            # The boxes are apart in this dimension if one of the two is negative.
            apart = torch.minimum(ahead, behind).clamp_max(0)
            nearest = nearest + apart.square()
            farthest = farthest + torch.maximum(ahead, behind).square()
        return nearest, farthest


def _extremes(values: Tensor, block: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The least and the greatest of each block, without masked keys."""
    least, greatest = torch.iinfo(values.dtype).min // 4, torch.iinfo(values.dtype).max // 4
    low = values if mask is None else values.masked_fill(~mask, greatest)
    high = values if mask is None else values.masked_fill(~mask, least)
    return (
        _padded_blocks(low, block, fill=greatest).amin(-1),
        _padded_blocks(high, block, fill=least).amax(-1),
    )


def _padded_blocks(values: Tensor, block: int, fill: int | bool) -> Tensor:
    """``[..., length]`` as ``[..., blocks, block]``, the last block padded."""
    missing = -values.shape[-1] % block
    filling = values.new_full((*values.shape[:-1], missing), fill)
    blocks = (values.shape[-1] + missing) // block
    return torch.cat([values, filling], -1).view(*values.shape[:-1], blocks, block)
