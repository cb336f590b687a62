// The matrix product of all kernels: a tile of ROWS x PANEL sums held in registers.
//
// The left side is read one operand at a time, with any strides; the right side is packed into panels of
// PANEL columns, [depth][PANEL]. An operand is a float or a Pair: a step of a product of pairs covers two
// numbers of the depth, and strides and depths count pairs.
#pragma once

#include "vector.h"

namespace SIA_ISA {

constexpr int VECTORS = SIA_VECTORS;        // vectors in a row of the tile
constexpr int PANEL = VECTORS * WIDTH;      // columns of the tile
constexpr int ROWS = SIA_ROWS;              // rows of the tile

// Numbers along the depth in one operand, and the operands that hold `count` numbers.
template <class Operand>
constexpr int64_t EACH = 1;
template <>
constexpr int64_t EACH<Pair> = 2;

template <class Operand>
SIA_INLINE int64_t operands(int64_t count) {
    return (count + EACH<Operand> - 1) / EACH<Operand>;
}

// An operand in all elements of a vector, and a vector of operands. Copied as bytes: the same memory holds
// one or the other.
SIA_INLINE Vec splat_operand(const float* from) { return splat(*from); }

SIA_INLINE IntVec splat_operand(const Pair* from) {
    int32_t bits;
    memcpy(&bits, from, sizeof bits);
    return bits - IntVec{};
}

SIA_INLINE Vec load_operands(const float* from) { return load(from); }

SIA_INLINE IntVec load_operands(const Pair* from) {
    IntVec v;
    memcpy(&v, from, sizeof v);
    return v;
}

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
template <int ROW, int STEP, int R = ROWS, class Operand, class Finish>
SIA_INLINE void product(const Operand* left, ptrdiff_t jump, const Operand* right, int64_t depth,
                        Finish finish) {
    Vec sums[R][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) sums[i][v] = Vec{};

    auto step = [&](const Operand* a, const Operand* b) __attribute__((always_inline)) {
        decltype(load_operands(b)) columns[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) columns[v] = load_operands(b + v * WIDTH);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            auto operand = splat_operand(a + i * ROW);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; ++v) sums[i][v] = add_products(sums[i][v], operand, columns[v]);
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
    for (int i = 0; i < R; ++i) finish(i, sums[i]);
}

// The same for at least the first `rows` rows: the last ones of a block may be fewer than a tile has.
constexpr int FEW_ROWS = ROWS % 3 == 0 ? ROWS / 3 : ROWS / 2;

template <int ROW, int STEP, class Operand, class Finish>
SIA_INLINE void product_of_rows(int64_t rows, const Operand* left, ptrdiff_t jump, const Operand* right,
                                int64_t depth, Finish finish) {
    if (rows > 2 * FEW_ROWS)
        product<ROW, STEP>(left, jump, right, depth, finish);
    else if (rows > FEW_ROWS)
        product<ROW, STEP, 2 * FEW_ROWS>(left, jump, right, depth, finish);
    else
        product<ROW, STEP, FEW_ROWS>(left, jump, right, depth, finish);
}

}  // namespace SIA_ISA
