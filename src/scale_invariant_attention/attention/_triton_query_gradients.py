"""Backward kernel of queries and tau, which recomputes the weights from the log-sum-exp.

One program owns the gradients of a block of queries, and writes its share of the gradient of tau on its
own: nothing is added atomically, and repeated calls are bit-identical.
"""

import triton
import triton.language as tl

from ._triton_tiles import (
    add_product,
    affine,
    block_range,
    finite,
    load_rows,
    logits,
    masked_block,
    narrow,
    offsets,
    product,
    slopes,
    visible,
)


@triton.jit
def _query_tiles(
    grad_query,
    grad_tau,
    q,
    grad,
    base,
    delta,
    query_position,
    query_document,
    key,
    value,
    key_bias,
    key_positions,
    key_documents,
    key_mask,
    line,
    slope_line,
    blocks,
    first,
    last,
    lowest,
    full,
    gap,
    start,
    key_row,
    value_row,
    key_length,
    length,
    inverse_tau,
    unit,
    window,
    sinks,
    MASK: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    QUERY_BITS: tl.constexpr,
    KEY_BITS: tl.constexpr,
    AFFINE: tl.constexpr,
    TAU_GRADIENT: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    POSITIONS: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    KEY_MASK: tl.constexpr,
    KEY_BIAS: tl.constexpr,
    LISTS: tl.constexpr,
    PTX: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Add the key blocks ``[first, last)`` to the gradients of a block of queries and of tau."""
    columns = tl.arange(0, BLOCK_N)
    depth, value_depth = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    for step in range(first, last):
        block = masked_block(step, lowest, full, gap) if MASK else step
        if LISTS:
            block = tl.load(blocks + block)
        begin = block * BLOCK_N
        is_key = begin + columns < key_length
        here = tl.full([], begin, tl.int64)
        k_at = key + here * key_row + columns[:, None] * key_row + depth
        v_at = value + here * value_row + columns[:, None] * value_row + value_depth
        if MASK:
            k = tl.load(k_at, mask=is_key[:, None] & (depth < D), other=0.0)
            v = tl.load(v_at, mask=is_key[:, None] & (value_depth < DV), other=0.0)
            k, v = finite(k), finite(v)
        else:
            k = load_rows(k_at, depth, D, BLOCK_D)
            v = load_rows(v_at, value_depth, DV, BLOCK_DV)
        scores = product(q, tl.trans(k), PRECISION, WIDE)
        if POSITIONS:
            key_position = tl.load(key_positions + begin + columns, mask=is_key, other=0)[None, :]
            offset = query_position[:, None] - key_position
            index, constant = offset, tl.full([], 0, tl.int32)
            exists, sink = is_key[None, :], key_position < sinks
        else:
            rows = tl.arange(0, BLOCK_M)
            index, constant = offsets(
                start - begin, rows[:, None], columns[None, :], QUERY_BITS, KEY_BITS
            )
            offset, position = index + constant, start + rows
            # Written with offsets, as in forward.
            exists = offset > (position - key_length)[:, None]
            sink = offset > (position - sinks)[:, None]
        gain, bias = affine(index, constant, line, length, inverse_tau, unit, AFFINE, CAUSAL, PTX)
        if MASK and SINKS:
            gain, bias = tl.where(sink, unit, gain), tl.where(sink, 0.0, bias)
        of_key = 0.0
        if KEY_BIAS:
            of_key = tl.load(key_bias + begin + columns)[None, :]
        weights = tl.exp2(logits(scores, gain, bias, of_key, KEY_BIAS) - base[:, None])
        grad_weights = product(grad, tl.trans(v), PRECISION, WIDE)
        grad_logits = weights * (grad_weights - delta[:, None])
        if MASK:
            key_document, unmasked = offset, exists
            if DOCUMENTS:
                key_document = tl.load(key_documents + begin + columns, mask=is_key, other=0)
                key_document = key_document[None, :]
            if KEY_MASK:
                unmasked = tl.load(key_mask + begin + columns, mask=is_key, other=0)[None, :] != 0
            seen = visible(
                offset,
                exists,
                sink,
                query_document[:, None],
                key_document,
                unmasked,
                bias,
                of_key,
                window,
                CAUSAL,
                WINDOW,
                SINKS,
                DOCUMENTS,
                KEY_MASK,
                KEY_BIAS,
            )
            grad_logits = tl.where(seen, grad_logits, 0.0)
        if TAU_GRADIENT:
            of_gain, of_bias = slopes(
                index, constant, slope_line, gain, inverse_tau, unit, AFFINE, CAUSAL, PTX
            )
            by_pair = grad_logits * tl.fma(scores, of_gain, of_bias)
            if MASK and SINKS:
                by_pair = tl.where(sink, 0.0, by_pair)
            grad_tau += tl.sum(by_pair, 1)
        grad_query = add_product(
            grad_query, narrow(grad_logits * gain, k, WIDE), k, PRECISION, WIDE
        )
    return grad_query, grad_tau


@triton.jit(
    do_not_specialize=[
        *("query_batch", "query_head", "query_row", "key_batch", "key_head", "key_row"),
        *("value_batch", "value_head", "value_row", "grad_batch", "grad_head", "grad_row"),
        *("grad_query_batch", "grad_query_head", "grad_query_row"),
        *("query_positions_row", "key_positions_row"),
        *("query_documents_row", "key_documents_row", "key_mask_row", "block_row", "line_row"),
        *("key_bias_batch", "key_bias_head", "origin", "length", "tau_row", "heads", "group"),
        *("query_length", "key_length", "query_blocks", "key_blocks", "padded"),
        *("unit", "sign", "window", "sinks"),
    ]
)
def query_gradients_kernel(
    query,
    key,
    value,
    key_bias,
    grad_out,
    terms,
    worst,
    grad_query,
    grad_taus,
    line,
    slope_line,
    taus,
    query_positions,
    key_positions,
    query_documents,
    key_documents,
    key_mask,
    counts,
    blocks,
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
    grad_query_batch,
    grad_query_head,
    grad_query_row,
    key_bias_batch,
    key_bias_head,
    query_positions_row,
    key_positions_row,
    query_documents_row,
    key_documents_row,
    key_mask_row,
    block_row,
    line_row,
    origin,
    length,
    tau_row,
    heads,
    group,
    query_length,
    key_length,
    query_blocks,
    key_blocks,
    padded,
    unit,
    sign,
    window,
    sinks,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    QUERY_BITS: tl.constexpr,
    KEY_BITS: tl.constexpr,
    UNIT: tl.constexpr,
    AFFINE: tl.constexpr,
    TAU_GRADIENT: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    POSITIONS: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    KEY_MASK: tl.constexpr,
    KEY_BIAS: tl.constexpr,
    LISTS: tl.constexpr,
    PTX: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Gradients of one block of queries of one head, and its share of the gradient of tau."""
    query_block = query_blocks - 1 - tl.program_id(0)
    problem = tl.program_id(1)
    batch, head = (problem // heads).to(tl.int64), problem % heads
    key_row, value_row = key_row * UNIT, value_row * UNIT
    query += (batch * query_batch + head.to(tl.int64) * query_head) * UNIT
    grad_out += (batch * grad_batch + head.to(tl.int64) * grad_head) * UNIT
    key += (batch * key_batch + (head // group).to(tl.int64) * key_head) * UNIT
    value += (batch * value_batch + (head // group).to(tl.int64) * value_head) * UNIT
    rows = query_block * BLOCK_M + tl.arange(0, BLOCK_M)
    is_query = rows < query_length
    depth, value_depth = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    at = rows.to(tl.int64)[:, None]
    flat = problem.to(tl.int64) * padded + rows
    base = tl.load(terms + 2 * flat)
    delta = tl.load(terms + 2 * flat + 1)
    # A row without a gradient must not overflow: infinity minus its base would be NaN.
    silent = (base == float("inf"))[:, None]
    q = tl.load(
        query + at * (query_row * UNIT) + depth, mask=is_query[:, None] & (depth < D), other=0.0
    )
    q = finite(tl.where(silent, 0.0, q.to(tl.float32)).to(q.dtype))
    grad = tl.load(
        grad_out + at * (grad_row * UNIT) + value_depth,
        mask=is_query[:, None] & (value_depth < DV),
        other=0.0,
    )
    grad = tl.where(silent, 0.0, grad.to(tl.float32)).to(grad.dtype)
    inverse_tau = 1.0
    if AFFINE == "tau":
        inverse_tau = 1.0 / tl.load(taus + head * tau_row)
        q = (q.to(tl.float32) * sign).to(q.dtype)
    else:
        line += (head.to(tl.int64) * line_row + origin) * 2
        if TAU_GRADIENT:
            slope_line += (head.to(tl.int64) * line_row + origin) * 2
    query_position, query_document = rows, rows
    if POSITIONS:
        query_positions += batch * query_positions_row
        key_positions += batch * key_positions_row
        query_position = tl.load(query_positions + rows, mask=is_query, other=0)
    if DOCUMENTS:
        query_documents += batch * query_documents_row
        key_documents += batch * key_documents_row
        query_document = tl.load(query_documents + rows, mask=is_query, other=0)
    if KEY_MASK:
        key_mask += batch * key_mask_row
    if KEY_BIAS:
        key_bias += batch * key_bias_batch + head.to(tl.int64) * key_bias_head

    start = query_block * BLOCK_M + key_length - query_length
    sound = tl.abs(tl.load(worst + problem)) < float("inf")
    if LISTS:
        entry = batch * block_row + query_block
        blocks += entry * key_blocks
        first, full = 0, 0
        end, last = tl.load(counts + entry * 2), tl.load(counts + entry * 2 + 1)
    else:
        last_position = start + BLOCK_M - 1
        some, every, last_every, last_some = 0, 0, key_length, key_length
        if CAUSAL:
            last_every = tl.minimum(start + 1, key_length)
            last_some = tl.minimum(last_position + 1, key_length)
        elif WINDOW:
            last_every = tl.minimum(start + window, key_length)
            last_some = tl.minimum(last_position + window, key_length)
        if WINDOW:
            some, every = start - window + 1, last_position - window + 1
        first, full, end, last = block_range(some, every, last_every, last_some, BLOCK_N)
    gap = end - full

    sum_query = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    sum_tau = tl.zeros([BLOCK_M], tl.float32)
    for masked in tl.static_range(2):
        sum_query, sum_tau = _query_tiles(
            sum_query,
            sum_tau,
            q,
            grad,
            base,
            delta,
            query_position,
            query_document,
            key,
            value,
            key_bias,
            key_positions,
            key_documents,
            key_mask,
            line,
            slope_line,
            blocks,
            first + tl.where(sound, gap, 0) if masked else full,
            last if masked else tl.where(sound, end, full),
            first,
            full,
            gap,
            start,
            key_row,
            value_row,
            key_length,
            length,
            inverse_tau,
            unit,
            window,
            sinks,
            masked,
            D,
            DV,
            BLOCK_D,
            BLOCK_DV,
            BLOCK_M,
            BLOCK_N,
            QUERY_BITS,
            KEY_BITS,
            AFFINE,
            TAU_GRADIENT,
            CAUSAL,
            WINDOW,
            SINKS,
            POSITIONS,
            DOCUMENTS,
            KEY_MASK,
            KEY_BIAS,
            LISTS,
            PTX,
            PRECISION,
            WIDE,
        )
    sum_query = sum_query * 0.6931471805599453
    if AFFINE == "tau":
        sum_query = sum_query * sign
    grad_query += (batch * grad_query_batch + head.to(tl.int64) * grad_query_head) * UNIT
    tl.store(
        grad_query + at * (grad_query_row * UNIT) + depth,
        sum_query.to(grad_query.dtype.element_ty),
        mask=is_query[:, None] & (depth < D),
    )
    if TAU_GRADIENT:
        # Summed by the host, in a fixed order.
        tl.store(grad_taus + problem.to(tl.int64) * query_blocks + query_block, tl.sum(sum_tau, 0))
