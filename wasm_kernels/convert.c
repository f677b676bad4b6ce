/* Half-precision floats: float16 and bfloat16 to float32 and back. Rounded to nearest even; every value of the narrow
   type is exact. */
#include "parallel.h"
#include "simd.h"

enum { CONVERT_CHUNK = 1 << 15 };

/* A float32 from the bits of a float16: a product moves the exponent, which makes subnormals normal. */
static float half_to_float(uint32_t half) {
    uint32_t sign = (half & 0x8000) << 16, rest = half & 0x7FFF;
    if (rest >= 0x7C00) {
        union { uint32_t u; float f; } special = {sign | 0x7F800000 | (rest & 0x3FF) << 13};
        return special.f;
    }
    union { uint32_t u; float f; } moved = {rest << 13};
    moved.f *= 0x1p112f;
    moved.u |= sign;
    return moved.f;
}

static float bfloat_to_float(uint32_t half) {
    union { uint32_t u; float f; } wide = {half << 16};
    return wide.f;
}

/* Below 2^-14 a float16 is a multiple of 2^-24: added to 0.5, whose last bit that is, the sum rounds it. */
static uint32_t float_to_half(float x) {
    union { float f; uint32_t u; } bits = {x};
    uint32_t sign = bits.u >> 16 & 0x8000, rest = bits.u & 0x7FFFFFFF;
    if (rest > 0x7F800000) return sign | 0x7E00;
    if (rest >= 0x477FF000) return sign | 0x7C00; /* 65520 and more round to infinity */
    if (rest < 0x38800000) {
        union { uint32_t u; float f; } small = {rest};
        small.f += 0.5f;
        return sign | (small.u - 0x3F000000);
    }
    return sign | (rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13;
}

static uint32_t float_to_bfloat(float x) {
    union { float f; uint32_t u; } bits = {x};
    if ((bits.u & 0x7FFFFFFF) > 0x7F800000) return (bits.u >> 16 & 0x8000) | 0x7FC0;
    return (bits.u + 0x7FFF + (bits.u >> 16 & 1)) >> 16;
}

#define CONVERT(convert, to, from) \
    for (int32_t i = lo; i < hi; i++) ((to *)a->y)[i] = (to)convert(((const from *)a->x)[i])

static void convert_chunk(const void *args, int32_t chunk) {
    const convert_half_args *a = args;
    int32_t lo = chunk * CONVERT_CHUNK, hi = min_i32(lo + CONVERT_CHUNK, a->n);
    switch (a->conversion) {
    case HALF_TO_FLOAT: CONVERT(half_to_float, float, uint16_t); break;
    case BFLOAT_TO_FLOAT: CONVERT(bfloat_to_float, float, uint16_t); break;
    case FLOAT_TO_HALF: CONVERT(float_to_half, uint16_t, float); break;
    default: CONVERT(float_to_bfloat, uint16_t, float); break;
    }
}

int32_t kernel_convert_half(const convert_half_args *a) {
    parallel_for(convert_chunk, a, chunk_count(a->n, CONVERT_CHUNK));
    return TW_OK;
}
