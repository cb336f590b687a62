// Computing and caching lines.
#pragma once

#include <memory>
#include <vector>

#include "affine.h"

struct OwnedLines {
    Lines lines;
    std::shared_ptr<const std::vector<float>> memory;
};

// Lines for distances below `length`, from tables or from tau.
OwnedLines make_lines(const Call& call, int64_t length);
