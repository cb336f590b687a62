"""Kernel of the gradients of tables along diagonals, for consecutive positions.

Every sum is owned by one program: nothing is added atomically, and repeated calls are bit-identical.
"""

import triton
import triton.language as tl

from ._triton_tiles import affine, finite, logits, product, visible


@triton.jit(
    do_not_specialize=[
        *("query_batch", "query_head", "query_row", "key_batch", "key_head", "key_row"),
        *("value_batch", "value_head", "value_row", "grad_batch", "grad_head", "grad_row"),
        *("query_documents_row", "key_documents_row", "key_mask_row", "line_row", "origin"),
        *("key_bias_batch", "key_bias_head", "first_diagonal", "batch", "heads", "group"),
        *("query_length", "key_length", "padded"),
        *("unit", "scale", "window", "sinks"),
    ]
)
def diagonals_kernel(
    query,
    key,
    value,
    key_bias,
    grad_out,
    terms,
    line,
    sums,
    query_documents,
    key_documents,
    key_mask,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    grad_batch,
    grad_head,
    grad_row,
    key_bias_batch,
    key_bias_head,
    query_documents_row,
    key_documents_row,
    key_mask_row,
    line_row,
    origin,
    first_diagonal,
    batch,
    heads,
    group,
    query_length,
    key_length,
    padded,
    unit,
    scale,
    window,
    sinks,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    KEY_MASK: tl.constexpr,
    KEY_BIAS: tl.constexpr,
    PTX: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Gradients of gain and bias by offset, summed over one diagonal of tiles of one head.

    All tiles of a diagonal hold the same offsets, ``corner + row - column``: they are added up
    element by element, and the sum is reduced once, along its own diagonals. Writes, for gain and bias,
    ``[2, BLOCK]`` sums: of the offsets from `corner - BLOCK`, and of those from `corner`.
    """
    diagonal, head = tl.program_id(0), tl.program_id(1)
    corner = (first_diagonal + diagonal) * BLOCK
    r = tl.arange(0, BLOCK)
    depth, value_depth = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    offset = corner + r[:, None] - r[None, :]
    line += (head.to(tl.int64) * line_row + origin) * 2
    gain, bias = affine(offset, tl.full([], 0, tl.int32), line, 0, 0.0, unit, "line", CAUSAL, PTX)
    sum_gain = tl.zeros([BLOCK, BLOCK], tl.float32)
    sum_bias = tl.zeros([BLOCK, BLOCK], tl.float32)
    shift = key_length - query_length
    key_row, value_row = key_row * UNIT, value_row * UNIT
    query_row, grad_row = query_row * UNIT, grad_row * UNIT
    # The query blocks whose block of keys holds a key.
    first = tl.maximum(corner - shift - BLOCK + 1, 0) // BLOCK
    last = tl.minimum(query_length, tl.maximum(corner - shift + key_length, 0))
    last = (last + BLOCK - 1) // BLOCK
    for row in range(0, batch):
        row = tl.full([], row, tl.int64)
        problem = (row * heads + head) * padded
        query_here = query + (row * query_batch + head.to(tl.int64) * query_head) * UNIT
        grad_here = grad_out + (row * grad_batch + head.to(tl.int64) * grad_head) * UNIT
        key_here = key + (row * key_batch + (head // group).to(tl.int64) * key_head) * UNIT
        value_here = value + (row * value_batch + (head // group).to(tl.int64) * value_head) * UNIT
        for block in range(first, last):
            rows = block * BLOCK + r
            keys = rows + shift - corner
            is_query = rows < query_length
            is_key = (keys >= 0) & (keys < key_length)
            here = rows.to(tl.int64)[:, None]
            there = keys.to(tl.int64)[:, None]
            q = tl.load(
                query_here + here * query_row + depth,
                mask=is_query[:, None] & (depth < D),
                other=0.0,
            )
            k = tl.load(
                key_here + there * key_row + depth, mask=is_key[:, None] & (depth < D), other=0.0
            )
            base = tl.load(terms + 2 * (problem + rows))
            delta = tl.load(terms + 2 * (problem + rows) + 1)
            silent = (base == float("inf"))[:, None]
            q = finite(tl.where(silent, 0.0, q.to(tl.float32)).to(q.dtype))
            scores = product(q, tl.trans(finite(k)), PRECISION, WIDE)
            grad = tl.load(
                grad_here + here * grad_row + value_depth,
                mask=is_query[:, None] & (value_depth < DV),
                other=0.0,
            )
            v = tl.load(
                value_here + there * value_row + value_depth,
                mask=is_key[:, None] & (value_depth < DV),
                other=0.0,
            )
            grad = tl.where(silent, 0.0, grad.to(tl.float32)).to(v.dtype)
            grad_weights = product(grad, tl.trans(finite(v)), PRECISION, WIDE)
            key_document, query_document = keys, rows
            unmasked = is_key
            if DOCUMENTS:
                documents = query_documents + row * query_documents_row
                query_document = tl.load(documents + rows, mask=is_query, other=0)
                documents = key_documents + row * key_documents_row
                key_document = tl.load(documents + keys, mask=is_key, other=0)
            if KEY_MASK:
                unmasked = tl.load(key_mask + row * key_mask_row + keys, mask=is_key, other=0) != 0
            of_key = 0.0
            if KEY_BIAS:
                bias_here = key_bias + row * key_bias_batch + head.to(tl.int64) * key_bias_head
                of_key = tl.load(bias_here + keys, mask=is_key, other=0.0)[None, :]
            seen = visible(
                offset,
                is_key[None, :],
                False,
                query_document[:, None],
                key_document[None, :],
                unmasked[None, :],
                bias,
                of_key,
                window,
                CAUSAL,
                WINDOW,
                False,
                DOCUMENTS,
                KEY_MASK,
                KEY_BIAS,
            )
            if SINKS:
                # Gain and bias of a sink are constant.
                seen = seen & (keys >= sinks)[None, :]
            weights = tl.exp2(logits(scores, gain, bias, of_key, KEY_BIAS) - base[:, None])
            grad_logits = tl.where(seen, weights * (grad_weights - delta[:, None]), 0.0)
            sum_gain += grad_logits * scores
            sum_bias += grad_logits
    sums += (head.to(tl.int64) * tl.num_programs(0) + diagonal) * (4 * BLOCK)
    _store_diagonal_sums(sums, sum_gain * scale, BLOCK)
    _store_diagonal_sums(sums + 2 * BLOCK, sum_bias, BLOCK)


@triton.jit
def _store_diagonal_sums(sums, tile, BLOCK: tl.constexpr):
    """Write the sums over ``row - column``: from -BLOCK, then from 0."""
    r = tl.arange(0, BLOCK)
    # In column n of the skewed tile, elements have the difference n or, above the diagonal, n - BLOCK.
    skewed = tl.gather(tile, (r[:, None] - r[None, :] + BLOCK) % BLOCK, 1)
    below = r[:, None] >= r[None, :]
    tl.store(sums + r, tl.sum(tl.where(below, 0.0, skewed), 0))
    tl.store(sums + BLOCK + r, tl.sum(tl.where(below, skewed, 0.0), 0))
