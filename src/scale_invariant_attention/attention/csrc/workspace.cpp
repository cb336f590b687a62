#include "workspace.h"

#include <stdlib.h>

#include <mutex>
#include <new>
#include <utility>

namespace {

constexpr size_t KEPT_AT_MOST = size_t(64) << 20;

std::mutex mutex;
char* kept = nullptr;
size_t kept_size = 0;

}  // namespace

Workspace::Workspace(size_t bytes) : memory_(nullptr), size_(rounded(bytes)), used_(0) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (kept && kept_size >= size_) {
            memory_ = std::exchange(kept, nullptr);
            size_ = kept_size;
        }
    }
    void* fresh = memory_;
    if (!fresh && posix_memalign(&fresh, 4096, size_ ? size_ : 64) != 0) throw std::bad_alloc();
    memory_ = static_cast<char*>(fresh);
}

Workspace::~Workspace() {
    char* unwanted = memory_;
    if (size_ <= KEPT_AT_MOST) {
        std::lock_guard<std::mutex> lock(mutex);
        if (!kept || kept_size < size_) {
            unwanted = std::exchange(kept, memory_);
            kept_size = size_;
        }
    }
    free(unwanted);
}

void* Workspace::take(size_t bytes) {
    void* piece = memory_ + used_;
    used_ += rounded(bytes);
    if (used_ > size_) throw std::bad_alloc();
    return piece;
}
