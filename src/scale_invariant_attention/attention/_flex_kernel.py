"""Compiled FlexAttention kernels: one for each kind of call, for all lengths."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from ..theory.transform import scale_invariant_gain_and_bias
from .block_map import BlockMap
from .contract import AttentionCall
from .visibility import Visibility

BLOCK = 128

Kernel = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


def kernel_for(call: AttentionCall, return_lse: bool) -> Kernel:
    """Attention for a call, as a function of query, key and value."""
    visibility = call.visibility_with_positions()
    kind = _kind(call, visibility, return_lse)
    data = _data(call, visibility, kind)
    # Inside a compiled function, the program becomes part of that function.
    run = _program(kind) if torch.compiler.is_compiling() else _compiled(kind)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
        return run(*(_standalone(tensor) for tensor in (query, key, value, *data)))

    return attend


@dataclass(frozen=True)
class _Kind:
    """Everything that is fixed in a compiled kernel; the rest is data."""

    batch: int
    query_heads: int
    key_heads: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    rows: int
    affine_heads: int
    tables: bool
    is_causal: bool
    masked: bool
    documents: bool
    window: bool
    sinks: bool
    key_bias: bool
    return_lse: bool
    requires_grad: bool
    # Settings of torch at compilation; a change compiles again.
    threads: int
    deterministic: bool
    default_dtype: torch.dtype


def _kind(call: AttentionCall, visibility: Visibility, return_lse: bool) -> _Kind:
    affine = call.gain if call.tau is None else call.tau
    assert affine is not None
    bias_heads = 1 if call.bias is None else call.bias.shape[0]
    return _Kind(
        batch=call.query.shape[0],
        query_heads=call.query.shape[1],
        key_heads=call.key.shape[1],
        head_dim=call.query.shape[3],
        value_dim=call.value.shape[3],
        dtype=call.query.dtype,
        device=call.query.device,
        rows=visibility.rows,
        affine_heads=max(affine.shape[0], bias_heads),
        tables=call.tau is None,
        is_causal=visibility.is_causal,
        masked=visibility.key_mask is not None,
        documents=visibility.key_documents is not None,
        window=visibility.window is not None,
        sinks=visibility.sinks > 0,
        key_bias=call.key_bias is not None,
        return_lse=return_lse,
        requires_grad=call.requires_grad,
        threads=torch.get_num_threads(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        default_dtype=torch.get_default_dtype(),
    )


def _data(call: AttentionCall, visibility: Visibility, kind: _Kind) -> tuple[Tensor, ...]:
    """Inputs of a kernel besides query, key and value, in the order of :func:`_program`."""
    if call.tau is not None:
        affine = call.tau.float()
    else:
        assert call.gain is not None
        assert call.bias is not None
        tables = (table.float().expand(kind.affine_heads, -1) for table in (call.gain, call.bias))
        affine = torch.stack(tuple(tables))
        if affine.shape[2] == 1:
            affine = affine.expand(-1, -1, 2)

    def stacked(positions: Tensor, documents: Tensor | None, mask: Tensor | None) -> Tensor:
        rest = (torch.zeros_like(positions) if part is None else part for part in (documents, mask))
        return torch.stack([part.long().expand(kind.rows, -1) for part in (positions, *rest)])

    query_positions, key_positions = visibility.positions
    by_query = stacked(query_positions, visibility.query_documents, None)
    by_key = stacked(key_positions, visibility.key_documents, visibility.key_mask)
    device = call.query.device
    settings = torch.tensor([visibility.window or 0, visibility.sinks], device=device)
    scale = torch.full((1,), call.scale, device=device)
    partial, full = visible_blocks(visibility, BLOCK, BLOCK)
    # An empty tensor stands for no bias: a kernel that has none does not read it.
    key_bias = scale.new_empty(0) if call.key_bias is None else call.key_bias.detach()
    if call.key_bias is not None:
        hides = _blocks_with_hidden_keys(key_bias, full.shape[-1])
        partial, full = partial | (full & hides), full & ~hides
    lists = (*as_list(_at_least_two(partial)), *as_list(_at_least_two(full)))
    return (scale, affine, by_query, by_key, settings, key_bias, *lists)


def _blocks_with_hidden_keys(key_bias: Tensor, blocks: int) -> Tensor:
    """Which key blocks hold a key that is hidden for any batch row or head: ``[1, 1, 1, blocks]``."""
    hidden = torch.isneginf(key_bias).any(0).any(0)
    return F.pad(hidden, (0, blocks * BLOCK - hidden.shape[0])).view(1, 1, 1, blocks, BLOCK).any(-1)


def visible_blocks(
    visibility: Visibility, query_block: int, key_block: int
) -> tuple[Tensor, Tensor]:
    """Which blocks are partially, and which fully visible: ``[R, 1, query blocks, key blocks]``."""
    some, full = [], []
    for index in range(visibility.rows):
        blocks = BlockMap(visibility.row(index), query_block, key_block)
        every = torch.arange(blocks.query_low.shape[0], device=blocks.query_low.device)
        of_row = blocks.rows(every.unsqueeze(-1))
        shape = (every.shape[0], blocks.key_low.shape[0])
        some.append(of_row[0].expand(shape))
        full.append(of_row[1].expand(shape))
    all_some, all_full = torch.stack(some).unsqueeze(1), torch.stack(full).unsqueeze(1)
    return all_some & ~all_full, all_full


def _at_least_two(chosen: Tensor) -> Tensor:
    """Add an empty block to a single one, for which alone the kernel would be compiled."""
    rows, columns = chosen.shape[-2:]
    return F.pad(chosen, (0, 1 if columns == 1 else 0, 0, 1 if rows == 1 else 0))


def as_list(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Number and indices of the chosen key blocks of every query block."""
    indices = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), indices.int()


def _program(kind: _Kind) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function to compile for a kind of call.

    Shapes, with R = 1 or B: scale ``[1]``; affine ``[2, 1 or Hq, length]`` (gain, bias) or
    ``[1 or Hq]`` (tau); by_query and by_key ``[3, R, length]``: positions, documents, mask;
    settings ``[2]``: window, sinks; key_bias ``[B, Hq, length]``.
    """
    # The compiler would take captured numbers for lengths: capture only flags.
    per_row, per_head = kind.rows > 1, kind.affine_heads > 1
    grouped = kind.query_heads != kind.key_heads
    tables, is_causal, masked, documents = kind.tables, kind.is_causal, kind.masked, kind.documents
    window, sinks, return_lse = kind.window, kind.sinks, kind.return_lse
    biased, requires_grad = kind.key_bias, kind.requires_grad

    # torch's C++ template replaces the names of its sizes as text, "ks1" also inside "ks15", and
    # numbers the others by a hash of the argument's name. "queries", "keys_by_head" and "affine"
    # happen to get numbers above 80, which are out of its way.
    def program(
        queries: Tensor,
        keys_by_head: Tensor,
        value: Tensor,
        scale: Tensor,
        affine: Tensor,
        by_query: Tensor,
        by_key: Tensor,
        settings: Tensor,
        key_bias: Tensor,
        partial_counts: Tensor,
        partial_blocks: Tensor,
        full_counts: Tensor,
        full_blocks: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        def distance(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = b if per_row else 0
            offset = by_query[0, row, i] - by_key[0, row, j]
            return offset.clamp_min(0) if is_causal else offset.abs()

        def logit(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            t = distance(b, i, j)
            head = h if per_head else 0
            if tables:
                # Distances beyond the tables belong to hidden pairs.
                index = torch.where(t < affine.shape[2], t, affine.shape[2] - 1)
                gain, bias = affine[0, head, index], affine[1, head, index]
            else:
                gain, bias = scale_invariant_gain_and_bias(t.float(), affine[head])
            if sinks:
                sink = by_key[0, b if per_row else 0, j] < settings[1]
                gain, bias = torch.where(sink, 1.0, gain), torch.where(sink, 0.0, bias)
            if biased:
                bias = bias + key_bias[b, h, j]
            return gain * scale[0] * score + bias

        def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = b if per_row else 0
            position, other = by_query[0, row, i], by_key[0, row, j]
            seen = position >= other if is_causal else j >= 0
            if window:
                near = distance(b, i, j) < settings[0]
                seen = seen & ((near | (other < settings[1])) if sinks else near)
            if documents:
                seen = seen & (by_query[1, row, i] == by_key[1, row, j])
            if masked:
                seen = seen & (by_key[2, row, j] > 0)
            if biased:
                seen = seen & (key_bias[b, h, j] != -torch.inf)
            return seen

        block_mask = BlockMask.from_kv_blocks(
            partial_counts,
            partial_blocks,
            full_counts,
            full_blocks,
            BLOCK_SIZE=BLOCK,
            mask_mod=visible,
            seq_lengths=(queries.shape[2], keys_by_head.shape[2]),
            compute_q_blocks=requires_grad,
        )
        result: Any = flex_attention(
            queries,
            keys_by_head,
            value,
            score_mod=logit,
            block_mask=block_mask,
            scale=1.0,
            enable_gqa=grouped,
            return_aux=AuxRequest(lse=True) if return_lse else None,
        )
        if not return_lse:
            return result, None
        out, aux = result
        return out, aux.lse

    return program


@lru_cache(maxsize=256)
def _compiled(kind: _Kind) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The kernel for a kind of call, compiled on an example.

    The lengths of the example all differ, so that the compiler assumes none of them to be equal, and
    the kernel fits calls of any lengths.
    """
    kernel: Callable[..., tuple[Tensor, Tensor | None]] = torch.compile(  # type: ignore[call-overload]
        _program(kind), fullgraph=True, dynamic=True, isolate_recompiles=True
    )
    call = _specimen(kind)
    inputs = (call.query, call.key, call.value, *_data(call, call.visibility, kind))
    tensors = [_standalone(tensor) for tensor in inputs]
    lengths_at = [(2,), (2,), (2,), (), (2,) if kind.tables else (), (2,), (2,), ()]
    lengths_at += [(2,) if kind.key_bias else (), *[(2,), (2, 3)] * 2]
    for tensor, dynamic in zip(tensors, lengths_at, strict=True):
        fixed = [dim for dim in range(tensor.ndim) if dim not in dynamic]
        torch._dynamo.mark_static(tensor, fixed)
    kernel(*tensors)
    return kernel


def _specimen(kind: _Kind) -> AttentionCall:
    """A small call of a kind, whose lengths all differ, in elements and in blocks."""
    query_length, key_length, table_length = 3 * BLOCK + 7, 5 * BLOCK + 11, 6 * BLOCK + 13
    device = kind.device

    def zeros(heads: int, length: int, size: int) -> Tensor:
        shape = (kind.batch, heads, length, size)
        tensor = torch.zeros(shape, dtype=kind.dtype, device=device)
        return tensor.requires_grad_(kind.requires_grad)

    def integers(length: int) -> Tensor:
        return torch.arange(length, device=device).repeat(kind.rows, 1)

    table = torch.ones(kind.affine_heads, table_length, device=device)
    key_bias = torch.zeros(kind.batch, kind.query_heads, key_length, device=device)
    mask = torch.ones(kind.batch, key_length, dtype=torch.bool, device=device)
    return AttentionCall(
        query=zeros(kind.query_heads, query_length, kind.head_dim),
        key=zeros(kind.key_heads, key_length, kind.head_dim),
        value=zeros(kind.key_heads, key_length, kind.value_dim),
        key_bias=key_bias if kind.key_bias else None,
        gain=table if kind.tables else None,
        bias=table if kind.tables else None,
        tau=None if kind.tables else torch.ones(kind.affine_heads, device=device),
        visibility=Visibility(
            query_positions=integers(query_length),
            key_positions=integers(key_length),
            key_mask=mask if kind.masked else None,
            query_documents=integers(query_length) if kind.documents else None,
            key_documents=integers(key_length) if kind.documents else None,
            is_causal=kind.is_causal,
            window=1 if kind.window else None,
            sinks=1 if kind.sinks else 0,
        ),
        scale=1.0,
    )


def _standalone(tensor: Tensor) -> Tensor:
    """The same memory as a contiguous tensor that is not a view.

    For a view, or one tensor passed twice (key as value), the kernel would be specialised.
    """
    tensor = tensor.contiguous()
    if tensor.requires_grad or torch.compiler.is_compiling():
        return tensor
    return tensor.new_empty(0).set_(tensor)  # type: ignore[call-overload, no-any-return]
