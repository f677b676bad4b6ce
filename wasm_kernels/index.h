/* Indices that come from tensors: checked before anything is written. */
#ifndef INDEX_H
#define INDEX_H

#include "guard.h"

/* All n indices in [-dim, dim), else TW_BAD_INDEX with the value and its position. */
TW_INLINE int32_t check_range(const uint8_t *indices, int64_t n, int32_t index_size, int64_t dim) {
    for (int64_t i = 0; i < n; i++) {
        int64_t index = load_index(indices, i, index_size);
        if (index < -dim || index >= dim) return tw_fail(TW_BAD_INDEX, index, i);
    }
    return TW_OK;
}

/* A checked index, counted from the start. */
TW_INLINE int64_t resolve(const uint8_t *indices, int64_t i, int32_t index_size, int64_t dim) {
    int64_t index = load_index(indices, i, index_size);
    return index < 0 ? index + dim : index;
}

#endif
