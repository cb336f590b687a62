// All kernels for one instruction set. A file that includes this defines:
//   SIA_ISA      the namespace, and the name that users see
//   SIA_WIDTH    floats in a vector
//   SIA_VECTORS, SIA_ROWS    the tile of a product: SIA_ROWS x (SIA_VECTORS * SIA_WIDTH) sums fill most registers
//   SIA_FORWARD_*, SIA_BACKWARD_*    blocks that fit into the second-level cache
#pragma once

#include "backward.h"
#include "chunk.h"
#include "decode.h"
#include "forward.h"
#include "limits.h"

#define SIA_TEXT_OF(name) #name
#define SIA_TEXT(name) SIA_TEXT_OF(name)

#define SIA_DEFINE_KERNELS(variable)                                                               \
    extern const Kernels variable = {                                                              \
        SIA_TEXT(SIA_ISA),                                                                         \
        SIA_ISA::QUERIES,                                                                          \
        SIA_ISA::KEYS,                                                                             \
        SIA_ISA::BACK_QUERIES,                                                                     \
        SIA_ISA::BACK_KEYS,                                                                        \
        SIA_ISA::DECODE_ROWS,                                                                      \
        SIA_ISA::CACHE_BLOCK,                                                                      \
        SIA_ISA::packed_key_floats,                                                                \
        SIA_ISA::packed_value_floats,                                                              \
        SIA_ISA::partial_floats,                                                                   \
        SIA_ISA::pack_bytes,                                                                       \
        SIA_ISA::pack_block,                                                                       \
        SIA_ISA::forward_bytes,                                                                    \
        SIA_ISA::forward_item,                                                                     \
        SIA_ISA::decode_bytes,                                                                     \
        SIA_ISA::decode_item,                                                                      \
        SIA_ISA::chunk_bytes,                                                                      \
        SIA_ISA::chunk_item,                                                                       \
        SIA_ISA::merge_item,                                                                       \
        SIA_ISA::backward_bytes,                                                                   \
        SIA_ISA::backward_item,                                                                    \
        SIA_ISA::operations_a_round,                                                               \
        SIA_ISA::multiply_add,                                                                     \
        SIA_ISA::read_memory,                                                                      \
    }
