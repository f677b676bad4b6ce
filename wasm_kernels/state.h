/* The state words of a session (docs/architecture.md, section 4). */
#ifndef STATE_H
#define STATE_H

#include "guard.h"

enum { LAZY_RESET = 0, LEARNING_RATE = 1, STEP = 2, INITIAL_LR = 4, WARMUP = 6, TOTAL = 8, SEED = 10, OFFSET = 12, LOADS = 14,
       UPDATES = 15 };

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
