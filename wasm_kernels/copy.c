/* Copies and fills. */
#include "parallel.h"
#include "simd.h"

int32_t kernel_copy(const copy_args *a) {
    tw_move(a->dst, a->src, (size_t)a->n);
    return TW_OK;
}

int32_t kernel_fill_f32(const fill_f32_args *a) {
    f32x4 value = splat(a->value);
    int32_t i = 0;
    for (; i + 4 <= a->n; i += 4) store4(a->dst + i, value);
    for (; i < a->n; i++) a->dst[i] = a->value;
    return TW_OK;
}
