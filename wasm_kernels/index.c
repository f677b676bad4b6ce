/* Gather, scatter and their gradients. Every index is checked before anything is written. */
#include "parallel.h"
#include "simd.h"

enum { INDEX_GRAIN_BYTES = 1 << 16 };

/* The first value outside [lo, hi) that is not `ignore`. */
int32_t kernel_check_indices(const check_indices_args *a) {
    for (int64_t i = 0; i < a->n; i++) {
        int64_t v = load_index(a->indices, i, a->index_size);
        if ((v < a->lo || v >= a->hi) && !(a->has_ignore && v == a->ignore))
            return tw_fail(a->is_label ? TW_BAD_LABEL : TW_BAD_INDEX, v, i);
    }
    return TW_OK;
}

static int32_t check_range(const uint8_t *indices, int64_t n, int32_t index_size, int64_t dim) {
    for (int64_t i = 0; i < n; i++) {
        int64_t v = load_index(indices, i, index_size);
        if (v < -dim || v >= dim) return tw_fail(TW_BAD_INDEX, v, i);
    }
    return TW_OK;
}

/* An index counted from the front. */
TW_INLINE int64_t front(int64_t v, int64_t dim) { return v < 0 ? v + dim : v; }

static void gather_chunk(const void *args, int32_t chunk) {
    const gather_args *a = args;
    int32_t per = max_i32(1, INDEX_GRAIN_BYTES / max_i32(1, a->inner));
    int64_t rows = (int64_t)a->outer * a->n, end = min_i64(rows, (int64_t)(chunk + 1) * per);
    for (int64_t r = (int64_t)chunk * per; r < end; r++) {
        int64_t o = r / a->n, index = front(load_index(a->indices, r % a->n, a->index_size), a->dim);
        tw_copy(a->y + r * a->inner, a->data + (o * a->dim + index) * a->inner, (size_t)a->inner);
    }
}

/* y[o, i, :] = data[o, indices[i], :]; `inner` is bytes. */
int32_t kernel_gather(const gather_args *a) {
    int32_t status = check_range(a->indices, a->n, a->index_size, a->dim);
    if (status || !a->n || !a->outer) return status;
    parallel_for(gather_chunk, a, chunk_count((int64_t)a->outer * a->n, max_i32(1, INDEX_GRAIN_BYTES / max_i32(1, a->inner))));
    return TW_OK;
}

enum { GATHER_GRAD_COLUMNS = 64 };

static void gather_grad_chunk(const void *args, int32_t chunk) {
    const gather_grad_f32_args *a = args;
    int32_t blocks = chunk_count(a->inner, GATHER_GRAD_COLUMNS);
    int64_t o = chunk / blocks;
    int32_t from = (chunk % blocks) * GATHER_GRAD_COLUMNS, width = min_i32(a->inner - from, GATHER_GRAD_COLUMNS);
    float *dx = a->dx + o * a->dim * a->inner + from;
    for (int32_t d = 0; d < a->dim; d++) tw_zero(dx + (int64_t)d * a->inner, (size_t)width * 4);
    for (int32_t i = 0; i < a->n; i++) {
        float *to = dx + front(load_index(a->indices, i, a->index_size), a->dim) * a->inner;
        const float *dy = a->dy + (o * a->n + i) * a->inner + from;
        int32_t k = 0;
        for (; k + 4 <= width; k += 4) store4(to + k, add4(load4(to + k), load4(dy + k)));
        for (; k < width; k++) to[k] += dy[k];
    }
}

/* dx = 0; dx[o, indices[i], :] += dy[o, i, :] in the order of i, by blocks of columns. */
int32_t kernel_gather_grad_f32(const gather_grad_f32_args *a) {
    int32_t status = check_range(a->indices, a->n, a->index_size, a->dim);
    if (status || !a->inner || !a->outer) return status;
    parallel_for(gather_grad_chunk, a, a->outer * chunk_count(a->inner, GATHER_GRAD_COLUMNS));
    return TW_OK;
}

TW_INLINE void put(uint8_t *dst, const uint8_t *src, int32_t size) {
    if (size == 4) *(uint32_t *)dst = *(const uint32_t *)src;
    else if (size == 8) *(uint64_t *)dst = *(const uint64_t *)src;
    else *dst = *src;
}

enum { REDUCE_NONE, REDUCE_ADD, REDUCE_MUL, REDUCE_MAX, REDUCE_MIN };

TW_INLINE void combine(uint8_t *dst, const uint8_t *src, int32_t size, int32_t reduction) {
    float *d = (float *)dst, s = *(const float *)src;
    if (reduction == REDUCE_NONE) put(dst, src, size);
    else if (reduction == REDUCE_ADD) *d += s;
    else if (reduction == REDUCE_MUL) *d *= s;
    else if (reduction == REDUCE_MAX) *d = s > *d ? s : *d;
    else *d = s < *d ? s : *d;
}

/* Element offset of position i of `dims` by `strides`. */
TW_INLINE int64_t offset_of(int64_t i, const int32_t *dims, const int32_t *strides) {
    int64_t offset = 0;
    for (int32_t d = 7; d >= 0; d--) {
        offset += (i % dims[d]) * strides[d];
        i /= dims[d];
    }
    return offset;
}

/* y[i] = data[i with its coordinate along the axis replaced by indices[i]]; the axis has stride 0 in `strides`. */
int32_t kernel_gather_elements(const gather_elements_args *a) {
    int32_t status = check_range(a->indices, a->n, a->index_size, a->axis_dim);
    if (status) return status;
    for (int64_t i = 0; i < a->n; i++) {
        int64_t index = front(load_index(a->indices, i, a->index_size), a->axis_dim);
        int64_t from = offset_of(i, a->dims, a->strides) + index * a->axis_stride;
        put(a->y + i * a->elem_size, a->data + from * a->elem_size, a->elem_size);
    }
    return TW_OK;
}

/* data[...indices[i]...] (op)= updates[i] in the order of i; reductions other than 0 are of float32. */
int32_t kernel_scatter_elements(const scatter_elements_args *a) {
    int32_t status = check_range(a->indices, a->n, a->index_size, a->axis_dim);
    if (status) return status;
    for (int64_t i = 0; i < a->n; i++) {
        int64_t index = front(load_index(a->indices, i, a->index_size), a->axis_dim);
        int64_t to = offset_of(i, a->dims, a->strides) + index * a->axis_stride;
        combine(a->data + to * a->elem_size, a->updates + i * a->elem_size, a->elem_size, a->reduction);
    }
    return TW_OK;
}

/* Row number of the index tuple at `tuple`, or -1 with a failure reported. */
static int64_t nd_row(const uint8_t *indices, int64_t tuple, int32_t k, const int32_t *dims, int32_t index_size) {
    int64_t row = 0;
    for (int32_t j = 0; j < k; j++) {
        int64_t v = load_index(indices, tuple * k + j, index_size);
        if (v < -dims[j] || v >= dims[j]) {
            tw_fail(TW_BAD_INDEX, v, tuple * k + j);
            return -1;
        }
        row = row * dims[j] + front(v, dims[j]);
    }
    return row;
}

/* y[b, i, :] = data[b, indices[b, i, 0], ..., indices[b, i, k-1], :]; `inner` is bytes. */
int32_t kernel_gather_nd(const gather_nd_args *a) {
    int64_t tuples = (int64_t)a->batch * a->n, rows = 1;
    for (int32_t j = 0; j < 8; j++) rows *= a->dims[j];
    for (int64_t t = 0; t < tuples; t++)
        if (nd_row(a->indices, t, a->k, a->dims, a->index_size) < 0) return TW_BAD_INDEX;
    for (int64_t t = 0; t < tuples; t++) {
        int64_t row = nd_row(a->indices, t, a->k, a->dims, a->index_size) + t / a->n * rows;
        tw_copy(a->y + t * a->inner, a->data + row * a->inner, (size_t)a->inner);
    }
    return TW_OK;
}

/* data[b, indices[b, i], :] (op)= updates[b, i, :] in order; `inner` is elements. */
int32_t kernel_scatter_nd(const scatter_nd_args *a) {
    int64_t tuples = (int64_t)a->batch * a->n, rows = 1;
    for (int32_t j = 0; j < 8; j++) rows *= a->dims[j];
    for (int64_t t = 0; t < tuples; t++)
        if (nd_row(a->indices, t, a->k, a->dims, a->index_size) < 0) return TW_BAD_INDEX;
    for (int64_t t = 0; t < tuples; t++) {
        int64_t row = nd_row(a->indices, t, a->k, a->dims, a->index_size) + t / a->n * rows;
        for (int64_t e = 0; e < a->inner; e++)
            combine(a->data + (row * a->inner + e) * a->elem_size, a->updates + (t * a->inner + e) * a->elem_size,
                    a->elem_size, a->reduction);
    }
    return TW_OK;
}

/* y[o, d, i] = indices[o, i] == d ? values[1] : values[0]; an index outside [-depth, depth) gives no one. */
int32_t kernel_one_hot(const one_hot_args *a) {
    int64_t size = a->elem_size;
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t i = 0; i < a->inner; i++) {
            int64_t hot = front(load_index(a->indices, o * a->inner + i, a->index_size), a->depth);
            for (int64_t d = 0; d < a->depth; d++)
                put(a->y + ((o * a->depth + d) * a->inner + i) * size, a->values + (d == hot ? size : 0), a->elem_size);
        }
    return TW_OK;
}
