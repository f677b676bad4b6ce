/* Optimizers over flat runs of parameters, in place. Each formula is evaluated in float32 per element, with the scalar
   factors (bias corrections, clipping) in double: relative error of an update below 1e-6, tested against float64. */
#include "parallel.h"
#include "simd.h"
#include "state.h"

/* b^t; by squaring, so that the error stays near log2(t) roundings. */
static double power(double b, int64_t t) {
    double result = 1;
    for (; t > 0; t >>= 1, b *= b)
        if (t & 1) result *= b;
    return result;
}

typedef struct {
    const adamw_f32_args *a;
    float step_size;    /* multiplies m / denominator */
    float root_factor;  /* multiplies sqrt(v) before epsilon is added */
    float decay_before; /* w *= this before the update */
    float decay_after;  /* and this after it */
} adamw_task;

/* Vectors that stay in registers through the loop. */
typedef struct {
    f32x4 b1, c1, b2, c2, step_size, root_factor, epsilon, before, after;
} adamw_factors;

/* m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= s m / (r sqrt(v) + epsilon), between two decays. */
TW_INLINE f32x4 adamw4(const adamw_factors *f, f32x4 w, f32x4 g, f32x4 *m, f32x4 *v) {
    *m = madd(f->c1, g, mul4(f->b1, *m));
    *v = madd(mul4(f->c2, g), g, mul4(f->b2, *v));
    f32x4 denominator = madd(wasm_f32x4_sqrt(*v), f->root_factor, f->epsilon);
    w = mul4(w, f->before);
    return mul4(sub4(w, div4(mul4(f->step_size, *m), denominator)), f->after);
}

static void adamw_chunk(const void *args, int32_t chunk) {
    const adamw_task *t = args;
    const adamw_f32_args *a = t->a;
    const adamw_factors f = {splat(a->alpha), splat(1.0f - a->alpha), splat(a->beta), splat(1.0f - a->beta),
                             splat(t->step_size), splat(t->root_factor), splat(a->epsilon), splat(t->decay_before),
                             splat(t->decay_after)};
    int32_t lo = chunk * GRAIN, n = min_i32(GRAIN, a->n - lo), i = 0;
    float *w_at = a->w + lo, *m_at = a->m + lo, *v_at = a->v + lo;
    const float *g_at = a->g + lo;
    for (; i + 4 <= n; i += 4) {
        f32x4 m = load4(m_at + i), v = load4(v_at + i);
        f32x4 w = adamw4(&f, load4(w_at + i), load4(g_at + i), &m, &v);
        store4(w_at + i, w);
        store4(m_at + i, m);
        store4(v_at + i, v);
    }
    if (i < n) {
        int32_t rest = n - i;
        f32x4 m = load_part(m_at + i, rest), v = load_part(v_at + i, rest);
        f32x4 w = adamw4(&f, load_part(w_at + i, rest), load_part(g_at + i, rest), &m, &v);
        store_part(w_at + i, w, rest);
        store_part(m_at + i, m, rest);
        store_part(v_at + i, v, rest);
    }
}

int32_t kernel_adamw_f32(const adamw_f32_args *a) {
    double rate = state_f32(a->state, STATE_LEARNING_RATE);
    int64_t step = state_i64(a->state, STATE_STEP) + 1;
    double correction1 = 1 - power(a->alpha, step), root2 = __builtin_sqrt(1 - power(a->beta, step));
    adamw_task task = {a, (float)rate, 1.0f, 1.0f, 1.0f};
    double decay = 1 - rate * (double)a->weight_decay;
    if (a->adam_mode == 0) {
        task.step_size = (float)(rate / correction1);
        task.root_factor = (float)(1 / root2);
        task.decay_before = (float)decay;
    } else {
        if (a->correct_bias) task.step_size = (float)(rate * root2 / correction1);
        task.decay_after = (float)decay;
    }
    parallel_for(adamw_chunk, &task, chunk_count(a->n, GRAIN));
    return TW_OK;
}

static void sgd_chunk(const void *args, int32_t chunk) {
    const sgd_f32_args *a = args;
    float rate = state_f32(a->state, STATE_LEARNING_RATE);
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, a->n);
    for (; i + 4 <= end; i += 4) store4(a->w + i, nmadd(splat(rate), load4(a->g + i), load4(a->w + i)));
    for (; i < end; i++) a->w[i] -= rate * a->g[i];
}

int32_t kernel_sgd_f32(const sgd_f32_args *a) {
    parallel_for(sgd_chunk, a, chunk_count(a->n, GRAIN));
    return TW_OK;
}

/* 1, -1 or 0 by the sign of x; NaN stays NaN. */
TW_INLINE f32x4 sign4(f32x4 x) {
    f32x4 one = wasm_v128_or(wasm_v128_and(x, splat(-0.0f)), splat(1));
    return select4(wasm_f32x4_ne(x, splat(0)), select4(wasm_f32x4_eq(x, x), one, x), splat(0));
}

typedef struct {
    f32x4 b1, c1, b2, c2, rate, keep;
} lion_factors;

/* w = keep w - rate sign(b1 m + c1 g);  m = b2 m + c2 g */
TW_INLINE f32x4 lion4(const lion_factors *f, f32x4 w, f32x4 g, f32x4 *m) {
    f32x4 direction = sign4(madd(f->c1, g, mul4(f->b1, *m)));
    *m = madd(f->c2, g, mul4(f->b2, *m));
    return nmadd(f->rate, direction, mul4(w, f->keep));
}

static void lion_chunk(const void *args, int32_t chunk) {
    const lion_f32_args *a = args;
    float rate = state_f32(a->state, STATE_LEARNING_RATE), keep = (float)(1 - (double)rate * (double)a->weight_decay);
    const lion_factors f = {splat(a->alpha), splat(1.0f - a->alpha), splat(a->beta), splat(1.0f - a->beta),
                            splat(rate), splat(keep)};
    int32_t lo = chunk * GRAIN, n = min_i32(GRAIN, a->n - lo), i = 0;
    float *w_at = a->w + lo, *m_at = a->m + lo;
    const float *g_at = a->g + lo;
    for (; i + 4 <= n; i += 4) {
        f32x4 m = load4(m_at + i), w = lion4(&f, load4(w_at + i), load4(g_at + i), &m);
        store4(w_at + i, w);
        store4(m_at + i, m);
    }
    if (i < n) {
        int32_t rest = n - i;
        f32x4 m = load_part(m_at + i, rest), w = lion4(&f, load_part(w_at + i, rest), load_part(g_at + i, rest), &m);
        store_part(w_at + i, w, rest);
        store_part(m_at + i, m, rest);
    }
}

int32_t kernel_lion_f32(const lion_f32_args *a) {
    parallel_for(lion_chunk, a, chunk_count(a->n, GRAIN));
    return TW_OK;
}

/* Blocks of 256 in float (16 terms per lane and accumulator), block sums in double. */
static void sum_squares_chunk(const void *args, int32_t chunk) {
    const clip_grad_norm_f32_args *a = args;
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, a->n);
    double total = 0;
    while (i + 16 <= end) {
        int32_t block_end = min_i32(i + 256, end);
        f32x4 s0 = splat(0), s1 = splat(0), s2 = splat(0), s3 = splat(0);
        for (; i + 16 <= block_end; i += 16) {
            f32x4 x0 = load4(a->g + i), x1 = load4(a->g + i + 4), x2 = load4(a->g + i + 8), x3 = load4(a->g + i + 12);
            s0 = madd(x0, x0, s0);
            s1 = madd(x1, x1, s1);
            s2 = madd(x2, x2, s2);
            s3 = madd(x3, x3, s3);
        }
        f32x4 s = add4(add4(s0, s1), add4(s2, s3));
        v128_t low = wasm_f64x2_promote_low_f32x4(s), high = wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(s, s, 1, 1));
        v128_t d = wasm_f64x2_add(low, high);
        total += wasm_f64x2_extract_lane(d, 0) + wasm_f64x2_extract_lane(d, 1);
    }
    for (; i < end; i++) total += (double)a->g[i] * (double)a->g[i];
    tw_copy(a->partial + 2 * (int64_t)chunk, &total, sizeof total);
}

typedef struct {
    float *g;
    int32_t n;
    float factor;
} scale_task;

static void scale_chunk(const void *args, int32_t chunk) {
    const scale_task *task = args;
    float *g = task->g;
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, task->n);
    for (; i + 4 <= end; i += 4) store4(g + i, mul4(load4(g + i), splat(task->factor)));
    for (; i < end; i++) g[i] *= task->factor;
}

int32_t kernel_clip_grad_norm_f32(const clip_grad_norm_f32_args *a) {
    int32_t n_chunks = chunk_count(a->n, GRAIN);
    parallel_for(sum_squares_chunk, a, n_chunks);
    double total = 0;
    for (int32_t i = 0; i < n_chunks; i++) {
        double part;
        tw_copy(&part, a->partial + 2 * (int64_t)i, sizeof part);
        total += part;
    }
    double factor = (double)a->max_norm / (__builtin_sqrt(total) + 1e-6);
    if (factor >= 1) return TW_OK;
    scale_task task = {a->g, a->n, (float)factor};
    parallel_for(scale_chunk, &task, n_chunks);
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
