"""Kernel of the gradients of tables by distance, for explicit positions.

Every sum is owned by one program: nothing is added atomically, and repeated calls are bit-identical.
"""

import triton
import triton.language as tl

from ._triton_tiles import affine, finite, logits, product, visible


@triton.jit
def _element(order, positions, documents, index, length, DOCUMENTS: tl.constexpr):
    """Document and position of the query or key at an index of the order."""
    at = tl.load(order + tl.minimum(index, length - 1))
    document = tl.load(documents + at) if DOCUMENTS else tl.full([], 0, tl.int64)
    return document, tl.load(positions + at)


@triton.jit
def _is_before(
    order, positions, documents, index, length, document, position, DOCUMENTS: tl.constexpr
):
    """Whether the key at an index of the order comes before a document and position."""
    of_key, at = _element(order, positions, documents, index, length, DOCUMENTS)
    return (of_key < document) | ((of_key == document) & (at < position))


@triton.jit(
    do_not_specialize=[
        *("query_batch", "query_head", "query_row", "key_batch", "key_head", "key_row"),
        *("value_batch", "value_head", "value_row", "grad_batch", "grad_head", "grad_row"),
        *("query_positions_row", "key_positions_row", "query_order_row", "key_order_row"),
        *("query_documents_row", "key_documents_row", "key_mask_row", "line_row", "length"),
        *("key_bias_batch", "key_bias_head", "first_block", "batch", "heads", "group"),
        *("query_length", "key_length", "padded"),
        *("unit", "scale", "window", "sinks"),
    ]
)
def distances_kernel(
    query,
    key,
    value,
    key_bias,
    grad_out,
    terms,
    line,
    sums,
    query_order,
    key_order,
    query_positions,
    key_positions,
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
    query_order_row,
    key_order_row,
    query_positions_row,
    key_positions_row,
    query_documents_row,
    key_documents_row,
    key_mask_row,
    line_row,
    length,
    first_block,
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
    SIDE: tl.constexpr,
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
    """Gradients of gain and bias at `SIDE` offsets of one head, for any positions.

    With queries and keys in the order of their positions, the keys at some offsets from a block of
    queries are neighbours: only their tiles are visited.
    """
    block, head = tl.program_id(0), tl.program_id(1)
    lowest = (first_block + block) * SIDE
    r = tl.arange(0, SIDE)
    depth, value_depth = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    line += head.to(tl.int64) * line_row * 2
    # By offset and column of a tile.
    sum_gain = tl.zeros([SIDE, SIDE], tl.float32)
    sum_bias = tl.zeros([SIDE, SIDE], tl.float32)
    for batch_row in range(0, batch):
        row = tl.full([], batch_row, tl.int64)
        query_here = query + (row * query_batch + head.to(tl.int64) * query_head) * UNIT
        grad_here = grad_out + (row * grad_batch + head.to(tl.int64) * grad_head) * UNIT
        key_here = key + (row * key_batch + (head // group).to(tl.int64) * key_head) * UNIT
        value_here = value + (row * value_batch + (head // group).to(tl.int64) * value_head) * UNIT
        terms_here = terms + (row * heads + head) * padded * 2
        ordered_queries = query_order + row * query_order_row
        ordered_keys = key_order + row * key_order_row
        of_queries = query_positions + row * query_positions_row
        of_keys = key_positions + row * key_positions_row
        query_documents_here, key_documents_here = query_documents, key_documents
        if DOCUMENTS:
            query_documents_here += row * query_documents_row
            key_documents_here += row * key_documents_row
        tile = 0
        for begin in range(0, query_length, SIDE):
            is_query = begin + r < query_length
            rows = tl.load(ordered_queries + begin + r, mask=is_query, other=0)
            position = tl.load(of_queries + rows, mask=is_query, other=0)
            query_document = rows
            if DOCUMENTS:
                query_document = tl.load(query_documents_here + rows, mask=is_query, other=0)
            q = tl.load(
                query_here + rows[:, None] * (query_row * UNIT) + depth,
                mask=is_query[:, None] & (depth < D),
                other=0.0,
            )
            grad = tl.load(
                grad_here + rows[:, None] * (grad_row * UNIT) + value_depth,
                mask=is_query[:, None] & (value_depth < DV),
                other=0.0,
            )
            base = tl.load(terms_here + 2 * rows, mask=is_query, other=float("inf"))
            delta = tl.load(terms_here + 2 * rows + 1, mask=is_query, other=0.0)
            silent = (base == float("inf"))[:, None]
            q = finite(tl.where(silent, 0.0, q.to(tl.float32)).to(q.dtype))
            grad = tl.where(silent, 0.0, grad.to(tl.float32)).to(grad.dtype)
            # The keys at these offsets from the block's first and last query enclose all others.
            document, first = _element(
                ordered_queries, of_queries, query_documents_here, begin, query_length, DOCUMENTS
            )
            last_document, last = _element(
                ordered_queries,
                of_queries,
                query_documents_here,
                begin + SIDE - 1,
                query_length,
                DOCUMENTS,
            )
            while (tile * SIDE + SIDE < key_length) & _is_before(
                ordered_keys,
                of_keys,
                key_documents_here,
                tile * SIDE + SIDE - 1,
                key_length,
                document,
                first - lowest - SIDE + 1,
                DOCUMENTS,
            ):
                tile += 1
            current = tile
            while (current * SIDE < key_length) & _is_before(
                ordered_keys,
                of_keys,
                key_documents_here,
                current * SIDE,
                key_length,
                last_document,
                last - lowest + 1,
                DOCUMENTS,
            ):
                is_key = current * SIDE + r < key_length
                keys = tl.load(ordered_keys + current * SIDE + r, mask=is_key, other=0)
                positions = tl.load(of_keys + keys, mask=is_key, other=0)[None, :]
                k = tl.load(
                    key_here + keys[:, None] * (key_row * UNIT) + depth,
                    mask=is_key[:, None] & (depth < D),
                    other=0.0,
                )
                v = tl.load(
                    value_here + keys[:, None] * (value_row * UNIT) + value_depth,
                    mask=is_key[:, None] & (value_depth < DV),
                    other=0.0,
                )
                scores = product(q, tl.trans(finite(k)), PRECISION, WIDE)
                grad_weights = product(grad, tl.trans(finite(v)), PRECISION, WIDE)
                offset = position[:, None] - positions
                gain, bias = affine(
                    offset,
                    tl.full([], 0, tl.int32),
                    line,
                    length,
                    0.0,
                    unit,
                    "table",
                    CAUSAL,
                    PTX,
                )
                documents, unmasked = positions, is_key[None, :]
                if DOCUMENTS:
                    documents = tl.load(key_documents_here + keys, mask=is_key, other=0)[None, :]
                if KEY_MASK:
                    mask_here = key_mask + row * key_mask_row
                    unmasked = tl.load(mask_here + keys, mask=is_key, other=0)[None, :] != 0
                of_key = 0.0
                if KEY_BIAS:
                    bias_here = key_bias + row * key_bias_batch + head.to(tl.int64) * key_bias_head
                    of_key = tl.load(bias_here + keys, mask=is_key, other=0.0)[None, :]
                seen = visible(
                    offset,
                    is_key[None, :],
                    False,
                    query_document[:, None],
                    documents,
                    unmasked,
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
                    seen = seen & (positions >= sinks)
                weights = tl.exp2(logits(scores, gain, bias, of_key, KEY_BIAS) - base[:, None])
                grad_logits = weights * (grad_weights - delta[:, None])
                # Far offsets may exceed 32 bits, but only hidden pairs have them.
                index = tl.where(seen, offset - lowest, -1).to(tl.int32)
                hit = index[:, None, :] == r[None, :, None]
                sum_gain += tl.sum(tl.where(hit, (grad_logits * scores)[:, None, :], 0.0), 0)
                sum_bias += tl.sum(tl.where(hit, grad_logits[:, None, :], 0.0), 0)
                current += 1
    at = sums + (head.to(tl.int64) * 2 * tl.num_programs(0) + block) * SIDE + r
    tl.store(at, tl.sum(sum_gain, 1) * scale)
    tl.store(at + tl.num_programs(0) * SIDE, tl.sum(sum_bias, 1))
