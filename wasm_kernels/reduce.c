/* Reductions over the middle axis of [outer, n, inner].

   Sums: terms within a block of BLOCK one after the other (per lane), block sums pairwise by a binary counter. The
   relative error (of the sum of |x|) is below (20 + log2 n) 2^-24, tested. Max and min let NaN through. */
#include "reduce.h"

#include "math.h"
#include "parallel.h"

enum { ROW_BLOCK = 256, COLUMN_BLOCK = 16, MAX_LEVELS = 28, ROWS = 4 };

/* Maximum that may miss a NaN, for those who meet it elsewhere: one instruction. */
enum { LOOSE_MAX = 16 };

TW_INLINE f32x4 combine(f32x4 a, f32x4 b, int32_t op) {
    if (op == LOOSE_MAX) return wasm_f32x4_pmax(a, b);
    if (op == REDUCE_MAX) return wasm_f32x4_max(a, b);
    if (op == REDUCE_MIN) return wasm_f32x4_min(a, b);
    if (op == REDUCE_PROD) return mul4(a, b);
    return add4(a, b);
}

TW_INLINE float combine1(float a, float b, int32_t op) {
    return wasm_f32x4_extract_lane(combine(splat(a), splat(b), op), 0);
}

TW_INLINE f32x4 prepare(f32x4 x, f32x4 shift, int32_t op) {
    if (op == REDUCE_SUM_SQUARES) return mul4(x, x);
    if (op == REDUCE_SUM_ABS) return wasm_f32x4_abs(x);
    if (op == REDUCE_LOG_SUM_EXP) return exp4(sub4(x, shift));
    return x;
}

TW_INLINE float neutral(int32_t op) {
    if (op == REDUCE_MAX || op == LOOSE_MAX) return -__builtin_inff();
    if (op == REDUCE_MIN) return __builtin_inff();
    return op == REDUCE_PROD ? 1.0f : 0.0f;
}

TW_INLINE float horizontal(f32x4 x, int32_t op) {
    f32x4 half = combine(x, wasm_i32x4_shuffle(x, x, 2, 3, 0, 1), op);
    return wasm_f32x4_extract_lane(combine(half, wasm_i32x4_shuffle(half, half, 1, 0, 3, 2), op), 0);
}

/* At most ROW_BLOCK elements. */
TW_INLINE float reduce_block(const float *x, int32_t n, f32x4 shift, int32_t op) {
    f32x4 start = splat(neutral(op)), s0 = start, s1 = start, s2 = start, s3 = start;
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        s0 = combine(s0, prepare(load4(x + i), shift, op), op);
        s1 = combine(s1, prepare(load4(x + i + 4), shift, op), op);
        s2 = combine(s2, prepare(load4(x + i + 8), shift, op), op);
        s3 = combine(s3, prepare(load4(x + i + 12), shift, op), op);
    }
    for (; i + 4 <= n; i += 4) s0 = combine(s0, prepare(load4(x + i), shift, op), op);
    float s = horizontal(combine(combine(s0, s1, op), combine(s2, s3, op), op), op);
    for (; i < n; i++) s = combine1(s, wasm_f32x4_extract_lane(prepare(splat(x[i]), shift, op), 0), op);
    return s;
}

/* Reduces `count` rows block by block, each `apart` rows below the last. From several places, memory is read faster. */
TW_INLINE void reduce_rows(const float *x, float *y, int32_t n, int32_t count, int64_t apart, f32x4 shift, int32_t op) {
    float stack[MAX_LEVELS][ROWS];
    int32_t top = 0, block = 0;
    do {
        int32_t i = block * ROW_BLOCK, end = i + ROW_BLOCK >= n;
        for (int32_t r = 0; r < count; r++)
            stack[top][r] = reduce_block(x + r * apart * n + i, min_i32(ROW_BLOCK, n - i), shift, op);
        top++;
        for (int32_t bits = end ? -1 : block; bits & 1 && top > 1; bits >>= 1, top--)
            for (int32_t r = 0; r < count; r++) stack[top - 2][r] = combine1(stack[top - 2][r], stack[top - 1][r], op);
    } while (++block * ROW_BLOCK < n);
    for (int32_t r = 0; r < count; r++) y[r * apart] = stack[0][r];
}

TW_INLINE float reduce_row(const float *x, int32_t n, f32x4 shift, int32_t op) {
    float result;
    reduce_rows(x, &result, n, 1, 0, shift, op);
    return result;
}

float sum_row(const float *x, int32_t n) { return reduce_row(x, n, splat(0), REDUCE_SUM); }
float max_row(const float *x, int32_t n) { return reduce_row(x, n, splat(0), LOOSE_MAX); }

static float log_sum_exp_row(const float *x, int32_t n) {
    float top = max_row(x, n);
    float shift = __builtin_fabsf(top) == __builtin_inff() ? 0.0f : top;
    return shift + log1(reduce_row(x, n, splat(shift), REDUCE_LOG_SUM_EXP));
}

/* The last operation on the combined value of n elements. */
TW_INLINE f32x4 finish(f32x4 s, int32_t n, int32_t op) {
    if (op == REDUCE_MEAN) return div4(s, splat((float)n));
    if (op == REDUCE_NORM) return wasm_f32x4_sqrt(s);
    if (op == REDUCE_LOG_SUM) return log4(s);
    return s;
}

static float row_value(const float *x, int32_t n, int32_t op) {
    f32x4 none = splat(0);
    switch (op) {
    case REDUCE_MAX: return reduce_row(x, n, none, REDUCE_MAX);
    case REDUCE_MIN: return reduce_row(x, n, none, REDUCE_MIN);
    case REDUCE_PROD: return reduce_row(x, n, none, REDUCE_PROD);
    case REDUCE_SUM_ABS: return reduce_row(x, n, none, REDUCE_SUM_ABS);
    case REDUCE_LOG_SUM_EXP: return log_sum_exp_row(x, n);
    case REDUCE_NORM:
    case REDUCE_SUM_SQUARES: return wasm_f32x4_extract_lane(finish(splat(reduce_row(x, n, none, REDUCE_SUM_SQUARES)), n, op), 0);
    default: return wasm_f32x4_extract_lane(finish(splat(sum_row(x, n)), n, op), 0);
    }
}

/* ---- columns: tiles of WIDTH vectors, rows in blocks ---- */

enum { TILES = 32 };

typedef struct {
    f32x4 v[4];
} tile;

/* Combines the tiles of the two last levels. */
TW_INLINE void combine_top(tile stack[][TILES], int32_t *top, int32_t count, int32_t width, int32_t op) {
    tile *last = stack[--*top], *below = stack[*top - 1];
    for (int32_t t = 0; t < count; t++)
        for (int32_t k = 0; k < width; k++) below[t].v[k] = combine(below[t].v[k], last[t].v[k], op);
}

/* `lanes` < 4 only for a tile one vector wide. */
TW_INLINE tile column_block(const float *x, int32_t rows, int64_t stride, int32_t width, int32_t lanes, f32x4 shift,
                            int32_t op) {
    tile s;
    for (int32_t k = 0; k < width; k++) s.v[k] = splat(neutral(op));
    for (int32_t r = 0; r < rows; r++, x += stride)
        for (int32_t k = 0; k < width; k++) s.v[k] = combine(s.v[k], prepare(load_some(x + 4 * k, lanes), shift, op), op);
    return s;
}

/* Reduces `count` tiles side by side, block by block: a block of rows is read from left to right, as it lies in memory. */
TW_INLINE void column_tiles(tile *results, const float *x, int32_t rows, int64_t stride, int32_t count, int32_t width,
                            int32_t lanes, f32x4 shift, int32_t op) {
    tile stack[MAX_LEVELS][TILES];
    int32_t top = 0, block = 0;
    do {
        int32_t r = block * COLUMN_BLOCK;
        for (int32_t t = 0; t < count; t++)
            stack[top][t] = column_block(x + r * stride + 4 * width * t, min_i32(COLUMN_BLOCK, rows - r), stride, width, lanes,
                                         shift, op);
        top++;
        for (int32_t bits = block++; bits & 1; bits >>= 1) combine_top(stack, &top, count, width, op);
    } while (block < (rows + COLUMN_BLOCK - 1) / COLUMN_BLOCK);
    while (top > 1) combine_top(stack, &top, count, width, op);
    for (int32_t t = 0; t < count; t++) results[t] = stack[0][t];
}

TW_INLINE tile column_tile(const float *x, int32_t rows, int64_t stride, int32_t width, int32_t lanes, f32x4 shift,
                           int32_t op) {
    tile result;
    column_tiles(&result, x, rows, stride, 1, width, lanes, shift, op);
    return result;
}

/* Sums are worth code for four vectors at a time; the rest make do with one. */
TW_INLINE void columns(const float *x, float *y, int32_t rows, int32_t n_cols, int64_t stride, int32_t op, int32_t end) {
    int32_t c = 0;
    while ((op == REDUCE_SUM || op == REDUCE_SUM_SQUARES) && c + 16 <= n_cols) {
        tile s[TILES];
        int32_t count = min_i32(TILES, (n_cols - c) / 16);
        column_tiles(s, x + c, rows, stride, count, 4, 4, splat(0), op);
        for (int32_t k = 0; k < 4 * count; k++, c += 4) store4(y + c, finish(s[k / 4].v[k % 4], rows, end));
    }
    for (; c < n_cols; c += 4) {
        int32_t lanes = min_i32(4, n_cols - c);
        tile s = column_tile(x + c, rows, stride, 1, lanes, splat(0), op);
        store_some(y + c, finish(s.v[0], rows, end), lanes);
    }
}

static void log_sum_exp_columns(const float *x, float *y, int32_t rows, int32_t n_cols, int64_t stride) {
    for (int32_t c = 0; c < n_cols; c += 4) {
        int32_t lanes = min_i32(4, n_cols - c);
        f32x4 top = column_tile(x + c, rows, stride, 1, lanes, splat(0), REDUCE_MAX).v[0];
        f32x4 shift = select4(wasm_f32x4_eq(wasm_f32x4_abs(top), splat(__builtin_inff())), splat(0), top);
        f32x4 s = column_tile(x + c, rows, stride, 1, lanes, shift, REDUCE_LOG_SUM_EXP).v[0];
        store_some(y + c, add4(shift, log4(s)), lanes);
    }
}

void reduce_columns(const float *x, float *y, int32_t rows, int32_t n_cols, int64_t stride, int32_t op) {
    switch (op) {
    case REDUCE_MAX: columns(x, y, rows, n_cols, stride, REDUCE_MAX, op); break;
    case REDUCE_MIN: columns(x, y, rows, n_cols, stride, REDUCE_MIN, op); break;
    case REDUCE_PROD: columns(x, y, rows, n_cols, stride, REDUCE_PROD, op); break;
    case REDUCE_SUM_ABS: columns(x, y, rows, n_cols, stride, REDUCE_SUM_ABS, op); break;
    case REDUCE_LOG_SUM_EXP: log_sum_exp_columns(x, y, rows, n_cols, stride); break;
    case REDUCE_NORM:
    case REDUCE_SUM_SQUARES: columns(x, y, rows, n_cols, stride, REDUCE_SUM_SQUARES, op); break;
    default: columns(x, y, rows, n_cols, stride, REDUCE_SUM, op); break;
    }
}

/* ---- kernels ---- */

/* Columns that a chunk reduces together. Where a row fills a page, more of them at a time are read faster. */
TW_INLINE int32_t strip_of(const reduce_f32_args *a) {
    return a->inner < 1024 ? 64 : min_i32(a->inner / 4 & -64, 16 * TILES);
}

static void reduce_rows_chunk(const void *args, int64_t lo, int64_t hi) {
    const reduce_f32_args *a = args;
    int64_t apart = a->op == REDUCE_SUM || a->op == REDUCE_SUM_SQUARES ? (hi - lo) / ROWS : 0, r = lo;
    for (; r < lo + apart; r++) {
        const float *x = a->x + r * a->n;
        if (a->op == REDUCE_SUM) reduce_rows(x, a->y + r, a->n, ROWS, apart, splat(0), REDUCE_SUM);
        else reduce_rows(x, a->y + r, a->n, ROWS, apart, splat(0), REDUCE_SUM_SQUARES);
    }
    for (r = lo + ROWS * apart; r < hi; r++) a->y[r] = row_value(a->x + r * a->n, a->n, a->op);
}

static void reduce_columns_chunk(const void *args, int64_t lo, int64_t hi) {
    const reduce_f32_args *a = args;
    int32_t strip = strip_of(a), strips = ceil_div(a->inner, strip);
    for (int64_t unit = lo; unit < hi; unit++) {
        int64_t o = unit / strips;
        int32_t c = (int32_t)(unit % strips) * strip;
        reduce_columns(a->x + o * a->n * a->inner + c, a->y + o * a->inner + c, a->n, min_i32(strip, a->inner - c),
                       a->inner, a->op);
    }
}

int32_t kernel_reduce_f32(const reduce_f32_args *a) {
    if (!a->outer || !a->inner) return TW_OK;
    int32_t strip = strip_of(a), grain = units_per_chunk((int64_t)a->n * min_i32(strip, a->inner));
    if (a->inner == 1) parallel_ranges(reduce_rows_chunk, a, a->outer, grain);
    else parallel_ranges(reduce_columns_chunk, a, (int64_t)a->outer * ceil_div(a->inner, strip), grain);
    return TW_OK;
}

/* For generated code: reduce a chunk that it computed, over the middle axis of [size / (n inner), n, inner]. If n is 0,
   reduce over the first axis of [size / inner, inner]. */
TW_EXPORT(v_reduce) void v_reduce(const float *x, float *y, int32_t size, int32_t n, int32_t inner, int32_t op);
void v_reduce(const float *x, float *y, int32_t size, int32_t n, int32_t inner, int32_t op) {
    if (!n) n = size / inner;
    kernel_reduce_f32(&(reduce_f32_args){.x = x, .y = y, .outer = size / (n * inner), .n = n, .inner = inner, .op = op});
}

#define REDUCE_INT(type)                                                                                   \
    do {                                                                                                   \
        const type *x = (const type *)a->x + o * a->n * a->inner + i;                                      \
        type s = a->op == REDUCE_PROD ? 1 : a->op == REDUCE_SUM ? 0 : *x;                                                \
        for (int64_t k = 0; k < a->n; k++) {                                                               \
            type v = x[k * a->inner];                                                                      \
            s = a->op == REDUCE_SUM ? (type)(s + v) : a->op == REDUCE_PROD ? (type)(s * v) : a->op == REDUCE_MAX ? (v > s ? v : s) \
                                                                                           : (v < s ? v : s); \
        }                                                                                                  \
        ((type *)a->y)[o * a->inner + i] = s;                                                              \
    } while (0)

int32_t kernel_reduce_int(const reduce_int_args *a) {
    if (!a->inner) return TW_OK;
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t i = 0; i < a->inner; i++) {
            if (a->size == 8) REDUCE_INT(int64_t);
            else REDUCE_INT(int32_t);
        }
    return TW_OK;
}

/* True if v replaces the best value so far. */
TW_INLINE int32_t beats(float v, float best, int32_t select_max, int32_t last_index) {
    if (best != best) return last_index && v != v;
    if (v != v) return 1;
    if (v == best) return last_index;
    return select_max ? v > best : v < best;
}

int32_t kernel_arg_reduce_f32(const arg_reduce_f32_args *a) {
    if (!a->inner) return TW_OK;
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t i = 0; i < a->inner; i++) {
            const float *x = a->x + o * a->n * a->inner + i;
            int64_t at = 0;
            for (int64_t k = 1; k < a->n; k++)
                if (beats(x[k * a->inner], x[at * a->inner], a->select_max, a->last_index)) at = k;
            a->y[o * a->inner + i] = at;
        }
    return TW_OK;
}

int32_t kernel_arg_reduce_i64(const arg_reduce_i64_args *a) {
    if (!a->inner) return TW_OK;
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t i = 0; i < a->inner; i++) {
            const int64_t *x = a->x + o * a->n * a->inner + i;
            int64_t at = 0;
            for (int64_t k = 1; k < a->n; k++) {
                int64_t v = x[k * a->inner], best = x[at * a->inner];
                if (v == best ? a->last_index : a->select_max ? v > best : v < best) at = k;
            }
            a->y[o * a->inner + i] = at;
        }
    return TW_OK;
}

/* In double, so that the error does not grow along the axis. */
int32_t kernel_cumsum_f32(const cumsum_f32_args *a) {
    if (!a->n || !a->inner) return TW_OK;
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t i = 0; i < a->inner; i++) {
            int64_t start = o * a->n * a->inner + i;
            double s = 0;
            for (int64_t k = 0; k < a->n; k++) {
                int64_t at = start + (a->reverse ? a->n - 1 - k : k) * a->inner;
                float v = a->x[at];
                if (a->exclusive) a->y[at] = (float)s;
                s += v;
                if (!a->exclusive) a->y[at] = (float)s;
            }
        }
    return TW_OK;
}
