// Memory for calls. The last workspace is kept for the next call unless it is large: fresh memory costs a
// page fault every 4 KiB.
#pragma once

#include <stddef.h>

class Workspace {
   public:
    explicit Workspace(size_t bytes);
    ~Workspace();
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    // The next piece, at a multiple of 64 bytes.
    void* take(size_t bytes);

    static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

   private:
    char* memory_;
    size_t size_, used_;
};
