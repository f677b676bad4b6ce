/* Register tiles: the innermost loops of matrix products and convolutions. */
#ifndef TILE_H
#define TILE_H
#include <stdbool.h>

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

/* One step of the depth: elements of a at the ends of its lines or, with `columns`, next to each other in the first. */
TW_INLINE void tile_step(const int32_t rows, const int32_t vecs, const bool columns, const float *const line[TILE_ROWS],
                         const float *b, f32x4 acc[TILE_ROWS][2]) {
    f32x4 bv[2];
    UNROLL for (int32_t j = 0; j < vecs; j++) bv[j] = load4(b + 4 * j);
    UNROLL for (int32_t i = 0; i < rows; i++) {
        f32x4 av = load_splat(columns ? line[0] + i : line[i]);
        UNROLL for (int32_t j = 0; j < vecs; j++) {
            acc[i][j] = madd(av, bv[j], acc[i][j]);
            IN_ORDER(acc[i][j]);
        }
    }
}

enum { TILE_STEPS = 4 };

/* acc(i, j) = sum over p < k of a(i, p) b[p * b_step + j] for j < 4 * vecs; a(i, p) is a[i][p] or, with `columns`,
   a[0][p * a_step + i]. V8 has constant offsets of b for free and one address for all lines of a. */
TW_INLINE void tile_product(const int32_t rows, const int32_t vecs, const bool columns, int32_t k,
                            const float *const a[TILE_ROWS], const int32_t a_step, const float *b, const int32_t b_step,
                            f32x4 acc[TILE_ROWS][2]) {
    const int32_t lines = columns ? 1 : rows, step = columns ? a_step : 1;
    const float *line[TILE_ROWS];
    UNROLL for (int32_t i = 0; i < lines; i++) line[i] = a[i];
    UNROLL for (int32_t i = 0; i < rows; i++) {
        UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = splat(0);
    }
    for (; k >= TILE_STEPS; k -= TILE_STEPS) {
        UNROLL for (int32_t u = 0; u < TILE_STEPS; u++, b += b_step) {
            tile_step(rows, vecs, columns, line, b, acc);
            UNROLL for (int32_t i = 0; i < lines; i++) line[i] += step;
        }
    }
    for (; k; k--, b += b_step) {
        tile_step(rows, vecs, columns, line, b, acc);
        UNROLL for (int32_t i = 0; i < lines; i++) line[i] += step;
    }
}

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
