/* Optimizers that need the norm of a parameter, clipping by norms, and the upkeep of moments and of the step; the others are
   generated functions (ops/optim/rules.py). Formulas are evaluated in float32 per element, with scalar factors (bias corrections,
   clipping) in double. The relative error of an update is below 1e-6, tested against float64. */
#include "math.h"
#include "optim.h"
#include "parallel.h"

/* b^t; by squaring, so that the error stays near log2(t) roundings. */
static double power(double b, int64_t t) {
    double result = 1;
    for (; t > 0; t >>= 1, b *= b)
        if (t & 1) result *= b;
    return result;
}

/* Steps after which moments are flushed, and the exponent under which they become 0: 2^-106. With decays of 0.9 and rates of
   1e-5 no moment becomes subnormal until the next flush. */
enum { FLUSH_STEPS = 16, LEAST_EXPONENT = 21 };

typedef struct {
    float *x;
    int32_t n;
} flush_task;

static void flush_chunk(const void *args, int32_t chunk) {
    const flush_task *t = args;
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, t->n);
    for (; i + 4 <= end; i += 4) {
        f32x4 x = load4(t->x + i);
        v128_t exponent = wasm_u32x4_shr(wasm_i32x4_shl(x, 1), 24);
        v128_t is_small = wasm_i32x4_lt(exponent, wasm_i32x4_splat(LEAST_EXPONENT));
        if (wasm_v128_any_true(is_small)) store4(t->x + i, wasm_v128_andnot(x, is_small));
    }
    for (; i < end; i++)
        if (__builtin_fabsf(t->x[i]) < 0x1p-106f) t->x[i] = 0;
}

/* Some gradients stay 0: of a row of an embedding that no batch has, or of a dead unit. Their moments shrink until they are
   subnormal and stay there, and an operation on them takes most processors some 150 cycles. To flush in each step would cost
   a fifth of a step whose moments are in the cache. */
int32_t kernel_flush_moments_f32(const flush_moments_f32_args *a) {
    if (state_i64(a->state, STATE_STEP) % FLUSH_STEPS != FLUSH_STEPS - 1) return TW_OK;
    const flush_task task = {a->x, a->n};
    parallel_for(flush_chunk, &task, chunk_count(a->n, GRAIN));
    return TW_OK;
}

typedef struct {
    float *w;
    const float *g;
    float *m, *v, *partial; /* two doubles a chunk: sums of w^2 and of r^2 */
    int32_t n;
    f32x4 b1, c1, b2, c2, root_factor, epsilon, decay, rate; /* the rate times the trust ratio */
} lamb_task;

/* m / (1 - b1^t) / (root of v / (1 - b2^t) + epsilon) + decay w, with the current m and v; the factors of the denominator
   contain 1 - b1^t. */
TW_INLINE f32x4 lamb_direction(const lamb_task *f, f32x4 w, f32x4 m, f32x4 v) {
    return madd(f->decay, w, div4(m, madd(wasm_f32x4_sqrt(v), f->root_factor, f->epsilon)));
}

/* Update the moments of four elements; gives their direction. */
TW_INLINE f32x4 lamb_moments4(const lamb_task *f, f32x4 w, f32x4 g, f32x4 *s) {
    s[0] = madd(f->c1, g, mul4(f->b1, s[0]));
    s[1] = madd(mul4(f->c2, g), g, mul4(f->b2, s[1]));
    return lamb_direction(f, w, s[0], s[1]);
}

/* Squares in blocks of 64 terms a lane in float, block sums in double. */
static void lamb_moments_chunk(const void *args, int32_t chunk) {
    const lamb_task *t = args;
    const lamb_task f = *t;
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, t->n);
    const float *w_at = t->w, *g_at = t->g;
    float *m_at = t->m, *v_at = t->v;
    two_sums totals = {0, 0};
    while (i + 4 <= end) {
        int32_t block_end = min_i32(i + 256, end);
        f32x4 ww = splat(0), rr = splat(0);
        for (; i + 4 <= block_end; i += 4) {
            f32x4 s[2] = {load4(m_at + i), load4(v_at + i)}, w = load4(w_at + i);
            f32x4 r = lamb_moments4(&f, w, load4(g_at + i), s);
            store4(m_at + i, s[0]);
            store4(v_at + i, s[1]);
            ww = madd(w, w, ww);
            rr = madd(r, r, rr);
        }
        totals.first += wide_sum(ww);
        totals.second += wide_sum(rr);
    }
    if (i < end) {
        int32_t rest = end - i;
        f32x4 s[2] = {load_part(m_at + i, rest), load_part(v_at + i, rest)}, w = load_part(w_at + i, rest);
        f32x4 r = lamb_moments4(&f, w, load_part(g_at + i, rest), s);
        store_part(m_at + i, s[0], rest);
        store_part(v_at + i, s[1], rest);
        r = wasm_v128_and(r, first_lanes(rest)); /* beyond them it is 0 / 0 where epsilon is 0 */
        totals.first += wide_sum(mul4(w, w));
        totals.second += wide_sum(mul4(r, r));
    }
    put_sums(t->partial, chunk, totals);
}

/* Chunks from the end: what the first pass left in the cache comes first. */
static void lamb_chunk(const void *args, int32_t backwards) {
    const lamb_task *t = args;
    const lamb_task f = *t;
    int32_t chunk = chunk_count(t->n, GRAIN) - 1 - backwards;
    const f32x4 rate = t->rate;
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, t->n);
    float *w_at = t->w;
    const float *m_at = t->m, *v_at = t->v;
    for (; i + 4 <= end; i += 4) {
        f32x4 w = load4(w_at + i);
        store4(w_at + i, nmadd(rate, lamb_direction(&f, w, load4(m_at + i), load4(v_at + i)), w));
    }
    if (i < end) {
        int32_t rest = end - i;
        f32x4 w = load_part(w_at + i, rest), m = load_part(m_at + i, rest), v = load_part(v_at + i, rest);
        store_part(w_at + i, nmadd(rate, lamb_direction(&f, w, m, v), w), rest);
    }
}

int32_t kernel_lamb_f32(const lamb_f32_args *a) {
    int32_t n_chunks = chunk_count(a->n, GRAIN);
    f32x4 one = splat(1);
    lamb_task task = {a->w, a->g, a->m, a->v, a->partial, a->n, splat(a->alpha), splat(1.0f - a->alpha), splat(a->beta),
                      splat(1.0f - a->beta), one, splat(a->epsilon), splat(a->weight_decay), one};
    if (a->correct_bias) {
        int64_t t = state_i64(a->state, STATE_STEP) + 1;
        double first = 1 - power(a->alpha, t), root = __builtin_sqrt(1 - power(a->beta, t));
        task.root_factor = splat((float)(first / root));
        task.epsilon = splat((float)(first * (double)a->epsilon));
    }
    parallel_for(lamb_moments_chunk, &task, n_chunks);
    two_sums norms = total_of(a->partial, n_chunks);
    double trust = 1;
    if (norms.first > 0 && norms.second > 0) {
        trust = __builtin_sqrt(norms.first / norms.second);
        if (trust > a->ratio_max) trust = a->ratio_max;
        if (trust < a->ratio_min) trust = a->ratio_min;
    }
    task.rate = splat((float)(state_f32(a->state, STATE_LEARNING_RATE) * trust));
    parallel_for(lamb_chunk, &task, n_chunks);
    return TW_OK;
}

int32_t kernel_state_with_rate(const state_with_rate_args *a) {
    tw_copy(a->changed, a->state, 4 * STATE_WORDS);
    set_state_f32(a->changed, STATE_LEARNING_RATE, a->rate[0]);
    return TW_OK;
}

typedef struct {
    float *g, *partial; /* a double a chunk */
    int32_t n;
    float factor; /* or limit */
} clip_task;

static void sum_squares_chunk(const void *args, int32_t chunk) {
    const clip_task *a = args;
    int64_t i = (int64_t)chunk * GRAIN;
    double total = sum_squares(a->g + i, min_i64(GRAIN, a->n - i));
    tw_copy(a->partial + 2 * (int64_t)chunk, &total, sizeof total);
}

static void scale_chunk(const void *args, int32_t chunk) {
    const clip_task *task = args;
    float *g = task->g;
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, task->n);
    for (; i + 4 <= end; i += 4) store4(g + i, mul4(load4(g + i), splat(task->factor)));
    for (; i < end; i++) g[i] *= task->factor;
}

static void clip_norm(clip_task task, float max_norm) {
    int32_t n_chunks = chunk_count(task.n, GRAIN);
    parallel_for(sum_squares_chunk, &task, n_chunks);
    double total = 0;
    for (int32_t i = 0; i < n_chunks; i++) {
        double part;
        tw_copy(&part, task.partial + 2 * (int64_t)i, sizeof part);
        total += part;
    }
    double factor = (double)max_norm / (__builtin_sqrt(total) + 1e-6);
    if (factor >= 1) return;
    task.factor = (float)factor;
    parallel_for(scale_chunk, &task, n_chunks);
}

int32_t kernel_clip_grad_norm_f32(const clip_grad_norm_f32_args *a) {
    clip_norm((clip_task){a->g, a->partial, a->n, 0}, a->max_norm);
    return TW_OK;
}

TW_INLINE f32x4 clip4(f32x4 g, f32x4 limit) { return wasm_f32x4_min(wasm_f32x4_max(g, wasm_f32x4_neg(limit)), limit); }

static void clip_value_chunk(const void *args, int32_t chunk) {
    const clip_task *task = args;
    float *g = task->g;
    f32x4 limit = splat(task->factor);
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, task->n);
    for (; i + 4 <= end; i += 4) store4(g + i, clip4(load4(g + i), limit));
    if (i < end) store_part(g + i, clip4(load_part(g + i, end - i), limit), end - i);
}

int32_t kernel_clip_grads_f32(const clip_grads_f32_args *a) {
    clip_task task = {a->g, a->partial, a->n, a->limits[0]};
    if (a->limits[0] < __builtin_inff()) parallel_for(clip_value_chunk, &task, chunk_count(a->n, GRAIN));
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
