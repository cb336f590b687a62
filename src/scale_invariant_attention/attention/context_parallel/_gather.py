"""Method "gather": every rank gathers all keys and values, and calls the op with its own queries.

In backward they are gathered again, instead of being kept; then every rank sends the others the
gradients of their keys and values, and sums what it receives in the order of the ranks.
"""

import torch
from torch import Tensor

from .._opaque import Gradients
from ..contract import AttentionCall
from ._messages import Format, exchange, gather, pack
from ._parts import (
    GradientSums,
    Parts,
    Result,
    along_sequence,
    keys_format,
    keys_of,
    over_chunks,
    with_keys,
)
from ._ranks import Ranks


def refusal(call: AttentionCall, ranks: Ranks) -> str | None:
    """Why the method cannot run a call: it can run any."""
    return None


def forward(call: AttentionCall, parts: Parts) -> Result:
    """The results of this rank's queries."""
    forward_below = parts.backend.forward
    assert forward_below is not None
    whole = _with_all_keys(call, parts)
    out, lse = call.nothing_seen()
    for queries, part in over_chunks(whole, parts):
        out[:, :, queries], lse[:, :, queries] = forward_below(part)
    return Result(out, lse, call, out, lse)


def backward(
    call: AttentionCall,
    parts: Parts,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    affine_grads: bool,
) -> Gradients:
    """The gradients of this rank's inputs, and its part of those of the affine."""
    backward_below = parts.backend.backward
    assert backward_below is not None
    whole = _with_all_keys(call, parts)
    sums = GradientSums(whole)
    for queries, part in over_chunks(whole, parts):
        rows = [t[:, :, queries] for t in (out, lse, grad_out, grad_lse)]
        sums.add(backward_below(part, *rows, affine_grads, unrounded=True), queries)  # type: ignore[misc, arg-type]
    key, value = _to_their_ranks(sums, parts)
    return Gradients(sums.query, key, value, *sums.affine)


def _with_all_keys(call: AttentionCall, parts: Parts) -> AttentionCall:
    formats = [keys_format(call, length) for length in parts.key_lengths]
    messages = gather(pack(keys_of(call)), parts.ranks, [it.nbytes for it in formats])
    by_rank = [form.unpack(it) for form, it in zip(formats, messages, strict=True)]
    chunks = [
        [t.narrow(along_sequence(t), keys.start, keys.stop - keys.start) for t in by_rank[rank]]
        for rank, keys in parts.in_order()
    ]
    tensors = zip(*chunks, strict=True)
    return with_keys(call, [torch.cat(it, along_sequence(it[0])) for it in tensors])


def _to_their_ranks(sums: GradientSums, parts: Parts) -> list[Tensor]:
    """Send each rank the gradients of its keys and values, and sum those of this rank's."""
    whole, ranks = (sums.key, sums.value), parts.ranks
    order = parts.in_order()
    lengths = [keys.stop - keys.start for _, keys in order]
    pieces = list(zip(*(tensor.split_with_sizes(lengths, 2) for tensor in whole), strict=True))
    messages = []
    for rank in range(ranks.size):
        own = [(keys.start, it) for (r, keys), it in zip(order, pieces, strict=True) if r == rank]
        chunks = [it for _, it in sorted(own, key=lambda it: it[0])]
        messages.append(pack([torch.cat(it, 2) for it in zip(*chunks, strict=True)]))
    length = parts.key_lengths[ranks.rank]
    form = Format(tuple(((*t.shape[:2], length, t.shape[3]), t.dtype) for t in whole))
    received = exchange(messages, ranks, [form.nbytes] * ranks.size)
    totals, *others = (form.unpack(message) for message in received)
    for other in others:
        for total, grad in zip(totals, other, strict=True):
            total += grad
    return totals
