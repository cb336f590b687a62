// A vector of SIA_WIDTH floats in the compiler's own vector types: the flags of the file that includes
// this decide which instructions it becomes. Every function is inside the namespace of that file, so
// that code compiled for one instruction set is never linked into another.
#pragma once

#include <stdint.h>
#include <string.h>

#include <utility>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#if !defined(__GNUC__)
#error "the kernels are written in the vector types of GCC and Clang"
#endif

#define SIA_METHOD inline __attribute__((always_inline))
#define SIA_INLINE static SIA_METHOD

namespace SIA_ISA {

constexpr int WIDTH = SIA_WIDTH;

typedef float Vec __attribute__((vector_size(WIDTH * 4)));
typedef int32_t IntVec __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t Halves __attribute__((vector_size(WIDTH * 2)));

SIA_INLINE Vec load(const float* from) {
    Vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

SIA_INLINE void store(float* to, Vec v) { memcpy(to, &v, sizeof v); }

// bfloat16 is the upper half of a float32.
struct Bfloat16 {
    uint16_t bits;
};

SIA_INLINE float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

SIA_INLINE float widened(Bfloat16 x) { return from_bits(uint32_t(x.bits) << 16); }

SIA_INLINE Vec widened(Halves halves) {
    // Without intrinsics GCC converts one half of a vector after the other. The mask keeps all elements;
    // without it, GCC warns of a value that is never used.
#if SIA_WIDTH == 16 && defined(__AVX512F__)
    return (Vec)((IntVec)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)halves) << 16);
#elif SIA_WIDTH == 8 && defined(__AVX2__)
    return (Vec)((IntVec)_mm256_cvtepu16_epi32((__m128i)halves) << 16);
#else
    return (Vec)(__builtin_convertvector(halves, IntVec) << 16);
#endif
}

SIA_INLINE Vec load(const Bfloat16* from) {
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    return widened(halves);
}

SIA_INLINE Vec splat(float x) { return x - Vec{}; }

// Fewer elements than a vector has, followed by zeros.
template <class Stored>
SIA_INLINE Vec load_few(const Stored* from, int64_t count) {
    Stored padded[WIDTH] = {};
    memcpy(padded, from, count * sizeof(Stored));
    return load(padded);
}

// The greater of two; NaN in `b` is kept, NaN in `a` gives `b`.
SIA_INLINE Vec max(Vec a, Vec b) {
#if SIA_WIDTH == 8 && defined(__AVX__)
    return _mm256_max_ps(a, b);  // which GCC does not find on its own
#else
    return a > b ? a : b;
#endif
}

// Reduce a vector to one number by halving; `two` combines numbers or vectors.
template <class Two>
SIA_INLINE float folded(Vec v, Two two) {
#if defined(__AVX__) && (SIA_WIDTH == 8 || defined(__AVX512DQ__))
    // GCC would extract and combine one number after the other.
#if SIA_WIDTH == 16
    // With the mask, as above, GCC does not warn.
    __m256 eight =
        two(_mm512_maskz_extractf32x8_ps(0xff, v, 0), _mm512_maskz_extractf32x8_ps(0xff, v, 1));
#else
    __m256 eight = v;
#endif
    __m128 four = two(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = two(four, _mm_movehl_ps(four, four));
    return two(four, _mm_movehdup_ps(four))[0];
#else
    float parts[WIDTH];
    memcpy(parts, &v, sizeof v);
#pragma GCC unroll 4
    for (int half = WIDTH / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) parts[i] = two(parts[i], parts[i + half]);
    return parts[0];
#endif
}

SIA_INLINE float highest(Vec v) {
    return folded(v, [](auto a, auto b) { return a > b ? a : b; });
}

SIA_INLINE float sum(Vec v) {
    return folded(v, [](auto a, auto b) { return a + b; });
}

// Two numbers in bfloat16, neighbours along the depth of a product.
struct Pair {
    Bfloat16 first, second;
};

// sums + first * first + second * second, by element of two vectors of pairs.
SIA_INLINE Vec add_products(Vec sums, IntVec a, IntVec b) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b);
#else
    const int32_t upper = int32_t(0xffff0000);
    sums += (Vec)(a & upper) * (Vec)(b & upper);
    return sums + (Vec)(a << 16) * (Vec)(b << 16);
#endif
}

SIA_INLINE Vec add_products(Vec sums, Vec a, Vec b) { return sums + a * b; }

// The nearest numbers in bfloat16; of two equally near ones the even one.
SIA_INLINE Halves rounded(Vec v) {
    Halves halves;
#if defined(__AVX512BF16__)
    __m256bh nearest = _mm512_cvtneps_pbh(v);
    memcpy(&halves, &nearest, sizeof halves);
#else
    typedef uint32_t Bits __attribute__((vector_size(WIDTH * 4)));
    Bits bits = (Bits)v, nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding might carry the bits of a NaN into its sign.
    nearest = v == v ? nearest : nearest - nearest + 0x7fc0;
    halves = __builtin_convertvector(nearest, Halves);
#endif
    return halves;
}

// Pairs of the elements of two vectors, rounded.
SIA_INLINE IntVec paired(Halves first, Halves second) {
    return __builtin_convertvector(first, IntVec) | (__builtin_convertvector(second, IntVec) << 16);
}

SIA_INLINE void store_pairs(Pair* to, IntVec pairs) { memcpy(to, &pairs, sizeof pairs); }

// In a row of pairs, the numbers from `column` on.
SIA_INLINE void store_halves(Pair* row, int64_t column, Halves halves) {
    memcpy(reinterpret_cast<uint16_t*>(row) + column, &halves, sizeof halves);
}

// One step of a transposition: swap the squares of `SIZE` across the diagonal, for rows SIZE apart.
template <int SIZE, int... N>
SIA_INLINE void swap_squares(Vec* a, Vec* b, std::integer_sequence<int, N...>) {
#if defined(__clang__)
    Vec low = __builtin_shufflevector(*a, *b, (N & SIZE ? N - SIZE + WIDTH : N)...);
    Vec high = __builtin_shufflevector(*a, *b, (N & SIZE ? N + WIDTH : N + SIZE)...);
#else
    Vec low = __builtin_shuffle(*a, *b, IntVec{(N & SIZE ? N - SIZE + WIDTH : N)...});
    Vec high = __builtin_shuffle(*a, *b, IntVec{(N & SIZE ? N + WIDTH : N + SIZE)...});
#endif
    *a = low;
    *b = high;
}

// Transpose: swap squares of 1, 2, 4 and so on across the diagonal.
template <int SIZE = 1>
SIA_INLINE void transpose(Vec (&rows)[WIDTH]) {
    if constexpr (SIZE < WIDTH) {
#pragma GCC unroll 16
        for (int n = 0; n < WIDTH; ++n)
            if (!(n & SIZE))
                swap_squares<SIZE>(&rows[n], &rows[n + SIZE],
                                   std::make_integer_sequence<int, WIDTH>());
        transpose<2 * SIZE>(rows);
    }
}

// The sums of four vectors. Each step halves what is left of a vector and doubles the vectors in it.
SIA_INLINE void sum_four(Vec (&rows)[4], float* sums) {
    constexpr auto indices = std::make_integer_sequence<int, WIDTH>();
    swap_squares<1>(&rows[0], &rows[1], indices);
    swap_squares<1>(&rows[2], &rows[3], indices);
    Vec first = rows[0] + rows[1], second = rows[2] + rows[3];
    swap_squares<2>(&first, &second, indices);
    Vec mixed = first + second;
    typedef float Four __attribute__((vector_size(16)));
    Four parts[WIDTH / 4];
    memcpy(parts, &mixed, sizeof mixed);
#pragma GCC unroll 2
    for (int half = WIDTH / 8; half > 0; half /= 2)
#pragma GCC unroll 2
        for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
    memcpy(sums, parts, sizeof(Four));
}

// NaN with no other bits set, as arithmetic makes it: `exp` takes no other, but users and casts from half
// precision may have some.
SIA_INLINE Vec plain_nan(Vec v) { return v == v ? v : splat(__builtin_nanf("")); }

// exp(x) for x <= 88, to about 1 + |x| / 2 ulp: the error that rounding x alone would cause.
// Exactly 1 at 0, exactly 0 at -88.1 and below (so at -inf), NaN at plain NaN; shortly above -88 a denormal
// number of the right size.
SIA_INLINE Vec exp(Vec x) {
    const float log2_e = 1.44269504f, lowest = -127.0f, to_integer = 12582912.0f;  // 1.5 * 2^23
    // A power of two, whose exponent is split into an integer and a fraction.
    x = max(splat(lowest), x * log2_e);
    Vec shifted = x + to_integer;
    Vec fraction = x - (shifted - to_integer);
    Vec power = fraction * 0.00132647273f + 0.00967151279f;
    power = power * fraction + 0.0555073374f;
    power = power * fraction + 0.240222421f;
    power = power * fraction + 0.693146978f;
    power = power * fraction + 1.0f;
    // Add the integer, which is in the low bits of `shifted`, to the exponent.
    return (Vec)((IntVec)power + ((IntVec)shifted << 23));
}

SIA_INLINE Vec square_root(Vec v) {
#if SIA_WIDTH == 16 && defined(__AVX512F__)
    return _mm512_maskz_sqrt_ps(0xffff, v);  // GCC 12 warns of _mm512_sqrt_ps
#elif SIA_WIDTH == 8 && defined(__AVX__)
    return _mm256_sqrt_ps(v);
#else
    for (int i = 0; i < WIDTH; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

// log(1 + x) for 0 <= x < 1e38, to about 1 ulp.
SIA_INLINE Vec log1p(Vec x) {
    const int32_t half_root = 0x3f3504f3;  // sqrt(0.5)
    // What rounding of the sum lost, as a fraction of it. A rough reciprocal is enough for that, but it must
    // be exact at 1: there, all of a small x is lost.
    Vec sum = x + 1.0f, lost = (x - (sum - 1.0f)) * (Vec)(0x7f000000 - (IntVec)sum);
    // A power of two times a fraction from sqrt(0.5) to sqrt(2).
    IntVec bits = (IntVec)sum - half_root;
    Vec exponent = __builtin_convertvector(bits >> 23, Vec);
    Vec f = (Vec)((bits & 0x7fffff) + half_root) - 1.0f, square = f * f;
    Vec series = f * 7.0376836292e-2f - 1.1514610310e-1f;
    series = series * f + 1.1676998740e-1f;
    series = series * f - 1.2420140846e-1f;
    series = series * f + 1.4249322787e-1f;
    series = series * f - 1.6668057665e-1f;
    series = series * f + 2.0000714765e-1f;
    series = series * f - 2.4999993993e-1f;
    series = series * f + 3.3333331174e-1f;
    // log(2) in two parts, of which the first is exact in any product with an exponent.
    Vec low = series * f * square - exponent * 2.12194440e-4f - square * 0.5f;
    return (f + (low + lost)) + exponent * 0.693359375f;
}

}  // namespace SIA_ISA
