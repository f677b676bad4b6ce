/* The rate that registers alone allow: independent chains of multiply-adds, no memory. */
#include <wasm_simd128.h>

enum { CHAINS = 13 };

__attribute__((export_name("peak"), visibility("default"))) float peak(int iterations, float x, float y) {
    v128_t chain[CHAINS], scale = wasm_f32x4_splat(x), shift = wasm_f32x4_splat(y);
    _Pragma("clang loop unroll(full)") for (int i = 0; i < CHAINS; i++) chain[i] = wasm_f32x4_splat((float)i);
    for (int k = 0; k < iterations; k++) {
        _Pragma("clang loop unroll(full)") for (int i = 0; i < CHAINS; i++) {
#ifdef TW_RELAXED
            chain[i] = wasm_f32x4_relaxed_madd(chain[i], scale, shift);
#else
            chain[i] = wasm_f32x4_add(wasm_f32x4_mul(chain[i], scale), shift);
#endif
        }
    }
    v128_t sum = chain[0];
    for (int i = 1; i < CHAINS; i++) sum = wasm_f32x4_add(sum, chain[i]);
    return wasm_f32x4_extract_lane(sum, 0);
}
