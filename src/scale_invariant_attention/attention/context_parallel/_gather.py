"""Method "gather": every rank gathers all keys and values, and calls the op with its own queries.

In backward they are gathered again, instead of being kept; then every rank sends the others the
gradients of their keys and values, and sums what it receives in the order of the ranks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .._opaque import Gradients
from ..contract import AttentionCall
from ._messages import exchange, gather, pack
from ._parts import (
    EVERYTHING,
    GradientSums,
    Parts,
    Result,
    Rows,
    cut,
    format_with_length,
    gradients,
    keys_of,
    learned_of,
    with_keys,
)
from ._ranks import Ranks


def refusal(call: AttentionCall, ranks: Ranks) -> str | None:
    """Why the method cannot run a call: it can run any."""
    return None


def forward(call: AttentionCall, parts: Parts) -> Result:
    """The results of this rank's queries."""
    whole = _with_all_keys(call, parts)
    out, lse = call.nothing_seen()
    for queries in parts.chunks(parts.ranks.rank, parts.query_lengths):
        out[:, :, queries], lse[:, :, queries] = parts.forward(cut(whole, queries, EVERYTHING))
    return Result(out, lse, call, out, lse)


def backward(call: AttentionCall, parts: Parts, rows: Rows, affine_grads: bool) -> Gradients:
    """The gradients of this rank's inputs, and its part of those of the affine."""
    whole = _with_all_keys(call, parts)
    sums = GradientSums(call)
    totals = [torch.zeros_like(t, dtype=rows.out.dtype) for t in learned_of(whole)]
    for queries in parts.chunks(parts.ranks.rank, parts.query_lengths):
        part = cut(whole, queries, EVERYTHING)
        grads = parts.backward(part, rows.of(queries), affine_grads)
        sums.add(grads, queries)
        for total, grad in zip(totals, learned_of(grads), strict=True):
            total += grad
    return gradients(sums.query, _sums_of_own(totals, parts), sums.affine)


def _with_all_keys(call: AttentionCall, parts: Parts) -> AttentionCall:
    own, lengths = keys_of(call), parts.key_lengths
    formats = [format_with_length(own, length) for length in lengths]
    messages = gather(pack(own), parts.ranks, [it.nbytes for it in formats])
    by_rank = [form.unpack(it) for form, it in zip(formats, messages, strict=True)]
    return with_keys(call, [parts.whole(it, lengths) for it in zip(*by_rank, strict=True)])


def _sums_of_own(wholes: Sequence[Tensor], parts: Parts) -> list[Tensor]:
    """Send each rank the gradients of its keys, values and key bias, and sum those of this rank's."""
    ranks, lengths = parts.ranks, parts.key_lengths
    by_rank = zip(*(parts.by_rank(whole, lengths) for whole in wholes), strict=True)
    form = format_with_length(wholes, lengths[ranks.rank])
    received = exchange([pack(it) for it in by_rank], ranks, [form.nbytes] * ranks.size)
    totals, *others = (form.unpack(message) for message in received)
    for other in others:
        for total, grad in zip(totals, other, strict=True):
            total += grad
    return totals
