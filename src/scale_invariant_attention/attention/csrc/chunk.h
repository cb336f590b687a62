// A chunk: one block of queries against a long cache. Each block of keys is packed, used for all query heads
// that share it while it is in the cache of the core, and forgotten. As in decoding, each part of the keys is
// a work item, and their softmaxes are merged at the end.
#pragma once

#include "decode.h"

namespace SIA_ISA {

template <class Operand>
struct ChunkMemory {
    Operand *keys, *values;
    uint8_t* bad;
    char* heads;         // ForwardMemory of each query head
    size_t head_bytes, bytes;
};

template <class Operand>
static ChunkMemory<Operand> chunk_memory(const Plan& plan, void* memory) {
    Pieces pieces = {static_cast<float*>(memory), 0};
    ChunkMemory<Operand> m = {};
    m.keys = pieces.take<Operand>(key_block_size<Operand>(plan.call));
    m.values = pieces.take<Operand>(value_block_size<Operand>(plan.call));
    m.bad = reinterpret_cast<uint8_t*>(pieces.take(KEYS / 4));
    m.head_bytes = forward_memory<Operand>(plan, nullptr).bytes;
    m.heads = reinterpret_cast<char*>(pieces.take(plan.group * m.head_bytes / sizeof(float)));
    m.bytes = pieces.used * sizeof(float);
    return m;
}

static size_t chunk_bytes(const Plan& plan) {
    return with_operand(plan.call, [&](auto operand) {
        return chunk_memory<decltype(operand)>(plan, nullptr).bytes;
    });
}

template <class Operand>
static void chunk_item_of(const Plan& plan, int64_t item, void* memory) {
    const Call& call = plan.call;
    ChunkMemory<Operand> m = chunk_memory<Operand>(plan, memory);
    int64_t place = item / plan.parts, part = item % plan.parts, queries = call.query_length;
    int64_t batch = place / call.key_heads, key_head = place % call.key_heads;
    int64_t first_head = key_head * plan.group, width = round_up(call.value_size, PANEL);
    auto of_head = [&](int64_t n) { return forward_memory<Operand>(plan, m.heads + n * m.head_bytes); };
    for (int64_t n = 0; n < plan.group; ++n)
        start_rows(call, of_head(n), batch, first_head + n, 0, queries);
    int64_t end = least((part + 1) * plan.part, plan.geometry.key_blocks);
    for (int64_t block = part * plan.part; block < end; ++block) {
        if (tile_place(plan, batch, first_head, 0, block, nullptr).kind == Tile::EMPTY) continue;
        bool any = pack_keys(call, batch, key_head, block, m.keys, m.values, m.bad, of_head(0).buffer);
        for (int64_t n = 0; n < plan.group; ++n) {
            TilePlace tile = tile_place(plan, batch, first_head + n, 0, block, any ? m.bad : nullptr);
            ForwardMemory<Operand> own = of_head(n);
            take_key_bias(call, batch, own.key_bias, tile);
            forward_tile(plan, tile, own, m.keys, m.values, queries);
        }
    }
    float* partial = plan.partial + item * plan.group * queries * partial_floats(call);
    for (int64_t n = 0; n < plan.group; ++n) {
        ForwardMemory<Operand> own = of_head(n);
        for (int64_t i = 0; i < queries; ++i, partial += partial_floats(call))
            store_partial(partial, own.softmax, i, own.out + i * width, width);
    }
}

static void chunk_item(const Plan& plan, int64_t item, void* memory) {
    with_operand(plan.call,
                 [&](auto operand) { chunk_item_of<decltype(operand)>(plan, item, memory); });
}

}  // namespace SIA_ISA
