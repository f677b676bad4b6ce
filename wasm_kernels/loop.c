/* Loops: what they read and write of an iteration. The executor repeats the instructions (executor.c). */
#include "guard.h"

int32_t kernel_loop_begin(const loop_begin_args *a) {
    *a->counter = 0;
    return TW_OK;
}

/* The executor counts, where the loop goes on. */
int32_t kernel_loop_end(const loop_end_args *a) {
    *a->counter = 0;
    return TW_OK;
}

/* The executor leaves out the rest of the loop, its end with it. */
int32_t kernel_loop_while(const loop_while_args *a) {
    const int64_t ran = *a->counter;
    if ((a->condition && !*a->condition) || (a->count && ran >= *a->count)) return -a->skip;
    return ran < a->limit ? TW_OK : tw_fail(TW_LOOP_LIMIT, ran, 0);
}

/* Offset of an iteration's part, in bytes; below 0 if it has none. */
static int64_t part_at(int64_t counter, int32_t n, int32_t trips, int32_t reverse) {
    if (counter < 0 || counter >= trips) return -1;
    return (reverse ? trips - 1 - counter : counter) * n;
}

int32_t kernel_loop_take(const loop_take_args *a) {
    const int64_t at = part_at(*a->counter, a->n, a->trips, a->reverse);
    if (at < 0) return tw_fail(TW_BAD_INDEX, *a->counter, 0);
    tw_copy(a->dst, a->src + at, a->n);
    return TW_OK;
}

int32_t kernel_loop_put(const loop_put_args *a) {
    const int64_t at = part_at(*a->counter, a->n, a->trips, a->reverse);
    if (at < 0) return tw_fail(TW_BAD_INDEX, *a->counter, 0);
    tw_copy(a->dst + at, a->src, a->n);
    return TW_OK;
}
