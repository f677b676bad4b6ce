/* Register tiles: the innermost loops of matrix products and convolutions. */
#ifndef TILE_H
#define TILE_H
#include "simd.h"

/* V8 spills from the 16th live vector on: accumulators + two of b + one of a (+ one product without FMA). */
#ifdef TW_RELAXED
enum { TILE_ROWS = 6 };
#else
enum { TILE_ROWS = 4 };
#endif
enum { TILE_COLS = 8 };

/* Keeps the compiler from gathering several steps of one accumulator, for which all their operands would have to live. */
#define IN_ORDER(x) __asm__ volatile("" : "+r"(x))

#define UNROLL _Pragma("clang loop unroll(full)")

/* Rows in blocks of at most TILE_ROWS of nearly equal height: short tiles leave the adders idle. */
typedef struct {
    int32_t count, height, longer; /* the first `longer` blocks have one row more */
} row_split;

TW_INLINE row_split split_rows(int32_t total) {
    row_split s = {(total + TILE_ROWS - 1) / TILE_ROWS, 0, 0};
    if (s.count) s.height = total / s.count, s.longer = total % s.count;
    return s;
}
TW_INLINE int32_t split_start(const row_split *s, int32_t block) { return block * s->height + min_i32(block, s->longer); }
TW_INLINE int32_t split_height(const row_split *s, int32_t block) { return s->height + (block < s->longer); }
#endif
