/* The limits of the hardware: the rate of registers, and the rate of memory. */
#include <wasm_simd128.h>

enum { CHAINS = 13 };

/* Independent chains of multiply-adds, no memory. */
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

/* The traffic of AdamW and next to none of its work: four arrays of n floats read, three written. */
__attribute__((export_name("update"), visibility("default"))) void update(float *w, const float *g, float *m, float *v, int n) {
    for (int i = 0; i + 4 <= n; i += 4) {
        v128_t x = wasm_v128_load(g + i);
        wasm_v128_store(w + i, wasm_f32x4_add(wasm_v128_load(w + i), x));
        wasm_v128_store(m + i, wasm_f32x4_add(wasm_v128_load(m + i), x));
        wasm_v128_store(v + i, wasm_f32x4_add(wasm_v128_load(v + i), x));
    }
}
