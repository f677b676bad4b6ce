/* Clipping of gradients, and the upkeep of moments and of the step; updates are generated functions (ops/optim). The factor of a
   clipping is computed in double. Its relative error is below 1e-6, tested against float64. */
#include "parallel.h"
#include "simd.h"
#include "state.h"

/* Steps after which moments are flushed, and the exponent under which they become 0: 2^-106. With decays of 0.9 and rates of
   1e-5 no moment becomes subnormal until the next flush. */
enum { FLUSH_STEPS = 16, LEAST_EXPONENT = 21 };

static void flush_chunk(const void *args, int64_t lo, int64_t hi) {
    float *moments = ((const flush_moments_f32_args *)args)->x;
    int64_t i = lo;
    for (; i + 4 <= hi; i += 4) {
        f32x4 x = load4(moments + i);
        v128_t exponent = wasm_u32x4_shr(wasm_i32x4_shl(x, 1), 24);
        v128_t is_small = wasm_i32x4_lt(exponent, wasm_i32x4_splat(LEAST_EXPONENT));
        if (wasm_v128_any_true(is_small)) store4(moments + i, wasm_v128_andnot(x, is_small));
    }
    for (; i < hi; i++)
        if (__builtin_fabsf(moments[i]) < 0x1p-106f) moments[i] = 0;
}

/* Some gradients stay 0: of a row of an embedding that no batch has, or of a dead unit. Their moments shrink until they are
   subnormal and stay there, and an operation on them takes most processors some 150 cycles. To flush in each step would cost
   a fifth of a step whose moments are in the cache. */
int32_t kernel_flush_moments_f32(const flush_moments_f32_args *a) {
    if (state_i64(a->state, STATE_STEP) % FLUSH_STEPS != FLUSH_STEPS - 1) return TW_OK;
    parallel_ranges(flush_chunk, a, a->n, GRAIN);
    return TW_OK;
}

/* The sum of four floats that are sums of few terms each. */
static double wide_sum(f32x4 s) {
    v128_t low = wasm_f64x2_promote_low_f32x4(s), high = wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(s, s, 1, 1));
    v128_t d = wasm_f64x2_add(low, high);
    return wasm_f64x2_extract_lane(d, 0) + wasm_f64x2_extract_lane(d, 1);
}

/* The sum of x^2: blocks of 256 in float (16 terms per lane and accumulator), block sums in double. */
static double sum_squares(const float *x, int64_t n) {
    int64_t i = 0;
    double total = 0;
    while (i + 16 <= n) {
        int64_t block_end = min_i64(i + 256, n);
        f32x4 s0 = splat(0), s1 = splat(0), s2 = splat(0), s3 = splat(0);
        for (; i + 16 <= block_end; i += 16) {
            f32x4 x0 = load4(x + i), x1 = load4(x + i + 4), x2 = load4(x + i + 8), x3 = load4(x + i + 12);
            s0 = madd(x0, x0, s0);
            s1 = madd(x1, x1, s1);
            s2 = madd(x2, x2, s2);
            s3 = madd(x3, x3, s3);
        }
        total += wide_sum(add4(add4(s0, s1), add4(s2, s3)));
    }
    for (; i < n; i++) total += (double)x[i] * (double)x[i];
    return total;
}

typedef struct {
    float *g, *partial; /* a double a chunk */
    int32_t n;
    float factor; /* or limit */
} clip_task;

static void sum_squares_chunk(const void *args, int64_t lo, int64_t hi) {
    const clip_task *a = args;
    double total = sum_squares(a->g + lo, hi - lo);
    tw_copy(a->partial + 2 * (lo / GRAIN), &total, sizeof total);
}

static void scale_chunk(const void *args, int64_t lo, int64_t hi) {
    const clip_task *task = args;
    float *g = task->g;
    int64_t i = lo;
    for (; i + 4 <= hi; i += 4) store4(g + i, mul4(load4(g + i), splat(task->factor)));
    for (; i < hi; i++) g[i] *= task->factor;
}

static void clip_norm(clip_task task, float max_norm) {
    int32_t n_chunks = chunk_count(task.n, GRAIN);
    parallel_ranges(sum_squares_chunk, &task, task.n, GRAIN);
    double total = 0;
    for (int32_t i = 0; i < n_chunks; i++) {
        double part;
        tw_copy(&part, task.partial + 2 * (int64_t)i, sizeof part);
        total += part;
    }
    double factor = (double)max_norm / (__builtin_sqrt(total) + 1e-6);
    if (factor >= 1) return;
    task.factor = (float)factor;
    parallel_ranges(scale_chunk, &task, task.n, GRAIN);
}

int32_t kernel_clip_grad_norm_f32(const clip_grad_norm_f32_args *a) {
    clip_norm((clip_task){a->g, a->partial, a->n, 0}, a->max_norm);
    return TW_OK;
}

TW_INLINE f32x4 clip4(f32x4 g, f32x4 limit) { return wasm_f32x4_min(wasm_f32x4_max(g, wasm_f32x4_neg(limit)), limit); }

static void clip_value_chunk(const void *args, int64_t lo, int64_t hi) {
    const clip_task *task = args;
    float *g = task->g;
    f32x4 limit = splat(task->factor);
    int64_t i = lo;
    for (; i + 4 <= hi; i += 4) store4(g + i, clip4(load4(g + i), limit));
    if (i < hi) store_part(g + i, clip4(load_part(g + i, (int32_t)(hi - i)), limit), (int32_t)(hi - i));
}

int32_t kernel_clip_grads_f32(const clip_grads_f32_args *a) {
    clip_task task = {a->g, a->partial, a->n, a->limits[0]};
    if (a->limits[0] < __builtin_inff()) parallel_ranges(clip_value_chunk, &task, a->n, GRAIN);
    if (a->limits[1] < __builtin_inff()) clip_norm(task, a->limits[1]);
    return TW_OK;
}

int32_t kernel_optimizer_advance(const optimizer_advance_args *a) {
    set_state_i64(a->state, STATE_STEP, state_i64(a->state, STATE_STEP) + 1);
    return TW_OK;
}

/* f = step / max(1, W) during the warm-up, then max(0, (T - step) / max(1, T - W)). */
int32_t kernel_linear_lr(const linear_lr_args *a) {
    double step = (double)state_i64(a->state, STATE_STEP), warmup = (double)state_i64(a->state, STATE_WARMUP);
    double total = (double)state_i64(a->state, STATE_TOTAL), factor;
    if (step < warmup) {
        factor = step / (warmup > 1 ? warmup : 1);
    } else {
        double span = total - warmup;
        factor = (total - step) / (span > 1 ? span : 1);
        if (factor < 0) factor = 0;
    }
    set_state_f32(a->state, STATE_LEARNING_RATE, (float)(state_f32(a->state, STATE_INITIAL_LR) * factor));
    return TW_OK;
}
