// Work items over torch's own threads: a second pool would compete with torch for the cores.
#pragma once

#include <stddef.h>
#include <stdint.h>

// One thread's part of the work: take items until none is left.
typedef void (*Work)(void* context, int64_t thread);

void run_on_threads(int64_t threads, Work work, void* context);

// torch's own GOMP_parallel, or null to start threads for every call.
void set_parallel(void* gomp_parallel);

// Call item(i, memory) for i in [0, items); `memory` has `bytes` for each thread.
template <class Item>
void parallel_items(int64_t threads, int64_t items, char* memory, size_t bytes, Item item) {
    struct Shared {
        int64_t items, next;
        char* memory;
        size_t bytes;
        Item* item;
    } shared = {items, 0, memory, bytes, &item};
    auto work = [](void* context, int64_t thread) {
        Shared& s = *static_cast<Shared*>(context);
        for (;;) {
            int64_t i = __atomic_fetch_add(&s.next, 1, __ATOMIC_RELAXED);
            if (i >= s.items) return;
            (*s.item)(i, s.memory + thread * s.bytes);
        }
    };
    run_on_threads(threads < items ? threads : items, work, &shared);
}
