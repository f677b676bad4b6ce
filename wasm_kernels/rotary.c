/* Rotary position embedding: two features of a row, `half` apart, are turned by the angle of their position. Su et al.,
   "RoFormer" (2021). Each result is two products and their sum, rounded as such. */
#include "parallel.h"
#include "simd.h"

/* Start of row `i` of a tensor with these strides. */
TW_INLINE int64_t row_at(const int32_t i[3], const int32_t strides[3]) {
    return (int64_t)i[0] * strides[0] + (int64_t)i[1] * strides[1] + (int64_t)i[2] * strides[2];
}

/* y1 = x1 c1 - sign x2 s1, y2 = x2 c2 + sign x1 s2 */
TW_INLINE void turn_row(const float *x, float *y, const float *c1, const float *c2, const float *s1, const float *s2,
                        int32_t half, float sign) {
    int32_t k = 0;
    for (; k + 4 <= half; k += 4) {
        f32x4 x1 = load4(x + k), x2 = load4(x + half + k);
        f32x4 t1 = mul4(x2, mul4(splat(sign), load4(s1 + k))), t2 = mul4(x1, mul4(splat(sign), load4(s2 + k)));
        store4(y + k, sub4(mul4(x1, load4(c1 + k)), t1));
        store4(y + half + k, add4(mul4(x2, load4(c2 + k)), t2));
    }
    for (; k < half; k++) {
        float x1 = x[k], x2 = x[half + k];
        y[k] = x1 * c1[k] - x2 * (sign * s1[k]);
        y[half + k] = x2 * c2[k] + x1 * (sign * s2[k]);
    }
}

static void turn_rows(const void *args, int64_t lo, int64_t hi) {
    const rotary_f32_args *a = args;
    const int32_t *dims = a->dims;
    int32_t i[3] = {(int32_t)(lo / dims[2] / dims[1]), (int32_t)(lo / dims[2] % dims[1]), (int32_t)(lo % dims[2])};
    int32_t first = a->back ? a->sin_half : 0;
    for (int64_t row = lo; row < hi; row++) {
        const float *c = a->cos + row_at(i, a->cos_strides), *s = a->sin + row_at(i, a->sin_strides);
        turn_row(a->x + row_at(i, a->x_strides), a->y + row_at(i, a->y_strides), c, c + a->cos_half, s + first,
                 s + a->sin_half - first, a->half, a->back ? -1.0f : 1.0f);
        if (++i[2] == dims[2]) {
            i[2] = 0;
            if (++i[1] == dims[1]) i[1] = 0, i[0]++;
        }
    }
}

/* x, y: dims[0] x dims[1] x dims[2] rows of 2 half elements; cos and sin: rows of `half` elements for each of the two. */
int32_t kernel_rotary_f32(const rotary_f32_args *a) {
    parallel_ranges(turn_rows, a, (int64_t)a->dims[0] * a->dims[1] * a->dims[2], units_per_chunk(2 * (int64_t)a->half));
    return TW_OK;
}
