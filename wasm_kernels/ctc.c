/* Connectionist temporal classification: Graves et al., https://www.cs.toronto.edu/~graves/icml_2006.pdf. The states of a target
   are its labels with blanks before, between and behind them. A path stays in a state or goes on to the next. It may also
   skip a blank between labels that differ. Sums over paths are kept as logarithms in float32. The relative error of a
   probability is some 1e-7 times the size of its logarithm, tested against float64 and against sums over all paths. */
#include "math.h"
#include "parallel.h"
#include "simd.h"

enum { PAD = 4 };

/* Labels with blanks before, between and behind them. */
TW_INLINE int32_t ctc_states(int32_t labels) { return 2 * labels + 1; }

/* log(e^a + e^b + e^c), -infinity where all are. */
TW_INLINE f32x4 log_sum4(f32x4 a, f32x4 b, f32x4 c) {
    f32x4 top = wasm_f32x4_max(a, wasm_f32x4_max(b, c));
    top = select4(wasm_f32x4_eq(top, splat(-__builtin_inff())), splat(0), top);
    return add4(top, log4(add4(exp4(sub4(a, top)), add4(exp4(sub4(b, top)), exp4(sub4(c, top))))));
}

/* An item of a batch, with rows in the scratch of the thread: `states` of each count, behind them is room for a vector. */
typedef struct {
    int32_t length, states;
    const float *log_probs; /* of the first step */
    int64_t stride;         /* between steps */
    int32_t *label;         /* of each state */
    float *skip;            /* 0 where a path may come from two states before, else -infinity */
    float *emission;        /* log-probability of each state's label at a step */
    float *row, *other;     /* PAD floats of -infinity before and behind */
} item;

static void fill(float *x, int32_t n, float value) {
    for (int32_t i = 0; i < n; i++) x[i] = value;
}

typedef struct {
    const float *log_probs;
    const uint8_t *targets, *input_lengths, *target_lengths;
    int32_t steps, batch, classes, labels, label_size, length_size, blank, zero_infinity;
} ctc_shape;

static item open_item(const ctc_shape *c, int32_t k) {
    int32_t labels = (int32_t)load_index(c->target_lengths, k, c->length_size), states = ctc_states(labels);
    int32_t width = (ctc_states(c->labels) + 3) / 4 * 4 + 2 * PAD;
    float *scratch = thread_scratch(), minus = -__builtin_inff();
    item it = {(int32_t)load_index(c->input_lengths, k, c->length_size), states, c->log_probs + (int64_t)k * c->classes,
               (int64_t)c->batch * c->classes, (int32_t *)scratch, scratch + width, scratch + 2 * width,
               scratch + 3 * width + PAD, scratch + 4 * width + PAD};
    for (int32_t s = 0; s < width; s++) it.label[s] = c->blank;
    for (int32_t s = 1; s < states; s += 2)
        it.label[s] = (int32_t)load_index(c->targets, (int64_t)k * c->labels + s / 2, c->label_size);
    fill(it.skip, width, minus);
    for (int32_t s = 3; s < states; s += 2)
        if (it.label[s] != it.label[s - 2]) it.skip[s] = 0;
    fill(it.row - PAD, width, minus);
    fill(it.other - PAD, width, minus);
    return it;
}

static void emit_step(const item *it, int32_t t) {
    const float *at = it->log_probs + t * it->stride;
    for (int32_t s = 0; s < it->states; s++) it->emission[s] = at[it->label[s]];
}

static void swap_rows(item *it) {
    float *row = it->row;
    it->row = it->other;
    it->other = row;
}

/* The logarithm of the probability, of the last row. */
static float total(const item *it, const float *row) {
    f32x4 last = splat(row[it->states - 1]), before = splat(it->states > 1 ? row[it->states - 2] : -__builtin_inff());
    return wasm_f32x4_extract_lane(log_sum4(last, before, splat(-__builtin_inff())), 0);
}

typedef struct {
    ctc_shape shape;
    float *loss, *alpha;
} forward_task;

static void keep_row(const item *it, const ctc_shape *c, float *alpha, int32_t t) {
    if (alpha) tw_copy(alpha + (int64_t)t * ctc_states(c->labels), it->row, 4 * (size_t)it->states);
}

static void forward_item(const void *args, int32_t k) {
    const forward_task *task = args;
    const ctc_shape *c = &task->shape;
    int64_t size = (int64_t)c->steps * ctc_states(c->labels);
    float *alpha = task->alpha ? task->alpha + k * size : NULL;
    if (alpha) tw_zero(alpha, 4 * (size_t)size);
    item it = open_item(c, k);
    if (it.length == 0) {
        task->loss[k] = it.states == 1 || c->zero_infinity ? 0 : __builtin_inff();
        return;
    }
    emit_step(&it, 0);
    it.row[0] = it.emission[0];
    if (it.states > 1) it.row[1] = it.emission[1];
    keep_row(&it, c, alpha, 0);
    for (int32_t t = 1; t < it.length; t++) {
        emit_step(&it, t);
        const float *from = it.row;
        for (int32_t s = 0; s < it.states; s += 4) {
            f32x4 skipped = add4(load4(from + s - 2), load4(it.skip + s));
            store4(it.other + s, add4(load4(it.emission + s), log_sum4(load4(from + s), load4(from + s - 1), skipped)));
        }
        swap_rows(&it);
        keep_row(&it, c, alpha, t);
    }
    float loss = -total(&it, it.row);
    task->loss[k] = c->zero_infinity && loss == __builtin_inff() ? 0 : loss;
}

/* Lengths and labels, before anything is computed. */
static int32_t check_targets(const ctc_shape *c) {
    for (int32_t k = 0; k < c->batch; k++) {
        int64_t length = load_index(c->input_lengths, k, c->length_size);
        if (length < 0 || length > c->steps) return tw_fail(TW_BAD_INDEX, length, k);
        int64_t labels = load_index(c->target_lengths, k, c->length_size);
        if (labels < 0 || labels > c->labels) return tw_fail(TW_BAD_INDEX, labels, k);
        for (int64_t i = (int64_t)k * c->labels; i < (int64_t)k * c->labels + labels; i++) {
            int64_t label = load_index(c->targets, i, c->label_size);
            if (label < 0 || label >= c->classes) return tw_fail_label(label, i, c->classes);
        }
    }
    return TW_OK;
}

int32_t kernel_ctc_loss_f32(const ctc_loss_f32_args *a) {
    const forward_task task = {{a->log_probs, a->targets, a->input_lengths, a->target_lengths, a->steps, a->batch, a->classes,
                                a->labels, a->label_size, a->length_size, a->blank, a->zero_infinity},
                               a->loss, a->alpha};
    int32_t status = check_targets(&task.shape);
    if (status) return status;
    parallel_for(forward_item, &task, a->batch);
    return TW_OK;
}

typedef struct {
    ctc_shape shape;
    const float *dloss, *alpha;
    float *dx;
} backward_task;

/* dx[label] -= scale * share of the paths that are in a state of that label. The blanks' are one sum. */
static void add_shares(const item *it, const float *alpha, const float *beta, float log_total, float scale, int32_t blank,
                       float *dx) {
    float blanks = 0;
    for (int32_t s = 0; s < it->states; s += 4) {
        int32_t lanes = min_i32(4, it->states - s);
        f32x4 known = load_some(alpha + s, lanes);
        float share[4];
        store4(share, exp4(sub4(add4(known, load4(beta + s)), splat(log_total))));
        for (int32_t lane = 0; lane < lanes; lane++) {
            if (lane & 1) dx[it->label[s + lane]] -= scale * share[lane];
            else blanks += share[lane];
        }
    }
    dx[blank] -= scale * blanks;
}

/* The row of the step before: from a state to itself, the next, and the one after that. */
static void step_back(item *it) {
    float *row = it->row;
    for (int32_t s = 0; s < it->states; s++) row[s] += it->emission[s];
    for (int32_t s = 0; s < it->states; s += 4) {
        f32x4 skipped = add4(load4(row + s + 2), load4(it->skip + s + 2));
        store4(it->other + s, log_sum4(load4(row + s), load4(row + s + 1), skipped));
    }
    fill(it->other + it->states, PAD, -__builtin_inff());
    swap_rows(it);
}

static void backward_item(const void *args, int32_t k) {
    const backward_task *task = args;
    const ctc_shape *c = &task->shape;
    int64_t width = ctc_states(c->labels);
    const float *alpha = task->alpha + k * c->steps * width;
    item it = open_item(c, k);
    for (int32_t t = 0; t < c->steps; t++) tw_zero(task->dx + t * it.stride + (int64_t)k * c->classes, 4 * (size_t)c->classes);
    if (it.length == 0) return;
    float log_total = total(&it, alpha + (it.length - 1) * width);
    if (c->zero_infinity && log_total == -__builtin_inff()) return;
    it.row[it.states - 1] = 0;
    if (it.states > 1) it.row[it.states - 2] = 0;
    for (int32_t t = it.length - 1; t >= 0; t--) {
        float *dx = task->dx + t * it.stride + (int64_t)k * c->classes;
        add_shares(&it, alpha + t * width, it.row, log_total, task->dloss[k], c->blank, dx);
        if (t == 0) break;
        emit_step(&it, t);
        step_back(&it);
    }
}

int32_t kernel_ctc_loss_grad_f32(const ctc_loss_grad_f32_args *a) {
    const backward_task task = {{a->log_probs, a->targets, a->input_lengths, a->target_lengths, a->steps, a->batch, a->classes,
                                 a->labels, a->label_size, a->length_size, a->blank, a->zero_infinity},
                                a->dloss, a->alpha, a->dx};
    int32_t status = check_targets(&task.shape);
    if (status) return status;
    parallel_for(backward_item, &task, a->batch);
    return TW_OK;
}
