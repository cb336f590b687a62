// Gain and bias by offset, laid out so that a row of a tile reads them contiguously.
// Plain data: files compiled for one instruction set include it.
#pragma once

#include "call.h"

// Tiles extend beyond the visible keys: a line has this margin at both ends.
constexpr int64_t LINE_MARGIN = 256;

static inline int64_t line_size(int64_t length, bool is_causal) {
    return (is_causal ? length : 2 * length - 1) + 2 * LINE_MARGIN;
}

// The gain at offset x (query position less key position) of head h is gain[h * gain_head - x]; bias is
// laid out the same way. Offsets range from -length + 1 (0 when causal) to length - 1.
struct Lines {
    const float *gain, *bias;
    int64_t gain_head, bias_head;
    int64_t length;
    bool hides;  // some bias is -inf, which acts as a mask
};

struct Affine {
    float gain, bias;
};

// The scale-invariant transform at any distance.
Affine scale_invariant(double tau, double distance);

// Its derivatives with respect to tau.
struct Slopes {
    double gain, bias;
};
Slopes scale_invariant_slopes(double tau, double distance);
