"""How queries and keys are cut over ranks, and sums over calls with parts of both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

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


@dataclass(frozen=True, eq=False)
class Parts:
    """The ranks of a call, what each of them holds, and the backend of this one."""

    backend: Backend
    ranks: Ranks
    query_lengths: Sequence[int]  # by rank
    key_lengths: Sequence[int]  # by rank
    layout: SequenceLayout | None

    def query_chunks(self) -> list[slice]:
        """This rank's queries, each slice contiguous in the sequence if the layout is known."""
        return self._chunks(self.ranks.rank, self.query_lengths)

    def key_chunks(self, rank: int) -> list[slice]:
        """The keys of a rank, in the same way."""
        return self._chunks(rank, self.key_lengths)

    def _chunks(self, rank: int, lengths: Sequence[int]) -> list[slice]:
        if self.layout is None:
            return [slice(0, lengths[rank])]
        ends = accumulate(map(len, self.layout.of_rank(rank).chunks), initial=0)
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def in_order(self) -> list[tuple[int, slice]]:
        """Rank and slice of all chunks of keys, in the order of the sequence if the layout is known."""
        chunks = [
            (rank, chunk) for rank in range(self.ranks.size) for chunk in self.key_chunks(rank)
        ]
        layout = self.layout
        if layout is None:
            return chunks
        every = (layout.of_rank(rank) for rank in range(self.ranks.size))
        starts = [part.start for it in every for part in it.chunks]
        return [
            chunk for _, chunk in sorted(zip(starts, chunks, strict=True), key=lambda it: it[0])
        ]


@dataclass(frozen=True, eq=False)
class Result:
    """Output and log-sum-exp of this rank's queries, in the compute dtype, and what backward needs."""

    out: Tensor
    lse: Tensor
    kept: AttentionCall
    kept_out: Tensor
    kept_lse: Tensor


def keys_of(call: AttentionCall) -> list[Tensor]:
    """Keys, values, and everything that is known about them."""
    about = (getattr(call.visibility, name) for name in ABOUT_KEYS)
    return [call.key, call.value, *(tensor for tensor in about if tensor is not None)]


def with_keys(call: AttentionCall, tensors: Sequence[Tensor]) -> AttentionCall:
    """The call with other keys: the inverse of :func:`keys_of`."""
    key, value, *about = tensors
    names = [name for name in ABOUT_KEYS if getattr(call.visibility, name) is not None]
    visibility = replace(call.visibility, **dict(zip(names, about, strict=True)))  # type: ignore[arg-type]
    return replace(call, key=key, value=value, visibility=visibility)


def along_sequence(tensor: Tensor) -> int:
    """The dimension of the sequence: heads come before it, or only rows."""
    return 2 if tensor.ndim == 4 else 1


def cut(
    call: AttentionCall, queries: slice = EVERYTHING, keys: slice = EVERYTHING
) -> AttentionCall:
    """The call with some of its queries and some of its keys."""
    return replace(
        call,
        query=call.query[:, :, queries],
        key=call.key[:, :, keys],
        value=call.value[:, :, keys],
        visibility=call.visibility.tile(queries, keys),
    )


def keys_format(call: AttentionCall, length: int) -> Format:
    """The format of a message with `length` keys of calls like this one."""
    return Format(
        tuple(
            ((*t.shape[: along_sequence(t)], length, *t.shape[along_sequence(t) + 1 :]), t.dtype)
            for t in keys_of(call)
        )
    )


class GradientSums:
    """Sums of the gradients of a call over parts of its queries and keys: in the compute dtype, those of
    the affine in float64.
    """

    def __init__(self, call: AttentionCall) -> None:
        dtype = compute_dtype(call.query.dtype)
        self.query, self.key, self.value = (
            torch.zeros(t.shape, dtype=dtype, device=t.device)
            for t in (call.query, call.key, call.value)
        )
        self.affine = [
            None if t is None else torch.zeros_like(t, dtype=torch.float64)
            for t in (call.gain, call.bias, call.tau)
        ]

    def add(self, grads: Gradients, queries: slice = EVERYTHING, keys: slice = EVERYTHING) -> None:
        """Add the gradients of a part."""
        self.query[:, :, queries] += grads.query
        self.key[:, :, keys] += grads.key
        self.value[:, :, keys] += grads.value
        for total, grad in zip(self.affine, grads[3:], strict=True):
            if total is not None and grad is not None:
                total += grad


def over_chunks(call: AttentionCall, parts: Parts) -> Iterator[tuple[slice, AttentionCall]]:
    """The queries of a call, chunk by chunk: where they are, and the call with them."""
    chunks = parts.query_chunks()
    for queries in chunks:
        yield queries, call if len(chunks) == 1 else cut(call, queries)
