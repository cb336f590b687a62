// The matrix product of all kernels: a tile of ROWS x PANEL sums held in registers.
//
// The left side is read one number at a time, with any strides; the right side is packed into panels of
// PANEL columns, [depth][PANEL].
#pragma once

#include "vector.h"

namespace SIA_ISA {

constexpr int VECTORS = SIA_VECTORS;        // vectors in a row of the tile
constexpr int PANEL = VECTORS * WIDTH;      // columns of the tile
constexpr int ROWS = SIA_ROWS;              // rows of the tile

// What to do with the sums of a row.
struct Replace {
    float* to;
    ptrdiff_t row;
    SIA_METHOD void operator()(int i, const Vec (&sums)[VECTORS]) const {
        for (int v = 0; v < VECTORS; ++v) store(to + i * row + v * WIDTH, sums[v]);
    }
};

struct Add {
    float* to;
    ptrdiff_t row;
    SIA_METHOD void operator()(int i, const Vec (&sums)[VECTORS]) const {
        for (int v = 0; v < VECTORS; ++v) {
            float* place = to + i * row + v * WIDTH;
            store(place, load(place) + sums[v]);
        }
    }
};

struct ScaleAndAdd {
    float* to;
    ptrdiff_t row;
    const float* factor;
    SIA_METHOD void operator()(int i, const Vec (&sums)[VECTORS]) const {
        for (int v = 0; v < VECTORS; ++v) {
            float* place = to + i * row + v * WIDTH;
            store(place, load(place) * factor[i] + sums[v]);
        }
    }
};

// Pass on, row by row, the sums over k < depth of left(i, k) * right[k][j], where
// left(i, k) = left[i * ROW + (k % PANEL) * STEP + (k / PANEL) * jump].
template <int ROW, int STEP, class Finish>
SIA_INLINE void product(const float* left, ptrdiff_t jump, const float* right, int64_t depth,
                        Finish finish) {
    Vec sums[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) sums[i][v] = Vec{};

    auto step = [&](const float* a, const float* b) __attribute__((always_inline)) {
        Vec columns[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) columns[v] = load(b + v * WIDTH);
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i) {
            Vec number = splat(a[i * ROW]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; ++v) sums[i][v] += number * columns[v];
        }
    };
    for (; depth >= PANEL; depth -= PANEL) {
#pragma GCC unroll 32
        for (int k = 0; k < PANEL; ++k) step(left + k * STEP, right + k * PANEL);
        left += jump;
        right += PANEL * PANEL;
    }
    for (; depth > 0; --depth) {
        step(left, right);
        left += STEP;
        right += PANEL;
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) finish(i, sums[i]);
}

}  // namespace SIA_ISA
