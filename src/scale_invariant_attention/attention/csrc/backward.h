// Backward: a share of the key blocks of one head against all queries that see them.
//
// Weights are recomputed from the log-sum-exp. A work item owns its key blocks, and with them the
// gradients of keys and values. It sums its own gradients of the queries, which are added in a fixed
// order when several items share a head. Results do not depend on which thread runs which item.
#pragma once

#include "forward.h"

namespace SIA_ISA {

constexpr int64_t BACK_QUERIES = SIA_BACKWARD_QUERIES, BACK_KEYS = SIA_BACKWARD_KEYS;
constexpr int64_t TILE_ROW = BACK_KEYS + 16;  // with zeros at the end: see sum_diagonals
static_assert(BACK_QUERIES % ROWS == 0 && BACK_KEYS % ROWS == 0 && BACK_KEYS % PANEL == 0,
              "blocks of whole tiles");
static_assert(TILE_ROW - BACK_KEYS >= WIDTH, "a vector of zeros after each row");
static_assert(BACK_QUERIES + BACK_KEYS + WIDTH <= LINE_MARGIN, "diagonals stay on the line");

struct BackwardMemory {
    // All queries of a head: scaled queries and gradients of the output in blocks of panels, base and
    // delta per row, and the gradients of the queries.
    float *query, *grad_out, *base, *delta, *grad_query;
    // A block of keys.
    float *keys_transposed, *values_transposed, *keys, *grad_keys, *grad_values;
    // A tile. The last two are for gradients of the affine.
    float *weights, *grad_scores, *scores, *grad_logits;
    float *gain, *bias, *buffer;
    size_t bytes;
};

static BackwardMemory backward_memory(const Plan& plan, void* memory) {
    const Call& call = plan.call;
    int64_t size = round_up(call.head_size, PANEL), value_size = round_up(call.value_size, PANEL);
    int64_t queries = round_up(call.query_length, BACK_QUERIES), tile = BACK_QUERIES * TILE_ROW + 32;
    Pieces pieces = {static_cast<float*>(memory), 0};
    BackwardMemory m = {};
    m.query = pieces.take(queries * size);
    m.grad_out = pieces.take(queries * value_size);
    m.base = pieces.take(queries);
    m.delta = pieces.take(queries);
    m.grad_query = pieces.take(queries * size);
    m.keys_transposed = pieces.take(BACK_KEYS * call.head_size);
    m.values_transposed = pieces.take(BACK_KEYS * call.value_size);
    m.keys = pieces.take(BACK_KEYS * size);
    m.grad_keys = pieces.take(BACK_KEYS * size);
    m.grad_values = pieces.take(BACK_KEYS * value_size);
    m.weights = pieces.take(tile);
    m.grad_scores = pieces.take(tile);
    m.gain = pieces.take(BACK_KEYS);
    m.bias = pieces.take(BACK_KEYS);
    m.buffer = pieces.take(row_buffer_floats(call));
    if (plan.affine_grads) {
        m.scores = pieces.take(tile) + 16;
        m.grad_logits = pieces.take(tile) + 16;
    } else {
        m.scores = m.weights;
    }
    m.bytes = pieces.used * sizeof(float);
    return m;
}

static size_t backward_bytes(const Plan& plan) { return backward_memory(plan, nullptr).bytes; }

// Base and delta of every row: weight = exp(logit - base), grad_logit = weight * (grad_weight - delta). A
// row that saw no key, or whose gradient is zero, has an infinite base: its weights vanish, and with them
// all its contributions, even if its output is NaN.
static void pack_queries(const Plan& plan, const BackwardMemory& m, int64_t batch, int64_t head) {
    const Call& call = plan.call;
    int64_t size = round_up(call.head_size, PANEL), value_size = round_up(call.value_size, PANEL);
    int64_t first = (batch * call.query_heads + head) * call.query_length;
    const Tensor gradients = {call.grad_out, 0, 0, call.value_size};
    Call plain = {};
    plain.storage = FLOAT32;
    for (int64_t start = 0; start < call.query_length; start += BACK_QUERIES) {
        int64_t count = least(BACK_QUERIES, call.query_length - start);
        pack_rows(call, call.query, batch, head, start, count, BACK_QUERIES, call.head_size,
                  float(call.scale), m.query + start * size, nullptr, m.buffer);
        pack_rows(plain, gradients, 0, 0, first + start, count, BACK_QUERIES, call.value_size, 1.0f,
                  m.grad_out + start * value_size, nullptr, m.buffer);
        for (int64_t i = start; i < start + BACK_QUERIES; ++i) {
            m.base[i] = __builtin_inff();
            m.delta[i] = 0.0f;
            if (i >= start + count) continue;
            const float* grad = call.grad_out + (first + i) * call.value_size;
            const float* out = call.out + (first + i) * call.value_size;
            float delta = 0.0f;
            bool wanted = call.grad_lse[first + i] != 0.0f;
            for (int64_t c = 0; c < call.value_size; ++c) {
                delta += grad[c] * out[c];
                wanted |= grad[c] != 0.0f;
            }
            float lse = call.lse[first + i];
            if (wanted && lse != -__builtin_inff()) {
                // The incoming gradient may be NaN or infinite; the panels hold zeros instead.
                m.base[i] = all_finite(grad, call.value_size) ? lse : __builtin_nanf("");
                m.delta[i] = delta - call.grad_lse[first + i];
                continue;
            }
            for (int64_t c = 0; c < value_size; c += PANEL)
                memset(m.grad_out + start * value_size + (c * BACK_QUERIES + (i - start) * PANEL), 0,
                       PANEL * 4);
        }
    }
}

// Turn a row of scores and gradients of weights into weights and gradients of scores.
template <bool MASKED, bool AFFINE>
SIA_INLINE void backward_row(const BackwardMemory& m, int64_t i, RowAffine affine, float base,
                             float delta, int64_t first, int64_t end) {
    const Vec hidden = splat(-__builtin_inff()), nothing = {};
    float *scores = m.scores + i * TILE_ROW, *weights = m.weights + i * TILE_ROW;
    float* grads = m.grad_scores + i * TILE_ROW;
    for (int64_t c = first; c < end; c += WIDTH) {
        Vec score = load(scores + c), gain = load(affine.gain + c), bias = load(affine.bias + c);
        // In this order, the logit is rounded as in forward, and the difference is exact or small.
        Vec weight = exp((score * gain + bias) - base);
        Vec grad_logit = weight * (load(grads + c) - delta);
        if (MASKED) {
            // Infinite scores and NaN rows must have no effect where they are hidden.
            weight = bias == hidden ? nothing : weight;
            grad_logit = bias == hidden ? nothing : grad_logit;
        }
        if (AFFINE) {
            if (MASKED) store(scores + c, bias == hidden ? nothing : score);
            store(m.grad_logits + i * TILE_ROW + c, grad_logit);
        }
        store(weights + c, weight);
        store(grads + c, grad_logit * gain);
    }
}

// Add the gradients of gain and bias of a RANGES tile to the line: sums along its diagonals. The line is
// indexed by c - i, so vectors shift by one element per row of the tile; outside of it they read zeros.
static void sum_diagonals(const Plan& plan, const TilePlace& place, const BackwardMemory& m,
                          int64_t queries, double* line) {
    double* gains = line + LINE_MARGIN + plan.lines.length - 1 - place.offset;
    double* biases = gains + plan.line_size;
    for (int64_t e = -(queries - 1); e < place.keys; e += WIDTH) {
        // Four independent sums, to hide the latency of additions.
        Vec gain_sums[4] = {}, bias_sums[4] = {};
        int64_t i = greatest(0, 1 - WIDTH - e), end = least(queries, BACK_KEYS - e);
        auto add = [&](int chain, int64_t row) __attribute__((always_inline)) {
            Vec grad = load(m.grad_logits + row * TILE_ROW + e + row);
            gain_sums[chain] += grad * load(m.scores + row * TILE_ROW + e + row);
            bias_sums[chain] += grad;
        };
        for (; i + 4 <= end; i += 4)
#pragma GCC unroll 4
            for (int chain = 0; chain < 4; ++chain) add(chain, i + chain);
        for (; i < end; ++i) add(0, i);
        Vec gain = (gain_sums[0] + gain_sums[1]) + (gain_sums[2] + gain_sums[3]);
        Vec bias = (bias_sums[0] + bias_sums[1]) + (bias_sums[2] + bias_sums[3]);
        for (int v = 0; v < WIDTH; ++v) {
            gains[e + v] += gain[v];
            biases[e + v] += bias[v];
        }
    }
}

// The same for a GENERAL tile, pair by pair.
static void sum_pairs(const Plan& plan, const TilePlace& place, const BackwardMemory& m,
                      int64_t queries, double* line, double* far) {
    const Call& call = plan.call;
    double* gains = line + LINE_MARGIN + plan.lines.length - 1;
    double* biases = gains + plan.line_size;
    for (int64_t i = 0; i < queries; ++i) {
        int64_t query = query_position(call, place.row, place.query + i);
        for (int64_t c = 0; c < place.keys; ++c) {
            int64_t key = key_position(call, place.row, place.key + c);
            double grad = m.grad_logits[i * TILE_ROW + c];
            if (grad == 0.0 || is_sink(call, key)) continue;
            double score = m.scores[i * TILE_ROW + c];
            int64_t t = distance(call, query - key);
            if (t < plan.lines.length) {
                gains[-t] += grad * score;
                biases[-t] += grad;
            } else {
                Slopes slopes =
                    scale_invariant_slopes(call.tau[place.head * call.tau_head], double(t));
                *far += grad * (score * slopes.gain + slopes.bias);
            }
        }
    }
}

// The rows that see some of the keys [first, first + ROWS) of a tile.
SIA_INLINE Range seeing_range(const Call& call, const TilePlace& place, int64_t first, int64_t queries) {
    if (place.kind != Tile::RANGES) return {0, queries};
    Range rows = {0, queries};
    const Visibility& visibility = call.visibility;
    if (visibility.is_causal) rows.low = greatest(0, least(queries, first - place.offset));
    // The last row sees keys above offset - window.
    if (visibility.window < place.offset + queries)
        rows.high = greatest(
            rows.low, least(queries, first + ROWS - 1 + visibility.window - place.offset));
    if (!visibility.is_causal && visibility.window < INT64_MAX)
        rows.low = greatest(0, least(rows.high, first - visibility.window - place.offset + 1));
    return rows;
}

template <bool AFFINE>
static void backward_tile(const Plan& plan, const TilePlace& place, const BackwardMemory& m,
                          int64_t queries, double* line, double* far) {
    const Call& call = plan.call;
    int64_t size = round_up(call.head_size, PANEL), value_size = round_up(call.value_size, PANEL);
    int64_t rows = round_up(queries, ROWS);
    const float* query = m.query + place.query * size;
    const float* grad_out = m.grad_out + place.query * value_size;
    Range ranges[BACK_QUERIES / ROWS];
    for (int64_t i = 0; i < rows; i += ROWS) {
        Range range = ranges[i / ROWS] = seen_range(call, place, i, ROWS);
        int64_t first = range.low / PANEL * PANEL, end = round_up(range.high, PANEL);
        if (range.low >= range.high) first = end = 0;
        for (int64_t c = first; c < end; c += PANEL) {
            product<PANEL, 1>(query + i * PANEL, BACK_QUERIES * PANEL,
                              m.keys_transposed + c * call.head_size, call.head_size,
                              Replace{m.scores + i * TILE_ROW + c, TILE_ROW});
            product<PANEL, 1>(grad_out + i * PANEL, BACK_QUERIES * PANEL,
                              m.values_transposed + c * call.value_size, call.value_size,
                              Replace{m.grad_scores + i * TILE_ROW + c, TILE_ROW});
        }
        for (int64_t row = i; row < i + ROWS; ++row) {
            bool saw_bad = false, silent = m.base[place.query + row] == __builtin_inff();
            if (!silent && first < end) {
                RowAffine affine = row_affine(plan, place, row, range, m.gain, m.bias, &saw_bad);
                float base = m.base[place.query + row], delta = m.delta[place.query + row];
                if (affine.masked)
                    backward_row<true, AFFINE>(m, row, affine, base, delta, first, end);
                else
                    backward_row<false, AFFINE>(m, row, affine, base, delta, first, end);
            }
            int64_t low = silent ? 0 : first, high = silent ? 0 : end;
            float* tiles[] = {m.weights, m.grad_scores, m.scores, m.grad_logits};
            for (int n = 0; n < (AFFINE ? 4 : 2); ++n) {
                memset(tiles[n] + row * TILE_ROW, 0, low * 4);
                memset(tiles[n] + row * TILE_ROW + high, 0, (BACK_KEYS - high) * 4);
            }
        }
    }
    if (AFFINE) {
        if (place.kind == Tile::RANGES)
            sum_diagonals(plan, place, m, queries, line);
        else
            sum_pairs(plan, place, m, queries, line, far);
    }
    for (int64_t k = 0; k < place.keys; k += ROWS) {
        Range seeing = seeing_range(call, place, k, queries);
        int64_t depth = seeing.high - seeing.low;
        if (depth <= 0) continue;
        for (int64_t c = 0; c < value_size; c += PANEL)
            product<1, TILE_ROW>(m.weights + seeing.low * TILE_ROW + k, PANEL * TILE_ROW,
                                 grad_out + c * BACK_QUERIES + seeing.low * PANEL, depth,
                                 Add{m.grad_values + k * value_size + c, value_size});
        for (int64_t c = 0; c < size; c += PANEL)
            product<1, TILE_ROW>(m.grad_scores + seeing.low * TILE_ROW + k, PANEL * TILE_ROW,
                                 query + c * BACK_QUERIES + seeing.low * PANEL, depth,
                                 Add{m.grad_keys + k * size + c, size});
    }
    float* grad_query = m.grad_query + place.query * size;
    for (int64_t c = 0; c < size; c += PANEL)
        for (int64_t i = 0; i < rows; i += ROWS) {
            Range range = ranges[i / ROWS];
            if (range.low >= range.high) continue;
            product<TILE_ROW, 1>(m.grad_scores + i * TILE_ROW + range.low, PANEL,
                                 m.keys + c * BACK_KEYS + range.low * PANEL, range.high - range.low,
                                 Add{grad_query + i * size + c, size});
        }
}

// One block of keys against all queries of a head.
static void backward_keys(const Plan& plan, const BackwardMemory& m, int64_t batch, int64_t key_head,
                          int64_t head, int64_t block, double* line, double* far) {
    const Call& call = plan.call;
    const Geometry& geometry = plan.geometry;
    int64_t size = round_up(call.head_size, PANEL), value_size = round_up(call.value_size, PANEL);
    int64_t start = block * BACK_KEYS, count = least(BACK_KEYS, call.key_length - start);
    pack_transposed(call, call.key, batch, key_head, start, count, BACK_KEYS, call.head_size,
                    m.keys_transposed, nullptr, m.buffer);
    pack_transposed(call, call.value, batch, key_head, start, count, BACK_KEYS, call.value_size,
                    m.values_transposed, nullptr, m.buffer);
    pack_rows(call, call.key, batch, key_head, start, count, BACK_KEYS, call.head_size, 1.0f, m.keys,
              nullptr, m.buffer);
    memset(m.grad_keys, 0, BACK_KEYS * size * 4);
    memset(m.grad_values, 0, BACK_KEYS * value_size * 4);
    for (int64_t n = 0; n < geometry.query_blocks; ++n) {
        TilePlace place = tile_place(plan, batch, head, n, block, nullptr);
        if (place.kind == Tile::EMPTY) continue;
        int64_t queries = least(BACK_QUERIES, call.query_length - place.query);
        if (plan.affine_grads)
            backward_tile<true>(plan, place, m, queries, line, far);
        else
            backward_tile<false>(plan, place, m, queries, line, far);
    }
    // Query heads that share a key head come one after the other.
    bool add = head % plan.group != 0;
    int64_t first = (batch * call.key_heads + key_head) * call.key_length + start;
    for (int64_t k = 0; k < count; ++k) {
        float* key = call.grad_key + (first + k) * call.head_size;
        float* value = call.grad_value + (first + k) * call.value_size;
        for (int64_t d = 0; d < call.head_size; ++d)
            key[d] = (add ? key[d] : 0.0f) + m.grad_keys[k * size + d];
        for (int64_t c = 0; c < call.value_size; ++c)
            value[c] = (add ? value[c] : 0.0f) + m.grad_values[k * value_size + c];
    }
}

static void backward_item(const Plan& plan, int64_t item, void* memory) {
    const Call& call = plan.call;
    BackwardMemory m = backward_memory(plan, memory);
    int64_t place = item / plan.slots, slot = item % plan.slots;
    int64_t batch = place / call.key_heads, key_head = place % call.key_heads;
    int64_t size = round_up(call.head_size, PANEL), heads = call.batch * call.query_heads;
    if (plan.affine_grads) {
        // The zeros between rows, which the diagonals cross.
        memset(m.scores - 16, 0, (BACK_QUERIES * TILE_ROW + 32) * 4);
        memset(m.grad_logits - 16, 0, (BACK_QUERIES * TILE_ROW + 32) * 4);
    }
    for (int64_t head = key_head * plan.group; head < (key_head + 1) * plan.group; ++head) {
        int64_t which = batch * call.query_heads + head;
        double *line = nullptr, *far = nullptr;
        if (plan.affine_grads) {
            line = plan.line_grads + (slot * heads + which) * 2 * plan.line_size;
            far = plan.far_grads + slot * heads + which;
        }
        pack_queries(plan, m, batch, head);
        memset(m.grad_query, 0, round_up(call.query_length, BACK_QUERIES) * size * 4);
        // Back and forth, so that early and late blocks, which differ in work, are spread evenly.
        for (int64_t n = 0; n < plan.geometry.key_blocks; ++n) {
            int64_t turn = n / plan.slots, at = n % plan.slots;
            if ((turn % 2 ? plan.slots - 1 - at : at) != slot) continue;
            backward_keys(plan, m, batch, key_head, head, n, line, far);
        }
        float* grad = slot == 0 ? call.grad_query
                                : plan.slot_grad_query +
                                      (slot - 1) * heads * call.query_length * call.head_size;
        grad += which * call.query_length * call.head_size;
        for (int64_t i = 0; i < call.query_length; ++i)
            for (int64_t d = 0; d < call.head_size; ++d)
                grad[i * call.head_size + d] = m.grad_query[i * size + d] * float(call.scale);
    }
}

}  // namespace SIA_ISA
