// Which queries see which keys: positions, documents and masks by block, and the kinds of tiles.
#pragma once

#include "call.h"

// The extremes of a block of queries or keys, without masked keys.
struct Block {
    int64_t low, high;                    // positions; low > high when every key is masked
    int64_t document_low, document_high;
    int64_t first;                        // position of the first, masked or not
    bool consecutive;                     // positions increase by one, masked or not
    bool whole;                           // no key is masked
    // The extremes of coordinates, masked or not.
    int32_t box_low[MOST_DIMENSIONS], box_high[MOST_DIMENSIONS];
};

enum class Tile {
    EMPTY,    // no pair is visible
    RANGES,   // consecutive positions: each row sees a range of keys, and the affine is a line
    GENERAL,  // pair by pair
};

struct Geometry {
    const Call* call;
    int64_t query_block, key_block;       // their sizes
    int64_t query_blocks, key_blocks;     // their numbers
    int64_t rows;                         // batch rows that differ: 1 or batch
    Block *queries, *keys;                // [rows][blocks]
};

static inline int64_t query_position(const Call& call, int64_t row, int64_t i) {
    const Integers& given = call.visibility.query_positions;
    return given.data ? given.data[row * given.row + i] : call.key_length - call.query_length + i;
}

static inline int64_t key_position(const Call& call, int64_t row, int64_t j) {
    const Integers& given = call.visibility.key_positions;
    return given.data ? given.data[row * given.row + j] : j;
}

static inline int64_t distance(const Call& call, int64_t offset) {
    if (offset >= 0) return offset;
    return call.visibility.is_causal ? 0 : -offset;
}

static inline bool is_sink(const Call& call, int64_t position) {
    return call.visibility.sinks > 0 && position < call.visibility.sinks;
}

// Whether neither a mask nor a document hides a key.
static inline bool unmasked(const Call& call, int64_t row, int64_t i, int64_t j) {
    const Visibility& given = call.visibility;
    if (given.key_mask.data && !given.key_mask.data[row * given.key_mask.row + j]) return false;
    if (given.query_documents.data &&
        given.query_documents.data[row * given.query_documents.row + i] !=
            given.key_documents.data[row * given.key_documents.row + j])
        return false;
    return true;
}

static inline bool visible(const Call& call, int64_t row, int64_t i, int64_t j) {
    const Visibility& given = call.visibility;
    if (!unmasked(call, row, i, j)) return false;
    int64_t key = key_position(call, row, j), offset = query_position(call, row, i) - key;
    if (given.is_causal && offset < 0) return false;
    return distance(call, offset) < given.window || is_sink(call, key);
}

// The square of the distance between the boxes around the coordinates of two blocks.
static inline double squared_gap(const Call& call, const Block& queries, const Block& keys) {
    double total = 0;
    for (int64_t n = 0; n < call.dimensions; ++n) {
        int64_t after = queries.box_low[n] - keys.box_high[n], before = keys.box_low[n] - queries.box_high[n];
        double gap = double(after > before ? after : before);
        if (gap > 0) total += gap * gap;
    }
    return total;
}

static inline Tile tile_kind(const Geometry& geometry, const Block& queries, const Block& keys) {
    const Call& call = *geometry.call;
    if (keys.low > keys.high) return Tile::EMPTY;
    bool points = call.visibility.key_coordinates.data;  // then positions mean nothing
    if (call.visibility.is_causal && keys.low > queries.high) return Tile::EMPTY;
    bool sinks = is_sink(call, keys.low);
    int64_t after = queries.low - keys.high, before = keys.low - queries.high;
    double window = double(call.visibility.window);
    bool far = points ? squared_gap(call, queries, keys) >= window * window
                      : (after > before ? after : before) >= call.visibility.window;
    if (far && !sinks) return Tile::EMPTY;
    bool one_document = true;
    if (call.visibility.query_documents.data) {
        if (keys.document_low > queries.document_high || queries.document_low > keys.document_high)
            return Tile::EMPTY;
        one_document = keys.document_low == keys.document_high &&
                       queries.document_low == queries.document_high;
    }
    if (points) return Tile::GENERAL;
    bool ranges = queries.consecutive && keys.consecutive && keys.whole && one_document && !sinks;
    return ranges ? Tile::RANGES : Tile::GENERAL;
}

// The keys [low, high) of a RANGES tile that a row sees; `offset` is the row's position minus that of
// the first key.
struct Range {
    int64_t low, high;
};

static inline Range visible_range(const Call& call, int64_t offset, int64_t keys) {
    Range range = {0, keys};
    if (call.visibility.window <= offset) range.low = offset - call.visibility.window + 1;
    if (call.visibility.is_causal) {
        if (offset + 1 < range.high) range.high = offset + 1;
    } else if (call.visibility.window < keys - offset) {
        range.high = offset + call.visibility.window;
    }
    if (range.high < 0) range.high = 0;
    if (range.low > range.high) range.low = range.high;
    return range;
}

size_t geometry_bytes(const Call& call, int64_t query_block, int64_t key_block);

// Fill a geometry whose blocks are stored in `memory`.
Geometry make_geometry(const Call& call, int64_t query_block, int64_t key_block, void* memory);

// Upper bound on the distance of visible pairs.
int64_t greatest_distance(const Geometry& geometry);
