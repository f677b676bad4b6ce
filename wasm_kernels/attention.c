/* Softmax attention without a matrix of scores, after Dao et al., "FlashAttention: Fast and Memory-Efficient Exact
   Attention with IO-Awareness" (2022): keys go by in blocks, each row keeps its largest score and the sum of its
   exponentials, and the gradient computes the probabilities again from them.

   What a mask rules out is not computed: where the largest |q| and |k| bound the scores of a tile so low that their
   exponentials are zeros, leaving them out changes nothing. Errors: those of the products and of softmax.c. */
#include "math.h"
#include "parallel.h"
#include "reduce.h"
#include "tile.h"

/* Keys and rows of a block, rows of a task; scores of a row lie LINE apart, so that a tile may read past its end. */
enum { KEYS = 64, ROWS = 64, TASK_ROWS = 128, LINE = KEYS + TILE_COLS };
/* Scores so far below the largest have exponentials that are zeros. */
#define NEGLIGIBLE (1 - EXP_NEGLIGIBLE)
#define INFINITE __builtin_inff()

#define NOINLINE __attribute__((noinline))

enum { WIDTH = 256 }; /* of a head at most; kernels.def says so, too */
_Static_assert(4 * (WIDTH * (5 * KEYS + 2 * LINE) + 2 * (ROWS + TILE_ROWS) * LINE) <= THREAD_SCRATCH_BYTES, "blocks of a gradient");

TW_INLINE int32_t whole_panels(int32_t n) { return (n + TILE_COLS - 1) & ~(TILE_COLS - 1); }

/* A matrix of rows that lie `row` floats apart. */
typedef struct {
    const float *x;
    int32_t row;
} matrix;

TW_INLINE const float *row_at(matrix a, int32_t i) { return a.x + i * a.row; }
TW_INLINE matrix rows_from(matrix a, int32_t i) { return (matrix){row_at(a, i), a.row}; }

/* In place of calls of memset and memcpy, which cost more than a row. */
TW_INLINE void zero_row(float *x, int32_t n) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) store4(x + i, splat(0));
    for (; i < n; i++) x[i] = 0;
}

TW_INLINE void scale_row(float *y, const float *x, int32_t n, float factor) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) store4(y + i, mul4(load4(x + i), splat(factor)));
    for (; i < n; i++) y[i] = x[i] * factor;
}

/* ---- packing ---- */

/* out[panel of 8 rows][width][8]: the transposed; rows past the end repeat the last. */
static NOINLINE void pack_transposed(float *out, matrix a, int32_t rows, int32_t width) {
    for (int32_t i = 0; i < rows; i += TILE_COLS) {
        const float *line[TILE_COLS];
        for (int32_t j = 0; j < TILE_COLS; j++) line[j] = row_at(a, min_i32(i + j, rows - 1));
        int32_t p = 0;
        for (; p + 4 <= width; p += 4, out += 4 * TILE_COLS) {
            UNROLL for (int32_t j = 0; j < TILE_COLS; j += 4) {
                f32x4 x[4];
                UNROLL for (int32_t r = 0; r < 4; r++) x[r] = load4(line[j + r] + p);
                transpose4(&x[0], &x[1], &x[2], &x[3]);
                UNROLL for (int32_t r = 0; r < 4; r++) store4(out + r * TILE_COLS + j, x[r]);
            }
        }
        for (; p < width; p++, out += TILE_COLS)
            for (int32_t j = 0; j < TILE_COLS; j++) out[j] = line[j][p];
    }
}

/* out[panel of 8 columns][rows][8]; columns past the end are zeros. */
static NOINLINE void pack_panels(float *out, matrix a, int32_t rows, int32_t width) {
    for (int32_t j = 0; j < width; j += TILE_COLS) {
        const float *x = a.x + j;
        int32_t cols = min_i32(TILE_COLS, width - j);
        for (int32_t i = 0; i < rows; i++, out += TILE_COLS, x += a.row) {
            if (cols == TILE_COLS) {
                store4(out, load4(x));
                store4(out + 4, load4(x + 4));
            } else {
                for (int32_t c = 0; c < TILE_COLS; c++) out[c] = c < cols ? x[c] : 0;
            }
        }
    }
}

/* ---- tiles: TILE_ROWS x 8 of a product whose right operand is a packed panel ---- */

TW_INLINE void tile_step(const bool columns, const int32_t u, const float *const line[TILE_ROWS], const float *b,
                         f32x4 acc[TILE_ROWS][2]) {
    f32x4 b0 = load4(b + 8 * u), b1 = load4(b + 8 * u + 4);
    UNROLL for (int32_t i = 0; i < TILE_ROWS; i++) {
        f32x4 a = load_splat(columns ? line[0] + i : line[i] + u);
        acc[i][0] = madd(a, b0, acc[i][0]);
        IN_ORDER(acc[i][0]);
        acc[i][1] = madd(a, b1, acc[i][1]);
        IN_ORDER(acc[i][1]);
    }
}

/* acc = sum over p < k of a(i, p) b[p][8]; a(i, p) is line[i][p], or with `columns` line[0][p * step + i]. */
TW_INLINE void tile(const bool columns, int32_t k, const float *const a[TILE_ROWS], int32_t step, const float *b,
                    f32x4 acc[TILE_ROWS][2]) {
    const float *line[TILE_ROWS];
    const int32_t lines = columns ? 1 : TILE_ROWS;
    UNROLL for (int32_t i = 0; i < TILE_ROWS; i++) acc[i][0] = acc[i][1] = splat(0);
    UNROLL for (int32_t i = 0; i < lines; i++) line[i] = a[i];
    for (; k >= 4; k -= 4, b += 32) {
        UNROLL for (int32_t u = 0; u < 4; u++) {
            tile_step(columns, u, line, b, acc);
            if (columns) line[0] += step;
        }
        UNROLL for (int32_t i = 0; i < lines; i++) line[i] += columns ? 0 : 4;
    }
    for (; k; k--, b += 8) {
        tile_step(columns, 0, line, b, acc);
        UNROLL for (int32_t i = 0; i < lines; i++) line[i] += columns ? step : 1;
    }
}

/* c[i * LINE] = scale * a b for n columns, whose panels lie one after the other. */
static NOINLINE void store_tiles(int32_t k, const float *const a[TILE_ROWS], const float *b, float scale, float *c,
                                 int32_t n) {
    for (int32_t j = 0; j < n; j += TILE_COLS, b += k * TILE_COLS, c += TILE_COLS) {
        f32x4 acc[TILE_ROWS][2], s = splat(scale);
        tile(false, k, a, 0, b, acc);
        UNROLL for (int32_t i = 0; i < TILE_ROWS; i++) {
            store4(c + i * LINE, mul4(acc[i][0], s));
            store4(c + i * LINE + 4, mul4(acc[i][1], s));
        }
    }
}

/* c[i] = factor[i] * c[i] + a b for n columns, whose panels lie `panel` apart. */
static NOINLINE void add_tiles(int32_t k, const float *const a[TILE_ROWS], const float *b, int32_t panel,
                               const float *factor, float *const c[TILE_ROWS], int32_t n) {
    for (int32_t col = 0; col < n; col += TILE_COLS, b += panel) {
        f32x4 acc[TILE_ROWS][2];
        tile(false, k, a, 0, b, acc);
        if (col + TILE_COLS <= n) {
            UNROLL for (int32_t i = 0; i < TILE_ROWS; i++) {
                float *p = c[i] + col;
                f32x4 f = load_splat(factor + i);
                store4(p, madd(f, load4(p), acc[i][0]));
                store4(p + 4, madd(f, load4(p + 4), acc[i][1]));
            }
            continue;
        }
        float t[TILE_ROWS][TILE_COLS];
        UNROLL for (int32_t i = 0; i < TILE_ROWS; i++) {
            store4(t[i], acc[i][0]);
            store4(t[i] + 4, acc[i][1]);
        }
        for (int32_t i = 0; i < TILE_ROWS; i++)
            for (int32_t j = col; j < n; j++) c[i][j] = factor[i] * c[i][j] + t[i][j - col];
    }
}

/* c[i * n] += a' b for n columns, where a is [k][LINE]; panels lie `panel` apart. */
static NOINLINE void add_transposed_tiles(int32_t k, const float *a, const float *b, int32_t panel, float *c, int32_t n) {
    for (int32_t col = 0; col < n; col += TILE_COLS, b += panel, c += TILE_COLS) {
        f32x4 acc[TILE_ROWS][2];
        tile(true, k, &a, LINE, b, acc);
        UNROLL for (int32_t i = 0; i < TILE_ROWS; i++) {
            store4(c + i * n, add4(load4(c + i * n), acc[i][0]));
            store4(c + i * n + 4, add4(load4(c + i * n + 4), acc[i][1]));
        }
    }
}

/* Addresses of the rows of a tile; those past the end repeat the last. */
TW_INLINE void tile_lines(const float *line[TILE_ROWS], matrix a, int32_t first, int32_t rows) {
    for (int32_t i = 0; i < TILE_ROWS; i++) line[i] = row_at(a, min_i32(first + i, rows - 1));
}

/* ---- one head ---- */

/* One item of the batch: q [m, d], k [n, d], v [n, e], mask [m, n] or null. */
typedef struct {
    matrix q, k, v, mask;
    int32_t m, n, d, e;
    float scale, fill; /* a score where the mask is -infinity */
} head;

typedef struct {
    int32_t first, end;
} span;

TW_INLINE float *item_at(const float *x, const int32_t strides[3], const int32_t batch[2], int32_t item) {
    return (float *)x + item / batch[1] * strides[0] + item % batch[1] * strides[1];
}

/* mask + score, or `fill` where the mask is -infinity. */
TW_INLINE f32x4 masked(f32x4 score, f32x4 mask, float fill) {
    return select4(wasm_f32x4_eq(mask, splat(-INFINITE)), splat(fill), add4(score, mask));
}

/* Largest |x| of four columns from p on (zeros past `width`), as integers: in their order NaN is above infinity. */
TW_INLINE f32x4 largest_of_columns(matrix a, int32_t rows, int32_t width, int32_t p) {
    v128_t top = splat(0);
    for (int32_t i = 0; i < rows; i++) {
        const float *x = row_at(a, i) + p;
        f32x4 v = p + 4 <= width ? load4(x) : load_part(x, width - p);
        top = wasm_i32x4_max(top, wasm_f32x4_abs(v));
    }
    return top;
}

/* top[p] = largest |x| of column p, for whole vectors of columns. */
static NOINLINE void column_tops(float *top, matrix a, int32_t rows, int32_t width) {
    for (int32_t p = 0; p < width; p += 4) store4(top + p, largest_of_columns(a, rows, width, p));
}

/* No score of these rows with the keys of `key_tops` is larger than this, roundings included. */
static float score_bound(const head *h, int32_t first, int32_t rows, const float *key_tops) {
    f32x4 total = splat(0);
    for (int32_t p = 0; p < h->d; p += 4)
        total = madd(largest_of_columns(rows_from(h->q, first), rows, h->d, p), load4(key_tops + p), total);
    return 1.001f * __builtin_fabsf(h->scale) * hsum(total);
}

/* Largest number of [rows, cols] of the mask from (row, col) on; `fill` may stand for -infinity. */
static float mask_top(const head *h, int32_t row, int32_t rows, int32_t col, int32_t cols) {
    float top = h->fill;
    if (cols == TILE_COLS) {
        f32x4 v = splat(top);
        for (int32_t i = 0; i < rows; i++) {
            const float *x = row_at(h->mask, row + i) + col;
            v = wasm_f32x4_pmax(v, wasm_f32x4_pmax(load4(x), load4(x + 4)));
        }
        return hmax(v);
    }
    for (int32_t i = 0; i < rows; i++) {
        float x = max_row(row_at(h->mask, row + i) + col, cols);
        top = x > top ? x : top;
    }
    return top;
}

/* The keys of a block that may matter to the rows of a tile: those outside have scores below `floor` by all means. */
static NOINLINE span active_keys(const head *h, int32_t row, int32_t rows, int32_t first_key, int32_t keys, float floor, float bound) {
    span s = {0, keys};
    if (!h->mask.x) return s;
    while (s.end > 0) {
        int32_t at = (s.end - 1) & ~(TILE_COLS - 1);
        if (!(mask_top(h, row, rows, first_key + at, s.end - at) + bound < floor)) break;
        s.end = at;
    }
    while (s.first < s.end) {
        int32_t cols = min_i32(TILE_COLS, s.end - s.first);
        if (!(mask_top(h, row, rows, first_key + s.first, cols) + bound < floor)) break;
        s.first += TILE_COLS;
    }
    return s;
}

/* ---- forward ---- */

/* What the rows of a tile keep from block to block. */
typedef struct {
    float top[TILE_ROWS], sum[TILE_ROWS];
    float floor, bound;
} row_state;

/* Below every row's largest score, by what makes an exponential vanish. */
static float score_floor(const head *h, int32_t row, int32_t rows, float bound) {
    float floor = INFINITE;
    for (int32_t i = 0; i < rows; i++) {
        float top = max_row(row_at(h->mask, row + i), h->n);
        if (top == -INFINITE) top = h->fill;
        floor = top < floor ? top : floor;
    }
    return floor - bound - NEGLIGIBLE;
}

/* Scores of one row become e^(score - top); returns what the row's results so far must be multiplied by. */
static float exp_scores(float *p, const float *mask, float fill, int32_t n, float *top, float *sum) {
    f32x4 largest = splat(-INFINITE), total = splat(0);
    int32_t j = 0;
    for (; j + 4 <= n; j += 4) {
        f32x4 x = load4(p + j);
        if (mask) store4(p + j, x = masked(x, load4(mask + j), fill));
        largest = wasm_f32x4_pmax(largest, x);
    }
    if (j < n) {
        f32x4 x = load4(p + j);
        if (mask) x = masked(x, load_part(mask + j, n - j), fill);
        store4(p + j, x = select4(first_lanes(n - j), x, splat(-INFINITE)));
        largest = wasm_f32x4_pmax(largest, x);
    }
    float new_top = hmax(largest), old_top = *top;
    if (!(new_top > old_top)) new_top = old_top;
    /* Rows that have only seen -infinity so far must not become NaN: a finite score may follow. */
    float shift = new_top == -INFINITE ? 0 : new_top;
    for (j = 0; j < n; j += 4) {
        f32x4 e = exp4_negative(sub4(load4(p + j), splat(shift)));
        store4(p + j, e);
        total = add4(total, e);
    }
    float factor = old_top == shift ? 1 : old_top == -INFINITE ? 0 : exp1(old_top - shift);
    *top = new_top;
    *sum = *sum * factor + hsum(total);
    return factor;
}

/* One block of keys for the rows of a tile. */
static void attend_tile(const head *h, int32_t row, int32_t rows, int32_t first_key, int32_t keys, const float *packed_k,
                        const float *packed_v, row_state *state, matrix y) {
    span s = active_keys(h, row, rows, first_key, keys, state->floor, state->bound);
    int32_t count = s.end - s.first;
    if (!count) return;
    float p[TILE_ROWS * LINE], factor[TILE_ROWS] = {0}, unused[WIDTH];
    const float *line[TILE_ROWS];
    float *out[TILE_ROWS];
    tile_lines(line, h->q, row, row + rows);
    store_tiles(h->d, line, packed_k + s.first * h->d, h->scale, p, count);
    for (int32_t i = 0; i < TILE_ROWS; i++) {
        line[i] = p + i * LINE;
        out[i] = i < rows ? (float *)row_at(y, row + i) : unused;
        if (i >= rows) continue;
        const float *mask = h->mask.x ? row_at(h->mask, row + i) + first_key + s.first : 0;
        factor[i] = exp_scores(p + i * LINE, mask, h->fill, count, &state->top[i], &state->sum[i]);
    }
    add_tiles(count, line, packed_v + s.first * TILE_COLS, keys * TILE_COLS, factor, out, h->e);
}

typedef struct {
    const attention_f32_args *a;
    int32_t blocks, grain; /* blocks of TASK_ROWS of an item; how many of them are a chunk */
} forward_task;

static void attend_block(const attention_f32_args *a, int32_t item, int32_t block) {
    head h = {
        {item_at(a->q, a->q_strides, a->batch, item), a->q_strides[2]},
        {item_at(a->k, a->k_strides, a->batch, item), a->k_strides[2]},
        {item_at(a->v, a->v_strides, a->batch, item), a->v_strides[2]},
        {a->mask ? item_at(a->mask, a->mask_strides, a->batch, item) : 0, a->mask_strides[2]},
        a->m, a->n, a->d, a->e, a->scale, a->fill,
    };
    matrix y = {item_at(a->y, a->y_strides, a->batch, item), a->y_strides[2]};
    int32_t first = block * TASK_ROWS, end = min_i32(first + TASK_ROWS, a->m);
    row_state states[(TASK_ROWS + TILE_ROWS - 1) / TILE_ROWS];
    float key_tops[WIDTH];
    if (a->mask) column_tops(key_tops, h.k, h.n, h.d);
    for (int32_t row = first, t = 0; row < end; row += TILE_ROWS, t++) {
        int32_t rows = min_i32(TILE_ROWS, end - row);
        for (int32_t i = 0; i < TILE_ROWS; i++) states[t].top[i] = -INFINITE, states[t].sum[i] = 0;
        if (a->mask) {
            states[t].bound = score_bound(&h, row, rows, key_tops);
            states[t].floor = score_floor(&h, row, rows, states[t].bound);
        }
        for (int32_t i = 0; i < rows; i++) zero_row((float *)row_at(y, row + i), a->e);
    }
    float *packed_k = thread_scratch(), *packed_v = packed_k + KEYS * a->d;
    for (int32_t key = 0; key < a->n; key += KEYS) {
        int32_t keys = min_i32(KEYS, a->n - key);
        pack_transposed(packed_k, rows_from(h.k, key), keys, a->d);
        pack_panels(packed_v, rows_from(h.v, key), keys, a->e);
        for (int32_t row = first, t = 0; row < end; row += TILE_ROWS, t++)
            attend_tile(&h, row, min_i32(TILE_ROWS, end - row), key, keys, packed_k, packed_v, &states[t], y);
    }
    for (int32_t row = first; row < end; row++) {
        const row_state *state = &states[(row - first) / TILE_ROWS];
        int32_t i = (row - first) % TILE_ROWS;
        float inverse = 1 / state->sum[i];
        float *out = (float *)row_at(y, row);
        scale_row(out, out, a->e, inverse);
        if (a->top) a->top[item * a->m + row] = state->top[i];
        if (a->inverse) a->inverse[item * a->m + row] = inverse;
    }
}

static void attend_chunk(const void *args, int32_t chunk) {
    const forward_task *task = args;
    int32_t total = task->a->batch[0] * task->a->batch[1] * task->blocks;
    for (int32_t unit = chunk * task->grain; unit < min_i32((chunk + 1) * task->grain, total); unit++)
        attend_block(task->a, unit / task->blocks, unit % task->blocks);
}

/* Multiply-adds take about as long as 1/16 of the elements of cheap work. */
static int32_t items_per_chunk(int64_t rows, int64_t n, int64_t width) { return units_per_chunk(rows * n * width / 16); }

int32_t kernel_attention_f32(const attention_f32_args *a) {
    int32_t blocks = (a->m + TASK_ROWS - 1) / TASK_ROWS;
    forward_task task = {a, blocks, items_per_chunk(min_i32(a->m, TASK_ROWS), a->n, a->d + a->e)};
    parallel_for(attend_chunk, &task, chunk_count((int64_t)a->batch[0] * a->batch[1] * blocks, task.grain));
    return TW_OK;
}

/* ---- gradient ---- */

/* One item, or the keys of a part of it. */
typedef struct {
    head h;
    matrix y, dy;
    const float *top, *inverse;
    float *dq, *dk, *dv; /* null where not wanted */
    int32_t dq_row, dk_row, dv_row;
    float *delta; /* [m]: sum of dy * y */
    bool conditional; /* the mask stands for a condition: no gradient goes through where it is -infinity */
} head_gradient;

/* Blocks in thread_scratch; p and ds are [ROWS][LINE]. */
typedef struct {
    float *kt, *vt, *k, *q, *dy, *dk, *dv, *p, *ds;
} gradient_blocks;

static float dot(const float *x, const float *y, int32_t n) {
    f32x4 total = splat(0);
    float tail = 0;
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) total = madd(load4(x + i), load4(y + i), total);
    for (; i < n; i++) tail += x[i] * y[i];
    return hsum(total) + tail;
}

/* p = e^(score - top) / sum */
static void probabilities(float *p, const float *mask, float fill, int32_t n, float top, float inverse) {
    for (int32_t j = 0; j < n; j += 4) {
        f32x4 x = load4(p + j);
        if (mask) x = masked(x, j + 4 <= n ? load4(mask + j) : load_part(mask + j, n - j), fill);
        store4(p + j, mul4(exp4_negative(sub4(x, splat(top))), splat(inverse)));
    }
}

/* ds = scale * p (dp - delta), zero where `mask`, which may be null, is -infinity: even if p is NaN. */
static void score_gradients(float *ds, const float *p, const float *mask, int32_t n, float delta, float scale) {
    for (int32_t j = 0; j < n; j += 4) {
        f32x4 x = mul4(load4(p + j), mul4(sub4(load4(ds + j), splat(delta)), splat(scale)));
        if (mask) {
            f32x4 m = j + 4 <= n ? load4(mask + j) : load_part(mask + j, n - j);
            x = wasm_v128_andnot(x, wasm_f32x4_eq(m, splat(-INFINITE)));
        }
        store4(ds + j, x);
    }
}

/* Probabilities and gradients of the scores for the rows of a tile, and what they add to dq. */
static span gradient_tile(const head_gradient *g, const gradient_blocks *b, int32_t row, int32_t rows, int32_t first_key,
                          int32_t keys, const float *key_tops, float *p, float *ds) {
    const head *h = &g->h;
    float floor = INFINITE, bound = 0;
    for (int32_t i = 0; i < rows; i++) floor = floor < g->top[row + i] ? floor : g->top[row + i];
    if (h->mask.x) bound = score_bound(h, row, rows, key_tops);
    span s = active_keys(h, row, rows, first_key, keys, floor - NEGLIGIBLE, bound);
    const float *line[TILE_ROWS];
    bool scores = g->dq || g->dk;
    tile_lines(line, h->q, row, row + rows);
    store_tiles(h->d, line, b->kt + s.first * h->d, h->scale, p + s.first, s.end - s.first);
    tile_lines(line, g->dy, row, row + rows);
    if (scores) store_tiles(h->e, line, b->vt + s.first * h->e, 1, ds + s.first, s.end - s.first);
    float one[TILE_ROWS], unused[WIDTH], *out[TILE_ROWS];
    for (int32_t i = 0; i < TILE_ROWS; i++) {
        line[i] = ds + i * LINE + s.first;
        out[i] = i < rows && g->dq ? g->dq + (row + i) * g->dq_row : unused;
        one[i] = i < rows;
        if (i >= rows) continue;
        const float *mask = h->mask.x ? row_at(h->mask, row + i) + first_key + s.first : 0;
        float *pi = p + i * LINE, *di = ds + i * LINE;
        int32_t n = s.end - s.first, end = s.first + ((n + 3) & ~3);
        probabilities(pi + s.first, mask, h->fill, n, g->top[row + i], g->inverse[row + i]);
        if (scores)
            score_gradients(di + s.first, pi + s.first, g->conditional ? mask : 0, n, g->delta[row + i], h->scale);
        /* Tiles of keys read all rows between the first and the last that they matter to. */
        zero_row(pi, s.first);
        zero_row(pi + end, LINE - end);
        zero_row(di, s.first);
        zero_row(di + end, LINE - end);
    }
    if (g->dq && s.end > s.first)
        add_tiles(s.end - s.first, line, b->k + s.first * TILE_COLS, keys * TILE_COLS, one, out, h->d);
    return s;
}

/* sum[key][...] += p' x for the keys of a block, x being packed in panels; only rows that matter to a tile of keys. */
static void add_to_keys(float *sum, const float *p, const float *x, int32_t width, int32_t rows, int32_t keys,
                        const span *spans) {
    int32_t padded = whole_panels(width);
    for (int32_t key = 0; key < keys; key += TILE_ROWS) {
        int32_t first = rows, end = 0;
        for (int32_t row = 0, t = 0; row < rows; row += TILE_ROWS, t++) {
            if (spans[t].end <= key || spans[t].first >= key + TILE_ROWS) continue;
            first = min_i32(first, row);
            end = min_i32(row + TILE_ROWS, rows);
        }
        if (end <= first) continue;
        add_transposed_tiles(end - first, p + first * LINE + key, x + first * TILE_COLS, rows * TILE_COLS,
                             sum + key * padded, padded);
    }
}

static void copy_rows(float *out, int32_t out_row, const float *x, int32_t rows, int32_t width) {
    for (int32_t i = 0; i < rows; i++) scale_row(out + i * out_row, x + i * whole_panels(width), width, 1);
}

/* Gradients of a block of keys, and what it adds to dq. */
static void gradient_of_keys(const head_gradient *g, const gradient_blocks *b, int32_t key, int32_t keys) {
    const head *h = &g->h;
    matrix k = rows_from(h->k, key), v = rows_from(h->v, key);
    pack_transposed(b->kt, k, keys, h->d);
    pack_transposed(b->vt, v, keys, h->e);
    if (g->dq) pack_panels(b->k, k, keys, h->d);
    zero_row(b->dk, LINE * whole_panels(h->d));
    zero_row(b->dv, LINE * whole_panels(h->e));
    float key_tops[WIDTH];
    if (h->mask.x) column_tops(key_tops, k, keys, h->d);
    for (int32_t first = 0; first < h->m; first += ROWS) {
        int32_t rows = min_i32(ROWS, h->m - first);
        span spans[(ROWS + TILE_ROWS - 1) / TILE_ROWS];
        bool any = false;
        for (int32_t row = 0, t = 0; row < rows; row += TILE_ROWS, t++) {
            spans[t] = gradient_tile(g, b, first + row, min_i32(TILE_ROWS, rows - row), key, keys, key_tops,
                                     b->p + row * LINE, b->ds + row * LINE);
            any |= spans[t].end > spans[t].first;
        }
        if (!any) continue;
        if (g->dv) {
            pack_panels(b->dy, rows_from(g->dy, first), rows, h->e);
            add_to_keys(b->dv, b->p, b->dy, h->e, rows, keys, spans);
        }
        if (g->dk) {
            pack_panels(b->q, rows_from(h->q, first), rows, h->d);
            add_to_keys(b->dk, b->ds, b->q, h->d, rows, keys, spans);
        }
    }
    if (g->dk) copy_rows(g->dk + key * g->dk_row, g->dk_row, b->dk, keys, h->d);
    if (g->dv) copy_rows(g->dv + key * g->dv_row, g->dv_row, b->dv, keys, h->e);
}

static gradient_blocks place_blocks(int32_t d, int32_t e) {
    float *at = thread_scratch();
    gradient_blocks b;
    int32_t dp = whole_panels(d), ep = whole_panels(e);
    b.kt = at, at += KEYS * dp;
    b.vt = at, at += KEYS * ep;
    b.k = at, at += KEYS * dp;
    b.q = at, at += ROWS * dp;
    b.dy = at, at += ROWS * ep;
    b.dk = at, at += LINE * dp;
    b.dv = at, at += LINE * ep;
    b.p = at, at += (ROWS + TILE_ROWS) * LINE;
    b.ds = at;
    return b;
}

typedef struct {
    const attention_gradient_f32_args *a;
    int32_t grain;
} gradient_task;

static void gradient_of_part(const attention_gradient_f32_args *a, int32_t item, int32_t part) {
    head_gradient g = {
        .h = {
            {item_at(a->q, a->q_strides, a->batch, item), a->q_strides[2]},
            {item_at(a->k, a->k_strides, a->batch, item), a->k_strides[2]},
            {item_at(a->v, a->v_strides, a->batch, item), a->v_strides[2]},
            {a->mask ? item_at(a->mask, a->mask_strides, a->batch, item) : 0, a->mask_strides[2]},
            a->m, a->n, a->d, a->e, a->scale, a->fill,
        },
        .y = {item_at(a->y, a->y_strides, a->batch, item), a->y_strides[2]},
        .dy = {item_at(a->dy, a->dy_strides, a->batch, item), a->dy_strides[2]},
        .top = a->top + item * a->m, .inverse = a->inverse + item * a->m,
        .delta = a->delta + (item * a->parts + part) * a->m, .conditional = a->conditional != 0,
    };
    if (a->dk) g.dk = item_at(a->dk, a->dk_strides, a->batch, item), g.dk_row = a->dk_strides[2];
    if (a->dv) g.dv = item_at(a->dv, a->dv_strides, a->batch, item), g.dv_row = a->dv_strides[2];
    if (a->dq && part) g.dq = a->partial + (item * (a->parts - 1) + part - 1) * a->m * a->d, g.dq_row = a->d;
    else if (a->dq) g.dq = item_at(a->dq, a->dq_strides, a->batch, item), g.dq_row = a->dq_strides[2];
    for (int32_t i = 0; i < a->m; i++) {
        g.delta[i] = dot(row_at(g.y, i), row_at(g.dy, i), a->e);
        if (g.dq) zero_row(g.dq + i * g.dq_row, a->d);
    }
    gradient_blocks blocks = place_blocks(a->d, a->e);
    int32_t count = (a->n + KEYS - 1) / KEYS;
    for (int32_t block = part * count / a->parts; block < (part + 1) * count / a->parts; block++)
        gradient_of_keys(&g, &blocks, block * KEYS, min_i32(KEYS, a->n - block * KEYS));
}

static void gradient_chunk(const void *args, int32_t chunk) {
    const gradient_task *task = args;
    int32_t total = task->a->batch[0] * task->a->batch[1] * task->a->parts;
    for (int32_t unit = chunk * task->grain; unit < min_i32((chunk + 1) * task->grain, total); unit++)
        gradient_of_part(task->a, unit / task->a->parts, unit % task->a->parts);
}

/* dq of an item += what the other parts of its keys add. */
static void sum_parts_chunk(const void *args, int32_t item) {
    const attention_gradient_f32_args *a = args;
    float *dq = item_at(a->dq, a->dq_strides, a->batch, item);
    for (int32_t part = 0; part < a->parts - 1; part++) {
        const float *x = a->partial + (item * (a->parts - 1) + part) * a->m * a->d;
        for (int32_t i = 0; i < a->m; i++)
            for (int32_t j = 0; j < a->d; j++) dq[i * a->dq_strides[2] + j] += x[i * a->d + j];
    }
}

int32_t kernel_attention_gradient_f32(const attention_gradient_f32_args *a) {
    int32_t items = a->batch[0] * a->batch[1];
    gradient_task task = {a, items_per_chunk(a->m, a->n / a->parts, 2 * (a->d + a->e))};
    parallel_for(gradient_chunk, &task, chunk_count((int64_t)items * a->parts, task.grain));
    if (a->dq && a->parts > 1) parallel_for(sum_parts_chunk, a, items);
    return TW_OK;
}
