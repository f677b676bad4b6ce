/* The k largest or smallest elements along an axis, by a heap of positions: O(n + k log n) for a row. */
#include "guard.h"

typedef struct {
    const void *x; /* float, or int64_t */
    int64_t stride;
    int32_t largest;
    int32_t integers;
} row_order;

/* True if position a comes before position b: NaN before numbers, the lower of equals first. */
TW_INLINE int32_t before(const row_order *r, int32_t a, int32_t b) {
    if (r->integers) {
        const int64_t *x = r->x;
        int64_t u = x[a * r->stride], v = x[b * r->stride];
        if (u == v) return a < b;
        return r->largest ? u > v : u < v;
    }
    const float *x = r->x;
    float u = x[a * r->stride], v = x[b * r->stride];
    if (u != u || v != v) return u != u && v != v ? a < b : u != u;
    if (u == v) return a < b;
    return r->largest ? u > v : u < v;
}

TW_INLINE void sift_down(const row_order *r, int32_t *heap, int32_t n, int32_t at) {
    int32_t moving = heap[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(r, heap[child + 1], heap[child])) child++;
        if (!before(r, heap[child], moving)) break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

#define TOPK(type, is_integer)                                                                    \
    do {                                                                                          \
        if (!a->k) return TW_OK;                                                                  \
        for (int64_t row = 0; row < (int64_t)a->outer * a->inner; row++) {                        \
            int64_t o = row / a->inner, i = row % a->inner;                                       \
            const type *x = a->x + o * a->n * a->inner + i;                                       \
            row_order r = {x, a->inner, a->largest, is_integer};                                  \
            int32_t left = a->n;                                                                  \
            for (int32_t j = 0; j < left; j++) a->heap[j] = j;                                    \
            for (int32_t j = left / 2 - 1; j >= 0; j--) sift_down(&r, a->heap, left, j);          \
            for (int32_t j = 0; j < a->k; j++) {                                                  \
                int64_t to = (o * a->k + j) * a->inner + i;                                       \
                int32_t best = a->heap[0];                                                        \
                if (a->y) a->y[to] = x[best * r.stride];                                          \
                if (a->at) a->at[to] = best;                                                      \
                a->heap[0] = a->heap[--left];                                                     \
                if (left) sift_down(&r, a->heap, left, 0);                                        \
            }                                                                                     \
        }                                                                                         \
        return TW_OK;                                                                             \
    } while (0)

int32_t kernel_topk_f32(const topk_f32_args *a) { TOPK(float, 0); }

int32_t kernel_topk_i64(const topk_i64_args *a) { TOPK(int64_t, 1); }
