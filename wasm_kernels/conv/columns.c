/* Convolutions of few positions and many weights as products of matrices. The positions of all images lie side by side, so that
   each weight is read once; a column has what the window sees at its position: [c][taps]. */
#include "parallel.h"
#include "weight_gradient.h"

/* The numbers of a convolution, whichever of its kernels runs. */
typedef struct {
    int32_t n, c, m;
    const int32_t *size, *kernel, *out, *stride, *dilation, *pad;
    int32_t plane, volume, taps, positions; /* elements of a plane of x and of y; of a window; columns */
} column_shape;

#define SHAPE_OF(a)                                                                                                    \
    shape_of((a)->n, (a)->c, (a)->m, (a)->size, (a)->kernel, (a)->out, (a)->stride, (a)->dilation, (a)->pad)

static column_shape shape_of(int32_t n, int32_t c, int32_t m, const int32_t *size, const int32_t *kernel, const int32_t *out,
                             const int32_t *stride, const int32_t *dilation, const int32_t *pad) {
    column_shape s = {n, c, m, size, kernel, out, stride, dilation, pad, size[0] * size[1] * size[2],
                      out[0] * out[1] * out[2], kernel[0] * kernel[1] * kernel[2], n * out[0] * out[1] * out[2]};
    return s;
}

/* table[tap][position of an image]: where in a plane of x the window's element lies, -1 in the padding. */
static void fill_table(const column_shape *s, int32_t *table) {
    for (int32_t tap = 0; tap < s->taps; tap++) {
        const int32_t k[3] = {tap / (s->kernel[1] * s->kernel[2]), tap / s->kernel[2] % s->kernel[1], tap % s->kernel[2]};
        for (int32_t v = 0; v < s->volume; v++) {
            const int32_t o[3] = {v / (s->out[1] * s->out[2]), v / s->out[2] % s->out[1], v % s->out[2]};
            int32_t at = 0;
            for (int32_t axis = 0; axis < 3; axis++) {
                const int32_t i = o[axis] * s->stride[axis] + k[axis] * s->dilation[axis] - s->pad[axis];
                at = at < 0 || i < 0 || i >= s->size[axis] ? -1 : at * s->size[axis] + i;
            }
            *table++ = at;
        }
    }
}

/* ---- between images and columns ---- */

/* A task of channels: x or dx with [channels * taps][positions], or y or dy with [channels][positions]. */
typedef struct {
    const column_shape *s;
    const int32_t *table;
    const float *from;
    float *to;
    const float *bias;
    bool accumulate, relu;
} column_task;

/* columns = what windows see of x. */
static void gather_chunk(const void *args, int64_t lo, int64_t hi) {
    const column_task *t = args;
    const column_shape *s = t->s;
    for (int32_t channel = (int32_t)lo; channel < hi; channel++) {
        float *to = t->to + channel * s->taps * s->positions;
        const int32_t *at = t->table;
        for (int32_t tap = 0; tap < s->taps; tap++, at += s->volume) {
            const float *x = t->from + channel * s->plane;
            for (int32_t n = 0; n < s->n; n++, x += s->c * s->plane) {
                for (int32_t v = 0; v < s->volume; v++) *to++ = at[v] < 0 ? 0 : x[at[v]];
            }
        }
    }
}

/* The end of a sum: add the old value and the bias, apply the activation. */
TW_INLINE float finish(const column_task *t, float sum, float before, int32_t channel) {
    if (t->accumulate) sum += before;
    if (t->bias) sum += t->bias[channel];
    return t->relu && sum < 0 ? 0 : sum;
}

/* dx = the sum of what columns have for each element. */
static void scatter_chunk(const void *args, int64_t lo, int64_t hi) {
    const column_task *t = args;
    const column_shape *s = t->s;
    float *sums = thread_scratch();
    for (int32_t channel = (int32_t)lo; channel < hi; channel++) {
        for (int32_t n = 0; n < s->n; n++) {
            const float *from = t->from + channel * s->taps * s->positions + n * s->volume;
            const int32_t *at = t->table;
            for (int32_t i = 0; i < s->plane; i++) sums[i] = 0;
            for (int32_t tap = 0; tap < s->taps; tap++, at += s->volume, from += s->positions) {
                for (int32_t v = 0; v < s->volume; v++) {
                    if (at[v] >= 0) sums[at[v]] += from[v];
                }
            }
            float *x = t->to + (n * s->c + channel) * s->plane;
            for (int32_t i = 0; i < s->plane; i++) x[i] = finish(t, sums[i], x[i], channel);
        }
    }
}

/* y = the rows of a product, image by image. */
static void spread_chunk(const void *args, int64_t lo, int64_t hi) {
    const column_task *t = args;
    const column_shape *s = t->s;
    for (int32_t channel = (int32_t)lo; channel < hi; channel++) {
        const float *from = t->from + channel * s->positions;
        for (int32_t n = 0; n < s->n; n++) {
            float *y = t->to + (n * s->m + channel) * s->volume;
            for (int32_t v = 0; v < s->volume; v++) y[v] = finish(t, *from++, y[v], channel);
        }
    }
}

/* Rows of a product = dy, image after image. */
static void collect_chunk(const void *args, int64_t lo, int64_t hi) {
    const column_task *t = args;
    const column_shape *s = t->s;
    for (int32_t channel = (int32_t)lo; channel < hi; channel++) {
        float *to = t->to + channel * s->positions;
        for (int32_t n = 0; n < s->n; n++, to += s->volume) {
            tw_copy(to, t->from + (n * s->m + channel) * s->volume, 4 * (size_t)s->volume);
        }
    }
}

/* ---- products ---- */

typedef struct {
    const float *data;
    int32_t row, column;
} matrix;

/* c[m][n] = a b (+ c), c in rows. */
static void multiply(matrix a, matrix b, float *c, int32_t m, int32_t n, int32_t k, bool accumulate) {
    const gemm_f32_args args = {.a = a.data, .b = b.data, .bias = 0, .c = c, .m = m, .n = n, .k = k, .a_row = a.row,
                                .a_col = a.column, .b_row = b.row, .b_col = b.column, .c_row = n, .batch = {1, 1},
                                .alpha = 1, .beta = 1, .accumulate = accumulate};
    kernel_gemm_f32(&args);
}

int32_t kernel_columns_conv_f32(const columns_conv_f32_args *a) {
    const column_shape s = SHAPE_OF(a);
    if (!s.positions) return TW_OK;
    const int32_t depth = s.c * s.taps;
    fill_table(&s, a->table);
    column_task in = {.s = &s, .table = a->table, .from = a->x, .to = a->columns};
    parallel_ranges(gather_chunk, &in, s.c, units_per_chunk(s.taps * s.positions));
    multiply((matrix){a->w, depth, 1}, (matrix){a->columns, s.positions, 1}, a->rows, s.m, s.positions, depth, false);
    column_task out = {.s = &s, .from = a->rows, .to = a->y, .bias = a->bias, .accumulate = a->accumulate != 0,
                       .relu = a->activation == ACTIVATION_RELU};
    parallel_ranges(spread_chunk, &out, s.m, units_per_chunk(s.positions));
    return TW_OK;
}

int32_t kernel_columns_data_gradient_f32(const columns_data_gradient_f32_args *a) {
    const column_shape s = SHAPE_OF(a);
    if (!s.positions) return TW_OK;
    const int32_t depth = s.c * s.taps;
    fill_table(&s, a->table);
    column_task in = {.s = &s, .from = a->dy, .to = a->rows};
    parallel_ranges(collect_chunk, &in, s.m, units_per_chunk(s.positions));
    multiply((matrix){a->w, 1, depth}, (matrix){a->rows, s.positions, 1}, a->columns, depth, s.positions, s.m, false);
    column_task out = {.s = &s, .table = a->table, .from = a->columns, .to = a->dx, .bias = a->bias,
                       .accumulate = a->accumulate != 0, .relu = a->activation == ACTIVATION_RELU};
    parallel_ranges(scatter_chunk, &out, s.c, units_per_chunk(s.taps * s.positions));
    return TW_OK;
}

int32_t kernel_columns_weight_gradient_f32(const columns_weight_gradient_f32_args *a) {
    const column_shape s = SHAPE_OF(a);
    const int32_t depth = s.c * s.taps;
    if (a->db) channel_sums(a->dy, a->db, a->n, a->m, s.volume, a->accumulate != 0);
    fill_table(&s, a->table);
    column_task images = {.s = &s, .table = a->table, .from = a->x, .to = a->columns};
    parallel_ranges(gather_chunk, &images, s.c, units_per_chunk(s.taps * s.positions));
    column_task outputs = {.s = &s, .from = a->dy, .to = a->rows};
    parallel_ranges(collect_chunk, &outputs, s.m, units_per_chunk(s.positions));
    multiply((matrix){a->rows, s.positions, 1}, (matrix){a->columns, 1, s.positions}, a->dw, s.m, depth, s.positions,
             a->accumulate != 0);
    return TW_OK;
}
