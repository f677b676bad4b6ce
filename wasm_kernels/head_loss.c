/* Cross entropy of the scores x w' of a large vocabulary, which are never stored. The method is that of Wijmans et al.,
   "Cut Your Losses in Large-Vocabulary Language Models" (2025). A task computes blocks of scores and their
   exponentials. The gradient by x is the mean of the rows of w under the probabilities, less the row of the label. It
   thus accumulates in the same pass, as the result of attention does. The gradient by w takes the logarithm of each
   sum, and the scores are made again.

   Rows whose labels are ignored are left out first. Errors are as in the products and in softmax.c. */
#include "softmax.h"

#include "gemm.h"
#include "math.h"
#include "parallel.h"
#include "reduce.h"
#include "unpack.h"

/* Rows and classes of a block of scores, which stays in the second-level cache; rows of scores lie LINE apart, so that they
   do not meet in one set of the first. */
enum { ROWS = HEAD_ROWS, CLASSES = HEAD_CLASSES, LINE = CLASSES + 16 };
_Static_assert(4 * (GEMM_WORKSPACE_FLOATS + ROWS * LINE) <= THREAD_SCRATCH_BYTES, "a block of scores");
#define INFINITE __builtin_inff()

/* Scores of rows x [kept, d], each with its place `rows` among all rows. */
typedef struct {
    const float *x, *w, *bias;
    const packed_matrix *packed; /* not null: in the place of w */
    const int32_t *rows;
    int32_t kept, c, d, w_row, w_col; /* strides of w by class and by depth */
    float alpha;
} head;

/* Copy the rows that count together and list them, unless all do. */
static int32_t keep_rows(const label_set *set, const float *x, int32_t d, int32_t *rows, float *kept, const float **result) {
    int32_t count = 0;
    for (int32_t r = 0; r < set->rows; r++)
        if (row_weight(set, load_index(set->labels, r, set->label_size)) != 0.0f) rows[count++] = r;
    *result = count == set->rows ? x : kept;
    for (int32_t i = 0; count < set->rows && i < count; i++)
        copy_row((uint8_t *)(kept + (int64_t)i * d), (const uint8_t *)(x + (int64_t)rows[i] * d), 4 * (size_t)d);
    return count;
}

/* Let b of a product start at the rows of w from `class` on. */
static void read_classes(const head *h, int32_t class, gemm_problem *p) {
    if (!h->packed) p->b = h->w + (int64_t)class * h->w_row;
    else if (h->w_col == 1) p->w_line = class;
    else p->w_place = class;
}

/* scores[i * LINE + j] for m rows from `first` on and the classes [class, class + n). */
static void score_block(const head *h, int32_t first, int32_t m, int32_t class, int32_t n, float *scores) {
    gemm_problem p = {
        m, n, h->d, h->x + (int64_t)first * h->d, h->d, 1, 0, h->w_col, h->w_row,
        scores, LINE, 1, h->bias ? h->bias + class : 0, 0, 1, h->alpha, 1, 0, ACTIVATION_NONE, h->packed, h->w_col == 1, 0, 0,
    };
    read_classes(h, class, &p);
    gemm_tiles(&p);
}

TW_INLINE float *scores_of_thread(void) { return thread_scratch() + GEMM_WORKSPACE_FLOATS; }
TW_INLINE int32_t count_blocks(int32_t n, int32_t size) { return (n + size - 1) / size; }

TW_INLINE void add_row(float *y, const float *x, int32_t n, float factor) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) store4(y + i, madd(splat(factor), load4(x + i), load4(y + i)));
    for (; i < n; i++) y[i] += factor * x[i];
}

/* ---- loss, and gradient by x ---- */

/* Numbers of a row of packed weights at a time. */
enum { UNPACKED = 256 };

typedef struct {
    const head_loss_f32_args *a;
    const label_set *set;
    head h;
    bool graded;
    float factor; /* 1 / D */
} loss_task;

/* The classes [class, class + n) of the rows [first, first + m): their exponentials, and what rows know so far. */
static void exp_block(const loss_task *task, float *scores, int32_t first, int32_t m, int32_t class, int32_t n, float *top,
                      float *sum, float *sums_of_w) {
    const head_loss_f32_args *a = task->a;
    for (int32_t i = 0; i < m; i++) {
        float *p = scores + i * LINE, largest = max_row(p, n), old = top[i];
        const int64_t label = load_index(a->labels, task->h.rows[first + i], a->label_size) - class;
        if (label >= 0 && label < n) a->target[first + i] = p[label];
        if (!(largest > old)) largest = old;
        const float shift = largest == -INFINITE ? 0 : largest;
        const float factor = old == -INFINITE ? 0 : exp1(old - shift);
        sum[i] = sum[i] * factor + exp_row(p, task->graded ? p : NULL, n, shift);
        top[i] = largest;
        float *sum = sums_of_w + (int64_t)i * a->d;
        if (task->graded && class && factor != 1.0f) scale_row(sum, sum, a->d, factor);
    }
}

/* One part of the classes for a block of rows. */
static void loss_chunk(const void *args, int32_t chunk) {
    const loss_task *task = args;
    const head_loss_f32_args *a = task->a;
    const head *h = &task->h;
    const int32_t part = chunk % a->parts, first = chunk / a->parts * ROWS, m = min_i32(ROWS, h->kept - first);
    const int32_t blocks = count_blocks(a->c, CLASSES);
    const int32_t start = (int32_t)((int64_t)blocks * part / a->parts) * CLASSES;
    const int32_t end = min_i32(a->c, (int32_t)((int64_t)blocks * (part + 1) / a->parts) * CLASSES);
    const int64_t at = (int64_t)part * a->n + first;
    float *scores = scores_of_thread(), *sums_of_w = a->partial + at * a->d;
    for (int32_t i = 0; i < m; i++) a->top[at + i] = -INFINITE, a->sum[at + i] = 0;
    for (int32_t class = start; class < end; class += CLASSES) {
        const int32_t n = min_i32(CLASSES, end - class);
        score_block(h, first, m, class, n, scores);
        exp_block(task, scores, first, m, class, n, a->top + at, a->sum + at, sums_of_w);
        if (!task->graded) continue;
        gemm_problem p = {
            m, a->d, n, scores, LINE, 1, 0, h->w_row, h->w_col,
            sums_of_w, a->d, 1, 0, 0, 0, 1, 0, class > start, ACTIVATION_NONE, h->packed, h->w_col != 1, 0, 0,
        };
        read_classes(h, class, &p);
        gemm_tiles(&p);
    }
}

/* y[d] -= the row of w of one class. */
static void subtract_class(const head *h, int32_t class, float *y) {
    if (h->packed && h->w_col == 1) {
        float row[UNPACKED];
        for (int32_t at = 0; at < h->d; at += UNPACKED) {
            const int32_t n = min_i32(UNPACKED, h->d - at);
            unpack_row(h->packed, class, at, n, row);
            add_row(y + at, row, n, -1);
        }
        return;
    }
    for (int32_t j = 0; j < h->d; j++) {
        float w;
        if (h->packed) unpack_row(h->packed, j, class, 1, &w);
        else w = h->w[(int64_t)class * h->w_row + (int64_t)j * h->w_col];
        y[j] -= w;
    }
}

/* One row of all parts: its loss, the logarithm of its sum, and its gradient. */
static void finish_row(const loss_task *task, int32_t i) {
    const head_loss_f32_args *a = task->a;
    const head *h = &task->h;
    const int32_t row = h->rows[i], parts = a->parts;
    const int64_t label = load_index(a->labels, row, a->label_size);
    const float weight = row_weight(task->set, label);
    float top = a->top[i], sum = 0;
    for (int32_t s = 1; s < parts; s++) {
        const float other = a->top[(int64_t)s * a->n + i];
        if (other > top) top = other;
    }
    for (int32_t s = 0; s < parts; s++) {
        const int64_t at = (int64_t)s * a->n + i;
        sum += a->sum[at] * exp1(a->top[at] - top);
    }
    const float rest = log1(sum);
    a->row_loss[row] = -weight * (a->target[i] - top - rest);
    if (a->log_sum) a->log_sum[row] = top + rest;
    if (!task->graded) return;
    float *y = a->slope + (int64_t)row * a->d;
    const float scale = weight * task->factor * a->alpha;
    tw_zero(y, 4 * (size_t)a->d);
    for (int32_t s = 0; s < parts; s++) {
        const int64_t at = (int64_t)s * a->n + i;
        add_row(y, a->partial + at * a->d, a->d, exp1(a->top[at] - top) / sum);
    }
    subtract_class(h, (int32_t)label, y);
    scale_row(y, y, a->d, scale);
}

static void finish_chunk(const void *args, int64_t lo, int64_t hi) {
    const loss_task *task = args;
    for (int64_t i = lo; i < hi; i++) finish_row(task, (int32_t)i);
}

static void clear_ignored_rows(const loss_task *task) {
    const head_loss_f32_args *a = task->a;
    for (int32_t row = 0, i = 0; row < a->n; row++) {
        if (i < task->h.kept && task->h.rows[i] == row) {
            i++;
            continue;
        }
        a->row_loss[row] = 0;
        if (a->log_sum) a->log_sum[row] = 0;
        if (task->graded) tw_zero(a->slope + (int64_t)row * a->d, 4 * (size_t)a->d);
    }
}

static int32_t head_loss(const head_loss_f32_args *a, const packed_matrix *packed) {
    const label_set set = {a->labels, a->weights, a->n, a->c, a->label_size, a->has_ignore, a->ignore_index};
    const int32_t status = check_labels(&set);
    if (status) return status;
    loss_task task = {.a = a, .set = &set, .graded = a->gradient && a->slope};
    task.h = (head){.w = a->w, .packed = packed, .bias = a->bias, .rows = a->rows, .c = a->c, .d = a->d, .alpha = a->alpha};
    task.h.w_row = a->turned ? 1 : a->d;
    task.h.w_col = a->turned ? a->c : 1;
    task.h.kept = keep_rows(&set, a->x, a->d, a->rows, a->kept, &task.h.x);
    const double weight = divisor_of(&set, a->reduction);
    task.factor = weight == 0 ? 0.0f : (float)(1.0 / weight);
    clear_ignored_rows(&task);
    parallel_for(loss_chunk, &task, count_blocks(task.h.kept, ROWS) * a->parts);
    parallel_ranges(finish_chunk, &task, task.h.kept, units_per_chunk((int64_t)a->parts * a->d));
    reduce_losses(&set, a->row_loss, a->loss, a->reduction);
    return TW_OK;
}

int32_t kernel_head_loss_f32(const head_loss_f32_args *a) { return head_loss(a, 0); }

int32_t kernel_head_loss_quantized_f32(const head_loss_quantized_f32_args *a) {
    const packed_matrix w = PACKED_MATRIX(a, w);
    const head_loss_f32_args others = {
        .x = a->x, .bias = a->bias, .labels = a->labels, .weights = a->weights, .loss = a->loss, .slope = a->slope,
        .rows = a->rows, .kept = a->kept, .row_loss = a->row_loss, .target = a->target, .top = a->top, .sum = a->sum,
        .partial = a->partial, .n = a->n, .c = a->c, .d = a->d, .turned = a->turned, .alpha = a->alpha,
        .label_size = a->label_size, .has_ignore = a->has_ignore, .ignore_index = a->ignore_index,
        .reduction = a->reduction, .parts = a->parts, .gradient = a->gradient,
    };
    return head_loss(&others, &w);
}

/* ---- gradient by w ---- */

typedef struct {
    const head_loss_weight_grad_f32_args *a;
    const label_set *set;
    head h;
    float factor; /* 1 / D, or dy / D where dy is one number */
} weight_task;

/* Scores become (probabilities - onehot) * weight * dy / D. */
static void grade_block(const weight_task *task, float *scores, int32_t first, int32_t m, int32_t class, int32_t n) {
    const head_loss_weight_grad_f32_args *a = task->a;
    for (int32_t i = 0; i < m; i++) {
        const int32_t row = task->h.rows[first + i];
        const int64_t label = load_index(a->labels, row, a->label_size);
        float *p = scores + i * LINE, scale = row_weight(task->set, label) * task->factor * a->alpha;
        if (a->reduction == LOSS_EACH) scale *= a->dy[row];
        exp_row(p, p, n, a->log_sum[row]);
        if (label >= class && label < class + n) p[label - class] -= 1.0f;
        scale_row(p, p, n, scale);
    }
}

/* All rows for one block of the classes. */
static void weight_chunk(const void *args, int32_t chunk) {
    const weight_task *task = args;
    const head_loss_weight_grad_f32_args *a = task->a;
    const head *h = &task->h;
    const int32_t class = chunk * CLASSES, n = min_i32(CLASSES, a->c - class);
    float *scores = scores_of_thread(), *dw = a->dw + (int64_t)class * h->w_row;
    for (int32_t first = 0; first < h->kept; first += ROWS) {
        const int32_t m = min_i32(ROWS, h->kept - first);
        score_block(h, first, m, class, n, scores);
        grade_block(task, scores, first, m, class, n);
        const gemm_problem p = {
            n, a->d, m, scores, 1, LINE, h->x + (int64_t)first * a->d, a->d, 1,
            dw, h->w_row, h->w_col, 0, 0, 0, 1, 0, a->accumulate || first, ACTIVATION_NONE, 0, false, 0, 0,
        };
        gemm_tiles(&p);
    }
}

int32_t kernel_head_loss_weight_grad_f32(const head_loss_weight_grad_f32_args *a) {
    const label_set set = {a->labels, a->weights, a->n, a->c, a->label_size, a->has_ignore, a->ignore_index};
    const int32_t status = check_labels(&set);
    if (status) return status;
    weight_task task = {.a = a, .set = &set};
    task.h = (head){.w = a->w, .bias = a->bias, .rows = a->rows, .c = a->c, .d = a->d, .alpha = a->alpha};
    task.h.w_row = a->turned ? 1 : a->d;
    task.h.w_col = a->turned ? a->c : 1;
    task.h.kept = keep_rows(&set, a->x, a->d, a->rows, a->kept, &task.h.x);
    const double weight = divisor_of(&set, a->reduction);
    task.factor = weight == 0 ? 0.0f : (float)((a->reduction == LOSS_EACH ? 1.0 : a->dy[0]) / weight);
    if (!task.h.kept && !a->accumulate) tw_zero(a->dw, 4 * (size_t)a->c * (size_t)a->d);
    if (task.h.kept) parallel_for(weight_chunk, &task, count_blocks(a->c, CLASSES));
    return TW_OK;
}
