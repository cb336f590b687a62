// The layouts of pack.h in pairs of bfloat16, and what forward and backward need to serve both operands.
#pragma once

#include "pack.h"

namespace SIA_ISA {

// A row in bfloat16, rounded if it is not stored so: non-finite values replaced by zero, padded with zeros
// to `padded` numbers. Returns whether all were finite.
static bool read_halves(const Call& call, const Tensor& tensor, int64_t batch, int64_t head, int64_t row,
                        int64_t size, int64_t padded, uint16_t* to) {
    int64_t place = batch * tensor.batch + head * tensor.head + row * tensor.row;
    memset(to + size, 0, (padded - size) * 2);
    if (call.storage == BFLOAT16) {
        memcpy(to, static_cast<const uint16_t*>(tensor.data) + place, size * 2);
    } else {
        const float* from = static_cast<const float*>(tensor.data) + place;
        for (int64_t i = 0; i < size; i += WIDTH) {
            Vec some = {};
            int64_t few = least(WIDTH, size - i);
            memcpy(&some, from + i, few * 4);
            Halves halves = rounded(some);
            memcpy(to + i, &halves, few * 2);
        }
    }
    uint16_t bad = 0;
    for (int64_t i = 0; i < size; ++i) bad |= (to[i] & 0x7f80) == 0x7f80;
    if (!bad) return true;
    for (int64_t i = 0; i < size; ++i)
        if ((to[i] & 0x7f80) == 0x7f80) to[i] = 0;
    return false;
}

// The three layouts in pairs of bfloat16. `buffer` is scratch memory of row_buffer_floats.
// Rows as the left side, pairs along the columns: [columns / 2 / PANEL][rows][PANEL].
static void pack_left(const Call& call, const Tensor& tensor, int64_t batch, int64_t head, int64_t start,
                      int64_t count, int64_t rows, int64_t size, Pair* to, uint8_t* is_bad,
                      float* buffer) {
    int64_t width = round_up(operands<Pair>(size), PANEL), filled = least(rows, round_up(count, ROWS));
    uint16_t* halves = reinterpret_cast<uint16_t*>(buffer);
    for (int64_t i = 0; i < filled; ++i) {
        if (i >= count)
            memset(halves, 0, width * 4);
        else if (!read_halves(call, tensor, batch, head, start + i, size, 2 * width, halves) && is_bad)
            is_bad[i] = 1;
        for (int64_t c = 0; c < width; c += PANEL)
            memcpy(to + c * rows + i * PANEL, halves + 2 * c, PANEL * 4);
    }
}

// Rows as the right side, pairs of neighbouring rows: [columns / PANEL][rows / 2][PANEL].
[[maybe_unused]] static void pack_right(const Call& call, const Tensor& tensor, int64_t batch,
                                        int64_t head, int64_t start, int64_t count, int64_t rows,
                                        int64_t size, Pair* to, uint8_t* is_bad, float* buffer) {
    int64_t width = round_up(size, PANEL);
    uint16_t* halves[] = {reinterpret_cast<uint16_t*>(buffer),
                          reinterpret_cast<uint16_t*>(buffer) + width};
    for (int64_t i = 0; i < count; i += 2) {
        for (int64_t n = 0; n < 2; ++n) {
            if (i + n >= count)
                memset(halves[n], 0, width * 2);
            else if (!read_halves(call, tensor, batch, head, start + i + n, size, width, halves[n]) &&
                     is_bad)
                is_bad[i + n] = 1;
        }
        for (int64_t c = 0; c < width; c += WIDTH) {
            Halves first, second;
            memcpy(&first, halves[0] + c, sizeof first);
            memcpy(&second, halves[1] + c, sizeof second);
            store_pairs(to + (c / PANEL * rows + i) / 2 * PANEL + c % PANEL, paired(first, second));
        }
    }
}

// Rows transposed, pairs along the columns: [rows / PANEL][columns / 2][PANEL].
[[maybe_unused]] static void pack_transposed(const Call& call, const Tensor& tensor, int64_t batch,
                                             int64_t head, int64_t start, int64_t count, int64_t rows,
                                             int64_t size, Pair* to, uint8_t* is_bad, float* buffer) {
    int64_t depth = operands<Pair>(size);
    for (int64_t first = 0; first < rows; first += PANEL, to += depth * PANEL) {
        int64_t here = greatest(0, least(PANEL, count - first));
        memset(buffer + here * depth, 0, (PANEL - here) * depth * 4);
        for (int64_t k = 0; k < here; ++k) {
            uint16_t* halves = reinterpret_cast<uint16_t*>(buffer + k * depth);
            if (!read_halves(call, tensor, batch, head, start + first + k, size, 2 * depth, halves) &&
                is_bad)
                is_bad[first + k] = 1;
        }
        int64_t d = 0;
        for (; d + WIDTH <= depth; d += WIDTH)
            for (int k = 0; k < PANEL; k += WIDTH) {
                Vec square[WIDTH];
                for (int n = 0; n < WIDTH; ++n) square[n] = load(buffer + (k + n) * depth + d);
                transpose(square);
                for (int n = 0; n < WIDTH; ++n) memcpy(to + (d + n) * PANEL + k, &square[n], sizeof(Vec));
            }
        for (; d < depth; ++d)
            for (int64_t k = 0; k < PANEL; ++k)
                memcpy(to + d * PANEL + k, buffer + k * depth + d, sizeof(Pair));
    }
}

// The same layouts in floats, where both sides of a product are laid out alike.
SIA_INLINE void pack_left(const Call& call, const Tensor& tensor, int64_t batch, int64_t head,
                          int64_t start, int64_t count, int64_t rows, int64_t size, float* to,
                          uint8_t* is_bad, float* buffer) {
    pack_rows(call, tensor, batch, head, start, count, rows, size, 1.0f, to, is_bad, buffer);
}

SIA_INLINE void pack_right(const Call& call, const Tensor& tensor, int64_t batch, int64_t head,
                           int64_t start, int64_t count, int64_t rows, int64_t size, float* to,
                           uint8_t* is_bad, float* buffer) {
    pack_rows(call, tensor, batch, head, start, count, rows, size, 1.0f, to, is_bad, buffer);
}

// Queries as the left side. Floats are scaled here; pairs would be rounded again, so their scores are
// scaled instead: see `score`.
SIA_INLINE void pack_queries(const Call& call, int64_t batch, int64_t head, int64_t start, int64_t count,
                             int64_t rows, float* to, uint8_t* is_bad, float* buffer) {
    pack_rows(call, call.query, batch, head, start, count, rows, call.head_size, float(call.scale), to,
              is_bad, buffer);
}

SIA_INLINE void pack_queries(const Call& call, int64_t batch, int64_t head, int64_t start, int64_t count,
                             int64_t rows, Pair* to, uint8_t* is_bad, float* buffer) {
    pack_left(call, call.query, batch, head, start, count, rows, call.head_size, to, is_bad, buffer);
}

template <class Operand>
SIA_INLINE Vec score(Vec sum, float scale) {
    return EACH<Operand> > 1 ? sum * scale : sum;
}

// Sums, which are scores, as they are.
template <class Operand>
struct Scores {
    float* to;
    ptrdiff_t row;
    float scale;
    SIA_METHOD void operator()(int i, const Vec (&sums)[VECTORS]) const {
        for (int v = 0; v < VECTORS; ++v)
            store(to + i * row + v * WIDTH, score<Operand>(sums[v], scale));
    }
};

// Call run(Pair) or run(float), whichever the products of a call multiply.
template <class Run>
SIA_INLINE auto with_operand(const Call& call, Run run) {
#if defined(SIA_PAIRS)
    if (call.storage == BFLOAT16) return run(Pair{});
#endif
    (void)call;
    return run(float{});
}

// The operands that hold the numbers of a range.
template <class Operand>
SIA_INLINE Range operand_range(Range range) {
    return {range.low / EACH<Operand>, operands<Operand>(range.high)};
}

}  // namespace SIA_ISA
