"""How queries and keys are cut over ranks, and calls with parts of both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .._opaque import Gradients
from ..backends import Backend
from ..contract import AttentionCall
from ..numerics import compute_dtype
from ._messages import Format
from ._ranks import Ranks
from .layout import SequenceLayout

ABOUT_KEYS = ("key_positions", "key_mask", "key_documents")
EVERYTHING = slice(None)


class Rows(NamedTuple):
    """Output and log-sum-exp of some queries over all keys, and the gradients of both."""

    out: Tensor
    lse: Tensor
    grad_out: Tensor
    grad_lse: Tensor

    def of(self, queries: slice) -> "Rows":
        """The rows of some of the queries."""
        return Rows(*(tensor[:, :, queries] for tensor in self))


@dataclass(frozen=True, eq=False)
class Parts:
    """The ranks of a call, what each of them holds, and the backend of this one.

    With a layout, queries and keys are the same tokens; `has_positions` says whether their positions
    are others than those of the layout.
    """

    backend: Backend
    ranks: Ranks
    query_lengths: tuple[int, ...]  # by rank
    key_lengths: tuple[int, ...]  # by rank
    key_heads: int  # of the whole call
    layout: SequenceLayout | None
    has_positions: bool

    def forward(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """The backend's forward pass, below autograd."""
        assert self.backend.forward is not None
        return self.backend.forward(call)

    def backward(self, call: AttentionCall, rows: Rows, affine_grads: bool) -> Gradients:
        """The backend's backward pass, below autograd, with gradients in the compute dtype."""
        assert self.backend.backward is not None
        return self.backend.backward(call, *rows, affine_grads, unrounded=True)

    def chunks(self, rank: int, lengths: Sequence[int]) -> list[slice]:
        """A rank's part of the sequence in slices, each contiguous if the layout is known."""
        if self.layout is None:
            return [slice(0, lengths[rank])]
        ends = accumulate(map(len, self.layout.of_rank(rank).chunks), initial=0)
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def whole(self, by_rank: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
        """The whole of a tensor from its parts, in the order of the sequence if the layout is known."""
        dim = along_sequence(by_rank[0])
        return torch.cat([_slice(by_rank[r], chunk, dim) for r, chunk in self._order(lengths)], dim)

    def by_rank(self, whole: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """The inverse of :meth:`whole`."""
        dim, order = along_sequence(whole), self._order(lengths)
        pieces = whole.split_with_sizes([chunk.stop - chunk.start for _, chunk in order], dim)
        parts: list[list[tuple[int, Tensor]]] = [[] for _ in lengths]
        for (rank, chunk), piece in zip(order, pieces, strict=True):
            parts[rank].append((chunk.start, piece))
        ordered = (sorted(part, key=lambda it: it[0]) for part in parts)
        return [torch.cat([piece for _, piece in part], dim) for part in ordered]

    def _order(self, lengths: Sequence[int]) -> list[tuple[int, slice]]:
        ranks = range(self.ranks.size)
        chunks = [(rank, chunk) for rank in ranks for chunk in self.chunks(rank, lengths)]
        layout = self.layout
        if layout is None:
            return chunks
        starts = [part.start for rank in ranks for part in layout.of_rank(rank).chunks]
        by_start = sorted(zip(starts, chunks, strict=True), key=lambda it: it[0])
        return [chunk for _, chunk in by_start]


@dataclass(frozen=True, eq=False)
class Result:
    """Output and log-sum-exp of this rank's queries, and what backward needs.

    The output is in the compute dtype or already rounded; `kept_out` is in the compute dtype.
    """

    out: Tensor
    lse: Tensor
    kept: AttentionCall
    kept_out: Tensor
    kept_lse: Tensor


class GradientSums:
    """Sums over calls: of the gradients of queries, and in float64 of those of the affine."""

    def __init__(self, call: AttentionCall) -> None:
        dtype = compute_dtype(call.query.dtype)
        self.query = torch.zeros(call.query.shape, dtype=dtype, device=call.query.device)
        self.affine = [
            None if t is None else torch.zeros_like(t, dtype=torch.float64)
            for t in (call.gain, call.bias, call.tau)
        ]

    def add(self, grads: Gradients, queries: slice) -> None:
        """Add the gradients of a call with some of the queries."""
        self.query[:, :, queries] += grads.query
        for total, grad in zip(self.affine, (grads.gain, grads.bias, grads.tau), strict=True):
            if total is not None and grad is not None:
                total += grad


def learned_of(holder: AttentionCall | Gradients) -> list[Tensor]:
    """Keys, values and the key bias, if there is one; or their gradients."""
    key_bias = [] if holder.key_bias is None else [holder.key_bias]
    return [holder.key, holder.value, *key_bias]


def gradients(
    query: Tensor, of_keys: Sequence[Tensor], affine: Sequence[Tensor | None]
) -> Gradients:
    """All gradients of a call; `of_keys` as :func:`learned_of` lists them."""
    key, value, *key_bias = of_keys
    return Gradients(query, key, value, key_bias[0] if key_bias else None, *affine)


def keys_of(call: AttentionCall) -> list[Tensor]:
    """Keys, values, and everything that is known about them."""
    about = (getattr(call.visibility, name) for name in ABOUT_KEYS)
    return [*learned_of(call), *(tensor for tensor in about if tensor is not None)]


def with_keys(call: AttentionCall, tensors: Sequence[Tensor]) -> AttentionCall:
    """The call with other keys: the inverse of :func:`keys_of`."""
    key, value, *about = tensors
    key_bias = None if call.key_bias is None else about.pop(0)
    names = [name for name in ABOUT_KEYS if getattr(call.visibility, name) is not None]
    visibility = replace(call.visibility, **dict(zip(names, about, strict=True)))  # type: ignore[arg-type]
    return replace(call, key=key, value=value, key_bias=key_bias, visibility=visibility)


def cut(call: AttentionCall, queries: slice, keys: slice) -> AttentionCall:
    """The call with some of its queries and some of its keys."""
    return replace(
        call,
        query=call.query[:, :, queries],
        key=call.key[:, :, keys],
        value=call.value[:, :, keys],
        key_bias=None if call.key_bias is None else call.key_bias[:, :, keys],
        visibility=call.visibility.tile(queries, keys),
    )


def along_sequence(tensor: Tensor) -> int:
    """The dimension of the sequence: after heads, or after rows alone."""
    return min(2, tensor.ndim - 1)


def format_with_length(tensors: Sequence[Tensor], length: int) -> Format:
    """The format of a message with tensors like these, of another length."""
    dims = [along_sequence(tensor) for tensor in tensors]
    shapes = [(*t.shape[:d], length, *t.shape[d + 1 :]) for t, d in zip(tensors, dims, strict=True)]
    return Format(tuple((s, t.dtype) for s, t in zip(shapes, tensors, strict=True)))


def _slice(tensor: Tensor, part: slice, dim: int) -> Tensor:
    return tensor.narrow(dim, part.start, part.stop - part.start)
