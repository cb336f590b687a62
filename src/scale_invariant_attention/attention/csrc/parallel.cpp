#include "parallel.h"

#include <system_error>
#include <thread>
#include <vector>

namespace {

typedef void (*GompParallel)(void (*)(void*), void*, unsigned, unsigned);
GompParallel gomp_parallel = nullptr;

struct Team {
    Work work;
    void* context;
    int64_t next;
};

void join_team(void* data) {
    Team& team = *static_cast<Team*>(data);
    team.work(team.context, __atomic_fetch_add(&team.next, 1, __ATOMIC_RELAXED));
}

}  // namespace

void set_parallel(void* function) { gomp_parallel = reinterpret_cast<GompParallel>(function); }

void run_on_threads(int64_t threads, Work work, void* context) {
    Team team = {work, context, 0};
    if (threads <= 1) {
        join_team(&team);
    } else if (gomp_parallel) {
        gomp_parallel(join_team, &team, static_cast<unsigned>(threads), 0);
    } else {
        std::vector<std::thread> others;
        others.reserve(threads);
        try {
            for (int64_t n = 1; n < threads; ++n) others.emplace_back(join_team, &team);
        } catch (const std::system_error&) {
            // No more threads available: the existing ones process all items.
        }
        join_team(&team);
        for (std::thread& other : others) other.join();
    }
}
