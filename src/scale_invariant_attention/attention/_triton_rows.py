"""Kernels that prepare numbers by key, query or offset: flags, biases, gains, terms of backward."""

import triton
import triton.language as tl

from ._triton_tiles import distance_of


@triton.jit(
    do_not_specialize=[
        *("key_batch", "key_head", "key_row", "value_batch", "value_head", "value_row"),
        *("heads", "length", "padded"),
    ]
)
def spoil_kernel(
    key,
    value,
    spoil,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    heads,
    length,
    padded,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Write NaN for every key that is not finite, or whose value is not, and 0 for all others.

    There are `padded` of them, so that whole blocks can be read without a mask.
    """
    problem = tl.program_id(1)
    batch, head = (problem // heads).to(tl.int64), problem % heads
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = rows.to(tl.int64)[:, None]
    columns, value_columns = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    inside = (rows < length)[:, None]
    key += (batch * key_batch + head.to(tl.int64) * key_head) * UNIT
    value += (batch * value_batch + head.to(tl.int64) * value_head) * UNIT
    k = tl.load(key + at * (key_row * UNIT) + columns, mask=inside & (columns < D), other=0.0)
    v = tl.load(
        value + at * (value_row * UNIT) + value_columns,
        mask=inside & (value_columns < DV),
        other=0.0,
    )
    # Zero times anything finite is zero; times anything else, NaN, which sums keep.
    bad = tl.sum(k.to(tl.float32) * 0.0, 1) + tl.sum(v.to(tl.float32) * 0.0, 1)
    tl.store(spoil + problem.to(tl.int64) * padded + rows, bad)


@triton.jit(
    do_not_specialize=[
        *("given_batch", "given_head", "given_row", "heads", "length", "padded"),
    ]
)
def key_bias_kernel(
    given,
    key_bias,
    given_batch,
    given_head,
    given_row,
    heads,
    length,
    padded,
    BLOCK: tl.constexpr,
    FINITE: tl.constexpr,
):
    """Write key biases in base 2; with FINITE, zeros for those of infinity and NaN.

    There are `padded` of them, so that whole blocks can be read without a mask.
    """
    problem = tl.program_id(1)
    batch, head = (problem // heads).to(tl.int64), problem % heads
    keys = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = given + batch * given_batch + head.to(tl.int64) * given_head
    natural = tl.load(at + keys.to(tl.int64) * given_row, mask=keys < length, other=0.0)
    scaled = base_two(natural)
    if FINITE:
        scaled = tl.where(natural < float("inf"), scaled, 0.0)
    tl.store(key_bias + problem.to(tl.int64) * padded + keys, scaled)


@triton.jit
def base_two(bias):
    """A natural bias in base 2, finite if it is: only -inf hides a distance or a key."""
    scaled = bias.to(tl.float64) * 1.4426950408889634
    lowest = (scaled < -3e38) & (bias != float("-inf"))
    return tl.where(lowest, -3e38, scaled).to(tl.float32)


@triton.jit(
    do_not_specialize=[
        *("grad_batch", "grad_head", "grad_row", "grad_lse_batch", "grad_lse_head"),
        *("grad_lse_row", "heads", "query_length", "padded"),
    ]
)
def row_terms_kernel(
    out,
    lse,
    grad_out,
    grad_lse,
    terms,
    grad_batch,
    grad_head,
    grad_row,
    grad_lse_batch,
    grad_lse_head,
    grad_lse_row,
    heads,
    query_length,
    padded,
    DV: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Base and delta of every row, interleaved.

    There are `padded` of them, so that whole blocks can be read without a mask.

    ``weight = exp2(x - base)``, ``grad_logit = weight * (grad_weight - delta)``. A row that saw no
    key, or whose gradient is zero, gets an infinite base: its weights vanish, and with them all its
    contributions, even if its output is NaN.
    """
    problem = tl.program_id(1)
    batch, head = (problem // heads).to(tl.int64), problem % heads
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, BLOCK_DV)[None, :]
    is_query = rows < query_length
    inside = is_query[:, None] & (columns < DV)
    flat = problem.to(tl.int64) * query_length + rows
    at = rows.to(tl.int64)
    grad_out += (batch * grad_batch + head.to(tl.int64) * grad_head) * UNIT
    grad = tl.load(grad_out + at[:, None] * (grad_row * UNIT) + columns, mask=inside, other=0.0)
    grad = grad.to(tl.float32)
    result = tl.load(out + flat[:, None] * DV + columns, mask=inside, other=0.0)
    of_lse = (
        grad_lse + batch * grad_lse_batch + head.to(tl.int64) * grad_lse_head + at * grad_lse_row
    )
    grad_of_lse = tl.load(of_lse, mask=is_query, other=0.0)
    natural = tl.load(lse + flat, mask=is_query, other=float("-inf"))
    used = tl.sum((grad != 0.0).to(tl.int32), 1) + (grad_of_lse != 0.0).to(tl.int32)
    silent = (used == 0) | (natural == float("-inf"))
    delta = tl.sum(grad * result, 1) - grad_of_lse
    flat = problem.to(tl.int64) * padded + rows
    base = natural * 1.4426950408889634
    tl.store(terms + 2 * flat, tl.where(silent, float("inf"), base))
    tl.store(terms + 2 * flat + 1, tl.where(silent, 0.0, delta))


@triton.jit(
    do_not_specialize=[
        *("tau_row", "gain_row", "bias_row", "size", "length", "origin"),
        *("scale_high", "scale_low"),
    ]
)
def line_kernel(
    line,
    slope_line,
    taus,
    gains,
    biases,
    tau_row,
    gain_row,
    bias_row,
    size,
    length,
    origin,
    scale_high,
    scale_low,
    BLOCK: tl.constexpr,
    TAU: tl.constexpr,
    CAUSAL: tl.constexpr,
    SLOPES: tl.constexpr,
):
    """Write gain and bias in base 2 for the offsets ``-origin .. size - origin - 1`` of one head.

    They come from tau, in float64, or from tables of `length` distances. With SLOPES also their
    derivatives by tau, in natural units.
    """
    head = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    distance = distance_of(index - origin, CAUSAL)
    # 32-bit arguments carry the scale as a sum of two.
    scale = tl.full([], scale_high, tl.float64) + tl.full([], scale_low, tl.float64)
    if TAU:
        tau = tl.load(taus + head * tau_row)
        t = distance.to(tl.float64)
        growth = 2.0 * tl.log(1.0 + t / tau)
        gain, bias = tl.sqrt(1.0 + growth), -growth
    else:
        # Distances beyond the tables belong to hidden pairs.
        known = tl.minimum(distance, length - 1)
        gain = tl.load(gains + head * gain_row + known, mask=inside, other=0.0).to(tl.float64)
        bias = tl.load(biases + head * bias_row + known, mask=inside, other=0.0).to(tl.float64)
    at = (head * size + index) * 2
    log2_e = 1.4426950408889634
    tl.store(line + at, (gain * scale * log2_e).to(tl.float32), mask=inside)
    tl.store(line + at + 1, base_two(bias), mask=inside)
    if SLOPES:
        slope = -t / (tau * (t + tau))
        tl.store(slope_line + at, (slope / gain * scale).to(tl.float32), mask=inside)
        tl.store(slope_line + at + 1, (-2.0 * slope).to(tl.float32), mask=inside)
