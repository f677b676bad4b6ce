/* Rows of an operand that hold only zeros. Gradients have them for tokens whose label is ignored, such as padding. */
#ifndef ZERO_ROWS_H
#define ZERO_ROWS_H

#include "gemm.h"

/* Rows [start, end). */
typedef struct {
    int32_t start, end;
} row_run;

/* The product of these rows of a. */
TW_INLINE gemm_problem rows_of(const gemm_problem *whole, row_run run) {
    gemm_problem p = *whole;
    p.a += run.start * p.a_row;
    p.c += run.start * p.c_row;
    p.m = run.end - run.start;
    return p;
}

/* Runs of a product at most. */
enum { ROW_RUNS = 64 };

/* List runs of rows of a that are not zero, and clear the other rows of c unless the product is added to them. */
int32_t split_at_zero_rows(const gemm_problem *p, row_run runs[ROW_RUNS]);

#endif
