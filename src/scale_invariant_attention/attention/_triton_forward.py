"""Forward kernel: output and log-sum-exp of a block of queries, by an online softmax."""

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
def _tiles(
    total_value,
    total,
    highest,
    q,
    query_position,
    query_document,
    key,
    value,
    spoil,
    key_bias,
    key_positions,
    key_documents,
    key_mask,
    line,
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
    """Add the key blocks ``[first, last)``, all pairs of which are visible unless MASK.

    With MASK, these are steps of the order of :func:`masked_block`.
    """
    columns = tl.arange(0, BLOCK_N)
    depth, value_columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    for step in range(first, last):
        block = masked_block(step, lowest, full, gap) if MASK else step
        if LISTS:
            block = tl.load(blocks + block)
        begin = block * BLOCK_N
        is_key = begin + columns < key_length
        here = tl.full([], begin, tl.int64)
        k_at = key + here * key_row + columns[None, :] * key_row + depth[:, None]
        v_at = value + here * value_row + columns[:, None] * value_row + value_columns[None, :]
        if MASK:
            k = tl.load(k_at, mask=is_key[None, :] & (depth < D)[:, None], other=0.0)
        else:
            k = load_rows(k_at, depth[:, None], D, BLOCK_D)
        scores = product(q, k, PRECISION, WIDE)
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
            # Written with offsets: comparisons of columns would be vectorised, columns and all, and
            # then LLVM no longer sees which offsets of a thread are equal.
            exists = offset > (position - key_length)[:, None]
            sink = offset > (position - sinks)[:, None]
        gain, bias = affine(index, constant, line, length, inverse_tau, unit, AFFINE, CAUSAL, PTX)
        if MASK and SINKS:
            gain, bias = tl.where(sink, unit, gain), tl.where(sink, 0.0, bias)
        of_key = 0.0
        if KEY_BIAS:
            of_key = tl.load(key_bias + begin + columns)[None, :]
        if MASK:
            key_document, unmasked = offset, exists
            if DOCUMENTS:
                key_document = tl.load(key_documents + begin + columns, mask=is_key, other=0)
                key_document = key_document[None, :]
            if KEY_MASK:
                unmasked = tl.load(key_mask + begin + columns, mask=is_key, other=0)[None, :] != 0
            bad = tl.load(spoil + begin + columns)
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
            x = logits(scores, gain, bias, of_key, KEY_BIAS)
            x = tl.where(seen, x + bad[None, :], float("-inf"))
        else:
            x = logits(scores, gain, bias, of_key, KEY_BIAS)
        risen = tl.maximum(highest, tl.max(x, 1))
        # If no key was visible so far, or all logits overflowed, -inf - -inf would be NaN.
        base = tl.where(risen == float("-inf"), 0.0, risen)
        weights = tl.exp2(x - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, 1)
        total_value = total_value * shrink[:, None]
        if MASK:
            v = tl.load(v_at, mask=is_key[:, None] & (value_columns < DV)[None, :], other=0.0)
            v = finite(v)
        else:
            v = load_rows(v_at, value_columns[None, :], DV, BLOCK_DV)
        total_value = add_product(total_value, narrow(weights, v, WIDE), v, PRECISION, WIDE)
        highest = risen
    return total_value, total, highest


@triton.jit(
    do_not_specialize=[
        *("query_batch", "query_head", "query_row", "key_batch", "key_head", "key_row"),
        *("value_batch", "value_head", "value_row", "query_positions_row", "key_positions_row"),
        *("query_documents_row", "key_documents_row", "key_mask_row", "block_row", "line_row"),
        *("spoil_row", "key_bias_batch", "key_bias_head", "origin", "length", "tau_row", "heads"),
        *("group", "query_length", "key_length", "query_blocks", "key_blocks"),
        *("unit", "sign", "window", "sinks"),
    ]
)
def forward_kernel(
    query,
    key,
    value,
    out,
    lse,
    spoil,
    key_bias,
    worst,
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
    query_positions_row,
    key_positions_row,
    query_documents_row,
    key_documents_row,
    key_mask_row,
    block_row,
    line_row,
    spoil_row,
    key_bias_batch,
    key_bias_head,
    origin,
    length,
    tau_row,
    heads,
    group,
    query_length,
    key_length,
    query_blocks,
    key_blocks,
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
    """Output and natural log-sum-exp of one block of queries of one head."""
    # The last blocks see most keys: they start first.
    query_block = query_blocks - 1 - tl.program_id(0)
    problem = tl.program_id(1)
    batch, head = (problem // heads).to(tl.int64), problem % heads
    key_row, value_row = key_row * UNIT, value_row * UNIT
    query += (batch * query_batch + head.to(tl.int64) * query_head) * UNIT
    key += (batch * key_batch + (head // group).to(tl.int64) * key_head) * UNIT
    value += (batch * value_batch + (head // group).to(tl.int64) * value_head) * UNIT
    key_problem = batch * (heads // group) + head // group
    spoil += key_problem * spoil_row
    if KEY_BIAS:
        key_bias += batch * key_bias_batch + head.to(tl.int64) * key_bias_head
        # Then there is a flag per query head.
        worst += problem
    else:
        worst += key_problem

    rows = query_block * BLOCK_M + tl.arange(0, BLOCK_M)
    is_query = rows < query_length
    depth, value_columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    at = rows.to(tl.int64)[:, None]
    q = tl.load(
        query + at * (query_row * UNIT) + depth[None, :],
        mask=is_query[:, None] & (depth < D)[None, :],
        other=0.0,
    )
    # A query that is not finite spoils its own row, and no logit may hide that.
    spoiled = tl.sum(q.to(tl.float32) * 0.0, 1)
    q = finite(q)
    inverse_tau = 1.0
    if AFFINE == "tau":
        inverse_tau = 1.0 / tl.load(taus + head * tau_row)
        q = (q.to(tl.float32) * sign).to(q.dtype)
    else:
        line += (head.to(tl.int64) * line_row + origin) * 2
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

    # Position of the block's first query, if positions are consecutive.
    start = query_block * BLOCK_M + key_length - query_length
    sound = tl.abs(tl.load(worst)) < float("inf")
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

    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    total_value = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    # The blocks in the middle need no mask; then those before and after them.
    for masked in tl.static_range(2):
        total_value, total, highest = _tiles(
            total_value,
            total,
            highest,
            q,
            query_position,
            query_document,
            key,
            value,
            spoil,
            key_bias,
            key_positions,
            key_documents,
            key_mask,
            line,
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

    nothing = total == 0.0
    total = tl.where(nothing, 1.0, total)
    spoiled = tl.where(nothing, 0.0, spoiled)
    result = total_value / total[:, None] + spoiled[:, None]
    natural = (highest + tl.log2(total)) * 0.6931471805599453 + spoiled
    here = (problem.to(tl.int64) * query_length + rows.to(tl.int64))[:, None]
    tl.store(
        out + here * DV + value_columns[None, :],
        result,
        mask=is_query[:, None] & (value_columns < DV)[None, :],
    )
    tl.store(
        lse + problem.to(tl.int64) * query_length + rows,
        tl.where(nothing, float("-inf"), natural),
        mask=is_query,
    )
