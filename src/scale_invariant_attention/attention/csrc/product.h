// The one product of all kernels: a tile of ROWS x PANEL sums held in registers.
//
// The left side is read one number at a time, wherever it lies; the right side is packed into panels of
// PANEL columns, [depth][PANEL].
#pragma once

#include "vector.h"

namespace SIA_ISA {

constexpr int VECTORS = SIA_VECTORS;        // vectors in a row of the tile
constexpr int PANEL = VECTORS * WIDTH;      // columns of the tile
constexpr int ROWS = SIA_ROWS;              // rows of the tile
constexpr int CHUNK = 16;                   // depth between two jumps of the left side

// What becomes of the sums.
enum class Into { REPLACE, ADD, SCALE_AND_ADD };

// to[i][j] (=, += or *= factor[i] and +=) sum over k < depth of left(i, k) * right[k][j], where
// left(i, k) = left[i * ROW + (k % CHUNK) * STEP + (k / CHUNK) * jump].
template <int ROW, int STEP, Into INTO>
SIA_INLINE void product(const float* left, ptrdiff_t jump, const float* right, int depth, float* to,
                        ptrdiff_t to_row, const float* factor = nullptr) {
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
    int k = 0;
    for (; k + CHUNK <= depth; k += CHUNK) {
#pragma GCC unroll 16
        for (int kk = 0; kk < CHUNK; ++kk) step(left + kk * STEP, right + kk * PANEL);
        left += jump;
        right += CHUNK * PANEL;
    }
    for (; k < depth; ++k) {
        step(left, right);
        left += STEP;
        right += PANEL;
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
            float* place = to + i * to_row + v * WIDTH;
            if (INTO == Into::REPLACE) store(place, sums[i][v]);
            if (INTO == Into::ADD) store(place, load(place) + sums[i][v]);
            if (INTO == Into::SCALE_AND_ADD) store(place, load(place) * factor[i] + sums[i][v]);
        }
}

}  // namespace SIA_ISA
