/* Max and average pooling and their gradients. A plane (one channel of one image) belongs to one chunk, so that the
   scattered sums of the gradients have one order. */
#include <stdbool.h>

#include "parallel.h"
#include "simd.h"

/* Elements of a chunk: some 20 us of work. */
enum { CHUNK_ELEMENTS = 1 << 14 };

/* Planes of one chunk. */
static int32_t planes_per_chunk(int32_t plane) { return max_i32(1, CHUNK_ELEMENTS / max_i32(1, plane)); }

/* One axis of a window. */
typedef struct {
    int32_t size, kernel, out, stride, dilation, pad;
} pool_axis;

/* Taps [lo, hi) of output o that fall into [first, end). */
typedef struct {
    int32_t lo, hi, start; /* start: position of tap 0 */
} tap_range;

TW_INLINE int64_t ceil_taps(int64_t distance, int32_t dilation) {
    return dilation == 1 ? distance : (distance + dilation - 1) / dilation;
}

TW_INLINE tap_range taps_inside(const pool_axis *a, int32_t o, int32_t first, int64_t end) {
    tap_range r = {0, 0, o * a->stride - a->pad};
    if (r.start < first) r.lo = (int32_t)ceil_taps((int64_t)first - r.start, a->dilation);
    if (r.start < end) r.hi = (int32_t)min_i64(a->kernel, ceil_taps(end - r.start, a->dilation));
    if (r.lo > r.hi) r.lo = r.hi;
    return r;
}

TW_INLINE void load_axes(pool_axis axis[3], const int32_t *size, const int32_t *kernel, const int32_t *out,
                         const int32_t *stride, const int32_t *dilation, const int32_t *pad) {
    for (int32_t i = 0; i < 3; i++)
        axis[i] = (pool_axis){size[i], kernel[i], out[i], stride[i], dilation[i], pad[i]};
}

/* Outputs [lo, hi) of an axis whose whole window lies inside the input. */
typedef struct {
    int32_t lo, hi;
} output_range;

static output_range whole_windows(const pool_axis *a) {
    int64_t last = (int64_t)a->size - 1 - (int64_t)(a->kernel - 1) * a->dilation + a->pad;
    output_range r = {(a->pad + a->stride - 1) / a->stride, 0};
    if (last >= 0) r.hi = (int32_t)min_i64(a->out, last / a->stride + 1);
    if (r.lo > r.hi) r.lo = r.hi;
    return r;
}

/* True if windows are 2x2 without padding or overlap, in rows of at least one vector. */
static bool has_squares(const pool_axis axis[3]) {
    for (int32_t i = 0; i < 3; i++) {
        const pool_axis *a = &axis[i];
        int32_t k = i ? 2 : 1;
        if (a->kernel != k || a->stride != k || a->dilation != 1 || a->pad || a->out > a->size / k) return false;
    }
    return axis[2].out >= 4;
}

/* x[0], x[stride], x[2 * stride], x[3 * stride]; reads nothing beyond the last. */
TW_INLINE f32x4 load_strided(const float *x, const int32_t stride) {
    if (stride == 1) return load4(x);
    if (stride == 2) return wasm_i32x4_shuffle(load4(x), load4(x + 3), 0, 2, 5, 7);
    f32x4 v = wasm_v128_load32_zero(x);
    v = wasm_v128_load32_lane(x + stride, v, 1);
    v = wasm_v128_load32_lane(x + 2 * stride, v, 2);
    return wasm_v128_load32_lane(x + 3 * stride, v, 3);
}

/* ---- maximum ---- */

typedef struct {
    const max_pool_f32_args *a;
    pool_axis axis[3];
    output_range whole; /* columns */
    int32_t size, out;
    bool squares;
} max_pass;

static void max_window(const max_pass *p, const float *x, tap_range z, tap_range y, int32_t column, float *best,
                       int32_t *where) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    tap_range w = taps_inside(ax, column, 0, ax->size);
    *best = -__builtin_inff();
    *where = -1;
    for (int32_t tz = z.lo; tz < z.hi; tz++) {
        for (int32_t ty = y.lo; ty < y.hi; ty++) {
            int32_t line = ((z.start + tz * az->dilation) * ay->size + y.start + ty * ay->dilation) * ax->size + w.start;
            for (int32_t tx = w.lo; tx < w.hi; tx++) {
                int32_t at = line + tx * ax->dilation;
                float v = x[at];
                if (v > *best || v != v || *where < 0) {
                    *best = v;
                    *where = at;
                    if (v != v) return;
                }
            }
        }
    }
}

/* Mask where b is greater than a, or is the first NaN. */
TW_INLINE v128_t replaces(f32x4 b, f32x4 a) { return wasm_v128_andnot(wasm_f32x4_eq(a, a), wasm_f32x4_le(b, a)); }

/* Replaces best where v does. */
TW_INLINE void max_step(f32x4 *best, v128_t *where, f32x4 v, v128_t at) {
    v128_t take = replaces(v, *best);
    *best = select4(take, v, *best);
    *where = select4(take, at, *where);
}

/* Positions in x fit 32 bits: there are 4 GiB of memory. */
TW_INLINE void store_maxima(f32x4 best, v128_t where, float *out, int64_t *indices) {
    store4(out, best);
    if (!indices) return;
    wasm_v128_store(indices, wasm_i64x2_extend_low_i32x4(where));
    wasm_v128_store(indices + 2, wasm_i64x2_extend_high_i32x4(where));
}

/* Four neighbouring outputs whose windows are whole along the row, and hold something. */
TW_INLINE void max_vector(const max_pass *p, const int32_t kernel, const int32_t stride, const float *x, tap_range z,
                          tap_range y, int32_t column, float *out, int64_t *indices, int32_t base) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    v128_t lanes = wasm_i32x4_mul(wasm_i32x4_make(0, 1, 2, 3), wasm_i32x4_splat(stride));
    v128_t next = wasm_i32x4_splat(ax->dilation), where = wasm_i32x4_splat(-1);
    f32x4 best = splat(0);
    for (int32_t tz = z.lo; tz < z.hi; tz++) {
        for (int32_t ty = y.lo; ty < y.hi; ty++) {
            int32_t at = ((z.start + tz * az->dilation) * ay->size + y.start + ty * ay->dilation) * ax->size +
                         column * stride - ax->pad;
            v128_t position = wasm_i32x4_add(lanes, wasm_i32x4_splat(base + at));
            if (tz == z.lo && ty == y.lo) best = load_strided(x + at, stride), where = position;
            for (int32_t tx = 0; tx < kernel; tx++, at += ax->dilation) {
                max_step(&best, &where, load_strided(x + at, stride), position);
                position = wasm_i32x4_add(position, next);
            }
        }
    }
    store_maxima(best, where, out + column, indices ? indices + column : NULL);
}

/* Four outputs of windows of 2x2 side by side, the first of which stands at x; `position` is its index. */
TW_INLINE void max_squares(const float *x, int32_t width, v128_t lanes, int32_t position, float *out, int64_t *indices) {
    f32x4 a = load4(x), b = load4(x + 4), c = load4(x + width), d = load4(x + width + 4);
    f32x4 top = wasm_i32x4_shuffle(a, b, 0, 2, 4, 6), top_right = wasm_i32x4_shuffle(a, b, 1, 3, 5, 7);
    f32x4 low = wasm_i32x4_shuffle(c, d, 0, 2, 4, 6), low_right = wasm_i32x4_shuffle(c, d, 1, 3, 5, 7);
    v128_t right = replaces(top_right, top), right_below = replaces(low_right, low);
    top = select4(right, top_right, top);
    low = select4(right_below, low_right, low);
    v128_t below = replaces(low, top), where = wasm_i32x4_add(lanes, wasm_i32x4_splat(position));
    where = wasm_i32x4_add(where, wasm_v128_and(below, wasm_i32x4_splat(width)));
    where = wasm_i32x4_sub(where, select4(below, right_below, right));
    store_maxima(select4(below, low, top), where, out, indices);
}

static void max_plane_of_squares(const max_pass *p, const float *x, float *y, int64_t *indices, int32_t base) {
    v128_t lanes = held4(wasm_i32x4_make(0, 2, 4, 6));
    int32_t width = p->axis[2].size, out = p->axis[2].out, row = 0;
    for (int32_t oz = 0; oz < p->axis[0].out; oz++, row += (p->axis[1].size - 2 * p->axis[1].out) * width) {
        for (int32_t oy = 0; oy < p->axis[1].out; oy++, row += 2 * width, y += out) {
            for (int32_t i = 0; i < out; i += 4) {
                /* The last vector overlaps the one before. */
                int32_t column = min_i32(i, out - 4), at = row + 2 * column;
                max_squares(x + at, width, lanes, base + at, y + column, indices ? indices + column : NULL);
            }
            if (indices) indices += out;
        }
    }
}

/* One row of outputs. */
static void max_row(const max_pass *p, const float *x, tap_range z, tap_range r, float *y, int64_t *indices, int32_t base) {
    const pool_axis *ax = &p->axis[2];
    int32_t lo = p->whole.lo, hi = p->whole.hi, n = (z.hi - z.lo) * (r.hi - r.lo), k = ax->kernel, s = ax->stride;
    if (hi - lo < 4 || !n) lo = hi = 0;
    for (int32_t i = lo; i < hi; i += 4) {
        /* The last vector overlaps the one before. */
        int32_t column = min_i32(i, hi - 4);
        if (k == 3 && s == 1) max_vector(p, 3, 1, x, z, r, column, y, indices, base);
        else if (k == 3 && s == 2) max_vector(p, 3, 2, x, z, r, column, y, indices, base);
        else if (s == 2) max_vector(p, k, 2, x, z, r, column, y, indices, base);
        else max_vector(p, k, s, x, z, r, column, y, indices, base);
    }
    for (int32_t column = 0; column < ax->out; column++) {
        if (column == lo) column = hi;
        if (column >= ax->out) break;
        float best;
        int32_t where;
        max_window(p, x, z, r, column, &best, &where);
        y[column] = best;
        if (indices) indices[column] = where < 0 ? -1 : base + where;
    }
}

static void max_plane(const max_pass *p, int32_t plane) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    const float *x = p->a->x + plane * p->size;
    float *y = p->a->y + plane * p->out;
    int64_t *indices = p->a->indices ? p->a->indices + plane * p->out : 0;
    if (p->squares) return max_plane_of_squares(p, x, y, indices, plane * p->size);
    for (int32_t oz = 0; oz < az->out; oz++) {
        tap_range z = taps_inside(az, oz, 0, az->size);
        for (int32_t oy = 0; oy < ay->out; oy++) {
            max_row(p, x, z, taps_inside(ay, oy, 0, ay->size), y, indices, plane * p->size);
            y += ax->out;
            if (indices) indices += ax->out;
        }
    }
}

static void max_chunk(const void *args, int64_t lo, int64_t hi) {
    const max_pass *p = args;
    for (int32_t plane = (int32_t)lo; plane < hi; plane++) max_plane(p, plane);
}

int32_t kernel_max_pool_f32(const max_pool_f32_args *a) {
    max_pass p = {.a = a};
    load_axes(p.axis, a->size, a->kernel, a->out, a->stride, a->dilation, a->pad);
    p.whole = whole_windows(&p.axis[2]);
    p.size = a->size[0] * a->size[1] * a->size[2];
    p.out = a->out[0] * a->out[1] * a->out[2];
    p.squares = has_squares(p.axis);
    parallel_ranges(max_chunk, &p, a->planes, planes_per_chunk(p.size));
    return TW_OK;
}

typedef struct {
    const max_pool_gradient_f32_args *a;
    int32_t *bad; /* set when an index is outside its plane */
} max_gradient_pass;

TW_INLINE bool index_is_good(int64_t index, int32_t size) { return index >= 0 && index < size; }

static void max_gradient_chunk(const void *args, int64_t lo, int64_t hi) {
    const max_gradient_pass *p = args;
    const max_pool_gradient_f32_args *a = p->a;
    for (int32_t plane = (int32_t)lo; plane < hi; plane++) {
        float *dx = a->dx + plane * a->size;
        const float *dy = a->dy + plane * a->out_size;
        const int64_t *indices = a->indices + plane * a->out_size;
        int64_t base = (int64_t)plane * a->size;
        tw_zero(dx, 4 * (size_t)a->size);
        for (int32_t i = 0; i < a->out_size; i++) {
            int64_t at = indices[i] - base;
            if (index_is_good(at, a->size)) dx[at] += dy[i];
            else if (indices[i] != -1) __atomic_store_n(p->bad, 1, __ATOMIC_RELAXED);
        }
    }
}

int32_t kernel_max_pool_gradient_f32(const max_pool_gradient_f32_args *a) {
    int32_t bad = 0;
    if (!a->size && !a->out_size) return TW_OK;
    max_gradient_pass p = {a, &bad};
    parallel_ranges(max_gradient_chunk, &p, a->planes, planes_per_chunk(max_i32(a->size, a->out_size)));
    if (!bad) return TW_OK;
    for (int32_t i = 0;; i++) {
        int64_t at = a->indices[i] - (int64_t)(i / a->out_size) * a->size;
        if (!index_is_good(at, a->size) && a->indices[i] != -1) return tw_fail(TW_BAD_INDEX, a->indices[i], i);
    }
}

/* ---- average ---- */

typedef struct {
    pool_axis axis[3];
    output_range whole; /* columns */
    const int32_t *pad_end;
    int32_t size, out;
    bool include_pad;
    bool global, squares;
    const float *in;
    float *result;
} average_pass;

/* Positions of the window along one axis that count. */
TW_INLINE int32_t counted(const average_pass *p, int32_t i, int32_t o, tap_range inside) {
    if (!p->include_pad) return inside.hi - inside.lo;
    const pool_axis *a = &p->axis[i];
    tap_range r = taps_inside(a, o, -a->pad, (int64_t)a->size + p->pad_end[i]);
    return r.hi - r.lo;
}

static float plane_sum(const float *x, int32_t n) {
    f32x4 sum[4] = {splat(0), splat(0), splat(0), splat(0)};
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int32_t j = 0; j < 4; j++) sum[j] = add4(sum[j], load4(x + i + 4 * j));
    for (; i + 4 <= n; i += 4) sum[0] = add4(sum[0], load4(x + i));
    float total = hsum(add4(add4(sum[0], sum[1]), add4(sum[2], sum[3])));
    for (; i < n; i++) total += x[i];
    return total;
}

static float window_sum(const average_pass *p, const float *x, tap_range z, tap_range y, tap_range w) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    float sum = 0;
    for (int32_t tz = z.lo; tz < z.hi; tz++) {
        for (int32_t ty = y.lo; ty < y.hi; ty++) {
            int32_t line = ((z.start + tz * az->dilation) * ay->size + y.start + ty * ay->dilation) * ax->size + w.start;
            for (int32_t tx = w.lo; tx < w.hi; tx++) sum += x[line + tx * ax->dilation];
        }
    }
    return sum;
}

/* Sums of four neighbouring windows that are whole along the row. */
TW_INLINE f32x4 window_sums(const average_pass *p, const int32_t kernel, const int32_t stride, const float *x, tap_range z,
                            tap_range y, int32_t column) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    f32x4 sum = splat(0);
    for (int32_t tz = z.lo; tz < z.hi; tz++) {
        for (int32_t ty = y.lo; ty < y.hi; ty++) {
            int32_t at = ((z.start + tz * az->dilation) * ay->size + y.start + ty * ay->dilation) * ax->size +
                         column * stride - ax->pad;
            for (int32_t tx = 0; tx < kernel; tx++, at += ax->dilation) sum = add4(sum, load_strided(x + at, stride));
        }
    }
    return sum;
}

TW_INLINE float at_least_one(float count) { return count < 1 ? 1 : count; }

/* One row of means; `count` positions count along the other axes. */
static void average_row(const average_pass *p, const float *x, tap_range z, tap_range r, float count, float *y) {
    const pool_axis *ax = &p->axis[2];
    int32_t lo = p->whole.lo, hi = p->whole.hi, k = ax->kernel, s = ax->stride;
    f32x4 divisor = splat(at_least_one(count * (float)ax->kernel));
    if (hi - lo < 4) lo = hi = 0;
    for (int32_t i = lo; i < hi; i += 4) {
        int32_t column = min_i32(i, hi - 4);
        f32x4 sum;
        if (k == 3 && s == 1) sum = window_sums(p, 3, 1, x, z, r, column);
        else if (k == 3 && s == 2) sum = window_sums(p, 3, 2, x, z, r, column);
        else if (s == 1) sum = window_sums(p, k, 1, x, z, r, column);
        else if (s == 2) sum = window_sums(p, k, 2, x, z, r, column);
        else sum = window_sums(p, k, s, x, z, r, column);
        store4(y + column, div4(sum, divisor));
    }
    for (int32_t column = 0; column < ax->out; column++) {
        if (column == lo) column = hi;
        if (column >= ax->out) break;
        tap_range w = taps_inside(ax, column, 0, ax->size);
        y[column] = window_sum(p, x, z, r, w) / at_least_one(count * (float)counted(p, 2, column, w));
    }
}

enum { SHARES = 256 };

/* line[(column0 + i) * stride - pad + tap * dilation] += shares[i] for i < n, where that lies inside. */
static void spread_tap(const pool_axis *a, int32_t column0, int32_t n, int32_t tap, const float *shares, float *line) {
    int32_t start = column0 * a->stride - a->pad + tap * a->dilation;
    int32_t i = start < 0 ? (-start + a->stride - 1) / a->stride : 0;
    int32_t end = start < a->size ? min_i32(n, (a->size - start + a->stride - 1) / a->stride) : 0;
    line += start;
    if (a->stride == 1)
        for (; i + 4 <= end; i += 4) store4(line + i, add4(load4(line + i), load4(shares + i)));
    for (; i < end; i++) line[i * a->stride] += shares[i];
}

/* Adds the shares of one row of outputs to the inputs of their windows. */
static void spread_row(const average_pass *p, const float *dy, tap_range z, tap_range r, float count, float *dx) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    float shares[SHARES], whole = at_least_one(count * (float)ax->kernel);
    for (int32_t column0 = 0; column0 < ax->out; column0 += SHARES) {
        int32_t n = min_i32(SHARES, ax->out - column0);
        int32_t lo = max_i32(0, min_i32(n, p->whole.lo - column0)), hi = max_i32(lo, min_i32(n, p->whole.hi - column0));
        for (int32_t i = lo; i < hi; i++) shares[i] = dy[column0 + i] / whole;
        for (int32_t i = 0; i < n; i++) {
            if (i == lo) i = hi;
            if (i >= n) break;
            int32_t column = column0 + i;
            float positions = (float)counted(p, 2, column, taps_inside(ax, column, 0, ax->size));
            shares[i] = dy[column] / at_least_one(count * positions);
        }
        tap_range first = taps_inside(ax, column0, 0, ax->size), last = taps_inside(ax, column0 + n - 1, 0, ax->size);
        for (int32_t tz = z.lo; tz < z.hi; tz++) {
            for (int32_t ty = r.lo; ty < r.hi; ty++) {
                int32_t row = (z.start + tz * az->dilation) * ay->size + r.start + ty * ay->dilation;
                for (int32_t tx = last.lo; tx < first.hi; tx++)
                    spread_tap(ax, column0, n, tx, shares, dx + row * ax->size);
            }
        }
    }
}

/* Means of 2x2 squares of x into y, or quarters of dy into the squares of dx. */
TW_INLINE void average_squares(const average_pass *p, const float *in, float *result, const bool gradient) {
    int32_t width = p->axis[2].size, n = p->axis[2].out;
    int64_t below = (p->axis[1].size - 2 * (int64_t)p->axis[1].out) * width;
    const float *x = in;
    float *dx = result;
    for (int32_t oz = 0; oz < p->axis[0].out; oz++, x += below, dx += below) {
        for (int32_t oy = 0; oy < p->axis[1].out; oy++, x += 2 * width, dx += 2 * width) {
            for (int32_t i = 0; i < n; i += 4) {
                /* The last vector overlaps the one before. */
                int32_t column = min_i32(i, n - 4), at = 2 * column;
                if (gradient) {
                    f32x4 share = mul4(load4(in + column), splat(0.25f));
                    f32x4 left = wasm_i32x4_shuffle(share, share, 0, 0, 1, 1);
                    f32x4 right = wasm_i32x4_shuffle(share, share, 2, 2, 3, 3);
                    store4(dx + at, left);
                    store4(dx + at + 4, right);
                    store4(dx + at + width, left);
                    store4(dx + at + width + 4, right);
                } else {
                    f32x4 a = load4(x + at), b = load4(x + at + 4), c = load4(x + at + width), d = load4(x + at + width + 4);
                    f32x4 sum = add4(wasm_i32x4_shuffle(a, b, 0, 2, 4, 6), wasm_i32x4_shuffle(a, b, 1, 3, 5, 7));
                    sum = add4(sum, wasm_i32x4_shuffle(c, d, 0, 2, 4, 6));
                    sum = add4(sum, wasm_i32x4_shuffle(c, d, 1, 3, 5, 7));
                    store4(result + column, mul4(sum, splat(0.25f)));
                }
            }
            if (gradient) in += n;
            else result += n;
        }
    }
}

/* All rows of one plane: means of x into y, or shares of dy into dx. */
static void average_plane(const average_pass *p, const float *in, float *result, bool gradient) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    int32_t row = 0;
    for (int32_t oz = 0; oz < az->out; oz++) {
        tap_range z = taps_inside(az, oz, 0, az->size);
        float count_z = (float)counted(p, 0, oz, z);
        for (int32_t oy = 0; oy < ay->out; oy++, row += ax->out) {
            tap_range r = taps_inside(ay, oy, 0, ay->size);
            float count = count_z * (float)counted(p, 1, oy, r);
            if (gradient) spread_row(p, in + row, z, r, count, result);
            else average_row(p, in, z, r, count, result + row);
        }
    }
}

static bool is_global(const average_pass *p) {
    for (int32_t i = 0; i < 3; i++) {
        const pool_axis *a = &p->axis[i];
        if (a->out != 1 || a->pad || a->kernel != a->size || (a->dilation != 1 && a->size != 1)) return false;
    }
    return true;
}

static void average_chunk(const void *args, int64_t lo, int64_t hi) {
    const average_pass *p = args;
    for (int32_t plane = (int32_t)lo; plane < hi; plane++) {
        const float *x = p->in + plane * p->size;
        float *y = p->result + plane * p->out;
        if (p->global) *y = plane_sum(x, p->size) / (float)p->size;
        else if (p->squares) average_squares(p, x, y, false);
        else average_plane(p, x, y, false);
    }
}

static void average_gradient_chunk(const void *args, int64_t lo, int64_t hi) {
    const average_pass *p = args;
    for (int32_t plane = (int32_t)lo; plane < hi; plane++) {
        const float *dy = p->in + plane * p->out;
        float *dx = p->result + plane * p->size;
        if (p->global) {
            float share = *dy / (float)p->size;
            int32_t i = 0;
            for (; i + 4 <= p->size; i += 4) store4(dx + i, splat(share));
            for (; i < p->size; i++) dx[i] = share;
        } else {
            tw_zero(dx, 4 * (size_t)p->size);
            if (p->squares) average_squares(p, dy, dx, true);
            else average_plane(p, dy, dx, true);
        }
    }
}

static void prepare_average(average_pass *p) {
    p->whole = whole_windows(&p->axis[2]);
    p->global = is_global(p);
    p->squares = has_squares(p->axis);
}

/* The two kernels have the same fields after their two operands. */
#define AVERAGE_PASS(a, in, result)                                                                                    \
    {.pad_end = a->pad_end,                                                                                            \
     .size = a->size[0] * a->size[1] * a->size[2],                                                                     \
     .out = a->out[0] * a->out[1] * a->out[2],                                                                         \
     .include_pad = a->count_include_pad != 0,                                                                         \
     in,                                                                                                               \
     result}

int32_t kernel_average_pool_f32(const average_pool_f32_args *a) {
    average_pass p = AVERAGE_PASS(a, .in = a->x, .result = a->y);
    load_axes(p.axis, a->size, a->kernel, a->out, a->stride, a->dilation, a->pad);
    prepare_average(&p);
    parallel_ranges(average_chunk, &p, a->planes, planes_per_chunk(p.size));
    return TW_OK;
}

int32_t kernel_average_pool_gradient_f32(const average_pool_gradient_f32_args *a) {
    average_pass p = AVERAGE_PASS(a, .in = a->dy, .result = a->dx);
    load_axes(p.axis, a->size, a->kernel, a->out, a->stride, a->dilation, a->pad);
    prepare_average(&p);
    parallel_ranges(average_gradient_chunk, &p, a->planes, planes_per_chunk(p.size));
    return TW_OK;
}
