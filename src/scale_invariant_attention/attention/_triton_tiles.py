"""Device functions of one tile: products, gain and bias of its pairs, and which pairs are visible.

Logits are in base 2: ``x = s * gain + bias`` with `log2(e)` and the scale folded into gain and bias, so
that a weight is a single ``exp2``. Arguments of two dimensions broadcast: a kernel may hold its tile as
queries by keys or as keys by queries.
"""

import triton
import triton.language as tl


@triton.jit
def _factor(x, PRECISION: tl.constexpr, WIDE: tl.constexpr):
    """A factor of a product as the device can multiply it."""
    if WIDE:
        # The interpreter multiplies the bit patterns of bfloat16.
        return x.to(tl.float32)
    if PRECISION == "tf32":
        # Tensor cores drop the low bits of float32, which would make all results too small.
        bits = tl.inline_asm_elementwise(
            "cvt.rna.tf32.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
        )
        return bits.to(tl.float32, bitcast=True)
    return x


@triton.jit
def product(a, b, PRECISION: tl.constexpr, WIDE: tl.constexpr):
    """``a @ b`` in float32."""
    a, b = _factor(a, PRECISION, WIDE), _factor(b, PRECISION, WIDE)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr, WIDE: tl.constexpr):
    """``total + a @ b`` in float32."""
    a, b = _factor(a, PRECISION, WIDE), _factor(b, PRECISION, WIDE)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def narrow(x, like, WIDE: tl.constexpr):
    """`x` in the dtype of the other side of a product."""
    if WIDE:
        # The interpreter truncates to bfloat16, which no device does.
        return x
    return x.to(like.dtype)


@triton.jit
def load_rows(at, columns, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Load a tile of `SIZE` of its `BLOCK` columns."""
    if SIZE == BLOCK:
        return tl.load(at)
    return tl.load(at, mask=columns < SIZE, other=0.0)


@triton.jit
def finite(x):
    """`x` with zeros for NaN and infinities."""
    wide = x.to(tl.float32)
    return tl.where(tl.abs(wide) < float("inf"), wide, 0.0).to(x.dtype)


@triton.jit
def offsets(shift, queries, keys, QUERY_BITS: tl.constexpr, KEY_BITS: tl.constexpr):
    """Offsets ``shift + query - key`` of a tile in two parts: one per thread, and constants.

    `queries` and `keys` are indices within the tile, and the bits count the elements of a thread in the
    layout of a product. The sum is correct for any bits; with these, LLVM sees the constants.
    """
    by_thread = shift + ((queries & ~QUERY_BITS) - (keys & ~KEY_BITS))
    return by_thread, (queries & QUERY_BITS) - (keys & KEY_BITS)


@triton.jit
def _pair(line, index, constant, PTX: tl.constexpr):
    """The two numbers of entry ``index + constant``."""
    if PTX:
        # Pure, so that LLVM loads equal indices of a thread once; and no tl.load, because those in a
        # loop are pipelined through shared memory, which the tables would overflow. Constants are
        # added last and in 64 bits: so they become part of the instruction.
        at = line.to(tl.int64) + index.to(tl.int64) * 8
        first, second = tl.inline_asm_elementwise(
            "ld.global.nc.v2.f32 {$0, $1}, [$2];",
            "=f,=f,l",
            [at + constant.to(tl.int64) * 8],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        first = tl.load(line + 2 * (index + constant))
        second = tl.load(line + 2 * (index + constant) + 1)
    return first, second


@triton.jit
def _log2(x, PTX: tl.constexpr):
    if PTX:
        # tl.log2 and tl.sqrt expand to many instructions.
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.log2(x)


@triton.jit
def _sqrt(x, PTX: tl.constexpr):
    if PTX:
        return tl.inline_asm_elementwise(
            "sqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.sqrt(x)


@triton.jit
def distance_of(offset, CAUSAL: tl.constexpr):
    """Distance of pairs at position offsets."""
    if CAUSAL:
        return tl.maximum(offset, 0)
    return tl.abs(offset)


@triton.jit
def affine(
    index,
    constant,
    line,
    length,
    inverse_tau,
    unit,
    AFFINE: tl.constexpr,
    CAUSAL: tl.constexpr,
    PTX: tl.constexpr,
):
    """Gain and bias of pairs at the integer position offsets ``index + constant``.

    AFFINE is "line": `line` points to the pair of offset zero, and holds negative ones too; "table": to
    that of distance zero, and there are `length` distances; or "tau": computed in registers, with
    `unit` the gain at distance zero.
    """
    distance = distance_of(index + constant, CAUSAL)
    if AFFINE == "line":
        gain, bias = _pair(line, index, constant, PTX)
    elif AFFINE == "table":
        # Distances beyond the table belong to hidden pairs.
        known = tl.minimum(distance, length - 1).to(tl.int32)
        gain, bias = _pair(line, known, tl.full([], 0, tl.int32), PTX)
    else:
        ratio = distance.to(tl.float32) * inverse_tau
        # u / ln 2, with u = log1p(t / tau): gain = sqrt(1 + 2 u), bias = -2 u
        w = _log2(1.0 + ratio, PTX)
        square = unit * unit
        gain = _sqrt(tl.fma(2.0 * 0.6931471805599453 * square, w, square), PTX)
        bias = -2.0 * w
    return gain, bias


@triton.jit
def logits(scores, gain, bias, key_bias, KEY_BIAS: tl.constexpr):
    """Logits in base 2."""
    if KEY_BIAS:
        bias += key_bias
    return tl.fma(scores, gain, bias)


@triton.jit
def slopes(
    index,
    constant,
    line,
    gain,
    inverse_tau,
    unit,
    AFFINE: tl.constexpr,
    CAUSAL: tl.constexpr,
    PTX: tl.constexpr,
):
    """Derivatives by tau: of the natural logit per raw score, and of the natural bias."""
    if AFFINE == "line":
        of_gain, of_bias = _pair(line, index, constant, PTX)
    else:
        # u' = -t / (tau (t + tau)); the gain's is u' / gain.
        ratio = distance_of(index + constant, CAUSAL).to(tl.float32) * inverse_tau
        slope = -ratio / (1.0 + ratio) * inverse_tau
        of_gain = slope * (unit * unit * 0.6931471805599453) / gain
        of_bias = -2.0 * slope
    return of_gain, of_bias


@triton.jit
def visible(
    offset,
    is_key,
    sink,
    query_document,
    key_document,
    unmasked,
    bias,
    key_bias,
    window,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    KEY_MASK: tl.constexpr,
    KEY_BIAS: tl.constexpr,
):
    """Which pairs of a tile are visible."""
    # A bias of -inf hides a distance or a key; one of NaN does not.
    seen = is_key & (bias != float("-inf"))
    if KEY_BIAS:
        seen = seen & (key_bias != float("-inf"))
    if CAUSAL:
        seen = seen & (offset >= 0)
    if WINDOW:
        near = distance_of(offset, CAUSAL) < window
        if SINKS:
            near = near | sink
        seen = seen & near
    if DOCUMENTS:
        seen = seen & (query_document == key_document)
    if KEY_MASK:
        seen = seen & unmasked
    return seen


@triton.jit
def block_range(some, every, last_every, last_some, BLOCK: tl.constexpr):
    """Blocks with partly visible, wholly visible and partly visible tiles: four bounds.

    Something is visible in ``[some, last_some)``, and everything in ``[every, last_every)``.
    """
    first = tl.maximum(some, 0) // BLOCK
    last = tl.maximum((tl.maximum(last_some, 0) + BLOCK - 1) // BLOCK, first)
    full = tl.minimum(tl.maximum((tl.maximum(every, 0) + BLOCK - 1) // BLOCK, first), last)
    end = tl.minimum(tl.maximum(tl.maximum(last_every, 0) // BLOCK, full), last)
    return first, full, end, last


@triton.jit
def masked_block(step, lowest, full, gap):
    """The block of a step of the masked loop, in which the `gap` blocks from `full` on come first.

    If all numbers are finite, these need no mask, and the loop starts after them. So blocks are added
    in one order, whether there are such numbers or not.
    """
    rest = step - gap
    rest += tl.where(rest >= full, gap, 0)
    return tl.where(step - lowest < gap, full + step - lowest, rest)
