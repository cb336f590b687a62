// The functions that Python calls. Each returns 0 or an error code.
#include <string.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <vector>

#include "lines.h"
#include "parallel.h"
#include "plan.h"
#include "workspace.h"

#define SIA_EXPORT extern "C" __attribute__((visibility("default")))

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels, avx512_kernels, avx512bf16_kernels;
#endif

namespace {

constexpr int OUT_OF_MEMORY = 1, FAILED = 2;
// Version of the functions and of the meaning of Call; Python refuses any other.
constexpr int64_t INTERFACE = 4;
// Keys and values are packed for as many heads at a time as fit into this, at least one.
constexpr int64_t PACKED_AT_MOST = int64_t(32) << 20;
// With tau, greater distances are computed pair by pair, because positions can be arbitrarily far apart.
// A line pays off if it is shorter than a quarter of the pairs, as long as it fits into memory.
constexpr int64_t LINES_AT_LEAST = 1 << 16, LINES_FOR_PAIRS_AT_MOST = 1 << 21, PAIRS_PER_DISTANCE = 4;
// Multiply-adds that one thread finishes before a second one has woken up.
constexpr double WORTH_A_THREAD = 2e5;
// Keys in a part of the cache.
constexpr int64_t PART = 2048;

bool runs(const Kernels& kernels) {
#if defined(__x86_64__)
    if (&kernels == &avx2_kernels)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (&kernels == &avx512bf16_kernels && !__builtin_cpu_supports("avx512bf16")) return false;
    if (&kernels == &avx512_kernels || &kernels == &avx512bf16_kernels)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return &kernels == &portable_kernels;
}

// The best first.
const Kernels* const ALL[] = {
#if defined(__x86_64__)
    &avx512bf16_kernels,
    &avx512_kernels,
    &avx2_kernels,
#endif
    &portable_kernels,
};

const Kernels*& chosen() {
    static const Kernels* kernels = *std::find_if(
        std::begin(ALL), std::end(ALL), [](const Kernels* k) { return runs(*k); });
    return kernels;
}

int64_t ceil_divide(int64_t n, int64_t by) { return (n + by - 1) / by; }

int64_t useful_threads(const Call& call) {
    double work = double(call.batch) * call.query_heads * call.query_length * call.key_length *
                  (call.head_size + call.value_size);
    return std::max<int64_t>(1, std::min<int64_t>(call.threads, int64_t(work / WORTH_A_THREAD)));
}

// The number of distances in the lines of a call.
int64_t lines_length(const Geometry& geometry) {
    const Call& call = *geometry.call;
    // Between tokens with coordinates, the transform is computed pair by pair.
    if (call.visibility.key_coordinates.data) return call.tau ? 1 : call.table_length;
    int64_t length = greatest_distance(geometry) + 1;
    if (!call.tau) return std::min(length, call.table_length);
    int64_t paid_off = call.query_length * call.key_length / PAIRS_PER_DISTANCE;
    return std::min(length, std::max({LINES_AT_LEAST, 2 * (call.query_length + call.key_length),
                                      std::min(paid_off, LINES_FOR_PAIRS_AT_MOST)}));
}

// Coordinates in floats. Tiles read whole panels, beyond the last token too.
Points make_points(const Call& call, const Integers& given, int64_t length, std::vector<float>& memory) {
    if (!given.data) return {};
    int64_t dimension = length + LINE_MARGIN, batch = given.row ? call.batch : 1;
    memory.assign(batch * call.dimensions * dimension, 0.0f);
    for (int64_t n = 0; n < batch * call.dimensions; ++n)
        std::copy_n(given.data + n * length, length, memory.data() + n * dimension);
    return {memory.data(), given.row ? call.dimensions * dimension : 0, dimension};
}

// What the plan points to, for gain and bias.
struct OwnedAffine {
    OwnedLines lines;
    std::vector<float> query_points, key_points;
};

void plan_affine(Plan& plan, OwnedAffine& owned) {
    const Call& call = plan.call;
    plan.query_points = make_points(call, call.visibility.query_coordinates, call.query_length,
                                    owned.query_points);
    plan.key_points =
        make_points(call, call.visibility.key_coordinates, call.key_length, owned.key_points);
    int64_t length = lines_length(plan.geometry);
    owned.lines = make_lines(plan.call, length);
    plan.lines = owned.lines.lines;
    // Cached lines may be longer, but the gradients have room for only these distances.
    plan.lines.length = length;
    plan.far = plan.call.tau && greatest_distance(plan.geometry) >= plan.lines.length;
}

// The ways to process a cache in parts: row by row, or with packed keys.
struct InParts {
    int64_t query_block, key_block;
    size_t (*bytes)(const Plan&);
    void (*item)(const Plan&, int64_t item, void* memory);
};

void in_parts(Plan& plan, const InParts& way, const Kernels& kernels, int64_t threads) {
    const Call& call = plan.call;
    size_t geometry_size = geometry_bytes(call, way.query_block, way.key_block);
    plan.part = PART / way.key_block;
    plan.parts = std::max<int64_t>(1, ceil_divide(call.key_length, PART));
    int64_t heads = call.batch * call.key_heads, rows = plan.group * call.query_length;
    size_t partial = heads * plan.parts * rows * kernels.partial_floats(call) * sizeof(float);
    size_t each = Workspace::rounded(way.bytes(plan));
    Workspace workspace(Workspace::rounded(geometry_size) + Workspace::rounded(partial) +
                        threads * each);
    plan.geometry = make_geometry(call, way.query_block, way.key_block, workspace.take(geometry_size));
    plan.partial = static_cast<float*>(workspace.take(partial));
    char* memory = static_cast<char*>(workspace.take(threads * each));
    OwnedAffine owned;
    plan_affine(plan, owned);
    parallel_items(threads, heads * plan.parts, memory, each,
                   [&](int64_t i, void* m) { way.item(plan, i, m); });
    parallel_items(1, heads * rows, memory, 0, [&](int64_t i, void* m) { kernels.merge(plan, i, m); });
}

void forward(Plan& plan, const Kernels& kernels, int64_t threads) {
    const Call& call = plan.call;
    int64_t heads = call.batch * call.key_heads;
    size_t geometry_size = geometry_bytes(call, kernels.query_block, kernels.key_block);
    int64_t blocks = ceil_divide(call.key_length, kernels.key_block);
    size_t keys = Workspace::rounded(kernels.packed_key_floats(call) * sizeof(float));
    size_t values = Workspace::rounded(kernels.packed_value_floats(call) * sizeof(float));
    size_t flags = blocks * (kernels.key_block + 1);
    int64_t wave = std::min(heads, std::max<int64_t>(1, PACKED_AT_MOST / (keys + values)));
    size_t each = Workspace::rounded(std::max(kernels.pack_bytes(plan), kernels.forward_bytes(plan)));
    Workspace workspace(Workspace::rounded(geometry_size) + wave * (keys + values) +
                        Workspace::rounded(wave * flags) + threads * each);
    plan.geometry =
        make_geometry(call, kernels.query_block, kernels.key_block, workspace.take(geometry_size));
    plan.packed_keys = static_cast<float*>(workspace.take(wave * keys));
    plan.packed_values = static_cast<float*>(workspace.take(wave * values));
    plan.bad_keys = static_cast<uint8_t*>(workspace.take(wave * flags));
    plan.bad_blocks = plan.bad_keys + wave * blocks * kernels.key_block;
    char* memory = static_cast<char*>(workspace.take(threads * each));
    OwnedAffine owned;
    plan_affine(plan, owned);
    for (plan.first_head = 0; plan.first_head < heads; plan.first_head += wave) {
        plan.heads = std::min(wave, heads - plan.first_head);
        parallel_items(threads, plan.heads * blocks, memory, each,
                       [&](int64_t i, void* m) { kernels.pack(plan, i, m); });
        parallel_items(threads, plan.heads * plan.group * plan.geometry.query_blocks, memory, each,
                       [&](int64_t i, void* m) { kernels.forward(plan, i, m); });
    }
}

// The number of work items that share a head, chosen so that threads have equal work.
int64_t slots_for(int64_t heads, int64_t threads, int64_t key_blocks) {
    int64_t slots = 1;
    while (heads * slots % threads != 0 && heads * slots < 8 * threads) ++slots;
    return std::min(slots, std::max<int64_t>(1, key_blocks));
}

// Sum the slots in order: the queries' gradients, and the affine's by head and distance.
void sum_slots(const Plan& plan, int64_t threads) {
    const Call& call = plan.call;
    int64_t heads = call.batch * call.query_heads, floats = call.query_length * call.head_size;
    if (plan.slots > 1)
        parallel_items(threads, heads, nullptr, 0, [&](int64_t head, void*) {
            for (int64_t slot = 1; slot < plan.slots; ++slot) {
                const float* from = plan.slot_grad_query + ((slot - 1) * heads + head) * floats;
                float* to = call.grad_query + head * floats;
                for (int64_t i = 0; i < floats; ++i) to[i] += from[i];
            }
        });
    if (!plan.affine_grads) return;
    int64_t length = std::min(plan.lines.length, call.affine_length);
    for (int64_t n = 0; n < plan.slots * heads; ++n) {
        int64_t head = n % heads % call.query_heads;
        const double* gains = plan.line_grads + n * 2 * plan.line_size + LINE_MARGIN + plan.lines.length - 1;
        const double* biases = gains + plan.line_size;
        double* to = call.grad_affine + head * 2 * call.affine_length;
        for (int64_t t = 0; t < length; ++t) {
            bool both = t > 0 && !call.visibility.is_causal;
            to[t] += gains[-t] + (both ? gains[t] : 0);
            to[call.affine_length + t] += biases[-t] + (both ? biases[t] : 0);
        }
        call.grad_far_tau[head] += plan.far_grads[n];
    }
}

void backward(Plan& plan, const Kernels& kernels, int64_t threads) {
    const Call& call = plan.call;
    int64_t query_block = kernels.backward_query_block, key_block = kernels.backward_key_block;
    int64_t heads = call.batch * call.query_heads;
    plan.slots = slots_for(call.batch * call.key_heads, threads, ceil_divide(call.key_length, key_block));
    size_t geometry_size = geometry_bytes(call, query_block, key_block);
    size_t slot_floats = (plan.slots - 1) * heads * call.query_length * call.head_size;

    // The lines first: the workspace depends on their length.
    std::vector<Block> blocks(geometry_size / sizeof(Block));
    plan.geometry = make_geometry(call, query_block, key_block, blocks.data());
    OwnedAffine owned;
    plan_affine(plan, owned);
    plan.affine_grads = call.grad_affine != nullptr;
    plan.line_size = line_size(plan.lines.length, call.visibility.is_causal);
    size_t affine = plan.affine_grads ? plan.slots * heads * (2 * plan.line_size + 1) : 0;
    size_t each = Workspace::rounded(kernels.backward_bytes(plan));
    Workspace workspace(Workspace::rounded(slot_floats * sizeof(float)) +
                        Workspace::rounded(affine * sizeof(double)) + threads * each);
    plan.slot_grad_query = static_cast<float*>(workspace.take(slot_floats * sizeof(float)));
    void* sums = workspace.take(affine * sizeof(double));
    if (plan.affine_grads) {
        memset(sums, 0, affine * sizeof(double));
        plan.line_grads = static_cast<double*>(sums);
        plan.far_grads = plan.line_grads + plan.slots * heads * 2 * plan.line_size;
    }
    char* memory = static_cast<char*>(workspace.take(threads * each));
    parallel_items(threads, call.batch * call.key_heads * plan.slots, memory, each,
                   [&](int64_t i, void* m) { kernels.backward(plan, i, m); });
    sum_slots(plan, threads);
}

Plan plan_of(const Call& call) {
    Plan plan = {};
    plan.call = call;
    plan.group = call.query_heads / call.key_heads;
    plan.geometry.call = &call;
    return plan;
}

template <class Body>
int guarded(Body body) {
    try {
        body();
        return 0;
    } catch (const std::bad_alloc&) {
        return OUT_OF_MEMORY;
    } catch (...) {
        return FAILED;
    }
}

double seconds() {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

}  // namespace

SIA_EXPORT int64_t sia_interface() { return INTERFACE; }

SIA_EXPORT int64_t sia_call_size() { return sizeof(Call); }

SIA_EXPORT void sia_set_parallel(void* gomp_parallel) { set_parallel(gomp_parallel); }

SIA_EXPORT const char* sia_instruction_set() { return chosen()->name; }

// The n-th compiled instruction set, null after the last; `runs` is set to whether it can run here.
SIA_EXPORT const char* sia_compiled(int64_t n, int* can_run) {
    if (n >= int64_t(std::size(ALL))) return nullptr;
    *can_run = runs(*ALL[n]);
    return ALL[n]->name;
}

SIA_EXPORT int sia_choose(const char* name) {
    for (const Kernels* kernels : ALL)
        if (strcmp(kernels->name, name) == 0 && runs(*kernels)) {
            chosen() = kernels;
            return 0;
        }
    return 1;
}

SIA_EXPORT int sia_forward(const Call* call) {
    return guarded([&] {
        Plan plan = plan_of(*call);
        const Kernels& kernels = *chosen();
        int64_t threads = useful_threads(*call);
        bool few = plan.group * call->query_length <= kernels.decode_rows;
        if (call->query_length == 1 || (few && call->key_length > kernels.decode_block))
            in_parts(plan, {1, kernels.decode_block, kernels.decode_bytes, kernels.decode}, kernels,
                     threads);
        else if (call->query_length <= kernels.query_block && call->key_length > PART)
            in_parts(plan, {kernels.query_block, kernels.key_block, kernels.chunk_bytes, kernels.chunk},
                     kernels, threads);
        else
            forward(plan, kernels, threads);
    });
}

SIA_EXPORT int sia_backward(const Call* call) {
    return guarded([&] {
        Plan plan = plan_of(*call);
        backward(plan, *chosen(), useful_threads(*call));
    });
}

// The number of distances that the gradients of a call's affine need.
SIA_EXPORT int64_t sia_affine_length(const Call* call) {
    int64_t length = 0;
    int failed = guarded([&] {
        std::vector<Block> blocks(geometry_bytes(*call, 64, 64) / sizeof(Block));
        length = lines_length(make_geometry(*call, 64, 64, blocks.data()));
    });
    return failed ? -1 : length;
}

// Multiply-adds in registers: operations per second.
SIA_EXPORT double sia_multiply_add_rate(int64_t threads, int64_t rounds) {
    const Kernels& kernels = *chosen();
    double start = seconds();
    parallel_items(threads, threads, nullptr, 0, [&](int64_t, void*) { kernels.multiply_add(rounds); });
    return double(kernels.operations_a_round) * rounds * threads / (seconds() - start);
}

// Reading memory, one part per thread: bytes per second.
SIA_EXPORT double sia_read_rate(int64_t threads, const float* from, int64_t count) {
    const Kernels& kernels = *chosen();
    int64_t part = count / (threads * 16);
    double start = seconds();
    parallel_items(threads, threads * 16, nullptr, 0, [&](int64_t i, void*) {
        volatile float sink = kernels.read(from + i * part, part);
        (void)sink;
    });
    return double(part) * threads * 16 * sizeof(float) / (seconds() - start);
}
