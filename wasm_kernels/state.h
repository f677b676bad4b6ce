/* The state words of a session: `layout state` of kernels.def. */
#ifndef STATE_H
#define STATE_H

#include "guard.h"

TW_INLINE float state_f32(const int32_t *state, int32_t word) {
    float x;
    tw_copy(&x, state + word, sizeof x);
    return x;
}
TW_INLINE int64_t state_i64(const int32_t *state, int32_t word) {
    int64_t x;
    tw_copy(&x, state + word, sizeof x);
    return x;
}
TW_INLINE void set_state_f32(int32_t *state, int32_t word, float x) { tw_copy(state + word, &x, sizeof x); }
TW_INLINE void set_state_i64(int32_t *state, int32_t word, int64_t x) { tw_copy(state + word, &x, sizeof x); }

#endif
