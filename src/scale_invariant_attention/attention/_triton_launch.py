"""Launches of the Triton kernels, in order: forward or decoding, and backward."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ._opaque import Gradients
from ._tables import fold
from ._triton_decode import merge_kernel, split_kernel
from ._triton_diagonals import diagonals_kernel
from ._triton_distances import distances_kernel
from ._triton_forward import forward_kernel
from ._triton_key_gradients import key_gradients_kernel
from ._triton_plan import FAR, Plan, row_stride, rows_in_order
from ._triton_query_gradients import query_gradients_kernel
from ._triton_rows import key_bias_kernel, row_terms_kernel, spoil_kernel
from .contract import AttentionCall

# Rows of a key head up to which the decoding kernel runs: fewer for large heads in float32.
DECODE_ROWS, WIDE_FLOAT32_ROWS = 128, 16
# Rows of a block of the kernels that prepare data by row; tiles divide WHOLE.
PREPARED, WHOLE = 64, 128
# Queries, keys and offsets of a tile in the kernel of the gradients of tables by distance.
SIDE = 32


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a call that is not empty."""
    plan = Plan(call)
    crowded = plan.is_wide and call.query.dtype == torch.float32
    few = plan.query_length * call.group <= (WIDE_FLOAT32_ROWS if crowded else DECODE_ROWS)
    return _decode(plan) if few else _forward(plan)


def _forward(plan: Plan) -> tuple[Tensor, Tensor]:
    tile = plan.tile("forward")
    out = plan.empty(plan.batch, plan.heads, plan.query_length, plan.value_dim)
    lse = plan.empty(plan.batch, plan.heads, plan.query_length)
    padded = _whole_blocks(plan.key_length)
    spoil = plan.empty(plan.batch, plan.key_heads, padded)
    plan.launch(
        spoil_kernel,
        (padded // PREPARED, plan.batch * plan.key_heads),
        **plan.select(
            spoil_kernel,
            plan.inputs,
            spoil=spoil,
            heads=plan.key_heads,
            length=plan.key_length,
            padded=padded,
            BLOCK=PREPARED,
        ),
    )
    query_blocks = triton.cdiv(plan.query_length, tile.queries)
    plan.launch(
        forward_kernel,
        (query_blocks, plan.batch * plan.heads),
        **plan.select(
            forward_kernel,
            plan.inputs,
            plan.affine,
            plan.numerics,
            plan.seen,
            plan.lists(tile),
            _key_bias(plan),
            tile.arguments(),
            out=out,
            lse=lse,
            spoil=spoil,
            spoil_row=padded,
            worst=plan.worst(spoil),
            heads=plan.heads,
            query_blocks=query_blocks,
            key_blocks=triton.cdiv(plan.key_length, tile.keys),
        ),
    )
    return out, lse


def _decode(plan: Plan) -> tuple[Tensor, Tensor]:
    tile = plan.tile("decode")
    rows = plan.query_length * plan.call.group
    first = 0
    window, sinks = plan.call.visibility.window, plan.call.visibility.sinks
    if window is not None and sinks == 0 and not plan.has_positions:
        # No query sees a key before this one.
        first = max(plan.key_length - plan.query_length - window + 1, 0)
        first = min(first, plan.key_length - 1)
    keys = plan.key_length - first
    wanted = triton.cdiv(2 * plan.device.processors, plan.batch * plan.key_heads)
    # Many rows need more registers: those of twice the warps, then of half the keys.
    block = tile.keys if rows <= 64 else max(16, tile.keys // 2)
    split = triton.cdiv(triton.cdiv(keys, wanted), block) * block
    count = triton.cdiv(keys, split)
    parts = plan.empty(plan.batch, plan.heads, plan.query_length, count, plan.value_dim)
    part_lse = plan.empty(plan.batch, plan.heads, plan.query_length, count)
    plan.launch(
        split_kernel,
        (count, plan.batch * plan.key_heads),
        **plan.select(
            split_kernel,
            plan.inputs,
            plan.affine,
            plan.numerics,
            plan.seen,
            _key_bias(plan),
            parts=parts,
            part_lse=part_lse,
            key_heads=plan.key_heads,
            first_key=first,
            split=split,
            ROWS=max(16, triton.next_power_of_2(rows)),
            BLOCK_N=block,
            num_warps=tile.warps if rows <= 32 else 2 * tile.warps,
            num_stages=tile.stages,
        ),
    )
    out = plan.empty(plan.batch, plan.heads, plan.query_length, plan.value_dim)
    lse = plan.empty(plan.batch, plan.heads, plan.query_length)
    plan.launch(
        merge_kernel,
        (plan.batch * plan.heads * plan.query_length,),
        parts=parts,
        part_lse=part_lse,
        out=out,
        lse=lse,
        count=count,
        DV=plan.value_dim,
        BLOCK_DV=plan.blocks[1],
        BLOCK=16,
    )
    return out, lse


def backward(
    call: AttentionCall,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    affine_grads: bool,
    *,
    unrounded: bool = False,
) -> Gradients:
    """Gradients of a call that is not empty."""
    dtype = torch.float32 if unrounded else call.query.dtype
    plan = Plan(call, tau_gradient=affine_grads and call.tau is not None)
    grad_out = rows_in_order(grad_out.to(call.query.dtype))
    if any(stride % plan.unit for stride in grad_out.stride()[:3]):
        grad_out = grad_out.contiguous()
    terms = _row_terms(plan, out.contiguous(), lse.contiguous(), grad_out, grad_lse)
    shared: dict[str, Any] = {
        **plan.inputs,
        **plan.affine,
        **plan.numerics,
        **plan.seen,
        # Rows that see a bias of inf or NaN are NaN already, and silent ones must not become so.
        **_key_bias(plan, finite=True),
        **plan.strides("grad", grad_out),
        "grad_out": grad_out,
        "terms": terms,
        "padded": terms.shape[2],
        "worst": plan.worst(lse),
        "heads": plan.heads,
        "key_heads": plan.key_heads,
    }
    grad_key, grad_value, grad_key_bias = _key_gradients(plan, shared, dtype)
    grad_query, grad_tau = _query_gradients(plan, shared, dtype)
    gain = bias = None
    if affine_grads and call.tau is None:
        sums = _distance_sums if plan.has_positions else _diagonal_sums
        gain, bias = _table_gradients(plan, *sums(plan, shared))
    return Gradients(grad_query, grad_key, grad_value, grad_key_bias, gain, bias, grad_tau)


def _key_bias(plan: Plan, *, finite: bool = False) -> dict[str, Any]:
    """The key biases as kernels read them; `finite` makes those of inf and NaN zeros."""
    given = plan.call.key_bias
    if given is None:
        return {"key_bias": None, "key_bias_batch": None, "key_bias_head": None, "KEY_BIAS": False}
    # What rows or heads share is prepared once.
    rows, heads = (1 if given.stride(dim) == 0 else given.shape[dim] for dim in (0, 1))
    padded = _whole_blocks(plan.key_length)
    key_bias = plan.empty(rows, heads, padded)
    batch, head, row = given.stride()
    plan.launch(
        key_bias_kernel,
        (padded // PREPARED, rows * heads),
        given=given.detach(),
        key_bias=key_bias,
        given_batch=batch,
        given_head=head,
        given_row=row,
        heads=heads,
        length=plan.key_length,
        padded=padded,
        BLOCK=PREPARED,
        FINITE=finite,
    )
    return {
        "key_bias": key_bias,
        "key_bias_batch": row_stride(key_bias),
        "key_bias_head": 0 if heads == 1 else padded,
        "KEY_BIAS": True,
    }


def _row_terms(plan: Plan, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor) -> Tensor:
    padded = _whole_blocks(plan.query_length)
    terms = plan.empty(plan.batch, plan.heads, padded, 2)
    batch, head, row = grad_lse.stride()
    plan.launch(
        row_terms_kernel,
        (padded // PREPARED, plan.batch * plan.heads),
        out=out,
        lse=lse,
        grad_out=grad_out,
        grad_lse=grad_lse,
        terms=terms,
        **plan.strides("grad", grad_out),
        grad_lse_batch=batch,
        grad_lse_head=head,
        grad_lse_row=row,
        heads=plan.heads,
        query_length=plan.query_length,
        padded=padded,
        DV=plan.value_dim,
        BLOCK_DV=plan.blocks[1],
        BLOCK=PREPARED,
        UNIT=plan.unit,
        num_warps=8 if plan.is_wide else 4,
    )
    return terms


def _key_gradients(
    plan: Plan, shared: dict[str, Any], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    tile = plan.tile("keys")
    key_bias = plan.call.key_bias
    grad_key_bias = None if key_bias is None else torch.empty_like(key_bias)
    strides = (None,) * 3 if grad_key_bias is None else grad_key_bias.stride()
    grad_key, store_key = _writable(plan.call.key, dtype)
    grad_value, store_value = _writable(plan.call.value, dtype)
    plan.launch(
        key_gradients_kernel,
        (triton.cdiv(plan.key_length, tile.keys), plan.batch * plan.key_heads),
        **plan.select(
            key_gradients_kernel,
            shared,
            plan.lists(tile, by_key=True),
            tile.arguments(by_key=True),
            plan.strides("grad_key", grad_key),
            plan.strides("grad_value", grad_value),
            grad_key=grad_key,
            grad_value=grad_value,
            grad_key_bias=grad_key_bias,
            grad_key_bias_batch=strides[0],
            grad_key_bias_head=strides[1],
            grad_key_bias_row=strides[2],
            query_blocks=triton.cdiv(plan.query_length, tile.queries),
        ),
    )
    return store_key(), store_value(), grad_key_bias


def _query_gradients(
    plan: Plan, shared: dict[str, Any], dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    tile = plan.tile("queries")
    grad_query, store = _writable(plan.call.query, dtype)
    query_blocks = triton.cdiv(plan.query_length, tile.queries)
    grad_taus = plan.empty(plan.batch, plan.heads, query_blocks) if plan.tau_gradient else None
    plan.launch(
        query_gradients_kernel,
        (query_blocks, plan.batch * plan.heads),
        **plan.select(
            query_gradients_kernel,
            shared,
            plan.lists(tile),
            tile.arguments(),
            plan.strides("grad_query", grad_query),
            grad_query=grad_query,
            grad_taus=grad_taus,
            slope_line=plan.lines[1],
            query_blocks=query_blocks,
            key_blocks=triton.cdiv(plan.key_length, tile.keys),
            TAU_GRADIENT=plan.tau_gradient,
        ),
    )
    tau = plan.call.tau
    if grad_taus is None or tau is None:
        return store(), None
    return store(), fold(grad_taus.double().sum((0, 2)), tau).to(tau.dtype)


def _diagonal_sums(plan: Plan, shared: dict[str, Any]) -> tuple[Tensor, int]:
    """Gradients of gain and bias ``[heads, 2, offsets]``, and the index of offset zero."""
    tile = plan.tile("diagonals")
    block = tile.queries
    first, last = _blocks_of_offsets(plan, block)
    count = last + 1 - first
    # For gain and bias: offsets below and from the corner of each diagonal of tiles.
    sums = plan.empty(plan.heads, count, 2, 2, block)
    plan.launch(
        diagonals_kernel,
        (count, plan.heads),
        **plan.select(
            diagonals_kernel,
            shared,
            sums=sums,
            first_diagonal=first,
            batch=plan.batch,
            scale=plan.call.scale,
            BLOCK=block,
            num_warps=tile.warps,
            num_stages=tile.stages,
        ),
    )
    below, above = sums.double().permute(3, 0, 2, 1, 4)
    by_offset = F.pad(below, (0, 0, 0, 1)) + F.pad(above, (0, 0, 1, 0))
    return by_offset.flatten(2), (1 - first) * block


def _distance_sums(plan: Plan, shared: dict[str, Any]) -> tuple[Tensor, int]:
    """The same for explicit positions, from queries and keys in the order of their positions."""
    first, last = _blocks_of_offsets(plan, SIDE)
    count = last - first
    sums = plan.empty(plan.heads, 2, count * SIDE)
    visibility = plan.call.visibility
    query_order = _order(visibility.query_positions, visibility.query_documents)
    key_order = _order(visibility.key_positions, visibility.key_documents)
    plan.launch(
        distances_kernel,
        (count, plan.heads),
        **plan.select(
            distances_kernel,
            shared,
            query_order=query_order,
            key_order=key_order,
            query_order_row=row_stride(query_order),
            key_order_row=row_stride(key_order),
            sums=sums,
            first_block=first,
            batch=plan.batch,
            scale=plan.call.scale,
            SIDE=SIDE,
            num_warps=8,
        ),
    )
    return sums.double(), -first * SIDE


def _blocks_of_offsets(plan: Plan, block: int) -> tuple[int, int]:
    """The first and the last block of offsets; with explicit positions the tables bound distances."""
    visibility, gain = plan.call.visibility, plan.call.gain
    assert gain is not None
    window = FAR if visibility.window is None else visibility.window
    above, below = plan.key_length, plan.query_length
    if plan.has_positions:
        above = below = gain.shape[1]
    highest = min(above, window) - 1
    lowest = 0 if visibility.is_causal else -(min(below, window) - 1)
    return lowest // block, highest // block + 1


def _order(positions: Tensor | None, documents: Tensor | None) -> Tensor:
    """Indices in the order of documents and, within them, positions: ``[1 or batch, length]``."""
    assert positions is not None
    order = positions.argsort(dim=1, stable=True)
    if documents is not None:
        order = order.expand(max(order.shape[0], documents.shape[0]), -1)
        by_document = documents.expand(order.shape).gather(1, order).argsort(dim=1, stable=True)
        order = order.gather(1, by_document)
    return order.contiguous()


def _table_gradients(plan: Plan, by_offset: Tensor, zero: int) -> tuple[Tensor, Tensor]:
    """Gradients of gain and bias from those by offset, offset zero at index `zero`."""
    by_distance = by_offset[:, :, zero:]
    if not plan.call.visibility.is_causal:
        mirrored = by_offset[:, :, :zero].flip(-1)
        length = max(by_distance.shape[2], mirrored.shape[2] + 1)
        by_distance = F.pad(by_distance, (0, length - by_distance.shape[2]))
        mirrored = F.pad(mirrored, (1, length - mirrored.shape[2] - 1))
        by_distance = by_distance + mirrored
    gain, bias = plan.call.gain, plan.call.bias
    assert gain is not None
    assert bias is not None
    # Distances beyond the tables have no visible pair.
    length = gain.shape[1]
    by_distance = F.pad(by_distance, (0, max(0, length - by_distance.shape[2])))[:, :, :length]
    of_gain, of_bias = by_distance.unbind(1)
    return _as_table(of_gain, gain), _as_table(of_bias, bias)


def _as_table(by_head: Tensor, table: Tensor) -> Tensor:
    """Gradient of a table from gradients by head, in memory of its own."""
    return torch.empty_like(table).copy_(fold(by_head, table))


def _whole_blocks(length: int) -> int:
    return -(-length // WHOLE) * WHOLE


def _writable(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Callable[[], Tensor]]:
    """Memory for the gradient of a tensor, and a function that returns it in the tensor's layout."""
    result = torch.empty_like(tensor, dtype=dtype)
    if result.stride(3) == 1:
        return result, lambda: result
    written = torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)
    return written, lambda: result.copy_(written)
