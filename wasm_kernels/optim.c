/* Optimizers over flat runs of parameters: one pass, seven streams. State words: docs/architecture.md section 4. */
#include "parallel.h"
#include "simd.h"

enum { LR = 1, STEP = 2, INITIAL_LR = 4, WARMUP = 6, TOTAL = 8 };
enum { OPTIM_GRAIN = 16384 };

static float state_f32(const int32_t *state, int32_t word) { return *(const float *)(state + word); }
static int64_t state_i64(const int32_t *state, int32_t word) {
    return (int64_t)((uint64_t)(uint32_t)state[word] | (uint64_t)(uint32_t)state[word + 1] << 32);
}

/* b^t by squaring, in double: 1 - b^t keeps its digits for b near 1. */
static double power(double b, int64_t t) {
    double r = 1.0;
    for (; t > 0; t >>= 1, b *= b)
        if (t & 1) r *= b;
    return r;
}

typedef struct {
    const adamw_f32_args *a;
    float rate, denominator_scale, before, after;
} adamw_task;

TW_INLINE f32x4 adamw_lanes(const adamw_task *t, f32x4 *w, f32x4 g, f32x4 *m, f32x4 *v) {
    const adamw_f32_args *a = t->a;
    *m = madd(*m, splat(a->alpha), mul4(g, splat(1.0f - a->alpha)));
    *v = madd(*v, splat(a->beta), mul4(mul4(g, g), splat(1.0f - a->beta)));
    f32x4 d = madd(wasm_f32x4_sqrt(*v), splat(t->denominator_scale), splat(a->epsilon));
    f32x4 updated = nmadd(splat(t->rate), div4(*m, d), mul4(*w, splat(t->before)));
    return mul4(updated, splat(t->after));
}

static void adamw_chunk(const void *args, int32_t chunk) {
    const adamw_task *t = args;
    const adamw_f32_args *a = t->a;
    int32_t i = chunk * OPTIM_GRAIN, end = min_i32(a->n, i + OPTIM_GRAIN);
    for (; i + 4 <= end; i += 4) {
        f32x4 w = load4(a->w + i), m = load4(a->m + i), v = load4(a->v + i);
        store4(a->w + i, adamw_lanes(t, &w, load4(a->g + i), &m, &v));
        store4(a->m + i, m);
        store4(a->v + i, v);
    }
    if (i < end) {
        int32_t rest = end - i;
        f32x4 w = load_part(a->w + i, rest), m = load_part(a->m + i, rest), v = load_part(a->v + i, rest);
        store_part(a->w + i, adamw_lanes(t, &w, load_part(a->g + i, rest), &m, &v), rest);
        store_part(a->m + i, m, rest);
        store_part(a->v + i, v, rest);
    }
}

/* Mode 1 (Hugging Face): w -= rate m / (sqrt v + eps), then decay of the new w. Mode 0 (PyTorch): decay of the old w, and
   eps added after the bias correction of v. Relative error of an update: 4 ulp. */
int32_t kernel_adamw_f32(const adamw_f32_args *a) {
    double lr = state_f32(a->state, LR);
    int64_t step = state_i64(a->state, STEP) + 1;
    double correct1 = 1.0 - power(a->alpha, step), correct2 = __builtin_sqrt(1.0 - power(a->beta, step));
    float decay = (float)(1.0 - lr * a->weight_decay);
    adamw_task t = {a, (float)lr, 1.0f, 1.0f, decay};
    if (a->adam_mode == 0) {
        t.rate = (float)(lr / correct1);
        t.denominator_scale = (float)(1.0 / correct2);
        t.before = decay;
        t.after = 1.0f;
    } else if (a->correct_bias) {
        t.rate = (float)(lr * correct2 / correct1);
    }
    parallel_for(adamw_chunk, &t, chunk_count(a->n, OPTIM_GRAIN));
    return TW_OK;
}

static void sgd_chunk(const void *args, int32_t chunk) {
    const sgd_f32_args *a = args;
    f32x4 lr = splat(state_f32(a->state, LR));
    int32_t i = chunk * OPTIM_GRAIN, end = min_i32(a->n, i + OPTIM_GRAIN);
    for (; i + 4 <= end; i += 4) store4(a->w + i, nmadd(lr, load4(a->g + i), load4(a->w + i)));
    if (i < end) {
        int32_t rest = end - i;
        store_part(a->w + i, nmadd(lr, load_part(a->g + i, rest), load_part(a->w + i, rest)), rest);
    }
}

/* w -= lr g */
int32_t kernel_sgd_f32(const sgd_f32_args *a) {
    parallel_for(sgd_chunk, a, chunk_count(a->n, OPTIM_GRAIN));
    return TW_OK;
}

typedef struct {
    const clip_grad_norm_f32_args *a;
    float scale;
} clip_task;

static void squares_chunk(const void *args, int32_t chunk) {
    const clip_grad_norm_f32_args *a = ((const clip_task *)args)->a;
    int32_t i = chunk * OPTIM_GRAIN, end = min_i32(a->n, i + OPTIM_GRAIN);
    double sum = 0;
    while (i < end) {
        /* 64 products in float, then one addition in double: errors do not grow with n. */
        int32_t stop = min_i32(end, i + 64);
        f32x4 s = splat(0);
        for (; i + 4 <= stop; i += 4) s = madd(load4(a->g + i), load4(a->g + i), s);
        float tail = 0;
        for (; i < stop; i++) tail += a->g[i] * a->g[i];
        sum += (double)(hsum(s) + tail);
    }
    a->partial[chunk] = sum;
}

static void scale_chunk(const void *args, int32_t chunk) {
    const clip_task *t = args;
    int32_t i = chunk * OPTIM_GRAIN, end = min_i32(t->a->n, i + OPTIM_GRAIN);
    for (; i + 4 <= end; i += 4) store4(t->a->g + i, mul4(load4(t->a->g + i), splat(t->scale)));
    for (; i < end; i++) t->a->g[i] *= t->scale;
}

/* g *= min(1, max_norm / (|g| + 1e-6)); the norm has a relative error of 64 ulp at most. */
int32_t kernel_clip_grad_norm_f32(const clip_grad_norm_f32_args *a) {
    clip_task t = {a, 1.0f};
    int32_t chunks = chunk_count(a->n, OPTIM_GRAIN);
    parallel_for(squares_chunk, &t, chunks);
    double sum = 0;
    for (int32_t i = 0; i < chunks; i++) sum += a->partial[i];
    double scale = a->max_norm / (__builtin_sqrt(sum) + 1e-6);
    if (scale < 1.0) {
        t.scale = (float)scale;
        parallel_for(scale_chunk, &t, chunks);
    }
    return TW_OK;
}

/* One optimizer step is done. */
int32_t kernel_optimizer_advance(const optimizer_advance_args *a) {
    int64_t step = state_i64(a->state, STEP) + 1;
    a->state[STEP] = (int32_t)(uint32_t)step;
    a->state[STEP + 1] = (int32_t)(uint32_t)(step >> 32);
    return TW_OK;
}

/* rate = L * (step / max(1, W) while step < W, else max(0, (T - step) / max(1, T - W))), step being completed steps. */
int32_t kernel_linear_lr(const linear_lr_args *a) {
    int64_t step = state_i64(a->state, STEP), warmup = state_i64(a->state, WARMUP), total = state_i64(a->state, TOTAL);
    double f;
    if (step < warmup) {
        f = (double)step / (double)(warmup > 1 ? warmup : 1);
    } else {
        int64_t rest = total - warmup;
        f = (double)(total - step) / (double)(rest > 1 ? rest : 1);
        if (f < 0) f = 0;
    }
    *(float *)(a->state + LR) = (float)(state_f32(a->state, INITIAL_LR) * f);
    return TW_OK;
}
