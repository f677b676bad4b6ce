/* Rows that products leave out: tokens without influence on the loss, such as padding. Nothing reads them in the forward pass,
   and their gradients are zero. */
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

/* List the runs of rows in `wanted`, which the product computes. */
int32_t list_rows(const gemm_problem *p, const int32_t *wanted, row_run runs[ROW_RUNS]);

/* Clear the other rows of c, or repeat a wanted row there, whose numbers are as good as theirs. An added product leaves them. */
void fill_other_rows(const gemm_problem *p, const row_run *runs, int32_t count, bool clears);

#endif
