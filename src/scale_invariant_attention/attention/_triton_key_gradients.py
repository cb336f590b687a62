"""Backward kernel of keys and values, which recomputes the weights from the log-sum-exp.

One program owns the gradients of a block of keys, over all query heads of their group: nothing is added
atomically, and repeated calls are bit-identical.
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
    visible,
)


@triton.jit
def _key_tiles(
    grad_key,
    grad_value,
    grad_bias,
    k,
    v,
    of_key,
    key_position,
    key_document,
    unmasked,
    key_start,
    query,
    grad_out,
    terms,
    query_positions,
    query_documents,
    line,
    blocks,
    first,
    last,
    lowest,
    full,
    gap,
    start,
    query_row,
    grad_row,
    query_length,
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
    """Add the query blocks ``[first, last)`` to the gradients of a block of keys and of their biases.

    Tiles are keys by queries.
    """
    r = tl.arange(0, BLOCK_M)
    depth, value_depth = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    for step in range(first, last):
        block = masked_block(step, lowest, full, gap) if MASK else step
        if LISTS:
            block = tl.load(blocks + block)
        begin = block * BLOCK_M
        rows = begin + r
        base = tl.load(terms + 2 * (begin + r))
        delta = tl.load(terms + 2 * (begin + r) + 1)
        # Beyond the last query its row is read again, with an infinite base: its weights are zero.
        at = tl.minimum(rows, query_length - 1).to(tl.int64)[:, None]
        q_at = query + at * query_row + depth
        grad_at = grad_out + at * grad_row + value_depth
        q = load_rows(q_at, depth, D, BLOCK_D)
        if MASK:
            # A row without a gradient must not overflow: infinity minus its base would be NaN.
            silent = (base == float("inf"))[:, None]
            q = finite(tl.where(silent, 0.0, q.to(tl.float32)).to(q.dtype))
        scores = product(k, tl.trans(q), PRECISION, WIDE)
        if POSITIONS:
            position = tl.load(query_positions + rows, mask=rows < query_length, other=0)
            offset = position[None, :] - key_position
            index, constant = offset, tl.full([], 0, tl.int32)
            sink = key_position < sinks
        else:
            keys = tl.arange(0, BLOCK_N)[:, None]
            index, constant = offsets(start + begin, r[None, :], keys, QUERY_BITS, KEY_BITS)
            offset = index + constant
            # Written with offsets, as in forward.
            sink = offset > (start + begin + r + key_start - sinks)[None, :]
        gain, bias = affine(index, constant, line, length, inverse_tau, unit, AFFINE, CAUSAL, PTX)
        if MASK and SINKS:
            gain, bias = tl.where(sink, unit, gain), tl.where(sink, 0.0, bias)
        weights = tl.exp2(logits(scores, gain, bias, of_key, KEY_BIAS) - base[None, :])
        if MASK:
            query_document = rows
            if DOCUMENTS:
                is_query = rows < query_length
                query_document = tl.load(query_documents + rows, mask=is_query, other=0)
            # What lies beyond the last key is not stored, and needs no mask.
            seen = visible(
                offset,
                True,
                sink,
                query_document[None, :],
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
            weights = tl.where(seen, weights, 0.0)
        grad = load_rows(grad_at, value_depth, DV, BLOCK_DV)
        if MASK:
            grad = tl.where(silent, 0.0, grad.to(tl.float32)).to(v.dtype)
        grad_value = add_product(grad_value, narrow(weights, grad, WIDE), grad, PRECISION, WIDE)
        grad_weights = product(v, tl.trans(grad), PRECISION, WIDE)
        grad_logits = weights * (grad_weights - delta[None, :])
        if MASK:
            # For a NaN row, the zero weight times NaN is NaN.
            grad_logits = tl.where(seen, grad_logits, 0.0)
        if KEY_BIAS:
            grad_bias += tl.sum(grad_logits, 1)
        grad_key = add_product(grad_key, narrow(grad_logits * gain, q, WIDE), q, PRECISION, WIDE)
    return grad_key, grad_value, grad_bias


@triton.jit(
    do_not_specialize=[
        *("query_batch", "query_head", "query_row", "key_batch", "key_head", "key_row"),
        *("value_batch", "value_head", "value_row", "grad_batch", "grad_head", "grad_row"),
        *("grad_key_batch", "grad_key_head", "grad_key_row"),
        *("grad_value_batch", "grad_value_head", "grad_value_row"),
        *("query_positions_row", "key_positions_row"),
        *("query_documents_row", "key_documents_row", "key_mask_row", "block_row", "line_row"),
        *("key_bias_batch", "key_bias_head", "grad_key_bias_batch", "grad_key_bias_head"),
        *("grad_key_bias_row", "origin", "length", "tau_row", "key_heads", "group"),
        *("query_length", "key_length", "query_blocks", "padded"),
        *("unit", "sign", "window", "sinks"),
    ]
)
def key_gradients_kernel(
    query,
    key,
    value,
    key_bias,
    grad_out,
    terms,
    worst,
    grad_key,
    grad_value,
    grad_key_bias,
    line,
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
    grad_key_batch,
    grad_key_head,
    grad_key_row,
    grad_value_batch,
    grad_value_head,
    grad_value_row,
    key_bias_batch,
    key_bias_head,
    grad_key_bias_batch,
    grad_key_bias_head,
    grad_key_bias_row,
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
    key_heads,
    group,
    query_length,
    key_length,
    query_blocks,
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
    """Gradients of one block of keys and values of one key head, over all query heads of its group.

    Those of the key biases are stored per query head.
    """
    # The first keys are seen by most queries: they start first.
    key_block = tl.program_id(0)
    problem = tl.program_id(1)
    batch, key_head_index = (problem // key_heads).to(tl.int64), problem % key_heads
    query_row, grad_row = query_row * UNIT, grad_row * UNIT
    key += (batch * key_batch + key_head_index.to(tl.int64) * key_head) * UNIT
    value += (batch * value_batch + key_head_index.to(tl.int64) * value_head) * UNIT
    keys = key_block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_key = (keys < key_length)[:, None]
    depth, value_depth = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    at = keys.to(tl.int64)[:, None]
    k = tl.load(key + at * (key_row * UNIT) + depth, mask=is_key & (depth < D), other=0.0)
    v = tl.load(
        value + at * (value_row * UNIT) + value_depth, mask=is_key & (value_depth < DV), other=0.0
    )
    k, v = finite(k), finite(v)
    if AFFINE == "tau":
        k = (k.to(tl.float32) * sign).to(k.dtype)
    key_position, key_document, unmasked = 0, 0, True
    if POSITIONS:
        query_positions += batch * query_positions_row
        key_positions += batch * key_positions_row
        key_position = tl.load(key_positions + keys[:, None], mask=is_key, other=0)
    if DOCUMENTS:
        query_documents += batch * query_documents_row
        key_documents += batch * key_documents_row
        key_document = tl.load(key_documents + keys[:, None], mask=is_key, other=0)
    if KEY_MASK:
        unmasked = tl.load(key_mask + batch * key_mask_row + keys[:, None], mask=is_key, other=0)
        unmasked = unmasked != 0

    # Consecutive positions: the offset of query m and key n is m + shift - n.
    shift = key_length - query_length
    start = shift - key_block * BLOCK_N
    if LISTS:
        entry = batch * block_row + key_block
        blocks += entry * query_blocks
        some, every = 0, 0
        last_every, last_some = tl.load(counts + entry * 2), tl.load(counts + entry * 2 + 1)
    else:
        # The first and the last key of the block, as rows of the queries.
        low, high = -start, -start + BLOCK_N - 1
        # The last block may reach beyond the last query.
        some, every, last_every, last_some = 0, 0, query_length + BLOCK_M - 1, query_length
        if CAUSAL:
            some, every = low, high
        elif WINDOW:
            some, every = low - window + 1, high - window + 1
        if WINDOW:
            last_every = tl.minimum(low + window, last_every)
            last_some = tl.minimum(high + window, query_length)

    sum_key = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    sum_value = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    # With a key bias, invariants moved out of this loop would crowd out registers of the inner loops.
    for member in tl.range(0, group, disable_licm=KEY_BIAS):
        head = key_head_index * group + member
        row = batch * (key_heads * group) + head
        sound = tl.abs(tl.load(worst + row)) < float("inf")
        if LISTS:
            first, full, end, last = 0, 0, last_every, last_some
        else:
            first, full, end, last = block_range(some, every, last_every, last_some, BLOCK_M)
        gap = end - full
        inverse_tau = 1.0
        line_here = line
        if AFFINE == "tau":
            inverse_tau = 1.0 / tl.load(taus + head * tau_row)
        else:
            line_here += (head.to(tl.int64) * line_row + origin) * 2
        of_key, sum_bias = 0.0, 0.0
        if KEY_BIAS:
            sum_bias = tl.zeros([BLOCK_N], tl.float32)
            bias_here = key_bias + batch * key_bias_batch + head.to(tl.int64) * key_bias_head
            of_key = tl.load(bias_here + keys)[:, None]
        for masked in tl.static_range(2):
            sum_key, sum_value, sum_bias = _key_tiles(
                sum_key,
                sum_value,
                sum_bias,
                k,
                v,
                of_key,
                key_position,
                key_document,
                unmasked,
                key_block * BLOCK_N,
                query + (batch * query_batch + head.to(tl.int64) * query_head) * UNIT,
                grad_out + (batch * grad_batch + head.to(tl.int64) * grad_head) * UNIT,
                terms + row * padded * 2,
                query_positions,
                query_documents,
                line_here,
                blocks,
                first + tl.where(sound, gap, 0) if masked else full,
                last if masked else tl.where(sound, end, full),
                first,
                full,
                gap,
                start,
                query_row,
                grad_row,
                query_length,
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
        if KEY_BIAS:
            bias_here = grad_key_bias + batch * grad_key_bias_batch
            bias_here += head.to(tl.int64) * grad_key_bias_head
            bias_here += keys.to(tl.int64) * grad_key_bias_row
            tl.store(bias_here, sum_bias, mask=keys < key_length)
    # The gains were in base 2.
    sum_key = sum_key * 0.6931471805599453
    if AFFINE == "tau":
        sum_key = sum_key * sign
    grad_key += (batch * grad_key_batch + key_head_index.to(tl.int64) * grad_key_head) * UNIT
    grad_value += (batch * grad_value_batch + key_head_index.to(tl.int64) * grad_value_head) * UNIT
    tl.store(
        grad_key + at * (grad_key_row * UNIT) + depth,
        sum_key.to(grad_key.dtype.element_ty),
        mask=is_key & (depth < D),
    )
    tl.store(
        grad_value + at * (grad_value_row * UNIT) + value_depth,
        sum_value.to(grad_value.dtype.element_ty),
        mask=is_key & (value_depth < DV),
    )
