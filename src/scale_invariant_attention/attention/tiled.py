"""Attention in tiles of plain torch operations: any device, any dtype, memory linear in length.

Forward is the online softmax; backward recomputes the weights from the log-sum-exp. Tiles without a
visible pair are skipped, and only partially visible tiles are masked.

Shapes inside: N problems (batch rows times key heads), G query heads per key head, q and k the rows
and columns of a tile. A tile of scores is ``[N, G * q, k]``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ._opaque import Gradients, no_gradients, register_opaque
from ._tables import AffineGradients, AffineTiles, Tile, affine_tiles
from .block_map import BlockMap
from .contract import AttentionCall
from .numerics import compute_dtype, finite_part, mark_bad_keys, mark_bad_rows
from .visibility import Visibility

# In bytes: the alignment of memory that torch allocates.
ALIGNMENT = 64


@dataclass(frozen=True)
class TileSize:
    """Queries and keys per tile, and the maximum number of scores over all its heads."""

    queries: int
    keys: int
    scores: int

    @classmethod
    def for_call(cls, call: AttentionCall) -> "TileSize":
        """Tiles that fit into the cache of a CPU, or keep a GPU busy.

        Fewer heads or queries are compensated by more keys.
        """
        if call.query.device.type != "cpu":
            return cls(1024, 1024, 2**25)
        queries, scores = 256, 2**19
        rows = max(1, min(queries, call.query.shape[2])) * call.query.shape[1]
        keys = min(8192, max(256, scores // rows // 128 * 128))
        return cls(queries, keys, scores)


def forward(call: AttentionCall, size: TileSize | None = None) -> tuple[Tensor, Tensor]:
    """Output ``[B, Hq, Lq, Dv]`` and log-sum-exp ``[B, Hq, Lq]``, both in the compute dtype."""
    out, lse = call.nothing_seen()
    for part in _parts(call, size):
        key, value = mark_bad_keys(part.of_keys(call.key), part.of_keys(call.value))
        key_bias, scratch = part.of_key_bias(call), part.scratch()
        for queries in part.query_blocks():
            query = mark_bad_rows(part.of_queries(call.query, queries)).mul_(call.scale)
            total_value = query.new_zeros(*query.shape[:2], value.shape[2])
            highest = query.new_full((*query.shape[:2], 1), -torch.inf)
            total = torch.zeros_like(highest)
            for tile in part.tiles(queries, key_bias):
                scores = _product(query, key[:, tile.keys], scratch)
                logits = part.by_head(scores)
                torch.addcmul(tile.bias, tile.gain, logits, out=logits)
                if key_bias is not None:
                    logits += key_bias[..., tile.keys]
                if tile.hidden is not None:
                    logits.masked_fill_(tile.hidden, -torch.inf)
                risen = torch.maximum(highest, scores.amax(-1, keepdim=True))
                # If no key was visible so far, the maximum is -inf, and -inf - -inf would be NaN.
                base = risen.masked_fill(risen == -torch.inf, 0)
                weights = scores.sub_(base).exp_()
                shrink = torch.exp(highest - base)
                total = total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
                _add_product(total_value.mul_(shrink), weights, value[:, tile.keys])
                highest = risen
            part.store(out, queries, total_value.div_(total.masked_fill(total == 0, 1)))
            part.store(lse, queries, (highest + total.log()).squeeze(-1))
    return out, lse


def backward(
    call: AttentionCall,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    affine_grads: bool,
    size: TileSize | None = None,
    *,
    unrounded: bool = False,
) -> Gradients:
    """Gradients of all inputs; those of the affine only if `affine_grads`."""
    grads = no_gradients(call, affine_grads=False, unrounded=unrounded)
    grad_query, grad_key, grad_value = grads.query, grads.key, grads.value
    grad_key_bias, grad_affine = grads.key_bias, AffineGradients(call) if affine_grads else None
    for part in _parts(call, size):
        key, value = finite_part(part.of_keys(call.key)), finite_part(part.of_keys(call.value))
        part_grad_key, part_grad_value = torch.zeros_like(key), torch.zeros_like(value)
        key_bias = part.of_key_bias(call)
        # Rows that see a bias of inf or NaN are NaN already, and silent ones must not become so.
        finite_bias = None if key_bias is None else finite_part(key_bias)
        part_grad_bias = None if key_bias is None else torch.zeros_like(key_bias)
        score_scratch, grad_scratch = part.scratch(), part.scratch()
        weight_scratch = part.scratch() if affine_grads else score_scratch
        for queries in part.query_blocks():
            query = finite_part(part.of_queries(call.query, queries)).mul_(call.scale)
            block_grad_out, base, delta = _row_terms(
                part.of_queries(out, queries),
                part.of_queries(lse, queries).unsqueeze(-1),
                part.of_queries(grad_out, queries),
                part.of_queries(grad_lse, queries).unsqueeze(-1),
            )
            # Silent rows must not overflow: infinity minus their infinite base would be NaN.
            query.masked_fill_(base == torch.inf, 0)
            block_grad_query = torch.zeros_like(query)
            for tile in part.tiles(queries, key_bias):
                keys = tile.keys
                scores = _product(query, key[:, keys], score_scratch)
                weights = weight_scratch[: scores.numel()].view_as(scores)
                by_head = part.by_head(weights)
                torch.addcmul(tile.bias, tile.gain, part.by_head(scores), out=by_head)
                if finite_bias is not None:
                    by_head += finite_bias[..., keys]
                weights.sub_(base).exp_()
                if tile.hidden is not None:
                    by_head.masked_fill_(tile.hidden, 0)
                _add_product(part_grad_value[:, keys], weights.mT, block_grad_out)
                grad_logits = _product(block_grad_out, value[:, keys], grad_scratch)
                grad_logits.sub_(delta).mul_(weights)
                by_head = part.by_head(grad_logits)
                if tile.hidden is not None:
                    # For a NaN row, the zero weight times NaN is NaN.
                    by_head.masked_fill_(tile.hidden, 0)
                if part_grad_bias is not None:
                    part_grad_bias[..., keys] += by_head.sum(2, keepdim=True)
                if grad_affine is not None:
                    part.affine.add_gradients(tile, by_head, part.by_head(scores), grad_affine)
                by_head.mul_(tile.gain)
                _add_product(block_grad_query, grad_logits, key[:, keys])
                _add_product(part_grad_key[:, keys], grad_logits.mT, query)
            part.store(grad_query, queries, block_grad_query.mul_(call.scale))
        part.store_keys(grad_key, part_grad_key)
        part.store_keys(grad_value, part_grad_value)
        if grad_key_bias is not None and part_grad_bias is not None:
            part.store_key_bias(grad_key_bias, part_grad_bias)
        if grad_affine is not None:
            part.affine.finish(grad_affine)
    affine = (None, None, None) if grad_affine is None else grad_affine.results()
    return Gradients(grad_query, grad_key, grad_value, grad_key_bias, *affine)


@dataclass(frozen=True, eq=False)
class _Part:
    """Batch rows and heads that are computed together because they share one visibility."""

    rows: slice
    key_heads: slice
    group: int
    visibility: Visibility
    affine: AffineTiles
    size: TileSize
    dtype: torch.dtype

    def of_keys(self, tensor: Tensor) -> Tensor:
        """Keys or values of this part, ``[N, Lk, D]``."""
        part = tensor[self.rows, self.key_heads].to(self.dtype)
        # Always with the same strides, even in dimensions of size 1, and aligned: otherwise products
        # may sum in another order. Removing NaN makes a copy, which must not change a single bit.
        flat = part.flatten()
        if flat.data_ptr() % ALIGNMENT != 0:
            flat = flat.clone()
        return flat.view(-1, *part.shape[2:])

    def of_key_bias(self, call: AttentionCall) -> Tensor | None:
        """The key bias of this part by query head, ``[rows, heads, 1, Lk]``."""
        if call.key_bias is None:
            return None
        return self._rows_and_heads(call.key_bias).unsqueeze(2)

    def of_queries(self, tensor: Tensor, queries: slice) -> Tensor:
        """Copy of a block of a tensor by query, rows reversed: ``[N, G * q]`` or ``[.., D]``.

        Reversed, because then a tile of a table by distance is a plain strided view of the table.
        """
        block = self._query_view(tensor)[:, :, :, queries].flip(3).to(self.dtype)
        return block.contiguous().flatten(0, 1).flatten(1, 2)

    def store(self, destination: Tensor, queries: slice, block: Tensor) -> None:
        """The inverse of :meth:`of_queries`."""
        view = self._query_view(destination)[:, :, :, queries]
        view.copy_(block.view_as(view).flip(3))

    def store_keys(self, destination: Tensor, block: Tensor) -> None:
        """The inverse of :meth:`of_keys`."""
        view = destination[self.rows, self.key_heads]
        view.copy_(block.view_as(view))

    def store_key_bias(self, destination: Tensor, block: Tensor) -> None:
        """The inverse of :meth:`of_key_bias`."""
        self._rows_and_heads(destination).copy_(block.squeeze(2))

    def _rows_and_heads(self, tensor: Tensor) -> Tensor:
        """``[B, Hq, ...]`` as this part's ``[rows, heads, ...]``."""
        first, last = self.key_heads.start * self.group, self.key_heads.stop * self.group
        return tensor[self.rows, first:last]

    def _query_view(self, tensor: Tensor) -> Tensor:
        """``[B, Hq, Lq, ...]`` as this part's ``[rows, key heads, G, Lq, ...]``."""
        part = tensor[self.rows]
        return part.view(part.shape[0], -1, self.group, *part.shape[2:])[:, self.key_heads]

    def by_head(self, scores: Tensor) -> Tensor:
        """A tile ``[N, G * q, k]`` as ``[rows, heads, q, k]``."""
        heads = self.group * (self.key_heads.stop - self.key_heads.start)
        rows = self.rows.stop - self.rows.start
        return scores.view(rows, heads, -1, scores.shape[-1])

    def scratch(self) -> Tensor:
        """Memory for one tile of scores."""
        problems = (self.rows.stop - self.rows.start) * (self.key_heads.stop - self.key_heads.start)
        query_positions, key_positions = self.visibility.positions
        queries = min(self.size.queries, query_positions.shape[0])
        keys = min(self.size.keys, key_positions.shape[0])
        scores = problems * self.group * queries * keys
        return torch.empty(scores, dtype=self.dtype, device=key_positions.device)

    def query_blocks(self) -> Iterator[slice]:
        """Blocks of queries in order."""
        return _blocks(self.visibility.positions[0].shape[0], self.size.queries)

    @cached_property
    def _map(self) -> BlockMap:
        return BlockMap(self.visibility, self.size.queries, self.size.keys)

    def tiles(self, queries: slice, key_bias: Tensor | None) -> Iterator[Tile]:
        """Tiles of a block of queries that contain a visible pair.

        A key bias of -inf hides keys, and must keep NaN out like a mask.
        """
        some, full = self._map.rows(queries.start // self.size.queries)
        hides = None if key_bias is None else torch.isneginf(key_bias)
        if hides is not None and not hides.any():
            hides = None
        blocks = _blocks(self.visibility.positions[1].shape[0], self.size.keys)
        for keys, worth, uncut in zip(blocks, some.tolist(), full.tolist(), strict=True):
            if not worth:
                continue
            visibility = self.visibility.tile(queries, keys, backwards=True)
            hidden = None if uncut else ~visibility.visible
            if hides is not None:
                hidden = hides[..., keys] if hidden is None else hidden | hides[..., keys]
            if hidden is None or not hidden.all():
                yield self.affine.tile(queries, keys, visibility, hidden)


def _parts(call: AttentionCall, size: TileSize | None) -> Iterator[_Part]:
    if call.is_empty:
        return
    size, dtype = size or TileSize.for_call(call), compute_dtype(call.query.dtype)
    batch, query_heads, query_length, _ = call.query.shape
    key_heads, key_length = call.key.shape[1:3]
    visibility = call.visibility_with_positions()
    if call.query.device.type == "cpu":
        visibility = visibility.collapsed()
    together = size.scores // (min(size.queries, query_length) * min(size.keys, key_length))
    heads_at_once = min(key_heads, max(1, together // call.group))
    rows_at_once = max(1, together // query_heads) if visibility.rows == 1 else 1
    for rows in _blocks(batch, rows_at_once):
        shared = visibility.row(rows.start)
        for heads in _blocks(key_heads, heads_at_once):
            of_query = slice(heads.start * call.group, heads.stop * call.group)
            affine = affine_tiles(call, shared, of_query, dtype)
            yield _Part(rows, heads, call.group, shared, affine, size, dtype)


def _blocks(length: int, block: int) -> Iterator[slice]:
    for start in range(0, length, block):
        yield slice(start, min(start + block, length))


def _product(left: Tensor, right: Tensor, scratch: Tensor) -> Tensor:
    """``left @ right.mT`` in `scratch`."""
    shape = (left.shape[0], left.shape[1], right.shape[1])
    scores = scratch[: shape[0] * shape[1] * shape[2]].view(shape)
    return torch.bmm(left, right.mT, out=scores)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left @ right``."""
    torch.baddbmm(total, left, right, out=total)


def _row_terms(
    out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient, base and delta of every row.

    ``weight = exp(logit - base)``, ``grad_logit = weight * (grad_weight - delta)``. A row that saw no
    key, or whose gradient is zero, gets an infinite base: its weights vanish, and with them all its
    contributions, even if its output is NaN.
    """
    delta = (grad_out * out).sum(-1, keepdim=True) - grad_lse
    unwanted = (grad_out == 0).all(-1, keepdim=True) & (grad_lse == 0)
    silent = unwanted | (lse == -torch.inf)
    return (
        grad_out.masked_fill_(silent, 0),
        lse.masked_fill(silent, torch.inf),
        delta.masked_fill(silent, 0),
    )


attention = register_opaque("tiled", forward, backward)
