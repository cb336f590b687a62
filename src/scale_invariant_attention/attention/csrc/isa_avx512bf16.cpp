// AVX-512 with dot products of bfloat16: calls in bfloat16 multiply pairs, all others are as in AVX-512.
#if defined(__x86_64__)
#define SIA_ISA avx512bf16
#define SIA_PAIRS
#define SIA_WIDTH 16
#define SIA_VECTORS 2
#define SIA_ROWS 12
#define SIA_FORWARD_QUERIES 192
#define SIA_FORWARD_KEYS 128
#define SIA_FORWARD_STRIP 24
#define SIA_BACKWARD_QUERIES 96
#define SIA_BACKWARD_KEYS 96
#include "kernels.h"

SIA_DEFINE_KERNELS(avx512bf16_kernels);

#endif
