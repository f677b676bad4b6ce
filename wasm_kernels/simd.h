/* Four floats at a time. V8 keeps 15 vectors in registers; one more and a loop runs at half speed. */
#ifndef SIMD_H
#define SIMD_H

#include <wasm_simd128.h>

#include "guard.h"

typedef v128_t f32x4;

TW_INLINE f32x4 load4(const float *p) { return wasm_v128_load(p); }
TW_INLINE void store4(float *p, f32x4 x) { wasm_v128_store(p, x); }
TW_INLINE f32x4 splat(float x) { return wasm_f32x4_splat(x); }
TW_INLINE f32x4 load_splat(const float *p) { return wasm_v128_load32_splat(p); }
TW_INLINE f32x4 add4(f32x4 a, f32x4 b) { return wasm_f32x4_add(a, b); }
TW_INLINE f32x4 sub4(f32x4 a, f32x4 b) { return wasm_f32x4_sub(a, b); }
TW_INLINE f32x4 mul4(f32x4 a, f32x4 b) { return wasm_f32x4_mul(a, b); }
TW_INLINE f32x4 div4(f32x4 a, f32x4 b) { return wasm_f32x4_div(a, b); }

/* A constant, hidden from the compiler: it stays in a register or on the stack throughout a loop. For a whole polynomial
   that is a third cheaper than the code that V8 generates for each v128.const. */
TW_INLINE v128_t held4(v128_t v) {
    __asm__("" : "+r"(v));
    return v;
}
TW_INLINE f32x4 held(float c) { return held4(splat(c)); }

/* a * b + c; one rounding in the relaxed builds where the machine has FMA, two in the reproducible ones. */
TW_INLINE f32x4 madd(f32x4 a, f32x4 b, f32x4 c) {
#ifdef TW_RELAXED
    return wasm_f32x4_relaxed_madd(a, b, c);
#else
    return wasm_f32x4_add(wasm_f32x4_mul(a, b), c);
#endif
}

/* c - a * b */
TW_INLINE f32x4 nmadd(f32x4 a, f32x4 b, f32x4 c) {
#ifdef TW_RELAXED
    return wasm_f32x4_relaxed_nmadd(a, b, c);
#else
    return wasm_f32x4_sub(c, wasm_f32x4_mul(a, b));
#endif
}

/* mask ? a : b, lane by lane; the mask is all ones or all zeros, for which the relaxed blend is exact. */
TW_INLINE f32x4 select4(v128_t mask, f32x4 a, f32x4 b) {
#ifdef TW_RELAXED
    return wasm_i32x4_relaxed_laneselect(a, b, mask);
#else
    return wasm_v128_bitselect(a, b, mask);
#endif
}

/* Bytes of x at the places 0 to 15 in the bytes of `at`. */
TW_INLINE v128_t swizzle(v128_t x, v128_t at) {
#ifdef TW_RELAXED
    return wasm_i8x16_relaxed_swizzle(x, at);
#else
    return wasm_i8x16_swizzle(x, at);
#endif
}

/* All ones in the first n (0..3) lanes. */
TW_INLINE v128_t first_lanes(int32_t n) { return wasm_i32x4_gt(wasm_i32x4_splat(n), wasm_i32x4_const(0, 1, 2, 3)); }

/* Copy a row (copy.c). */
void copy_row(uint8_t *dst, const uint8_t *src, size_t nbytes);

/* The first n (1..3) floats at p and zeros; never reads beyond them. */
TW_INLINE f32x4 load_part(const float *p, int32_t n) {
    f32x4 x = wasm_v128_load32_zero(p);
    if (n > 1) x = wasm_v128_load32_lane(p + 1, x, 1);
    if (n > 2) x = wasm_v128_load32_lane(p + 2, x, 2);
    return x;
}

/* Writes the first n (1..3) lanes. */
TW_INLINE void store_part(float *p, f32x4 x, int32_t n) {
    wasm_v128_store32_lane(p, x, 0);
    if (n > 1) wasm_v128_store32_lane(p + 1, x, 1);
    if (n > 2) wasm_v128_store32_lane(p + 2, x, 2);
}

/* The same for the `n` > 0 floats that are left of a row: four at most. */
TW_INLINE f32x4 load_some(const float *p, int32_t n) { return n >= 4 ? load4(p) : load_part(p, n); }
TW_INLINE void store_some(float *p, f32x4 x, int32_t n) {
    if (n >= 4) store4(p, x);
    else store_part(p, x, n);
}

/* y = x * factor; y may be x. */
TW_INLINE void scale_row(float *y, const float *x, int32_t n, float factor) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) store4(y + i, mul4(load4(x + i), splat(factor)));
    for (; i < n; i++) y[i] = x[i] * factor;
}

/* Horizontal operations: (x0 + x2) + (x1 + x3), and alike. */
TW_INLINE float hsum(f32x4 x) {
    f32x4 s = add4(x, wasm_i32x4_shuffle(x, x, 2, 3, 0, 1));
    return wasm_f32x4_extract_lane(s, 0) + wasm_f32x4_extract_lane(s, 1);
}
TW_INLINE float hmax(f32x4 x) {
    f32x4 m = wasm_f32x4_max(x, wasm_i32x4_shuffle(x, x, 2, 3, 0, 1));
    return wasm_f32x4_extract_lane(wasm_f32x4_max(m, wasm_i32x4_shuffle(m, m, 1, 0, 3, 2)), 0);
}

/* Rows a b c d become columns. */
TW_INLINE void transpose4(f32x4 *a, f32x4 *b, f32x4 *c, f32x4 *d) {
    f32x4 ab_low = wasm_i32x4_shuffle(*a, *b, 0, 4, 1, 5), ab_high = wasm_i32x4_shuffle(*a, *b, 2, 6, 3, 7);
    f32x4 cd_low = wasm_i32x4_shuffle(*c, *d, 0, 4, 1, 5), cd_high = wasm_i32x4_shuffle(*c, *d, 2, 6, 3, 7);
    *a = wasm_i64x2_shuffle(ab_low, cd_low, 0, 2);
    *b = wasm_i64x2_shuffle(ab_low, cd_low, 1, 3);
    *c = wasm_i64x2_shuffle(ab_high, cd_high, 0, 2);
    *d = wasm_i64x2_shuffle(ab_high, cd_high, 1, 3);
}

#endif
