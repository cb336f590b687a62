// Shared input of all work items of a call: the call, its geometry, its lines, and shared memory.
#pragma once

#include "affine.h"
#include "geometry.h"

// Coordinates of queries or keys as floats, which hold them exactly: [1 or batch, dimensions, length and more].
struct Points {
    const float* data;  // null without coordinates
    int64_t row, dimension;
};

struct Plan {
    Call call;
    Geometry geometry;
    Lines lines;
    Points query_points, key_points;
    bool far;                   // some distances are beyond the lines: only with tau
    int64_t group;              // query heads that share a key head

    // Forward: the keys and values of the heads [first_head, first_head + heads), batch by head,
    // packed, and which keys are not finite or have a value that is not finite.
    int64_t first_head, heads;
    float *packed_keys, *packed_values;
    uint8_t *bad_keys, *bad_blocks;

    // Decoding and chunks: the softmax of each part of the cache, by head, part and row.
    int64_t part, parts;        // length of a part, number of parts
    float* partial;

    // Backward: the number of work items that share a head, and their separate sums.
    int64_t slots;
    bool affine_grads;          // whether to compute gradients of the affine
    float* slot_grad_query;     // [slots - 1][B, Hq, Lq, D]
    double* line_grads;         // [slots][B, Hq][2][line]
    double* far_grads;          // [slots][B, Hq]
    int64_t line_size;          // with its margins
};

// The kernels for one instruction set. The result of a work item never depends on which thread runs it.
struct Kernels {
    const char* name;
    int64_t query_block, key_block;                    // forward
    int64_t backward_query_block, backward_key_block;
    int64_t decode_rows, decode_block;                 // maximum number of rows; keys at a time

    // Size of a packed head.
    size_t (*packed_key_floats)(const Call&);
    size_t (*packed_value_floats)(const Call&);
    size_t (*partial_floats)(const Call&);             // of one row of one part, decoding
    // Per kernel: the bytes that a thread needs, and the function that runs one work item.
    size_t (*pack_bytes)(const Plan&);
    void (*pack)(const Plan&, int64_t item, void* memory);
    size_t (*forward_bytes)(const Plan&);
    void (*forward)(const Plan&, int64_t item, void* memory);
    size_t (*decode_bytes)(const Plan&);
    void (*decode)(const Plan&, int64_t item, void* memory);
    size_t (*chunk_bytes)(const Plan&);
    void (*chunk)(const Plan&, int64_t item, void* memory);
    void (*merge)(const Plan&, int64_t item, void* memory);
    size_t (*backward_bytes)(const Plan&);
    void (*backward)(const Plan&, int64_t item, void* memory);
    // Limits of the machine.
    int64_t operations_a_round;
    void (*multiply_add)(int64_t rounds);
    float (*read)(const float* from, int64_t count);
};
