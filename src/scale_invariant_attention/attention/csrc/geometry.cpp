#include "geometry.h"

#include <stdint.h>

#include <algorithm>

namespace {

int64_t blocks_of(int64_t length, int64_t block) { return (length + block - 1) / block; }

int64_t rows_of(const Call& call) {
    const Visibility& given = call.visibility;
    bool differ = given.query_positions.row || given.key_positions.row || given.key_mask.row ||
                  given.query_documents.row || given.key_documents.row ||
                  given.query_coordinates.row || given.key_coordinates.row;
    return differ ? call.batch : 1;
}

// `position(i)`, `document(i)` and `seen(i)` describe the i-th element of a block.
template <class Position, class Document, class Seen>
Block summary(int64_t size, Position position, Document document, Seen seen) {
    Block block = {INT64_MAX / 4, INT64_MIN / 4, INT64_MAX, INT64_MIN, position(0), true, true, {}, {}};
    for (int64_t i = 0; i < size; ++i) {
        int64_t at = position(i);
        if (at != block.first + i) block.consecutive = false;
        if (!seen(i)) {
            block.whole = false;
            continue;
        }
        block.low = std::min(block.low, at);
        block.high = std::max(block.high, at);
        block.document_low = std::min(block.document_low, document(i));
        block.document_high = std::max(block.document_high, document(i));
    }
    return block;
}

// Note the box around the coordinates of a block, if tokens have some.
void take_box(const Call& call, const Integers& given, int64_t row, int64_t length, int64_t start,
              int64_t size, Block& block) {
    for (int64_t n = 0; n < call.dimensions && given.data; ++n) {
        const int64_t* first = given.data + row * given.row + n * length + start;
        auto extremes = std::minmax_element(first, first + size);
        block.box_low[n] = int32_t(*extremes.first);
        block.box_high[n] = int32_t(*extremes.second);
    }
}

// Default positions, no documents and no mask: nothing to scan.
Block plain(int64_t first, int64_t size) {
    return {first, first + size - 1, 0, 0, first, true, true, {}, {}};
}

}  // namespace

size_t geometry_bytes(const Call& call, int64_t query_block, int64_t key_block) {
    int64_t blocks = blocks_of(call.query_length, query_block) + blocks_of(call.key_length, key_block);
    return sizeof(Block) * rows_of(call) * blocks;
}

Geometry make_geometry(const Call& call, int64_t query_block, int64_t key_block, void* memory) {
    Geometry geometry = {};
    geometry.call = &call;
    geometry.query_block = query_block;
    geometry.key_block = key_block;
    geometry.query_blocks = blocks_of(call.query_length, query_block);
    geometry.key_blocks = blocks_of(call.key_length, key_block);
    geometry.rows = rows_of(call);
    geometry.queries = static_cast<Block*>(memory);
    geometry.keys = geometry.queries + geometry.rows * geometry.query_blocks;

    const Visibility& visibility = call.visibility;
    bool plain_queries = !visibility.query_positions.data && !visibility.query_documents.data;
    bool plain_keys = !visibility.key_positions.data && !visibility.key_documents.data &&
                      !visibility.key_mask.data;
    for (int64_t row = 0; row < geometry.rows; ++row) {
        for (int64_t n = 0; n < geometry.query_blocks; ++n) {
            int64_t start = n * query_block, size = std::min(query_block, call.query_length - start);
            geometry.queries[row * geometry.query_blocks + n] =
                plain_queries
                    ? plain(call.key_length - call.query_length + start, size)
                    : summary(
                          size, [&](int64_t i) { return query_position(call, row, start + i); },
                          [&](int64_t i) {
                              const Integers& given = visibility.query_documents;
                              return given.data ? given.data[row * given.row + start + i] : 0;
                          },
                          [](int64_t) { return true; });
            take_box(call, visibility.query_coordinates, row, call.query_length, start, size,
                     geometry.queries[row * geometry.query_blocks + n]);
        }
        for (int64_t n = 0; n < geometry.key_blocks; ++n) {
            int64_t start = n * key_block, size = std::min(key_block, call.key_length - start);
            geometry.keys[row * geometry.key_blocks + n] =
                plain_keys ? plain(start, size)
                           : summary(
                                 size, [&](int64_t j) { return key_position(call, row, start + j); },
                                 [&](int64_t j) {
                                     const Integers& given = visibility.key_documents;
                                     return given.data ? given.data[row * given.row + start + j] : 0;
                                 },
                                 [&](int64_t j) {
                                     const Flags& given = visibility.key_mask;
                                     return !given.data || given.data[row * given.row + start + j];
                                 });
            take_box(call, visibility.key_coordinates, row, call.key_length, start, size,
                     geometry.keys[row * geometry.key_blocks + n]);
        }
    }
    return geometry;
}

int64_t greatest_distance(const Geometry& geometry) {
    const Call& call = *geometry.call;
    int64_t greatest = 0;
    for (int64_t row = 0; row < geometry.rows; ++row) {
        int64_t low = INT64_MAX, high = INT64_MIN, query_low = INT64_MAX, query_high = INT64_MIN;
        for (int64_t n = 0; n < geometry.query_blocks; ++n) {
            const Block& block = geometry.queries[row * geometry.query_blocks + n];
            query_low = std::min(query_low, block.low);
            query_high = std::max(query_high, block.high);
        }
        for (int64_t n = 0; n < geometry.key_blocks; ++n) {
            const Block& block = geometry.keys[row * geometry.key_blocks + n];
            if (block.low > block.high) continue;
            low = std::min(low, block.low);
            high = std::max(high, block.high);
        }
        if (low > high || query_low > query_high) continue;
        greatest = std::max(greatest, query_high - low);
        if (!call.visibility.is_causal) greatest = std::max(greatest, high - query_low);
    }
    return std::min(greatest, call.visibility.window - 1);
}
