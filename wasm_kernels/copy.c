/* Copies and strided views: results are exact. */
#include "parallel.h"
#include "simd.h"

enum { COPY_CHUNK_BYTES = 256 << 10 };

/* Copy a row; a call of memory.copy costs more than a short loop. */
void copy_row(uint8_t *dst, const uint8_t *src, size_t nbytes) {
    if (nbytes > 256) {
        tw_copy(dst, src, nbytes);
        return;
    }
    size_t i = 0;
    for (; i + 16 <= nbytes; i += 16) wasm_v128_store(dst + i, wasm_v128_load(src + i));
    for (; i + 4 <= nbytes; i += 4) *(uint32_t *)(dst + i) = *(const uint32_t *)(src + i);
    for (; i < nbytes; i++) dst[i] = src[i];
}

static void copy_chunk(const void *args, int64_t lo, int64_t hi) {
    const copy_args *a = args;
    tw_copy(a->dst + lo, a->src + lo, (size_t)(hi - lo));
}

int32_t kernel_copy(const copy_args *a) {
    const uint8_t *dst_end = a->dst + a->n, *src_end = a->src + a->n;
    int32_t overlaps = a->dst < src_end && a->src < dst_end;
    if (overlaps || a->n < 4 * COPY_CHUNK_BYTES) tw_move(a->dst, a->src, (size_t)a->n);
    else parallel_ranges(copy_chunk, a, a->n, COPY_CHUNK_BYTES);
    return TW_OK;
}

/* ---- strided views ---- */

typedef struct {
    int32_t size, dst, src; /* extent and strides in elements */
} axis;

typedef struct {
    const uint8_t *src;
    uint8_t *dst;
    int32_t size; /* bytes per element */
    int32_t rank;
    axis axes[KERNEL_RANK];
    int32_t n_outer; /* product of all axes but those the inner loop handles */
    int32_t n_inner; /* axes the inner loop handles */
} view_copy;

/* Drop axes of size 1, merge axes that continue each other; returns the number of elements. */
static int64_t simplify(view_copy *v, const int32_t *dims, const int32_t *src, const int32_t *dst) {
    int64_t count = 1;
    v->rank = 0;
    for (int32_t k = 0; k < KERNEL_RANK; k++) {
        count *= dims[k];
        if (dims[k] == 1) continue;
        axis *last = v->axes + v->rank - 1;
        if (v->rank && (int64_t)src[k] * dims[k] == last->src && (int64_t)dst[k] * dims[k] == last->dst)
            *last = (axis){last->size * dims[k], dst[k], src[k]};
        else v->axes[v->rank++] = (axis){dims[k], dst[k], src[k]};
    }
    return count;
}

static void move_axis_last(view_copy *v, int32_t k) {
    axis moved = v->axes[k];
    for (; k + 1 < v->rank; k++) v->axes[k] = v->axes[k + 1];
    v->axes[k] = moved;
}

static int32_t find_unit(const view_copy *v, int32_t of_dst) {
    for (int32_t k = v->rank - 1; k >= 0; k--)
        if ((of_dst ? v->axes[k].dst : v->axes[k].src) == 1) return k;
    return -1;
}

/* A position in the outer axes and its element offsets. */
typedef struct {
    int32_t at[KERNEL_RANK];
    int64_t src, dst;
} cursor;

static cursor locate(const view_copy *v, int32_t position) {
    cursor c = {{0}, 0, 0};
    for (int32_t k = v->rank - v->n_inner - 1; k >= 0; k--) {
        int32_t i = c.at[k] = position % v->axes[k].size;
        position /= v->axes[k].size;
        c.src += (int64_t)i * v->axes[k].src;
        c.dst += (int64_t)i * v->axes[k].dst;
    }
    return c;
}

TW_INLINE void advance(const view_copy *v, cursor *c) {
    for (int32_t k = v->rank - v->n_inner - 1; k >= 0; k--) {
        const axis *x = v->axes + k;
        c->src += x->src;
        c->dst += x->dst;
        if (++c->at[k] < x->size) return;
        c->at[k] = 0;
        c->src -= (int64_t)x->src * x->size;
        c->dst -= (int64_t)x->dst * x->size;
    }
}

/* Both sides contiguous along the last axis. */
static void copy_rows(const void *args, int64_t lo, int64_t hi) {
    const view_copy *v = args;
    size_t nbytes = (size_t)v->axes[v->rank - 1].size * (size_t)v->size;
    cursor c = locate(v, (int32_t)lo);
    for (int64_t at = lo; at < hi; at++, advance(v, &c))
        copy_row(v->dst + c.dst * v->size, v->src + c.src * v->size, nbytes);
}

/* The source is contiguous along the last axis but one, the destination along the last. Blocks of 4 x 4 pass
   through registers, in strips of 16 source columns, which are one cache line. */
enum { STRIP = 16 };

static void transpose_strip(const float *src, float *dst, int32_t n_cols, int32_t n_rows, int32_t src_row,
                            int32_t dst_col) {
    int32_t j = 0;
    for (; j + 4 <= n_rows; j += 4) {
        const float *s = src + (int64_t)j * src_row;
        int32_t i = 0;
        for (; i + 4 <= n_cols; i += 4) {
            f32x4 a = load4(s + i), b = load4(s + src_row + i), c = load4(s + 2 * (int64_t)src_row + i),
                  d = load4(s + 3 * (int64_t)src_row + i);
            transpose4(&a, &b, &c, &d);
            float *t = dst + j + (int64_t)i * dst_col;
            store4(t, a);
            store4(t + dst_col, b);
            store4(t + 2 * (int64_t)dst_col, c);
            store4(t + 3 * (int64_t)dst_col, d);
        }
        for (; i < n_cols; i++)
            for (int32_t k = 0; k < 4; k++) dst[j + k + (int64_t)i * dst_col] = s[i + (int64_t)k * src_row];
    }
    for (; j < n_rows; j++)
        for (int32_t i = 0; i < n_cols; i++) dst[j + (int64_t)i * dst_col] = src[i + (int64_t)j * src_row];
}

static void copy_transposed(const void *args, int64_t lo, int64_t hi) {
    const view_copy *v = args;
    const axis *cols = v->axes + v->rank - 2, *rows = v->axes + v->rank - 1;
    int32_t n_strips = (cols->size + STRIP - 1) / STRIP;
    for (int64_t unit = lo; unit < hi; unit++) {
        cursor c = locate(v, (int32_t)(unit / n_strips));
        int32_t first = (int32_t)(unit % n_strips) * STRIP;
        transpose_strip((const float *)v->src + c.src + first, (float *)v->dst + c.dst + (int64_t)first * cols->dst,
                        min_i32(STRIP, cols->size - first), rows->size, rows->src, cols->dst);
    }
}

#define COPY_ELEMENTS(type)                                                       \
    for (int32_t i = 0; i < last->size; i++)                                      \
        ((type *)v->dst)[c.dst + (int64_t)i * last->dst] = ((const type *)v->src)[c.src + (int64_t)i * last->src]

static void copy_elements(const void *args, int64_t lo, int64_t hi) {
    const view_copy *v = args;
    const axis *last = v->axes + v->rank - 1;
    cursor c = locate(v, (int32_t)lo);
    for (int64_t at = lo; at < hi; at++, advance(v, &c)) {
        switch (v->size) {
        case 1: COPY_ELEMENTS(uint8_t); break;
        case 2: COPY_ELEMENTS(uint16_t); break;
        case 4: COPY_ELEMENTS(uint32_t); break;
        default: COPY_ELEMENTS(uint64_t); break;
        }
    }
}

int32_t kernel_strided_copy(const strided_copy_args *a) {
    view_copy v = {.size = a->size, .n_inner = 1};
    int64_t count = simplify(&v, a->dims, a->src_strides, a->dst_strides);
    if (!count) return TW_OK;
    v.src = a->src + (int64_t)a->src_offset * a->size;
    v.dst = a->dst + (int64_t)a->dst_offset * a->size;
    if (!v.rank) v.axes[v.rank++] = (axis){1, 1, 1};
    int32_t dst_unit = find_unit(&v, 1), src_unit = find_unit(&v, 0);
    range_fn task = copy_elements;
    if (dst_unit >= 0 && v.axes[dst_unit].src == 1) {
        move_axis_last(&v, dst_unit);
        task = copy_rows;
    } else if (dst_unit >= 0 && src_unit >= 0 && a->size == 4) {
        move_axis_last(&v, src_unit);
        move_axis_last(&v, dst_unit - (dst_unit > src_unit));
        v.n_inner = 2;
        task = copy_transposed;
    } else if (dst_unit >= 0) {
        move_axis_last(&v, dst_unit);
    }
    int64_t inner = v.axes[v.rank - 1].size;
    int64_t units = v.n_outer = (int32_t)(count / inner);
    if (task == copy_transposed) {
        int32_t cols = v.axes[v.rank - 2].size;
        v.n_outer /= cols;
        units = (int64_t)v.n_outer * ((cols + STRIP - 1) / STRIP);
        inner *= STRIP;
    }
    parallel_ranges(task, &v, units, units_per_chunk(inner));
    return TW_OK;
}
