#include "zero_rows.h"

#include "simd.h"
#include "tile.h"

/* Rows between two runs at least: each run packs b anew. */
enum { LEAST_GAP = 2 * TILE_ROWS };

/* Runs with at least `gap` other rows between two; returns their number, or ROW_RUNS + 1 if they are more. */
static int32_t list_runs(const gemm_problem *p, const int32_t *wanted, int32_t gap, row_run runs[ROW_RUNS]) {
    int32_t count = 0;
    for (int32_t i = 0; i < p->m; i++) {
        if (!wanted[i]) continue;
        if (!count || i - runs[count - 1].end >= gap) {
            if (count == ROW_RUNS) return ROW_RUNS + 1;
            runs[count++].start = i;
        }
        runs[count - 1].end = i + 1;
    }
    return count;
}

int32_t list_rows(const gemm_problem *p, const int32_t *wanted, row_run runs[ROW_RUNS]) {
    int32_t count, gap = LEAST_GAP;
    while ((count = list_runs(p, wanted, gap, runs)) > ROW_RUNS) gap *= 2;
    return count;
}

void fill_other_rows(const gemm_problem *p, const row_run *runs, int32_t count, bool clears) {
    const size_t bytes = 4 * (size_t)p->n;
    for (int32_t i = 0, run = 0; i < p->m && !p->accumulate; i++) {
        if (run < count && i == runs[run].start) i = runs[run++].end;
        if (i == p->m) return;
        float *row = p->c + i * p->c_row;
        if (!clears && count) copy_row((uint8_t *)row, (const uint8_t *)(p->c + runs[0].start * p->c_row), bytes);
        else tw_zero(row, bytes);
    }
}

/* ---- the tokens that a loss depends on ---- */

/* Want the keys that a token attends to, all where its mask rules all out; returns whether one is new. */
static bool want_keys(const float *mask, float ruled_out, int32_t *wanted, int32_t m) {
    bool some = false, any_new = false;
    for (int32_t j = 0; j < m && mask; j++) some |= !(mask[j] <= ruled_out);
    for (int32_t j = 0; j < m; j++) {
        if (wanted[j] || (some && mask[j] <= ruled_out)) continue;
        wanted[j] = any_new = true;
    }
    return any_new;
}

/* The same for all wanted tokens of an item. */
static bool want_item(const wanted_tokens_args *a, const float *mask, int32_t *wanted) {
    const int32_t m = a->m;
    int32_t count = 0;
    bool any_new = false;
    for (int32_t i = 0; i < m; i++) count += wanted[i];
    for (int32_t i = m - 1; i >= 0 && count < m; i--) {
        if (wanted[i]) any_new |= want_keys(mask ? mask + i * a->mask_strides[2] : 0, a->ruled_out, wanted, m);
    }
    return any_new;
}

int32_t kernel_wanted_tokens(const wanted_tokens_args *a) {
    bool any_label = false, any_new = true;
    for (int32_t i = 0; i < a->n; i++) {
        a->wanted[i] = load_index(a->labels, i, a->label_size) != a->ignore;
        any_label |= a->wanted[i];
    }
    for (int32_t i = 0; i < a->n && !any_label; i++) a->wanted[i] = true;
    const int32_t items[2] = {a->mask_strides[0] || a->token_strides[0] ? a->batch[0] : 1,
                              a->mask_strides[1] || a->token_strides[1] ? a->batch[1] : 1};
    while (any_new) {
        any_new = false;
        for (int32_t item = 0; item < items[0] * items[1]; item++) {
            const int32_t i = item / items[1], j = item % items[1];
            const float *mask = a->mask ? a->mask + i * a->mask_strides[0] + j * a->mask_strides[1] : 0;
            any_new |= want_item(a, mask, a->wanted + i * a->token_strides[0] + j * a->token_strides[1]);
        }
    }
    return TW_OK;
}
