/* Vector mathematics on four floats. Largest errors, in units of the last place, over all finite results, as measured
   against float64 by tests/python/test_kernels_math.py (plain build / relaxed build):

       exp 1.5  log 1.5  tanh 2  erf 2.5  sigmoid 2.5  sin, cos 1.5 (|x| < 1e6)  log1p 2.5  expm1 2  pow 1

   Infinities, NaN, zeros and subnormal arguments give what C's functions give. */
#ifndef TW_MATH_H
#define TW_MATH_H

#include "simd.h"

/* 2^n for n in [-126, 127], of which only the low 9 bits count. */
TW_INLINE f32x4 power_of_two(v128_t n) { return wasm_i32x4_add(wasm_i32x4_shl(n, 23), held(1.0f)); }

/* Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits: cheaper than nearest and trunc_sat. */
#define ROUNDING 12582912.0f

/* Reduce |x| < 2^20 to r = x - n ln 2, |r| <= ln 2 / 2; only the low 22 bits of n count. ln 2 is split so that n * high
   part is exact. */
TW_INLINE f32x4 reduce_exp(f32x4 x, v128_t *n) {
    *n = madd(x, held(LN2_2), held(ROUNDING));
    f32x4 k = sub4(*n, held(ROUNDING));
    return nmadd(k, held(LN2_1), nmadd(k, held(LN2_0), x));
}

/* e^r - 1 for |r| <= ln 2 / 2: r + r^2 P(r), the minimax polynomial of Cephes' expf, by Estrin's scheme. */
TW_INLINE f32x4 expm1_reduced(f32x4 r) {
    f32x4 s = mul4(r, r);
    f32x4 p0 = madd(held(EXP_TERMS_4), r, held(EXP_TERMS_5));
    f32x4 p2 = madd(held(EXP_TERMS_2), r, held(EXP_TERMS_3));
    f32x4 p4 = madd(held(EXP_TERMS_0), r, held(EXP_TERMS_1));
    return madd(madd(madd(p4, s, p2), s, p0), s, r);
}

/* The two halves of n keep each power of two in range, so that results may be subnormal or infinite. */
TW_INLINE f32x4 exp4(f32x4 x) {
    v128_t n;
    f32x4 clamped = wasm_f32x4_pmin(wasm_f32x4_pmax(x, held(-104.0f)), held(89.0f));
    f32x4 e = add4(expm1_reduced(reduce_exp(clamped, &n)), held(1.0f));
    v128_t half = wasm_i32x4_shr(n, 1);
    return mul4(mul4(e, power_of_two(half)), power_of_two(wasm_i32x4_sub(n, half)));
}

/* For x in [-87, 88], where no result is subnormal or infinite. */
TW_INLINE f32x4 exp4_normal(f32x4 x) {
    v128_t n;
    f32x4 e = add4(expm1_reduced(reduce_exp(x, &n)), held(1.0f));
    return mul4(e, power_of_two(n));
}

/* For x <= 0, such as scores minus their maximum. The bits are the same, but 0 stands for subnormal results. Some
   processors take a hundred cycles to round those. */
#define EXP_NEGLIGIBLE -87.0f
TW_INLINE f32x4 exp4_negative(f32x4 x) {
    return wasm_v128_andnot(exp4_normal(x), wasm_f32x4_lt(x, splat(EXP_NEGLIGIBLE)));
}

/* e^x - 1 = 2^n (e^r - 1) + (2^n - 1); halved so that n = 128 does not overflow too early. */
TW_INLINE f32x4 expm14(f32x4 x) {
    v128_t n;
    f32x4 clamped = wasm_f32x4_pmin(wasm_f32x4_pmax(x, held(-20.0f)), held(89.0f));
    f32x4 p = expm1_reduced(reduce_exp(clamped, &n));
    f32x4 scale = power_of_two(wasm_i32x4_sub(n, wasm_i32x4_splat(1)));
    f32x4 y = madd(p, scale, sub4(scale, held(0.5f)));
    y = add4(y, y);
    return select4(wasm_f32x4_lt(wasm_f32x4_abs(x), held(0x1p-30f)), x, y);
}

/* x = 2^e (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1]; for positive finite x. */
TW_INLINE f32x4 split_log(f32x4 x, f32x4 *e) {
    v128_t tiny = wasm_f32x4_lt(x, held(1.17549435e-38f));
    f32x4 scaled = select4(tiny, mul4(x, held(8388608.0f)), x);
    /* Subtracting the bits of sqrt(1/2) leaves the exponent that puts the mantissa in the wanted interval. */
    v128_t offset = wasm_i32x4_sub(scaled, wasm_i32x4_splat(0x3F3504F3));
    v128_t exponent = wasm_i32x4_shr(offset, 23);
    f32x4 m = wasm_i32x4_sub(scaled, wasm_i32x4_shl(exponent, 23));
    exponent = wasm_i32x4_sub(exponent, wasm_v128_and(tiny, wasm_i32x4_splat(23)));
    *e = wasm_f32x4_convert_i32x4(exponent);
    return sub4(m, held(1.0f));
}

/* Cephes' logf: f - f^2/2 + f^3 P(f), and e ln 2 in two parts. */
TW_INLINE f32x4 log4(f32x4 x) {
    f32x4 e, f = split_log(x, &e);
    f32x4 p = held(LOG_TERMS_0);
    p = madd(p, f, held(LOG_TERMS_1));
    p = madd(p, f, held(LOG_TERMS_2));
    p = madd(p, f, held(LOG_TERMS_3));
    p = madd(p, f, held(LOG_TERMS_4));
    p = madd(p, f, held(LOG_TERMS_5));
    p = madd(p, f, held(LOG_TERMS_6));
    p = madd(p, f, held(LOG_TERMS_7));
    p = madd(p, f, held(LOG_TERMS_8));
    f32x4 square = mul4(f, f);
    f32x4 y = mul4(mul4(p, f), square);
    y = madd(e, held(LN2_1), y);
    y = nmadd(square, held(0.5f), y);
    y = madd(e, held(LN2_0), add4(f, y));
    y = select4(wasm_f32x4_eq(x, held(__builtin_inff())), x, y);
    y = select4(wasm_f32x4_eq(x, held(0.0f)), held(-__builtin_inff()), y);
    return select4(wasm_f32x4_ge(x, held(0.0f)), y, held(__builtin_nanf("")));
}

/* log(u) for u = 1 + x rounded, plus what the rounding lost. */
TW_INLINE f32x4 log1p4(f32x4 x) {
    f32x4 u = add4(x, held(1.0f));
    f32x4 lost = sub4(x, sub4(u, held(1.0f)));
    f32x4 y = log4(u);
    v128_t ordinary = wasm_v128_and(wasm_f32x4_gt(u, held(0.0f)), wasm_f32x4_lt(u, held(__builtin_inff())));
    y = select4(ordinary, add4(y, div4(lost, u)), y);
    return select4(wasm_f32x4_eq(u, held(1.0f)), x, y);
}

/* 1 / (1 + e^-x), from e^-|x| so that it neither overflows nor loses small results. */
TW_INLINE f32x4 sigmoid4(f32x4 x) {
    f32x4 e = exp4(wasm_f32x4_neg(wasm_f32x4_abs(x)));
    f32x4 numerator = select4(wasm_f32x4_lt(x, held(0.0f)), e, held(1.0f));
    return div4(numerator, add4(e, held(1.0f)));
}

/* Small |x|: x + x^3 P(x^2) of Cephes; else 1 - 2 / (e^2|x| + 1). */
TW_INLINE f32x4 tanh4(f32x4 x) {
    f32x4 t = wasm_f32x4_abs(x), s = mul4(x, x);
    f32x4 p = held(TANH_TERMS_0);
    p = madd(p, s, held(TANH_TERMS_1));
    p = madd(p, s, held(TANH_TERMS_2));
    p = madd(p, s, held(TANH_TERMS_3));
    p = madd(p, s, held(TANH_TERMS_4));
    f32x4 small = madd(mul4(p, s), x, x);
    f32x4 e = exp4_normal(wasm_f32x4_pmin(add4(t, t), held(20.0f)));
    f32x4 large = sub4(held(1.0f), div4(held(2.0f), add4(e, held(1.0f))));
    f32x4 y = select4(wasm_f32x4_lt(t, held(0.625f)), small, large);
    return wasm_v128_or(y, wasm_v128_and(x, held(-0.0f)));
}

/* Minimax polynomials, a column for each k (kernels.def). */
static const float ERF[9][4] = {
    {ERF_TERMS_0, ERF_TERMS_1, ERF_TERMS_2, ERF_TERMS_3},
    {ERF_TERMS_4, ERF_TERMS_5, ERF_TERMS_6, ERF_TERMS_7},
    {ERF_TERMS_8, ERF_TERMS_9, ERF_TERMS_10, ERF_TERMS_11},
    {ERF_TERMS_12, ERF_TERMS_13, ERF_TERMS_14, ERF_TERMS_15},
    {ERF_TERMS_16, ERF_TERMS_17, ERF_TERMS_18, ERF_TERMS_19},
    {ERF_TERMS_20, ERF_TERMS_21, ERF_TERMS_22, ERF_TERMS_23},
    {ERF_TERMS_24, ERF_TERMS_25, ERF_TERMS_26, ERF_TERMS_27},
    {ERF_TERMS_28, ERF_TERMS_29, ERF_TERMS_30, ERF_TERMS_31},
    {ERF_TERMS_32, ERF_TERMS_33, ERF_TERMS_34, ERF_TERMS_35},
};

/* In each lane the coefficient of its k, whose bytes `at` has the places of. */
TW_INLINE f32x4 coefficient(int32_t power, v128_t at) { return swizzle(held4(load4(ERF[power])), at); }

/* One polynomial in every lane, of degree 8 by Estrin's scheme; past 3.93 the result is 1. */
TW_INLINE f32x4 erf4(f32x4 x) {
    f32x4 t = wasm_f32x4_pmin(wasm_f32x4_abs(x), held(3.93f));
    f32x4 n = madd(t, held(1 / 1.125f), held(ROUNDING));
    f32x4 u = nmadd(sub4(n, held(ROUNDING)), held(1.125f), t), s = mul4(u, u);
    v128_t low_bytes = held4(wasm_i8x16_make(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    v128_t at = wasm_i32x4_add(wasm_i32x4_shl(swizzle(n, low_bytes), 2), held4(wasm_i32x4_splat(0x03020100)));
    f32x4 p2 = madd(coefficient(3, at), u, coefficient(2, at)), p4 = madd(coefficient(5, at), u, coefficient(4, at));
    f32x4 p6 = madd(coefficient(8, at), s, madd(coefficient(7, at), u, coefficient(6, at)));
    f32x4 p = madd(p6, mul4(s, s), madd(p4, s, p2));
    f32x4 y = madd(madd(p, u, coefficient(1, at)), u, coefficient(0, at));
    return wasm_v128_or(y, wasm_v128_and(x, held(-0.0f)));
}

/* Two lanes in double: r = x - k pi/2, k rounded; exact enough for relative accuracy near the zeros. */
TW_INLINE v128_t reduce_pi(v128_t x, v128_t *k) {
    *k = wasm_f64x2_nearest(wasm_f64x2_mul(x, wasm_f64x2_splat(0.63661977236758134308)));
    v128_t r = wasm_f64x2_sub(x, wasm_f64x2_mul(*k, wasm_f64x2_splat(1.57079632673412561417)));
    return wasm_f64x2_sub(r, wasm_f64x2_mul(*k, wasm_f64x2_splat(6.07710050650619224932e-11)));
}

/* sin for quarter = 0, cos for quarter = 1: Cephes' polynomials on [-pi/4, pi/4]. */
TW_INLINE f32x4 sin_shifted(f32x4 x, int32_t quarter) {
    v128_t k_low, k_high;
    v128_t r_low = reduce_pi(wasm_f64x2_promote_low_f32x4(x), &k_low);
    v128_t r_high = reduce_pi(wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(x, x, 1, 1)), &k_high);
    f32x4 r = wasm_i64x2_shuffle(wasm_f32x4_demote_f64x2_zero(r_low), wasm_f32x4_demote_f64x2_zero(r_high), 0, 2);
    v128_t k = wasm_i64x2_shuffle(wasm_i32x4_trunc_sat_f64x2_zero(k_low), wasm_i32x4_trunc_sat_f64x2_zero(k_high), 0, 2);
    k = wasm_i32x4_add(k, wasm_i32x4_splat(quarter));
    f32x4 s = mul4(r, r);
    f32x4 sine = held(SIN_TERMS_0);
    sine = madd(sine, s, held(SIN_TERMS_1));
    sine = madd(sine, s, held(SIN_TERMS_2));
    sine = madd(mul4(sine, s), r, r);
    f32x4 cosine = held(COS_TERMS_0);
    cosine = madd(cosine, s, held(COS_TERMS_1));
    cosine = madd(cosine, s, held(COS_TERMS_2));
    cosine = add4(madd(mul4(cosine, s), s, mul4(s, held(-0.5f))), held(1.0f));
    v128_t odd = wasm_i32x4_eq(wasm_v128_and(k, wasm_i32x4_splat(1)), wasm_i32x4_splat(1));
    v128_t sign = wasm_i32x4_shl(wasm_v128_and(k, wasm_i32x4_splat(2)), 30);
    f32x4 y = wasm_v128_xor(select4(odd, cosine, sine), sign);
    return select4(wasm_f32x4_lt(wasm_f32x4_abs(x), held(__builtin_inff())), y, held(__builtin_nanf("")));
}
TW_INLINE f32x4 sin4(f32x4 x) { return select4(wasm_f32x4_eq(x, held(0.0f)), x, sin_shifted(x, 0)); }
TW_INLINE f32x4 cos4(f32x4 x) { return sin_shifted(x, 1); }

/* log2 of two positive finite doubles to 1e-12: 2/ln2 (s + s^3/3 + ...), s = (m - 1) / (m + 1). */
TW_INLINE v128_t log2_f64(v128_t x) {
    v128_t offset = wasm_i64x2_sub(x, wasm_i64x2_const_splat(0x3FE6A09E667F3BCD));
    v128_t exponent = wasm_i64x2_shr(offset, 52);
    v128_t m = wasm_i64x2_sub(x, wasm_i64x2_shl(exponent, 52));
    v128_t one = wasm_f64x2_splat(1.0);
    v128_t s = wasm_f64x2_div(wasm_f64x2_sub(m, one), wasm_f64x2_add(m, one)), z = wasm_f64x2_mul(s, s);
    v128_t p = wasm_f64x2_splat(2.885390081777926815 / 15);
    for (int32_t k = 13; k >= 1; k -= 2)
        p = wasm_f64x2_add(wasm_f64x2_mul(p, z), wasm_f64x2_splat(2.885390081777926815 / k));
    v128_t e = wasm_f64x2_convert_low_i32x4(wasm_i32x4_shuffle(exponent, exponent, 0, 2, 0, 2));
    return wasm_f64x2_add(e, wasm_f64x2_mul(p, s));
}

/* 2^t for two doubles, clamped far outside float's range. */
TW_INLINE v128_t exp2_f64(v128_t t) {
    t = wasm_f64x2_pmin(wasm_f64x2_splat(200.0), wasm_f64x2_pmax(wasm_f64x2_splat(-200.0), t));
    v128_t k = wasm_f64x2_nearest(t), f = wasm_f64x2_mul(wasm_f64x2_sub(t, k), wasm_f64x2_splat(0.6931471805599453));
    static const double inverse_factorial[] = {2.7557319223985893e-6, 2.48015873015873e-5, 1.984126984126984e-4,
                                               1.388888888888889e-3, 8.333333333333333e-3, 4.1666666666666664e-2,
                                               1.6666666666666666e-1, 0.5, 1.0, 1.0};
    v128_t p = wasm_f64x2_splat(inverse_factorial[0]);
    for (int32_t i = 1; i < 10; i++)
        p = wasm_f64x2_add(wasm_f64x2_mul(p, f), wasm_f64x2_splat(inverse_factorial[i]));
    v128_t n = wasm_i64x2_extend_low_i32x4(wasm_i32x4_trunc_sat_f64x2_zero(k));
    return wasm_f64x2_mul(p, wasm_i64x2_shl(wasm_i64x2_add(n, wasm_i64x2_splat(1023)), 52));
}

/* |x|^y = 2^(y log2|x|) in double, rounded once; then the signs and special cases of C's pow. */
TW_INLINE f32x4 pow4(f32x4 x, f32x4 y) {
    f32x4 a = wasm_f32x4_abs(x), infinity = held(__builtin_inff());
    /* 0 and infinity stand for themselves through numbers far enough out; their powers leave float's range. */
    v128_t low = wasm_f64x2_promote_low_f32x4(a), high = wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(a, a, 1, 1));
    v128_t big = wasm_f64x2_splat(0x1p1000), small = wasm_f64x2_splat(0x1p-1000);
    low = log2_f64(wasm_f64x2_pmin(big, wasm_f64x2_pmax(small, low)));
    high = log2_f64(wasm_f64x2_pmin(big, wasm_f64x2_pmax(small, high)));
    low = exp2_f64(wasm_f64x2_mul(low, wasm_f64x2_promote_low_f32x4(y)));
    high = exp2_f64(wasm_f64x2_mul(high, wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(y, y, 1, 1))));
    f32x4 r = wasm_i64x2_shuffle(wasm_f32x4_demote_f64x2_zero(low), wasm_f32x4_demote_f64x2_zero(high), 0, 2);
    f32x4 zero = held(0.0f), one = held(1.0f), nan = held(__builtin_nanf(""));
    /* 0^tiny and inf^tiny: 2^(1000 y) is not far enough out. */
    v128_t grows = wasm_v128_xor(wasm_f32x4_lt(y, zero), wasm_f32x4_eq(a, infinity));
    v128_t extreme = wasm_v128_or(wasm_f32x4_eq(a, zero), wasm_f32x4_eq(a, infinity));
    r = select4(extreme, select4(grows, infinity, zero), r);
    f32x4 half = mul4(y, held(0.5f));
    v128_t integer = wasm_f32x4_eq(y, wasm_f32x4_nearest(y));
    v128_t odd = wasm_v128_and(integer, wasm_f32x4_ne(half, wasm_f32x4_nearest(half)));
    r = wasm_v128_or(r, wasm_v128_and(odd, wasm_v128_and(x, held(-0.0f))));
    v128_t finite_negative = wasm_v128_and(wasm_f32x4_lt(x, zero), wasm_f32x4_gt(x, wasm_f32x4_neg(infinity)));
    r = select4(wasm_v128_andnot(finite_negative, integer), nan, r);
    r = select4(wasm_v128_and(wasm_f32x4_eq(a, one), wasm_f32x4_eq(wasm_f32x4_abs(y), infinity)), one, r);
    v128_t unordered = wasm_v128_or(wasm_f32x4_ne(x, x), wasm_f32x4_ne(y, y));
    r = select4(unordered, nan, r);
    return select4(wasm_v128_or(wasm_f32x4_eq(y, zero), wasm_f32x4_eq(x, one)), one, r);
}

/* One element at a time, for the ends of rows. */
TW_INLINE float exp1(float x) { return wasm_f32x4_extract_lane(exp4(splat(x)), 0); }
TW_INLINE float log1(float x) { return wasm_f32x4_extract_lane(log4(splat(x)), 0); }

#endif
