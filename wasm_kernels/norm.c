/* Layer, RMS, batch and group normalisation. Means in blocks (reduce.h), variances in a second pass over x - mean, so that a
   large mean does not cancel. Against float64, for |mean| up to 1e3 standard deviations: y within 1e-5 + 2^-24 |mean/std|
   of max(1, |y|), gradients within 3e-5 of their largest element. */
#include <stdbool.h>

#include "parallel.h"
#include "reduce.h"

/* Elements added up in float, by four sums at a time. */
enum { BLOCK = 256, SUMS = 4 };

TW_INLINE float total_of(const f32x4 *s) { return hsum(add4(add4(s[0], s[1]), add4(s[2], s[3]))); }

/* Sum of (x - mean)^2 over a row, in blocks. */
static double squares_around(const float *x, int32_t n, float mean) {
    f32x4 m = splat(mean);
    double total = 0;
    for (int32_t start = 0; start < n; start += BLOCK) {
        int32_t end = min_i32(start + BLOCK, n), i = start;
        f32x4 s[SUMS] = {splat(0), splat(0), splat(0), splat(0)};
        for (; i + 4 * SUMS <= end; i += 4 * SUMS) {
            for (int32_t k = 0; k < SUMS; k++) {
                f32x4 d = sub4(load4(x + i + 4 * k), m);
                s[k] = madd(d, d, s[k]);
            }
        }
        for (; i + 4 <= end; i += 4) {
            f32x4 d = sub4(load4(x + i), m);
            s[0] = madd(d, d, s[0]);
        }
        float tail = 0;
        for (; i < end; i++) tail += (x[i] - mean) * (x[i] - mean);
        total += total_of(s) + tail;
    }
    return total;
}

/* Sums of a and of a (x - mean) over a row. */
typedef struct {
    double plain, weighted;
} sums;

/* a times scale, where there is one. */
TW_INLINE f32x4 load_scaled(const float *a, const float *scale, int32_t i) {
    return scale ? mul4(load4(a + i), load4(scale + i)) : load4(a + i);
}

static sums moments(const float *a, const float *scale, const float *x, int32_t n, float mean) {
    f32x4 m = splat(mean);
    sums total = {0, 0};
    for (int32_t start = 0; start < n; start += BLOCK) {
        int32_t end = min_i32(start + BLOCK, n), i = start;
        f32x4 s[SUMS] = {splat(0), splat(0), splat(0), splat(0)}, w[SUMS] = {splat(0), splat(0), splat(0), splat(0)};
        for (; i + 4 * SUMS <= end; i += 4 * SUMS) {
            for (int32_t k = 0; k < SUMS; k++) {
                f32x4 g = load_scaled(a, scale, i + 4 * k);
                s[k] = add4(s[k], g);
                w[k] = madd(g, sub4(load4(x + i + 4 * k), m), w[k]);
            }
        }
        for (; i + 4 <= end; i += 4) {
            f32x4 g = load_scaled(a, scale, i);
            s[0] = add4(s[0], g);
            w[0] = madd(g, sub4(load4(x + i), m), w[0]);
        }
        float tail = 0, weighted_tail = 0;
        for (; i < end; i++) {
            float g = scale ? a[i] * scale[i] : a[i];
            tail += g;
            weighted_tail += g * (x[i] - mean);
        }
        total.plain += total_of(s) + tail;
        total.weighted += total_of(w) + weighted_tail;
    }
    return total;
}

static float inverse_root(double variance, float epsilon) {
    return (float)(1.0 / __builtin_sqrt(variance + (double)epsilon));
}

/* ---- layer norm ---- */

/* Elements of a turn of the loops below: constant offsets cost nothing. */
enum { TURN = 16 };

TW_INLINE void normalise4(const float *x, float *y, const float *scale, const float *bias, f32x4 mean, f32x4 inv) {
    f32x4 v = mul4(sub4(load4(x), mean), inv);
    if (scale && bias) v = madd(v, load4(scale), load4(bias));
    else if (scale) v = mul4(v, load4(scale));
    else if (bias) v = add4(v, load4(bias));
    store4(y, v);
}

static void normalise_row(const float *x, float *y, const float *scale, const float *bias, int32_t n, float mean,
                          float inv) {
    f32x4 m = splat(mean), f = splat(inv);
    int32_t i = 0;
    for (; i + TURN <= n; i += TURN)
        for (int32_t k = 0; k < TURN; k += 4)
            normalise4(x + i + k, y + i + k, scale ? scale + i + k : NULL, bias ? bias + i + k : NULL, m, f);
    for (; i + 4 <= n; i += 4) normalise4(x + i, y + i, scale ? scale + i : NULL, bias ? bias + i : NULL, m, f);
    for (; i < n; i++) {
        float v = (x[i] - mean) * inv;
        if (scale) v *= scale[i];
        y[i] = bias ? v + bias[i] : v;
    }
}

/* Rows whose sums do not wait for each other, as long as they stay in the first cache. */
enum { ROWS_TOGETHER = 8, CACHED = 4096 };

static int32_t rows_together(int64_t elements) { return (int32_t)min_i64(ROWS_TOGETHER, 1 + CACHED / elements); }

static void layer_norm_rows(const layer_norm_f32_args *a, int64_t r, int32_t rows) {
    const float *x = a->x + r * a->n;
    float mean[ROWS_TOGETHER], inv[ROWS_TOGETHER];
    for (int64_t k = 0; k < rows; k++) mean[k] = a->rms ? 0.0f : sum_row(x + k * a->n, a->n) / (float)a->n;
    for (int64_t k = 0; k < rows; k++)
        inv[k] = inverse_root(squares_around(x + k * a->n, a->n, mean[k]) / a->n, a->epsilon);
    for (int64_t k = 0; k < rows; k++) {
        normalise_row(x + k * a->n, a->y + (r + k) * a->n, a->scale, a->bias, a->n, mean[k], inv[k]);
        if (a->mean) a->mean[r + k] = mean[k];
        if (a->inv_std) a->inv_std[r + k] = inv[k];
    }
}

static void layer_norm_chunk(const void *args, int64_t lo, int64_t hi) {
    const layer_norm_f32_args *a = args;
    int32_t together = rows_together(a->n);
    for (int64_t r = lo; r < hi; r += together) layer_norm_rows(a, r, (int32_t)min_i64(together, hi - r));
}

int32_t kernel_layer_norm_f32(const layer_norm_f32_args *a) {
    if (!a->n || !a->rows) return TW_OK;
    parallel_ranges(layer_norm_chunk, a, a->rows, units_per_chunk(2 * (int64_t)a->n));
    return TW_OK;
}

/* dx = inv (g - mean(g) - xh mean(g xh)), g = dy scale; the RMS form has no mean(g). */
typedef struct {
    float mean, inv, shift, slope; /* dx = inv g - shift - (x - mean) slope */
} row_factors;

static row_factors factors_of(const layer_norm_grad_f32_args *a, int64_t r) {
    float mean = a->rms || !a->mean ? 0.0f : a->mean[r], inv = a->inv_std[r];
    if (!a->dx) return (row_factors){mean, inv, 0, 0};
    sums s = moments(a->dy + r * a->n, a->scale, a->x + r * a->n, a->n, mean);
    float g_mean = a->rms ? 0.0f : (float)(s.plain / a->n);
    return (row_factors){mean, inv, inv * g_mean, inv * (float)(s.weighted / a->n * inv * inv)};
}

/* Four columns of rows n elements apart. */
TW_INLINE void layer_norm_grad4(const float *dy, const float *x, float *dx, const float *scale, float *dscale, float *dbias,
                                int32_t n, const row_factors *f, const int32_t rows, const bool through, const bool scaled) {
    f32x4 ds = load4(dscale), db = load4(dbias);
    for (int32_t k = 0; k < rows; k++) {
        f32x4 g = load4(dy + k * n), centered = sub4(load4(x + k * n), splat(f[k].mean));
        ds = madd(g, mul4(centered, splat(f[k].inv)), ds);
        db = add4(db, g);
        if (!through) continue;
        if (scaled) g = mul4(g, load4(scale));
        g = madd(g, splat(f[k].inv), splat(-f[k].shift));
        store4(dx + k * n, nmadd(centered, splat(f[k].slope), g));
    }
    store4(dscale, ds);
    store4(dbias, db);
}

/* `rows` rows from r on, whose share of the gradients of scale and bias is added to dscale and dbias; `through`: to dx. */
TW_INLINE void layer_norm_grad_rows(const layer_norm_grad_f32_args *a, int64_t r, const int32_t rows, const bool through,
                                    const bool scaled, float *dscale, float *dbias) {
    int32_t n = a->n, i = 0;
    const float *dy = a->dy + r * n, *x = a->x + r * n, *scale = a->scale;
    float *dx = a->dx + r * n;
    row_factors f[2];
    for (int32_t k = 0; k < rows; k++) f[k] = factors_of(a, r + k);
    for (; i + 8 <= n; i += 8)
        for (int32_t j = i; j < i + 8; j += 4)
            layer_norm_grad4(dy + j, x + j, dx + j, scale + j, dscale + j, dbias + j, n, f, rows, through,
                             scaled);
    for (; i + 4 <= n; i += 4)
        layer_norm_grad4(dy + i, x + i, dx + i, scale + i, dscale + i, dbias + i, n, f, rows, through, scaled);
    for (; i < n; i++) {
        for (int32_t k = 0; k < rows; k++) {
            float g = dy[k * n + i], centered = x[k * n + i] - f[k].mean;
            dscale[i] += g * (centered * f[k].inv);
            dbias[i] += g;
            if (through) dx[k * n + i] = (scaled ? g * scale[i] : g) * f[k].inv - f[k].shift - centered * f[k].slope;
        }
    }
}

/* Rows whose sums lie together: the sums of chunk k start at partial + 2 n k. */
static int64_t partial_rows(const layer_norm_grad_f32_args *a) {
    int64_t count = min_i64(NORM_PARTIALS, ((int64_t)a->rows * a->n + GRAIN - 1) / GRAIN);
    return count ? (a->rows + count - 1) / count : 1;
}

static void layer_norm_grad_chunk(const void *args, int64_t lo, int64_t hi) {
    const layer_norm_grad_f32_args *a = args;
    int64_t r = lo;
    float *dscale = a->partial + 2 * (int64_t)a->n * (lo / partial_rows(a)), *dbias = dscale + a->n;
    tw_zero(dscale, 8 * (size_t)a->n);
    if (a->dx && a->scale)
        for (; r + 2 <= hi; r += 2) layer_norm_grad_rows(a, r, 2, true, true, dscale, dbias);
    for (; r < hi; r++) layer_norm_grad_rows(a, r, 1, a->dx != NULL, a->scale != NULL, dscale, dbias);
}

int32_t kernel_layer_norm_grad_f32(const layer_norm_grad_f32_args *a) {
    if (!a->n) return TW_OK;
    int32_t n_chunks = chunk_count(a->rows, partial_rows(a));
    parallel_ranges(layer_norm_grad_chunk, a, a->rows, partial_rows(a));
    if (a->dscale) reduce_columns(a->partial, a->dscale, n_chunks, a->n, 2 * (int64_t)a->n, REDUCE_SUM);
    if (a->dbias) reduce_columns(a->partial + a->n, a->dbias, n_chunks, a->n, 2 * (int64_t)a->n, REDUCE_SUM);
    return TW_OK;
}

/* ---- batch norm: x [batch, channels, size]; a task does whole channels ---- */

/* Sizes of a channel up to which plain loops in double are enough. */
enum { SHORT = 4 };

static double channel_sum(const float *x, int32_t batch, int64_t step, int32_t size) {
    double total = 0;
    for (int32_t b = 0; b < batch; b++, x += step) {
        if (size >= SHORT) total += sum_row(x, size);
        else
            for (int32_t i = 0; i < size; i++) total += x[i];
    }
    return total;
}

static double channel_squares(const float *x, int32_t batch, int64_t step, int32_t size, float mean) {
    double total = 0;
    for (int32_t b = 0; b < batch; b++, x += step) {
        if (size >= SHORT) total += squares_around(x, size, mean);
        else
            for (int32_t i = 0; i < size; i++) total += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    return total;
}

static sums channel_moments(const float *dy, const float *x, int32_t batch, int64_t step, int32_t size, float mean) {
    sums total = {0, 0};
    for (int32_t b = 0; b < batch; b++, x += step, dy += step) {
        sums s = {0, 0};
        if (size >= SHORT) s = moments(dy, NULL, x, size, mean);
        else
            for (int32_t i = 0; i < size; i++) {
                s.plain += dy[i];
                s.weighted += (double)dy[i] * ((double)x[i] - mean);
            }
        total.plain += s.plain;
        total.weighted += s.weighted;
    }
    return total;
}

/* y = (x - mean) factor + bias */
static void channel_apply(const float *x, float *y, int32_t batch, int64_t step, int32_t size, float mean, float factor,
                          float bias) {
    for (int32_t b = 0; b < batch; b++, x += step, y += step) {
        int32_t i = 0;
        for (; i + TURN <= size; i += TURN)
            for (int32_t k = 0; k < TURN; k += 4)
                store4(y + i + k, madd(sub4(load4(x + i + k), splat(mean)), splat(factor), splat(bias)));
        for (; i + 4 <= size; i += 4)
            store4(y + i, madd(sub4(load4(x + i), splat(mean)), splat(factor), splat(bias)));
        for (; i < size; i++) y[i] = (x[i] - mean) * factor + bias;
    }
}

/* Four sums in double of blocks in float. */
typedef struct {
    v128_t low, high;
} wide;

TW_INLINE void widen(wide *total, f32x4 s) {
    total->low = wasm_f64x2_add(total->low, wasm_f64x2_promote_low_f32x4(s));
    total->high = wasm_f64x2_add(total->high, wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(s, s, 1, 1)));
}

TW_INLINE f32x4 narrow(const wide *total, double divisor) {
    v128_t d = wasm_f64x2_splat(divisor);
    return wasm_i64x2_shuffle(wasm_f32x4_demote_f64x2_zero(wasm_f64x2_div(total->low, d)),
                              wasm_f32x4_demote_f64x2_zero(wasm_f64x2_div(total->high, d)), 0, 2);
}

enum { ROWS = 16 };

/* Mean over the rows of x, or of (x - mean)^2, or of dy (x - mean). */
TW_INLINE f32x4 column_mean(const float *x, const float *dy, f32x4 mean, int32_t square, int32_t batch, int64_t step,
                            int32_t lanes) {
    wide total = {wasm_f64x2_splat(0), wasm_f64x2_splat(0)};
    for (int32_t start = 0; start < batch; start += ROWS) {
        f32x4 s = splat(0);
        for (int64_t b = start; b < min_i32(start + ROWS, batch); b++) {
            f32x4 d = sub4(load_some(x + b * step, lanes), mean);
            s = square ? madd(d, d, s) : dy ? madd(load_some(dy + b * step, lanes), d, s) : add4(s, d);
        }
        widen(&total, s);
    }
    return narrow(&total, batch);
}

static void batch_norm_train_columns(const batch_norm_train_f32_args *a, int64_t c, int32_t lanes) {
    const float *x = a->x + c;
    f32x4 mean = column_mean(x, NULL, splat(0), 0, a->batch, a->channels, lanes);
    f32x4 variance = column_mean(x, NULL, mean, 1, a->batch, a->channels, lanes);
    f32x4 inv = div4(splat(1.0f), wasm_f32x4_sqrt(add4(variance, splat(a->epsilon))));
    f32x4 factor = mul4(inv, load_some(a->scale + c, lanes)), bias = load_some(a->bias + c, lanes);
    for (int64_t b = 0; b < a->batch; b++)
        store_some(a->y + c + b * a->channels,
                   madd(sub4(load_some(x + b * a->channels, lanes), mean), factor, bias), lanes);
    if (a->mean) store_some(a->mean + c, mean, lanes);
    if (a->inv_std) store_some(a->inv_std + c, inv, lanes);
    f32x4 keep = splat(a->momentum), rest = splat(1.0f - a->momentum);
    if (a->running_mean)
        store_some(a->running_mean + c, madd(keep, load_some(a->running_mean + c, lanes), mul4(rest, mean)), lanes);
    if (a->running_var)
        store_some(a->running_var + c, madd(keep, load_some(a->running_var + c, lanes), mul4(rest, variance)), lanes);
}

static void batch_norm_train_channel(const batch_norm_train_f32_args *a, int64_t c) {
    int64_t step = (int64_t)a->channels * a->size;
    double count = (double)a->batch * a->size;
    const float *x = a->x + c * a->size;
    float mean = (float)(channel_sum(x, a->batch, step, a->size) / count);
    double variance = channel_squares(x, a->batch, step, a->size, mean) / count;
    float inv = inverse_root(variance, a->epsilon), keep = a->momentum;
    channel_apply(x, a->y + c * a->size, a->batch, step, a->size, mean, inv * a->scale[c], a->bias[c]);
    if (a->mean) a->mean[c] = mean;
    if (a->inv_std) a->inv_std[c] = inv;
    if (a->running_mean) a->running_mean[c] = keep * a->running_mean[c] + (1.0f - keep) * mean;
    if (a->running_var) a->running_var[c] = keep * a->running_var[c] + (1.0f - keep) * (float)variance;
}

/* Channels of a chunk: whole tiles of four where a row holds one value of each channel. */
static int32_t channels_per_chunk(int32_t batch, int32_t size) {
    int32_t units = units_per_chunk(2 * (int64_t)batch * size);
    return size == 1 ? (units + 3) / 4 * 4 : units;
}

static void batch_norm_train_chunk(const void *args, int64_t lo, int64_t hi) {
    const batch_norm_train_f32_args *a = args;
    if (a->size == 1)
        for (int64_t c = lo; c < hi; c += 4) batch_norm_train_columns(a, c, (int32_t)min_i64(4, hi - c));
    else
        for (int64_t c = lo; c < hi; c++) batch_norm_train_channel(a, c);
}

int32_t kernel_batch_norm_train_f32(const batch_norm_train_f32_args *a) {
    if (!a->batch || !a->size) return TW_OK;
    parallel_ranges(batch_norm_train_chunk, a, a->channels, channels_per_chunk(a->batch, a->size));
    return TW_OK;
}

static void batch_norm_chunk(const void *args, int64_t lo, int64_t hi) {
    const batch_norm_f32_args *a = args;
    int64_t step = (int64_t)a->channels * a->size;
    for (int64_t c = lo; c < hi; c++)
        channel_apply(a->x + c * a->size, a->y + c * a->size, a->batch, step, a->size, a->mean[c],
                      a->scale[c] * inverse_root(a->var[c], a->epsilon), a->bias[c]);
}

int32_t kernel_batch_norm_f32(const batch_norm_f32_args *a) {
    if (!a->batch || !a->size) return TW_OK;
    parallel_ranges(batch_norm_chunk, a, a->channels, units_per_chunk((int64_t)a->batch * a->size));
    return TW_OK;
}

/* dx = p dy - q (x - mean) - r */
TW_INLINE void input_gradient4(const float *dy, const float *x, float *dx, float mean, float p, float q, float r) {
    f32x4 g = madd(load4(dy), splat(p), splat(-r));
    store4(dx, nmadd(sub4(load4(x), splat(mean)), splat(q), g));
}

static void input_gradient_row(const float *dy, const float *x, float *dx, int32_t n, float mean, float p, float q, float r) {
    int32_t i = 0;
    for (; i + TURN <= n; i += TURN)
        for (int32_t k = 0; k < TURN; k += 4) input_gradient4(dy + i + k, x + i + k, dx + i + k, mean, p, q, r);
    for (; i + 4 <= n; i += 4) input_gradient4(dy + i, x + i, dx + i, mean, p, q, r);
    for (; i < n; i++) dx[i] = dy[i] * p - r - (x[i] - mean) * q;
}

/* The same for four channels of x [batch, channels]; dscale and dbias are `batch` times the means. */
static void batch_norm_grad_columns(const batch_norm_grad_f32_args *a, int64_t c, int32_t lanes) {
    const float *x = a->x + c, *dy = a->dy + c;
    f32x4 mean = load_some(a->mean + c, lanes), inv = load_some(a->inv_std + c, lanes);
    f32x4 count = splat((float)a->batch), factor = mul4(inv, load_some(a->scale + c, lanes));
    f32x4 dy_mean = column_mean(dy, NULL, splat(0), 0, a->batch, a->channels, lanes);
    f32x4 slope = mul4(column_mean(x, dy, mean, 0, a->batch, a->channels, lanes), inv);
    if (a->dscale) store_some(a->dscale + c, mul4(slope, count), lanes);
    if (a->dbias) store_some(a->dbias + c, mul4(dy_mean, count), lanes);
    if (!a->dx) return;
    slope = mul4(slope, inv);
    for (int64_t b = 0; b < a->batch; b++) {
        f32x4 d = sub4(load_some(dy + b * a->channels, lanes), dy_mean);
        f32x4 centered = sub4(load_some(x + b * a->channels, lanes), mean);
        store_some(a->dx + c + b * a->channels, mul4(nmadd(centered, slope, d), factor), lanes);
    }
}

static void batch_norm_grad_channel(const batch_norm_grad_f32_args *a, int64_t c) {
    int64_t step = (int64_t)a->channels * a->size, at = c * a->size;
    double count = (double)a->batch * a->size;
    float inv = a->inv_std[c], factor = a->scale[c] * inv;
    sums s = channel_moments(a->dy + c * a->size, a->x + c * a->size, a->batch, step, a->size, a->mean[c]);
    if (a->dscale) a->dscale[c] = (float)(s.weighted * inv);
    if (a->dbias) a->dbias[c] = (float)s.plain;
    if (!a->dx) return;
    float dy_mean = (float)(s.plain / count), slope = (float)(s.weighted / count * inv * inv);
    for (int32_t b = 0; b < a->batch; b++, at += step)
        input_gradient_row(a->dy + at, a->x + at, a->dx + at, a->size, a->mean[c], factor, slope * factor, dy_mean * factor);
}

static void batch_norm_grad_chunk(const void *args, int64_t lo, int64_t hi) {
    const batch_norm_grad_f32_args *a = args;
    if (a->size == 1 && a->batch)
        for (int64_t c = lo; c < hi; c += 4) batch_norm_grad_columns(a, c, (int32_t)min_i64(4, hi - c));
    else
        for (int64_t c = lo; c < hi; c++) batch_norm_grad_channel(a, c);
}

int32_t kernel_batch_norm_grad_f32(const batch_norm_grad_f32_args *given) {
    batch_norm_grad_f32_args a = *given;
    if (!a.size) a.batch = 0;
    parallel_ranges(batch_norm_grad_chunk, &a, a.channels, channels_per_chunk(a.batch, a.size));
    return TW_OK;
}

/* ---- group norm: x [batch, groups, channels / groups, size]; a task does whole groups of an image ---- */

typedef struct {
    float mean, inv_std;
} statistics;

static statistics statistics_of(const float *x, int32_t n, float epsilon) {
    float mean = sum_row(x, n) / (float)n;
    return (statistics){mean, inverse_root(squares_around(x, n, mean) / n, epsilon)};
}

static void group_norm_chunk(const void *args, int64_t lo, int64_t hi) {
    const group_norm_f32_args *a = args;
    int32_t width = a->channels / a->groups, n = width * a->size;
    for (int64_t row = lo; row < hi; row++) {
        const float *x = a->x + row * n;
        float *y = a->y + row * n;
        statistics s = statistics_of(x, n, a->epsilon);
        int32_t channel = (int32_t)(row % a->groups) * width;
        for (int32_t c = 0; c < width; c++, channel++, x += a->size, y += a->size)
            channel_apply(x, y, 1, 0, a->size, s.mean, s.inv_std * a->scale[channel], a->bias[channel]);
    }
}

int32_t kernel_group_norm_f32(const group_norm_f32_args *a) {
    int32_t n = a->channels / a->groups * a->size;
    if (!n || !a->batch) return TW_OK;
    parallel_ranges(group_norm_chunk, a, (int64_t)a->batch * a->groups, units_per_chunk(2 * (int64_t)n));
    return TW_OK;
}

/* Its statistics are computed again: a group that was just read lies in the cache. */
static void group_norm_grad_chunk(const void *args, int64_t lo, int64_t hi) {
    const group_norm_grad_f32_args *a = args;
    int32_t width = a->channels / a->groups, n = width * a->size;
    for (int64_t row = lo; row < hi; row++) {
        int64_t image = row / a->groups, at = row * n;
        int32_t channel0 = (int32_t)(row % a->groups) * width;
        statistics s = statistics_of(a->x + at, n, a->epsilon);
        sums total = {0, 0};
        for (int32_t c = channel0; c < channel0 + width; c++, at += a->size) {
            sums m = moments(a->dy + at, NULL, a->x + at, a->size, s.mean);
            total.plain += a->scale[c] * m.plain;
            total.weighted += a->scale[c] * m.weighted;
            a->partial[2 * image * a->channels + c] = (float)(m.weighted * s.inv_std);
            a->partial[(2 * image + 1) * a->channels + c] = (float)m.plain;
        }
        if (!a->dx) continue;
        float r = (float)(total.plain / n) * s.inv_std;
        float q = (float)(total.weighted / n * s.inv_std * s.inv_std) * s.inv_std;
        at = row * n;
        for (int32_t c = channel0; c < channel0 + width; c++, at += a->size)
            input_gradient_row(a->dy + at, a->x + at, a->dx + at, a->size, s.mean, a->scale[c] * s.inv_std, q, r);
    }
}

int32_t kernel_group_norm_grad_f32(const group_norm_grad_f32_args *a) {
    int32_t n = a->channels / a->groups * a->size;
    if (!a->channels) return TW_OK;
    if (n) parallel_ranges(group_norm_grad_chunk, a, (int64_t)a->batch * a->groups, units_per_chunk(4 * (int64_t)n));
    int32_t images = n ? a->batch : 0;
    if (a->dscale) reduce_columns(a->partial, a->dscale, images, a->channels, 2 * (int64_t)a->channels, REDUCE_SUM);
    if (a->dbias) reduce_columns(a->partial + a->channels, a->dbias, images, a->channels, 2 * (int64_t)a->channels, REDUCE_SUM);
    return TW_OK;
}
