/* The vector functions that generated code imports. kernels.v_exp takes four elements. kernels.v_exp_n takes n in place, n a
   multiple of 4, with half the work an element. kernels.v_scratch is the memory for these elements. */
#include "math.h"
#include "parallel.h"

#define UNARY(name)                                                \
    TW_EXPORT(v_##name) v128_t v_##name(v128_t x);                 \
    v128_t v_##name(v128_t x) { return name##4(x); }               \
    TW_EXPORT(v_##name##_n) void v_##name##_n(float *x, int32_t n); \
    void v_##name##_n(float *x, int32_t n) {                       \
        for (int32_t i = 0; i < n; i += 4) store4(x + i, name##4(load4(x + i))); \
    }

UNARY(exp)
UNARY(log)
UNARY(tanh)
UNARY(erf)
UNARY(sigmoid)
UNARY(sin)
UNARY(cos)
UNARY(log1p)
UNARY(expm1)

TW_EXPORT(v_pow) v128_t v_pow(v128_t x, v128_t y);
v128_t v_pow(v128_t x, v128_t y) { return pow4(x, y); }

TW_EXPORT(v_pow_n) void v_pow_n(float *x, const float *y, int32_t n);
void v_pow_n(float *x, const float *y, int32_t n) {
    for (int32_t i = 0; i < n; i += 4) store4(x + i, pow4(load4(x + i), load4(y + i)));
}

TW_EXPORT(v_scratch) float *v_scratch(void);
float *v_scratch(void) { return thread_scratch(); }
