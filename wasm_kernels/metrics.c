/* Sums of metrics over a batch, in double: counts are exact up to 2^53, sums of n numbers to n * 1e-16 of their magnitudes. */
#include "guard.h"

/* Targets that are no class: how many, and the first of them. */
typedef struct {
    int64_t count, value;
} faults;

TW_INLINE int32_t is_class(int64_t value, int32_t classes) { return value >= 0 && value < classes; }

TW_INLINE void note(faults *f, int64_t value) {
    if (!f->count++) f->value = value;
}

static void store_faults(const faults *f, int32_t classes, double *to) {
    to[0] = (double)f->count;
    to[1] = (double)f->value;
    to[2] = classes;
}

/* predicted, targets: [n]; sums: right ones and all; right, targets, predictions of each class; or [target, prediction] */
int32_t kernel_count_classes(const count_classes_args *a) {
    int32_t c = a->classes, size = a->mode == COUNT_RIGHT ? 2 : a->mode == COUNT_PARTS ? 3 * c : c * c;
    faults wrong = {0, 0};
    for (int32_t i = 0; i < size; i++) a->sums[i] = 0;
    for (int32_t i = 0; i < a->n; i++) {
        int64_t target = a->targets[i], guess = a->predicted[i];
        if (a->ignores && target == a->ignored) continue;
        if (!is_class(target, c) || !is_class(guess, c)) {
            note(&wrong, target);
        } else if (a->mode == COUNT_RIGHT) {
            a->sums[0] += target == guess;
            a->sums[1] += 1;
        } else if (a->mode == COUNT_PARTS) {
            a->sums[target] += target == guess;
            a->sums[c + target] += 1;
            a->sums[2 * c + guess] += 1;
        } else {
            a->sums[target * c + guess] += 1;
        }
    }
    store_faults(&wrong, c, a->faults);
    return TW_OK;
}

/* scores: [outer, classes, inner], a NaN being higher than all; targets: [outer, inner] */
int32_t kernel_count_top_f32(const count_top_f32_args *a) {
    int32_t c = a->classes;
    faults wrong = {0, 0};
    double right = 0, all = 0;
    for (int32_t i = 0; i < a->outer * a->inner; i++) {
        int64_t target = a->targets[i];
        if (a->ignores && target == a->ignored) continue;
        if (!is_class(target, c)) {
            note(&wrong, target);
            continue;
        }
        const float *x = a->scores + (int64_t)(i / a->inner) * c * a->inner + i % a->inner;
        float own = x[target * a->inner];
        int32_t higher = 0;
        for (int32_t k = 0; k < c && own == own; k++) higher += !(x[(int64_t)k * a->inner] <= own);
        right += higher < a->k;
        all += 1;
    }
    a->sums[0] = right;
    a->sums[1] = all;
    store_faults(&wrong, c, a->faults);
    return TW_OK;
}

/* predicted, target: [rows, columns]; sums: [6, columns], as `error_sum` names them. The mean is taken over differences from
   the first target, and a second pass takes squares around it. Otherwise large numbers that lie close together would lose
   all digits. */
int32_t kernel_error_sums_f32(const error_sums_f32_args *a) {
    int32_t columns = a->columns;
    double *shift = a->sums + ERROR_SHIFT * columns, *mean = a->sums + ERROR_MEAN * columns, *squares = a->sums + ERROR_SQUARES * columns;
    double *errors = a->sums + ERROR_ERRORS * columns, *magnitudes = a->sums + ERROR_MAGNITUDES * columns;
    for (int32_t c = 0; c < columns; c++) {
        a->sums[ERROR_ROWS * columns + c] = a->rows;
        shift[c] = a->rows ? a->target[c] : 0;
        mean[c] = squares[c] = errors[c] = magnitudes[c] = 0;
    }
    for (int32_t r = 0; r < a->rows; r++)
        for (int32_t c = 0; c < columns; c++) mean[c] += a->target[(int64_t)r * columns + c] - shift[c];
    for (int32_t c = 0; c < columns && a->rows; c++) mean[c] /= a->rows;
    for (int32_t r = 0; r < a->rows; r++) {
        for (int32_t c = 0; c < columns; c++) {
            double target = a->target[(int64_t)r * columns + c];
            double error = a->predicted[(int64_t)r * columns + c] - target, around = target - shift[c] - mean[c];
            squares[c] += around * around;
            errors[c] += error * error;
            magnitudes[c] += error < 0 ? -error : error;
        }
    }
    return TW_OK;
}
