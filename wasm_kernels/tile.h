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

/* Splits `total` rows into blocks of at most TILE_ROWS of nearly equal height: short tiles leave the adders idle. */
TW_INLINE int32_t row_blocks(int32_t total) { return (total + TILE_ROWS - 1) / TILE_ROWS; }
TW_INLINE int32_t row_block_start(int32_t total, int32_t block) {
    int32_t n = row_blocks(total), base = total / n, longer = total % n;
    return block * base + (block < longer ? block : longer);
}
#endif
