// The baseline of the architecture: vectors of 4 floats, which NEON and SSE2 both have. NEON has 32
// registers, SSE2 has 16. Built with SIA_PORTABLE_AS_AVX512, it has the tiles of AVX-512 instead, and with
// SIA_PORTABLE_AS_AVX512BF16 also its pairs of bfloat16: a way to test them on a machine without it.
#define SIA_ISA portable
#if defined(SIA_PORTABLE_AS_AVX512BF16)
#define SIA_PAIRS
#endif
#if defined(SIA_PORTABLE_AS_AVX512) || defined(SIA_PORTABLE_AS_AVX512BF16)
#define SIA_WIDTH 16
#define SIA_VECTORS 2
#define SIA_ROWS 12
#elif defined(__aarch64__)
#define SIA_WIDTH 4
#define SIA_VECTORS 4
#define SIA_ROWS 6
#else
#define SIA_WIDTH 4
#define SIA_VECTORS 2
#define SIA_ROWS 4
#endif
#define SIA_FORWARD_QUERIES 192
#define SIA_FORWARD_KEYS 128
#define SIA_FORWARD_STRIP 24
#define SIA_BACKWARD_QUERIES 96
#define SIA_BACKWARD_KEYS 96
#include "kernels.h"

SIA_DEFINE_KERNELS(portable_kernels);
