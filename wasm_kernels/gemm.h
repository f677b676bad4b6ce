/* Matrix product shared by gemm.c and conv.c. */
#ifndef GEMM_H
#define GEMM_H
#include <stdbool.h>

#include <stdint.h>

enum { ACTIVATION_NONE = 0, ACTIVATION_RELU = 1 };

/* Rows and depth of a that are packed at a time, and what parts the rows; kernels.def sizes its scratch by them. */
enum { GEMM_MC = 384, GEMM_PACKED_KC = 128, GEMM_ROW_PADDING = 16 };

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
} gemm_problem;

/* Runs in the calling thread with its thread_scratch. */
void gemm_serial(const gemm_problem *problem);

/* Runs on all threads; `packed` holds (min(k, GEMM_PACKED_KC) + GEMM_ROW_PADDING) * min(max(m, n), GEMM_MC) floats. */
void gemm_parallel(const gemm_problem *problem, float *packed);
#endif
