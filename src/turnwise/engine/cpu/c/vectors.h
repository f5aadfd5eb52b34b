/* Vectors as wide as the CPU's registers: compilers spill wider ones to memory. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define SUMS 8 /* accumulators that a loop keeps in registers */
#elif defined(__AVX__)
#define LANES 8
#define SUMS 8
#elif defined(__aarch64__)
#define LANES 4
#define SUMS 16
#else
#define LANES 4
#define SUMS 8
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4)));

#if LANES == 16
static const ints NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif LANES == 8
static const ints NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7};
#else
static const ints NUMBERS = {0, 1, 2, 3};
#endif

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec what) { *(vec *)to = what; }
INLINE vec all(float number) { return number - (vec){0}; }
INLINE vec choose(ints mask, vec one, vec other) { return (vec)((mask & (ints)one) | (~mask & (ints)other)); }
/* Returns `other` if either is NaN. */
INLINE vec larger(vec one, vec other) { return choose(one > other, one, other); }

/* e^x for x <= 0, 0 below -87, NaN for NaN: 2^n e^r with |r| <= ln 2 / 2, the latter by its series. */
INLINE vec exponential(vec x) {
    ints nothing = x < all(-87.0f);
    x = larger(all(-87.0f), x);
    vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec y = all(1.0f / 5040);
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    ints power = (__builtin_convertvector(n, ints) + 127) << 23;
    return choose(nothing, (vec){0}, y * (vec)power);
}

/* The largest and the sum of all lanes. */
INLINE float largest(vec what) {
    float top = what[0];
    for (int lane = 1; lane < LANES; lane++)
        top = what[lane] > top ? what[lane] : top;
    return top;
}
INLINE float total(vec what) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += what[lane];
    return sum;
}
