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

/* The weight of an element; one of 0 does not count, whatever its target is. */
TW_INLINE double weight_at(const float *weights, int64_t i) { return weights ? weights[i] : 1; }

/* predicted, targets, weights: [n]; sums: right ones and all; right, targets, predictions of each class; or [target, prediction] */
int32_t kernel_count_classes(const count_classes_args *a) {
    int32_t c = a->classes, size = a->mode == COUNT_RIGHT ? 2 : a->mode == COUNT_PARTS ? 3 * c : c * c;
    faults wrong = {0, 0};
    for (int32_t i = 0; i < size; i++) a->sums[i] = 0;
    for (int32_t i = 0; i < a->n; i++) {
        int64_t target = a->targets[i], guess = a->predicted[i];
        double weight = weight_at(a->weights, i);
        if (weight == 0 || (a->ignores && target == a->ignored)) continue;
        if (!is_class(target, c) || !is_class(guess, c)) {
            note(&wrong, target);
        } else if (a->mode == COUNT_RIGHT) {
            a->sums[0] += target == guess ? weight : 0;
            a->sums[1] += weight;
        } else if (a->mode == COUNT_PARTS) {
            a->sums[target] += target == guess ? weight : 0;
            a->sums[c + target] += weight;
            a->sums[2 * c + guess] += weight;
        } else {
            a->sums[target * c + guess] += weight;
        }
    }
    store_faults(&wrong, c, a->faults);
    return TW_OK;
}

/* scores: [outer, classes, inner], a NaN being higher than all; targets, weights: [outer, inner] */
int32_t kernel_count_top_f32(const count_top_f32_args *a) {
    int32_t c = a->classes;
    faults wrong = {0, 0};
    double right = 0, all = 0;
    for (int32_t i = 0; i < a->outer * a->inner; i++) {
        int64_t target = a->targets[i];
        double weight = weight_at(a->weights, i);
        if (weight == 0 || (a->ignores && target == a->ignored)) continue;
        if (!is_class(target, c)) {
            note(&wrong, target);
            continue;
        }
        const float *x = a->scores + (int64_t)(i / a->inner) * c * a->inner + i % a->inner;
        float own = x[target * a->inner];
        int32_t higher = 0;
        for (int32_t k = 0; k < c && own == own; k++) higher += !(x[(int64_t)k * a->inner] <= own);
        right += higher < a->k ? weight : 0;
        all += weight;
    }
    a->sums[0] = right;
    a->sums[1] = all;
    store_faults(&wrong, c, a->faults);
    return TW_OK;
}

/* predicted, target, weights: [rows, columns]; sums: [7, columns], as `error_sum` names them. The mean is taken over
   differences from the first target, and a second pass takes squares around it. Otherwise large numbers that lie close
   together would lose all digits. */
int32_t kernel_error_sums_f32(const error_sums_f32_args *a) {
    int32_t columns = a->columns;
    for (int32_t c = 0; c < columns; c++) {
        double rows = 0, shift = 0, mean = 0, squares = 0, errors = 0, magnitudes = 0, count = 0;
        for (int32_t r = 0; r < a->rows; r++) {
            int64_t i = (int64_t)r * columns + c;
            double weight = weight_at(a->weights, i);
            if (weight == 0) continue;
            if (!count++) shift = a->target[i];
            rows += weight;
            mean += weight * (a->target[i] - shift);
        }
        if (count) mean /= rows;
        for (int32_t r = 0; r < a->rows; r++) {
            int64_t i = (int64_t)r * columns + c;
            double weight = weight_at(a->weights, i), target = a->target[i], error = a->predicted[i] - target;
            if (weight == 0) continue;
            double around = target - shift - mean;
            squares += weight * around * around;
            errors += weight * error * error;
            magnitudes += weight * (error < 0 ? -error : error);
        }
        const double sums[ERROR_SUMS] = {rows, shift, mean, squares, errors, magnitudes, count};
        for (int32_t k = 0; k < ERROR_SUMS; k++) a->sums[k * columns + c] = sums[k];
    }
    return TW_OK;
}
