/* Matrix product after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008). A register tile
 * takes up to six rows of A, in place or packed into the second-level cache. It also takes a panel of eight columns of B,
 * packed into the first-level cache. Each block of rows passes all these panels, so that C is written along its rows. */
#include "gemm.h"

#include "gemm_tiles.h"
#include "parallel.h"
#include "unpack.h"
#include "zero_rows.h"

/* Depth of a block, and rows of A used at a time. If c is stored only once, more rows fit into the second-level cache. Then the
   depth where steps of a row are apart, and floats of packed rows. */
enum { GEMM_KC = 576, GEMM_MC = 384, GEMM_MC_ONCE = 516, COLUMNS_KC = 128, PACKED_KC = 256, PACKED_FLOATS = 64 << 10 };

/* ---- blocking ---- */

/* Up to these rows of a, and their elements, packing b costs more than it gives. Up to these floats an unpacked b stays in
   the second-level cache. */
enum { B_IN_PLACE_ROWS = 72, B_IN_PLACE_ELEMENTS = 9 << 10, B_IN_PLACE_FLOATS = 32 << 10 };

/* Distance of a's steps up to which packing its rows, which are next to each other, costs more than it gives. */
enum { A_IN_PLACE_STEP = 160 };

/* Floats of neighbouring panels that stay in the first-level cache while rows of a go by: two panels at least. */
enum { NEIGHBOUR_FLOATS = 4096 };

/* Panels of b that are packed at a time where its lines are apart. Memory is slow to give less than four cache lines of
   each. */
enum { PACKED_PANELS = 4 * LINE_FLOATS / TILE_COLS };

/* An operand of so many floats is taken to come from memory, a smaller one from the second-level cache. */
enum { FAR_FLOATS = 256 << 10 };
TW_INLINE bool is_far(int32_t rows, int32_t cols) { return (double)rows * cols >= FAR_FLOATS; }

/* Floats that are unpacked at a time: panels of the whole depth of a block. */
enum { UNPACKED_FLOATS = 2 * GEMM_KC * TILE_COLS };

/* The thread's workspace: packed panels, one tile, packed rows, what is unpacked. */
enum { PANEL_FLOATS = 2 * GEMM_KC * TILE_COLS, TILE_FLOATS = 64 };
_Static_assert(NEIGHBOUR_FLOATS <= PANEL_FLOATS, "packed panels");
_Static_assert(PACKED_PANELS * GEMM_KC * TILE_COLS <= PACKED_FLOATS, "packed panels in the place of rows");
enum { UNPACKED_AT = PANEL_FLOATS + TILE_FLOATS + PACKED_FLOATS };
_Static_assert(UNPACKED_AT + UNPACKED_FLOATS == GEMM_WORKSPACE_FLOATS, "gemm's workspace");

static bool packs_rows(const gemm_problem *p) {
    return p->a_col != 1 && (p->a_row != 1 || p->a_col > A_IN_PLACE_STEP);
}

/* All row blocks from `block` to `end_block` by r's panels. */
static void multiply_panels(const gemm_problem *p, tile_run *r, const float *a, bool packed, const row_split *split,
                            int32_t block, int32_t end_block, int32_t kind) {
    const int32_t row = split_start(split, block);
    for (int32_t i = block; i < end_block; i += r->count) {
        const int32_t height = split_height(split, i);
        r->row = split_start(split, i);
        r->a = a + (r->row - row) * r->a_row;
        r->a_step = packed ? height : p->a_col;
        r->count = (i < split->longer ? min_i32(split->longer, end_block) : end_block) - i;
        tiles_of[height - 1][p->a_col != 1][kind](r);
    }
}

/* Lines of b [k0, k0 + k) x [col, col + cols) as they are stored; returns the floats from line to line. */
static int32_t unpack_lines(const gemm_problem *p, float *out, int32_t k0, int32_t k, int32_t col, int32_t cols) {
    const int32_t first = p->turned ? col : k0, count = p->turned ? cols : k, width = p->turned ? k : cols;
    const int32_t line = p->w_line + first, place = p->w_place + (p->turned ? k0 : col);
    for (int32_t i = 0; i < count; i++) unpack_row(p->w, line + i, place, width, out + i * width);
    return width;
}

/* Pack `panels` panels of b from r's column on. */
static void pack_b(const gemm_problem *p, const tile_run *r, int32_t k0, int32_t panels, float *out) {
    const float *b = p->b + k0 * p->b_row + r->col * p->b_col;
    int32_t line = p->b_col, step = p->b_row;
    if (p->w) {
        float *lines = thread_scratch() + UNPACKED_AT;
        const int32_t width = unpack_lines(p, lines, k0, r->k, r->col, r->cols == TILE_COLS ? panels * TILE_COLS : r->cols);
        b = lines, line = p->turned ? width : 1, step = p->turned ? 1 : width;
    }
    pack_panels(out, b, panels, r->cols, line, step, r->k);
}

/* Panels [first, end) of one block: r's depth, from k0 on, of the rows of a that block..end_block are. */
static void compute_panels(const gemm_problem *p, tile_run *r, const float *a, bool packed, int32_t k0,
                           const row_split *split, int32_t block, int32_t end_block, int32_t first, int32_t end) {
    const int32_t most = max_i32(2, NEIGHBOUR_FLOATS / (TILE_COLS * r->k));
    const int32_t rows = split_start(split, end_block) - split_start(split, block);
    const bool few = rows <= B_IN_PLACE_ROWS && rows * r->k <= B_IN_PLACE_ELEMENTS;
    const bool in_place = !p->w && p->b_col == 1 && few && (double)p->b_row * r->k <= B_IN_PLACE_FLOATS;
    /* Rows of a that are not packed leave their room to panels of b. */
    const bool wide = is_far(p->k, p->n) && !p->w && p->b_col == 1 && !in_place && !packed;
    float *panels = thread_scratch() + (wide ? PANEL_FLOATS + TILE_FLOATS : 0);
    const int32_t group = wide ? max_i32(most, PACKED_PANELS / most * most) : most;
    r->far = p->a_col == 1 && is_far(p->m, p->k);
    for (int32_t j = first, next, packed_to = first, packed_from = first; j < end; j = next, r->far = false) {
        r->col = j * TILE_COLS;
        r->cols = min_i32(TILE_COLS, p->n - r->col);
        const bool whole = r->cols == TILE_COLS;
        const int32_t kind = r->cols <= 4 ? NARROW : whole && in_place ? WIDE_IN_PLACE : WIDE;
        const int32_t left = whole ? min_i32(end, p->n / TILE_COLS) - j : 1;
        r->panels = min_i32(most, left);
        next = j + r->panels;
        if (kind == WIDE_IN_PLACE) {
            r->panel = TILE_COLS;
            r->b = p->b + k0 * p->b_row + r->col;
        } else {
            if (j >= packed_to) {
                packed_from = j;
                packed_to = j + min_i32(group, left);
                pack_b(p, r, k0, packed_to - j, panels);
            }
            r->panel = TILE_COLS * r->k;
            r->b = panels + (j - packed_from) * r->panel;
        }
        multiply_panels(p, r, a, packed, split, block, end_block, kind);
    }
}

/* Blocks [first, end) of the split rows of panels [first_panel, end_panel). */
static void compute_tiles(const gemm_problem *p, const row_split *split, int32_t first, int32_t end, int32_t first_panel,
                          int32_t end_panel) {
    const bool packs = packs_rows(p);
    const int32_t kc = ceil_div(p->k, ceil_div(p->k, packs ? PACKED_KC : p->a_col == 1 ? GEMM_KC : COLUMNS_KC));
    const int32_t most = (packs ? PACKED_FLOATS / kc : kc == p->k ? GEMM_MC_ONCE : GEMM_MC) / TILE_ROWS;
    const int32_t blocks = ceil_div(end - first, ceil_div(end - first, most));
    float *spare = thread_scratch() + PANEL_FLOATS, *rows = spare + TILE_FLOATS;
    tile_out o = {p->c, p->c_row, p->c_col, 0, p->bias_row, p->bias_col, p->alpha, p->beta, p->accumulate != 0, false, false};
    tile_run r = {.b_step = p->b_row, .spare = spare, .out = &o};
    for (int32_t k0 = 0; k0 < p->k; k0 += kc, o.add = true) {
        const bool last = k0 + kc >= p->k;
        r.k = min_i32(kc, p->k - k0);
        r.a_row = packs ? r.k : p->a_row;
        o.bias = last ? p->bias : 0;
        o.relu = last && p->activation == ACTIVATION_RELU;
        o.plain = o.alpha == 1 && !o.add && !o.bias && !o.relu && o.c_col == 1;
        for (int32_t block = first; block < end; block += blocks) {
            const int32_t end_block = min_i32(end, block + blocks), row = split_start(split, block);
            const float *a = p->a + row * p->a_row + k0 * p->a_col;
            for (int32_t i = block; packs && i < end_block; i++) {
                const int32_t at = split_start(split, i) - row;
                pack_block(rows + at * r.k, a + at * p->a_row, split_height(split, i), p->a_row, p->a_col, r.k);
            }
            compute_panels(p, &r, packs ? rows : a, packs, k0, split, block, end_block, first_panel, end_panel);
        }
    }
}

/* ---- few columns ---- */

enum { DOT_ROWS = 2, DOT_COLS = 5, DOT_STEPS = 16 };

/* Four steps at constant offset u. */
TW_INLINE void dot_step(const int32_t u, const float *const a[DOT_ROWS], const float *const b[DOT_COLS],
                        f32x4 sum[DOT_ROWS][DOT_COLS]) {
    f32x4 x[DOT_ROWS];
    UNROLL for (int32_t i = 0; i < DOT_ROWS; i++) x[i] = load4(a[i] + u);
    UNROLL for (int32_t j = 0; j < DOT_COLS; j++) {
        f32x4 y = load4(b[j] + u);
        UNROLL for (int32_t i = 0; i < DOT_ROWS; i++) {
            sum[i][j] = madd(x[i], y, sum[i][j]);
            IN_ORDER(sum[i][j]);
        }
    }
}

/* Dot products of rows of a by columns of b, all contiguous; the last one stands in for missing ones. */
TW_INLINE void dot_tile(const gemm_problem *p, const tile_out *o, int32_t row, int32_t col) {
    const float *a[DOT_ROWS], *b[DOT_COLS];
    f32x4 sum[DOT_ROWS][DOT_COLS];
    UNROLL for (int32_t i = 0; i < DOT_ROWS; i++) a[i] = p->a + min_i32(row + i, p->m - 1) * p->a_row;
    UNROLL for (int32_t j = 0; j < DOT_COLS; j++) {
        b[j] = p->b + min_i32(col + j, p->n - 1) * p->b_col;
        UNROLL for (int32_t i = 0; i < DOT_ROWS; i++) sum[i][j] = splat(0);
    }
    int32_t k = p->k;
    for (; k >= DOT_STEPS; k -= DOT_STEPS) {
        UNROLL for (int32_t u = 0; u < DOT_STEPS; u += 4) dot_step(u, a, b, sum);
        UNROLL for (int32_t i = 0; i < DOT_ROWS; i++) a[i] += DOT_STEPS;
        UNROLL for (int32_t j = 0; j < DOT_COLS; j++) b[j] += DOT_STEPS;
    }
    const bool whole = row + DOT_ROWS <= p->m && col + DOT_COLS <= p->n;
    if (k == 0 && whole && o->c_col == 1 && (!o->bias || (o->bias_row == 0 && o->bias_col == 1))) {
        float *c = o->c + row * o->c_row + col;
        UNROLL for (int32_t i = 0; i < DOT_ROWS; i++, c += o->c_row) {
            float last = o->alpha * hsum(sum[i][4]);
            transpose4(&sum[i][0], &sum[i][1], &sum[i][2], &sum[i][3]);
            f32x4 four = mul4(splat(o->alpha), add4(add4(sum[i][0], sum[i][1]), add4(sum[i][2], sum[i][3])));
            if (o->add) four = add4(four, load4(c)), last += c[4];
            if (o->bias) four = add4(four, mul4(splat(o->beta), load4(o->bias + col))), last += o->beta * o->bias[col + 4];
            if (o->relu) four = wasm_f32x4_pmax(four, splat(0)), last = last < 0 ? 0 : last;
            store4(c, four);
            c[4] = last;
        }
        return;
    }
    float t[DOT_ROWS * TILE_COLS];
    for (int32_t i = 0; i < DOT_ROWS; i++) {
        for (int32_t j = 0; j < DOT_COLS; j++) {
            float total = hsum(sum[i][j]);
            for (int32_t q = 0; q < k; q++) total += a[i][q] * b[j][q];
            t[i * TILE_COLS + j] = o->alpha * total;
        }
    }
    finish_tile(t, TILE_COLS, min_i32(DOT_ROWS, p->m - row), min_i32(DOT_COLS, p->n - col), o, row, col);
}

/* Pairs of rows [first, end) of the product. */
static void dot_product(const gemm_problem *p, int32_t first, int32_t end) {
    const tile_out o = {p->c, p->c_row, p->c_col, p->bias, p->bias_row, p->bias_col, p->alpha, p->beta, p->accumulate != 0,
                        p->activation == ACTIVATION_RELU, false};
    for (int32_t col = 0; col < p->n; col += DOT_COLS) {
        for (int32_t i = first; i < end; i++) dot_tile(p, &o, i * DOT_ROWS, col);
    }
}

/* ---- matrix times vector ---- */

/* A chunk has as many columns as its work allows: the prefetcher wants long pieces of lines. */
enum { VECTOR_COLS = 1024, VECTOR_WORK = 1 << 19, VECTOR_LINES = 4, VECTOR_ROWS = 8 };

/* t[n] += sum over k of x[k * step] b[k], rows of b being contiguous: several rows are added at a time. */
static void add_rows(const float *x, int32_t step, const float *b, int32_t b_row, int32_t k, int32_t n, float *t) {
    for (int32_t p = 0; p < k; p += VECTOR_ROWS, b += VECTOR_ROWS * b_row) {
        float scale[VECTOR_ROWS] = {0};
        const float *row[VECTOR_ROWS];
        for (int32_t i = 0; i < VECTOR_ROWS; i++) {
            bool inside = p + i < k;
            if (inside) scale[i] = x[(p + i) * step];
            row[i] = b + (inside ? i * b_row : 0);
        }
        int32_t rows = min_i32(VECTOR_ROWS, k - p), j = 0;
        for (; rows == VECTOR_ROWS && j + 4 <= n; j += 4) {
            f32x4 sum = load4(t + j);
            UNROLL for (int32_t i = 0; i < VECTOR_ROWS; i++) sum = madd(load_splat(scale + i), load4(row[i] + j), sum);
            store4(t + j, sum);
        }
        for (; j < n; j++) {
            float sum = t[j];
            for (int32_t i = 0; i < rows; i++) sum += scale[i] * row[i][j];
            t[j] = sum;
        }
    }
}

/* t[i] += sum over k of x[k] b[k * stride 1] for n columns of b that are contiguous along k. */
static void dot_columns(const float *x, const float *b, int32_t b_col, int32_t k, int32_t n, float *t) {
    for (int32_t j = 0; j < n; j += VECTOR_LINES) {
        int32_t cols = min_i32(VECTOR_LINES, n - j), p = 0;
        const float *column[VECTOR_LINES];
        f32x4 sum[VECTOR_LINES];
        UNROLL for (int32_t i = 0; i < VECTOR_LINES; i++) {
            column[i] = b + (j + min_i32(i, cols - 1)) * b_col;
            sum[i] = splat(0);
        }
        for (; p + 4 <= k; p += 4) {
            f32x4 v = load4(x + p);
            UNROLL for (int32_t i = 0; i < VECTOR_LINES; i++) sum[i] = madd(v, load4(column[i] + p), sum[i]);
        }
        for (int32_t i = 0; i < cols; i++) {
            float total = hsum(sum[i]);
            for (int32_t q = p; q < k; q++) total += x[q] * column[i][q];
            t[j + i] += total;
        }
    }
}

/* One row of results whose operands can be streamed as they are. */
static bool is_vector_product(const gemm_problem *p) {
    return p->m == 1 && (p->b_col == 1 || (p->b_row == 1 && p->a_col == 1));
}

/* t[n] += the product with columns [col, col + n) of a packed b. */
static void add_packed(const gemm_problem *p, int32_t col, int32_t n, float *t) {
    const int32_t depth = p->turned ? min_i32(p->k, UNPACKED_FLOATS) : VECTOR_ROWS * (UNPACKED_FLOATS / (VECTOR_ROWS * n));
    const int32_t lines = p->turned ? min_i32(n, UNPACKED_FLOATS / depth) : n;
    float *b = thread_scratch() + UNPACKED_AT;
    for (int32_t j = 0; j < n; j += lines) {
        const int32_t cols = min_i32(lines, n - j);
        for (int32_t k0 = 0; k0 < p->k; k0 += depth) {
            const int32_t k = min_i32(depth, p->k - k0), width = unpack_lines(p, b, k0, k, col + j, cols);
            if (p->turned) dot_columns(p->a + k0, b, width, k, cols, t + j);
            else add_rows(p->a + k0 * p->a_col, p->a_col, b, width, k, cols, t + j);
        }
    }
}
_Static_assert(VECTOR_ROWS * VECTOR_COLS <= UNPACKED_FLOATS, "rows of a packed b");

static int32_t vector_cols(const gemm_problem *p) {
    int32_t cols = VECTOR_COLS;
    while (cols > 64 && (double)cols * p->k > VECTOR_WORK) cols /= 2;
    return cols;
}

/* Columns [col, col + n) of it. */
static void vector_product(const gemm_problem *p, int32_t col, int32_t n) {
    float t[VECTOR_COLS];
    const float *b = p->b + col * p->b_col;
    for (int32_t j = 0; j < n; j++) t[j] = 0;
    if (p->w) add_packed(p, col, n, t);
    else if (p->b_col == 1) add_rows(p->a, p->a_col, b, p->b_row, p->k, n, t);
    else dot_columns(p->a, b, p->b_col, p->k, n, t);
    tile_out o = {p->c, p->c_row, p->c_col, p->bias, p->bias_row, p->bias_col, p->alpha, p->beta, p->accumulate != 0,
                  p->activation == ACTIVATION_RELU, false};
    for (int32_t j = 0; j < n; j++) {
        const float *bias = p->bias ? p->bias + (col + j) * p->bias_col : 0;
        t[j] *= p->alpha;
        finish_row(t + j, p->c + (col + j) * p->c_col, 1, &o, bias, 0);
    }
}

static void swap32(int32_t *a, int32_t *b) {
    int32_t t = *a;
    *a = *b;
    *b = t;
}

/* c' = b' a'. */
static gemm_problem exchanged(const gemm_problem *p) {
    gemm_problem q = *p;
    q.a = p->b;
    q.b = p->a;
    swap32(&q.m, &q.n);
    q.a_row = p->b_col;
    q.a_col = p->b_row;
    q.b_row = p->a_col;
    q.b_col = p->a_row;
    swap32(&q.c_row, &q.c_col);
    swap32(&q.bias_row, &q.bias_col);
    return q;
}

/* Cycles: a tile multiplies eight columns by a row a cycle, also where it has fewer columns. Measured a float: 0.3 to pack
   rows of a or to read them apart, 0.5 to transpose a panel of b, 0.2 to copy one. */
static double tile_cost(const gemm_problem *p) {
    double m = p->m, n = p->n, k = p->k;
    return m * ceil_div(p->n, TILE_COLS) * k + (p->a_col == 1 ? 0 : 0.3 * m * k) + (p->b_col == 1 ? 0.2 : 0.5) * n * k;
}

/* Cycles of dot products, of which each tile ends in 35. */
static double dot_cost(const gemm_problem *p) {
    return (double)ceil_div(p->m, DOT_ROWS) * ceil_div(p->n, DOT_COLS) * (DOT_ROWS * DOT_COLS / 8.0 * p->k + 35);
}

/* The result where there is nothing to sum. */
static void fill_without_product(const gemm_problem *p) {
    tile_out o = {p->c, p->c_row, p->c_col, p->bias, p->bias_row, p->bias_col, p->alpha, p->beta, p->accumulate != 0,
                  p->activation == ACTIVATION_RELU, false};
    float zero[8] = {0};
    for (int32_t i = 0; i < p->m; i++) {
        for (int32_t j = 0; j < p->n; j += 8) {
            const float *bias = p->bias ? p->bias + i * p->bias_row + j * p->bias_col : 0;
            finish_row(zero, p->c + i * p->c_row + j, min_i32(8, p->n - j), &o, bias, p->bias_col);
        }
    }
}

/* ---- the kernel ---- */

void gemm_tiles(const gemm_problem *given) {
    gemm_problem q = exchanged(given);
    const bool exchange = !given->w && tile_cost(given) > tile_cost(&q) + (double)given->m * given->n;
    const gemm_problem *p = exchange ? &q : given;
    const row_split rows = split_rows(p->m);
    compute_tiles(p, &rows, 0, rows.count, 0, ceil_div(p->n, TILE_COLS));
}

/* Multiply-adds a chunk should hold at least: 20 us of work against a fork-join of up to 10. */
enum { CHUNK_WORK = 1 << 19, CHUNKS = 16 };

typedef enum { FILL, VECTOR, DOTS, TILES } gemm_method;

/* How the items of a batch are computed, and cut: several in a chunk, or each in several, by rows and columns. */
typedef struct {
    const gemm_f32_args *args;
    const gemm_problem *single; /* the only item, in the place of `args` */
    const row_run *runs;        /* not null: each item is one run of its rows */
    gemm_method method;
    bool exchange;
    int32_t items, per_chunk, row_chunks, col_chunks, vector_cols;
} gemm_plan;

static gemm_problem batch_item(const gemm_f32_args *a, int32_t item) {
    int32_t i = item / a->batch[1], j = item % a->batch[1];
    gemm_problem p = {
        a->m, a->n, a->k,
        a->a + i * a->a_batch[0] + j * a->a_batch[1], a->a_row, a->a_col,
        a->b + i * a->b_batch[0] + j * a->b_batch[1], a->b_row, a->b_col,
        a->c + i * a->c_batch[0] + j * a->c_batch[1], a->c_row, 1,
        a->bias ? a->bias + i * a->bias_batch[0] + j * a->bias_batch[1] : 0, a->bias_row, a->bias_col,
        a->alpha, a->beta, a->accumulate, a->activation, 0, false, 0, 0,
    };
    return p;
}

static void gemm_chunk(const void *args, int32_t chunk) {
    const gemm_plan *g = args;
    const int32_t parts = g->row_chunks * g->col_chunks, rc = chunk % parts / g->col_chunks, cc = chunk % g->col_chunks;
    const int32_t first = chunk / parts * g->per_chunk, end = min_i32(g->items, first + g->per_chunk);
    for (int32_t item = first; item < end; item++) {
        gemm_problem p = g->runs ? rows_of(g->single, g->runs[item]) : g->single ? *g->single : batch_item(g->args, item);
        if (g->exchange) p = exchanged(&p);
        if (g->method == FILL) {
            fill_without_product(&p);
        } else if (g->method == VECTOR) {
            vector_product(&p, cc * g->vector_cols, min_i32(g->vector_cols, p.n - cc * g->vector_cols));
        } else if (g->method == DOTS) {
            const int32_t pairs = ceil_div(p.m, DOT_ROWS);
            dot_product(&p, rc * pairs / g->row_chunks, (rc + 1) * pairs / g->row_chunks);
        } else {
            const row_split rows = split_rows(p.m);
            const int32_t panels = ceil_div(p.n, TILE_COLS);
            const int32_t row = rc * rows.count / g->row_chunks, end_row = (rc + 1) * rows.count / g->row_chunks;
            /* A run that is shorter than others may have fewer blocks than chunks. */
            if (row < end_row) {
                compute_tiles(&p, &rows, row, end_row, cc * panels / g->col_chunks, (cc + 1) * panels / g->col_chunks);
            }
        }
    }
}

/* Panels of a chunk at least: more of them where each chunk has to pack its rows of a. */
enum { CHUNK_PANELS = 2, CHUNK_PANELS_PACKING = 16, CHUNK_ROWS = 4 * TILE_ROWS };

/* The fastest method, and the exchange of the operands if that is faster, in which case tiles are stored transposed. */
static void choose_method(gemm_plan *g, const gemm_problem *p, const gemm_problem *exchanged) {
    const double stores = (double)p->m * p->n;
    if (p->k == 0) {
        g->method = FILL;
    } else if (is_vector_product(p->n == 1 ? exchanged : p)) {
        g->method = VECTOR;
        g->exchange = p->n == 1;
    } else {
        const double tiles = tile_cost(p), exchanged_tiles = tile_cost(exchanged) + stores;
        g->method = TILES;
        g->exchange = tiles > exchanged_tiles;
        if (p->a_col == 1 && p->b_row == 1 && p->n <= 3 * DOT_COLS && dot_cost(p) < (g->exchange ? exchanged_tiles : tiles)) {
            g->method = DOTS;
            g->exchange = false;
        }
    }
}

/* Cut the items, of which `p` is one with its operands in order, and compute them. */
static void run_plan(gemm_plan *g, const gemm_problem *p) {
    const double work = (double)p->m * p->n * p->k;
    g->per_chunk = g->row_chunks = g->col_chunks = 1;
    if (g->method == VECTOR) {
        g->vector_cols = vector_cols(p);
        g->col_chunks = ceil_div(p->n, g->vector_cols);
    } else if (!parallel_alone()) {
        const int32_t want = (int32_t)(work < (double)CHUNKS * CHUNK_WORK ? work / CHUNK_WORK : CHUNKS) / g->items;
        const int32_t panels = ceil_div(p->n, TILE_COLS) / (packs_rows(p) ? CHUNK_PANELS_PACKING : CHUNK_PANELS);
        if (g->method == TILES) g->col_chunks = max_i32(1, min_i32(want, panels));
        g->row_chunks = max_i32(1, min_i32(ceil_div(want, g->col_chunks), p->m / CHUNK_ROWS));
    }
    const int32_t parts = g->row_chunks * g->col_chunks;
    if (parts == 1 && work < CHUNK_WORK) g->per_chunk = (int32_t)min_i64(g->items, (int64_t)(CHUNK_WORK / (work + 1)));
    parallel_for(gemm_chunk, g, ceil_div(g->items, g->per_chunk) * parts);
}

/* Compute a product without the rows that are left out, if any are: the items are runs of the others, and `p` their longest. */
static bool leave_out_rows(gemm_plan *g, const gemm_problem *whole, const int32_t *wanted, gemm_problem *p, row_run runs[ROW_RUNS]) {
    if (!wanted || g->items != 1 || p->k == 0) return false;
    g->single = whole, g->runs = runs, g->items = list_rows(whole, wanted, runs);
    p->m = 0;
    for (int32_t i = 0; i < g->items; i++) p->m = max_i32(p->m, runs[i].end - runs[i].start);
    return true;
}

int32_t kernel_gemm_f32(const gemm_f32_args *a) {
    gemm_plan g = {.args = a, .items = a->batch[0] * a->batch[1]};
    if (g.items == 0 || a->m == 0 || a->n == 0) return TW_OK;
    row_run runs[ROW_RUNS];
    const gemm_problem whole = batch_item(a, 0);
    gemm_problem p = whole;
    const bool leaves_out = leave_out_rows(&g, &whole, a->wanted, &p, runs);
    if (g.items) {
        gemm_problem q = exchanged(&p);
        choose_method(&g, &p, &q);
        run_plan(&g, g.exchange ? &q : &p);
    }
    if (leaves_out) fill_other_rows(&whole, runs, g.items, a->clears);
    return TW_OK;
}

int32_t kernel_gemm_quantized_f32(const gemm_quantized_f32_args *a) {
    const packed_matrix w = PACKED_MATRIX(a, w);
    const gemm_problem whole = {
        a->m, a->n, a->k, a->a, a->a_row, a->a_col, 0, a->turned ? 1 : a->n, a->turned ? a->k : 1, a->c, a->c_row, 1,
        a->bias, a->bias_row, a->bias_col, a->alpha, a->beta, a->accumulate, a->activation, &w, a->turned != 0, 0, 0,
    };
    if (a->m == 0 || a->n == 0) return TW_OK;
    row_run runs[ROW_RUNS];
    gemm_problem p = whole;
    gemm_plan g = {.single = &whole, .items = 1};
    const bool leaves_out = leave_out_rows(&g, &whole, a->wanted, &p, runs);
    g.method = p.k == 0 ? FILL : p.m == 1 && (!a->turned || a->a_col == 1) ? VECTOR : TILES;
    if (g.items) run_plan(&g, &p);
    if (leaves_out) fill_other_rows(&whole, runs, g.items, a->clears);
    return TW_OK;
}
