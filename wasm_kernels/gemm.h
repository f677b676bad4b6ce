/* Products of matrices within the tasks of other kernels. */
#ifndef GEMM_H
#define GEMM_H

#include "guard.h"
#include "unpack.h"

/* c(m,n) = activation(alpha * sum_k a(m,k) b(k,n) + beta * bias(m,n) + (accumulate ? c(m,n) : 0)); strides in floats. */
typedef struct {
    int32_t m, n, k;
    const float *a;
    int32_t a_row, a_col;
    const float *b;
    int32_t b_row, b_col;
    float *c;
    int32_t c_row, c_col;
    const float *bias; /* may be null */
    int32_t bias_row, bias_col;
    float alpha, beta;
    int32_t accumulate, activation;
    const packed_matrix *w; /* not null: b as it is stored, by columns if `turned`, from line `w_line` and place `w_place` on */
    bool turned;
    int32_t w_line, w_place;
} gemm_problem;

/* The part of a thread's workspace that a product takes; the rest is its caller's. */
enum { GEMM_WORKSPACE_FLOATS = 84032 };
_Static_assert(GEMM_WORKSPACE_FLOATS * 4 <= THREAD_SCRATCH_BYTES, "gemm's workspace");

/* A product with k > 0, on the calling thread. */
void gemm_tiles(const gemm_problem *p);

#endif
