"""Method "heads": ranks exchange sequence for heads, and each computes some heads of the whole sequence.

Key heads are shared out like query heads; if there are fewer of them than ranks, several ranks receive
the same one, and its gradients are summed in the order of the ranks. Tables and tau by head are cut.
The key bias, which every query head has, travels with the query heads.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .._opaque import Gradients
from ..contract import AttentionCall
from ..visibility import TENSORS
from ._messages import exchange, pack
from ._parts import Parts, Result, Rows, format_with_length, gradients, learned_of
from ._ranks import Ranks


def refusal(call: AttentionCall, ranks: Ranks) -> str | None:
    """Why the method cannot run a call."""
    heads, key_heads, size = call.query.shape[1], call.key.shape[1], ranks.size
    if heads % size:
        return f"query has {heads} heads, which {size} ranks cannot share; use 'ring' or 'gather'"
    if key_heads % size and size % key_heads:
        return (
            f"key has {key_heads} heads, neither a multiple nor a divisor of {size} ranks; "
            "use 'ring' or 'gather'"
        )
    return None


def forward(call: AttentionCall, parts: Parts) -> Result:
    """The results of this rank's queries."""
    kept = _whole_sequence(call, parts)
    out, lse = parts.forward(_with_own_tables(kept, parts))
    # Rounded as the op rounds it, so that fewer bytes travel.
    by_heads = _hand_back([out.to(call.query.dtype), lse], parts, parts.query_lengths)
    local_out, local_lse = (torch.cat(it, 1) for it in zip(*by_heads, strict=True))
    return Result(local_out, local_lse, kept, out, lse)


def backward(call: AttentionCall, parts: Parts, rows: Rows, affine_grads: bool) -> Gradients:
    """The gradients of this rank's inputs, and its part of those of the affine."""
    size, heads, dtype = parts.ranks.size, call.query.shape[1], call.query.dtype
    grad_out, grad_lse = _share_out(
        [[t[:, it : it + heads] for t in rows[2:]] for it in range(0, size * heads, heads)],
        parts,
        parts.query_lengths,
    )
    ours = Rows(rows.out, rows.lse, grad_out.to(rows.out.dtype), grad_lse)
    grads = parts.backward(_with_own_tables(call, parts), ours, affine_grads)
    by_heads = _hand_back([grads.query.to(dtype)], parts, parts.query_lengths)
    query = torch.cat([it[0] for it in by_heads], 1)
    # Gradients of a key head that several ranks share are sums, which are rounded last.
    sharing = max(1, size // parts.key_heads)
    keys = [grad if sharing > 1 else grad.to(dtype) for grad in (grads.key, grads.value)]
    by_heads = _hand_back([*keys, *learned_of(grads)[2:]], parts, parts.key_lengths)
    by_name = list(zip(*by_heads, strict=True))
    of_keys = [_sums_of_shared(it, sharing) for it in by_name[:2]]
    of_keys += [torch.cat(it, 1) for it in by_name[2:]]
    affine = [
        None if grad is None or table is None else _among_all_heads(grad, table, parts)
        for grad, table in (
            (grads.gain, call.gain),
            (grads.bias, call.bias),
            (grads.tau, call.tau),
        )
    ]
    return gradients(query, of_keys, affine)


def _whole_sequence(call: AttentionCall, parts: Parts) -> AttentionCall:
    """The call with this rank's heads of the whole sequence; tables and tau are not yet cut."""
    size, key_heads = parts.ranks.size, parts.key_heads
    heads, each = call.query.shape[1] // size, max(1, key_heads // size)
    by_rank = [slice(it, it + heads) for it in range(0, size * heads, heads)]
    firsts = [rank * key_heads // size for rank in range(size)]
    names = [name for name in TENSORS if getattr(call.visibility, name) is not None]
    if parts.layout is not None and not parts.has_positions:
        # In order, the whole sequence has the default positions.
        names = [name for name in names if not name.endswith("positions")]
    of_queries = [name for name in names if name.startswith("query")]
    of_keys = [name for name in names if name.startswith("key")]
    query, *about_queries = _share_out(
        [
            [call.query[:, own], *(getattr(call.visibility, name) for name in of_queries)]
            for own in by_rank
        ],
        parts,
        parts.query_lengths,
    )
    about = [getattr(call.visibility, name) for name in of_keys]
    biases = learned_of(call)[2:]
    key, value, *about_keys = _share_out(
        [
            [
                *(t[:, it : it + each] for t in (call.key, call.value)),
                *(t[:, own] for t in biases),
                *about,
            ]
            for it, own in zip(firsts, by_rank, strict=True)
        ],
        parts,
        parts.key_lengths,
    )
    key_bias = about_keys.pop(0) if biases else None
    found = dict(zip((*of_queries, *of_keys), (*about_queries, *about_keys), strict=True))
    visibility = replace(call.visibility, **{name: found.get(name) for name in TENSORS})  # type: ignore[arg-type]
    return replace(
        call, query=query, key=key, value=value, key_bias=key_bias, visibility=visibility
    )


def _with_own_tables(call: AttentionCall, parts: Parts) -> AttentionCall:
    heads = call.query.shape[1]
    own = slice(parts.ranks.rank * heads, (parts.ranks.rank + 1) * heads)
    tables = {"gain": call.gain, "bias": call.bias, "tau": call.tau}
    cut = {n: t[own] if t is not None and t.shape[0] > 1 else t for n, t in tables.items()}
    return replace(call, **cut)  # type: ignore[arg-type]


def _among_all_heads(grad: Tensor, table: Tensor, parts: Parts) -> Tensor:
    """A gradient of this rank's rows of a table, among zeros for those of the other ranks."""
    if table.shape[0] == 1:
        return grad
    rows, rank = table.shape[0] // parts.ranks.size, parts.ranks.rank
    among = torch.zeros_like(table)
    among[rank * rows : (rank + 1) * rows] = grad
    return among


def _share_out(
    for_ranks: Sequence[Sequence[Tensor]], parts: Parts, lengths: Sequence[int]
) -> list[Tensor]:
    """Send each rank its tensors, and join what the ranks sent along the sequence."""
    formats = [format_with_length(for_ranks[0], length) for length in lengths]
    sizes = [form.nbytes for form in formats]
    received = exchange([pack(it) for it in for_ranks], parts.ranks, sizes)
    by_rank = (form.unpack(it) for form, it in zip(formats, received, strict=True))
    return [parts.whole(it, lengths) for it in zip(*by_rank, strict=True)]


def _hand_back(
    tensors: Sequence[Tensor], parts: Parts, lengths: Sequence[int]
) -> list[list[Tensor]]:
    """Send each rank its part of the sequence; the tensors that this rank receives, by their heads."""
    ranks, own = parts.ranks, lengths[parts.ranks.rank]
    for_ranks = zip(*(parts.by_rank(tensor, lengths) for tensor in tensors), strict=True)
    form = format_with_length(tensors, own)
    received = exchange([pack(it) for it in for_ranks], ranks, [form.nbytes] * ranks.size)
    return [form.unpack(message) for message in received]


def _sums_of_shared(by_heads: Sequence[Tensor], sharing: int) -> Tensor:
    """The gradients of all key heads, each the sum over the ranks that share it."""
    heads = []
    for first in range(0, len(by_heads), sharing):
        total, *others = by_heads[first : first + sharing]
        for other in others:
            total += other
        heads.append(total)
    return torch.cat(heads, 1)
