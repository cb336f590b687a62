// Reading rows of any storage as float32, and packing them into panels.
#pragma once

#include "plan.h"
#include "product.h"

namespace SIA_ISA {

SIA_INLINE int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
SIA_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
SIA_INLINE int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

SIA_INLINE float of_float16(uint16_t half) {
    // Shift exponent and fraction into position, and correct the exponent with a product, which also
    // normalises denormals. Infinities and NaN get their special exponent.
    uint32_t sign = uint32_t(half & 0x8000) << 16, rest = uint32_t(half & 0x7fff) << 13;
    uint32_t magnitude;
    float scaled = from_bits(rest) * from_bits(0x77800000);  // 2^112
    memcpy(&magnitude, &scaled, 4);
    if (rest >= 0x0f800000) magnitude = rest | 0x7f800000;
    return from_bits(sign | magnitude);
}

// A row of a tensor as floats: in place, or converted into `buffer`.
static const float* read_row(const Call& call, const Tensor& tensor, int64_t batch, int64_t head,
                             int64_t row, int64_t size, float* buffer) {
    int64_t place = batch * tensor.batch + head * tensor.head + row * tensor.row;
    if (call.storage == FLOAT32) return static_cast<const float*>(tensor.data) + place;
    const uint16_t* from = static_cast<const uint16_t*>(tensor.data) + place;
    if (call.storage == BFLOAT16)
        for (int64_t i = 0; i < size; ++i) buffer[i] = widened(Bfloat16{from[i]});
    else
        for (int64_t i = 0; i < size; ++i) buffer[i] = of_float16(from[i]);
    return buffer;
}

static bool all_finite(const float* row, int64_t size) {
    Vec zeros[4] = {};
    int64_t i = 0;
    for (; i + 4 * WIDTH <= size; i += 4 * WIDTH)
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) zeros[n] += load(row + i + n * WIDTH) * 0.0f;
    for (; i + WIDTH <= size; i += WIDTH) zeros[0] += load(row + i) * 0.0f;
    float zero = sum((zeros[0] + zeros[1]) + (zeros[2] + zeros[3]));
    for (; i < size; ++i) zero += row[i] * 0.0f;
    return zero == 0.0f;  // NaN is not
}

SIA_INLINE float finite(float x) { return x - x == 0.0f ? x : 0.0f; }

// Rows [start, start + count) times `factor`, with non-finite values replaced by zero, in panels of
// columns: [columns / PANEL][rows][PANEL], padded with zeros to whole tiles. `is_bad`, if given, is set
// for rows that are not finite.
static void pack_rows(const Call& call, const Tensor& tensor, int64_t batch, int64_t head,
                      int64_t start, int64_t count, int64_t rows, int64_t size, float factor,
                      float* to, uint8_t* is_bad, float* buffer) {
    int64_t panels = round_up(size, PANEL) / PANEL, filled = least(rows, round_up(count, ROWS));
    for (int64_t i = 0; i < filled; ++i) {
        if (i >= count) {
            for (int64_t p = 0; p < panels; ++p) memset(to + (p * rows + i) * PANEL, 0, PANEL * 4);
            continue;
        }
        const float* row = read_row(call, tensor, batch, head, start + i, size, buffer);
        bool good = all_finite(row, size);
        if (!good && is_bad) is_bad[i] = 1;
        for (int64_t p = 0; p < panels; ++p) {
            float* place = to + (p * rows + i) * PANEL;
            int64_t first = p * PANEL, width = least(PANEL, size - first);
            if (good && width == PANEL) {
                for (int v = 0; v < VECTORS; ++v)
                    store(place + v * WIDTH, load(row + first + v * WIDTH) * factor);
            } else {
                for (int64_t j = 0; j < PANEL; ++j)
                    place[j] = j < width ? finite(row[first + j]) * factor : 0.0f;
            }
        }
    }
}

// The same rows transposed, in panels of rows: [rows / PANEL][size][PANEL].
static void pack_transposed(const Call& call, const Tensor& tensor, int64_t batch, int64_t head,
                            int64_t start, int64_t count, int64_t rows, int64_t size, float* to,
                            uint8_t* is_bad, float* buffer) {
    for (int64_t first = 0; first < rows; first += PANEL, to += size * PANEL) {
        int64_t here = greatest(0, least(PANEL, count - first));
        // Missing rows are zeros in the buffer, where present ones would be converted to.
        memset(buffer + here * size, 0, (PANEL - here) * size * 4);
        const float* row[PANEL];
        bool good = true;
        for (int64_t k = here; k < PANEL; ++k) row[k] = buffer + k * size;
        for (int64_t k = 0; k < here; ++k) {
            row[k] = read_row(call, tensor, batch, head, start + first + k, size, buffer + k * size);
            if (all_finite(row[k], size)) continue;
            good = false;
            if (is_bad) is_bad[first + k] = 1;
        }
        int64_t d = 0;
        if (good)
            for (; d + WIDTH <= size; d += WIDTH)
                for (int k = 0; k < PANEL; k += WIDTH) {
                    Vec square[WIDTH];
                    for (int n = 0; n < WIDTH; ++n) square[n] = load(row[k + n] + d);
                    transpose(square);
                    for (int n = 0; n < WIDTH; ++n) store(to + (d + n) * PANEL + k, square[n]);
                }
        for (; d < size; ++d)
            for (int64_t k = 0; k < PANEL; ++k) to[d * PANEL + k] = finite(row[k][d]);
    }
}

// Hands out consecutive pieces of memory; without memory it only counts bytes.
struct Pieces {
    float* memory;
    int64_t used;

    // Operands take as much memory as floats.
    template <class Operand = float>
    SIA_METHOD Operand* take(int64_t count) {
        static_assert(sizeof(Operand) == sizeof(float), "one size");
        float* piece = memory ? memory + used : nullptr;
        used += round_up(count, 16);
        return reinterpret_cast<Operand*>(piece);
    }
};

// Floats for `buffer` above.
SIA_INLINE int64_t row_buffer_floats(const Call& call) {
    return PANEL * greatest(call.head_size, call.value_size);
}

}  // namespace SIA_ISA
