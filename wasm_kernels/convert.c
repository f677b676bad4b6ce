/* Half-precision floats: float16 and bfloat16 to float32 and back. Rounded to nearest even; every value of the narrow
   type is exact. */
#include "parallel.h"
#include "simd.h"
#include "unpack.h"

enum { CONVERT_CHUNK = 1 << 15 };

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

#define CONVERT(convert) \
    for (int64_t i = lo; i < hi; i++) ((uint16_t *)a->y)[i] = (uint16_t)convert(((const float *)a->x)[i])

static void convert_chunk(const void *args, int64_t lo, int64_t hi) {
    const convert_half_args *a = args;
    const packed_matrix narrow = {.x = a->x, .packing = a->conversion == HALF_TO_FLOAT ? PACKED_HALF : PACKED_BFLOAT};
    switch (a->conversion) {
    case FLOAT_TO_HALF: CONVERT(float_to_half); break;
    case FLOAT_TO_BFLOAT: CONVERT(float_to_bfloat); break;
    default: unpack_row(&narrow, 0, (int32_t)lo, (int32_t)(hi - lo), (float *)a->y + lo); break;
    }
}

int32_t kernel_convert_half(const convert_half_args *a) {
    parallel_ranges(convert_chunk, a, a->n, CONVERT_CHUNK);
    return TW_OK;
}
