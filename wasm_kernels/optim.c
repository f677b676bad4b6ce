/* Optimizers over flat runs of parameters, in place. Each formula is evaluated in float32 per element, with the scalar
   factors (bias corrections, clipping) in double: relative error of an update below 1e-6, tested against float64. */
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

/* What an optimizer updates: parameters by their gradients, and up to three moments of them. */
typedef struct {
    int32_t n;
    float *w;
    const float *g;
    float *s[3];
    int32_t sweeps; /* whether moments of almost nothing become 0 */
} flat_run;

/* Steps after which moments are swept, and the exponent under which they become 0: 2^-106, so that decays of 0.9 and rates of
   1e-5 make nothing subnormal of them until the next time. */
enum { SWEEP = 16, LEAST_EXPONENT = 21 };

/* The moments of a parameter whose gradient stays 0 (a row of an embedding that no batch has, a dead unit) shrink until they
   are subnormal and stay there, where an operation takes most processors some 150 cycles. To look at each step would cost a
   fifth of a step whose moments are in the cache. Where epsilon is 0, a second moment of 0 would divide by 0. */
static int32_t sweeps_at(const int32_t *state, float epsilon) {
    return state_i64(state, STATE_STEP) % SWEEP == SWEEP - 1 && epsilon > 0;
}

static __attribute__((noinline)) void sweep(float *at, int32_t n) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        f32x4 x = load4(at + i);
        v128_t exponent = wasm_u32x4_shr(wasm_i32x4_shl(x, 1), 24);
        store4(at + i, wasm_v128_andnot(x, wasm_i32x4_lt(exponent, wasm_i32x4_splat(LEAST_EXPONENT))));
    }
    for (; i < n; i++)
        if (__builtin_fabsf(at[i]) < 0x1p-106f) at[i] = 0;
}

/* The moments of a chunk, after a step. */
static __attribute__((noinline)) void sweep_chunk(const flat_run *r, int32_t moments, int32_t chunk) {
    int32_t start = chunk * GRAIN, end = (int32_t)min_i64((int64_t)start + GRAIN, r->n);
    for (int32_t k = 0; r->sweeps && k < moments; k++) sweep(r->s[k] + start, end - start);
}

/* A step on four elements: the new w; the moments are updated in place. */
typedef f32x4 (*step4)(const void *factors, f32x4 w, f32x4 g, f32x4 *s);

/* One chunk of a run. `step` and `moments` are constants, so that the loop has no call and no branch on them. */
TW_INLINE void update_chunk(step4 step, const void *factors, const flat_run *r, int32_t moments, int32_t chunk) {
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, r->n);
    float *w_at = r->w;
    const float *g_at = r->g;
    float *const s0 = r->s[0], *const s1 = r->s[1], *const s2 = r->s[2];
    f32x4 s[3];
    for (; i + 4 <= end; i += 4) {
        if (moments > 0) s[0] = load4(s0 + i);
        if (moments > 1) s[1] = load4(s1 + i);
        if (moments > 2) s[2] = load4(s2 + i);
        store4(w_at + i, step(factors, load4(w_at + i), load4(g_at + i), s));
        if (moments > 0) store4(s0 + i, s[0]);
        if (moments > 1) store4(s1 + i, s[1]);
        if (moments > 2) store4(s2 + i, s[2]);
    }
    int32_t rest = end - i;
    if (rest <= 0) {
        sweep_chunk(r, moments, chunk);
        return;
    }
    if (moments > 0) s[0] = load_part(s0 + i, rest);
    if (moments > 1) s[1] = load_part(s1 + i, rest);
    if (moments > 2) s[2] = load_part(s2 + i, rest);
    store_part(w_at + i, step(factors, load_part(w_at + i, rest), load_part(g_at + i, rest), s), rest);
    if (moments > 0) store_part(s0 + i, s[0], rest);
    if (moments > 1) store_part(s1 + i, s[1], rest);
    if (moments > 2) store_part(s2 + i, s[2], rest);
    sweep_chunk(r, moments, chunk);
}

/* Vectors that stay in registers through the loop. */
typedef struct {
    f32x4 b1, c1, b2, c2, step_size, root_factor, epsilon, before, after, decay;
} adam_factors;

typedef struct {
    flat_run run;
    adam_factors f;
} adam_task;

/* m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= s m / (r sqrt(v) + epsilon), between two decays. */
TW_INLINE f32x4 adamw4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const adam_factors *f = factors;
    s[0] = madd(f->c1, g, mul4(f->b1, s[0]));
    s[1] = madd(mul4(f->c2, g), g, mul4(f->b2, s[1]));
    f32x4 denominator = madd(wasm_f32x4_sqrt(s[1]), f->root_factor, f->epsilon);
    w = mul4(w, f->before);
    return mul4(sub4(w, div4(mul4(f->step_size, s[0]), denominator)), f->after);
}

static void adamw_chunk(const void *args, int32_t chunk) {
    const adam_task *t = args;
    const adam_factors f = t->f;
    update_chunk(adamw4, &f, &t->run, 2, chunk);
}

/* Factors of both forms: correct the moments by step_size and root_factor; no decay yet. */
static adam_factors adam_factors_of(float alpha, float beta, float epsilon) {
    f32x4 one = splat(1), zero = splat(0);
    return (adam_factors){splat(alpha), splat(1.0f - alpha), splat(beta), splat(1.0f - beta), one, one,
                          splat(epsilon), one, one, zero};
}

static void correct_bias(adam_factors *f, double rate, float alpha, float beta, int64_t step) {
    f->step_size = splat((float)(rate / (1 - power(alpha, step))));
    f->root_factor = splat((float)(1 / __builtin_sqrt(1 - power(beta, step))));
}

int32_t kernel_adamw_f32(const adamw_f32_args *a) {
    double rate = state_f32(a->state, STATE_LEARNING_RATE);
    int64_t step = state_i64(a->state, STATE_STEP) + 1;
    const flat_run run = {a->n, a->w, a->g, {a->m, a->v}, sweeps_at(a->state, a->epsilon)};
    adam_task task = {run, adam_factors_of(a->alpha, a->beta, a->epsilon)};
    f32x4 decay = splat((float)(1 - rate * (double)a->weight_decay));
    if (a->adam_mode == 0) {
        if (a->correct_bias) correct_bias(&task.f, rate, a->alpha, a->beta, step);
        else task.f.step_size = splat((float)rate);
        task.f.before = decay;
    } else {
        double correction1 = 1 - power(a->alpha, step), root2 = __builtin_sqrt(1 - power(a->beta, step));
        task.f.step_size = splat((float)(a->correct_bias ? rate * root2 / correction1 : rate));
        task.f.after = decay;
    }
    parallel_for(adamw_chunk, &task, chunk_count(a->n, GRAIN));
    return TW_OK;
}

/* g += decay w, then as above. */
TW_INLINE f32x4 adam4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const adam_factors *f = factors;
    g = madd(f->decay, w, g);
    s[0] = madd(f->c1, g, mul4(f->b1, s[0]));
    s[1] = madd(mul4(f->c2, g), g, mul4(f->b2, s[1]));
    return sub4(w, div4(mul4(f->step_size, s[0]), madd(wasm_f32x4_sqrt(s[1]), f->root_factor, f->epsilon)));
}

static void adam_chunk(const void *args, int32_t chunk) {
    const adam_task *t = args;
    const adam_factors f = t->f;
    update_chunk(adam4, &f, &t->run, 2, chunk);
}

int32_t kernel_adam_f32(const adam_f32_args *a) {
    const flat_run run = {a->n, a->w, a->g, {a->m, a->v}, sweeps_at(a->state, a->epsilon)};
    adam_task task = {run, adam_factors_of(a->alpha, a->beta, a->epsilon)};
    double rate = state_f32(a->state, STATE_LEARNING_RATE);
    correct_bias(&task.f, rate, a->alpha, a->beta, state_i64(a->state, STATE_STEP) + 1);
    task.f.decay = splat(a->weight_decay);
    parallel_for(adam_chunk, &task, chunk_count(a->n, GRAIN));
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

typedef struct {
    flat_run run;
    lion_factors f;
} lion_task;

/* w = keep w - rate sign(b1 m + c1 g);  m = b2 m + c2 g */
TW_INLINE f32x4 lion4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const lion_factors *f = factors;
    f32x4 direction = sign4(madd(f->c1, g, mul4(f->b1, s[0])));
    s[0] = madd(f->c2, g, mul4(f->b2, s[0]));
    return nmadd(f->rate, direction, mul4(w, f->keep));
}

static void lion_chunk(const void *args, int32_t chunk) {
    const lion_task *t = args;
    const lion_factors f = t->f;
    update_chunk(lion4, &f, &t->run, 1, chunk);
}

int32_t kernel_lion_f32(const lion_f32_args *a) {
    float rate = state_f32(a->state, STATE_LEARNING_RATE), keep = (float)(1 - (double)rate * (double)a->weight_decay);
    const lion_task task = {{a->n, a->w, a->g, {a->m}, sweeps_at(a->state, 1)},
                            {splat(a->alpha), splat(1.0f - a->alpha), splat(a->beta), splat(1.0f - a->beta),
                             splat(rate), splat(keep)}};
    parallel_for(lion_chunk, &task, chunk_count(a->n, GRAIN));
    return TW_OK;
}

typedef struct {
    f32x4 rate, keep, take, ahead, gradient, decay;
} momentum_factors;

typedef struct {
    flat_run run;
    momentum_factors f;
} momentum_task;

/* g += decay w;  m = keep m + take g;  w -= rate (ahead m + gradient g) */
TW_INLINE f32x4 momentum4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const momentum_factors *f = factors;
    g = madd(f->decay, w, g);
    s[0] = madd(f->take, g, mul4(f->keep, s[0]));
    return nmadd(f->rate, madd(f->gradient, g, mul4(f->ahead, s[0])), w);
}

static void momentum_chunk(const void *args, int32_t chunk) {
    const momentum_task *t = args;
    const momentum_factors f = t->f;
    update_chunk(momentum4, &f, &t->run, 1, chunk);
}

int32_t kernel_momentum_f32(const momentum_f32_args *a) {
    int32_t is_first = state_i64(a->state, STATE_STEP) == 0;
    const momentum_task task = {{a->n, a->w, a->g, {a->m}, sweeps_at(a->state, 1)},
                                {splat(state_f32(a->state, STATE_LEARNING_RATE)), splat(is_first ? 0 : a->momentum),
                                 splat(is_first ? 1 : 1 - a->dampening), splat(a->nesterov ? a->momentum : 1),
                                 splat(a->nesterov ? 1 : 0), splat(a->weight_decay)}};
    parallel_for(momentum_chunk, &task, chunk_count(a->n, GRAIN));
    return TW_OK;
}

typedef struct {
    f32x4 rate, alpha, rest, epsilon, momentum, decay;
} rmsprop_factors;

typedef struct {
    flat_run run;
    rmsprop_factors f;
} rmsprop_task;

/* s[0] = alpha s[0] + (1 - alpha) g^2; the mean of g, where there is one, is s[at]. Gives g / (root + epsilon). */
TW_INLINE f32x4 rmsprop_direction(const rmsprop_factors *f, f32x4 g, f32x4 *s, int32_t at) {
    s[0] = madd(mul4(f->rest, g), g, mul4(f->alpha, s[0]));
    f32x4 variance = s[0];
    if (at > 0) {
        s[at] = madd(f->rest, g, mul4(f->alpha, s[at]));
        variance = nmadd(s[at], s[at], variance);
    }
    return div4(g, add4(wasm_f32x4_sqrt(variance), f->epsilon));
}

TW_INLINE f32x4 rmsprop_plain4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const rmsprop_factors *f = factors;
    return nmadd(f->rate, rmsprop_direction(f, madd(f->decay, w, g), s, 0), w);
}

TW_INLINE f32x4 rmsprop_centered4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const rmsprop_factors *f = factors;
    return nmadd(f->rate, rmsprop_direction(f, madd(f->decay, w, g), s, 1), w);
}

TW_INLINE f32x4 rmsprop_momentum4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const rmsprop_factors *f = factors;
    s[1] = madd(f->momentum, s[1], rmsprop_direction(f, madd(f->decay, w, g), s, 0));
    return nmadd(f->rate, s[1], w);
}

TW_INLINE f32x4 rmsprop_all4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const rmsprop_factors *f = factors;
    s[1] = madd(f->momentum, s[1], rmsprop_direction(f, madd(f->decay, w, g), s, 2));
    return nmadd(f->rate, s[1], w);
}

static void rmsprop_chunk(const void *args, int32_t chunk) {
    const rmsprop_task *t = args;
    const rmsprop_factors f = t->f;
    if (t->run.s[1] && t->run.s[2]) {
        update_chunk(rmsprop_all4, &f, &t->run, 3, chunk);
    } else if (t->run.s[1]) {
        update_chunk(rmsprop_momentum4, &f, &t->run, 2, chunk);
    } else if (t->run.s[2]) {
        const flat_run centered = {t->run.n, t->run.w, t->run.g, {t->run.s[0], t->run.s[2]}, t->run.sweeps};
        update_chunk(rmsprop_centered4, &f, &centered, 2, chunk);
    } else {
        update_chunk(rmsprop_plain4, &f, &t->run, 1, chunk);
    }
}

int32_t kernel_rmsprop_f32(const rmsprop_f32_args *a) {
    const rmsprop_task task = {{a->n, a->w, a->g, {a->s, a->velocity, a->mean}, sweeps_at(a->state, a->epsilon)},
                               {splat(state_f32(a->state, STATE_LEARNING_RATE)), splat(a->alpha),
                                splat(1.0f - a->alpha), splat(a->epsilon), splat(a->momentum),
                                splat(a->weight_decay)}};
    parallel_for(rmsprop_chunk, &task, chunk_count(a->n, GRAIN));
    return TW_OK;
}

typedef struct {
    f32x4 rate, initial, epsilon, decay;
} adagrad_factors;

typedef struct {
    flat_run run;
    adagrad_factors f;
} adagrad_task;

TW_INLINE f32x4 adagrad4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const adagrad_factors *f = factors;
    g = madd(f->decay, w, g);
    s[0] = madd(g, g, add4(s[0], f->initial));
    return sub4(w, div4(mul4(f->rate, g), add4(wasm_f32x4_sqrt(s[0]), f->epsilon)));
}

static void adagrad_chunk(const void *args, int32_t chunk) {
    const adagrad_task *t = args;
    const adagrad_factors f = t->f;
    update_chunk(adagrad4, &f, &t->run, 1, chunk);
}

int32_t kernel_adagrad_f32(const adagrad_f32_args *a) {
    int64_t before = state_i64(a->state, STATE_STEP);
    double rate = state_f32(a->state, STATE_LEARNING_RATE) / (1 + (double)before * (double)a->rate_decay);
    const adagrad_task task = {{a->n, a->w, a->g, {a->s}, sweeps_at(a->state, a->epsilon)},
                               {splat((float)rate), splat(before == 0 ? a->initial : 0), splat(a->epsilon),
                                splat(a->weight_decay)}};
    parallel_for(adagrad_chunk, &task, chunk_count(a->n, GRAIN));
    return TW_OK;
}

typedef struct {
    f32x4 rate, rho, rest, epsilon, decay;
} adadelta_factors;

typedef struct {
    flat_run run;
    adadelta_factors f;
} adadelta_task;

TW_INLINE f32x4 adadelta4(const void *factors, f32x4 w, f32x4 g, f32x4 *s) {
    const adadelta_factors *f = factors;
    g = madd(f->decay, w, g);
    s[0] = madd(mul4(f->rest, g), g, mul4(f->rho, s[0]));
    f32x4 scale = div4(wasm_f32x4_sqrt(add4(s[1], f->epsilon)), wasm_f32x4_sqrt(add4(s[0], f->epsilon)));
    f32x4 update = mul4(scale, g);
    s[1] = madd(mul4(f->rest, update), update, mul4(f->rho, s[1]));
    return nmadd(f->rate, update, w);
}

static void adadelta_chunk(const void *args, int32_t chunk) {
    const adadelta_task *t = args;
    const adadelta_factors f = t->f;
    update_chunk(adadelta4, &f, &t->run, 2, chunk);
}

int32_t kernel_adadelta_f32(const adadelta_f32_args *a) {
    const adadelta_task task = {{a->n, a->w, a->g, {a->s, a->d}, sweeps_at(a->state, a->epsilon)},
                                {splat(state_f32(a->state, STATE_LEARNING_RATE)), splat(a->rho), splat(1.0f - a->rho),
                                 splat(a->epsilon), splat(a->weight_decay)}};
    parallel_for(adadelta_chunk, &task, chunk_count(a->n, GRAIN));
    return TW_OK;
}

typedef struct {
    flat_run run;
    adam_factors f;
    float *partial; /* two doubles a chunk: sums of w^2 and of r^2 */
    f32x4 rate;     /* times the trust ratio */
} lamb_task;

/* m / (1 - b1^t) / (root of v / (1 - b2^t) + epsilon) + decay w, with m and v as they are now; 1 - b1^t is in the factors of
   the denominator. */
TW_INLINE f32x4 lamb_direction(const adam_factors *f, f32x4 w, f32x4 m, f32x4 v) {
    return madd(f->decay, w, div4(m, madd(wasm_f32x4_sqrt(v), f->root_factor, f->epsilon)));
}

/* Update the moments of four elements; gives their direction. */
TW_INLINE f32x4 lamb_moments4(const adam_factors *f, f32x4 w, f32x4 g, f32x4 *s) {
    s[0] = madd(f->c1, g, mul4(f->b1, s[0]));
    s[1] = madd(mul4(f->c2, g), g, mul4(f->b2, s[1]));
    return lamb_direction(f, w, s[0], s[1]);
}

/* Squares in blocks of 64 terms a lane in float, block sums in double. */
static void lamb_moments_chunk(const void *args, int32_t chunk) {
    const lamb_task *t = args;
    const adam_factors f = t->f;
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, t->run.n);
    const float *w_at = t->run.w, *g_at = t->run.g;
    float *m_at = t->run.s[0], *v_at = t->run.s[1];
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
    int32_t chunk = chunk_count(t->run.n, GRAIN) - 1 - backwards;
    const adam_factors f = t->f;
    const f32x4 rate = t->rate;
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, t->run.n);
    float *w_at = t->run.w;
    const float *m_at = t->run.s[0], *v_at = t->run.s[1];
    for (; i + 4 <= end; i += 4) {
        f32x4 w = load4(w_at + i);
        store4(w_at + i, nmadd(rate, lamb_direction(&f, w, load4(m_at + i), load4(v_at + i)), w));
    }
    if (i < end) {
        int32_t rest = end - i;
        f32x4 w = load_part(w_at + i, rest), m = load_part(m_at + i, rest), v = load_part(v_at + i, rest);
        store_part(w_at + i, nmadd(rate, lamb_direction(&f, w, m, v), w), rest);
    }
    sweep_chunk(&t->run, 2, chunk);
}

int32_t kernel_lamb_f32(const lamb_f32_args *a) {
    int32_t n_chunks = chunk_count(a->n, GRAIN);
    const flat_run run = {a->n, a->w, a->g, {a->m, a->v}, sweeps_at(a->state, a->epsilon)};
    lamb_task task = {run, adam_factors_of(a->alpha, a->beta, a->epsilon), a->partial, splat(0)};
    if (a->correct_bias) {
        int64_t t = state_i64(a->state, STATE_STEP) + 1;
        double first = 1 - power(a->alpha, t), root = __builtin_sqrt(1 - power(a->beta, t));
        task.f.root_factor = splat((float)(first / root));
        task.f.epsilon = splat((float)(first * (double)a->epsilon));
    }
    task.f.decay = splat(a->weight_decay);
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

typedef struct {
    flat_run run; /* w: the averages, g: the parameters */
    float keep;
} average_task;

TW_INLINE f32x4 average4(const void *factors, f32x4 average, f32x4 w, f32x4 *s) {
    (void)s;
    return madd(*(const f32x4 *)factors, sub4(w, average), average);
}

static void average_chunk(const void *args, int32_t chunk) {
    const average_task *t = args;
    const f32x4 take = splat(1.0f - t->keep);
    update_chunk(average4, &take, &t->run, 0, chunk);
}

int32_t kernel_average_f32(const average_f32_args *a) {
    int64_t step = state_i64(a->state, STATE_STEP);
    if (step == 0) {
        tw_move(a->average, a->w, 4 * (size_t)a->n);
        return TW_OK;
    }
    float keep = a->decay;
    if (a->power > 0) {
        f32x4 grown = pow4(splat(1.0f + (float)step / a->gamma), splat(-a->power));
        float warm = 1.0f - wasm_f32x4_extract_lane(grown, 0);
        if (warm < keep) keep = warm;
    }
    const average_task task = {{a->n, a->average, a->w, {0}, 0}, keep};
    parallel_for(average_chunk, &task, chunk_count(a->n, GRAIN));
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
