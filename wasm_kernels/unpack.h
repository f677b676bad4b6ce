/* Rows of matrices whose numbers are stored in fewer bits than a float has: weights that stay as small as in their file. */
#ifndef UNPACK_H
#define UNPACK_H

#include <stdbool.h>

#include "guard.h"

/* Element (r, c) is (number r * pitch + c - zero point) * scale; elements of a block share a scale and a zero point. */
typedef struct {
    const uint8_t *x;
    const float *scale;  /* may be null: 1 */
    const uint8_t *zero; /* may be null: `center` */
    int32_t pitch, packing, flip, center, block_rows, block_cols, scale_row, scale_col, zero_row, zero_col;
} packed_matrix;

/* The matrix that the arguments of a kernel describe, whose numbers are `numbers`. */
#define PACKED_MATRIX(a, numbers)                                                                                         \
    {(a)->numbers, (a)->scale, (a)->zero, (a)->pitch, (a)->packing, (a)->flip, (a)->center, (a)->block_rows,              \
     (a)->block_cols, (a)->scale_row, (a)->scale_col, (a)->zero_row, (a)->zero_col}

/* out[count] = elements [first, first + count) of a row. */
void unpack_row(const packed_matrix *m, int32_t row, int32_t first, int32_t count, float *out);

#endif
