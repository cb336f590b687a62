// AVX2 with FMA: 16 registers of 8 floats, 12 of them sums.
#if defined(__x86_64__)
#define SIA_ISA avx2
#define SIA_WIDTH 8
#define SIA_VECTORS 2
#define SIA_ROWS 6
#define SIA_FORWARD_QUERIES 192
#define SIA_FORWARD_KEYS 256
#define SIA_FORWARD_STRIP 24
#define SIA_BACKWARD_QUERIES 96
#define SIA_BACKWARD_KEYS 96
#include "kernels.h"

SIA_DEFINE_KERNELS(avx2_kernels);

#endif
