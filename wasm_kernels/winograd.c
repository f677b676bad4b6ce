/* F(4x4, 3x3) of A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016): an output tile of 4x4
   costs 36 products a pair of channels instead of 144. The interpolation points are 0, +-sqrt(1/2), +-sqrt(2) and infinity,
   whose transforms hold no large numbers: the error is about twice that of a direct sum. Vectors hold 4 channels.

   With stride 2 an axis splits by parity: y[o] = (g0 x[2o] + g2 x[2o+2]) + g1 x[2o+1]. The first two are a convolution of
   stride 1 with two taps: three taps of which the first is zero, so that point 0 has no part. The third needs no transform,
   and all its products share one weight. That makes 9 products an axis, 81 a tile instead of 144, with 6x6 different
   weights. The gradient by the data has the same shape: its even outputs come from two taps, its odd ones from one. */
#include "conv.h"
#include "parallel.h"
#include "tile.h"

enum { TILE = 4, MAX_POINTS = 9, WEIGHTS = 6, WINOGRAD_POINTS = 36 };
/* Floats between the planes of one weight each: without them, planes of a power of two meet in one set of the cache. */
enum { WINOGRAD_PADDING = 16 };
/* Partial sums of the weight gradient; kernels.def sizes its scratch by these. */
enum { WINOGRAD_GROUPS = 8, WINOGRAD_PARTIAL_FLOATS = 1 << 20 };
/* What is transformed: sources of stride 1 and 2; sources of the data gradient of stride 2 whose tiles begin with an even or
   an odd output; gradients of the outputs of stride 1 and 2, for the gradient by the weights. */
enum { PLAIN, STRIDED, BACK_EVEN, BACK_ODD, OUTPUT, STRIDED_OUTPUT };
#define ROOT 1.41421356237309505f

TW_INLINE int32_t ceil4(int32_t n) { return (n + 3) & ~3; }
TW_INLINE f32x4 scaled(float a, f32x4 x) { return mul4(splat(a), x); }
TW_INLINE f32x4 scaled_add(float a, f32x4 x, f32x4 y) { return madd(splat(a), x, y); }

/* ---- the transforms in one dimension ---- */

/* Patch of the source: B'd. */
TW_INLINE void patch_transform(const f32x4 d[6], f32x4 v[6]) {
    f32x4 even = scaled_add(-2, d[2], d[4]), odd = scaled_add(-ROOT, d[1], scaled(ROOT / 2, d[3]));
    f32x4 even2 = scaled_add(-0.5f, d[2], d[4]), odd2 = scaled_add(-ROOT / 2, d[1], scaled(ROOT, d[3]));
    v[0] = scaled_add(-2.5f, d[2], add4(d[0], d[4]));
    v[1] = add4(even, odd);
    v[2] = sub4(even, odd);
    v[3] = add4(even2, odd2);
    v[4] = sub4(even2, odd2);
    v[5] = scaled_add(-2.5f, d[3], add4(d[1], d[5]));
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

/* Its transpose, for the gradient of the outputs: A dy. */
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

/* Samples that a tile takes along an axis, products it makes of them, samples between tiles, outputs of a tile. */
TW_INLINE int32_t samples_of(const int32_t kind) {
    return kind == PLAIN ? 6 : kind == STRIDED ? 9 : kind == BACK_EVEN || kind == BACK_ODD ? 5 : TILE;
}
TW_INLINE int32_t points_of(const int32_t kind) { return kind == PLAIN || kind == OUTPUT ? 6 : 9; }
TW_INLINE int32_t step_of(const int32_t kind) { return kind == STRIDED ? 2 * TILE : TILE; }
TW_INLINE int32_t outputs_of(const int32_t kind) { return kind == BACK_EVEN || kind == BACK_ODD ? 2 * TILE : TILE; }
/* Which of the 6 weights of an axis a product takes. */
TW_INLINE int32_t weight_of(int32_t point) { return point < WEIGHTS ? point : WEIGHTS - 1; }

/* Products of an axis that take a sum of samples; the others take one sample each. */
TW_INLINE int32_t sums_of(const int32_t kind) { return kind == PLAIN || kind == OUTPUT ? 6 : 5; }
TW_INLINE int32_t sample_of(const int32_t kind, int32_t single) {
    return kind == STRIDED ? 2 * single + 1 : kind == BACK_EVEN ? single + 1 : single;
}

/* The sums of the samples at d, d + step, ... Two taps are three of which the first is zero: point 0 has no part. */
TW_INLINE void sum_samples(const int32_t kind, const float *d, int32_t step, f32x4 v[6]) {
    f32x4 in[6], out[6];
    if (kind == OUTPUT || kind == STRIDED_OUTPUT) {
        UNROLL for (int32_t i = 0; i < TILE; i++) in[i] = load4(d + i * step);
        output_gradient_transform(in, out);
    } else {
        const int32_t first = 6 - sums_of(kind), apart = kind == STRIDED ? 2 : 1;
        in[0] = splat(0);
        UNROLL for (int32_t i = first; i < 6; i++) in[i] = load4(d + (i - first) * apart * step);
        patch_transform(in, out);
    }
    UNROLL for (int32_t i = 0; i < sums_of(kind); i++) v[i] = out[i + 6 - sums_of(kind)];
}

/* The products at m, m + step, ... to outputs. */
TW_INLINE void finish_axis(const int32_t kind, const float *m, const int32_t step, f32x4 y[2 * TILE]) {
    const int32_t first = 6 - sums_of(kind);
    f32x4 in[6] = {splat(-0.0f)}, out[TILE]; /* an addition of -0 is none to the compiler either */
    UNROLL for (int32_t i = first; i < 6; i++) in[i] = load4(m + (i - first) * step);
    output_transform(in, out);
    UNROLL for (int32_t i = 0; i < TILE; i++) {
        if (kind == PLAIN) y[i] = out[i];
        else if (kind == STRIDED) y[i] = add4(out[i], load4(m + (5 + i) * step));
        else y[2 * i + (kind == BACK_ODD)] = out[i], y[2 * i + (kind == BACK_EVEN)] = load4(m + (5 + i) * step);
    }
}

TW_INLINE void weight_axis(const bool strided, const f32x4 g[3], f32x4 u[WEIGHTS]) {
    if (!strided) {
        weight_transform(g, u);
        return;
    }
    f32x4 pair[3] = {splat(0), g[0], g[2]}, all[6];
    weight_transform(pair, all);
    UNROLL for (int32_t i = 0; i < 5; i++) u[i] = all[i + 1];
    u[5] = g[1];
}

TW_INLINE void weight_gradient_axis(const bool strided, const f32x4 u[WEIGHTS], f32x4 g[3]) {
    if (!strided) {
        weight_gradient_transform(u, g);
        return;
    }
    f32x4 all[6] = {splat(0), u[0], u[1], u[2], u[3], u[4]}, pair[3];
    weight_gradient_transform(all, pair);
    g[0] = pair[1];
    g[1] = u[5];
    g[2] = pair[2];
}

/* ---- tiles of a block ---- */

/* Rows of tiles [row0, row0 + rows) of all images times columns of tiles [col0, col0 + cols). */
typedef struct {
    int32_t tiles_y, tiles_x; /* of an image */
    int32_t row0, rows, col0, cols;
} tile_block;

/* One side of the products: its planes, and where its transformed tiles go, [point][tile][channel]. */
typedef struct {
    const float *x;
    int32_t channel0, channels, total; /* of the images' `total` channels */
    int32_t h, w, pad_y, pad_x;
    float *out;
    int32_t point_stride, tile_stride;
} tile_source;

/* Copies the lines of 4 channels that a row of tiles reaches: `tall` of them, z[line][column][4]. What lies outside the
   plane is not written: it was zeroed for all channels. */
static void interleave(const tile_source *s, const tile_block *b, int32_t row, int32_t c, int32_t step, int32_t tall,
                       int32_t width, float *z) {
    int32_t from = b->col0 * step - s->pad_x, lo = max_i32(0, -from), hi = min_i32(width, s->w - from);
    int32_t top = row % b->tiles_y * step - s->pad_y, channels = min_i32(4, s->channels - c), plane = s->h * s->w;
    const float *x = s->x + (row / b->tiles_y * s->total + s->channel0 + c) * plane;
    for (int32_t i = max_i32(0, -top); i < tall && top + i < s->h; i++) {
        const float *src = x + (top + i) * s->w + from;
        float *out = z + i * width * 4;
        int32_t col = lo;
        if (channels == 4) {
            for (; col + 4 <= hi; col += 4) {
                f32x4 c0 = load4(src + col), c1 = load4(src + plane + col);
                f32x4 c2 = load4(src + 2 * plane + col), c3 = load4(src + 3 * plane + col);
                transpose4(&c0, &c1, &c2, &c3);
                store4(out + 4 * col, c0);
                store4(out + 4 * col + 4, c1);
                store4(out + 4 * col + 8, c2);
                store4(out + 4 * col + 12, c3);
            }
        }
        for (; col < hi; col++) {
            for (int32_t k = 0; k < 4; k++) out[4 * col + k] = k < channels ? src[k * plane + col] : 0;
        }
    }
}

/* The products' side of the tile at z. */
TW_INLINE void transform_tile(const int32_t kind, const float *z, int32_t line, float *out, int32_t point_stride) {
    const int32_t samples = samples_of(kind), points = points_of(kind), sums = sums_of(kind);
    float t[WEIGHTS][4 * MAX_POINTS];
    f32x4 v[WEIGHTS];
    BY_THREE for (int32_t j = 0; j < 4 * samples; j += 4) {
        sum_samples(kind, z + j, line, v);
        UNROLL for (int32_t i = 0; i < sums; i++) store4(t[i] + j, v[i]);
    }
    BY_THREE for (int32_t i = 0; i < points; i++) {
        const float *row = i < sums ? t[i] : z + sample_of(kind, i - sums) * line;
        sum_samples(kind, row, 4, v);
        UNROLL for (int32_t j = 0; j < sums; j++, out += point_stride) store4(out, v[j]);
        UNROLL for (int32_t j = 0; j < points - sums; j++, out += point_stride) {
            store4(out, load4(row + 4 * sample_of(kind, j)));
        }
    }
}

/* All tiles and channels of a block, a row of tiles at a time: its lines and results then stay in the first cache. */
TW_INLINE void transform_block(const int32_t kind, const tile_source *s, const tile_block *b, float *z) {
    const int32_t tall = samples_of(kind), step = step_of(kind);
    int32_t width = (b->cols - 1) * step + tall;
    for (int32_t r = 0; r < b->rows; r++) {
        tw_zero(z, 4 * (size_t)(tall * width * 4));
        for (int32_t c = 0; c < s->channels; c += 4) {
            interleave(s, b, b->row0 + r, c, step, tall, width, z);
            float *out = s->out + r * b->cols * s->tile_stride + c;
            for (int32_t x = 0; x < b->cols; x++, out += s->tile_stride) {
                transform_tile(kind, z + x * step * 4, width * 4, out, s->point_stride);
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

/* c[rows][4 * vecs] (+)= sum over p of a(i, p) b(p, j): a(i, p) = a[i * a_row + p] if `in_place`, else a[i + p * a_row];
   b(p, j) = b[p * b_row + j]; for `blocks` blocks of rows below each other. */
TW_INLINE void product_tiles(const int32_t rows, const int32_t vecs, const bool in_place, int32_t blocks, int32_t k,
                             const float *a, int32_t a_row, const float *b, const int32_t b_row, float *c, int32_t c_row,
                             bool add) {
    const int32_t lines = in_place ? rows : 1;
    for (; blocks; blocks--, a += in_place ? rows * a_row : rows, c += rows * c_row) {
        f32x4 acc[TILE_ROWS][2];
        const float *line[TILE_ROWS], *panel = b;
        int32_t p = k;
        UNROLL for (int32_t i = 0; i < rows; i++) {
            UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = splat(0);
        }
        if (add) {
            UNROLL for (int32_t i = 0; i < rows; i++) {
                UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = load4(c + i * c_row + 4 * j);
            }
        }
        UNROLL for (int32_t i = 0; i < lines; i++) line[i] = a + i * a_row;
        for (; p >= 4; p -= 4) {
            UNROLL for (int32_t u = 0; u < 4; u++, panel += b_row) {
                product_step(rows, vecs, in_place, in_place ? u : 0, line, panel, acc);
                if (!in_place) line[0] += a_row;
            }
            UNROLL for (int32_t i = 0; i < lines; i++) line[i] += in_place ? 4 : 0;
        }
        /* Where a is read in place, k is a multiple of 4. */
        for (; !in_place && p; p--, panel += b_row, line[0] += a_row) product_step(rows, vecs, false, 0, line, panel, acc);
        UNROLL for (int32_t i = 0; i < rows; i++) {
            UNROLL for (int32_t j = 0; j < vecs; j++) store4(c + i * c_row + 4 * j, acc[i][j]);
        }
    }
}

#define TILE_PARAMS                                                                                                    \
    int32_t blocks, int32_t k, const float *a, int32_t a_row, const float *b, int32_t b_row, float *c, int32_t c_row,  \
        bool add
#define ROWS_TILE(rows)                                                                                                \
    static void forward_##rows##x8(TILE_PARAMS) {                                                                      \
        (void)b_row, (void)add;                                                                                        \
        product_tiles(rows, 2, true, blocks, k, a, a_row, b, 8, c, c_row, false);                                      \
    }                                                                                                                  \
    static void forward_##rows##x4(TILE_PARAMS) {                                                                      \
        (void)b_row, (void)add;                                                                                        \
        product_tiles(rows, 1, true, blocks, k, a, a_row, b, 4, c, c_row, false);                                      \
    }                                                                                                                  \
    static void gradient_##rows##x8(TILE_PARAMS) {                                                                     \
        product_tiles(rows, 2, false, blocks, k, a, a_row, b, b_row, c, c_row, add);                                   \
    }                                                                                                                  \
    static void gradient_##rows##x4(TILE_PARAMS) {                                                                     \
        product_tiles(rows, 1, false, blocks, k, a, a_row, b, b_row, c, c_row, add);                                   \
    }
#define ROWS_ENTRY(rows) {{forward_##rows##x8, forward_##rows##x4}, {gradient_##rows##x8, gradient_##rows##x4}}

ROWS_TILE(1)
ROWS_TILE(2)
ROWS_TILE(3)
ROWS_TILE(4)
#ifdef TW_RELAXED
ROWS_TILE(5)
ROWS_TILE(6)
#endif

typedef void (*tile_fn)(TILE_PARAMS);
static const tile_fn tiles[TILE_ROWS][2][2] = {
    ROWS_ENTRY(1), ROWS_ENTRY(2), ROWS_ENTRY(3), ROWS_ENTRY(4),
#ifdef TW_RELAXED
    ROWS_ENTRY(5), ROWS_ENTRY(6),
#endif
};

/* c[m][4 or 8] (+)= a b, by blocks of rows of two heights. */
static void product(bool gradient, bool narrow, int32_t m, int32_t k, const float *a, int32_t a_row, const float *b,
                    int32_t b_row, float *c, int32_t c_row, bool add) {
    row_split s = split_rows(m);
    int32_t row = split_start(&s, s.longer);
    if (s.longer) tiles[s.height][gradient][narrow](s.longer, k, a, a_row, b, b_row, c, c_row, add);
    a += gradient ? row : row * a_row;
    tiles[s.height - 1][gradient][narrow](s.count - s.longer, k, a, a_row, b, b_row, c + row * c_row, c_row, add);
}

/* ---- blocks ---- */

/* Transformed sources of a block stay in the second-level cache. The gradient sums over tiles: it wants many at a time. */
enum { BLOCK_FLOATS = 64 << 10, STRIDED_FLOATS = 112 << 10, GRADIENT_FLOATS = 144 << 10, MAX_TILES = 60, MIN_TILES = 8, M_BLOCK = 16 };
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

static int32_t tiles_per_block(int32_t channels, int32_t points, int32_t floats) {
    return max_i32(MIN_TILES, min_i32(MAX_TILES, floats / (points * points * ceil4(channels))));
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
    int32_t kind, points, tiles_y, tiles_x;
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
    const int32_t points = points_of(kind), outputs = outputs_of(kind);
    int32_t channels = min_i32(4, conv->m - m), plane = conv->out_h * conv->out_w;
    float t[2 * TILE][4 * MAX_POINTS];
    f32x4 out[2 * TILE];
    BY_THREE for (int32_t j = 0; j < points; j++) {
        finish_axis(kind, products + j * M_BLOCK, points * M_BLOCK, out);
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
        for (int32_t x = 0; x < b->cols; x++, products += points * points * M_BLOCK) {
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
    int32_t points = p->points * p->points, v_stride = n_tiles * c4 + WINOGRAD_PADDING;
    float *v = thread_scratch(), *products = v + points * v_stride; /* products[tile][point][M_BLOCK] */
    tile_source source = {conv->x, 0, conv->c, conv->c, conv->h, conv->w, p->pad_y, p->pad_x, v, v_stride, c4};
    transform(p->kind, &source, &b, products);
    for (int32_t m = 0; m < m4; m += M_BLOCK) {
        int32_t count = min_i32(M_BLOCK, m4 - m);
        for (int32_t point = 0; point < points; point++) {
            int32_t weight = weight_of(point / p->points) * WEIGHTS + weight_of(point % p->points);
            const float *u = conv->u + weight * (c4 * m4 + WINOGRAD_PADDING) + m * c4, *patches = v + point * v_stride;
            float *out = products + point * M_BLOCK;
            for (int32_t j = 0; j < count; j += 8) {
                product(false, count - j < 8, n_tiles, c4, patches, c4, u + j * c4, 0, out + j, points * M_BLOCK, false);
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
    p.points = points_of(p.kind);
    p.tiles_y = ceil_div(conv->out_h, outputs_of(p.kind));
    p.tiles_x = ceil_div(conv->out_w, outputs_of(p.kind));
    p.split = split_tiles(conv->n, p.tiles_y, p.tiles_x, tiles_per_block(conv->c, p.points, floats), FEW_TILES);
    return p;
}

int32_t kernel_winograd_conv_f32(const winograd_conv_f32_args *a) {
    winograd_conv conv = {a->stride, a->n, a->c, a->m, a->size[0], a->size[1], a->out[0], a->out[1], a->pad[0], a->pad[1],
                          a->x, a->u, a->bias, a->flipped == 1, a->accumulate != 0, a->activation == 1, a->y};
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
    int32_t points, tiles_y, tiles_x, groups, m_blocks, m_block, weight_stride;
    tile_split split;
} gradient_pass;

/* partial[group][weight][m][c] (+)= sum over the tiles of a block. */
static void add_block(const gradient_pass *p, const tile_block *b, int32_t m0, int32_t m_count, float *partial, bool add) {
    const winograd_gradient *g = p->gradient;
    int32_t n_tiles = b->rows * b->cols, c4 = ceil4(g->c), m4 = ceil4(m_count);
    int32_t v_stride = n_tiles * c4 + WINOGRAD_PADDING, w_stride = n_tiles * m4 + WINOGRAD_PADDING;
    int32_t points = p->points * p->points;
    float *v = thread_scratch(), *w = v + points * v_stride;
    float *z = w + points * w_stride;
    tile_source x = {g->x, 0, g->c, g->c, g->h, g->w, g->pad_y, g->pad_x, v, v_stride, c4};
    tile_source dy = {g->dy, m0, m_count, g->m, g->out_h, g->out_w, 0, 0, w, w_stride, m4};
    transform(g->stride == 2 ? STRIDED : PLAIN, &x, b, z);
    transform(g->stride == 2 ? STRIDED_OUTPUT : OUTPUT, &dy, b, z);
    for (int32_t point = 0; point < points; point++) {
        int32_t i = point / p->points, k = point % p->points;
        float *out = partial + (weight_of(i) * WEIGHTS + weight_of(k)) * p->weight_stride + m0 * c4;
        /* Products that share a weight add up. */
        bool again = add || i >= WEIGHTS || k >= WEIGHTS;
        for (int32_t j = 0; j < c4; j += 8) {
            product(true, c4 - j < 8, m_count, n_tiles, w + point * w_stride, m4, v + point * v_stride + j, c4, out + j, c4,
                    again);
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
    gradient_pass p = {.gradient = g, .points = points_of(g->stride == 2 ? STRIDED : PLAIN), .tiles_y = ceil_div(g->out_h, TILE), .tiles_x = ceil_div(g->out_w, TILE)};
    p.weight_stride = g->m * ceil4(g->c) + WINOGRAD_PADDING;
    p.groups = max_i32(1, min_i32(WINOGRAD_GROUPS, WINOGRAD_PARTIAL_FLOATS / (WINOGRAD_POINTS * p.weight_stride)));
    p.m_block = ceil4(ceil_div(g->m, ceil_div(WINOGRAD_GROUPS, p.groups)));
    if (p.m_block < 32) p.m_block = min_i32(32, ceil4(g->m));
    p.m_blocks = ceil_div(g->m, p.m_block);
    p.split = split_tiles(g->n, p.tiles_y, p.tiles_x, tiles_per_block(ceil4(g->c) + p.m_block, p.points, GRADIENT_FLOATS),
                          GRADIENT_FEW_TILES);
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
