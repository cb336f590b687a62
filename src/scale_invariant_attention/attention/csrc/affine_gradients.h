// Sums of the gradients of gain and bias over a tile of backward: by distance, or for tau.
#pragma once

#include "rows.h"

namespace SIA_ISA {

constexpr int64_t BACK_QUERIES = SIA_BACKWARD_QUERIES, BACK_KEYS = SIA_BACKWARD_KEYS;
constexpr int64_t TILE_ROW = BACK_KEYS + 16;  // with zeros at the end: see sum_diagonals
static_assert(BACK_QUERIES % ROWS == 0 && BACK_KEYS % ROWS == 0 && BACK_KEYS % PANEL == 0,
              "blocks of whole tiles");
static_assert(TILE_ROW - BACK_KEYS >= WIDTH, "a vector of zeros after each row");
static_assert(BACK_QUERIES + BACK_KEYS + WIDTH <= LINE_MARGIN, "diagonals stay on the line");

// A tile of scores, and the gradients of its logits.
struct LogitGradients {
    const float *scores, *grad_logits;
};

// Add the gradients of gain and bias of a RANGES tile to the line: sums along its diagonals. The line is
// indexed by c - i, so vectors shift by one element per row of the tile; outside of it they read zeros.
static void sum_diagonals(const Plan& plan, const TilePlace& place, const LogitGradients& m,
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
static void sum_pairs(const Plan& plan, const TilePlace& place, const LogitGradients& m,
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

// The same between tokens with coordinates. All gradients of tau go to `far`.
static void sum_points(const Plan& plan, const TilePlace& place, const LogitGradients& m,
                       int64_t queries, double* line, double* far) {
    const Call& call = plan.call;
    double* gains = line + LINE_MARGIN + plan.lines.length - 1;
    double* biases = gains + plan.line_size;
    double tau = call.tau ? call.tau[place.head * call.tau_head] : 0.0;
    PointLaw law = point_law(call, tau);
    for (int64_t i = 0; i < queries; ++i) {
        PointRow row = point_row(plan, place.row, place.query + i, place.key);
        const float *scores = m.scores + i * TILE_ROW, *grads = m.grad_logits + i * TILE_ROW;
        Vec total = {};
        for (int64_t c = 0; c < place.keys; c += WIDTH) {
            Vec score = load(scores + c), grad = load(grads + c);
            if (call.tau) {
                Vec ratio = law.ratio(row.squared(c)), gain = law.gain(law.growth(ratio));
                total += grad * (ratio / (1.0f + ratio)) * (score / gain - 2.0f);
                continue;
            }
            Neighbours at = neighbours(row, c, plan.lines.length);
            for (int v = 0; v < WIDTH; ++v) {
                if (grad[v] == 0.0f) continue;
                int64_t below = at.below[v];
                double above = double(grad[v]) * at.share[v], rest = double(grad[v]) - above;
                gains[-below] += rest * score[v];
                biases[-below] += rest;
                gains[-below - 1] += above * score[v];
                biases[-below - 1] += above;
            }
        }
        if (call.tau) *far -= double(call.dimensions) / tau * double(sum(total));
    }
}

}  // namespace SIA_ISA
