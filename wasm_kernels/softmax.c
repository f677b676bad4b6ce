/* Softmax along the middle axis of [outer, n, inner], and cross entropy of class scores.

   Softmax: relative error of each result below 2e-6 plus 2^-24 |x - max|, which subtracting the maximum loses;
   log-softmax and losses: absolute error below 2e-6 * max(1, |x - max|). Tested against float64. */
#include "math.h"
#include "parallel.h"
#include "reduce.h"
#include "softmax.h"

enum { SUM_BLOCK = 512 };

/* ---- rows: inner = 1 ---- */

float exp_row(const float *x, float *y, int32_t n, float shift) {
    f32x4 m = splat(shift), total = splat(0);
    int32_t i = 0;
    while (i + 4 <= n) {
        int32_t end = min_i32(i + SUM_BLOCK, n);
        f32x4 s = splat(0);
        for (; i + 4 <= end; i += 4) {
            f32x4 e = exp4_negative(sub4(load4(x + i), m));
            if (y) store4(y + i, e);
            s = add4(s, e);
        }
        total = add4(total, s);
    }
    if (i < n) {
        f32x4 e = exp4_negative(sub4(load_part(x + i, n - i), m));
        if (y) store_part(y + i, e, n - i);
        total = add4(total, wasm_v128_and(e, first_lanes(n - i)));
    }
    return hsum(total);
}

/* y = x - top - rest */
static void shift_row(const float *x, float *y, int32_t n, float top, float rest) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) store4(y + i, sub4(sub4(load4(x + i), splat(top)), splat(rest)));
    for (; i < n; i++) y[i] = x[i] - top - rest;
}

static void softmax_row(const float *x, float *y, int32_t n, int32_t log) {
    float top = max_row(x, n);
    if (log) {
        shift_row(x, y, n, top, log1(exp_row(x, NULL, n, top)));
    } else {
        scale_row(y, y, n, 1.0f / exp_row(x, y, n, top));
    }
}

/* y (dy - sum(y dy)), or dy - e^y sum(dy). */
static void softmax_grad_row(const float *dy, const float *y, float *dx, int32_t n, int32_t log) {
    f32x4 total = splat(0);
    float tail = 0;
    int32_t i = 0;
    if (!log) {
        while (i + 4 <= n) {
            int32_t end = min_i32(i + SUM_BLOCK, n);
            f32x4 s = splat(0);
            for (; i + 4 <= end; i += 4) s = madd(load4(y + i), load4(dy + i), s);
            total = add4(total, s);
        }
        for (; i < n; i++) tail += y[i] * dy[i];
    }
    float sum = log ? sum_row(dy, n) : hsum(total) + tail;
    f32x4 s = splat(sum);
    i = 0;
    if (log) {
        for (; i + 4 <= n; i += 4) store4(dx + i, nmadd(exp4(load4(y + i)), s, load4(dy + i)));
        for (; i < n; i++) dx[i] = dy[i] - exp1(y[i]) * sum;
    } else {
        for (; i + 4 <= n; i += 4) store4(dx + i, mul4(load4(y + i), sub4(load4(dy + i), s)));
        for (; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
    }
}

/* ---- columns: four inner positions at a time (`lanes` of them at the end of a row) ---- */

/* Maximum and sum of e^(x - maximum), the latter in blocks. */
static f32x4 exp_columns(const float *x, int32_t n, int64_t stride, int32_t lanes, f32x4 *top) {
    f32x4 m = load_some(x, lanes), total = splat(0);
    for (int32_t k = 1; k < n; k++) m = wasm_f32x4_pmax(m, load_some(x + k * stride, lanes));
    for (int32_t start = 0; start < n; start += SUM_BLOCK) {
        f32x4 s = splat(0);
        for (int32_t k = start; k < min_i32(n, start + SUM_BLOCK); k++)
            s = add4(s, exp4_negative(sub4(load_some(x + k * stride, lanes), m)));
        total = add4(total, s);
    }
    *top = m;
    return total;
}

static void softmax_columns(const float *x, float *y, int32_t n, int64_t stride, int32_t lanes, int32_t log) {
    f32x4 top, sum = exp_columns(x, n, stride, lanes, &top);
    f32x4 rest = log4(sum), factor = div4(splat(1.0f), sum);
    for (int32_t k = 0; k < n; k++) {
        f32x4 v = sub4(load_some(x + k * stride, lanes), top);
        store_some(y + k * stride, log ? sub4(v, rest) : mul4(exp4_negative(v), factor), lanes);
    }
}

static void softmax_grad_columns(const float *dy, const float *y, float *dx, int32_t n, int64_t stride, int32_t lanes,
                                 int32_t log) {
    f32x4 total = splat(0);
    for (int32_t start = 0; start < n; start += SUM_BLOCK) {
        f32x4 s = splat(0);
        for (int32_t k = start; k < min_i32(n, start + SUM_BLOCK); k++) {
            f32x4 d = load_some(dy + k * stride, lanes);
            s = log ? add4(s, d) : madd(load_some(y + k * stride, lanes), d, s);
        }
        total = add4(total, s);
    }
    for (int32_t k = 0; k < n; k++) {
        f32x4 d = load_some(dy + k * stride, lanes), v = load_some(y + k * stride, lanes);
        store_some(dx + k * stride, log ? nmadd(exp4(v), total, d) : mul4(v, sub4(d, total)), lanes);
    }
}

/* ---- kernels: a unit is a row, or the n x inner plane of one outer position ---- */

static void softmax_chunk(const void *args, int64_t lo, int64_t hi) {
    const softmax_f32_args *a = args;
    int64_t plane = (int64_t)a->n * a->inner;
    for (int64_t o = lo; o < hi; o++) {
        if (a->inner == 1) softmax_row(a->x + o * plane, a->y + o * plane, a->n, a->log);
        else
            for (int32_t i = 0; i < a->inner; i += 4)
                softmax_columns(a->x + o * plane + i, a->y + o * plane + i, a->n, a->inner, min_i32(4, a->inner - i),
                                a->log);
    }
}

/* An exp costs about as much as this many plain elements. */
enum { EXP_COST = 4 };

int32_t kernel_softmax_f32(const softmax_f32_args *a) {
    if (!a->n || !a->inner) return TW_OK;
    parallel_ranges(softmax_chunk, a, a->outer, units_per_chunk((int64_t)EXP_COST * a->n * a->inner));
    return TW_OK;
}

static void softmax_grad_chunk(const void *args, int64_t lo, int64_t hi) {
    const softmax_grad_f32_args *a = args;
    int64_t plane = (int64_t)a->n * a->inner;
    for (int64_t o = lo; o < hi; o++) {
        int64_t at = o * plane;
        if (a->inner == 1) softmax_grad_row(a->dy + at, a->y + at, a->dx + at, a->n, a->log);
        else
            for (int64_t i = at; i < at + a->inner; i += 4)
                softmax_grad_columns(a->dy + i, a->y + i, a->dx + i, a->n, a->inner,
                                     (int32_t)min_i64(4, at + a->inner - i), a->log);
    }
}

int32_t kernel_softmax_grad_f32(const softmax_grad_f32_args *a) {
    if (!a->n || !a->inner) return TW_OK;
    parallel_ranges(softmax_grad_chunk, a, a->outer, units_per_chunk((int64_t)a->n * a->inner * (a->log ? EXP_COST : 1)));
    return TW_OK;
}

/* ---- cross entropy ---- */

static void cross_entropy_rows(const cross_entropy_f32_args *a, const label_set *set, int64_t sample, float *losses) {
    const float *x = a->scores + sample * a->c;
    int64_t label = load_index(a->labels, sample, a->label_size);
    float weight = row_weight(set, label);
    float top = 0, rest = 0;
    if (!a->from_log) {
        top = max_row(x, a->c);
        rest = log1(exp_row(x, NULL, a->c, top));
    }
    if (a->log_prob) shift_row(x, a->log_prob + sample * a->c, a->c, top, rest);
    losses[sample] = weight == 0.0f ? 0.0f : -weight * (x[label] - top - rest);
}

static void cross_entropy_columns(const cross_entropy_f32_args *a, const label_set *set, int64_t sample, int32_t i,
                                  float *losses) {
    int64_t start = sample * a->c * a->inner + i, row = sample * a->inner + i;
    int32_t lanes = min_i32(4, a->inner - i);
    const float *x = a->scores + start;
    f32x4 top = splat(0), rest = splat(0);
    if (!a->from_log) rest = log4(exp_columns(x, a->c, a->inner, lanes, &top));
    if (a->log_prob)
        for (int64_t k = 0; k < a->c; k++)
            store_some(a->log_prob + start + k * a->inner, sub4(sub4(load_some(x + k * a->inner, lanes), top), rest), lanes);
    float tops[4], rests[4];
    store4(tops, top);
    store4(rests, rest);
    for (int32_t lane = 0; lane < lanes; lane++) {
        int64_t label = load_index(a->labels, row + lane, a->label_size);
        float weight = row_weight(set, label);
        losses[row + lane] =
            weight == 0.0f ? 0.0f : -weight * (x[label * a->inner + lane] - tops[lane] - rests[lane]);
    }
}

typedef struct {
    const void *a;
    const label_set *set;
    float factor; /* gradient: 1 / D, or dy / D when dy is one number */
} loss_task;

static void cross_entropy_chunk(const void *args, int64_t lo, int64_t hi) {
    const loss_task *task = args;
    const cross_entropy_f32_args *a = task->a;
    for (int64_t s = lo; s < hi; s++) {
        if (a->inner == 1) cross_entropy_rows(a, task->set, s, a->row_loss);
        else
            for (int32_t i = 0; i < a->inner; i += 4) cross_entropy_columns(a, task->set, s, i, a->row_loss);
    }
}

int32_t kernel_cross_entropy_f32(const cross_entropy_f32_args *a) {
    label_set set = {a->labels, a->weights, (int64_t)a->n * a->inner, a->c, a->label_size, a->has_ignore, a->ignore_index};
    int32_t status = check_labels(&set);
    if (status) return status;
    int32_t grain = units_per_chunk((int64_t)EXP_COST * a->c * a->inner);
    if (a->c && a->inner) parallel_ranges(cross_entropy_chunk, &(loss_task){a, &set, 0}, a->n, grain);
    else tw_zero(a->row_loss, 4 * (size_t)set.rows);
    reduce_losses(&set, a->row_loss, a->loss, a->reduction);
    return TW_OK;
}

/* One row: dx = (e^lp - onehot) * scale; exactly zero where the row is ignored, whatever lp is. */
static void cross_entropy_grad_row(const float *lp, float *dx, int32_t c, int64_t stride, int64_t label, float scale,
                                   int32_t from_log) {
    if (scale == 0.0f || from_log) {
        for (int64_t k = 0; k < c; k++) dx[k * stride] = 0.0f;
        if (scale != 0.0f) dx[label * stride] = -scale;
        return;
    }
    int32_t k = 0;
    if (stride == 1)
        for (; k + 4 <= c; k += 4) store4(dx + k, mul4(exp4(load4(lp + k)), splat(scale)));
    if (stride == 1 && k < c) {
        store_part(dx + k, mul4(exp4(load_part(lp + k, c - k)), splat(scale)), c - k);
        k = c;
    }
    for (; k < c; k++) dx[k * stride] = exp1(lp[k * stride]) * scale;
    dx[label * stride] = (exp1(lp[label * stride]) - 1.0f) * scale;
}

/* Four rows side by side, without a branch on the label but for the last step. */
static void cross_entropy_grad_columns(const float *lp, float *dx, int32_t c, int64_t stride, const float *scales) {
    f32x4 s = load4(scales);
    v128_t kept = wasm_f32x4_ne(s, splat(0));
    for (int64_t k = 0; k < c; k++)
        store4(dx + k * stride, wasm_v128_and(kept, mul4(exp4(load4(lp + k * stride)), s)));
}

static void cross_entropy_grad_sample(const loss_task *task, const cross_entropy_grad_f32_args *a, int64_t sample) {
    int64_t start = sample * a->c * a->inner, row = sample * a->inner;
    const float *lp = a->log_prob ? a->log_prob + start : NULL;
    for (int32_t i = 0; i < a->inner;) {
        float scales[4];
        int64_t labels[4];
        int32_t lanes = min_i32(4, a->inner - i);
        for (int32_t lane = 0; lane < lanes; lane++) {
            labels[lane] = load_index(a->labels, row + i + lane, a->label_size);
            scales[lane] = row_weight(task->set, labels[lane]) * task->factor;
            if (a->reduction == LOSS_EACH) scales[lane] *= a->dy[row + i + lane];
        }
        float *dx = a->dx + start + i;
        if (lanes == 4 && !a->from_log) {
            cross_entropy_grad_columns(lp + i, dx, a->c, a->inner, scales);
            for (int32_t lane = 0; lane < 4; lane++) {
                if (scales[lane] == 0.0f) continue;
                int64_t at = labels[lane] * a->inner + lane;
                dx[at] = (exp1(lp[i + at]) - 1.0f) * scales[lane];
            }
        } else {
            for (int32_t lane = 0; lane < lanes; lane++)
                cross_entropy_grad_row(lp ? lp + i + lane : NULL, dx + lane, a->c, a->inner, labels[lane], scales[lane],
                                       a->from_log);
        }
        i += lanes;
    }
}

static void cross_entropy_grad_chunk(const void *args, int64_t lo, int64_t hi) {
    const loss_task *task = args;
    const cross_entropy_grad_f32_args *a = task->a;
    for (int64_t s = lo; s < hi; s++) cross_entropy_grad_sample(task, a, s);
}

int32_t kernel_cross_entropy_grad_f32(const cross_entropy_grad_f32_args *a) {
    label_set set = {a->labels, a->weights, (int64_t)a->n * a->inner, a->c, a->label_size, a->has_ignore, a->ignore_index};
    int32_t status = check_labels(&set);
    if (status) return status;
    if (!a->log_prob && !a->from_log) return tw_fail(TW_BAD_ARGUMENT, a->from_log, 0);
    if (!a->c || !a->inner) return TW_OK;
    double weight = divisor_of(&set, a->reduction);
    double factor = a->reduction != LOSS_EACH ? a->dy[0] : 1.0;
    loss_task task = {a, &set, (float)(weight == 0 ? 0.0 : factor / weight)};
    parallel_ranges(cross_entropy_grad_chunk, &task, a->n, units_per_chunk((int64_t)EXP_COST * a->c * a->inner));
    return TW_OK;
}
