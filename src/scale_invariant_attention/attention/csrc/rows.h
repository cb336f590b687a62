// The affine of a row of a tile, and the softmax over it.
#pragma once

#include <math.h>

#include "pairs.h"
#include "points.h"

namespace SIA_ISA {

// Gain and bias of a row of a tile, by key. With `masked`, hidden keys have a bias of -inf.
struct RowAffine {
    const float *gain, *bias;
    bool masked;
};

// A block of queries by a block of keys, for one head.
struct TilePlace {
    Tile kind;
    Tile finite_kind;    // what it would be if all keys were finite
    int64_t row;         // of the geometry
    int64_t head;        // of the queries
    int64_t query, key;  // the first ones
    int64_t keys;        // number of keys
    int64_t offset;      // position of the first query minus that of the first key: RANGES only
    const uint8_t* bad;  // which keys are not finite; null when all are
    bool whole_points;   // tokens have coordinates, and all rows see all keys, which are whole panels
    const float* key_bias;  // of its keys, whole panels; null if the call has none
    bool hides;             // whether some key bias is -inf
};

static TilePlace tile_place(const Plan& plan, int64_t batch, int64_t head, int64_t query_block,
                            int64_t key_block, const uint8_t* bad) {
    const Geometry& geometry = plan.geometry;
    const Call& call = plan.call;
    int64_t row = geometry.rows > 1 ? batch : 0;
    const Block& queries = geometry.queries[row * geometry.query_blocks + query_block];
    const Block& keys = geometry.keys[row * geometry.key_blocks + key_block];
    TilePlace place = {};
    place.kind = tile_kind(geometry, queries, keys);
    place.row = row;
    place.head = head;
    place.query = query_block * geometry.query_block;
    place.key = key_block * geometry.key_block;
    place.keys = least(geometry.key_block, call.key_length - place.key);
    place.offset = queries.first - keys.first;
    place.bad = bad;
    if (place.kind == Tile::RANGES) {
        int64_t farthest = greatest(queries.high - keys.low, keys.high - queries.low);
        bool beyond = plan.far && farthest >= plan.lines.length;
        if (plan.lines.hides || beyond) place.kind = Tile::GENERAL;
    }
    place.finite_kind = place.kind;
    const Visibility& visibility = call.visibility;
    place.whole_points = plan.key_points.data && place.keys % PANEL == 0 && keys.whole &&
                         !visibility.key_documents.data && visibility.window == INT64_MAX &&
                         !plan.lines.hides;
    if (bad && place.kind == Tile::RANGES) place.kind = Tile::GENERAL;
    return place;
}

// Note the biases of a tile's keys, copied to `buffer` and followed by zeros up to a whole panel.
static void take_key_bias(const Call& call, int64_t batch, float* buffer, TilePlace& place) {
    const KeyBias& given = call.key_bias;
    if (!given.data) return;
    memcpy(buffer, given.data + batch * given.batch + place.head * given.head + place.key,
           place.keys * 4);
    memset(buffer + place.keys, 0, (round_up(place.keys, PANEL) - place.keys) * 4);
    IntVec hides = {};
    for (int64_t c = 0; c < place.keys; c += WIDTH) {
        Vec bias = load(buffer + c);
        store(buffer + c, plain_nan(bias));
        hides |= bias == splat(-__builtin_inff());
    }
    for (int v = 0; v < WIDTH; ++v) place.hides |= hides[v] != 0;
    place.key_bias = buffer;
}

// Add biases of keys to biases by distance. What either of them hides stays hidden.
SIA_INLINE void add_key_bias(const float* key_bias, float* bias, int64_t first, int64_t end) {
    const Vec hidden = splat(-__builtin_inff());
    for (int64_t c = first; c < end; c += WIDTH) {
        Vec by_distance = load(bias + c), by_key = load(key_bias + c), total = by_distance + by_key;
        total = by_distance == hidden ? hidden : total;
        store(bias + c, by_key == hidden ? hidden : total);
    }
}

// The keys that some of the rows [first, first + ROWS) see.
SIA_INLINE Range seen_range(const Call& call, const TilePlace& place, int64_t first, int64_t rows) {
    if (place.kind != Tile::RANGES) return {0, place.keys};
    Range range = visible_range(call, place.offset + first, place.keys);
    Range last = visible_range(call, place.offset + first + rows - 1, place.keys);
    return {range.low, last.high > range.low ? last.high : range.low};
}

// Whether the rows [first, first + rows) of a tile all see the same whole panels, so no mask is needed.
SIA_INLINE bool all_see_all(const Call& call, const TilePlace& place, int64_t first, int64_t rows,
                            Range range) {
    if (place.kind != Tile::RANGES || place.hides) return false;
    int64_t low = range.low / PANEL * PANEL, high = round_up(range.high, PANEL);
    return visible_range(call, place.offset + first + rows - 1, place.keys).low <= low &&
           visible_range(call, place.offset + first, place.keys).high >= high;
}

// The affine of a row whose tokens have coordinates: see `row_affine`.
static RowAffine point_affine(const Plan& plan, const TilePlace& place, int64_t i, Range range,
                              float* gain, float* bias, bool* saw_bad) {
    const Call& call = plan.call;
    const Visibility& visibility = call.visibility;
    const Vec hidden = splat(-__builtin_inff());
    int64_t first = range.low / PANEL * PANEL, end = round_up(range.high, PANEL), query = place.query + i;
    PointRow row = point_row(plan, place.row, query, place.key);
    if (call.tau) {
        PointLaw law = point_law(call, call.tau[place.head * call.tau_head]);
        for (int64_t c = first; c < end; c += WIDTH) {
            Vec growth = law.growth(law.ratio(row.squared(c)));
            store(gain + c, law.gain(growth));
            store(bias + c, -growth);
        }
    } else {
        const float* gain_line = plan.lines.gain + place.head * plan.lines.gain_head;
        const float* bias_line = plan.lines.bias + place.head * plan.lines.bias_head;
        for (int64_t c = first; c < end; c += WIDTH) {
            Neighbours at = neighbours(row, c, plan.lines.length);
            store(gain + c, interpolated(gain_line, at));
            store(bias + c, interpolated(bias_line, at));
        }
    }
    bool windowed = visibility.window < INT64_MAX;
    if (windowed && visibility.window <= EXACT_DISTANCE) {
        Vec reach = splat(float(visibility.window * visibility.window));
        for (int64_t c = first; c < end; c += WIDTH)
            store(bias + c, row.squared(c) < reach ? load(bias + c) : hidden);
    } else if (windowed) {
        double reach = double(visibility.window) * double(visibility.window);
        for (int64_t c = first; c < least(end, place.keys); ++c)
            if (row.exact_squared(c) >= reach) bias[c] = -__builtin_inff();
    }
    bool some_masked = visibility.key_mask.data || visibility.key_documents.data;
    for (int64_t c = first; c < place.keys && some_masked; ++c)
        if (!unmasked(call, place.row, query, place.key + c)) bias[c] = -__builtin_inff();
    for (int64_t c = place.keys; c < end; ++c) bias[c] = -__builtin_inff();
    if (place.key_bias) add_key_bias(place.key_bias, bias, first, end);
    for (int64_t c = first; c < place.keys && place.bad; ++c)
        if (place.bad[c] && bias[c] != -__builtin_inff()) *saw_bad = true;
    bool hides = windowed || some_masked || place.keys < end || place.hides || plan.lines.hides;
    return {gain, bias, hides};
}

// Whether rounded weights of some rows keep what rounding lost: many average out, but on an edge a row may
// see only a few keys. Must not depend on which keys are finite.
template <class Operand>
SIA_INLINE bool rounds_on_an_edge(const Call& call, const TilePlace& place, int64_t first) {
    if (EACH<Operand> == 1 || (place.whole_points && !place.hides)) return false;
    TilePlace finite_place = place;
    finite_place.kind = place.finite_kind;
    return !all_see_all(call, finite_place, first, ROWS, seen_range(call, finite_place, first, ROWS));
}

// A row's affine over the whole panels that hold the keys of `range`; `gain` and `bias` are scratch
// memory for rows that need it. `saw_bad` is set when a visible key is not finite.
static RowAffine row_affine(const Plan& plan, const TilePlace& place, int64_t i, Range range,
                            float* gain, float* bias, bool* saw_bad) {
    const Call& call = plan.call;
    const Lines& lines = plan.lines;
    const float* gain_line = lines.gain + place.head * lines.gain_head;
    const float* bias_line = lines.bias + place.head * lines.bias_head;
    int64_t first = range.low / PANEL * PANEL, end = round_up(range.high, PANEL);
    if (place.kind == Tile::RANGES) {
        int64_t offset = place.offset + i;
        gain_line -= offset;
        bias_line -= offset;
        Range own = visible_range(call, offset, place.keys);
        bool sees_all = own.low <= first && own.high >= end;
        if (sees_all && !place.key_bias) return {gain_line, bias_line, false};
        memcpy(bias + first, bias_line + first, (end - first) * 4);
        if (place.key_bias) add_key_bias(place.key_bias, bias, first, end);
        if (sees_all) return {gain_line, bias, place.hides};
        memcpy(gain + first, gain_line + first, (end - first) * 4);
        for (int64_t c = first; c < own.low && c < end; ++c) bias[c] = -__builtin_inff();
        for (int64_t c = greatest(first, own.high); c < end; ++c) bias[c] = -__builtin_inff();
        return {gain, bias, true};
    }
    if (plan.key_points.data) return point_affine(plan, place, i, range, gain, bias, saw_bad);
    const double* tau = call.tau ? call.tau + place.head * call.tau_head : nullptr;
    int64_t query = place.query + i, position = query_position(call, place.row, query);
    for (int64_t c = first; c < end; ++c) {
        gain[c] = 1.0f;
        bias[c] = -__builtin_inff();
        int64_t key = place.key + c;
        if (c >= place.keys || !visible(call, place.row, query, key)) continue;
        int64_t key_at = key_position(call, place.row, key);
        int64_t t = distance(call, position - key_at);
        if (is_sink(call, key_at)) {
            bias[c] = 0.0f;
        } else if (t < lines.length) {
            gain[c] = gain_line[-t];
            bias[c] = bias_line[-t];
        } else {
            Affine far = scale_invariant(*tau, double(t));
            gain[c] = far.gain;
            bias[c] = far.bias;
        }
        bool is_hidden = bias[c] == -__builtin_inff() ||
                         (place.hides && place.key_bias[c] == -__builtin_inff());
        if (place.bad && place.bad[c] && !is_hidden) *saw_bad = true;
    }
    if (place.key_bias) add_key_bias(place.key_bias, bias, first, end);
    return {gain, bias, true};
}

// scores = gain * scores + bias for columns [first, end), whole vectors; returns the highest.
template <bool MASKED>
SIA_INLINE float transform_as(float* scores, RowAffine affine, int64_t first, int64_t end) {
    const Vec hidden = splat(-__builtin_inff());
    Vec top = hidden;
    for (int64_t c = first; c < end; c += WIDTH) {
        Vec bias = load(affine.bias + c);
        Vec logits = load(scores + c) * load(affine.gain + c) + bias;
        // A hidden score may be infinite, and infinity minus infinity would be NaN.
        if (MASKED) logits = bias == hidden ? hidden : logits;
        store(scores + c, logits);
        top = max(top, logits);
    }
    return highest(top);
}

SIA_INLINE float transform(float* scores, RowAffine affine, int64_t first, int64_t end) {
    return affine.masked ? transform_as<true>(scores, affine, first, end)
                         : transform_as<false>(scores, affine, first, end);
}

// Where weights go: in place of their logits. Pairs of rounded weights need half of that memory, and never
// overwrite a logit that has not been read. With `rest`, what rounding lost goes there, in the same layout.
SIA_INLINE void store_weights(float* row, float*, int64_t c, Vec weights, float) {
    store(row + c, weights);
}

SIA_INLINE void store_weights(float* row, float* rest, int64_t c, Vec weights, Pair) {
    Halves near = rounded(weights);
    store_halves(reinterpret_cast<Pair*>(row), c, near);
    if (rest) store_halves(reinterpret_cast<Pair*>(rest), c, rounded(weights - widened(near)));
}

// Turn a row of logits into weights, exp(logits - base), for columns [first, end); returns their sums.
template <class Operand>
SIA_INLINE Vec exponentials(float* scores, float* rest, float base, int64_t first, int64_t end) {
    Vec total = {};
    for (int64_t c = first; c < end; c += WIDTH) {
        Vec weights = exp(load(scores + c) - base);
        store_weights(scores, rest, c, weights, Operand{});
        total += weights;
    }
    return total;
}

// The running softmax of some rows.
struct Softmax {
    float* highest;   // logit so far
    float* totals;    // of the weights, WIDTH sums per row
    float* shrink;    // factor that the last block of keys applies to everything before it
    uint8_t* is_bad;  // sees something that is not finite
};

// Turn `count` <= ROWS rows of scores into weights; the first of them is row `at` of the softmax.
// `logits(i, row, saw_bad)` turns the scores of the i-th into logits and returns the highest.
template <class Operand, class Logits>
SIA_INLINE void softmax_rows(float* scores, float* rest, int64_t score_row, int64_t count, int64_t first,
                             int64_t end, const Softmax& softmax, int64_t at, Logits logits) {
    constexpr int PLACES = (ROWS + WIDTH - 1) / WIDTH * WIDTH;
    float before[PLACES], base[PLACES], shrink[PLACES];
    for (int64_t i = 0; i < count; ++i) {
        bool saw_bad = false;
        float peak = logits(i, scores + i * score_row, &saw_bad);
        before[i] = softmax.highest[at + i];
        float risen = peak > before[i] ? peak : before[i];
        // If no key was visible so far, the maximum is -inf, and -inf - -inf would be NaN.
        base[i] = risen == -__builtin_inff() ? 0.0f : risen;
        softmax.highest[at + i] = risen;
        softmax.is_bad[at + i] |= saw_bad;
    }
    for (int64_t i = count; i < PLACES; ++i) before[i] = base[i] = 0.0f;
    for (int i = 0; i < PLACES; i += WIDTH) store(shrink + i, exp(load(before + i) - load(base + i)));
    for (int64_t i = 0; i < count; ++i) {
        float* totals = softmax.totals + (at + i) * WIDTH;
        Vec total = exponentials<Operand>(scores + i * score_row, rest ? rest + i * score_row : nullptr,
                                          base[i], first, end);
        store(totals, load(totals) * shrink[i] + total);
        softmax.shrink[at + i] = shrink[i];
    }
}

// Finish a row after its last key: normalise its output in place, and compute its log-sum-exp.
static float finish_row(float highest, float total, bool is_bad, float* out, int64_t size) {
    if (highest == -__builtin_inff() && total == 0) {
        memset(out, 0, size * 4);
        return highest;
    }
    float factor = is_bad ? __builtin_nanf("") : 1.0f / total;
    for (int64_t c = 0; c < size; ++c) out[c] *= factor;
    return is_bad ? factor : highest + logf(total);
}

}  // namespace SIA_ISA
