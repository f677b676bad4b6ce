/* Sums of rows that other kernels build on. Errors grow with log n: blocks are added up one after the other, their
   sums pairwise. */
#ifndef REDUCE_H
#define REDUCE_H

#include "simd.h"

/* Sum of x[0..n). At most 16 additions in sequence, then log2(n / 256) more: relative error of the sum of |x| below
   (20 + log2 n) * 2^-24. */
float sum_row(const float *x, int32_t n);
/* Maximum of x[0..n), which may miss NaN: e^(x - max) will show it. */
float max_row(const float *x, int32_t n);

/* y[c] = op over r of x[r * stride + c], c in [0, n_cols); REDUCE_LOG_SUM_EXP is not among the ops. */
void reduce_columns(const float *x, float *y, int32_t rows, int32_t n_cols, int64_t stride, int32_t op);

#endif
