/* Matrix product after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008). A register tile takes
 * rows of A that are contiguous along the depth, and a panel of eight columns of B from the first-level cache; the first tile
 * of a panel reads B where it lies and leaves a packed copy to the others. A is packed only where it has to be. */
#include <stdbool.h>

#include "parallel.h"
#include "tile.h"

enum { ACTIVATION_NONE = 0, ACTIVATION_RELU = 1 };

/* Rows and depth of a that are packed at a time, and what parts the rows; kernels.def sizes its scratch by them. */
enum { GEMM_MC = 384, GEMM_PACKED_KC = 128, GEMM_ROW_PADDING = 16 };

/* c(m,n) = activation(alpha * sum_k a(m,k) b(k,n) + beta * bias(m,n) + (accumulate ? c(m,n) : 0)); strides in floats. */
typedef struct {
    int32_t m, n, k;
    const float *a;
    int32_t a_row, a_col;
    const float *b;
    int32_t b_row, b_col;
    float *c;
    int32_t c_row, c_col;
    const float *bias; /* may be null */
    int32_t bias_row, bias_col;
    float alpha, beta;
    int32_t accumulate, activation;
} gemm_problem;

/* Where the tiles of one block of the product go. */
typedef struct {
    float *c;
    int32_t c_row, c_col;
    const float *bias; /* null unless this is the last block over k */
    int32_t bias_row, bias_col;
    float alpha, beta;
    bool add, relu;
} tile_out;

/* One block [kc] of the depth of mc rows of the product. */
typedef struct {
    const gemm_problem *problem;
    int32_t m0, mc, k0, kc;
    const float *a; /* its rows are contiguous along the depth */
    int32_t a_row;
    float *packed_a;
    tile_out out;
    row_split rows; /* of mc */
    int32_t row_chunks, col_chunks;
} gemm_block;

typedef void (*run_fn)(task_fn fn, const void *args, int32_t n_chunks);

TW_INLINE int32_t ceil_div(int32_t a, int32_t b) { return a / b + (a % b != 0); }

static void run_here(task_fn fn, const void *args, int32_t n_chunks) {
    for (int32_t i = 0; i < n_chunks; i++) fn(args, i);
}

/* ---- packing ---- */

/* out[k][width] from `lines` <= width lines of stride `line`, elements of stride `step`; missing lines are zeros. */
static void pack_any(float *out, int32_t width, const float *src, int32_t lines, int32_t line, int32_t step, int32_t k) {
    for (int32_t p = 0; p < k; p++, out += width) {
        for (int32_t i = 0; i < lines; i++) out[i] = src[i * line + p * step];
        for (int32_t i = lines; i < width; i++) out[i] = 0;
    }
}

/* The same where all lines are there and contiguous along k: transpose. */
TW_INLINE void pack_transposed(const int32_t width, float *out, const float *src, int32_t line, int32_t k) {
    int32_t p = 0;
    for (; p + 4 <= k; p += 4, out += 4 * width) {
        UNROLL for (int32_t i = 0; i < width; i += 4) {
            f32x4 x[4];
            UNROLL for (int32_t j = 0; j < 4; j++) x[j] = load4(src + (i + j) * line + p);
            transpose4(&x[0], &x[1], &x[2], &x[3]);
            UNROLL for (int32_t j = 0; j < 4; j++) store4(out + j * width + i, x[j]);
        }
    }
    pack_any(out, width, src + p, width, line, 1, k - p);
}

/* A panel of b that no tile can read in place. */
static void pack_panel(float *out, int32_t width, const float *src, int32_t lines, int32_t line, int32_t step, int32_t k) {
    if (lines == 8 && width == 8 && step == 1) {
        pack_transposed(8, out, src, line, k);
    } else if (lines == 4 && width == 4 && step == 1) {
        pack_transposed(4, out, src, line, k);
    } else {
        pack_any(out, width, src, lines, line, step, k);
    }
}

/* A task packs the rows of a for DEPTH steps; it reads whole lines of memory at once. */
enum { DEPTH_AT_A_TIME = 16 };

static void pack_a_chunk(const void *args, int32_t chunk) {
    const gemm_block *b = args;
    const gemm_problem *p = b->problem;
    int32_t k = chunk * DEPTH_AT_A_TIME, depth = min_i32(DEPTH_AT_A_TIME, b->kc - k), line = b->a_row, step = p->a_col;
    int32_t rows = p->a_row == 1 ? b->mc & ~3 : 0, fours = depth & ~3;
    const float *src = p->a + b->m0 * p->a_row + (b->k0 + k) * step;
    float *out = b->packed_a + k;
    for (int32_t q = 0; q < fours; q += 4) {
        const float *s0 = src + q * step, *s1 = s0 + step, *s2 = s1 + step, *s3 = s2 + step;
        float *d0 = out + q, *d1 = d0 + line, *d2 = d1 + line, *d3 = d2 + line;
        for (int32_t i = 0; i < rows; i += 4) {
            f32x4 x[4] = {load4(s0 + i), load4(s1 + i), load4(s2 + i), load4(s3 + i)};
            transpose4(&x[0], &x[1], &x[2], &x[3]);
            store4(d0 + i * line, x[0]);
            store4(d1 + i * line, x[1]);
            store4(d2 + i * line, x[2]);
            store4(d3 + i * line, x[3]);
        }
    }
    for (int32_t i = 0; i < b->mc; i++) {
        for (int32_t q = i < rows ? fours : 0; q < depth; q++) out[i * line + q] = src[i * p->a_row + q * step];
    }
}

/* ---- tiles ---- */

/* One row of `n` results, alpha being in them, to c, whose elements have stride 1. */
static void finish_row(const float *t, float *c, int32_t n, const tile_out *o, const float *bias, int32_t bias_col) {
    for (int32_t j = 0; j < n; j++) {
        float v = t[j];
        if (o->add) v += c[j];
        if (bias) v += o->beta * bias[j * bias_col];
        c[j] = o->relu && v < 0 ? 0 : v;
    }
}

/* Tiles at the edges, transposed ones and those with unusual bias: t is [rows][ldt]. */
static __attribute__((noinline)) void finish_tile(const float *t, int32_t ldt, int32_t rows, int32_t cols,
                                                  const tile_out *o, int32_t row, int32_t col) {
    float u[TILE_COLS * 8];
    int32_t c_row = o->c_row, bias_row = o->bias_row, bias_col = o->bias_col;
    float *c = o->c + row * c_row + col * o->c_col;
    const float *bias = o->bias ? o->bias + row * bias_row + col * bias_col : 0;
    if (o->c_col != 1) {
        for (int32_t i = 0; i < 8; i += 4) {
            for (int32_t j = 0; j < ldt; j += 4) {
                f32x4 x[4];
                for (int32_t r = 0; r < 4; r++) x[r] = load4(t + (i + r) * ldt + j);
                transpose4(&x[0], &x[1], &x[2], &x[3]);
                for (int32_t r = 0; r < 4; r++) store4(u + (j + r) * 8 + i, x[r]);
            }
        }
        t = u;
        ldt = 8;
        int32_t s = rows;
        rows = cols;
        cols = s;
        c_row = o->c_col;
        s = bias_row;
        bias_row = bias_col;
        bias_col = s;
    }
    for (int32_t i = 0; i < rows; i++) {
        finish_row(t + i * ldt, c + i * c_row, cols, o, bias ? bias + i * bias_row : 0, bias_col);
    }
}

/* Tiles of equal height below each other. */
typedef struct {
    int32_t k, count, row, col, cols;
    const float *a, *b;
    int32_t a_row, b_row; /* b_row: of b where it lies, for the tile that packs it */
    float *packed;        /* panel of b, and behind it room for one tile */
    const tile_out *out;
} tile_run;

/* A whole tile of c' (the operands were exchanged): 4 to 6 neighbouring floats for each of the tile's columns. */
TW_INLINE void store_transposed(const int32_t rows, const int32_t vecs, f32x4 acc[TILE_ROWS][2], const tile_out *o,
                                int32_t row, int32_t col) {
    const int32_t c_col = o->c_col;
    const bool add = o->add, relu = o->relu;
    f32x4 zero = splat(0);
    if (o->bias) {
        UNROLL for (int32_t i = 0; i < rows; i++) {
            f32x4 bias = splat(o->beta * o->bias[(row + i) * o->bias_row]);
            UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = add4(acc[i][j], bias);
        }
    }
    float *c = o->c + row + col * c_col;
    UNROLL for (int32_t j = 0; j < vecs; j++) {
        f32x4 head[4] = {acc[0][j], acc[1][j], acc[2][j], acc[3][j]}, tail[4];
        transpose4(&head[0], &head[1], &head[2], &head[3]);
        if (rows > 4) {
            f32x4 x = acc[rows > 4 ? 4 : 0][j], y = acc[rows - 1][j];
            tail[0] = wasm_i32x4_shuffle(x, y, 0, 4, 1, 5);
            tail[1] = wasm_i32x4_shuffle(x, y, 1, 5, 0, 4);
            tail[2] = wasm_i32x4_shuffle(x, y, 2, 6, 3, 7);
            tail[3] = wasm_i32x4_shuffle(x, y, 3, 7, 2, 6);
        }
        UNROLL for (int32_t i = 0; i < 4; i++, c += c_col) {
            if (add) head[i] = add4(head[i], load4(c));
            if (relu) head[i] = wasm_f32x4_pmax(head[i], zero);
            store4(c, head[i]);
            if (rows <= 4) continue;
            if (add) tail[i] = add4(tail[i], rows > 5 ? wasm_v128_load64_zero(c + 4) : wasm_v128_load32_zero(c + 4));
            if (relu) tail[i] = wasm_f32x4_pmax(tail[i], zero);
            if (rows > 5) wasm_v128_store64_lane(c + 4, tail[i], 0);
            else wasm_v128_store32_lane(c + 4, tail[i], 0);
        }
    }
}

TW_INLINE void store_tile(const int32_t rows, const int32_t vecs, f32x4 acc[TILE_ROWS][2], const tile_run *r, int32_t row) {
    const tile_out *o = r->out;
    const bool whole = r->cols == 4 * vecs;
    if (o->alpha != 1) {
        UNROLL for (int32_t i = 0; i < rows; i++) {
            UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = mul4(acc[i][j], splat(o->alpha));
        }
    }
    if (whole && o->c_col == 1 && (!o->bias || (o->bias_row == 0 && o->bias_col == 1))) {
        const int32_t c_row = o->c_row;
        float *c = o->c + row * c_row + r->col;
        if (o->add) {
            UNROLL for (int32_t i = 0; i < rows; i++) {
                UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = add4(acc[i][j], load4(c + i * c_row + 4 * j));
            }
        }
        if (o->bias) {
            UNROLL for (int32_t j = 0; j < vecs; j++) {
                f32x4 bias = mul4(splat(o->beta), load4(o->bias + r->col + 4 * j));
                UNROLL for (int32_t i = 0; i < rows; i++) acc[i][j] = add4(acc[i][j], bias);
            }
        }
        if (o->relu) {
            UNROLL for (int32_t i = 0; i < rows; i++) {
                UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = wasm_f32x4_pmax(acc[i][j], splat(0));
            }
        }
        UNROLL for (int32_t i = 0; i < rows; i++, c += c_row) {
            UNROLL for (int32_t j = 0; j < vecs; j++) store4(c + 4 * j, acc[i][j]);
        }
        return;
    }
    if (rows >= 4 && whole && o->c_row == 1 && (!o->bias || o->bias_col == 0)) {
        store_transposed(rows, vecs, acc, o, row, r->col);
        return;
    }
    float *t = r->packed + TILE_COLS * r->k;
    UNROLL for (int32_t i = 0; i < rows; i++) {
        UNROLL for (int32_t j = 0; j < vecs; j++) store4(t + (i * vecs + j) * 4, acc[i][j]);
    }
    finish_tile(t, 4 * vecs, rows, r->cols, o, row, r->col);
}

/* One step of the depth at constant offset u. */
TW_INLINE void tile_step(const int32_t rows, const int32_t vecs, const bool packs, const int32_t u,
                         const float *const line[TILE_ROWS], const float *b, float *packed, f32x4 acc[TILE_ROWS][2]) {
    f32x4 bv[2];
    UNROLL for (int32_t j = 0; j < vecs; j++) {
        bv[j] = load4(b + 4 * j);
        if (packs) store4(packed + 4 * (u * vecs + j), bv[j]);
    }
    UNROLL for (int32_t i = 0; i < rows; i++) {
        f32x4 av = load_splat(line[i] + u);
        UNROLL for (int32_t j = 0; j < vecs; j++) {
            acc[i][j] = madd(av, bv[j], acc[i][j]);
            IN_ORDER(acc[i][j]);
        }
    }
}

enum { STEPS = 8 };

/* a(i, p) = a[i * a_row + p]; b(p, j) = packed[p * 4 * vecs + j], or b[p * b_row + j], which it `packs`. */
TW_INLINE void tiles(const int32_t rows, const int32_t vecs, const bool packs, const tile_run *r) {
    const int32_t a_row = r->a_row, b_row = packs ? r->b_row : 4 * vecs;
    const float *a = r->a;
    for (int32_t n = r->count, row = r->row; n; n--, row += rows, a += rows * a_row) {
        f32x4 acc[TILE_ROWS][2];
        const float *line[TILE_ROWS], *b = packs ? r->b : r->packed;
        float *packed = r->packed;
        int32_t k = r->k;
        UNROLL for (int32_t i = 0; i < rows; i++) {
            line[i] = a + i * a_row;
            UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = splat(0);
        }
        for (; k >= STEPS; k -= STEPS, packed += 4 * STEPS * vecs) {
            if (packs) {
                UNROLL for (int32_t u = 0; u < STEPS; u++, b += b_row) tile_step(rows, vecs, true, u, line, b, packed, acc);
            } else {
                UNROLL for (int32_t u = 0; u < STEPS; u++) tile_step(rows, vecs, false, u, line, b + 4 * vecs * u, 0, acc);
                b += 4 * STEPS * vecs;
            }
            UNROLL for (int32_t i = 0; i < rows; i++) line[i] += STEPS;
        }
        for (; k; k--, b += b_row, packed += 4 * vecs) {
            tile_step(rows, vecs, packs, 0, line, b, packed, acc);
            UNROLL for (int32_t i = 0; i < rows; i++) line[i]++;
        }
        store_tile(rows, vecs, acc, r, row);
    }
}

#define TILE(rows)                                                                                                      \
    static void tiles_##rows##x8(const tile_run *r) { tiles(rows, 2, false, r); }                                       \
    static void tiles_##rows##x8_packing(const tile_run *r) { tiles(rows, 2, true, r); }                                \
    static void tiles_##rows##x4(const tile_run *r) { tiles(rows, 1, false, r); }
#define TILE_ENTRY(rows) {tiles_##rows##x8, tiles_##rows##x8_packing, tiles_##rows##x4}

TILE(1)
TILE(2)
TILE(3)
TILE(4)
#ifdef TW_RELAXED
TILE(5)
TILE(6)
#endif

typedef void (*tiles_fn)(const tile_run *r);
enum { WIDE, WIDE_PACKING, NARROW };
static const tiles_fn tiles_of[TILE_ROWS][3] = {
    TILE_ENTRY(1), TILE_ENTRY(2), TILE_ENTRY(3), TILE_ENTRY(4),
#ifdef TW_RELAXED
    TILE_ENTRY(5), TILE_ENTRY(6),
#endif
};

static void compute_chunk(const void *args, int32_t chunk) {
    const gemm_block *b = args;
    const gemm_problem *p = b->problem;
    int32_t blocks = b->rows.count, panels = ceil_div(p->n, TILE_COLS);
    int32_t rc = chunk / b->col_chunks, cc = chunk % b->col_chunks;
    int32_t first_block = rc * blocks / b->row_chunks, end_block = (rc + 1) * blocks / b->row_chunks;
    int32_t first_panel = cc * panels / b->col_chunks, end_panel = (cc + 1) * panels / b->col_chunks;
    tile_run r = {.k = b->kc, .a_row = b->a_row, .b_row = p->b_row, .packed = thread_scratch(), .out = &b->out};
    for (int32_t panel = first_panel; panel < end_panel; panel++) {
        r.col = panel * TILE_COLS;
        r.cols = min_i32(TILE_COLS, p->n - r.col);
        r.b = p->b + r.col * p->b_col + b->k0 * p->b_row;
        int32_t kind = r.cols <= 4 ? NARROW : r.cols == 8 && p->b_col == 1 ? WIDE_PACKING : WIDE;
        if (kind != WIDE_PACKING) pack_panel(r.packed, kind == WIDE ? 8 : 4, r.b, r.cols, p->b_col, p->b_row, b->kc);
        for (int32_t i = first_block; i < end_block; i += r.count) {
            int32_t height = split_height(&b->rows, i), row = split_start(&b->rows, i);
            r.count = kind == WIDE_PACKING ? 1 : (i < b->rows.longer ? min_i32(b->rows.longer, end_block) : end_block) - i;
            r.row = b->m0 + row;
            r.a = b->a + row * b->a_row;
            tiles_of[height - 1][kind](&r);
            if (kind == WIDE_PACKING) kind = WIDE;
        }
    }
}

/* ---- blocking ---- */

/* Multiply-adds a chunk should hold at least: 20 us of work against a fork-join of up to 10. */
enum { CHUNK_WORK = 1 << 19, CHUNKS = 16 };

/* Chunks of a block depend on its shape only; columns first, since every chunk of rows packs the panels of b again. */
static void split_block(gemm_block *b) {
    double work = (double)b->mc * b->problem->n * b->kc;
    int32_t want = work < (double)CHUNKS * CHUNK_WORK ? (int32_t)(work / CHUNK_WORK) : CHUNKS;
    b->col_chunks = max_i32(1, min_i32(want, ceil_div(b->problem->n, TILE_COLS) / 2));
    b->row_chunks = max_i32(1, min_i32(ceil_div(want, b->col_chunks), b->rows.count / 4));
}

/* ---- matrix times vector ---- */

enum { VECTOR_COLS = 1024, VECTOR_WORK = 1 << 17, VECTOR_LINES = 4, VECTOR_ROWS = 8 };

/* t[n] = sum over k of x[k * step] b[k], rows of b being contiguous: several rows are added at a time. */
static void add_rows(const float *x, int32_t step, const float *b, int32_t b_row, int32_t k, int32_t n, float *t) {
    for (int32_t j = 0; j < n; j++) t[j] = 0;
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

/* t[i] = sum over k of x[k] b[k * stride 1] for n columns of b that are contiguous along k. */
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
            t[j + i] = total;
        }
    }
}

typedef struct {
    const gemm_problem *problem;
    int32_t cols;
} vector_pass;

static void vector_chunk(const void *args, int32_t chunk) {
    const vector_pass *pass = args;
    const gemm_problem *p = pass->problem;
    int32_t col = chunk * pass->cols, n = min_i32(pass->cols, p->n - col);
    float t[VECTOR_COLS];
    const float *b = p->b + col * p->b_col;
    if (p->b_col == 1) add_rows(p->a, p->a_col, b, p->b_row, p->k, n, t);
    else dot_columns(p->a, b, p->b_col, p->k, n, t);
    tile_out o = {p->c, p->c_row, p->c_col, p->bias, p->bias_row, p->bias_col, p->alpha, p->beta, p->accumulate != 0,
                  p->activation == ACTIVATION_RELU};
    for (int32_t j = 0; j < n; j++) {
        const float *bias = p->bias ? p->bias + (col + j) * p->bias_col : 0;
        t[j] *= p->alpha;
        finish_row(t + j, p->c + (col + j) * p->c_col, 1, &o, bias, 0);
    }
}

/* One row of results whose operands can be streamed as they are; false if they cannot. */
static bool vector_product(const gemm_problem *p, run_fn run) {
    if (p->m != 1 || !(p->b_col == 1 || (p->b_row == 1 && p->a_col == 1))) return false;
    vector_pass pass = {p, VECTOR_COLS};
    while (pass.cols > 64 && (double)pass.cols * p->k > VECTOR_WORK) pass.cols /= 2;
    run(vector_chunk, &pass, ceil_div(p->n, pass.cols));
    return true;
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

/* Cycles: a tile multiplies eight columns by a row a cycle, also where it has fewer columns. Measured a float: 1.2 to pack
   a, 0.5 to transpose a panel of b. */
static double product_cost(const gemm_problem *p) {
    double m = p->m, n = p->n, k = p->k;
    return m * ceil_div(p->n, TILE_COLS) * k + (p->a_col == 1 ? 0 : 1.2 * m * k) + (p->b_col == 1 ? 0 : 0.5 * n * k);
}

/* The product or, where it is cheaper, that with the operands exchanged, which stores its tiles transposed. */
static gemm_problem cheaper_side(const gemm_problem *p) {
    gemm_problem q = exchanged(p);
    return product_cost(p) <= product_cost(&q) + (double)p->m * p->n ? *p : q;
}

/* The result where there is nothing to sum. */
static void fill_without_product(const gemm_problem *p) {
    tile_out o = {p->c, p->c_row, p->c_col, p->bias, p->bias_row, p->bias_col, p->alpha, p->beta, p->accumulate != 0,
                  p->activation == ACTIVATION_RELU};
    float zero[8] = {0};
    for (int32_t i = 0; i < p->m; i++) {
        for (int32_t j = 0; j < p->n; j += 8) {
            const float *bias = p->bias ? p->bias + i * p->bias_row + j * p->bias_col : 0;
            finish_row(zero, p->c + i * p->c_row + j, min_i32(8, p->n - j), &o, bias, p->bias_col);
        }
    }
}

/* Depth of a block: a panel of b and one tile's rows of a share the first-level cache. */
enum { GEMM_KC = 512 };

static void gemm_blocked(const gemm_problem *problem, float *packed_a, run_fn run) {
    if (problem->m == 0 || problem->n == 0) return;
    if (problem->k == 0) {
        fill_without_product(problem);
        return;
    }
    gemm_problem p = problem->n == 1 ? exchanged(problem) : *problem;
    if (vector_product(&p, run)) return;
    p = cheaper_side(problem);
    bool in_place = p.a_col == 1;
    int32_t k_blocks = ceil_div(p.k, in_place ? GEMM_KC : GEMM_PACKED_KC), m_blocks = ceil_div(p.m, GEMM_MC);
    int32_t kc = ceil_div(p.k, k_blocks), mc = ceil_div(p.m, m_blocks);
    gemm_block b = {.problem = &p, .packed_a = packed_a};
    for (b.k0 = 0; b.k0 < p.k; b.k0 += kc) {
        b.kc = min_i32(kc, p.k - b.k0);
        bool first = b.k0 == 0, last = b.k0 + b.kc == p.k;
        b.out = (tile_out){p.c, p.c_row, p.c_col, last ? p.bias : 0, p.bias_row, p.bias_col, p.alpha, p.beta,
                           !first || p.accumulate, last && p.activation == ACTIVATION_RELU};
        for (b.m0 = 0; b.m0 < p.m; b.m0 += mc) {
            b.mc = min_i32(mc, p.m - b.m0);
            b.rows = split_rows(b.mc);
            if (in_place) {
                b.a = p.a + b.m0 * p.a_row + b.k0;
                b.a_row = p.a_row;
            } else {
                b.a = packed_a;
                b.a_row = b.kc + GEMM_ROW_PADDING;
                run(pack_a_chunk, &b, ceil_div(b.kc, DEPTH_AT_A_TIME));
            }
            split_block(&b);
            run(compute_chunk, &b, b.row_chunks * b.col_chunks);
        }
    }
}

/* ---- the kernel ---- */

static gemm_problem batch_item(const gemm_f32_args *a, int32_t item) {
    int32_t i = item / a->batch[1], j = item % a->batch[1];
    gemm_problem p = {
        a->m, a->n, a->k,
        a->a + i * a->a_batch[0] + j * a->a_batch[1], a->a_row, a->a_col,
        a->b + i * a->b_batch[0] + j * a->b_batch[1], a->b_row, a->b_col,
        a->c + i * a->c_batch[0] + j * a->c_batch[1], a->c_row, 1,
        a->bias ? a->bias + i * a->bias_batch[0] + j * a->bias_batch[1] : 0, a->bias_row, a->bias_col,
        a->alpha, a->beta, a->accumulate, a->activation,
    };
    return p;
}

/* Of the thread's workspace: a panel of b and one tile, and behind them the packed rows of a product of the thread's own. */
enum { PANEL_FLOATS = GEMM_KC * TILE_COLS + 64 };
_Static_assert((PANEL_FLOATS + GEMM_MC * (GEMM_PACKED_KC + GEMM_ROW_PADDING)) * 4 <= THREAD_SCRATCH_BYTES, "own products");

static void batch_chunk(const void *args, int32_t chunk) {
    gemm_problem p = batch_item(args, chunk);
    gemm_blocked(&p, thread_scratch() + PANEL_FLOATS, run_here);
}

/* From this many items on each thread takes whole products: packing stays private and nothing waits. */
enum { BATCH_ITEMS = 8 };

int32_t kernel_gemm_f32(const gemm_f32_args *a) {
    int32_t items = a->batch[0] * a->batch[1];
    if (items >= BATCH_ITEMS) {
        parallel_for(batch_chunk, a, items);
        return TW_OK;
    }
    for (int32_t i = 0; i < items; i++) {
        gemm_problem p = batch_item(a, i);
        gemm_blocked(&p, a->packed, parallel_for);
    }
    return TW_OK;
}
