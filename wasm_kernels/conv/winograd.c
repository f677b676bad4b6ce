/* F(4x4, 3x3) of A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016): an output tile of 4x4
   costs 36 products a pair of channels instead of 144. The interpolation points are 0, +-sqrt(1/2), +-sqrt(2) and infinity.
   Their transforms hold no large numbers. The error is about twice the error of a direct sum. Vectors hold 4 channels.

   With stride 2 an axis splits by parity: y[o] = (g0 x[2o] + g2 x[2o+2]) + g1 x[2o+1]. The first two are a convolution of
   stride 1 with two taps, which takes four points and infinity. The third, with one tap, takes the four points, and has one
   weight at all of them. At these points both meet in one product of twice the depth. That makes 9 products an axis and 81
   a tile instead of 144, with 6x6 different weights. In the gradient by the data even outputs come from two taps. Odd
   outputs come from one, which needs no transform. These are 9 products again, which do not meet. */
#include "parallel.h"
#include "tile.h"
#include "view.h"
#include "weight_gradient.h"

enum { TILE = 4, MAX_POINTS = 9, WEIGHTS = 6, SINGLE = WEIGHTS - 1 };
_Static_assert(WEIGHTS * WEIGHTS == WINOGRAD_POINTS, "planes of transformed weights");
/* Kinds of transforms: sources of stride 1 and 2; sources of the data gradient of stride 2 whose tiles begin with an even
   or an odd output; gradients of the outputs of stride 1 and 2, for the gradient by the weights. */
enum { PLAIN, STRIDED, BACK_EVEN, BACK_ODD, OUTPUT, STRIDED_OUTPUT };
#define ROOT 1.41421356237309505f
/* The points of stride 2 are +-NEAR, +-FAR and infinity, near the minimum of the products of two taps and of one. The
   error is a third less than at the points of stride 1. */
#define NEAR 0.4375f
#define FAR 1.375f
#define SPREAD (2 * (FAR * FAR - NEAR * NEAR))

TW_INLINE int32_t ceil4(int32_t n) { return (n + 3) & ~3; }
TW_INLINE f32x4 scaled(float a, f32x4 x) { return mul4(splat(a), x); }
TW_INLINE f32x4 scaled_add(float a, f32x4 x, f32x4 y) { return madd(splat(a), x, y); }

/* ---- the transforms in one dimension ---- */

/* Patch of the source at the points +-a and +-b, of as many taps as there are other points. */
TW_INLINE void finite_transform(const float a, const float b, const f32x4 d[4], f32x4 v[4]) {
    f32x4 even = scaled_add(-b * b, d[1], d[3]), odd = scaled_add(-a * b * b, d[0], scaled(a, d[2]));
    f32x4 even2 = scaled_add(-a * a, d[1], d[3]), odd2 = scaled_add(-a * a * b, d[0], scaled(b, d[2]));
    v[0] = add4(even, odd);
    v[1] = sub4(even, odd);
    v[2] = add4(even2, odd2);
    v[3] = sub4(even2, odd2);
}

/* B'd, of three taps and of two. */
TW_INLINE void patch_transform(const f32x4 d[6], f32x4 v[6]) {
    v[0] = scaled_add(-2.5f, d[2], add4(d[0], d[4]));
    finite_transform(ROOT / 2, ROOT, d + 1, v + 1);
    v[5] = scaled_add(-2.5f, d[3], add4(d[1], d[5]));
}
TW_INLINE void pair_transform(const f32x4 d[5], f32x4 v[5]) {
    finite_transform(NEAR, FAR, d, v);
    v[4] = scaled_add(-(NEAR * NEAR + FAR * FAR), d[2], scaled_add(NEAR * NEAR * FAR * FAR, d[0], d[4]));
}

/* Weights: Gg. */
TW_INLINE void weight_transform(const f32x4 g[3], f32x4 u[6]) {
    f32x4 even = scaled_add(-1.0f / 3, g[2], scaled(-2.0f / 3, g[0])), odd = scaled(ROOT / 3, g[1]);
    f32x4 even2 = scaled_add(1.0f / 3, g[2], scaled(1.0f / 6, g[0])), odd2 = scaled(ROOT / 6, g[1]);
    u[0] = g[0];
    u[1] = sub4(even, odd);
    u[2] = add4(even, odd);
    u[3] = add4(even2, odd2);
    u[4] = sub4(even2, odd2);
    u[5] = g[2];
}

/* Products to outputs: A'm. */
TW_INLINE void output_transform(const f32x4 m[6], f32x4 y[TILE]) {
    f32x4 sum = add4(m[1], m[2]), difference = sub4(m[1], m[2]);
    f32x4 sum2 = add4(m[3], m[4]), difference2 = sub4(m[3], m[4]);
    y[0] = add4(add4(m[0], sum), sum2);
    y[1] = scaled_add(ROOT / 2, difference, scaled(ROOT, difference2));
    y[2] = scaled_add(0.5f, sum, scaled(2, sum2));
    y[3] = scaled_add(ROOT / 4, difference, scaled_add(2 * ROOT, difference2, m[5]));
}

TW_INLINE void pair_output_transform(const f32x4 m[5], f32x4 y[TILE]) {
    f32x4 sum = add4(m[0], m[1]), difference = sub4(m[0], m[1]);
    f32x4 sum2 = add4(m[2], m[3]), difference2 = sub4(m[2], m[3]);
    y[0] = scaled_add(-1 / (NEAR * SPREAD), difference, scaled(1 / (FAR * SPREAD), difference2));
    y[1] = scaled(1 / SPREAD, sub4(sum2, sum));
    y[2] = scaled_add(-NEAR / SPREAD, difference, scaled(FAR / SPREAD, difference2));
    y[3] = scaled_add(-NEAR * NEAR / SPREAD, sum, scaled_add(FAR * FAR / SPREAD, sum2, m[4]));
}

/* Their transposes, for the gradient of the outputs: A dy. */
TW_INLINE void output_gradient_transform(const f32x4 y[TILE], f32x4 m[6]) {
    f32x4 even = scaled_add(0.5f, y[2], y[0]), odd = scaled_add(ROOT / 4, y[3], scaled(ROOT / 2, y[1]));
    f32x4 even2 = scaled_add(2, y[2], y[0]), odd2 = scaled_add(2 * ROOT, y[3], scaled(ROOT, y[1]));
    m[0] = y[0];
    m[1] = add4(even, odd);
    m[2] = sub4(even, odd);
    m[3] = add4(even2, odd2);
    m[4] = sub4(even2, odd2);
    m[5] = y[3];
}

TW_INLINE void pair_output_gradient_transform(const f32x4 y[TILE], f32x4 m[5]) {
    f32x4 even = scaled_add(NEAR / SPREAD, y[2], scaled(1 / (NEAR * SPREAD), y[0]));
    f32x4 odd = scaled_add(NEAR * NEAR / SPREAD, y[3], scaled(1 / SPREAD, y[1]));
    f32x4 even2 = scaled_add(FAR / SPREAD, y[2], scaled(1 / (FAR * SPREAD), y[0]));
    f32x4 odd2 = scaled_add(FAR * FAR / SPREAD, y[3], scaled(1 / SPREAD, y[1]));
    m[0] = sub4(splat(0), add4(even, odd));
    m[1] = sub4(even, odd);
    m[2] = add4(odd2, even2);
    m[3] = sub4(odd2, even2);
    m[4] = y[3];
}

/* The transpose of the transform of the weights: G'u. */
TW_INLINE void weight_gradient_transform(const f32x4 u[6], f32x4 g[3]) {
    f32x4 sum = add4(u[1], u[2]), sum2 = add4(u[3], u[4]);
    g[0] = scaled_add(1.0f / 6, sum2, scaled_add(-2.0f / 3, sum, u[0]));
    g[1] = scaled_add(ROOT / 6, sub4(u[3], u[4]), scaled(ROOT / 3, sub4(u[2], u[1])));
    g[2] = scaled_add(1.0f / 3, sub4(sum2, sum), u[5]);
}

/* ---- one axis of each kind ---- */

#define ROLLED _Pragma("clang loop unroll(disable)")
#define BY_THREE _Pragma("clang loop unroll_count(3)") /* of 6 or 9 */

/* Samples that a tile takes along an axis, sums it makes of them, samples between tiles, outputs of a tile. */
TW_INLINE int32_t samples_of(const int32_t kind) {
    return kind == PLAIN ? 6 : kind == STRIDED ? 9 : kind == BACK_EVEN || kind == BACK_ODD ? 5 : TILE;
}
TW_INLINE int32_t points_of(const int32_t kind) {
    return kind == PLAIN || kind == OUTPUT ? 6 : kind == STRIDED || kind == STRIDED_OUTPUT ? 5 : 9;
}
TW_INLINE int32_t step_of(const int32_t kind) { return kind == STRIDED ? 2 * TILE : TILE; }
TW_INLINE int32_t outputs_of(const int32_t kind) { return kind == BACK_EVEN || kind == BACK_ODD ? 2 * TILE : TILE; }
/* Which of the 6 weights of an axis a product takes. */
TW_INLINE int32_t weight_of(int32_t point) { return point < SINGLE ? point : SINGLE; }

/* Products of an axis that take a sum of samples; the others take one sample each. */
TW_INLINE int32_t sums_of(const int32_t kind) { return kind == PLAIN || kind == OUTPUT ? 6 : 5; }
TW_INLINE int32_t sample_of(const int32_t kind, int32_t single) { return kind == BACK_EVEN ? single + 1 : single; }

/* The sums of the samples at d, d + step, ... */
TW_INLINE void sum_samples(const int32_t kind, const float *d, const int32_t step, f32x4 v[6]) {
    f32x4 in[6];
    UNROLL for (int32_t i = 0; i < samples_of(kind); i++) in[i] = load4(d + i * step);
    if (kind == PLAIN) patch_transform(in, v);
    else if (kind == OUTPUT) output_gradient_transform(in, v);
    else if (kind == STRIDED_OUTPUT) pair_output_gradient_transform(in, v);
    else pair_transform(in, v);
}

/* The 9 samples of STRIDED: sums of the even ones to to[point], of the odd ones `apart` from them; the even ones alone have
   an end. One parity after the other, for all nine samples do not fit into registers. */
TW_INLINE void sum_parities(const float *d, const int32_t step, float *const to[4], int32_t apart, float *end) {
    f32x4 in[5], v[5];
    UNROLL for (int32_t i = 0; i < 5; i++) in[i] = load4(d + 2 * i * step);
    pair_transform(in, v);
    UNROLL for (int32_t i = 0; i < 4; i++) store4(to[i], v[i]);
    store4(end, v[4]);
    UNROLL for (int32_t i = 0; i < 4; i++) in[i] = load4(d + (2 * i + 1) * step);
    finite_transform(NEAR, FAR, in, v);
    UNROLL for (int32_t i = 0; i < 4; i++) store4(to[i] + apart, v[i]);
}

/* The products at m, m + step, ... to outputs. */
TW_INLINE void finish_axis(const int32_t kind, const float *m, const int32_t step, f32x4 y[2 * TILE]) {
    f32x4 in[6], out[TILE];
    UNROLL for (int32_t i = 0; i < sums_of(kind); i++) in[i] = load4(m + i * step);
    if (kind == PLAIN) output_transform(in, out);
    else pair_output_transform(in, out);
    UNROLL for (int32_t i = 0; i < TILE; i++) {
        if (kind == PLAIN || kind == STRIDED) y[i] = out[i];
        else y[2 * i + (kind == BACK_ODD)] = out[i], y[2 * i + (kind == BACK_EVEN)] = load4(m + (5 + i) * step);
    }
}

TW_INLINE void weight_axis(const bool strided, const f32x4 g[3], f32x4 u[WEIGHTS]) {
    if (!strided) {
        weight_transform(g, u);
        return;
    }
    u[0] = scaled_add(NEAR, g[2], g[0]);
    u[1] = scaled_add(-NEAR, g[2], g[0]);
    u[2] = scaled_add(FAR, g[2], g[0]);
    u[3] = scaled_add(-FAR, g[2], g[0]);
    u[4] = g[2];
    u[SINGLE] = g[1];
}

TW_INLINE void weight_gradient_axis(const bool strided, const f32x4 u[WEIGHTS], f32x4 g[3]) {
    if (!strided) {
        weight_gradient_transform(u, g);
        return;
    }
    g[0] = add4(add4(u[0], u[1]), add4(u[2], u[3]));
    g[1] = u[SINGLE];
    g[2] = scaled_add(NEAR, sub4(u[0], u[1]), scaled_add(FAR, sub4(u[2], u[3]), u[4]));
}

/* ---- tiles of a block ---- */

/* Rows of tiles [row0, row0 + rows) of all images times columns of tiles [col0, col0 + cols). */
typedef struct {
    int32_t tiles_y, tiles_x; /* of an image */
    int32_t row0, rows, col0, cols;
} tile_block;

/* One side of the products: its planes, and the place of its transformed tiles, [point][tile][channel]. STRIDED puts the
   factors that meet in a product side by side, [record][tile][odd row][odd column][channel]. There are 16 records of
   points, and 5 of points with one end. (i, end) has the first half of such a record, and (end, i) the second. */
typedef struct {
    const float *x;
    int32_t channel0, channels, total; /* of the images' `total` channels */
    int32_t h, w, pad_y, pad_x;
    float *out;
    int32_t point_stride, tile_stride;
} tile_source;

TW_INLINE int32_t records_of(const int32_t kind) { return kind == STRIDED ? 21 : points_of(kind) * points_of(kind); }
TW_INLINE int32_t parts_of(const int32_t kind) { return kind == STRIDED ? 4 : 1; }

/* One product of a tile: its record, the parts of it that take part, and the plane of weights of each. */
typedef struct {
    int32_t record, first, parts, weight[4];
} point_product;

static point_product product_at(int32_t kind, int32_t point) {
    int32_t points = points_of(kind), y = point / points, x = point % points;
    int32_t weight = weight_of(y) * WEIGHTS + weight_of(x);
    if (kind != STRIDED) return (point_product){point, 0, 1, {weight}};
    int32_t odd_x = weight_of(y) * WEIGHTS + SINGLE, odd_y = SINGLE * WEIGHTS + x;
    if (y < 4 && x < 4) return (point_product){4 * y + x, 0, 4, {weight, odd_x, odd_y, SINGLE * WEIGHTS + SINGLE}};
    if (y < 4) return (point_product){16 + y, 0, 2, {weight, odd_y}};
    if (x < 4) return (point_product){16 + x, 2, 2, {weight, odd_x}};
    return (point_product){20, 0, 1, {weight}};
}

/* Copies the lines of 4 channels that a row of tiles reaches: z[column][line][4]. Places outside the plane are not
   written: they were zeroed for all channels. */
TW_INLINE void interleave(const int32_t kind, const tile_source *s, const tile_block *b, int32_t row, int32_t c,
                          int32_t width, float *z) {
    const int32_t step = step_of(kind), tall = samples_of(kind);
    int32_t from = b->col0 * step - s->pad_x, lo = max_i32(0, -from), hi = min_i32(width, s->w - from);
    int32_t top = row % b->tiles_y * step - s->pad_y, channels = min_i32(4, s->channels - c), plane = s->h * s->w;
    const float *x = s->x + (row / b->tiles_y * s->total + s->channel0 + c) * plane;
    for (int32_t i = max_i32(0, -top); i < tall && top + i < s->h; i++) {
        const float *src = x + (top + i) * s->w + from;
        float *out = z + 4 * i;
        int32_t col = lo;
        if (channels == 4) {
            for (; col + 4 <= hi; col += 4) {
                f32x4 c0 = load4(src + col), c1 = load4(src + plane + col);
                f32x4 c2 = load4(src + 2 * plane + col), c3 = load4(src + 3 * plane + col);
                transpose4(&c0, &c1, &c2, &c3);
                float *to = out + 4 * tall * col;
                store4(to, c0);
                store4(to + 4 * tall, c1);
                store4(to + 8 * tall, c2);
                store4(to + 12 * tall, c3);
            }
        }
        for (; col < hi; col++) {
            for (int32_t k = 0; k < 4; k++) out[4 * tall * col + k] = k < channels ? src[k * plane + col] : 0;
        }
    }
}

/* A line of samples at d, d + step, ... to its products; returns where the next line's go. */
TW_INLINE float *transform_line(const int32_t kind, const float *d, const int32_t step, float *out, int32_t point_stride) {
    f32x4 v[WEIGHTS];
    sum_samples(kind, d, step, v);
    UNROLL for (int32_t j = 0; j < sums_of(kind); j++, out += point_stride) store4(out, v[j]);
    UNROLL for (int32_t j = 0; j < points_of(kind) - sums_of(kind); j++, out += point_stride) {
        store4(out, load4(d + step * sample_of(kind, j)));
    }
    return out;
}

/* The products' side of the tile at z[column][line][4]. */
TW_INLINE void transform_tile(const int32_t kind, const float *z, float *out, int32_t point_stride) {
    const int32_t samples = samples_of(kind), sums = sums_of(kind), singles = points_of(kind) - sums;
    float t[WEIGHTS][4 * WEIGHTS];
    f32x4 v[WEIGHTS];
    BY_THREE for (int32_t j = 0; j < samples; j++) {
        sum_samples(kind, z + 4 * samples * j, 4, v);
        UNROLL for (int32_t i = 0; i < sums; i++) store4(t[i] + 4 * j, v[i]);
    }
    BY_THREE for (int32_t i = 0; i < sums; i++) out = transform_line(kind, t[i], 4, out, point_stride);
    UNROLL for (int32_t i = 0; i < singles; i++) {
        out = transform_line(kind, z + 4 * sample_of(kind, i), 4 * samples, out, point_stride);
    }
}

/* The same with both parities of both axes. */
TW_INLINE void transform_strided_tile(const float *z, float *out, int32_t record_stride, int32_t channels) {
    float t[5][9 * 8]; /* [point][column][parity][4] */
    float *ends = out + 16 * record_stride, *to[4];
    BY_THREE for (int32_t j = 0; j < 9; j++) {
        UNROLL for (int32_t i = 0; i < 4; i++) to[i] = t[i] + 8 * j;
        sum_parities(z + 9 * 4 * j, 4, to, 4, t[4] + 8 * j);
    }
    UNROLL for (int32_t j = 0; j < 4; j++) to[j] = ends + j * record_stride + 2 * channels;
    sum_parities(t[4], 8, to, channels, ends + 4 * record_stride);
    ROLLED for (int32_t i = 0; i < 4; i++, ends += record_stride) {
        UNROLL for (int32_t j = 0; j < 4; j++, out += record_stride) to[j] = out;
        sum_parities(t[i], 8, to, channels, ends);
        UNROLL for (int32_t j = 0; j < 4; j++) to[j] += 2 * channels;
        sum_parities(t[i] + 4, 8, to, channels, ends + channels);
    }
}

/* All tiles and channels of a block, a row of tiles at a time: its lines and results then stay in the first cache. */
TW_INLINE void transform_block(const int32_t kind, const tile_source *s, const tile_block *b, float *z) {
    const int32_t tall = samples_of(kind), step = step_of(kind);
    int32_t width = (b->cols - 1) * step + tall;
    for (int32_t r = 0; r < b->rows; r++) {
        tw_zero(z, 4 * (size_t)(tall * width * 4));
        for (int32_t c = 0; c < s->channels; c += 4) {
            interleave(kind, s, b, b->row0 + r, c, width, z);
            float *out = s->out + r * b->cols * s->tile_stride + c;
            for (int32_t x = 0; x < b->cols; x++, out += s->tile_stride) {
                const float *tile = z + x * step * tall * 4;
                if (kind == STRIDED) transform_strided_tile(tile, out, s->point_stride, s->tile_stride / 4);
                else transform_tile(kind, tile, out, s->point_stride);
            }
        }
    }
}

static void transform(int32_t kind, const tile_source *s, const tile_block *b, float *z) {
    if (kind == PLAIN) transform_block(PLAIN, s, b, z);
    else if (kind == STRIDED) transform_block(STRIDED, s, b, z);
    else if (kind == BACK_EVEN) transform_block(BACK_EVEN, s, b, z);
    else if (kind == BACK_ODD) transform_block(BACK_ODD, s, b, z);
    else if (kind == OUTPUT) transform_block(OUTPUT, s, b, z);
    else transform_block(STRIDED_OUTPUT, s, b, z);
}

/* ---- products ---- */

/* One step of the depth; a is at constant offset u. */
TW_INLINE void product_step(const int32_t rows, const int32_t vecs, const bool in_place, const int32_t u,
                            const float *const line[TILE_ROWS], const float *b, f32x4 acc[TILE_ROWS][2]) {
    f32x4 bv[2];
    UNROLL for (int32_t j = 0; j < vecs; j++) bv[j] = load4(b + 4 * j);
    UNROLL for (int32_t i = 0; i < rows; i++) {
        f32x4 av = load_splat(in_place ? line[i] + u : line[0] + i);
        UNROLL for (int32_t j = 0; j < vecs; j++) {
            acc[i][j] = madd(av, bv[j], acc[i][j]);
            IN_ORDER(acc[i][j]);
        }
    }
}

/* c (+)= sum over p of a(i, p) b(p, j). a(i, p) is a[i * a_row + p] going forward, a[i + p * a_row] in the gradient by
   the weights. Each k steps of the depth have a panel of their own: b(p, j) = b[p / k][p % k * b_row + j]. */
typedef struct {
    int32_t panels, k, a_row, b_row, c_row;
    bool add;
    const float *b[4];
} operands;

/* c[rows][4 * vecs] for `blocks` blocks of rows below each other. Going forward, k is a multiple of 4. */
TW_INLINE void product_tiles(const int32_t rows, const int32_t vecs, const bool in_place, int32_t blocks,
                             const operands *o, const float *a, float *c) {
    const int32_t lines = in_place ? rows : 1, b_row = in_place ? 4 * vecs : o->b_row;
    int32_t a_row = o->a_row, c_row = o->c_row, panels = in_place ? o->panels : 1;
    for (; blocks; blocks--, a += in_place ? rows * a_row : rows, c += rows * c_row) {
        f32x4 acc[TILE_ROWS][2];
        const float *line[TILE_ROWS];
        UNROLL for (int32_t i = 0; i < rows; i++) {
            UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = splat(0);
        }
        if (!in_place && o->add) {
            UNROLL for (int32_t i = 0; i < rows; i++) {
                UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = load4(c + i * c_row + 4 * j);
            }
        }
        UNROLL for (int32_t i = 0; i < lines; i++) line[i] = a + i * a_row;
        for (int32_t n = 0; n < panels; n++) {
            const float *panel = o->b[n];
            int32_t p = o->k;
            for (; p >= 4; p -= 4) {
                UNROLL for (int32_t u = 0; u < 4; u++, panel += b_row) {
                    product_step(rows, vecs, in_place, in_place ? u : 0, line, panel, acc);
                    if (!in_place) line[0] += a_row;
                }
                UNROLL for (int32_t i = 0; i < lines; i++) line[i] += in_place ? 4 : 0;
            }
            for (; !in_place && p; p--, panel += b_row, line[0] += a_row) {
                product_step(rows, vecs, false, 0, line, panel, acc);
            }
        }
        UNROLL for (int32_t i = 0; i < rows; i++) {
            UNROLL for (int32_t j = 0; j < vecs; j++) store4(c + i * c_row + 4 * j, acc[i][j]);
        }
    }
}

#define SIZED_TILE(rows, vecs)                                                                                         \
    static void forward_##rows##_##vecs(int32_t blocks, const operands *o, const float *a, float *c) {                 \
        product_tiles(rows, vecs, true, blocks, o, a, c);                                                              \
    }                                                                                                                  \
    static void gradient_##rows##_##vecs(int32_t blocks, const operands *o, const float *a, float *c) {                \
        product_tiles(rows, vecs, false, blocks, o, a, c);                                                             \
    }
#define ROWS_TILE(rows) SIZED_TILE(rows, 1) SIZED_TILE(rows, 2)
#define ROWS_ENTRY(rows)                                                                                               \
    {{forward_##rows##_2, forward_##rows##_1}, {gradient_##rows##_2, gradient_##rows##_1}}

ROWS_TILE(1)
ROWS_TILE(2)
ROWS_TILE(3)
ROWS_TILE(4)
#ifdef TW_RELAXED
ROWS_TILE(5)
ROWS_TILE(6)
#endif

typedef void (*tile_fn)(int32_t blocks, const operands *o, const float *a, float *c);
static const tile_fn tiles[TILE_ROWS][2][2] = {
    ROWS_ENTRY(1), ROWS_ENTRY(2), ROWS_ENTRY(3), ROWS_ENTRY(4),
#ifdef TW_RELAXED
    ROWS_ENTRY(5), ROWS_ENTRY(6),
#endif
};

/* c[m][4 or 8], by blocks of rows of two heights. */
static void product(bool gradient, bool narrow, int32_t m, const operands *o, const float *a, float *c) {
    row_split s = split_rows(m);
    int32_t row = split_start(&s, s.longer);
    if (s.longer) tiles[s.height][gradient][narrow](s.longer, o, a, c);
    tiles[s.height - 1][gradient][narrow](s.count - s.longer, o, a + (gradient ? row : row * o->a_row), c + row * o->c_row);
}

/* ---- blocks ---- */

/* Transformed sources of a block stay in the second-level cache. The gradient sums over tiles: it wants many at a time. */
enum { BLOCK_FLOATS = 64 << 10, STRIDED_FLOATS = 112 << 10, GRADIENT_FLOATS = 144 << 10, MAX_TILES = 60, MIN_TILES = 8 };
/* Channels of outputs at a time: what their products take stays in the second-level cache, too. */
TW_INLINE int32_t m_block_of(const int32_t kind) { return kind == STRIDED ? 32 : 16; }

/* Blocks that keep all threads busy, unless they would hold too few tiles for what they read of the weights. */
enum { ENOUGH_BLOCKS = 8, FEW_TILES = 16, GRADIENT_FEW_TILES = 32 };

typedef struct {
    int32_t rows, cols, row_blocks, col_blocks;
} tile_split;

/* Blocks of at most `tiles` tiles: whole rows of tiles, or parts of one row. */
static tile_split split_tiles(int32_t n, int32_t tiles_y, int32_t tiles_x, int32_t tiles, int32_t few) {
    tile_split s = {1, tiles_x, 0, 1};
    int32_t rows = n * tiles_y;
    if (tiles_x > tiles) {
        s.col_blocks = ceil_div(tiles_x, tiles);
        s.cols = ceil_div(tiles_x, s.col_blocks);
        s.row_blocks = rows;
        return s;
    }
    int32_t busy = min_i32(ENOUGH_BLOCKS, rows * tiles_x / few);
    s.rows = ceil_div(rows, max_i32(1, max_i32(busy, ceil_div(rows, tiles / tiles_x))));
    s.row_blocks = ceil_div(rows, s.rows);
    return s;
}

static tile_block block_at(const tile_split *s, int32_t n, int32_t tiles_y, int32_t tiles_x, int32_t index) {
    tile_block b = {tiles_y, tiles_x, index / s->col_blocks * s->rows, 0, index % s->col_blocks * s->cols, 0};
    b.rows = min_i32(s->rows, n * tiles_y - b.row0);
    b.cols = min_i32(s->cols, tiles_x - b.col0);
    return b;
}

/* Transformed floats of a channel of a tile. */
static int32_t floats_of(int32_t kind) { return records_of(kind) * parts_of(kind); }

static int32_t tiles_per_block(int32_t tile_floats, int32_t floats) {
    return max_i32(MIN_TILES, min_i32(MAX_TILES, floats / tile_floats));
}

/* ---- weights ---- */

/* Weights u[weight][panel of 8 channels m][c][8]; a last panel of 4 or fewer has [c][4]. */
TW_INLINE void transform_weights(const bool strided, const winograd_weights_f32_args *a, int32_t chunk) {
    int32_t c4 = ceil4(a->c), m0 = 4 * chunk, weight_stride = c4 * ceil4(a->m) + WINOGRAD_PADDING;
    int32_t width = ceil4(a->m) - (m0 & ~7) >= 8 ? 8 : 4;
    for (int32_t c = 0; c < c4; c++) {
        float lanes[9][4] = {{0}};
        for (int32_t i = 0; c < a->c && i < 4 && m0 + i < a->m; i++) {
            const float *g = a->w + (a->flipped ? c * a->m + m0 + i : (m0 + i) * a->c + c) * 9;
            for (int32_t t = 0; t < 9; t++) lanes[t][i] = g[a->flipped ? 8 - t : t];
        }
        f32x4 t[WEIGHTS][3];
        UNROLL for (int32_t j = 0; j < 3; j++) {
            f32x4 g[3] = {load4(lanes[j]), load4(lanes[3 + j]), load4(lanes[6 + j])}, u[WEIGHTS];
            weight_axis(strided, g, u);
            UNROLL for (int32_t i = 0; i < WEIGHTS; i++) t[i][j] = u[i];
        }
        float *out = a->u + (m0 & ~7) * c4 + c * width + (m0 & 7);
        ROLLED for (int32_t i = 0; i < WEIGHTS; i++) {
            f32x4 u[WEIGHTS];
            weight_axis(strided, t[i], u);
            UNROLL for (int32_t j = 0; j < WEIGHTS; j++, out += weight_stride) store4(out, u[j]);
        }
    }
}

static void weight_chunk(const void *args, int32_t chunk) { transform_weights(false, args, chunk); }
static void strided_weight_chunk(const void *args, int32_t chunk) { transform_weights(true, args, chunk); }

int32_t kernel_winograd_weights_f32(const winograd_weights_f32_args *a) {
    parallel_for(a->stride == 2 ? strided_weight_chunk : weight_chunk, a, ceil_div(a->m, 4));
    return TW_OK;
}

/* ---- convolution ---- */

/* y[n, m] = x[n, c] * u[m, c]. `flipped`: y is the data gradient of a convolution with this stride and padding, x the
   gradient of its outputs. */
typedef struct {
    int32_t stride, n, c, m, h, w, out_h, out_w, pad_y, pad_x;
    const float *x, *u, *bias; /* u: transformed weights, 36 planes of m * c rounded up to whole vectors */
    bool flipped, accumulate, relu;
    float *y;
} winograd_conv;

typedef struct {
    const winograd_conv *conv;
    int32_t kind, tiles_y, tiles_x;
    int32_t pad_y, pad_x; /* how far before its plane the first tile begins */
    tile_split split;
} conv_pass;

static void store_columns(float *y, f32x4 v, int32_t cols, bool accumulate) {
    if (cols >= 4) {
        store4(y, accumulate ? add4(v, load4(y)) : v);
        return;
    }
    store_part(y, accumulate ? add4(v, load_part(y, cols)) : v, cols);
}

/* A line of four channels of up to four columns; lines at the right edge, and of the last channels, are cut. */
TW_INLINE void store_line(f32x4 c0, f32x4 c1, f32x4 c2, f32x4 c3, float *y, int32_t plane, int32_t channels, int32_t cols,
                          bool accumulate) {
    if (channels == 4 && cols >= 4) {
        float *y1 = y + plane, *y2 = y1 + plane, *y3 = y2 + plane;
        store4(y, accumulate ? add4(c0, load4(y)) : c0);
        store4(y1, accumulate ? add4(c1, load4(y1)) : c1);
        store4(y2, accumulate ? add4(c2, load4(y2)) : c2);
        store4(y3, accumulate ? add4(c3, load4(y3)) : c3);
        return;
    }
    f32x4 lines[4] = {c0, c1, c2, c3};
    for (int32_t c = 0; c < channels && cols > 0; c++, y += plane) store_columns(y, lines[c], cols, accumulate);
}

/* One tile of 4 channels: its products to 4x4 outputs, or 8x8 where it goes back through a stride of 2. */
TW_INLINE void finish_tile(const int32_t kind, const winograd_conv *conv, const float *products, int32_t m, float *y,
                           int32_t rows, int32_t cols) {
    const int32_t points = points_of(kind), outputs = outputs_of(kind), m_block = m_block_of(kind);
    int32_t channels = min_i32(4, conv->m - m), plane = conv->out_h * conv->out_w;
    float t[2 * TILE][4 * MAX_POINTS];
    f32x4 out[2 * TILE];
    BY_THREE for (int32_t j = 0; j < points; j++) {
        finish_axis(kind, products + j * m_block, points * m_block, out);
        UNROLL for (int32_t i = 0; i < outputs; i++) store4(t[i] + 4 * j, out[i]);
    }
    f32x4 bias = splat(0), floor = splat(conv->relu && !conv->accumulate ? 0 : -__builtin_inff());
    if (conv->bias) bias = channels == 4 ? load4(conv->bias + m) : load_part(conv->bias + m, channels);
    ROLLED for (int32_t i = 0; i < rows; i++, y += conv->out_w) {
        finish_axis(kind, t[i], 4, out);
        UNROLL for (int32_t j = 0; j < outputs; j++) out[j] = wasm_f32x4_pmax(add4(out[j], bias), floor);
        UNROLL for (int32_t j = 0; j < outputs; j += 4) {
            transpose4(&out[j], &out[j + 1], &out[j + 2], &out[j + 3]);
            store_line(out[j], out[j + 1], out[j + 2], out[j + 3], y + j, plane, channels, cols - j, conv->accumulate);
        }
    }
}

TW_INLINE void finish_block(const int32_t kind, const conv_pass *p, const tile_block *b, const float *products, int32_t m0,
                            int32_t m_count) {
    const winograd_conv *conv = p->conv;
    const int32_t size = outputs_of(kind), points = points_of(kind);
    for (int32_t r = 0; r < b->rows; r++) {
        int32_t n = (b->row0 + r) / b->tiles_y, top = (b->row0 + r) % b->tiles_y * size;
        int32_t rows = min_i32(size, conv->out_h - top);
        for (int32_t x = 0; x < b->cols; x++, products += points * points * m_block_of(kind)) {
            int32_t left = (b->col0 + x) * size, cols = min_i32(size, conv->out_w - left);
            for (int32_t m = 0; m < m_count; m += 4) {
                float *y = conv->y + ((n * conv->m + m0 + m) * conv->out_h + top) * conv->out_w + left;
                finish_tile(kind, conv, products + m, m0 + m, y, rows, cols);
            }
        }
    }
}

static void finish(const conv_pass *p, const tile_block *b, const float *products, int32_t m0, int32_t m_count) {
    if (p->kind == PLAIN) finish_block(PLAIN, p, b, products, m0, m_count);
    else if (p->kind == STRIDED) finish_block(STRIDED, p, b, products, m0, m_count);
    else if (p->kind == BACK_EVEN) finish_block(BACK_EVEN, p, b, products, m0, m_count);
    else finish_block(BACK_ODD, p, b, products, m0, m_count);
}

static void convolve_block(const void *args, int32_t index) {
    const conv_pass *p = args;
    const winograd_conv *conv = p->conv;
    tile_block b = block_at(&p->split, conv->n, p->tiles_y, p->tiles_x, index);
    int32_t n_tiles = b.rows * b.cols, c4 = ceil4(conv->c), m4 = ceil4(conv->m);
    int32_t points = points_of(p->kind) * points_of(p->kind), m_block = m_block_of(p->kind);
    int32_t v_row = parts_of(p->kind) * c4, v_stride = n_tiles * v_row + WINOGRAD_PADDING;
    int32_t u_stride = c4 * m4 + WINOGRAD_PADDING;
    float *v = thread_scratch(), *products = v + records_of(p->kind) * v_stride; /* products[tile][point][m_block] */
    tile_source source = {conv->x, 0, conv->c, conv->c, conv->h, conv->w, p->pad_y, p->pad_x, v, v_stride, v_row};
    transform(p->kind, &source, &b, products);
    for (int32_t m = 0; m < m4; m += m_block) {
        int32_t count = min_i32(m_block, m4 - m);
        for (int32_t point = 0; point < points; point++) {
            point_product q = product_at(p->kind, point);
            operands o = {.panels = q.parts, .k = c4, .a_row = v_row, .c_row = points * m_block};
            for (int32_t j = 0; j < count; j += 8) {
                for (int32_t i = 0; i < q.parts; i++) o.b[i] = conv->u + q.weight[i] * u_stride + (m + j) * c4;
                product(false, count - j < 8, n_tiles, &o, v + q.record * v_stride + q.first * c4,
                        products + point * m_block + j);
            }
        }
        finish(p, &b, products, m, min_i32(count, conv->m - m));
    }
}

static void relu_plane(const void *args, int32_t plane) {
    const winograd_conv *conv = args;
    int32_t n = conv->out_h * conv->out_w, i = 0;
    float *y = conv->y + plane * n;
    for (; i + 4 <= n; i += 4) store4(y + i, wasm_f32x4_pmax(load4(y + i), splat(0)));
    for (; i < n; i++) y[i] = y[i] < 0 ? 0 : y[i];
}

/* Tiles of the data gradient of stride 2 begin with output 0, which meets the source at pad / 2. */
static int32_t back_pad(int32_t pad) { return pad % 2 ? -(pad / 2) : 1 - pad / 2; }

static conv_pass plan_convolution(const winograd_conv *conv) {
    conv_pass p = {.conv = conv, .kind = PLAIN, .pad_y = conv->pad_y, .pad_x = conv->pad_x};
    int32_t floats = BLOCK_FLOATS;
    if (conv->stride == 2) {
        p.kind = STRIDED;
        floats = STRIDED_FLOATS;
        if (conv->flipped) {
            p.kind = conv->pad_y % 2 ? BACK_ODD : BACK_EVEN;
            p.pad_y = back_pad(conv->pad_y);
            p.pad_x = back_pad(conv->pad_x);
        }
    } else if (conv->flipped) {
        p.pad_y = 2 - conv->pad_y;
        p.pad_x = 2 - conv->pad_x;
    }
    p.tiles_y = ceil_div(conv->out_h, outputs_of(p.kind));
    p.tiles_x = ceil_div(conv->out_w, outputs_of(p.kind));
    int32_t tiles = tiles_per_block(floats_of(p.kind) * ceil4(conv->c), floats);
    p.split = split_tiles(conv->n, p.tiles_y, p.tiles_x, tiles, FEW_TILES);
    return p;
}

int32_t kernel_winograd_conv_f32(const winograd_conv_f32_args *a) {
    winograd_conv conv = {a->stride, a->n, a->c, a->m, a->size[0], a->size[1], a->out[0], a->out[1], a->pad[0], a->pad[1],
                          a->x, a->u, a->bias, a->flipped == 1, a->accumulate != 0, a->activation == ACTIVATION_RELU, a->y};
    conv_pass p = plan_convolution(&conv);
    parallel_for(convolve_block, &p, p.split.row_blocks * p.split.col_blocks);
    if (conv.relu && conv.accumulate) parallel_for(relu_plane, &conv, conv.n * conv.m);
    return TW_OK;
}

/* ---- gradient by the weights ---- */

/* dw[m, c] (+)= sum over images and outputs of dy x. */
typedef struct {
    int32_t stride, n, c, m, h, w, out_h, out_w, pad_y, pad_x;
    const float *x, *dy;
    bool accumulate;
    float *dw, *partial;
} winograd_gradient;

typedef struct {
    const winograd_gradient *gradient;
    int32_t x_kind, dy_kind, tiles_y, tiles_x, groups, m_blocks, m_block, weight_stride;
    tile_split split;
} gradient_pass;

/* partial[group][weight][m][c] (+)= sum over the tiles of a block. */
static void add_block(const gradient_pass *p, const tile_block *b, int32_t m0, int32_t m_count, float *partial, bool add) {
    const winograd_gradient *g = p->gradient;
    int32_t n_tiles = b->rows * b->cols, c4 = ceil4(g->c), m4 = ceil4(m_count);
    int32_t points = points_of(p->dy_kind) * points_of(p->dy_kind), v_row = parts_of(p->x_kind) * c4;
    int32_t v_stride = n_tiles * v_row + WINOGRAD_PADDING, w_stride = n_tiles * m4 + WINOGRAD_PADDING;
    float *v = thread_scratch(), *w = v + records_of(p->x_kind) * v_stride;
    float *z = w + points * w_stride;
    tile_source x = {g->x, 0, g->c, g->c, g->h, g->w, g->pad_y, g->pad_x, v, v_stride, v_row};
    tile_source dy = {g->dy, m0, m_count, g->m, g->out_h, g->out_w, 0, 0, w, w_stride, m4};
    bool seen[WINOGRAD_POINTS] = {false};
    transform(p->x_kind, &x, b, z);
    transform(p->dy_kind, &dy, b, z);
    for (int32_t point = 0; point < points; point++) {
        point_product q = product_at(p->x_kind, point);
        for (int32_t i = 0; i < q.parts; i++) {
            const float *patches = v + q.record * v_stride + (q.first + i) * c4;
            float *out = partial + q.weight[i] * p->weight_stride + m0 * c4;
            /* Products that share a weight add up. */
            operands o = {1, n_tiles, m4, v_row, c4, add || seen[q.weight[i]], {0}};
            seen[q.weight[i]] = true;
            for (int32_t j = 0; j < c4; j += 8) {
                o.b[0] = patches + j;
                product(true, c4 - j < 8, m_count, &o, w + point * w_stride, out + j);
            }
        }
    }
}

static void gradient_chunk(const void *args, int32_t chunk) {
    const gradient_pass *p = args;
    const winograd_gradient *g = p->gradient;
    int32_t group = chunk / p->m_blocks, m0 = chunk % p->m_blocks * p->m_block;
    int32_t m_count = min_i32(p->m_block, g->m - m0), n_blocks = p->split.row_blocks * p->split.col_blocks;
    int32_t first = (int32_t)((int64_t)group * n_blocks / p->groups);
    int32_t end = (int32_t)((int64_t)(group + 1) * n_blocks / p->groups);
    float *partial = g->partial + group * WINOGRAD_POINTS * p->weight_stride;
    for (int32_t i = first; i < end; i++) {
        tile_block b = block_at(&p->split, g->n, p->tiles_y, p->tiles_x, i);
        add_block(p, &b, m0, m_count, partial, i > first);
    }
}

/* Sums the groups in order and transforms back: all weights of one channel m. */
TW_INLINE void finish_weights(const bool strided, const gradient_pass *p, int32_t m) {
    const winograd_gradient *g = p->gradient;
    int32_t c4 = ceil4(g->c), weight_stride = p->weight_stride;
    for (int32_t c = 0; c < g->c; c += 4) {
        f32x4 t[3][WEIGHTS];
        ROLLED for (int32_t j = 0; j < WEIGHTS; j++) {
            f32x4 u[WEIGHTS], out[3];
            UNROLL for (int32_t i = 0; i < WEIGHTS; i++) {
                const float *at = g->partial + (i * WEIGHTS + j) * weight_stride + m * c4 + c;
                u[i] = load4(at);
                for (int32_t k = 1; k < p->groups; k++) u[i] = add4(u[i], load4(at += WINOGRAD_POINTS * weight_stride));
            }
            weight_gradient_axis(strided, u, out);
            UNROLL for (int32_t i = 0; i < 3; i++) t[i][j] = out[i];
        }
        float *dw = g->dw + (m * g->c + c) * 9;
        int32_t channels = min_i32(4, g->c - c);
        for (int32_t i = 0; i < 3; i++) {
            f32x4 out[3];
            float lanes[4];
            weight_gradient_axis(strided, t[i], out);
            UNROLL for (int32_t j = 0; j < 3; j++) {
                store4(lanes, out[j]);
                for (int32_t k = 0; k < channels; k++) {
                    float *at = dw + k * 9 + i * 3 + j;
                    *at = g->accumulate ? *at + lanes[k] : lanes[k];
                }
            }
        }
    }
}

static void finish_channel(const void *args, int32_t m) { finish_weights(false, args, m); }
static void finish_strided_channel(const void *args, int32_t m) { finish_weights(true, args, m); }

static void sum_weight_gradient(const winograd_gradient *g) {
    gradient_pass p = {.gradient = g, .x_kind = PLAIN, .dy_kind = OUTPUT};
    if (g->stride == 2) p.x_kind = STRIDED, p.dy_kind = STRIDED_OUTPUT;
    p.tiles_y = ceil_div(g->out_h, TILE);
    p.tiles_x = ceil_div(g->out_w, TILE);
    p.weight_stride = g->m * ceil4(g->c) + WINOGRAD_PADDING;
    p.groups = max_i32(1, min_i32(WINOGRAD_GROUPS, WINOGRAD_PARTIAL_FLOATS / (WINOGRAD_POINTS * p.weight_stride)));
    p.m_block = ceil4(ceil_div(g->m, ceil_div(WINOGRAD_GROUPS, p.groups)));
    if (p.m_block < 32) p.m_block = min_i32(32, ceil4(g->m));
    p.m_blocks = ceil_div(g->m, p.m_block);
    int32_t tile_floats = floats_of(p.x_kind) * ceil4(g->c) + floats_of(p.dy_kind) * p.m_block;
    p.split = split_tiles(g->n, p.tiles_y, p.tiles_x, tiles_per_block(tile_floats, GRADIENT_FLOATS), GRADIENT_FEW_TILES);
    p.groups = min_i32(p.groups, p.split.row_blocks * p.split.col_blocks);
    parallel_for(gradient_chunk, &p, p.groups * p.m_blocks);
    parallel_for(g->stride == 2 ? finish_strided_channel : finish_channel, &p, g->m);
}

int32_t kernel_winograd_weight_gradient_f32(const winograd_weight_gradient_f32_args *a) {
    if (a->db) channel_sums(a->dy, a->db, a->n, a->m, a->out[0] * a->out[1], a->accumulate != 0);
    winograd_gradient gradient = {a->stride, a->n, a->c, a->m, a->size[0], a->size[1], a->out[0], a->out[1], a->pad[0],
                                  a->pad[1], a->x, a->dy, a->accumulate != 0, a->dw, a->partial};
    sum_weight_gradient(&gradient);
    return TW_OK;
}
