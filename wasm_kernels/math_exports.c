/* The vector functions that generated code imports as kernels.v_exp and so on. */
#include "math.h"

#define UNARY(name)                                              \
    TW_EXPORT(v_##name) v128_t v_##name(v128_t x);               \
    v128_t v_##name(v128_t x) { return name##4(x); }

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
