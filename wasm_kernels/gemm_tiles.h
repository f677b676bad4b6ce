/* The parts of a matrix product: packed operands, and register tiles that are stored with their bias and activation. */
#ifndef GEMM_TILES_H
#define GEMM_TILES_H

#include "tile.h"

/* Floats of a cache line. */
enum { LINE_FLOATS = 16 };

/* Panels of b for tiles: whole ones, or a last one of fewer `lines`, of stride `line`, whose elements have stride `step`. */
void pack_panels(float *out, const float *src, int32_t panels, int32_t lines, int32_t line, int32_t step, int32_t k);

/* out[k][rows] from a block of fewer than eight rows of a. */
void pack_block(float *out, const float *src, int32_t rows, int32_t a_row, int32_t a_col, int32_t k);

/* The destination of the tiles of one block of the depth. */
typedef struct {
    float *c;
    int32_t c_row, c_col;
    const float *bias; /* null unless this is the last block over k */
    int32_t bias_row, bias_col;
    float alpha, beta;
    bool add, relu, plain; /* plain: sums are stored as they are, by rows */
} tile_out;

/* One row of `n` results, alpha being in them, to c, whose elements have stride 1. */
void finish_row(const float *t, float *c, int32_t n, const tile_out *o, const float *bias, int32_t bias_col);

/* Tiles at the edges, transposed ones and those with unusual bias: t is [rows][ldt]. */
void finish_tile(const float *t, int32_t ldt, int32_t rows, int32_t cols, const tile_out *o, int32_t row, int32_t col);

/* Blocks of rows of equal height by neighbouring panels. */
typedef struct {
    int32_t k, count, row, panels, col, cols;
    const float *a, *b;
    int32_t a_row, a_step; /* a_step: from one step of the depth to the next, where rows are next to each other */
    int32_t b_step, panel; /* of b in place; from one panel to the next */
    float *spare;          /* room for one tile */
    bool far;              /* rows of a come from memory: each block of them is touched first */
    const tile_out *out;
} tile_run;

/* Compute the blocks of a run: by their height less 1; whether the rows of a block are next to each other, otherwise the steps
   of a row are; and the kind of the panels. */
typedef void (*tiles_fn)(const tile_run *r);
enum { WIDE, WIDE_IN_PLACE, NARROW };
extern const tiles_fn tiles_of[TILE_ROWS][2][3];

#endif
