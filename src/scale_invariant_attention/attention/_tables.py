"""Gain and bias of a tile, and the reverse: from gradients of tiles to gradients of tables or tau.

If positions are consecutive, gain and bias are constant along the diagonals of the score matrix: a line
of ``Lq + Lk - 1`` values holds all of them, and a tile with its rows reversed is a strided view of it.
Otherwise they are looked up, or computed, for every pair.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..theory.transform import scale_invariant_gain_and_bias, scale_invariant_slopes
from ._affine import look_up, neighbours
from .contract import AttentionCall
from .visibility import Visibility


class AffineGradients:
    """Accumulates the gradients of a call's affine in float64."""

    def __init__(self, call: AttentionCall) -> None:
        self._inputs = (call.gain, call.bias, call.tau)
        self._dimensions = call.visibility.dimensions
        self._sums = tuple(
            None if tensor is None else torch.zeros_like(tensor, dtype=torch.float64)
            for tensor in self._inputs
        )
        self.per_head = any(total is not None and total.shape[0] > 1 for total in self._sums)

    def add(self, heads: slice, distance: Tensor, gain: Tensor, bias: Tensor) -> None:
        """Add gradients ``[heads, n]`` of gain and bias at distances ``[n]``.

        The first dimension is 1 if nothing is per head.
        """
        gain, bias = gain.double(), bias.double()
        sum_gain, sum_bias, sum_tau = self._sums
        tau = self._inputs[2]
        if sum_tau is not None and tau is not None:
            column = _rows(tau, heads).double().unsqueeze(-1)
            gain_slope, bias_slope = scale_invariant_slopes(
                distance.double(), column, self._dimensions
            )
            by_head = (gain * gain_slope + bias * bias_slope).sum(-1)
            _rows(sum_tau, heads).add_(fold(by_head, sum_tau))
        for total, grad in ((sum_gain, gain), (sum_bias, bias)):
            if total is not None:
                self._add_to_table(_rows(total, heads), distance, fold(grad, total))

    def _add_to_table(self, total: Tensor, distance: Tensor, grad: Tensor) -> None:
        """The reverse of :func:`look_up`."""
        # Distances beyond the tables belong to hidden pairs, whose gradient is zero.
        last = total.shape[1] - 1
        if not distance.is_floating_point():
            total.index_add_(1, distance.clamp_max(last), grad)
            return
        below, above, share = neighbours(distance, last)
        total.index_add_(1, below, grad * (1 - share))
        total.index_add_(1, above, grad * share)

    def results(self) -> tuple[Tensor | None, ...]:
        """Gradients of gain, bias and tau in their own dtypes; None for those the call does not have."""
        return tuple(
            None if total is None or tensor is None else total.to(tensor.dtype)
            for total, tensor in zip(self._sums, self._inputs, strict=True)
        )


@dataclass(frozen=True, eq=False)
class Tile:
    """A tile's position, its mask, and its gain and bias ``[1 or heads, q, k]``."""

    queries: slice
    keys: slice
    visibility: Visibility
    hidden: Tensor | None
    gain: Tensor
    bias: Tensor


class AffineTiles:
    """Gain and bias of the tiles of one batch row and some heads, for any positions."""

    def __init__(self, call: AttentionCall, heads: slice, dtype: torch.dtype) -> None:
        self._call, self._heads, self._dtype = call, heads, dtype
        self._hides = call.bias is not None and bool(torch.isneginf(call.bias).any())

    def tile(
        self, queries: slice, keys: slice, visibility: Visibility, hidden: Tensor | None
    ) -> Tile:
        """The tile of `queries`, in reverse, by `keys`; `visibility` is the tile's own."""
        gain, bias = self._gain_and_bias(queries, keys, visibility)
        sink = visibility.sink
        if sink is not None:
            gain, bias = torch.where(sink, 1, gain), torch.where(sink, 0, bias)
        if self._hides:
            # A bias of -inf acts as a mask, and must keep NaN out like one.
            hidden = torch.isneginf(bias) if hidden is None else hidden | torch.isneginf(bias)
        return Tile(queries, keys, visibility, hidden, gain, bias)

    def add_gradients(
        self, tile: Tile, grad_logits: Tensor, scores: Tensor, into: AffineGradients
    ) -> None:
        """Sum the gradients of gain and bias over a tile, ``[rows, heads, q, k]`` each."""
        sink = tile.visibility.sink
        if sink is not None:
            grad_logits = grad_logits.masked_fill(sink, 0)
        rows = 0 if into.per_head else (0, 1)
        gain, bias = (grad_logits * scores).sum(rows), grad_logits.sum(rows)
        shape = (-1, *gain.shape[-2:])
        self._add(tile, gain.view(shape), bias.view(shape), into)

    def finish(self, into: AffineGradients) -> None:
        """Add the gradients that are still held, after the last tile."""

    def _gain_and_bias(
        self, queries: slice, keys: slice, visibility: Visibility
    ) -> tuple[Tensor, Tensor]:
        return self._at(visibility.distance)

    def _add(self, tile: Tile, gain: Tensor, bias: Tensor, into: AffineGradients) -> None:
        distance = tile.visibility.distance.flatten()
        into.add(self._heads, distance, gain.flatten(1), bias.flatten(1))

    def _at(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Gain and bias at any distances, ``[1 or heads, *distance]``."""
        call = self._call
        if call.tau is not None:
            tau = _rows(call.tau, self._heads).double().reshape(-1, *[1] * distance.ndim)
            dimensions = call.visibility.dimensions
            gain, bias = scale_invariant_gain_and_bias(
                distance.double(), tau, dimensions=dimensions
            )
        else:
            assert call.gain is not None
            assert call.bias is not None
            gain, bias = (
                look_up(_rows(table, self._heads), distance) for table in (call.gain, call.bias)
            )
        return gain.to(self._dtype), bias.to(self._dtype)


class _Line(AffineTiles):
    """Tables for consecutive positions: a line by decreasing offset, and tiles as views of it."""

    def __init__(
        self,
        call: AttentionCall,
        heads: slice,
        dtype: torch.dtype,
        visibility: Visibility,
        offset: int,
    ) -> None:
        super().__init__(call, heads, dtype)
        query_positions, key_positions = visibility.positions
        self._queries = query_positions.shape[0]
        least = offset - key_positions.shape[0]
        offsets = torch.arange(offset + self._queries - 1, least, -1, device=key_positions.device)
        self._distance = offsets.clamp_min(0) if visibility.is_causal else offsets.abs()
        self._gain, self._bias = self._at(self._distance)
        self._sums: tuple[Tensor, Tensor] | None = None

    def finish(self, into: AffineGradients) -> None:
        if self._sums is not None:
            into.add(self._heads, self._distance, *self._sums)

    def _span(self, queries: slice, keys: slice) -> slice:
        """Index on the line where a tile starts.

        Row r is query ``queries.stop - 1 - r``, so that the index of a pair, ``start + r + column``,
        increases along both sides of the tile.
        """
        start = self._queries - queries.stop + keys.start
        return slice(start, start + queries.stop - queries.start + keys.stop - keys.start - 1)

    def _gain_and_bias(
        self, queries: slice, keys: slice, visibility: Visibility
    ) -> tuple[Tensor, Tensor]:
        span, width = self._span(queries, keys), keys.stop - keys.start
        return self._gain[:, span].unfold(1, width, 1), self._bias[:, span].unfold(1, width, 1)

    def _add(self, tile: Tile, gain: Tensor, bias: Tensor, into: AffineGradients) -> None:
        if self._sums is None:
            nothing = gain.new_zeros(gain.shape[0], self._distance.shape[0], dtype=torch.float64)
            self._sums = (nothing, nothing.clone())
        span = self._span(tile.queries, tile.keys)
        for total, grad in zip(self._sums, (gain, bias), strict=True):
            total[:, span] += _sum_antidiagonals(grad)


def affine_tiles(
    call: AttentionCall, visibility: Visibility, heads: slice, dtype: torch.dtype
) -> AffineTiles:
    """Tables for some heads of a call, the fast kind if positions are consecutive."""
    if visibility.coordinates is not None:
        return AffineTiles(call, heads, dtype)
    if call.visibility.query_positions is None:
        return _Line(call, heads, dtype, visibility, call.key.shape[2] - call.query.shape[2])
    queries, keys = visibility.positions
    # Reading positions would wait for a GPU, so this is only checked on CPUs.
    if queries.device.type == "cpu" and (queries.diff() == 1).all() and (keys.diff() == 1).all():
        return _Line(call, heads, dtype, visibility, int(queries[0] - keys[0]))
    return AffineTiles(call, heads, dtype)


def _rows(table: Tensor, heads: slice) -> Tensor:
    """Rows of `heads`; a shared table has a single row."""
    return table if table.shape[0] == 1 else table[heads]


def fold(grad: Tensor, total: Tensor) -> Tensor:
    """Gradients by head, summed if the heads share one row of `total`."""
    return grad.sum(0, keepdim=True) if total.shape[0] == 1 else grad


def _sum_antidiagonals(tile: Tensor) -> Tensor:
    """``[h, q, k] -> [h, q + k - 1]``, element n the sum over ``row + column == n``."""
    heads, rows, columns = tile.shape
    # Reading rows that are one element shorter than written shifts each row by one against the row
    # above.
    width = columns + rows - 1
    padded = F.pad(tile, (0, rows)).flatten(1)[:, : rows * width]
    return padded.view(heads, rows, width).sum(1)
