#include "lines.h"

#include <math.h>

#include <algorithm>
#include <mutex>

namespace {

// Fill one line from values by distance and return the address of offset 0.
template <class Value>
float* fill_line(float* line, int64_t length, bool is_causal, Value value) {
    float* zero = line + LINE_MARGIN + length - 1;
    for (int64_t t = 0; t < length; ++t) zero[-t] = value(t);
    for (int64_t t = 0; t < LINE_MARGIN; ++t) line[t] = zero[1 - length];
    int64_t behind = is_causal ? 0 : length - 1;
    for (int64_t t = 1; t <= behind; ++t) zero[t] = zero[-t];
    for (int64_t t = 1; t <= LINE_MARGIN; ++t) zero[behind + t] = zero[behind];
    return zero;
}

// See `plain_nan` for vectors.
float plain_nan(float value) { return value == value ? value : NAN; }

OwnedLines lines_of_tables(const Call& call, int64_t length) {
    int64_t size = line_size(length, call.visibility.is_causal);
    int64_t gain_rows = call.gain.head ? call.query_heads : 1;
    int64_t bias_rows = call.bias.head ? call.query_heads : 1;
    auto memory = std::make_shared<std::vector<float>>(size * (gain_rows + bias_rows));
    float* first = memory->data();
    float* second = first + size * gain_rows;
    Lines lines = {};
    lines.gain_head = gain_rows > 1 ? size : 0;
    lines.bias_head = bias_rows > 1 ? size : 0;
    lines.length = length;
    for (int64_t h = gain_rows; h-- > 0;)
        lines.gain = fill_line(first + h * size, length, call.visibility.is_causal, [&](int64_t t) {
            return plain_nan(call.gain.data[h * call.gain.head + t]);
        });
    for (int64_t h = bias_rows; h-- > 0;)
        lines.bias = fill_line(second + h * size, length, call.visibility.is_causal, [&](int64_t t) {
            float bias = plain_nan(call.bias.data[h * call.bias.head + t]);
            lines.hides |= bias == -INFINITY;
            return bias;
        });
    return {lines, memory};
}

OwnedLines lines_of_tau(const double* tau, int64_t heads, int64_t length, bool is_causal) {
    int64_t size = line_size(length, is_causal);
    auto memory = std::make_shared<std::vector<float>>(2 * size * heads);
    Lines lines = {};
    lines.gain_head = lines.bias_head = heads > 1 ? 2 * size : 0;
    lines.length = length;
    for (int64_t h = heads; h-- > 0;) {
        float* line = memory->data() + 2 * size * h;
        std::vector<Affine> values(length);
        for (int64_t t = 0; t < length; ++t) values[t] = scale_invariant(tau[h], t);
        lines.gain = fill_line(line, length, is_causal, [&](int64_t t) { return values[t].gain; });
        lines.bias =
            fill_line(line + size, length, is_causal, [&](int64_t t) { return values[t].bias; });
    }
    return {lines, memory};
}

// Consecutive calls tend to share tau; without this cache, decoding would mostly compute logarithms.
struct Remembered {
    std::vector<double> tau;
    bool is_causal;
    OwnedLines lines;
};
constexpr size_t REMEMBERED = 8, REMEMBERED_FLOATS = size_t(1) << 22;  // per entry: 16 MiB

OwnedLines remembered_lines(const Call& call, int64_t length) {
    static std::mutex mutex;
    static std::vector<Remembered> memory;  // most recently used first
    int64_t heads = call.tau_head ? call.query_heads : 1;
    bool is_causal = call.visibility.is_causal;
    auto same_tau = [&](const Remembered& entry) {
        return entry.is_causal == is_causal && entry.tau.size() == static_cast<size_t>(heads) &&
               std::equal(entry.tau.begin(), entry.tau.end(), call.tau);
    };
    auto fits = [&](const Remembered& entry) {
        return same_tau(entry) && entry.lines.lines.length >= length;
    };
    {
        std::lock_guard<std::mutex> lock(mutex);
        auto found = std::find_if(memory.begin(), memory.end(), fits);
        if (found != memory.end()) {
            std::rotate(memory.begin(), found, found + 1);
            return memory.front().lines;
        }
    }
    // Longer than needed, so that a KV cache that grows token by token can reuse its lines for a while.
    int64_t roomy = length < 64 ? 64 : length + length / 8;
    std::vector<double> tau(call.tau, call.tau + heads);
    OwnedLines lines = lines_of_tau(tau.data(), heads, roomy, is_causal);
    if (lines.memory->size() > REMEMBERED_FLOATS) return lines;
    std::lock_guard<std::mutex> lock(mutex);
    memory.erase(std::remove_if(memory.begin(), memory.end(), same_tau), memory.end());
    memory.insert(memory.begin(), {tau, is_causal, lines});
    if (memory.size() > REMEMBERED) memory.pop_back();
    return lines;
}

}  // namespace

Affine scale_invariant(double tau, double distance) {
    double doubled = 2 * log1p(distance / tau);
    return {static_cast<float>(sqrt(1 + doubled)), static_cast<float>(-doubled)};
}

Slopes scale_invariant_slopes(double tau, double distance) {
    double slope = -distance / (tau * (distance + tau));
    return {slope / sqrt(1 + 2 * log1p(distance / tau)), -2 * slope};
}

OwnedLines make_lines(const Call& call, int64_t length) {
    return call.tau ? remembered_lines(call, length) : lines_of_tables(call, length);
}
