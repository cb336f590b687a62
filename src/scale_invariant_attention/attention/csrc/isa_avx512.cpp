// AVX-512: 32 registers of 16 floats, 24 of them sums.
#if defined(__x86_64__)
#define SIA_ISA avx512
#define SIA_WIDTH 16
#define SIA_VECTORS 2
#define SIA_ROWS 12
#define SIA_FORWARD_QUERIES 192
#define SIA_FORWARD_KEYS 128
#define SIA_FORWARD_STRIP 24
#define SIA_BACKWARD_QUERIES 96
#define SIA_BACKWARD_KEYS 96
#include "kernels.h"

SIA_DEFINE_KERNELS(avx512_kernels);

#endif
