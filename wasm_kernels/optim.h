/* Shared by optimizers and clipping. */
#ifndef OPTIM_H
#define OPTIM_H

#include "simd.h"
#include "state.h"

/* The sum of four floats that are sums of few terms each. */
TW_INLINE double wide_sum(f32x4 s) {
    v128_t low = wasm_f64x2_promote_low_f32x4(s), high = wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(s, s, 1, 1));
    v128_t d = wasm_f64x2_add(low, high);
    return wasm_f64x2_extract_lane(d, 0) + wasm_f64x2_extract_lane(d, 1);
}

/* The sum of x^2: blocks of 256 in float (16 terms per lane and accumulator), block sums in double. */
TW_INLINE double sum_squares(const float *x, int64_t n) {
    int64_t i = 0;
    double total = 0;
    while (i + 16 <= n) {
        int64_t block_end = min_i64(i + 256, n);
        f32x4 s0 = splat(0), s1 = splat(0), s2 = splat(0), s3 = splat(0);
        for (; i + 16 <= block_end; i += 16) {
            f32x4 x0 = load4(x + i), x1 = load4(x + i + 4), x2 = load4(x + i + 8), x3 = load4(x + i + 12);
            s0 = madd(x0, x0, s0);
            s1 = madd(x1, x1, s1);
            s2 = madd(x2, x2, s2);
            s3 = madd(x3, x3, s3);
        }
        total += wide_sum(add4(add4(s0, s1), add4(s2, s3)));
    }
    for (; i < n; i++) total += (double)x[i] * (double)x[i];
    return total;
}

/* Two sums of each chunk, as doubles in workspace of floats: four words a chunk. */
typedef struct {
    double first, second;
} two_sums;

TW_INLINE void put_sums(float *partial, int32_t chunk, two_sums sums) {
    tw_copy(partial + 4 * (int64_t)chunk, &sums, sizeof sums);
}

TW_INLINE two_sums total_of(const float *partial, int32_t n_chunks) {
    two_sums total = {0, 0};
    for (int32_t i = 0; i < n_chunks; i++) {
        two_sums part;
        tw_copy(&part, partial + 4 * (int64_t)i, sizeof part);
        total.first += part.first;
        total.second += part.second;
    }
    return total;
}

#endif
