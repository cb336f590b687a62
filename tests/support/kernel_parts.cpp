// Parts of the CPU kernels that tests call on their own. A file with the width and the flags of an
// instruction set, as in csrc/isa_*.cpp, includes this.
#include <vector>

#include "points.h"

extern "C" {

// In place; `count` is a multiple of the width.
void log1p_of(float* numbers, int64_t count) {
    for (int64_t i = 0; i < count; i += SIA_WIDTH)
        SIA_ISA::store(numbers + i, SIA_ISA::log1p(SIA_ISA::load(numbers + i)));
}

// A table between two tokens; `keys` has a vector of the same key per dimension, `line` the entry 0.
float interpolated_at(const float* query, const float* keys, int64_t dimensions, const float* line,
                      int64_t length) {
    SIA_ISA::PointRow row = {query, keys, 1, SIA_WIDTH, dimensions};
    return SIA_ISA::interpolated(line, SIA_ISA::neighbours(row, 0, length))[0];
}

// The kind of every tile of a call, [rows, query blocks, key blocks].
void tile_kinds(const Call* call, int64_t query_block, int64_t key_block, int8_t* kinds) {
    std::vector<char> memory(geometry_bytes(*call, query_block, key_block));
    Geometry geometry = make_geometry(*call, query_block, key_block, memory.data());
    for (int64_t i = 0; i < geometry.rows * geometry.query_blocks; ++i)
        for (int64_t j = 0; j < geometry.key_blocks; ++j) {
            int64_t row = i / geometry.query_blocks;
            *kinds++ = int8_t(tile_kind(geometry, geometry.queries[i],
                                        geometry.keys[row * geometry.key_blocks + j]));
        }
}

}  // extern "C"
