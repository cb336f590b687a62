// Limits of the machine: multiply-adds in registers, and memory bandwidth.
#pragma once

#include "vector.h"

namespace SIA_ISA {

constexpr int CHAINS = 12;  // independent sums, enough to hide the latency
constexpr int64_t operations_a_round = 2 * CHAINS * WIDTH;

static void multiply_add(int64_t rounds) {
    Vec sums[CHAINS];
    Vec factor = splat(0.999f), term = splat(0.001f);
#pragma GCC unroll 12
    for (int n = 0; n < CHAINS; ++n) sums[n] = splat(float(n));
    for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
        for (int n = 0; n < CHAINS; ++n) sums[n] = sums[n] * factor + term;
    // Use the result, or the compiler would drop the loop.
    volatile float sink = 0;
#pragma GCC unroll 12
    for (int n = 0; n < CHAINS; ++n) sink = sink + sum(sums[n]);
}

static float read_memory(const float* from, int64_t count) {
    Vec sums[8] = {};
    int64_t i = 0;
    for (; i + 8 * WIDTH <= count; i += 8 * WIDTH)
#pragma GCC unroll 8
        for (int n = 0; n < 8; ++n) sums[n] += load(from + i + n * WIDTH);
    float total = 0;
    for (int n = 0; n < 8; ++n) total += sum(sums[n]);
    for (; i < count; ++i) total += from[i];
    return total;
}

}  // namespace SIA_ISA
