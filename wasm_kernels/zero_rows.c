#include "zero_rows.h"

#include "simd.h"
#include "tile.h"

/* Zero rows between two runs at least: each run packs b anew. */
enum { LEAST_GAP = 2 * TILE_ROWS };

static bool is_zero_row(const float *x, int32_t n) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        if (wasm_v128_any_true(wasm_f32x4_ne(load4(x + i), splat(0)))) return false;
    }
    for (; i < n; i++) {
        if (x[i] != 0) return false;
    }
    return true;
}

/* Runs with at least `gap` zero rows between two; returns their number, or ROW_RUNS + 1 if they are more. */
static int32_t list_runs(const gemm_problem *p, int32_t gap, row_run runs[ROW_RUNS]) {
    int32_t count = 0;
    for (int32_t i = 0; i < p->m; i++) {
        if (is_zero_row(p->a + i * p->a_row, p->k)) continue;
        if (!count || i - runs[count - 1].end >= gap) {
            if (count == ROW_RUNS) return ROW_RUNS + 1;
            runs[count++].start = i;
        }
        runs[count - 1].end = i + 1;
    }
    return count;
}

int32_t split_at_zero_rows(const gemm_problem *p, row_run runs[ROW_RUNS]) {
    int32_t count, gap = LEAST_GAP;
    while ((count = list_runs(p, gap, runs)) > ROW_RUNS) gap *= 2;
    for (int32_t i = 0, run = 0; i < p->m && !p->accumulate; i++) {
        if (run < count && i == runs[run].start) i = runs[run++].end;
        if (i < p->m) tw_zero(p->c + i * p->c_row, 4 * (size_t)p->n);
    }
    return count;
}
