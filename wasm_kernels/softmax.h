/* Rows of exponentials, and labels of classes with their weights. */
#ifndef SOFTMAX_H
#define SOFTMAX_H

#include "guard.h"

/* Stores e^(x - shift) where y is not null; returns the sum, added up in blocks. */
float exp_row(const float *x, float *y, int32_t n, float shift);

typedef struct {
    const uint8_t *labels;
    const float *weights;
    int64_t rows;
    int32_t c, label_size, has_ignore, ignore_index;
} label_set;

TW_INLINE int32_t check_labels(const label_set *set) {
    for (int64_t r = 0; r < set->rows; r++) {
        int64_t label = load_index(set->labels, r, set->label_size);
        if ((uint64_t)label < (uint64_t)set->c) continue;
        if (!set->has_ignore || label != set->ignore_index) return tw_fail_label(label, r, set->c);
    }
    return TW_OK;
}

/* Weight of a row, 0 where it is ignored. */
TW_INLINE float row_weight(const label_set *set, int64_t label) {
    if (set->has_ignore && label == set->ignore_index) return 0.0f;
    return set->weights ? set->weights[label] : 1.0f;
}

/* The divisor of a loss: for the mean the sum of the weights. */
TW_INLINE double divisor_of(const label_set *set, int32_t reduction) {
    if (reduction != LOSS_MEAN) return 1;
    double total = 0;
    for (int64_t r = 0; r < set->rows; r++)
        total += row_weight(set, load_index(set->labels, r, set->label_size));
    return total;
}

/* The losses of all rows, or their sum or mean. */
TW_INLINE void reduce_losses(const label_set *set, const float *rows, float *loss, int32_t reduction) {
    if (reduction == LOSS_EACH) {
        tw_copy(loss, rows, 4 * (size_t)set->rows);
        return;
    }
    double total = 0, divisor = divisor_of(set, reduction);
    for (int64_t r = 0; r < set->rows; r++) total += rows[r];
    loss[0] = (float)(divisor == 0 ? total : total / divisor);
}

#endif
