// How lines are made and kept.
#pragma once

#include <memory>
#include <vector>

#include "affine.h"

struct OwnedLines {
    Lines lines;
    std::shared_ptr<const std::vector<float>> memory;
};

// Lines for distances below `length`, of tables or of tau.
OwnedLines make_lines(const Call& call, int64_t length);
