/* Products of integers, which wrap. */
#include "guard.h"
#include "parallel.h"

/* One row of c: unsigned, so that what does not fit wraps. */
#define INT_ROW(T)                                                                         \
    do {                                                                                   \
        const T *x = (const T *)a->a + a_at;                                               \
        T *y = (T *)a->c + unit * a->n;                                                    \
        for (int32_t j = 0; j < a->n; j++) y[j] = 0;                                       \
        for (int32_t l = 0; l < a->k; l++) {                                               \
            const T factor = x[(int64_t)l * a->a_col];                                     \
            const T *w = (const T *)a->b + b_at + (int64_t)l * a->b_row;                   \
            for (int32_t j = 0; j < a->n; j++) y[j] += factor * w[(int64_t)j * a->b_col];  \
        }                                                                                  \
    } while (0)

static void int_rows_chunk(const void *args, int64_t lo, int64_t hi) {
    const gemm_int_args *a = args;
    for (int64_t unit = lo; unit < hi; unit++) {
        const int64_t item = unit / a->m, i = item / a->batch[1], j = item % a->batch[1];
        const int64_t a_at = i * a->a_batch[0] + j * a->a_batch[1] + unit % a->m * a->a_row;
        const int64_t b_at = i * a->b_batch[0] + j * a->b_batch[1];
        if (a->size == 8) INT_ROW(uint64_t);
        else INT_ROW(uint32_t);
    }
}

int32_t kernel_gemm_int(const gemm_int_args *a) {
    const int64_t units = (int64_t)a->batch[0] * a->batch[1] * a->m;
    if (!units || !a->n) return TW_OK;
    parallel_ranges(int_rows_chunk, a, units, units_per_chunk((int64_t)a->n * (a->k + 1)));
    return TW_OK;
}
