// Backward: a share of the key blocks of one head against all queries that see them.
//
// Weights are recomputed from the log-sum-exp. A work item owns its key blocks, and with them the
// gradients of keys and values. It sums its own gradients of the queries, which are added in a fixed
// order when several items share a head. Results do not depend on which thread runs which item.
#pragma once

#include "affine_gradients.h"
#include "forward.h"

namespace SIA_ISA {

// Weights and gradients of scores of a tile as left sides, along the queries and along the keys.
template <class Operand>
struct LeftSides {
    Operand *weight_columns, *grad_columns, *grad_rows;
};

template <class Operand>
struct BackwardMemory {
    // All queries of a head: queries and gradients of the output as either side of a product, in blocks of
    // panels; base and delta per row; and the gradients of the queries. Floats are laid out alike on both
    // sides, and only once in memory.
    Operand *query_left, *query_right, *grad_out_left, *grad_out_right;
    float *base, *delta, *grad_query;
    // A block of keys.
    Operand *keys_transposed, *values_transposed, *keys;
    float *grad_keys, *grad_values;
    // A tile. The last two are for gradients of the affine.
    float *weights, *grad_scores, *scores, *grad_logits;
    // The same as left sides: floats where they are, or rounded to pairs, and what rounding lost.
    LeftSides<Operand> left, rest;
    // Biases of a block of keys, and the sums of their gradients over a tile and over all queries; null if
    // the call has none.
    float *key_bias, *tile_grad_bias;
    double* grad_key_bias;
    float *gain, *bias, *buffer;
    size_t bytes;
};

template <class Operand>
static BackwardMemory<Operand> backward_memory(const Plan& plan, void* memory) {
    constexpr bool PAIRS = EACH<Operand> > 1;
    const Call& call = plan.call;
    int64_t size = round_up(call.head_size, PANEL), value_size = round_up(call.value_size, PANEL);
    int64_t depth = operands<Operand>(call.head_size), value_depth = operands<Operand>(call.value_size);
    int64_t queries = round_up(call.query_length, BACK_QUERIES), tile = BACK_QUERIES * TILE_ROW + 32;
    Pieces pieces = {static_cast<float*>(memory), 0};
    BackwardMemory<Operand> m = {};
    m.query_left = m.query_right = pieces.take<Operand>(queries * round_up(depth, PANEL));
    m.grad_out_left = m.grad_out_right = pieces.take<Operand>(queries * round_up(value_depth, PANEL));
    m.base = pieces.take(queries);
    m.delta = pieces.take(queries);
    m.grad_query = pieces.take(queries * size);
    m.keys_transposed = pieces.take<Operand>(BACK_KEYS * depth);
    m.values_transposed = pieces.take<Operand>(BACK_KEYS * value_depth);
    m.keys = pieces.take<Operand>(operands<Operand>(BACK_KEYS) * size);
    m.grad_keys = pieces.take(BACK_KEYS * size);
    m.grad_values = pieces.take(BACK_KEYS * value_size);
    m.weights = pieces.take(tile);
    m.grad_scores = pieces.take(tile);
    Operand* grads = reinterpret_cast<Operand*>(m.grad_scores);
    m.left = {reinterpret_cast<Operand*>(m.weights), grads, grads};
    if (PAIRS) {
        m.query_right = pieces.take<Operand>(operands<Operand>(queries) * size);
        m.grad_out_right = pieces.take<Operand>(operands<Operand>(queries) * value_size);
        for (LeftSides<Operand>* sides : {&m.left, &m.rest}) {
            sides->weight_columns = pieces.take<Operand>(operands<Operand>(BACK_QUERIES) * TILE_ROW);
            sides->grad_columns = pieces.take<Operand>(operands<Operand>(BACK_QUERIES) * TILE_ROW);
            sides->grad_rows = pieces.take<Operand>(BACK_QUERIES * TILE_ROW);
        }
    }
    if (call.key_bias.data) {
        m.key_bias = pieces.take(BACK_KEYS);
        m.tile_grad_bias = pieces.take(BACK_KEYS);
        m.grad_key_bias = reinterpret_cast<double*>(pieces.take(2 * BACK_KEYS));
    }
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

static size_t backward_bytes(const Plan& plan) {
    return with_operand(plan.call, [&](auto operand) {
        return backward_memory<decltype(operand)>(plan, nullptr).bytes;
    });
}

// Base and delta of every row: weight = exp(logit - base), grad_logit = weight * (grad_weight - delta). A
// row that saw no key, or whose gradient is zero, has an infinite base: its weights vanish, and with them
// all its contributions, even if its output is NaN.
template <class Operand>
static void pack_head(const Plan& plan, const BackwardMemory<Operand>& m, int64_t batch, int64_t head) {
    const Call& call = plan.call;
    int64_t size = round_up(call.head_size, PANEL), value_size = round_up(call.value_size, PANEL);
    int64_t width = round_up(operands<Operand>(call.head_size), PANEL);
    int64_t value_width = round_up(operands<Operand>(call.value_size), PANEL);
    int64_t first = (batch * call.query_heads + head) * call.query_length;
    const Tensor gradients = {call.grad_out, 0, 0, call.value_size};
    Call plain = {};
    plain.storage = FLOAT32;
    for (int64_t start = 0; start < call.query_length; start += BACK_QUERIES) {
        int64_t count = least(BACK_QUERIES, call.query_length - start);
        uint8_t is_bad[BACK_QUERIES] = {};
        pack_queries(call, batch, head, start, count, BACK_QUERIES, m.query_left + start * width, nullptr,
                     m.buffer);
        pack_left(plain, gradients, 0, 0, first + start, count, BACK_QUERIES, call.value_size,
                  m.grad_out_left + start * value_width, is_bad, m.buffer);
        if (EACH<Operand> > 1) {
            int64_t at = operands<Operand>(start);
            pack_right(call, call.query, batch, head, start, count, BACK_QUERIES, call.head_size,
                       m.query_right + at * size, nullptr, m.buffer);
            pack_right(plain, gradients, 0, 0, first + start, count, BACK_QUERIES, call.value_size,
                       m.grad_out_right + at * value_size, nullptr, m.buffer);
        }
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
            if (!wanted || lse == -__builtin_inff()) continue;
            // The incoming gradient may be NaN or infinite; the panels hold zeros instead.
            m.base[i] = is_bad[i - start] ? __builtin_nanf("") : lse;
            m.delta[i] = delta - call.grad_lse[first + i];
        }
    }
}

// Turn a row of scores and gradients of weights into weights and gradients of scores.
template <bool MASKED, bool AFFINE, bool KEY_BIAS, class Operand>
SIA_INLINE void backward_row(const BackwardMemory<Operand>& m, int64_t i, RowAffine affine, float base,
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
        if (KEY_BIAS) store(m.tile_grad_bias + c, load(m.tile_grad_bias + c) + grad_logit);
        store(weights + c, weight);
        store(grads + c, grad_logit * gain);
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

// Round ROWS rows of weights and gradients of scores to pairs: of rows, to sum over queries, and of columns,
// to sum over keys. Floats are read where they are.
SIA_INLINE void round_rows(const BackwardMemory<float>&, int64_t, bool) {}

SIA_INLINE void round_rows(const BackwardMemory<Pair>& m, int64_t first, bool keeps_rest) {
    static_assert(ROWS % 2 == 0 && BACK_QUERIES % 2 == 0 && BACK_KEYS % WIDTH == 0, "whole pairs");
    auto rest_of = [](Vec v, Halves halves) { return rounded(v - widened(halves)); };
    for (int64_t i = first; i < first + ROWS; i += 2) {
        const float *weights = m.weights + i * TILE_ROW, *grads = m.grad_scores + i * TILE_ROW;
        for (int64_t c = 0; c < BACK_KEYS; c += WIDTH) {
            auto put = [&](const LeftSides<Pair>& sides, const Halves (&weight)[2], const Halves (&grad)[2]) {
                int64_t place = i / 2 * TILE_ROW + c;
                store_pairs(sides.weight_columns + place, paired(weight[0], weight[1]));
                store_pairs(sides.grad_columns + place, paired(grad[0], grad[1]));
                store_halves(sides.grad_rows + i * TILE_ROW, c, grad[0]);
                store_halves(sides.grad_rows + (i + 1) * TILE_ROW, c, grad[1]);
            };
            Vec weight[] = {load(weights + c), load(weights + TILE_ROW + c)};
            Vec grad[] = {load(grads + c), load(grads + TILE_ROW + c)};
            Halves near_weight[] = {rounded(weight[0]), rounded(weight[1])};
            Halves near_grad[] = {rounded(grad[0]), rounded(grad[1])};
            put(m.left, near_weight, near_grad);
            if (keeps_rest)
                put(m.rest, {rest_of(weight[0], near_weight[0]), rest_of(weight[1], near_weight[1])},
                    {rest_of(grad[0], near_grad[0]), rest_of(grad[1], near_grad[1])});
        }
    }
}

// The products that sum the gradients of a tile. `ranges` are the keys that groups of ROWS rows see.
template <class Operand>
static void add_gradients(const Plan& plan, const TilePlace& place, const BackwardMemory<Operand>& m,
                          const LeftSides<Operand>& left, int64_t queries, const Range* ranges) {
    const Call& call = plan.call;
    int64_t size = round_up(call.head_size, PANEL), value_size = round_up(call.value_size, PANEL);
    const Operand* query = m.query_right + operands<Operand>(place.query) * size;
    const Operand* grad_out = m.grad_out_right + operands<Operand>(place.query) * value_size;
    for (int64_t k = 0; k < place.keys; k += ROWS) {
        Range seeing = operand_range<Operand>(seeing_range(call, place, k, queries));
        int64_t depth = seeing.high - seeing.low;
        if (depth <= 0) continue;
        for (int64_t c = 0; c < value_size; c += PANEL)
            product<1, TILE_ROW>(left.weight_columns + seeing.low * TILE_ROW + k, PANEL * TILE_ROW,
                                 grad_out + c * operands<Operand>(BACK_QUERIES) + seeing.low * PANEL, depth,
                                 Add{m.grad_values + k * value_size + c, value_size});
        for (int64_t c = 0; c < size; c += PANEL)
            product<1, TILE_ROW>(left.grad_columns + seeing.low * TILE_ROW + k, PANEL * TILE_ROW,
                                 query + c * operands<Operand>(BACK_QUERIES) + seeing.low * PANEL, depth,
                                 Add{m.grad_keys + k * size + c, size});
    }
    float* grad_query = m.grad_query + place.query * size;
    for (int64_t c = 0; c < size; c += PANEL)
        for (int64_t i = 0; i < queries; i += ROWS) {
            Range range = operand_range<Operand>(ranges[i / ROWS]);
            if (range.low >= range.high) continue;
            product<TILE_ROW, 1>(left.grad_rows + i * TILE_ROW + range.low, PANEL,
                                 m.keys + c * operands<Operand>(BACK_KEYS) + range.low * PANEL,
                                 range.high - range.low, Add{grad_query + i * size + c, size});
        }
}

template <bool AFFINE, class Operand>
static void backward_tile(const Plan& plan, const TilePlace& place, const BackwardMemory<Operand>& m,
                          int64_t queries, double* line, double* far) {
    const Call& call = plan.call;
    int64_t depth = operands<Operand>(call.head_size), value_depth = operands<Operand>(call.value_size);
    int64_t rows = round_up(queries, ROWS);
    const Operand* query = m.query_left + place.query * round_up(depth, PANEL);
    const Operand* grad_out = m.grad_out_left + place.query * round_up(value_depth, PANEL);
    Range ranges[BACK_QUERIES / ROWS] = {};
    bool keeps_rest = false;
    for (int64_t i = 0; i < rows; i += ROWS) {
        ranges[i / ROWS] = seen_range(call, place, i, ROWS);
        keeps_rest |= rounds_on_an_edge<Operand>(call, place, i);
    }
    for (int64_t i = 0; i < rows; i += ROWS) {
        Range range = ranges[i / ROWS];
        int64_t first = range.low / PANEL * PANEL, end = round_up(range.high, PANEL);
        if (range.low >= range.high) first = end = 0;
        for (int64_t c = first; c < end; c += PANEL) {
            product<PANEL, 1>(query + i * PANEL, BACK_QUERIES * PANEL, m.keys_transposed + c * depth, depth,
                              Scores<Operand>{m.scores + i * TILE_ROW + c, TILE_ROW, float(call.scale)});
            product<PANEL, 1>(grad_out + i * PANEL, BACK_QUERIES * PANEL,
                              m.values_transposed + c * value_depth, value_depth,
                              Replace{m.grad_scores + i * TILE_ROW + c, TILE_ROW});
        }
        for (int64_t row = i; row < i + ROWS; ++row) {
            bool saw_bad = false, silent = m.base[place.query + row] == __builtin_inff();
            if (!silent && first < end) {
                RowAffine affine = row_affine(plan, place, row, range, m.gain, m.bias, &saw_bad);
                float base = m.base[place.query + row], delta = m.delta[place.query + row];
                if (affine.masked && m.key_bias)
                    backward_row<true, AFFINE, true>(m, row, affine, base, delta, first, end);
                else if (affine.masked)
                    backward_row<true, AFFINE, false>(m, row, affine, base, delta, first, end);
                else if (m.key_bias)
                    backward_row<false, AFFINE, true>(m, row, affine, base, delta, first, end);
                else
                    backward_row<false, AFFINE, false>(m, row, affine, base, delta, first, end);
            }
            int64_t low = silent ? 0 : first, high = silent ? 0 : end;
            float* tiles[] = {m.weights, m.grad_scores, m.scores, m.grad_logits};
            for (int n = 0; n < (AFFINE ? 4 : 2); ++n) {
                memset(tiles[n] + row * TILE_ROW, 0, low * 4);
                memset(tiles[n] + row * TILE_ROW + high, 0, (BACK_KEYS - high) * 4);
            }
        }
        round_rows(m, i, keeps_rest);
    }
    if (AFFINE) {
        LogitGradients grads = {m.scores, m.grad_logits};
        if (place.kind == Tile::RANGES)
            sum_diagonals(plan, place, grads, queries, line);
        else if (plan.key_points.data)
            sum_points(plan, place, grads, queries, line, far);
        else
            sum_pairs(plan, place, grads, queries, line, far);
    }
    add_gradients(plan, place, m, m.left, queries, ranges);
    if (keeps_rest) add_gradients(plan, place, m, m.rest, queries, ranges);
}

// One block of keys against all queries of a head.
template <class Operand>
static void backward_keys(const Plan& plan, const BackwardMemory<Operand>& m, int64_t batch, int64_t key_head,
                          int64_t head, int64_t block, double* line, double* far) {
    const Call& call = plan.call;
    const Geometry& geometry = plan.geometry;
    int64_t size = round_up(call.head_size, PANEL), value_size = round_up(call.value_size, PANEL);
    int64_t start = block * BACK_KEYS, count = least(BACK_KEYS, call.key_length - start);
    pack_transposed(call, call.key, batch, key_head, start, count, BACK_KEYS, call.head_size,
                    m.keys_transposed, nullptr, m.buffer);
    pack_transposed(call, call.value, batch, key_head, start, count, BACK_KEYS, call.value_size,
                    m.values_transposed, nullptr, m.buffer);
    pack_right(call, call.key, batch, key_head, start, count, BACK_KEYS, call.head_size, m.keys, nullptr,
               m.buffer);
    memset(m.grad_keys, 0, BACK_KEYS * size * 4);
    memset(m.grad_values, 0, BACK_KEYS * value_size * 4);
    if (m.key_bias) memset(m.grad_key_bias, 0, BACK_KEYS * sizeof(double));
    for (int64_t n = 0; n < geometry.query_blocks; ++n) {
        TilePlace place = tile_place(plan, batch, head, n, block, nullptr);
        if (place.kind == Tile::EMPTY) continue;
        int64_t queries = least(BACK_QUERIES, call.query_length - place.query);
        take_key_bias(call, batch, m.key_bias, place);
        if (m.key_bias) memset(m.tile_grad_bias, 0, BACK_KEYS * 4);
        if (plan.affine_grads)
            backward_tile<true>(plan, place, m, queries, line, far);
        else
            backward_tile<false>(plan, place, m, queries, line, far);
        if (m.key_bias)
            for (int64_t k = 0; k < count; ++k) m.grad_key_bias[k] += m.tile_grad_bias[k];
    }
    if (m.key_bias) {
        int64_t at = (batch * call.query_heads + head) * call.key_length + start;
        for (int64_t k = 0; k < count; ++k) call.grad_key_bias[at + k] = float(m.grad_key_bias[k]);
    }
    // Query heads that share a key head come one after the other.
    bool add = head % plan.group != 0;
    // Queries in floats were scaled before.
    float scale = EACH<Operand> > 1 ? float(call.scale) : 1.0f;
    int64_t first = (batch * call.key_heads + key_head) * call.key_length + start;
    for (int64_t k = 0; k < count; ++k) {
        float* key = call.grad_key + (first + k) * call.head_size;
        float* value = call.grad_value + (first + k) * call.value_size;
        for (int64_t d = 0; d < call.head_size; ++d)
            key[d] = (add ? key[d] : 0.0f) + m.grad_keys[k * size + d] * scale;
        for (int64_t c = 0; c < call.value_size; ++c)
            value[c] = (add ? value[c] : 0.0f) + m.grad_values[k * value_size + c];
    }
}

template <class Operand>
static void backward_item_of(const Plan& plan, int64_t item, void* memory) {
    const Call& call = plan.call;
    BackwardMemory<Operand> m = backward_memory<Operand>(plan, memory);
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
        pack_head(plan, m, batch, head);
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

static void backward_item(const Plan& plan, int64_t item, void* memory) {
    with_operand(plan.call,
                 [&](auto operand) { backward_item_of<decltype(operand)>(plan, item, memory); });
}

}  // namespace SIA_ISA
