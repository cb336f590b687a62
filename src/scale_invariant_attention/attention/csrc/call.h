// A call as it comes from Python, and what the kernels derive from it before they start.
// Nothing here depends on the instruction set.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum Storage : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

// A tensor [batch, heads, rows, columns] whose columns lie side by side; strides in elements.
struct Tensor {
    const void* data;
    int64_t batch, head, row;
};

// MOST_DIMENSIONS in _coordinates.py.
constexpr int64_t MOST_DIMENSIONS = 8;

// Integers or flags by batch row: [1 or batch, length]; `row` is 0 when the batch shares them.
struct Integers {
    const int64_t* data;  // may be null
    int64_t row;
};

struct Flags {
    const uint8_t* data;  // may be null
    int64_t row;
};

// A number per key, [batch, query heads, keys], the keys side by side.
struct KeyBias {
    const float* data;  // may be null
    int64_t batch, head;
};

// Gain, bias or tau by head; `head` is 0 when the heads share it.
struct Table {
    const float* data;  // may be null
    int64_t head;
};

// The fields of `Visibility` in visibility.py: the tensors, then the numbers.
struct Visibility {
    Integers query_positions, key_positions;
    Flags key_mask;
    Integers query_documents, key_documents;
    Integers query_coordinates, key_coordinates;  // [1 or batch, dimensions, length]
    int64_t is_causal, window, sinks;  // window: INT64_MAX for none
};

// The layout that Python packs: 8 bytes per field, in this order.
struct Call {
    int64_t storage, threads;
    int64_t batch, query_heads, key_heads, query_length, key_length, head_size, value_size;
    Tensor query, key, value;
    KeyBias key_bias;
    Visibility visibility;
    int64_t dimensions;
    double scale;
    Table gain, bias;      // tables by distance, or null
    int64_t table_length;
    const double* tau;     // instead of tables
    int64_t tau_head;
    float *out, *lse;      // [B, Hq, Lq, Dv] and [B, Hq, Lq], written forward, read backward
    // Backward only.
    const float *grad_out, *grad_lse;  // like out and lse
    float *grad_query, *grad_key, *grad_value, *grad_key_bias;  // like the inputs, float32, contiguous
    // By query head, distance and kind (gain, bias), and by query head for tau where the distance
    // lies beyond the table; null if not requested.
    double *grad_affine, *grad_far_tau;
    int64_t affine_length;
};
