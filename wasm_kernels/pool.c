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

TW_INLINE tap_range taps_inside(const pool_axis *a, int32_t o, int32_t first, int64_t end) {
    tap_range r = {0, 0, o * a->stride - a->pad};
    if (r.start < first) r.lo = (int32_t)(((int64_t)first - r.start + a->dilation - 1) / a->dilation);
    if (r.start < end) r.hi = (int32_t)min_i64(a->kernel, (end - r.start + a->dilation - 1) / a->dilation);
    if (r.lo > r.hi) r.lo = r.hi;
    return r;
}

TW_INLINE void load_axes(pool_axis axis[3], const int32_t *size, const int32_t *kernel, const int32_t *out,
                         const int32_t *stride, const int32_t *dilation, const int32_t *pad) {
    for (int32_t i = 0; i < 3; i++)
        axis[i] = (pool_axis){size[i], kernel[i], out[i], stride[i], dilation[i], pad[i]};
}

/* ---- maximum ---- */

typedef struct {
    const max_pool_f32_args *a;
    pool_axis axis[3];
    int32_t size, out, per_chunk;
    bool two_by_two;
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

static void store_indices(int64_t *out, v128_t at, int64_t base) {
    v128_t bases = wasm_i64x2_splat(base);
    wasm_v128_store(out, wasm_i64x2_add(bases, wasm_u64x2_extend_low_u32x4(at)));
    wasm_v128_store(out + 2, wasm_i64x2_add(bases, wasm_u64x2_extend_high_u32x4(at)));
}

/* Replaces best where v is greater, or is the first NaN. */
TW_INLINE void max_step(f32x4 *best, v128_t *where, f32x4 v, v128_t at) {
    v128_t take = wasm_v128_andnot(wasm_v128_or(wasm_f32x4_gt(v, *best), wasm_f32x4_ne(v, v)), wasm_f32x4_ne(*best, *best));
    *best = select4(take, v, *best);
    *where = select4(take, at, *where);
}

/* Columns [0, n) of a row of 2x2 windows, n a multiple of 4; returns n. */
static int32_t max_two_by_two(const float *x, int32_t width, int32_t offset, int32_t cols, float *y, int64_t *indices,
                              int64_t base) {
    int32_t n = cols & ~3;
    v128_t at = wasm_i32x4_add(wasm_i32x4_splat(offset), wasm_i32x4_make(0, 2, 4, 6));
    for (int32_t o = 0; o < n; o += 4, x += 8, at = wasm_i32x4_add(at, wasm_i32x4_splat(8))) {
        f32x4 a = load4(x), b = load4(x + 4), c = load4(x + width), d = load4(x + width + 4);
        f32x4 best = wasm_i32x4_shuffle(a, b, 0, 2, 4, 6);
        v128_t where = at;
        max_step(&best, &where, wasm_i32x4_shuffle(a, b, 1, 3, 5, 7), wasm_i32x4_add(at, wasm_i32x4_splat(1)));
        max_step(&best, &where, wasm_i32x4_shuffle(c, d, 0, 2, 4, 6), wasm_i32x4_add(at, wasm_i32x4_splat(width)));
        max_step(&best, &where, wasm_i32x4_shuffle(c, d, 1, 3, 5, 7), wasm_i32x4_add(at, wasm_i32x4_splat(width + 1)));
        store4(y + o, best);
        if (indices) store_indices(indices + o, where, base);
    }
    return n;
}

static void max_plane(const max_pass *p, int32_t plane) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    const float *x = p->a->x + plane * p->size;
    float *y = p->a->y + plane * p->out;
    int64_t *indices = p->a->indices ? p->a->indices + plane * p->out : 0, base = (int64_t)plane * p->size;
    for (int32_t oz = 0; oz < az->out; oz++) {
        tap_range z = taps_inside(az, oz, 0, az->size);
        for (int32_t oy = 0; oy < ay->out; oy++) {
            tap_range r = taps_inside(ay, oy, 0, ay->size);
            int32_t ox = 0;
            if (p->two_by_two) {
                int32_t offset = 2 * oy * ax->size;
                ox = max_two_by_two(x + offset, ax->size, offset, ax->out, y, indices, base);
            }
            for (; ox < ax->out; ox++) {
                float best;
                int32_t where;
                max_window(p, x, z, r, ox, &best, &where);
                y[ox] = best;
                if (indices) indices[ox] = where < 0 ? -1 : base + where;
            }
            y += ax->out;
            if (indices) indices += ax->out;
        }
    }
}

static void max_chunk(const void *args, int32_t chunk) {
    const max_pass *p = args;
    int32_t end = (int32_t)min_i64(p->a->planes, ((int64_t)chunk + 1) * p->per_chunk);
    for (int32_t plane = chunk * p->per_chunk; plane < end; plane++) max_plane(p, plane);
}

/* Windows of 2x2 side by side that lie inside the input. */
static bool is_two_by_two(const pool_axis axis[3]) {
    const pool_axis *z = &axis[0];
    if (z->size != 1 || z->kernel != 1 || z->out != 1 || z->pad) return false;
    for (int32_t i = 1; i < 3; i++) {
        const pool_axis *a = &axis[i];
        if (a->kernel != 2 || a->stride != 2 || a->dilation != 1 || a->pad || 2 * (int64_t)a->out > a->size) return false;
    }
    return true;
}

int32_t kernel_max_pool_f32(const max_pool_f32_args *a) {
    max_pass p = {.a = a};
    load_axes(p.axis, a->size, a->kernel, a->out, a->stride, a->dilation, a->pad);
    p.two_by_two = is_two_by_two(p.axis);
    p.size = a->size[0] * a->size[1] * a->size[2];
    p.out = a->out[0] * a->out[1] * a->out[2];
    p.per_chunk = planes_per_chunk(p.size);
    parallel_for(max_chunk, &p, chunk_count(a->planes, p.per_chunk));
    return TW_OK;
}

typedef struct {
    const max_pool_gradient_f32_args *a;
    int32_t per_chunk;
    int32_t *bad; /* set when an index is outside its plane */
} max_gradient_pass;

TW_INLINE bool index_is_good(int64_t index, int32_t size) { return index >= 0 && index < size; }

static void max_gradient_chunk(const void *args, int32_t chunk) {
    const max_gradient_pass *p = args;
    const max_pool_gradient_f32_args *a = p->a;
    int32_t end = (int32_t)min_i64(a->planes, ((int64_t)chunk + 1) * p->per_chunk);
    for (int32_t plane = chunk * p->per_chunk; plane < end; plane++) {
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
    max_gradient_pass p = {a, planes_per_chunk(max_i32(a->size, a->out_size)), &bad};
    parallel_for(max_gradient_chunk, &p, chunk_count(a->planes, p.per_chunk));
    if (!bad) return TW_OK;
    for (int32_t i = 0;; i++) {
        int64_t at = a->indices[i] - (int64_t)(i / a->out_size) * a->size;
        if (!index_is_good(at, a->size) && a->indices[i] != -1) return tw_fail(TW_BAD_INDEX, a->indices[i], i);
    }
}

/* ---- average ---- */

typedef struct {
    pool_axis axis[3];
    const int32_t *pad_end;
    int32_t size, out, planes, per_chunk;
    bool include_pad;
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

/* The taps of one output: sums them (gradient false) or adds `share` to each. */
TW_INLINE float visit_window(const average_pass *p, const bool gradient, const float *x, float *dx, tap_range z,
                             tap_range y, tap_range w, float share) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    float sum = 0;
    for (int32_t tz = z.lo; tz < z.hi; tz++) {
        for (int32_t ty = y.lo; ty < y.hi; ty++) {
            int32_t line = ((z.start + tz * az->dilation) * ay->size + y.start + ty * ay->dilation) * ax->size + w.start;
            for (int32_t tx = w.lo; tx < w.hi; tx++) {
                if (gradient) dx[line + tx * ax->dilation] += share;
                else sum += x[line + tx * ax->dilation];
            }
        }
    }
    return sum;
}

/* Walks over the outputs of one plane; `out` is y, or dy when it computes the gradient. */
TW_INLINE void average_windows(const average_pass *p, const bool gradient, const float *x, float *y, const float *dy,
                               float *dx) {
    const pool_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    int32_t i = 0;
    for (int32_t oz = 0; oz < az->out; oz++) {
        tap_range z = taps_inside(az, oz, 0, az->size);
        float count_z = (float)counted(p, 0, oz, z);
        for (int32_t oy = 0; oy < ay->out; oy++) {
            tap_range r = taps_inside(ay, oy, 0, ay->size);
            float count_y = count_z * (float)counted(p, 1, oy, r);
            for (int32_t ox = 0; ox < ax->out; ox++, i++) {
                tap_range w = taps_inside(ax, ox, 0, ax->size);
                float count = count_y * (float)counted(p, 2, ox, w);
                if (count < 1) count = 1;
                if (gradient) visit_window(p, true, 0, dx, z, r, w, dy[i] / count);
                else y[i] = visit_window(p, false, x, 0, z, r, w, 0) / count;
            }
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

static void average_chunk(const void *args, int32_t chunk) {
    const average_pass *p = args;
    bool global = is_global(p);
    int32_t end = (int32_t)min_i64(p->planes, ((int64_t)chunk + 1) * p->per_chunk);
    for (int32_t plane = chunk * p->per_chunk; plane < end; plane++) {
        const float *x = p->in + plane * p->size;
        float *y = p->result + plane * p->out;
        if (global) *y = plane_sum(x, p->size) / (float)p->size;
        else average_windows(p, false, x, y, 0, 0);
    }
}

static void average_gradient_chunk(const void *args, int32_t chunk) {
    const average_pass *p = args;
    bool global = is_global(p);
    int32_t end = (int32_t)min_i64(p->planes, ((int64_t)chunk + 1) * p->per_chunk);
    for (int32_t plane = chunk * p->per_chunk; plane < end; plane++) {
        const float *dy = p->in + plane * p->out;
        float *dx = p->result + plane * p->size;
        if (global) {
            float share = *dy / (float)p->size;
            int32_t i = 0;
            for (; i + 4 <= p->size; i += 4) store4(dx + i, splat(share));
            for (; i < p->size; i++) dx[i] = share;
        } else {
            tw_zero(dx, 4 * (size_t)p->size);
            average_windows(p, true, 0, 0, dy, dx);
        }
    }
}

/* The two kernels have the same fields after their two operands. */
#define AVERAGE_PASS(a, in, result)                                                                                    \
    {.pad_end = a->pad_end,                                                                                            \
     .size = a->size[0] * a->size[1] * a->size[2],                                                                     \
     .out = a->out[0] * a->out[1] * a->out[2],                                                                         \
     .planes = a->planes,                                                                                              \
     .per_chunk = planes_per_chunk(a->size[0] * a->size[1] * a->size[2]),                                              \
     .include_pad = a->count_include_pad != 0,                                                                         \
     in,                                                                                                               \
     result}

int32_t kernel_average_pool_f32(const average_pool_f32_args *a) {
    average_pass p = AVERAGE_PASS(a, .in = a->x, .result = a->y);
    load_axes(p.axis, a->size, a->kernel, a->out, a->stride, a->dilation, a->pad);
    parallel_for(average_chunk, &p, chunk_count(a->planes, p.per_chunk));
    return TW_OK;
}

int32_t kernel_average_pool_gradient_f32(const average_pool_gradient_f32_args *a) {
    average_pass p = AVERAGE_PASS(a, .in = a->dy, .result = a->dx);
    load_axes(p.axis, a->size, a->kernel, a->out, a->stride, a->dilation, a->pad);
    parallel_for(average_gradient_chunk, &p, chunk_count(a->planes, p.per_chunk));
    return TW_OK;
}
