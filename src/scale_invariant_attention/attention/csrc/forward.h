// Forward: one block of queries of one head against all keys that it sees.
#pragma once

#include <math.h>

#include "rows.h"

namespace SIA_ISA {

constexpr int64_t QUERIES = SIA_FORWARD_QUERIES, KEYS = SIA_FORWARD_KEYS;
constexpr int64_t STRIP = SIA_FORWARD_STRIP;   // rows whose scores stay in the first-level cache
constexpr int64_t SCORE_ROW = KEYS + 16;       // no power of two: rows would share cache lines
static_assert(QUERIES % STRIP == 0 && STRIP % ROWS == 0 && KEYS % PANEL == 0, "blocks of whole tiles");

static size_t packed_key_floats(const Call& call) {
    return round_up(call.key_length, KEYS) * call.head_size;
}

static size_t packed_value_floats(const Call& call) {
    return round_up(call.key_length, KEYS) * round_up(call.value_size, PANEL);
}

static size_t pack_bytes(const Plan& plan) { return row_buffer_floats(plan.call) * sizeof(float); }

// Pack one block of keys and values of one head: keys [panel][D][PANEL], values
// [block][Dv / PANEL][KEYS][PANEL].
static void pack_block(const Plan& plan, int64_t item, void* memory) {
    const Call& call = plan.call;
    int64_t blocks = plan.geometry.key_blocks, head = item / blocks, block = item % blocks;
    int64_t place = plan.first_head + head, batch = place / call.key_heads;
    int64_t key_head = place % call.key_heads, start = block * KEYS;
    int64_t count = least(KEYS, call.key_length - start);
    uint8_t* is_bad = plan.bad_keys + head * blocks * KEYS + start;
    memset(is_bad, 0, KEYS);
    float* buffer = static_cast<float*>(memory);
    float* keys = plan.packed_keys + head * packed_key_floats(call) + start * call.head_size;
    pack_transposed(call, call.key, batch, key_head, start, count, round_up(count, PANEL),
                    call.head_size, keys, is_bad, buffer);
    float* values = plan.packed_values + head * packed_value_floats(call) +
                    start * round_up(call.value_size, PANEL);
    pack_rows(call, call.value, batch, key_head, start, count, KEYS, call.value_size, 1.0f, values,
              is_bad, buffer);
    uint8_t any = 0;
    for (int64_t k = 0; k < KEYS; ++k) any |= is_bad[k];
    plan.bad_blocks[head * blocks + block] = any;
}

struct ForwardMemory {
    float *query, *scores, *out, *totals, *shrink, *gain, *bias, *buffer;
    RowSoftmax* rows;
    size_t bytes;
};

static ForwardMemory forward_memory(const Plan& plan, void* memory) {
    const Call& call = plan.call;
    float* next = static_cast<float*>(memory);
    auto take = [&](int64_t count) {
        float* taken = next;
        next += round_up(count, 16);
        return taken;
    };
    ForwardMemory m = {};
    m.query = take(round_up(call.head_size, PANEL) * QUERIES);
    m.out = take(round_up(call.value_size, PANEL) * QUERIES);
    m.scores = take(SCORE_ROW * STRIP);
    m.totals = take(QUERIES * WIDTH);
    m.shrink = take(QUERIES);
    m.gain = take(KEYS);
    m.bias = take(KEYS);
    m.buffer = take(row_buffer_floats(call));
    m.rows = reinterpret_cast<RowSoftmax*>(take(QUERIES * sizeof(RowSoftmax) / 4));
    m.bytes = (next - static_cast<float*>(memory)) * sizeof(float);
    return m;
}

static size_t forward_bytes(const Plan& plan) { return forward_memory(plan, nullptr).bytes; }

static void forward_tile(const Plan& plan, const TilePlace& place, const ForwardMemory& m,
                         const float* keys, const float* values, int64_t queries) {
    const Call& call = plan.call;
    int64_t depth = call.head_size, width = round_up(call.value_size, PANEL);
    for (int64_t strip = 0; strip < queries; strip += STRIP) {
        int64_t rows = least(STRIP, round_up(queries - strip, ROWS));
        Range ranges[STRIP / ROWS];
        Range seen = {KEYS, 0};
        for (int64_t i = 0; i < rows; i += ROWS) {
            Range range = seen_range(call, place, strip + i, ROWS);
            ranges[i / ROWS] = range;
            if (range.low >= range.high) continue;
            seen = {least(seen.low, range.low), greatest(seen.high, range.high)};
        }
        if (seen.low >= seen.high) continue;
        for (int64_t c = seen.low / PANEL * PANEL; c < seen.high; c += PANEL)
            for (int64_t i = 0; i < rows; i += ROWS) {
                Range range = ranges[i / ROWS];
                if (c + PANEL <= range.low || c >= range.high) continue;
                product<PANEL, 1, Into::REPLACE>(m.query + (strip + i) * PANEL, QUERIES * PANEL,
                                                 keys + c * depth, depth,
                                                 m.scores + i * SCORE_ROW + c, SCORE_ROW);
            }
        for (int64_t i = 0; i < rows; ++i) {
            Range range = ranges[i / ROWS];
            int64_t row = strip + i;
            m.shrink[row] = 1.0f;
            if (range.low >= range.high || row >= queries) continue;
            bool saw_bad = false;
            RowAffine affine = row_affine(plan, place, row, range, m.gain, m.bias, &saw_bad);
            int64_t first = range.low / PANEL * PANEL, end = round_up(range.high, PANEL);
            m.shrink[row] = softmax_row(m.scores + i * SCORE_ROW, affine, first, end, m.rows + row,
                                        m.totals + row * WIDTH);
            m.rows[row].is_bad |= saw_bad;
        }
        for (int64_t c = 0; c < width; c += PANEL)
            for (int64_t i = 0; i < rows; i += ROWS) {
                Range range = ranges[i / ROWS];
                if (range.low >= range.high) continue;
                product<SCORE_ROW, 1, Into::SCALE_AND_ADD>(
                    m.scores + i * SCORE_ROW + range.low, PANEL,
                    values + (c / PANEL * KEYS + range.low) * PANEL, int(range.high - range.low),
                    m.out + (strip + i) * width + c, width, m.shrink + strip + i);
            }
    }
}

// What a row gives once all keys are done: its output, in place, and its log-sum-exp.
static float finish_row(RowSoftmax row, float total, float* out, int64_t size) {
    if (row.highest == -__builtin_inff() && total == 0) {
        memset(out, 0, size * 4);
        return row.highest;
    }
    float factor = row.is_bad ? __builtin_nanf("") : 1.0f / total;
    for (int64_t c = 0; c < size; ++c) out[c] *= factor;
    return row.is_bad ? factor : (row.highest + log2f(total)) * float(LN_2);
}

static void forward_item(const Plan& plan, int64_t item, void* memory) {
    const Call& call = plan.call;
    const Geometry& geometry = plan.geometry;
    ForwardMemory m = forward_memory(plan, memory);
    // Heads one after the other, so that they stay in the cache; the longest rows first, so that the
    // threads end together.
    int64_t block = geometry.query_blocks - 1 - item % geometry.query_blocks;
    int64_t head = item / geometry.query_blocks, key_head = head / plan.group;
    int64_t place = plan.first_head + key_head, batch = place / call.key_heads;
    int64_t query_head = place % call.key_heads * plan.group + head % plan.group;
    int64_t start = block * QUERIES, queries = least(QUERIES, call.query_length - start);
    int64_t width = round_up(call.value_size, PANEL);

    uint8_t bad_queries[QUERIES] = {};
    pack_rows(call, call.query, batch, query_head, start, queries, QUERIES, call.head_size,
              float(call.scale * LOG2_E), m.query, bad_queries, m.buffer);
    memset(m.out, 0, QUERIES * width * 4);
    memset(m.totals, 0, QUERIES * WIDTH * 4);
    for (int64_t i = 0; i < QUERIES; ++i) m.rows[i] = {-__builtin_inff(), bad_queries[i] != 0};
    const float* keys = plan.packed_keys + key_head * packed_key_floats(call);
    const float* values = plan.packed_values + key_head * packed_value_floats(call);
    for (int64_t n = 0; n < geometry.key_blocks; ++n) {
        int64_t flags = key_head * geometry.key_blocks + n;
        const uint8_t* bad = plan.bad_blocks[flags] ? plan.bad_keys + flags * KEYS : nullptr;
        TilePlace tile = tile_place(plan, batch, query_head, block, n, bad);
        if (tile.kind == Tile::EMPTY) continue;
        forward_tile(plan, tile, m, keys + n * KEYS * call.head_size, values + n * KEYS * width,
                     queries);
    }
    int64_t first = (batch * call.query_heads + query_head) * call.query_length + start;
    for (int64_t i = 0; i < queries; ++i) {
        float* out = m.out + i * width;
        call.lse[first + i] = finish_row(m.rows[i], sum(load(m.totals + i * WIDTH)), out, call.value_size);
        memcpy(call.out + (first + i) * call.value_size, out, call.value_size * 4);
    }
}

}  // namespace SIA_ISA
