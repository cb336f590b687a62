// Forward: one block of queries of one head against all keys that it sees.
#pragma once

#include "rows.h"

namespace SIA_ISA {

constexpr int64_t QUERIES = SIA_FORWARD_QUERIES, KEYS = SIA_FORWARD_KEYS;
constexpr int64_t STRIP = SIA_FORWARD_STRIP;   // rows whose scores stay in the first-level cache
constexpr int64_t SCORE_ROW = KEYS + 16;       // not a power of two, or rows would share cache lines
static_assert(2 * (ROWS + PANEL) <= LINE_MARGIN, "rows reach no farther than that beyond what they see");
static_assert(QUERIES % STRIP == 0 && STRIP % ROWS == 0 && KEYS % PANEL == 0, "blocks of whole tiles");

// Operands in a packed block of keys or values.
template <class Operand>
SIA_INLINE int64_t key_block_size(const Call& call) {
    return KEYS * operands<Operand>(call.head_size);
}

template <class Operand>
SIA_INLINE int64_t value_block_size(const Call& call) {
    return operands<Operand>(KEYS) * round_up(call.value_size, PANEL);
}

static size_t packed_key_floats(const Call& call) {
    return with_operand(call, [&](auto operand) {
        return round_up(call.key_length, KEYS) / KEYS * key_block_size<decltype(operand)>(call);
    });
}

static size_t packed_value_floats(const Call& call) {
    return with_operand(call, [&](auto operand) {
        return round_up(call.key_length, KEYS) / KEYS * value_block_size<decltype(operand)>(call);
    });
}

static size_t pack_bytes(const Plan& plan) { return row_buffer_floats(plan.call) * sizeof(float); }

// Pack one block of keys and values of one head, in floats: keys [panel][D][PANEL], values
// [Dv / PANEL][KEYS][PANEL]. Returns whether some are not finite; `is_bad` says which.
template <class Operand>
static bool pack_keys(const Call& call, int64_t batch, int64_t key_head, int64_t block, Operand* keys,
                      Operand* values, uint8_t* is_bad, float* buffer) {
    int64_t start = block * KEYS, count = least(KEYS, call.key_length - start);
    memset(is_bad, 0, KEYS);
    pack_transposed(call, call.key, batch, key_head, start, count, round_up(count, PANEL),
                    call.head_size, keys, is_bad, buffer);
    pack_right(call, call.value, batch, key_head, start, count, KEYS, call.value_size, values, is_bad,
               buffer);
    uint8_t any = 0;
    for (int64_t k = 0; k < KEYS; ++k) any |= is_bad[k];
    return any;
}

template <class Operand>
static void pack_block_of(const Plan& plan, int64_t item, void* memory) {
    const Call& call = plan.call;
    int64_t blocks = plan.geometry.key_blocks, block = item % blocks;
    int64_t place = plan.first_head + item / blocks;
    Operand* keys = reinterpret_cast<Operand*>(plan.packed_keys) + item * key_block_size<Operand>(call);
    Operand* values =
        reinterpret_cast<Operand*>(plan.packed_values) + item * value_block_size<Operand>(call);
    plan.bad_blocks[item] =
        pack_keys(call, place / call.key_heads, place % call.key_heads, block, keys, values,
                  plan.bad_keys + item * KEYS, static_cast<float*>(memory));
}

static void pack_block(const Plan& plan, int64_t item, void* memory) {
    with_operand(plan.call,
                 [&](auto operand) { pack_block_of<decltype(operand)>(plan, item, memory); });
}

template <class Operand>
struct ForwardMemory {
    Operand* query;
    float *scores, *rest, *tops, *out, *gain, *bias, *key_bias, *buffer;
    Softmax softmax;
    size_t bytes;
};

template <class Operand>
static ForwardMemory<Operand> forward_memory(const Plan& plan, void* memory) {
    const Call& call = plan.call;
    Pieces pieces = {static_cast<float*>(memory), 0};
    ForwardMemory<Operand> m = {};
    m.query = pieces.take<Operand>(round_up(operands<Operand>(call.head_size), PANEL) * QUERIES);
    m.out = pieces.take(round_up(call.value_size, PANEL) * QUERIES);
    m.scores = pieces.take(SCORE_ROW * STRIP);
    m.rest = EACH<Operand> > 1 ? pieces.take(SCORE_ROW * STRIP) : nullptr;
    m.tops = pieces.take(STRIP * WIDTH);
    m.softmax.highest = pieces.take(QUERIES);
    m.softmax.totals = pieces.take(QUERIES * WIDTH);
    m.softmax.shrink = pieces.take(QUERIES);
    m.softmax.is_bad = reinterpret_cast<uint8_t*>(pieces.take(QUERIES / 4));
    m.gain = pieces.take(KEYS);
    m.bias = pieces.take(KEYS);
    m.key_bias = call.key_bias.data ? pieces.take(KEYS) : nullptr;
    m.buffer = pieces.take(row_buffer_floats(call));
    m.bytes = pieces.used * sizeof(float);
    return m;
}

static size_t forward_bytes(const Plan& plan) {
    return with_operand(plan.call, [&](auto operand) {
        return forward_memory<decltype(operand)>(plan, nullptr).bytes;
    });
}

// Turn sums, which are scores, into logits with the line's gain and bias, and keep the highest.
template <class Operand, bool KEY_BIAS>
struct Logits {
    float *to, *tops;
    const float *gain, *bias, *key_bias;
    float scale;
    SIA_METHOD void operator()(int i, const Vec (&sums)[VECTORS]) const {
        Vec top = load(tops + i * WIDTH);
        for (int v = 0; v < VECTORS; ++v) {
            Vec shift = load(bias - i + v * WIDTH);
            if (KEY_BIAS) shift += load(key_bias + v * WIDTH);
            Vec logits = score<Operand>(sums[v], scale) * load(gain - i + v * WIDTH) + shift;
            store(to + i * SCORE_ROW + v * WIDTH, logits);
            top = max(top, logits);
        }
        store(tops + i * WIDTH, top);
    }
};

// A few rows of a tile, whose scores fit into the first-level cache.
struct Strip {
    int64_t first, queries;      // of the block of queries
    int64_t rows;                // the same in whole tiles of ROWS
    Range seen;                  // keys that some row sees
    Range ranges[STRIP / ROWS];  // the same per group of ROWS rows
    bool plain[STRIP / ROWS];    // whether all rows of a group see the same whole panels
    bool keeps_rest[STRIP / ROWS];  // see `rounds_on_an_edge`
};

template <class Operand>
static Strip make_strip(const Call& call, const TilePlace& place, int64_t first, int64_t queries) {
    Strip strip = {};
    strip.first = first;
    strip.queries = least(STRIP, queries - first);
    strip.rows = round_up(strip.queries, ROWS);
    strip.seen = {KEYS, 0};
    for (int64_t i = 0; i < strip.rows; i += ROWS) {
        Range range = seen_range(call, place, first + i, ROWS);
        if (range.low >= range.high) continue;
        strip.ranges[i / ROWS] = range;
        strip.plain[i / ROWS] = all_see_all(call, place, first + i, ROWS, range);
        strip.keeps_rest[i / ROWS] = rounds_on_an_edge<Operand>(call, place, first + i);
        strip.seen.low = least(strip.seen.low, range.low);
        strip.seen.high = greatest(strip.seen.high, range.high);
    }
    return strip;
}

template <class Operand, bool KEY_BIAS>
static void strip_scores(const Plan& plan, const TilePlace& place, const Strip& strip,
                         const ForwardMemory<Operand>& m, const Operand* keys) {
    const float* gain = plan.lines.gain + place.head * plan.lines.gain_head - place.offset;
    const float* bias = plan.lines.bias + place.head * plan.lines.bias_head - place.offset;
    int64_t depth = operands<Operand>(plan.call.head_size);
    float scale = float(plan.call.scale);
    for (int64_t i = 0; i < strip.rows; ++i) store(m.tops + i * WIDTH, splat(-__builtin_inff()));
    for (int64_t c = strip.seen.low / PANEL * PANEL; c < strip.seen.high; c += PANEL)
        for (int64_t i = 0; i < strip.rows; i += ROWS) {
            Range range = strip.ranges[i / ROWS];
            if (c + PANEL <= range.low || c >= range.high) continue;
            int64_t row = strip.first + i;
            float *scores = m.scores + i * SCORE_ROW + c, *tops = m.tops + i * WIDTH;
            const Operand* query = m.query + row * PANEL;
            const float* key_bias = KEY_BIAS ? place.key_bias + c : nullptr;
            if (strip.plain[i / ROWS])
                product_of_rows<PANEL, 1>(
                    strip.queries - i, query, QUERIES * PANEL, keys + c * depth, depth,
                    Logits<Operand, KEY_BIAS>{scores, tops, gain + c - row, bias + c - row, key_bias, scale});
            else
                product_of_rows<PANEL, 1>(strip.queries - i, query, QUERIES * PANEL, keys + c * depth,
                                          depth, Scores<Operand>{scores, SCORE_ROW, scale});
        }
}

template <class Operand>
static void strip_softmax(const Plan& plan, const TilePlace& place, const Strip& strip,
                          const ForwardMemory<Operand>& m, int64_t queries) {
    for (int64_t i = 0; i < strip.rows; i += ROWS) {
        Range range = strip.ranges[i / ROWS];
        if (range.low >= range.high) continue;
        int64_t first = range.low / PANEL * PANEL, end = round_up(range.high, PANEL);
        int64_t row = strip.first + i;
        auto logits = [&](int64_t r, float* scores, bool* saw_bad) {
            if (strip.plain[i / ROWS]) return highest(load(m.tops + (i + r) * WIDTH));
            RowAffine affine = row_affine(plan, place, row + r, range, m.gain, m.bias, saw_bad);
            return transform(scores, affine, first, end);
        };
        float* rest = strip.keeps_rest[i / ROWS] ? m.rest + i * SCORE_ROW : nullptr;
        softmax_rows<Operand>(m.scores + i * SCORE_ROW, rest, SCORE_ROW, least(ROWS, queries - row), first,
                              end, m.softmax, row, logits);
    }
}

template <class Operand>
static void strip_values(const Plan& plan, const Strip& strip, const ForwardMemory<Operand>& m,
                         const Operand* values) {
    const Operand* weights = reinterpret_cast<const Operand*>(m.scores);
    const Operand* rest = reinterpret_cast<const Operand*>(m.rest);
    int64_t width = round_up(plan.call.value_size, PANEL);
    for (int64_t c = 0; c < width; c += PANEL)
        for (int64_t i = 0; i < strip.rows; i += ROWS) {
            Range range = operand_range<Operand>(strip.ranges[i / ROWS]);
            if (range.low >= range.high) continue;
            int64_t row = strip.first + i, depth = range.high - range.low;
            int64_t left = i * SCORE_ROW + range.low;
            const Operand* right = values + c * operands<Operand>(KEYS) + range.low * PANEL;
            float* out = m.out + row * width + c;
            product_of_rows<SCORE_ROW, 1>(strip.queries - i, weights + left, PANEL, right, depth,
                                          ScaleAndAdd{out, width, m.softmax.shrink + row});
            if (strip.keeps_rest[i / ROWS])
                product_of_rows<SCORE_ROW, 1>(strip.queries - i, rest + left, PANEL, right, depth,
                                              Add{out, width});
        }
}

template <class Operand>
static void forward_tile(const Plan& plan, const TilePlace& place, const ForwardMemory<Operand>& m,
                         const Operand* keys, const Operand* values, int64_t queries) {
    for (int64_t first = 0; first < queries; first += STRIP) {
        Strip strip = make_strip<Operand>(plan.call, place, first, queries);
        if (strip.seen.low >= strip.seen.high) continue;
        if (place.key_bias)
            strip_scores<Operand, true>(plan, place, strip, m, keys);
        else
            strip_scores<Operand, false>(plan, place, strip, m, keys);
        strip_softmax(plan, place, strip, m, queries);
        strip_values(plan, strip, m, values);
    }
}

// Pack a block of queries, which have seen no key so far.
template <class Operand>
static void start_rows(const Call& call, const ForwardMemory<Operand>& m, int64_t batch, int64_t head,
                       int64_t start, int64_t queries) {
    int64_t rows = round_up(queries, ROWS), width = round_up(call.value_size, PANEL);
    memset(m.softmax.is_bad, 0, QUERIES);
    pack_queries(call, batch, head, start, queries, QUERIES, m.query, m.softmax.is_bad, m.buffer);
    memset(m.out, 0, rows * width * 4);
    memset(m.softmax.totals, 0, rows * WIDTH * 4);
    memset(m.softmax.shrink, 0, rows * 4);
    for (int64_t i = 0; i < rows; ++i) m.softmax.highest[i] = -__builtin_inff();
}

template <class Operand>
static void forward_item_of(const Plan& plan, int64_t item, void* memory) {
    const Call& call = plan.call;
    const Geometry& geometry = plan.geometry;
    ForwardMemory<Operand> m = forward_memory<Operand>(plan, memory);
    // One head after the other, so that it stays in the cache; longest rows first, so that all threads
    // finish together.
    int64_t block = geometry.query_blocks - 1 - item % geometry.query_blocks;
    int64_t head = item / geometry.query_blocks, key_head = head / plan.group;
    int64_t place = plan.first_head + key_head, batch = place / call.key_heads;
    int64_t query_head = place % call.key_heads * plan.group + head % plan.group;
    int64_t start = block * QUERIES, queries = least(QUERIES, call.query_length - start);
    int64_t width = round_up(call.value_size, PANEL);

    start_rows(call, m, batch, query_head, start, queries);
    const Operand* keys = reinterpret_cast<const Operand*>(plan.packed_keys);
    const Operand* values = reinterpret_cast<const Operand*>(plan.packed_values);
    for (int64_t n = 0; n < geometry.key_blocks; ++n) {
        int64_t packed = key_head * geometry.key_blocks + n;
        const uint8_t* bad = plan.bad_blocks[packed] ? plan.bad_keys + packed * KEYS : nullptr;
        TilePlace tile = tile_place(plan, batch, query_head, block, n, bad);
        if (tile.kind == Tile::EMPTY) continue;
        take_key_bias(call, batch, m.key_bias, tile);
        forward_tile(plan, tile, m, keys + packed * key_block_size<Operand>(call),
                     values + packed * value_block_size<Operand>(call), queries);
    }
    int64_t first = (batch * call.query_heads + query_head) * call.query_length + start;
    for (int64_t i = 0; i < queries; ++i) {
        float* out = m.out + i * width;
        call.lse[first + i] = finish_row(m.softmax.highest[i], sum(load(m.softmax.totals + i * WIDTH)),
                                         m.softmax.is_bad[i], out, call.value_size);
        memcpy(call.out + (first + i) * call.value_size, out, call.value_size * 4);
    }
}

static void forward_item(const Plan& plan, int64_t item, void* memory) {
    with_operand(plan.call,
                 [&](auto operand) { forward_item_of<decltype(operand)>(plan, item, memory); });
}

}  // namespace SIA_ISA
