/* Adafactor, in place. The step needs its length first, and the length needs statistics of the whole parameter. So some
   values are computed twice: that is cheaper than to store them.

   Matrices [batch, n, m] are processed in bands of up to BAND rows. Squares are summed in float over few terms, then in
   double or pairwise; relative error of a step below 1e-5, tested against float64. */
#include "math.h"
#include "optim.h"
#include "parallel.h"
#include "reduce.h"

enum { STRIP = 64, BLOCK = 256 };

/* The factors of a step, besides the gradient's statistics. */
typedef struct {
    float mix, rest;  /* shares of new squares and of old ones */
    f32x4 limit;      /* 1 / epsilon, of 1 / sqrt(v) */
    float least_mean; /* epsilon */
    f32x4 keep, scale;
} step_factors;

static step_factors factors_of(const int32_t *state, float beta2_decay, float epsilon) {
    float t = (float)(state_i64(state, STATE_STEP) + 1);
    float mix = wasm_f32x4_extract_lane(pow4(splat(t), splat(beta2_decay)), 0);
    return (step_factors){mix, 1.0f - mix, splat(1.0f / epsilon), epsilon, splat(1), splat(1)};
}

/* `keep` and `scale`, of the sums of squares of w (first) and of the direction u (second). */
static void set_step(step_factors *f, two_sums squares, double n, const int32_t *state, float scale_epsilon,
                     float clip_threshold, float weight_decay) {
    double rate = state_f32(state, STATE_LEARNING_RATE), t = (double)(state_i64(state, STATE_STEP) + 1);
    double size = __builtin_sqrt(squares.first / n), length = __builtin_sqrt(squares.second / n) / (double)clip_threshold;
    double most = 1 / __builtin_sqrt(t);
    if (!(size > scale_epsilon) && size == size) size = scale_epsilon;
    size *= rate < most ? rate : most;
    f->scale = splat((float)(length < 1 ? size : size / length));
    f->keep = splat((float)(1 - rate * (double)weight_decay));
}

TW_INLINE f32x4 load_lanes(const float *p, int32_t lanes) { return lanes == 4 ? load4(p) : load_part(p, lanes); }
TW_INLINE void store_lanes(float *p, f32x4 x, int32_t lanes) {
    if (lanes == 4) store4(p, x);
    else store_part(p, x, lanes);
}

/* ---- matrices ---- */

typedef struct {
    const adafactor_f32_args *a;
    step_factors f;
    int32_t bands;    /* of a matrix */
    int32_t per_chunk; /* bands */
} matrix_task;

typedef struct {
    int64_t matrix;
    int32_t row, rows; /* in the matrix */
    int64_t at;        /* of its first element */
} band;

TW_INLINE band band_of(const matrix_task *t, int64_t unit) {
    const adafactor_f32_args *a = t->a;
    int64_t matrix = unit / t->bands;
    int32_t row = (int32_t)(unit % t->bands) * ADAFACTOR_BAND;
    return (band){matrix, row, min_i32(ADAFACTOR_BAND, a->n - row), (matrix * a->n + row) * a->m};
}

/* Add four squares of a row to the sums of their columns and of the row. */
TW_INLINE f32x4 squares4(f32x4 x, float *c, f32x4 sum, int32_t lanes) {
    store_lanes(c, madd(x, x, load_lanes(c, lanes)), lanes);
    return madd(x, x, sum);
}

/* Sums of the squares of a row of w (first) and of g (second), which are also added to the sums of the columns. Rows go one
   by one, and both matrices at once: memory is fastest when it is read in order, and from two places at a time. */
static two_sums row_squares(const float *w, const float *g, int32_t m, float *c) {
    two_sums total = {0, 0};
    for (int32_t j = 0; j < m;) {
        int32_t end = min_i32(j + BLOCK, m);
        f32x4 s0 = splat(0), s1 = splat(0), w0 = splat(0), w1 = splat(0);
        for (; j + 8 <= end; j += 8) {
            f32x4 x0 = load4(w + j), x1 = load4(w + j + 4);
            w0 = madd(x0, x0, w0);
            w1 = madd(x1, x1, w1);
            s0 = squares4(load4(g + j), c + j, s0, 4);
            s1 = squares4(load4(g + j + 4), c + j + 4, s1, 4);
        }
        for (int32_t lanes; j < end; j += lanes) {
            lanes = min_i32(4, end - j);
            f32x4 x = load_lanes(w + j, lanes);
            w0 = madd(x, x, w0);
            s0 = squares4(load_lanes(g + j, lanes), c + j, s0, lanes);
        }
        total.first += wide_sum(add4(w0, w1));
        total.second += wide_sum(add4(s0, s1));
    }
    return total;
}

/* Averages of a band's rows, and sums of its columns; gives the sum of the squares of w. */
static double band_squares(const matrix_task *t, band b, float *c) {
    const adafactor_f32_args *a = t->a;
    const float *w = a->w + b.at, *g = a->g + b.at;
    float *rows = a->rows + b.matrix * a->n + b.row;
    double share = (double)t->f.mix / a->m, total = 0;
    tw_zero(c, 4 * (size_t)a->m);
    for (int32_t r = 0; r < b.rows; r++, w += a->m, g += a->m) {
        two_sums squares = row_squares(w, g, a->m, c);
        total += squares.first;
        rows[r] = t->f.rest * rows[r] + (float)(share * squares.second);
    }
    return total;
}

/* Averages of columns [from, to), whose sums are in `inverse`, and then there 1 / sqrt of them. */
static void finish_columns(const matrix_task *t, int64_t matrix, int32_t from, int32_t to) {
    const adafactor_f32_args *a = t->a;
    float *columns = a->columns + matrix * a->m, *inverse = a->inverse + matrix * a->m;
    f32x4 rest = splat(t->f.rest), share = splat(t->f.mix / (float)a->n), one = splat(1);
    for (int32_t j = from; j < to; j += 4) {
        int32_t lanes = min_i32(4, to - j);
        f32x4 c = madd(share, load_lanes(inverse + j, lanes), mul4(rest, load_lanes(columns + j, lanes)));
        store_lanes(columns + j, c, lanes);
        store_lanes(inverse + j, div4(one, wasm_f32x4_sqrt(c)), lanes);
    }
}

static void mean_of_rows(const matrix_task *t, int64_t matrix) {
    const adafactor_f32_args *a = t->a;
    float mean = sum_row(a->rows + matrix * a->n, a->n) / (float)a->n;
    a->means[matrix] = mean < t->f.least_mean ? t->f.least_mean : mean;
}

/* The direction of four elements: g / sqrt(v), v being row * column / mean, and at least epsilon^2. */
TW_INLINE f32x4 direction4(f32x4 g, f32x4 row, f32x4 column, f32x4 limit) {
    return mul4(g, wasm_f32x4_pmin(mul4(row, column), limit));
}

/* sqrt(mean / average of the row) */
TW_INLINE f32x4 row_factor(const adafactor_f32_args *a, band b, int32_t r) {
    float row = a->rows[b.matrix * a->n + b.row + r];
    return wasm_f32x4_sqrt(splat(a->means[b.matrix] / row));
}

/* The sum of the squares of the directions of a band. */
static double band_length(const matrix_task *t, band b) {
    const adafactor_f32_args *a = t->a;
    const float *inverse = a->inverse + b.matrix * a->m, *g = a->g + b.at;
    const f32x4 limit = t->f.limit;
    double total = 0;
    for (int32_t r = 0; r < b.rows; r++, g += a->m) {
        f32x4 row = row_factor(a, b, r);
        for (int32_t j = 0; j < a->m;) {
            int32_t end = min_i32(j + BLOCK, a->m);
            f32x4 s0 = splat(0), s1 = splat(0);
            for (; j + 8 <= end; j += 8) {
                f32x4 u0 = direction4(load4(g + j), row, load4(inverse + j), limit);
                f32x4 u1 = direction4(load4(g + j + 4), row, load4(inverse + j + 4), limit);
                s0 = madd(u0, u0, s0);
                s1 = madd(u1, u1, s1);
            }
            for (int32_t lanes; j < end; j += lanes) {
                lanes = min_i32(4, end - j);
                f32x4 u = direction4(load_lanes(g + j, lanes), row, load_lanes(inverse + j, lanes), limit);
                if (lanes < 4) u = wasm_v128_and(u, first_lanes(lanes)); /* beyond them 1 / 0 may be a factor */
                s0 = madd(u, u, s0);
            }
            total += wide_sum(add4(s0, s1));
        }
    }
    return total;
}

/* Statistics; of matrices of one band, which are in the cache then, the length of the step, too. */
static void statistics_chunk(const void *args, int32_t chunk) {
    const matrix_task *t = args;
    const adafactor_f32_args *a = t->a;
    int64_t unit = (int64_t)chunk * t->per_chunk, end = min_i64(unit + t->per_chunk, (int64_t)a->batch * t->bands);
    two_sums sums = {0, 0};
    for (; unit < end; unit++) {
        band b = band_of(t, unit);
        sums.first += band_squares(t, b, t->bands > 1 ? a->partial + unit * a->m : a->inverse + b.matrix * a->m);
        if (t->bands > 1) continue;
        finish_columns(t, b.matrix, 0, a->m);
        mean_of_rows(t, b.matrix);
        sums.second += band_length(t, b);
    }
    put_sums(a->sums, chunk, sums);
}

/* The columns of matrices of several bands. */
static void columns_chunk(const void *args, int32_t chunk) {
    const matrix_task *t = args;
    const adafactor_f32_args *a = t->a;
    int32_t strips = ceil_div(a->m, STRIP), from = chunk % strips * STRIP, to = min_i32(from + STRIP, a->m);
    int64_t matrix = chunk / strips;
    reduce_columns(a->partial + matrix * t->bands * a->m + from, a->inverse + matrix * a->m + from, t->bands, to - from,
                   a->m, REDUCE_SUM);
    finish_columns(t, matrix, from, to);
}

/* Chunks from the end: what the last pass left in the cache comes first. */
static void length_chunk(const void *args, int32_t backwards) {
    const matrix_task *t = args;
    const adafactor_f32_args *a = t->a;
    int64_t units = (int64_t)a->batch * t->bands;
    int32_t chunk = chunk_count(units, t->per_chunk) - 1 - backwards;
    int64_t unit = (int64_t)chunk * t->per_chunk, end = min_i64(unit + t->per_chunk, units);
    two_sums sums;
    tw_copy(&sums, a->sums + 4 * (int64_t)chunk, sizeof sums);
    for (; unit < end; unit++) sums.second += band_length(t, band_of(t, unit));
    put_sums(a->sums, chunk, sums);
}

static void step_of_band(const matrix_task *t, band b) {
    const adafactor_f32_args *a = t->a;
    const float *inverse = a->inverse + b.matrix * a->m, *g = a->g + b.at;
    const f32x4 limit = t->f.limit, keep = t->f.keep, scale = t->f.scale;
    float *w = a->w + b.at;
    for (int32_t r = 0; r < b.rows; r++, g += a->m, w += a->m) {
        f32x4 row = row_factor(a, b, r);
        int32_t j = 0;
        for (; j + 4 <= a->m; j += 4) {
            f32x4 u = direction4(load4(g + j), row, load4(inverse + j), limit);
            store4(w + j, nmadd(scale, u, mul4(keep, load4(w + j))));
        }
        if (j < a->m) {
            int32_t lanes = a->m - j;
            f32x4 u = direction4(load_part(g + j, lanes), row, load_part(inverse + j, lanes), limit);
            store_part(w + j, nmadd(scale, u, mul4(keep, load_part(w + j, lanes))), lanes);
        }
    }
}

static void step_chunk(const void *args, int32_t chunk) {
    const matrix_task *t = args;
    int64_t unit = (int64_t)chunk * t->per_chunk, end = min_i64(unit + t->per_chunk, (int64_t)t->a->batch * t->bands);
    for (; unit < end; unit++) step_of_band(t, band_of(t, unit));
}

int32_t kernel_adafactor_f32(const adafactor_f32_args *a) {
    if (!a->batch || !a->n || !a->m) return TW_OK;
    int64_t size = (int64_t)a->batch * a->n * a->m;
    matrix_task t = {a, factors_of(a->state, a->beta2_decay, a->epsilon), ceil_div(a->n, ADAFACTOR_BAND), 0};
    t.per_chunk = units_per_chunk((int64_t)min_i32(a->n, ADAFACTOR_BAND) * a->m);
    int32_t n_chunks = chunk_count((int64_t)a->batch * t.bands, t.per_chunk);
    parallel_for(statistics_chunk, &t, n_chunks);
    if (t.bands > 1) {
        for (int64_t matrix = 0; matrix < a->batch; matrix++) mean_of_rows(&t, matrix);
        parallel_for(columns_chunk, &t, a->batch * ceil_div(a->m, STRIP));
        parallel_for(length_chunk, &t, n_chunks);
    }
    set_step(&t.f, total_of(a->sums, n_chunks), (double)size, a->state, a->scale_epsilon, a->clip_threshold,
             a->weight_decay);
    parallel_for(step_chunk, &t, n_chunks);
    return TW_OK;
}

/* ---- vectors ---- */

typedef struct {
    const adafactor_vector_f32_args *a;
    step_factors f;
} vector_task;

/* g / sqrt(max(s, epsilon^2)), s being the averages. */
TW_INLINE f32x4 vector_direction(const step_factors *f, f32x4 g, f32x4 s) {
    return mul4(g, wasm_f32x4_pmin(div4(splat(1), wasm_f32x4_sqrt(s)), f->limit));
}

static void vector_statistics_chunk(const void *args, int32_t chunk) {
    const vector_task *t = args;
    const adafactor_vector_f32_args *a = t->a;
    const step_factors f = t->f;
    int32_t start = chunk * GRAIN, end = (int32_t)min_i64((int64_t)start + GRAIN, a->n);
    two_sums sums = {sum_squares(a->w + start, end - start), 0};
    for (int32_t i = start; i < end;) {
        int32_t block_end = min_i32(i + BLOCK, end);
        f32x4 squares = splat(0);
        for (int32_t lanes; i < block_end; i += lanes) {
            lanes = min_i32(4, block_end - i);
            f32x4 g = load_lanes(a->g + i, lanes);
            f32x4 s = madd(mul4(splat(f.mix), g), g, mul4(splat(f.rest), load_lanes(a->s + i, lanes)));
            store_lanes(a->s + i, s, lanes);
            f32x4 u = vector_direction(&f, g, s);
            if (lanes < 4) u = wasm_v128_and(u, first_lanes(lanes));
            squares = madd(u, u, squares);
        }
        sums.second += wide_sum(squares);
    }
    put_sums(a->sums, chunk, sums);
}

static void vector_step_chunk(const void *args, int32_t chunk) {
    const vector_task *t = args;
    const adafactor_vector_f32_args *a = t->a;
    const step_factors f = t->f;
    int32_t i = chunk * GRAIN, end = (int32_t)min_i64((int64_t)i + GRAIN, a->n);
    for (int32_t lanes; i < end; i += lanes) {
        lanes = min_i32(4, end - i);
        f32x4 u = vector_direction(&f, load_lanes(a->g + i, lanes), load_lanes(a->s + i, lanes));
        store_lanes(a->w + i, nmadd(f.scale, u, mul4(f.keep, load_lanes(a->w + i, lanes))), lanes);
    }
}

int32_t kernel_adafactor_vector_f32(const adafactor_vector_f32_args *a) {
    if (!a->n) return TW_OK;
    int32_t n_chunks = chunk_count(a->n, GRAIN);
    vector_task t = {a, factors_of(a->state, a->beta2_decay, a->epsilon)};
    parallel_for(vector_statistics_chunk, &t, n_chunks);
    set_step(&t.f, total_of(a->sums, n_chunks), a->n, a->state, a->scale_epsilon, a->clip_threshold, a->weight_decay);
    parallel_for(vector_step_chunk, &t, n_chunks);
    return TW_OK;
}
