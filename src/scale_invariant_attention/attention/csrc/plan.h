// What every work item of a call reads: the call, its geometry, its lines, and the shared memory.
#pragma once

#include "affine.h"
#include "geometry.h"

struct Plan {
    Call call;
    Geometry geometry;
    Lines lines;
    bool far;                   // some distances lie beyond the lines: only with tau
    int64_t group;              // query heads that share a key head

    // Forward: the keys and values of the heads [first_head, first_head + heads), batch by head,
    // packed, and which keys are not finite or have a value that is not.
    int64_t first_head, heads;
    float *packed_keys, *packed_values;
    uint8_t *bad_keys, *bad_blocks;

    // Decoding: the softmax of each part of the cache, by head, part and row.
    int64_t part, parts;        // how long a part is, how many there are
    float* partial;

    // Backward: how many work items share a head, and what they sum up on their own.
    int64_t slots;
    bool affine_grads;          // whether those of the affine are wanted
    float* slot_grad_query;     // [slots - 1][B, Hq, Lq, D]
    double* line_grads;         // [slots][B, Hq][2][line]
    double* far_grads;          // [slots][B, Hq]
    int64_t line_size;          // with its margins
};

// The kernels, compiled for one instruction set. A work item never depends on who runs it, nor when.
struct Kernels {
    const char* name;
    int64_t query_block, key_block;                    // forward
    int64_t backward_query_block, backward_key_block;
    int64_t decode_rows, decode_block;                 // up to so many rows; keys at a time

    // How much a head takes when packed.
    size_t (*packed_key_floats)(const Call&);
    size_t (*packed_value_floats)(const Call&);
    size_t (*partial_floats)(const Call&);             // of one row of one part, decoding
    // The bytes that a thread needs for work items of a kind, and one such item.
    size_t (*pack_bytes)(const Plan&);
    void (*pack)(const Plan&, int64_t item, void* memory);
    size_t (*forward_bytes)(const Plan&);
    void (*forward)(const Plan&, int64_t item, void* memory);
    size_t (*decode_bytes)(const Plan&);
    void (*decode)(const Plan&, int64_t item, void* memory);
    void (*merge)(const Plan&, int64_t item, void* memory);
    size_t (*backward_bytes)(const Plan&);
    void (*backward)(const Plan&, int64_t item, void* memory);
    // Limits of the machine.
    int64_t operations_a_round;
    void (*multiply_add)(int64_t rounds);
    float (*read)(const float* from, int64_t count);
};
