/* Gather, scatter and their gradients. Every index is checked before the first write, so that a bad one leaves the
   output as it was. Sums are added in the order of the indices: the same for any number of threads. */
#include "index.h"

#include "parallel.h"
#include "simd.h"

int32_t kernel_check_indices(const check_indices_args *a) {
    for (int64_t i = 0; i < a->n; i++) {
        int64_t index = load_index(a->indices, i, a->index_size);
        if (index >= a->lo && index < a->hi) continue;
        if (a->has_ignore && index == a->ignore) continue;
        return a->label ? tw_fail_label(index, i, a->hi) : tw_fail(TW_BAD_INDEX, index, i);
    }
    return TW_OK;
}

TW_INLINE void copy_element(uint8_t *dst, const uint8_t *src, int64_t size) {
    if (size == 4) *(uint32_t *)dst = *(const uint32_t *)src;
    else if (size == 8) *(uint64_t *)dst = *(const uint64_t *)src;
    else if (size == 1) *dst = *src;
    else if (size == 2) *(uint16_t *)dst = *(const uint16_t *)src;
    else copy_row(dst, src, (size_t)size);
}

/* ---- rows ---- */

static void gather_chunk(const void *args, int64_t lo, int64_t hi) {
    const gather_args *a = args;
    for (int64_t row = lo; row < hi; row++) {
        int64_t o = row / a->n, index = resolve(a->indices, row % a->n, a->index_size, a->dim);
        copy_element(a->y + row * a->inner, a->data + (o * a->dim + index) * a->inner, a->inner);
    }
}

int32_t kernel_gather(const gather_args *a) {
    int32_t status = check_range(a->indices, a->n, a->index_size, a->dim);
    if (status || !a->inner || !a->n) return status;
    parallel_ranges(gather_chunk, a, (int64_t)a->outer * a->n, units_per_chunk((int64_t)a->inner / 4));
    return TW_OK;
}

/* Columns [lo, hi) of all rows: a task owns columns, so no two tasks add to the same element. */
static void add_rows(const gather_grad_f32_args *a, int64_t o, int64_t lo, int64_t hi) {
    for (int64_t i = 0; i < a->n; i++) {
        const float *src = a->dy + (o * a->n + i) * a->inner;
        float *dst = a->dx + (o * a->dim + resolve(a->indices, i, a->index_size, a->dim)) * a->inner;
        int64_t k = lo;
        for (; k + 4 <= hi; k += 4) store4(dst + k, add4(load4(dst + k), load4(src + k)));
        for (; k < hi; k++) dst[k] += src[k];
    }
}

enum { COLUMNS = 64 };

static void gather_grad_chunk(const void *args, int32_t chunk) {
    const gather_grad_f32_args *a = args;
    int32_t strips = (a->inner + COLUMNS - 1) / COLUMNS;
    int64_t o = chunk / strips, lo = (int64_t)(chunk % strips) * COLUMNS;
    add_rows(a, o, lo, min_i64(lo + COLUMNS, a->inner));
}

int32_t kernel_gather_grad_f32(const gather_grad_f32_args *a) {
    int32_t status = check_range(a->indices, a->n, a->index_size, a->dim);
    if (status) return status;
    int64_t plane = (int64_t)a->dim * a->inner;
    tw_zero(a->dx, 4 * (size_t)(a->outer * plane));
    if (!a->inner || !plane) return TW_OK;
    int64_t chunks = (int64_t)a->outer * ((a->inner + COLUMNS - 1) / COLUMNS);
    if ((int64_t)a->outer * a->n * a->inner >= 2 * GRAIN && chunks <= INT32_MAX) {
        parallel_for(gather_grad_chunk, a, (int32_t)chunks);
    } else {
        for (int64_t o = 0; o < a->outer; o++) add_rows(a, o, 0, a->inner);
    }
    return TW_OK;
}

/* ---- elements ---- */

TW_INLINE float reduced(float old, float update, int32_t reduction) {
    if (reduction == SCATTER_ADD) return old + update;
    if (reduction == SCATTER_MUL) return old * update;
    if (old != old || update != update) return old + update;
    if (reduction == SCATTER_MAX) return old > update ? old : update;
    return old < update ? old : update;
}

/* The same for integers, which wrap: products and sums are computed on unsigned integers. */
#define REDUCED_INT(T, U, old, update, reduction)                    \
    ((reduction) == SCATTER_ADD   ? (T)((U)(old) + (U)(update))      \
     : (reduction) == SCATTER_MUL ? (T)((U)(old) * (U)(update))      \
     : (reduction) == SCATTER_MAX ? ((old) > (update) ? (old) : (update)) \
                                  : ((old) < (update) ? (old) : (update)))

/* y[i] and update[i] become one, for i in [0, n). */
static void reduce_into(uint8_t *y, const uint8_t *update, int64_t n, int32_t reduction, int32_t type) {
    for (int64_t i = 0; i < n; i++) {
        if (type == SCATTER_F32) {
            float *to = (float *)y + i;
            *to = reduced(*to, ((const float *)update)[i], reduction);
        } else if (type == SCATTER_I32) {
            int32_t *to = (int32_t *)y + i, from = ((const int32_t *)update)[i];
            *to = REDUCED_INT(int32_t, uint32_t, *to, from, reduction);
        } else {
            int64_t *to = (int64_t *)y + i, from = ((const int64_t *)update)[i];
            *to = REDUCED_INT(int64_t, uint64_t, *to, from, reduction);
        }
    }
}

/* The odometer over the shape of the indices; `base` follows the strides of data. */
typedef struct {
    int32_t at[8];
    int64_t base;
} odometer;

TW_INLINE void advance(odometer *o, const int32_t *dims, const int32_t *strides) {
    for (int32_t k = 7; k >= 0; k--) {
        o->base += strides[k];
        if (++o->at[k] < dims[k]) return;
        o->base -= (int64_t)strides[k] * dims[k];
        o->at[k] = 0;
    }
}

static int64_t element_count(const int32_t *dims) {
    int64_t count = 1;
    for (int32_t k = 0; k < 8; k++) count *= dims[k];
    return count;
}

int32_t kernel_gather_elements(const gather_elements_args *a) {
    int64_t count = element_count(a->dims);
    int32_t status = check_range(a->indices, count, a->index_size, a->axis_dim);
    if (status) return status;
    odometer o = {{0}, 0};
    for (int64_t i = 0; i < count; i++, advance(&o, a->dims, a->strides)) {
        int64_t from = o.base + resolve(a->indices, i, a->index_size, a->axis_dim) * a->axis_stride;
        copy_element(a->y + i * a->size, a->data + from * a->size, a->size);
    }
    return TW_OK;
}

int32_t kernel_scatter_elements(const scatter_elements_args *a) {
    int64_t count = element_count(a->dims);
    int32_t status = check_range(a->indices, count, a->index_size, a->axis_dim);
    if (status) return status;
    odometer o = {{0}, 0};
    for (int64_t i = 0; i < count; i++, advance(&o, a->dims, a->strides)) {
        int64_t to = o.base + resolve(a->indices, i, a->index_size, a->axis_dim) * a->axis_stride;
        uint8_t *y = a->y + to * a->size;
        const uint8_t *update = a->updates + i * a->size;
        if (a->reduction == SCATTER_SET) copy_element(y, update, a->size);
        else reduce_into(y, update, 1, a->reduction, a->type);
    }
    return TW_OK;
}

/* ---- tuples ---- */

/* The k numbers of tuple t as a flat position in dims; the status is for the first bad one. */
static int32_t locate(const uint8_t *indices, int64_t t, int32_t k, const int32_t *dims, int32_t index_size,
                      int64_t *position) {
    int64_t flat = 0;
    for (int32_t j = 0; j < k; j++) {
        int64_t index = load_index(indices, t * k + j, index_size), dim = dims[j];
        if (index < -dim || index >= dim) return tw_fail(TW_BAD_INDEX, index, t * k + j);
        flat = flat * dim + (index < 0 ? index + dim : index);
    }
    for (int32_t j = k; j < 8; j++) flat *= dims[j];
    *position = flat;
    return TW_OK;
}

static int32_t check_tuples(const uint8_t *indices, int64_t n, int32_t k, const int32_t *dims, int32_t index_size) {
    int64_t position;
    for (int64_t t = 0; t < n; t++) {
        int32_t status = locate(indices, t, k, dims, index_size, &position);
        if (status) return status;
    }
    return TW_OK;
}

int32_t kernel_gather_nd(const gather_nd_args *a) {
    int64_t n = (int64_t)a->batch * a->n, plane = element_count(a->dims) * a->slice, position = 0;
    int32_t status = check_tuples(a->indices, n, a->k, a->dims, a->index_size);
    if (status || !plane) return status;
    for (int64_t t = 0; t < n; t++) {
        locate(a->indices, t, a->k, a->dims, a->index_size, &position);
        copy_element(a->y + t * a->slice, a->data + t / a->n * plane + position * a->slice, a->slice);
    }
    return TW_OK;
}

int32_t kernel_scatter_nd(const scatter_nd_args *a) {
    int64_t n = (int64_t)a->batch * a->n, plane = element_count(a->dims) * a->slice, position = 0;
    int32_t status = check_tuples(a->indices, n, a->k, a->dims, a->index_size);
    if (status || !plane) return status;
    for (int64_t t = 0; t < n; t++) {
        locate(a->indices, t, a->k, a->dims, a->index_size, &position);
        uint8_t *y = a->y + t / a->n * plane + position * a->slice;
        const uint8_t *update = a->updates + t * a->slice;
        if (a->reduction == SCATTER_SET) copy_element(y, update, a->slice);
        else reduce_into(y, update, a->slice / (a->type == SCATTER_I64 ? 8 : 4), a->reduction, a->type);
    }
    return TW_OK;
}

int32_t kernel_one_hot(const one_hot_args *a) {
    int64_t plane = (int64_t)a->depth * a->inner;
    if (!plane) return TW_OK;
    const uint8_t *off = a->values, *on = a->values + a->size;
    for (int64_t i = 0; i < a->outer * plane; i++) copy_element(a->y + i * a->size, off, a->size);
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t i = 0; i < a->inner; i++) {
            int64_t index = resolve(a->indices, o * a->inner + i, a->index_size, a->depth);
            if (index >= 0 && index < a->depth)
                copy_element(a->y + (o * plane + index * a->inner + i) * a->size, on, a->size);
        }
    return TW_OK;
}
