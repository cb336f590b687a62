"""Decoding kernels: a few queries against a long cache, which is split over programs and merged.

All query heads of a group share every key that is read: a tile has one row per query and head.
"""

import triton
import triton.language as tl

from ._triton_tiles import add_product, affine, finite, logits, narrow, product, visible


@triton.jit(
    do_not_specialize=[
        *("query_batch", "query_head", "query_row", "key_batch", "key_head", "key_row"),
        *("value_batch", "value_head", "value_row", "query_positions_row", "key_positions_row"),
        *("query_documents_row", "key_documents_row", "key_mask_row", "line_row", "origin"),
        *("key_bias_batch", "key_bias_head"),
        *("length", "tau_row", "key_heads", "group", "query_length", "key_length", "first_key"),
        *("split", "unit", "sign", "window", "sinks"),
    ]
)
def split_kernel(
    query,
    key,
    value,
    key_bias,
    parts,
    part_lse,
    line,
    taus,
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
    key_bias_batch,
    key_bias_head,
    query_positions_row,
    key_positions_row,
    query_documents_row,
    key_documents_row,
    key_mask_row,
    line_row,
    origin,
    length,
    tau_row,
    key_heads,
    group,
    query_length,
    key_length,
    first_key,
    split,
    unit,
    sign,
    window,
    sinks,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UNIT: tl.constexpr,
    AFFINE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    POSITIONS: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    KEY_MASK: tl.constexpr,
    KEY_BIAS: tl.constexpr,
    PTX: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Output and base-2 log-sum-exp over the keys of one split, for all rows of one key head."""
    part, problem = tl.program_id(0), tl.program_id(1)
    batch, key_head_index = (problem // key_heads).to(tl.int64), problem % key_heads
    r = tl.arange(0, ROWS)
    queries, head = r // group, key_head_index * group + r % group
    is_row = queries < query_length
    depth, value_columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    q_at = head.to(tl.int64) * query_head + queries.to(tl.int64) * query_row
    q = tl.load(
        query + batch * query_batch * UNIT + q_at[:, None] * UNIT + depth[None, :],
        mask=is_row[:, None] & (depth < D)[None, :],
        other=0.0,
    )
    spoiled = tl.sum(q.to(tl.float32) * 0.0, 1)
    q = finite(q)
    inverse_tau = 1.0
    if AFFINE == "tau":
        inverse_tau = 1.0 / tl.load(taus + head * tau_row, mask=is_row, other=1.0)[:, None]
        q = (q.to(tl.float32) * sign).to(q.dtype)
    else:
        # Rows of several heads.
        line += ((tl.where(is_row, head, 0).to(tl.int64) * line_row + origin) * 2)[:, None]
    query_position, query_document = key_length - query_length + queries, queries
    if POSITIONS:
        query_positions += batch * query_positions_row
        key_positions += batch * key_positions_row
        query_position = tl.load(query_positions + queries, mask=is_row, other=0)
    if DOCUMENTS:
        query_documents += batch * query_documents_row
        key_documents += batch * key_documents_row
        query_document = tl.load(query_documents + queries, mask=is_row, other=0)
    if KEY_MASK:
        key_mask += batch * key_mask_row
    if KEY_BIAS:
        # Rows of several heads.
        key_bias += batch * key_bias_batch + (head.to(tl.int64) * key_bias_head)[:, None]
    key += (batch * key_batch + key_head_index.to(tl.int64) * key_head) * UNIT
    value += (batch * value_batch + key_head_index.to(tl.int64) * value_head) * UNIT

    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    total_value = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    columns = tl.arange(0, BLOCK_N)
    begin_split = first_key + part * split
    end_split = tl.minimum(begin_split + split, key_length)
    for begin in range(begin_split, end_split, BLOCK_N):
        keys = begin + columns
        is_key = keys < end_split
        at = keys.to(tl.int64)[:, None]
        k = tl.load(
            key + at * (key_row * UNIT) + depth[None, :],
            mask=is_key[:, None] & (depth < D)[None, :],
            other=0.0,
        )
        v = tl.load(
            value + at * (value_row * UNIT) + value_columns[None, :],
            mask=is_key[:, None] & (value_columns < DV)[None, :],
            other=0.0,
        )
        # The cache is read once: each tile looks for what is not finite on its own.
        bad = tl.sum(k.to(tl.float32) * 0.0, 1) + tl.sum(v.to(tl.float32) * 0.0, 1)
        scores = product(q, tl.trans(finite(k)), PRECISION, WIDE)
        key_position = keys[None, :]
        if POSITIONS:
            key_position = tl.load(key_positions + keys, mask=is_key, other=0)[None, :]
        offset = query_position[:, None] - key_position
        if AFFINE == "line":
            # Keys beyond the split are hidden, and must not leave the line.
            offset = tl.where(is_key[None, :] & is_row[:, None], offset, 0)
        zero = tl.full([], 0, tl.int32)
        gain, bias = affine(offset, zero, line, length, inverse_tau, unit, AFFINE, CAUSAL, PTX)
        sink = is_key[None, :]
        if SINKS:
            sink = key_position < sinks
            gain, bias = tl.where(sink, unit, gain), tl.where(sink, 0.0, bias)
        key_document, unmasked = key_position, is_key[None, :]
        if DOCUMENTS:
            key_document = tl.load(key_documents + keys, mask=is_key, other=0)[None, :]
        if KEY_MASK:
            unmasked = tl.load(key_mask + keys, mask=is_key, other=0)[None, :] != 0
        of_key = 0.0
        if KEY_BIAS:
            inside = is_row[:, None] & is_key[None, :]
            of_key = tl.load(key_bias + keys[None, :], mask=inside, other=0.0)
        seen = visible(
            offset,
            is_key[None, :],
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
        risen = tl.maximum(highest, tl.max(x, 1))
        base = tl.where(risen == float("-inf"), 0.0, risen)
        weights = tl.exp2(x - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, 1)
        total_value = total_value * shrink[:, None]
        v = finite(v)
        total_value = add_product(total_value, narrow(weights, v, WIDE), v, PRECISION, WIDE)
        highest = risen

    nothing = total == 0.0
    total = tl.where(nothing, 1.0, total)
    spoiled = tl.where(nothing, 0.0, spoiled)
    result = total_value / total[:, None] + spoiled[:, None]
    log_total = tl.where(nothing, float("-inf"), highest + tl.log2(total) + spoiled)
    row = (batch * key_heads * group + head) * query_length + queries
    row = row * tl.num_programs(0) + part
    tl.store(
        parts + row[:, None] * DV + value_columns[None, :],
        result,
        mask=is_row[:, None] & (value_columns < DV)[None, :],
    )
    tl.store(part_lse + row, log_total, mask=is_row)


@triton.jit(do_not_specialize=["count"])
def merge_kernel(
    parts,
    part_lse,
    out,
    lse,
    count,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Merge the `count` splits of one row, in order."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_DV)
    highest = float("-inf")
    for begin in range(0, count, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        here = tl.load(part_lse + row * count + index, mask=index < count, other=float("-inf"))
        highest = tl.maximum(highest, tl.max(here, 0))
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = 0.0
    result = tl.zeros([BLOCK_DV], tl.float32)
    for begin in range(0, count, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        inside = index < count
        here = tl.load(part_lse + row * count + index, mask=inside, other=float("-inf"))
        weights = tl.exp2(here - base)
        part = tl.load(
            parts + (row * count + index)[:, None] * DV + columns[None, :],
            mask=inside[:, None] & (columns < DV)[None, :],
            other=0.0,
        )
        total += tl.sum(weights, 0)
        result += tl.sum(part * weights[:, None], 0)
    nothing = total == 0.0
    total = tl.where(nothing, 1.0, total)
    natural = (base + tl.log2(total)) * 0.6931471805599453
    tl.store(out + row * DV + columns, result / total, mask=columns < DV)
    tl.store(lse + row, tl.where(nothing, float("-inf"), natural))
