/* Softmax attention without a matrix of scores, after Dao et al., "FlashAttention: Fast and Memory-Efficient Exact
   Attention with IO-Awareness" (2022). Keys are processed in blocks. Each row keeps its largest score and the sum of its
   exponentials, from which the gradient computes the probabilities again.

   Scores that a mask rules out are not computed. The largest |q| and |k| bound the products. If the mask lies so far below
   the rest of a row that all its exponentials are zeros, leaving the scores out changes nothing. Each mask is read once
   for all items that share it. Dropout's factors are drawn when they are needed. Errors are as in the products and in
   softmax.c. */
#include "math.h"
#include "parallel.h"
#include "random.h"
#include "reduce.h"
#include "tile.h"

/* Keys and rows of a block, rows of a task; scores of a row lie LINE apart, so that a tile may read past its end. */
enum { KEYS = ATTENTION_KEYS, ROWS = ATTENTION_ROWS, TASK_ROWS = 2 * ROWS, LINE = KEYS + TILE_COLS };
enum { TILES = (ROWS + TILE_ROWS - 1) / TILE_ROWS };
_Static_assert(TILES <= ATTENTION_TILES, "the spans of a block of rows");
/* Scores so far below the largest have exponentials that are zeros. */
#define NEGLIGIBLE (1 - EXP_NEGLIGIBLE)
/* A mask that lowers a score by this much rules it out, if the products are small enough. */
#define FAR_BELOW 1000.0f
#define INFINITE __builtin_inff()

#define NOINLINE __attribute__((noinline))

enum { WIDTH = ATTENTION_WIDTH };
_Static_assert(4 * (5 * WIDTH * KEYS + 2 * (ROWS + TILE_ROWS) * LINE) <= THREAD_SCRATCH_BYTES, "blocks of a gradient");

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

/* c[i * LINE] = scale * a b for n columns, whose panels lie one after the other. */
static NOINLINE void store_tiles(int32_t k, const float *const a[TILE_ROWS], const float *b, float scale, float *c,
                                 int32_t n) {
    for (int32_t j = 0; j < n; j += TILE_COLS, b += k * TILE_COLS, c += TILE_COLS) {
        f32x4 acc[TILE_ROWS][2], s = splat(scale);
        tile_product(TILE_ROWS, 2, false, k, a, 1, b, TILE_COLS, acc);
        UNROLL for (int32_t i = 0; i < TILE_ROWS; i++) {
            store4(c + i * LINE, mul4(acc[i][0], s));
            store4(c + i * LINE + 4, mul4(acc[i][1], s));
        }
    }
}

/* c[i] = factor[i] * a b for n columns, whose panels lie `panel` apart; with `add`, c[i] = factor[i] * c[i] + a b. */
TW_INLINE void put_tiles(const bool columns, const bool add, int32_t k, const float *const a[TILE_ROWS], const float *b,
                         int32_t panel, const float *factor, float *const c[TILE_ROWS], int32_t n) {
    for (int32_t col = 0; col < n; col += TILE_COLS, b += panel) {
        f32x4 acc[TILE_ROWS][2];
        tile_product(TILE_ROWS, 2, columns, k, a, LINE, b, TILE_COLS, acc);
        if (col + TILE_COLS <= n) {
            UNROLL for (int32_t i = 0; i < TILE_ROWS; i++) {
                float *p = c[i] + col;
                f32x4 f = load_splat(factor + i);
                store4(p, add ? madd(f, load4(p), acc[i][0]) : mul4(f, acc[i][0]));
                store4(p + 4, add ? madd(f, load4(p + 4), acc[i][1]) : mul4(f, acc[i][1]));
            }
            continue;
        }
        float t[TILE_ROWS][TILE_COLS];
        UNROLL for (int32_t i = 0; i < TILE_ROWS; i++) {
            store4(t[i], acc[i][0]);
            store4(t[i] + 4, acc[i][1]);
        }
        for (int32_t i = 0; i < TILE_ROWS; i++)
            for (int32_t j = col; j < n; j++)
                c[i][j] = add ? factor[i] * c[i][j] + t[i][j - col] : factor[i] * t[i][j - col];
    }
}

#define PUT_TILES(name, columns, add)                                                                               \
    static NOINLINE void name(int32_t k, const float *const a[TILE_ROWS], const float *b, int32_t panel,             \
                              const float *factor, float *const c[TILE_ROWS], int32_t n) {                           \
        put_tiles(columns, add, k, a, b, panel, factor, c, n);                                                       \
    }
PUT_TILES(set_rows, false, false)
PUT_TILES(add_rows, false, true)
PUT_TILES(set_columns, true, false) /* a is [k][LINE] */
PUT_TILES(add_columns, true, true)

static const float ones[] = {1, 1, 1, 1, 1, 1};
_Static_assert(sizeof ones >= TILE_ROWS * sizeof *ones, "a factor for each row");

/* Addresses of the rows of a tile; those past the end repeat the last. */
TW_INLINE void tile_lines(const float *line[TILE_ROWS], matrix a, int32_t first, int32_t rows) {
    for (int32_t i = 0; i < TILE_ROWS; i++) line[i] = row_at(a, min_i32(first + i, rows - 1));
}

/* ---- one head ---- */

/* Panels of a block of keys that matter to the rows of a tile, and the masked ones among them. */
typedef struct {
    uint8_t first, end, mask_first, mask_end;
} key_span;

/* Effect of a mask on ROWS rows: it lowers all scores outside of the spans by at least `gap`; [TILES][blocks of keys]. */
typedef struct {
    float gap;
    key_span spans[];
} mask_rows;

/* The masks of a kernel's items. */
typedef struct {
    const float *x; /* null: none */
    const int32_t *batch, *strides;
    int32_t m, n;
    float fill;
    int32_t *records; /* of each mask and each ROWS of its rows */
} mask_table;

/* One item of the batch, a head of queries: q [m, d], k [n, d], v [n, e], mask [m, n] or null. */
typedef struct {
    matrix q, k, v, mask;
    int32_t m, n, d, e;
    float scale, fill; /* a score where the mask is -infinity */
    const int32_t *records;
    float bound; /* no score without its mask is larger */
    const dropout_numbers *dropout; /* null: none */
    int64_t first_score;            /* of all items' */
} head;

/* Keys or values of an item, which it shares with the others of its group. */
TW_INLINE float *shared_at(const float *x, const int32_t strides[3], const int32_t batch[2], int32_t group, int32_t item) {
    return (float *)x + item / batch[1] * strides[0] + item % batch[1] / group * strides[1];
}

TW_INLINE float *item_at(const float *x, const int32_t strides[3], const int32_t batch[2], int32_t item) {
    return shared_at(x, strides, batch, 1, item);
}

/* mask + score, or `fill` where the mask is -infinity. */
TW_INLINE f32x4 masked(f32x4 score, f32x4 mask, float fill) {
    return select4(wasm_f32x4_eq(mask, splat(-INFINITE)), splat(fill), add4(score, mask));
}

TW_INLINE int32_t panels_of(int32_t keys) { return (keys + TILE_COLS - 1) / TILE_COLS; }

/* ---- what masks rule out ---- */

TW_INLINE int32_t key_blocks(int32_t n) { return (n + KEYS - 1) / KEYS; }
TW_INLINE int32_t record_words(int32_t n) { return 1 + TILES * key_blocks(n); }
TW_INLINE int32_t row_blocks(int32_t m) { return (m + ROWS - 1) / ROWS; }
TW_INLINE int32_t mask_dim(const mask_table *t, int32_t dim) { return t->strides[dim] ? t->batch[dim] : 1; }

/* Records of the mask of an item. */
static const int32_t *records_of(const mask_table *t, int32_t item) {
    int32_t outer = item / t->batch[1] % mask_dim(t, 0), inner = item % t->batch[1] % mask_dim(t, 1);
    return t->records + (outer * mask_dim(t, 1) + inner) * row_blocks(t->m) * record_words(t->n);
}

/* Largest number of a panel of the mask, `fill` standing for -infinity; NaN if there is one. */
static float panel_top(matrix mask, int32_t rows, int32_t cols, float fill, bool *zeros) {
    f32x4 top = splat(fill), any = splat(0);
    for (int32_t i = 0; i < rows; i++) {
        const float *x = row_at(mask, i);
        for (int32_t j = 0; j < cols; j += 4) {
            f32x4 v = j + 4 <= cols ? load4(x + j) : select4(first_lanes(cols - j), load_part(x + j, cols - j), splat(fill));
            any = wasm_v128_or(any, j + 4 <= cols ? v : load_part(x + j, cols - j));
            top = wasm_f32x4_max(top, v);
        }
    }
    *zeros = !wasm_v128_any_true(wasm_i32x4_shl(any, 1)); /* of either sign */
    return hmax(top);
}

/* The spans of the rows of a tile, whose mask starts at `mask`; returns the least that the rest is masked by. */
static float find_spans(key_span *spans, matrix mask, int32_t rows, int32_t n, float fill) {
    float floor = INFINITE, gap = INFINITE;
    for (int32_t i = 0; i < rows; i++) {
        float top = max_row(row_at(mask, i), n);
        if (top == -INFINITE) top = fill;
        floor = top < floor ? top : floor;
    }
    for (int32_t key = 0; key < n; key += KEYS) {
        int32_t panels = panels_of(min_i32(KEYS, n - key));
        key_span s = {(uint8_t)panels, 0, (uint8_t)panels, 0};
        float below[KEYS / TILE_COLS];
        for (int32_t j = 0; j < panels; j++) {
            int32_t at = key + j * TILE_COLS;
            bool zeros;
            matrix panel = {mask.x + at, mask.row};
            below[j] = floor - panel_top(panel, rows, min_i32(TILE_COLS, n - at), fill, &zeros);
            if (below[j] >= FAR_BELOW) continue;
            if (s.end == 0) s.first = (uint8_t)j;
            s.end = (uint8_t)(j + 1);
            if (zeros) continue;
            if (s.mask_end == 0) s.mask_first = (uint8_t)j;
            s.mask_end = (uint8_t)(j + 1);
        }
        for (int32_t j = 0; j < panels; j++) {
            if (j < s.first || j >= s.end) gap = below[j] < gap ? below[j] : gap;
            else if (below[j] >= FAR_BELOW) s.mask_first = s.first, s.mask_end = s.end;
        }
        spans[key / KEYS] = s;
    }
    return gap;
}

static void describe_masks(const void *args, int64_t lo, int64_t hi) {
    const mask_table *t = args;
    int32_t blocks = row_blocks(t->m);
    for (int32_t unit = (int32_t)lo; unit < hi; unit++) {
        int32_t index = unit / blocks, first = unit % blocks * ROWS, rows = min_i32(ROWS, t->m - first);
        const float *x = t->x + index / mask_dim(t, 1) * t->strides[0] + index % mask_dim(t, 1) * t->strides[1];
        mask_rows *record = (mask_rows *)(t->records + unit * record_words(t->n));
        record->gap = INFINITE;
        for (int32_t row = 0, tile = 0; row < rows; row += TILE_ROWS, tile++) {
            matrix mask = rows_from((matrix){x, t->strides[2]}, first + row);
            key_span *spans = record->spans + tile * key_blocks(t->n);
            float gap = find_spans(spans, mask, min_i32(TILE_ROWS, rows - row), t->n, t->fill);
            record->gap = gap < record->gap ? gap : record->gap;
        }
    }
}

/* Read all masks, before any item is worked on. */
static void prepare_masks(const mask_table *t) {
    int64_t blocks = (int64_t)mask_dim(t, 0) * mask_dim(t, 1) * row_blocks(t->m);
    if (t->x) parallel_ranges(describe_masks, t, blocks, units_per_chunk(ROWS * (int64_t)t->n));
}

/* Largest |x|, NaN if there is one. */
static float largest_of(matrix a, int32_t rows, int32_t width) {
    v128_t top = splat(0), other = top; /* as integers: in their order NaN is above infinity */
    for (int32_t i = 0; i < rows; i++) {
        const float *x = row_at(a, i);
        int32_t j = 0;
        for (; j + 8 <= width; j += 8) {
            top = wasm_i32x4_max(top, wasm_f32x4_abs(load4(x + j)));
            other = wasm_i32x4_max(other, wasm_f32x4_abs(load4(x + j + 4)));
        }
        for (; j < width; j += 4)
            top = wasm_i32x4_max(top, wasm_f32x4_abs(load_some(x + j, width - j)));
    }
    return hmax(wasm_i32x4_max(top, other));
}

/* No score of these rows is larger than this without its mask, roundings included. */
static float score_bound(const head *h, int32_t first, int32_t rows) {
    float q = largest_of(rows_from(h->q, first), rows, h->d), k = largest_of(h->k, h->n, h->d);
    return 1.001f * (float)h->d * __builtin_fabsf(h->scale) * q * k;
}

/* The keys of a block that matter to the tile of rows from `row` on; none where `end` is no larger than `first`. */
static key_span keys_of_tile(const head *h, int32_t row, int32_t first_key, int32_t keys) {
    uint8_t panels = (uint8_t)panels_of(keys);
    if (!h->mask.x) return (key_span){0, panels, 0, 0};
    const mask_rows *record = (const mask_rows *)(h->records + row / ROWS * record_words(h->n));
    if (!(2 * h->bound + NEGLIGIBLE < record->gap)) return (key_span){0, panels, 0, panels};
    key_span s = record->spans[row % ROWS / TILE_ROWS * key_blocks(h->n) + first_key / KEYS];
    /* A plan that is not to be trusted may let results lie where the spans do. */
    return (key_span){s.first, s.end < panels ? s.end : panels, s.mask_first, s.mask_end < panels ? s.mask_end : panels};
}

/* scores[i][j] = mask + score, for the rows of a tile and columns [first, end) of its block of keys. */
static void add_mask(const head *h, float *scores, int32_t row, int32_t rows, int32_t first_key, int32_t first,
                     int32_t end) {
    for (int32_t i = 0; i < rows; i++) {
        const float *mask = row_at(h->mask, row + i) + first_key;
        float *p = scores + i * LINE;
        for (int32_t j = first; j < end; j += 4) {
            int32_t left = h->n - first_key - j;
            if (left <= 0) break;
            store4(p + j, masked(load4(p + j), load_some(mask + j, left), h->fill));
        }
    }
}

/* Scores of a tile of rows with the panels of a span, masked; past the last key they are -infinity. */
static void score_tile(const head *h, float *scores, int32_t row, int32_t rows, int32_t first_key, int32_t keys, key_span s,
                       const float *packed_k) {
    const float *line[TILE_ROWS];
    int32_t first = s.first * TILE_COLS, end = s.end * TILE_COLS;
    tile_lines(line, h->q, row, row + rows);
    store_tiles(h->d, line, packed_k + first * h->d, h->scale, scores + first, end - first);
    if (s.mask_end) add_mask(h, scores, row, rows, first_key, s.mask_first * TILE_COLS, s.mask_end * TILE_COLS);
    for (int32_t i = 0; i < TILE_ROWS; i++)
        for (int32_t j = keys; j < end; j++) scores[i * LINE + j] = -INFINITE;
}

/* ---- dropout of the probabilities ---- */

/* Factors of the scores of a tile, n from the key `first` on. */
typedef struct {
    const float *line[TILE_ROWS];
    float space[TILE_ROWS][KEYS + DROPOUT_SLACK];
} dropout_tile;

static NOINLINE void draw_dropout(dropout_tile *t, const head *h, int32_t row, int32_t rows, int32_t first, int32_t n) {
    for (int32_t i = 0; i < rows; i++)
        t->line[i] = dropout_factors(h->dropout, h->first_score + (int64_t)(row + i) * h->n + first, n, t->space[i]);
}

static NOINLINE void drop_out(const dropout_tile *t, float *x, int32_t rows, int32_t n) {
    for (int32_t i = 0; i < rows; i++, x += LINE)
        for (int32_t j = 0; j < n; j += 4) store4(x + j, mul4(load4(x + j), load4(t->line[i] + j)));
}

/* ---- forward ---- */

/* The values that the rows of a tile keep from block to block. */
typedef struct {
    float top[TILE_ROWS], sum[TILE_ROWS];
    bool any; /* block was there */
} row_state;

/* n scores, whole panels, of each row become e^(score - top); factor: what the results so far must be multiplied by. */
static NOINLINE void exp_tile(float *p, int32_t n, row_state *state, float *factor) {
    int32_t row = 0;
    do {
        f32x4 largest = splat(-INFINITE), other = largest, total = splat(0), more = total;
        int32_t j = 0;
        do {
            largest = wasm_f32x4_pmax(largest, load4(p + j));
            other = wasm_f32x4_pmax(other, load4(p + j + 4));
        } while ((j += TILE_COLS) < n);
        float new_top = hmax(wasm_f32x4_pmax(largest, other)), old_top = state->top[row];
        if (!(new_top > old_top)) new_top = old_top;
        /* Rows that have only seen -infinity so far must not become NaN: a finite score may follow. */
        float shift = new_top == -INFINITE ? 0 : new_top;
        j = 0;
        do {
            f32x4 e = exp4_negative(sub4(load4(p + j), splat(shift)));
            store4(p + j, e);
            total = add4(total, e);
            e = exp4_negative(sub4(load4(p + j + 4), splat(shift)));
            store4(p + j + 4, e);
            more = add4(more, e);
        } while ((j += TILE_COLS) < n);
        factor[row] = old_top == shift ? 1 : old_top == -INFINITE ? 0 : exp1(old_top - shift);
        state->sum[row] = state->sum[row] * factor[row] + hsum(add4(total, more));
        state->top[row] = new_top;
        p += LINE;
    } while (++row < TILE_ROWS);
}

/* One block of keys for the rows of a tile. */
static void attend_tile(const head *h, int32_t row, int32_t rows, int32_t first_key, int32_t keys, const float *packed_k,
                        const float *packed_v, row_state *state, matrix y) {
    key_span s = keys_of_tile(h, row, first_key, keys);
    if (s.end <= s.first) return;
    int32_t first = s.first * TILE_COLS, count = min_i32(s.end * TILE_COLS, keys) - first;
    float p[TILE_ROWS * LINE], factor[TILE_ROWS], unused[WIDTH];
    const float *line[TILE_ROWS];
    float *out[TILE_ROWS];
    score_tile(h, p, row, rows, first_key, keys, s, packed_k);
    exp_tile(p + first, (s.end - s.first) * TILE_COLS, state, factor);
    if (h->dropout) {
        dropout_tile t;
        draw_dropout(&t, h, row, rows, first_key + first, count);
        drop_out(&t, p + first, rows, count);
    }
    for (int32_t i = 0; i < TILE_ROWS; i++) {
        line[i] = p + i * LINE + first;
        out[i] = i < rows ? (float *)row_at(y, row + i) : unused;
        if (h->n <= KEYS) factor[i] = 1 / state->sum[i];
    }
    const float *v = packed_v + first * TILE_COLS;
    if (h->n <= KEYS) set_rows(count, line, v, keys * TILE_COLS, factor, out, h->e);
    else if (!state->any) set_rows(count, line, v, keys * TILE_COLS, ones, out, h->e);
    else add_rows(count, line, v, keys * TILE_COLS, factor, out, h->e);
    state->any = true;
}

typedef struct {
    const attention_f32_args *a;
    mask_table masks;
    dropout_numbers dropout;
    int32_t blocks; /* of TASK_ROWS of an item */
} forward_task;

TW_INLINE row_state *state_of(row_state *states, int32_t row) {
    return states + row / ROWS * TILES + row % ROWS / TILE_ROWS;
}

static void attend_block(const forward_task *task, int32_t item, int32_t block) {
    const attention_f32_args *a = task->a;
    head h = {
        {item_at(a->q, a->q_strides, a->batch, item), a->q_strides[2]},
        {shared_at(a->k, a->k_strides, a->batch, a->group, item), a->k_strides[2]},
        {shared_at(a->v, a->v_strides, a->batch, a->group, item), a->v_strides[2]},
        {a->mask ? item_at(a->mask, a->mask_strides, a->batch, item) : 0, a->mask_strides[2]},
        a->m, a->n, a->d, a->e, a->scale, a->fill, records_of(&task->masks, item), 0,
        a->state ? &task->dropout : 0, (int64_t)item * a->m * a->n,
    };
    matrix y = {item_at(a->y, a->y_strides, a->batch, item), a->y_strides[2]};
    int32_t first = block * TASK_ROWS, end = min_i32(first + TASK_ROWS, a->m);
    row_state states[2 * TILES];
    if (a->mask) h.bound = score_bound(&h, first, end - first);
    for (int32_t t = 0; t < 2 * TILES; t++) {
        for (int32_t i = 0; i < TILE_ROWS; i++) states[t].top[i] = -INFINITE, states[t].sum[i] = 0;
        states[t].any = false;
    }
    float *packed_k = thread_scratch(), *packed_v = packed_k + KEYS * a->d;
    for (int32_t key = 0; key < a->n; key += KEYS) {
        int32_t keys = min_i32(KEYS, a->n - key);
        pack_transposed(packed_k, rows_from(h.k, key), keys, a->d);
        pack_panels(packed_v, rows_from(h.v, key), keys, a->e);
        for (int32_t start = first; start < end; start += ROWS) {
            for (int32_t row = start, last = min_i32(start + ROWS, end); row < last; row += TILE_ROWS) {
                row_state *state = state_of(states, row - first);
                attend_tile(&h, row, min_i32(TILE_ROWS, last - row), key, keys, packed_k, packed_v, state, y);
            }
        }
    }
    for (int32_t row = first; row < end; row++) {
        const row_state *state = state_of(states, row - first);
        int32_t i = row % ROWS % TILE_ROWS;
        float inverse = 1 / state->sum[i];
        float *out = (float *)row_at(y, row), top = state->top[i];
        if (a->guarded && !(state->sum[i] > 0)) {
            /* The gradient then has probabilities of zero, too. */
            zero_row(out, a->e);
            top = inverse = 0;
        } else if (a->n > KEYS) {
            scale_row(out, out, a->e, inverse);
        }
        if (a->top) a->top[item * a->m + row] = top;
        if (a->inverse) a->inverse[item * a->m + row] = inverse;
    }
}

static void attend_chunk(const void *args, int64_t lo, int64_t hi) {
    const forward_task *task = args;
    for (int32_t unit = (int32_t)lo; unit < hi; unit++)
        attend_block(task, unit / task->blocks, unit % task->blocks);
}

/* Multiply-adds take about as long as 1/16 of the elements of cheap work. */
static int32_t items_per_chunk(int64_t rows, int64_t n, int64_t width) { return units_per_chunk(rows * n * width / 16); }

int32_t kernel_attention_f32(const attention_f32_args *a) {
    int32_t blocks = (a->m + TASK_ROWS - 1) / TASK_ROWS;
    forward_task task = {
        .a = a, .masks = {a->mask, a->batch, a->mask_strides, a->m, a->n, a->fill, a->spans}, .blocks = blocks,
    };
    int32_t status = a->state ? start_dropout(&task.dropout, a->state, a->salt, a->draw, a->ratio) : TW_OK;
    if (status != TW_OK) return status;
    prepare_masks(&task.masks);
    int32_t grain = items_per_chunk(min_i32(a->m, TASK_ROWS), a->n, a->d + a->e);
    parallel_ranges(attend_chunk, &task, (int64_t)a->batch[0] * a->batch[1] * blocks, grain);
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
    float *delta; /* [m]: scale * sum of dy * y */
    bool conditional; /* the mask stands for a condition: no gradient goes through where it is -infinity */
    bool first; /* of its group: the others add to its dk and dv */
} head_gradient;

/* Blocks in thread_scratch; p and ds are [ROWS][LINE]. */
typedef struct {
    float *kt, *vt, *k, *q, *dy, *p, *ds;
} gradient_blocks;

static float dot(const float *x, const float *y, int32_t n) {
    f32x4 total = splat(0);
    float tail = 0;
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) total = madd(load4(x + i), load4(y + i), total);
    for (; i < n; i++) tail += x[i] * y[i];
    return hsum(total) + tail;
}

/* p = e^(score - top) / sum and ds = p (ds - delta) for n columns, whole panels, of the rows of a tile. */
static NOINLINE void gradient_of_scores(float *p, float *ds, int32_t n, int32_t rows, const float *top, const float *inverse,
                                        const float *delta) {
    do {
        f32x4 t = load_splat(top), f = load_splat(inverse), d = load_splat(delta);
        int32_t j = 0;
        do {
            f32x4 x = mul4(exp4_negative(sub4(load4(p + j), t)), f);
            store4(p + j, x);
            store4(ds + j, mul4(x, sub4(load4(ds + j), d)));
        } while ((j += 4) < n);
        p += LINE, ds += LINE, top++, inverse++, delta++;
    } while (--rows);
}

/* No gradient where the mask is -infinity: even if p is NaN. */
static void clear_hidden(const head *h, float *ds, int32_t row, int32_t rows, int32_t first_key, int32_t first,
                         int32_t end) {
    for (int32_t i = 0; i < rows; i++) {
        const float *mask = row_at(h->mask, row + i) + first_key;
        for (int32_t j = first; j < min_i32(end, h->n - first_key); j++)
            if (mask[j] == -INFINITE) ds[i * LINE + j] = 0;
    }
}

/* Probabilities and gradients of the scores for the rows of a tile, and what they add to dq. */
static key_span gradient_tile(const head_gradient *g, const gradient_blocks *b, int32_t row, int32_t rows, int32_t first_key,
                              int32_t keys, float *p, float *ds) {
    const head *h = &g->h;
    key_span s = keys_of_tile(h, row, first_key, keys);
    if (s.end <= s.first) s.first = s.end = 0;
    int32_t first = s.first * TILE_COLS, end = s.end * TILE_COLS;
    const float *line[TILE_ROWS];
    /* Tiles of keys read all rows between the first and the last that they matter to. */
    for (int32_t i = 0; i < rows; i++) {
        zero_row(p + i * LINE, first), zero_row(p + i * LINE + end, LINE - end);
        zero_row(ds + i * LINE, first), zero_row(ds + i * LINE + end, LINE - end);
    }
    if (!end) return s;
    score_tile(h, p, row, rows, first_key, keys, s, b->kt);
    if (g->dq || g->dk) {
        tile_lines(line, g->dy, row, row + rows);
        store_tiles(h->e, line, b->vt + first * h->e, h->scale, ds + first, end - first);
    }
    dropout_tile t;
    if (h->dropout) {
        draw_dropout(&t, h, row, rows, first_key + first, end - first);
        drop_out(&t, ds + first, rows, end - first);
    }
    gradient_of_scores(p + first, ds + first, end - first, rows, g->top + row, g->inverse + row, g->delta + row);
    if (h->dropout) drop_out(&t, p + first, rows, end - first);
    if (g->conditional) clear_hidden(h, ds, row, rows, first_key, s.mask_first * TILE_COLS, s.mask_end * TILE_COLS);
    if (!g->dq) return s;
    float unused[WIDTH], *out[TILE_ROWS];
    for (int32_t i = 0; i < TILE_ROWS; i++) {
        line[i] = ds + i * LINE + first;
        out[i] = i < rows ? g->dq + (row + i) * g->dq_row : unused;
    }
    const float *packed_k = b->k + first * TILE_COLS;
    (h->n <= KEYS ? set_rows : add_rows)(min_i32(end, keys) - first, line, packed_k, keys * TILE_COLS, ones, out, h->d);
    return s;
}

/* out[key][...] = p' x for the keys of a block, x being packed in panels; only rows that matter to a tile of keys. */
static void put_keys(bool store, float *out, int32_t out_row, const float *p, const float *x, int32_t width, int32_t rows,
                     int32_t keys, const key_span *spans) {
    float unused[WIDTH];
    for (int32_t key = 0; key < keys; key += TILE_ROWS) {
        int32_t first = rows, end = 0;
        for (int32_t row = 0, t = 0; row < rows; row += TILE_ROWS, t++) {
            if (spans[t].end * TILE_COLS <= key || spans[t].first * TILE_COLS >= key + TILE_ROWS) continue;
            first = min_i32(first, row);
            end = min_i32(row + TILE_ROWS, rows);
        }
        if (end <= first && !store) continue;
        float *line[TILE_ROWS];
        for (int32_t i = 0; i < TILE_ROWS; i++) line[i] = key + i < keys ? out + (key + i) * out_row : unused;
        const float *a = p + first * LINE + key, *b = x + first * TILE_COLS;
        int32_t count = max_i32(end - first, 0); /* none: zeros are stored */
        (store ? set_columns : add_columns)(count, &a, b, rows * TILE_COLS, ones, line, width);
    }
}

/* Gradients of a block of keys, and what it adds to dq. */
static void gradient_of_keys(const head_gradient *g, const gradient_blocks *b, int32_t key, int32_t keys) {
    const head *h = &g->h;
    matrix k = rows_from(h->k, key), v = rows_from(h->v, key);
    float *dk = g->dk ? g->dk + key * g->dk_row : 0, *dv = g->dv ? g->dv + key * g->dv_row : 0;
    pack_transposed(b->kt, k, keys, h->d);
    if (g->dq || dk) pack_transposed(b->vt, v, keys, h->e);
    if (g->dq) pack_panels(b->k, k, keys, h->d);
    bool store = g->first && h->m <= ROWS;
    for (int32_t i = 0; g->first && !store && i < keys; i++) {
        if (dk) zero_row(dk + i * g->dk_row, h->d);
        if (dv) zero_row(dv + i * g->dv_row, h->e);
    }
    for (int32_t first = 0; first < h->m; first += ROWS) {
        int32_t rows = min_i32(ROWS, h->m - first);
        key_span spans[TILES];
        bool any = store;
        for (int32_t row = 0, t = 0; row < rows; row += TILE_ROWS, t++) {
            int32_t count = min_i32(TILE_ROWS, rows - row);
            spans[t] = gradient_tile(g, b, first + row, count, key, keys, b->p + row * LINE, b->ds + row * LINE);
            any |= spans[t].end > spans[t].first;
        }
        if (!any) continue;
        if (dv) {
            pack_panels(b->dy, rows_from(g->dy, first), rows, h->e);
            put_keys(store, dv, g->dv_row, b->p, b->dy, h->e, rows, keys, spans);
        }
        if (dk) {
            pack_panels(b->q, rows_from(h->q, first), rows, h->d);
            put_keys(store, dk, g->dk_row, b->ds, b->q, h->d, rows, keys, spans);
        }
    }
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
    b.p = at, at += (ROWS + TILE_ROWS) * LINE;
    b.ds = at;
    return b;
}

typedef struct {
    const attention_gradient_f32_args *a;
    mask_table masks;
    dropout_numbers dropout;
} gradient_task;

static void gradient_of_part(const gradient_task *task, int32_t item, int32_t part) {
    const attention_gradient_f32_args *a = task->a;
    head_gradient g = {
        .h = {
            {item_at(a->q, a->q_strides, a->batch, item), a->q_strides[2]},
            {shared_at(a->k, a->k_strides, a->batch, a->group, item), a->k_strides[2]},
            {shared_at(a->v, a->v_strides, a->batch, a->group, item), a->v_strides[2]},
            {a->mask ? item_at(a->mask, a->mask_strides, a->batch, item) : 0, a->mask_strides[2]},
            a->m, a->n, a->d, a->e, a->scale, a->fill, records_of(&task->masks, item), 0,
            a->state ? &task->dropout : 0, (int64_t)item * a->m * a->n,
        },
        .y = {item_at(a->y, a->y_strides, a->batch, item), a->y_strides[2]},
        .dy = {item_at(a->dy, a->dy_strides, a->batch, item), a->dy_strides[2]},
        .top = a->top + item * a->m, .inverse = a->inverse + item * a->m,
        .delta = a->delta + (item * a->parts + part) * a->m, .conditional = a->conditional != 0,
        .first = item % a->group == 0,
    };
    if (a->dk) g.dk = shared_at(a->dk, a->dk_strides, a->batch, a->group, item), g.dk_row = a->dk_strides[2];
    if (a->dv) g.dv = shared_at(a->dv, a->dv_strides, a->batch, a->group, item), g.dv_row = a->dv_strides[2];
    if (a->dq && part) g.dq = a->partial + (item * (a->parts - 1) + part - 1) * a->m * a->d, g.dq_row = a->d;
    else if (a->dq) g.dq = item_at(a->dq, a->dq_strides, a->batch, item), g.dq_row = a->dq_strides[2];
    for (int32_t i = 0; i < a->m; i++) {
        g.delta[i] = a->scale * dot(row_at(g.y, i), row_at(g.dy, i), a->e);
        if (g.dq && a->n > KEYS) zero_row(g.dq + i * g.dq_row, a->d);
    }
    if (a->mask) g.h.bound = score_bound(&g.h, 0, a->m);
    gradient_blocks blocks = place_blocks(a->d, a->e);
    int32_t count = key_blocks(a->n);
    for (int32_t block = part * count / a->parts; block < (part + 1) * count / a->parts; block++)
        gradient_of_keys(&g, &blocks, block * KEYS, min_i32(KEYS, a->n - block * KEYS));
}

static void gradient_chunk(const void *args, int64_t lo, int64_t hi) {
    const gradient_task *task = args;
    int32_t parts = task->a->parts, group = task->a->group;
    for (int32_t unit = (int32_t)lo; unit < hi; unit++)
        for (int32_t item = unit / parts * group, end = item + group; item < end; item++)
            gradient_of_part(task, item, unit % parts);
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
    gradient_task task = {.a = a, .masks = {a->mask, a->batch, a->mask_strides, a->m, a->n, a->fill, a->spans}};
    int32_t grain = items_per_chunk((int64_t)a->m * a->group, a->n / a->parts, 2 * (a->d + a->e));
    int32_t status = a->state ? start_dropout(&task.dropout, a->state, a->salt, a->draw, a->ratio) : TW_OK;
    if (status != TW_OK) return status;
    prepare_masks(&task.masks);
    parallel_ranges(gradient_chunk, &task, (int64_t)items / a->group * a->parts, grain);
    if (a->dq && a->parts > 1) parallel_for(sum_parts_chunk, a, items);
    return TW_OK;
}
