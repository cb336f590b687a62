// Decoding: a few queries against a long cache. Nothing is packed: keys and values are read once, in
// place, for all query heads that share them. The cache is cut into parts of a fixed length, each a
// work item; the softmaxes of the parts are merged at the end.
#pragma once

#include "forward.h"

namespace SIA_ISA {

constexpr int64_t CACHE_BLOCK = 256;   // keys at a time
constexpr int64_t DECODE_ROWS = 16;    // if more rows share their keys, packing pays off

// Flags of a row: it sees a non-finite value, or one of its scores was not finite.
constexpr uint8_t BAD = 1, SUSPECT = 2;
static_assert(CACHE_BLOCK % PANEL == 0, "blocks of whole panels");

// scores[r][k] = queries[r] . keys[k] for four rows and K keys. Here and below, queries are padded with zeros
// to whole vectors, and what is left of a row of the cache is loaded as a vector too: so the result does not
// depend on how the cache is stored.
template <int K, class Stored>
SIA_INLINE void four_dots(const float* queries, const Stored* keys, int64_t key_row, int64_t size,
                          float* scores) {
    Vec sums[K][4] = {};
    auto step = [&](int64_t d, auto load_key) __attribute__((always_inline)) {
        Vec some[K];
#pragma GCC unroll 2
        for (int k = 0; k < K; ++k) some[k] = load_key(keys + k * key_row + d);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            Vec query = load(queries + r * round_up(size, WIDTH) + d);
#pragma GCC unroll 2
            for (int k = 0; k < K; ++k) sums[k][r] += query * some[k];
        }
    };
    int64_t d = 0;
    for (; d + WIDTH <= size; d += WIDTH) step(d, [](const Stored* from) { return load(from); });
    if (d < size) step(d, [&](const Stored* from) { return load_few(from, size - d); });
    for (int k = 0; k < K; ++k) {
        float totals[4];
        sum_four(sums[k], totals);
        for (int r = 0; r < 4; ++r) scores[r * CACHE_BLOCK + k] = totals[r];
    }
}

// scores[0] = query . key, in four independent sums.
template <class Stored>
SIA_INLINE void one_dot(const float* query, const Stored* key, int64_t size, float* scores) {
    Vec sums[4] = {};
    int64_t d = 0;
    for (; d + 4 * WIDTH <= size; d += 4 * WIDTH)
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) sums[n] += load(query + d + n * WIDTH) * load(key + d + n * WIDTH);
    for (; d + WIDTH <= size; d += WIDTH) sums[0] += load(query + d) * load(key + d);
    if (d < size) sums[1] += load(query + d) * load_few(key + d, size - d);
    scores[0] = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Prefetch later rows: memory is slow, and the hardware does not recognise this order of access.
constexpr int64_t BYTES_AHEAD = 8192, CACHE_LINE = 64;

template <class Stored>
SIA_INLINE void fetch_later(const Stored* rows, int64_t row, int64_t count, int64_t size) {
    constexpr int64_t STEP = CACHE_LINE / sizeof(Stored);
    rows += row * (BYTES_AHEAD / int64_t(sizeof(Stored)) / size + 1);
    for (int64_t n = 0; n < count; ++n)
        for (int64_t d = 0; d < size; d += STEP) __builtin_prefetch(rows + n * row + d, 0, 3);
}

template <class Stored>
static void dot_block(const float* queries, int64_t rows, const Stored* keys, int64_t key_row,
                      int64_t count, int64_t size, float* scores) {
    for (int64_t k = 0; k < count; k += 2) {
        int64_t few = least(2, count - k), r = 0;
        const Stored* own = keys + k * key_row;
        fetch_later(own, key_row, few, size);
        for (; r + 4 <= rows; r += 4) {
            const float* four = queries + r * round_up(size, WIDTH);
            float* to = scores + r * CACHE_BLOCK + k;
            if (few == 2)
                four_dots<2>(four, own, key_row, size, to);
            else
                four_dots<1>(four, own, key_row, size, to);
        }
        for (; r < rows; ++r)
            for (int64_t n = 0; n < few; ++n)
                one_dot(queries + r * round_up(size, WIDTH), own + n * key_row, size,
                        scores + r * CACHE_BLOCK + k + n);
    }
}

// out[r] += sum over k of weights[r][k] * values[k], V vectors at a time, which `load_value` reads.
template <int R, int V, class Stored, class Load>
SIA_INLINE void weigh_columns(const float* weights, const Stored* values, int64_t value_row,
                              int64_t count, float* out, int64_t out_row, Load load_value) {
    Vec sums[R][V];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[r][v] = load(out + r * out_row + v * WIDTH);
    for (int64_t k = 0; k < count; ++k)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            Vec value = load_value(values + k * value_row + v * WIDTH);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sums[r][v] += weights[r * CACHE_BLOCK + k] * value;
        }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) store(out + r * out_row + v * WIDTH, sums[r][v]);
}

// A few values at a time, so that memory is read in order although columns are processed in turn.
constexpr int64_t VALUES_AT_ONCE = 4;

template <int R, class Stored>
static void weigh(const float* weights, const Stored* values, int64_t value_row, int64_t count,
                  int64_t size, float* out, int64_t out_row) {
    constexpr int V = 8 / R;
    for (int64_t k = 0; k < count; k += VALUES_AT_ONCE) {
        int64_t few = least(VALUES_AT_ONCE, count - k), c = 0;
        const float* own = weights + k;
        const Stored* from = values + k * value_row;
        fetch_later(from, value_row, few, size);
        auto whole = [](const Stored* value) { return load(value); };
        auto rest = [&](const Stored* value) { return load_few(value, size - c); };
        for (; c + V * WIDTH <= size; c += V * WIDTH)
            weigh_columns<R, V>(own, from + c, value_row, few, out + c, out_row, whole);
        for (; c + WIDTH <= size; c += WIDTH)
            weigh_columns<R, 1>(own, from + c, value_row, few, out + c, out_row, whole);
        if (c < size) weigh_columns<R, 1>(own, from + c, value_row, few, out + c, out_row, rest);
    }
}

// The softmax of a row over a part of the cache: highest logit, total, whether it is bad, and the
// unnormalised output.
constexpr int64_t PARTIAL_HEAD = 16;

static size_t partial_floats(const Call& call) {
    return PARTIAL_HEAD + round_up(call.value_size, PANEL);
}

SIA_INLINE void store_partial(float* partial, const Softmax& softmax, int64_t row, const float* out,
                              int64_t width) {
    partial[0] = softmax.highest[row];
    partial[1] = sum(load(softmax.totals + row * WIDTH));
    partial[2] = softmax.is_bad[row] & BAD;
    memcpy(partial + PARTIAL_HEAD, out, width * 4);
}

struct DecodeMemory {
    float *query, *scores, *gain, *bias, *key_bias, *keys, *values, *out;
    Softmax softmax;
    uint8_t* bad;
    size_t bytes;
};

static DecodeMemory decode_memory(const Plan& plan, void* memory) {
    const Call& call = plan.call;
    int64_t rows = plan.group * call.query_length;
    Pieces pieces = {static_cast<float*>(memory), 0};
    DecodeMemory m = {};
    m.query = pieces.take(rows * round_up(call.head_size, WIDTH));
    m.scores = pieces.take(rows * CACHE_BLOCK);
    m.softmax.highest = pieces.take(rows);
    m.softmax.totals = pieces.take(rows * WIDTH);
    m.softmax.shrink = pieces.take(rows);
    m.softmax.is_bad = reinterpret_cast<uint8_t*>(pieces.take(rows));
    m.gain = pieces.take(CACHE_BLOCK);
    m.bias = pieces.take(CACHE_BLOCK);
    m.key_bias = call.key_bias.data ? pieces.take(CACHE_BLOCK) : nullptr;
    m.keys = pieces.take(CACHE_BLOCK * call.head_size);
    m.values = pieces.take(CACHE_BLOCK * call.value_size);
    m.out = pieces.take(rows * round_up(call.value_size, PANEL));
    m.bad = reinterpret_cast<uint8_t*>(pieces.take(CACHE_BLOCK / 4));
    m.bytes = pieces.used * sizeof(float);
    return m;
}

static size_t decode_bytes(const Plan& plan) { return decode_memory(plan, nullptr).bytes; }

// Keys or values of a block of the cache.
template <class Stored>
struct CacheRows {
    const Stored* data;
    int64_t row;
};

template <class Stored>
SIA_INLINE CacheRows<Stored> rows_in_place(const Tensor& tensor, int64_t batch, int64_t head,
                                           int64_t start) {
    int64_t place = batch * tensor.batch + head * tensor.head + start * tensor.row;
    return {static_cast<const Stored*>(tensor.data) + place, tensor.row};
}

// Rows converted to floats. With `bad`, non-finite values are replaced by zero and their rows marked.
static CacheRows<float> copied_rows(const Call& call, const Tensor& tensor, int64_t batch, int64_t head,
                                    int64_t start, int64_t count, int64_t size, float* buffer,
                                    uint8_t* bad) {
    for (int64_t k = 0; k < count; ++k) {
        float* to = buffer + k * size;
        const float* row = read_row(call, tensor, batch, head, start + k, size, to);
        if (!bad) continue;
        if (!all_finite(row, size)) bad[k] = 1;
        for (int64_t d = 0; d < size; ++d) to[d] = finite(row[d]);
    }
    return {buffer, size};
}

// One block of the cache for all rows; `bad` marks keys that are not finite.
template <class Stored>
static void attend_block(const Plan& plan, const DecodeMemory& m, int64_t batch, int64_t key_head,
                         int64_t block, CacheRows<Stored> keys, CacheRows<Stored> values,
                         const uint8_t* bad) {
    const Call& call = plan.call;
    int64_t count = least(CACHE_BLOCK, call.key_length - block * CACHE_BLOCK);
    int64_t rows = plan.group * call.query_length, width = round_up(call.value_size, PANEL);
    dot_block(m.query, rows, keys.data, keys.row, count, call.head_size, m.scores);
    for (int64_t r = 0; r < rows; ++r) {
        int64_t head = key_head * plan.group + r / call.query_length, i = r % call.query_length;
        TilePlace place = tile_place(plan, batch, head, i, block, bad);
        take_key_bias(call, batch, m.key_bias, place);
        Range range = seen_range(call, place, 0, 1);
        float *scores = m.scores + r * CACHE_BLOCK, *out = m.out + r * width;
        int64_t first = range.low / PANEL * PANEL, end = round_up(range.high, PANEL);
        if (!all_finite(scores, count)) m.softmax.is_bad[r] |= SUSPECT;
        if (place.kind == Tile::EMPTY || range.low >= range.high) {
            first = end = 0;
        } else {
            softmax_rows<float>(scores, nullptr, CACHE_BLOCK, 1, first, end, m.softmax, r,
                                [&](int64_t, float*, bool* saw_bad) {
                             RowAffine affine =
                                 row_affine(plan, place, 0, range, m.gain, m.bias, saw_bad);
                             return transform(scores, affine, first, end);
                         });
            for (int64_t c = 0; c < width; c += WIDTH)
                store(out + c, load(out + c) * m.softmax.shrink[r]);
        }
        memset(scores, 0, first * 4);
        memset(scores + end, 0, (CACHE_BLOCK - end) * 4);
    }
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4)
        weigh<4>(m.scores + r * CACHE_BLOCK, values.data, values.row, count, call.value_size,
                 m.out + r * width, width);
    for (; r < rows; ++r)
        weigh<1>(m.scores + r * CACHE_BLOCK, values.data, values.row, count, call.value_size,
                 m.out + r * width, width);
}

// One block of the cache, read in place if possible. With `bad`, non-finite values are replaced and marked
// there.
static void decode_block(const Plan& plan, const DecodeMemory& m, int64_t batch, int64_t key_head,
                         int64_t block, uint8_t* bad) {
    const Call& call = plan.call;
    int64_t start = block * CACHE_BLOCK, count = least(CACHE_BLOCK, call.key_length - start);
    if (call.storage == FLOAT32 && !bad)
        return attend_block(plan, m, batch, key_head, block,
                            rows_in_place<float>(call.key, batch, key_head, start),
                            rows_in_place<float>(call.value, batch, key_head, start), bad);
    if (call.storage == BFLOAT16 && !bad)
        return attend_block(plan, m, batch, key_head, block,
                            rows_in_place<Bfloat16>(call.key, batch, key_head, start),
                            rows_in_place<Bfloat16>(call.value, batch, key_head, start), bad);
    if (bad) memset(bad, 0, CACHE_BLOCK);
    CacheRows<float> keys = copied_rows(call, call.key, batch, key_head, start, count, call.head_size,
                                        m.keys, bad);
    CacheRows<float> values = copied_rows(call, call.value, batch, key_head, start, count,
                                          call.value_size, m.values, bad);
    attend_block(plan, m, batch, key_head, block, keys, values, bad);
}

// Whether any row sees any key of a block.
static bool block_is_seen(const Plan& plan, int64_t batch, int64_t block) {
    for (int64_t i = 0; i < plan.call.query_length; ++i)
        if (tile_place(plan, batch, 0, i, block, nullptr).kind != Tile::EMPTY) return true;
    return false;
}

// One part of the cache. Returns false if a result shows that some value was not finite: then the part must
// be processed again, this time `careful`.
static bool decode_part(const Plan& plan, const DecodeMemory& m, int64_t batch, int64_t key_head,
                        int64_t part, bool careful) {
    const Call& call = plan.call;
    int64_t rows = plan.group * call.query_length, width = round_up(call.value_size, PANEL);
    for (int64_t r = 0; r < rows; ++r) {
        int64_t head = key_head * plan.group + r / call.query_length, i = r % call.query_length;
        float* to = m.query + r * round_up(call.head_size, WIDTH);
        const float* row = read_row(call, call.query, batch, head, i, call.head_size, to);
        m.softmax.highest[r] = -__builtin_inff();
        m.softmax.is_bad[r] = !all_finite(row, call.head_size);
        for (int64_t d = 0; d < call.head_size; ++d)
            to[d] = finite(row[d]) * float(call.scale);
        for (int64_t d = call.head_size; d < round_up(call.head_size, WIDTH); ++d) to[d] = 0.0f;
    }
    memset(m.softmax.totals, 0, rows * WIDTH * 4);
    memset(m.out, 0, rows * width * 4);
    int64_t last = least((part + 1) * plan.part, plan.geometry.key_blocks);
    for (int64_t n = part * plan.part; n < last; ++n)
        if (block_is_seen(plan, batch, n))
            decode_block(plan, m, batch, key_head, n, careful ? m.bad : nullptr);
    if (careful) return true;
    for (int64_t r = 0; r < rows; ++r)
        if ((m.softmax.is_bad[r] & SUSPECT) || !all_finite(m.out + r * width, width)) return false;
    return true;
}

static void decode_item(const Plan& plan, int64_t item, void* memory) {
    const Call& call = plan.call;
    DecodeMemory m = decode_memory(plan, memory);
    int64_t place = item / plan.parts, part = item % plan.parts;
    int64_t batch = place / call.key_heads, key_head = place % call.key_heads;
    int64_t rows = plan.group * call.query_length, width = round_up(call.value_size, PANEL);
    if (!decode_part(plan, m, batch, key_head, part, false))
        decode_part(plan, m, batch, key_head, part, true);
    float* partial = plan.partial + item * rows * partial_floats(call);
    for (int64_t r = 0; r < rows; ++r, partial += partial_floats(call))
        store_partial(partial, m.softmax, r, m.out + r * width, width);
}

// Merge the parts of one row, in order.
static void merge_item(const Plan& plan, int64_t item, void*) {
    const Call& call = plan.call;
    int64_t rows = plan.group * call.query_length, place = item / rows, r = item % rows;
    int64_t step = rows * partial_floats(call);
    const float* first = plan.partial + place * plan.parts * step + r * partial_floats(call);
    float highest = -__builtin_inff();
    bool is_bad = false;
    for (int64_t n = 0; n < plan.parts; ++n) {
        const float* part = first + n * step;
        if (part[0] > highest) highest = part[0];
        is_bad |= part[2] != 0;
    }
    int64_t batch = place / call.key_heads, key_head = place % call.key_heads;
    int64_t head = key_head * plan.group + r / call.query_length, i = r % call.query_length;
    int64_t where = (batch * call.query_heads + head) * call.query_length + i;
    float* out = call.out + where * call.value_size;
    memset(out, 0, call.value_size * 4);
    float total = 0;
    for (int64_t n = 0; n < plan.parts; ++n) {
        const float* part = first + n * step;
        if (part[0] == -__builtin_inff() && part[1] == 0) continue;
        float factor = exp(splat(part[0] - highest))[0];
        total += factor * part[1];
        for (int64_t c = 0; c < call.value_size; ++c) out[c] += factor * part[PARTIAL_HEAD + c];
    }
    call.lse[where] = finish_row(highest, total, is_bad, out, call.value_size);
}

}  // namespace SIA_ISA
