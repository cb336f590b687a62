// Gain and bias between tokens with coordinates: computed for every pair from the squared distance.
#pragma once

#include "pack.h"

namespace SIA_ISA {

// Squares of distances below this are exact in floats. So are comparisons with them: rounding keeps the order.
constexpr int64_t EXACT_DISTANCE = 1 << 12;

// A query and the keys of a tile; the n-th coordinate of key c is keys[n * key_dimension + c].
struct PointRow {
    const float *query, *keys;
    int64_t query_dimension, key_dimension, dimensions;

    SIA_METHOD Vec squared(int64_t c) const {
        Vec total = squared_offset(0, c);
        if (dimensions == 2) return total + squared_offset(1, c);
        for (int64_t n = 1; n < dimensions; ++n) total += squared_offset(n, c);
        return total;
    }

    SIA_METHOD Vec squared_offset(int64_t n, int64_t c) const {
        Vec offset = load(keys + n * key_dimension + c) - query[n * query_dimension];
        return offset * offset;
    }

    // The same for one key, exact at any distance.
    double exact_squared(int64_t c) const {
        double total = 0;
        for (int64_t n = 0; n < dimensions; ++n) {
            double offset = double(keys[n * key_dimension + c]) - query[n * query_dimension];
            total += offset * offset;
        }
        return total;
    }
};

SIA_INLINE PointRow point_row(const Plan& plan, int64_t row, int64_t query, int64_t key) {
    const Points &queries = plan.query_points, &keys = plan.key_points;
    return {queries.data + row * queries.row + query, keys.data + row * keys.row + key,
            queries.dimension, keys.dimension, plan.call.dimensions};
}

// The transform of n dimensions.
struct PointLaw {
    float inverse_tau, factor;

    // log1p(r / tau) and the gain; the bias is -factor * logarithm.
    SIA_METHOD Vec ratio(Vec squared) const { return square_root(squared) * inverse_tau; }
    SIA_METHOD Vec gain(Vec growth) const { return square_root(1.0f + growth); }
    SIA_METHOD Vec growth(Vec ratio) const { return log1p(ratio) * factor; }
};

SIA_INLINE PointLaw point_law(const Call& call, double tau) {
    return {float(1 / tau), float(2 * call.dimensions)};
}

// The entries of a table on both sides of a distance: `below` and the next, which has this share.
struct Neighbours {
    IntVec below;
    Vec share;
};

SIA_INLINE Neighbours neighbours(const PointRow& row, int64_t c, int64_t length) {
    Neighbours found;
    if (length <= EXACT_DISTANCE) {
        Vec distance = square_root(row.squared(c));
        found.below = __builtin_convertvector(distance, IntVec);
        found.share = distance - __builtin_convertvector(found.below, Vec);
    } else {
        for (int v = 0; v < WIDTH; ++v) {
            double distance = __builtin_sqrt(row.exact_squared(c + v));
            found.below[v] = int32_t(distance);
            float share = float(distance - double(found.below[v]));
            // Rounding must leave some of it below: an infinite entry times nothing would be NaN.
            found.share[v] = share < 1.0f ? share : 0x1.fffffep-1f;
        }
    }
    // Hidden pairs may be farther apart.
    const IntVec last = found.below - found.below + int32_t(length - 1);
    found.below = found.below < last ? found.below : last;
    return found;
}

// A table, given by its line, at the distances of some keys. Without a share, a bias of -inf has no effect.
SIA_INLINE Vec interpolated(const float* line, const Neighbours& at) {
    Vec below, above;
    for (int v = 0; v < WIDTH; ++v) {
        below[v] = line[-at.below[v]];
        above[v] = line[-at.below[v] - 1];
    }
    return at.share == 0.0f ? below : below * (1.0f - at.share) + above * at.share;
}

}  // namespace SIA_ISA
