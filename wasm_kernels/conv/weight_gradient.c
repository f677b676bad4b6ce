/* dw[m][c, tap] = sum over positions dy[m] x[c, tap]. Both run along the positions, so a register tile accumulates four
   positions side by side and lanes are summed at the very end. A chunk owns a block of dw for a group of images, which it
   walks over in order; groups depend on shapes only and are added in order: the same bytes for any number of threads.

   Three layouts of the positions, chosen in choose_layout().
   IN_PLACE  one tap, no stride: each plane is one row, x and dy are read where they lie.
   STRIPS    x comes from boxes padded with zeros in the workspace, whose strips are listed. dy is read where it lies, unless
             its rows must be filled up to whole vectors.
   MERGED    rows too short for vectors: the positions of several images side by side, [channel, tap] of x and [m] of dy */
#include "weight_gradient.h"

#include "parallel.h"
#include "tile.h"
#include "view.h"

typedef enum { IN_PLACE, STRIPS, MERGED } weight_layout;

typedef struct {
    const conv_weight_gradient_f32_args *a;
    conv_axis axis[3];
    conv_reach reach[3];
    int32_t cg, mg, taps; /* channels per group */
    int32_t channels, c_blocks, rows_m, m_blocks, image_groups;
    weight_layout layout;
    int32_t rows, cols, images; /* of the positions that a tile sums at a time */
} weight_pass;

TW_INLINE int32_t volume_of(const int32_t size[3]) { return size[0] * size[1] * size[2]; }

/* V8 spills from the 16th live vector on: accumulators, sources, one of dy (and one product without FMA). */
#ifdef TW_RELAXED
enum { TILE_M = 6 };
#else
enum { TILE_M = 5 };
#endif
enum { TILE_K = 2 };

/* Positions of images, and where x and dy have them; strides in floats. */
typedef struct {
    const float *dy, *x;
    int32_t images, positions;
    int32_t dy_image, dy_channel, x_image;
    const int32_t *offsets; /* bytes from x to the source of each (channel, tap) */
    const int32_t *places;  /* bytes to the sources of each strip; null if the strips lie side by side */
} weight_view;

/* Which lanes of a strip count: all; the last ones, where it overlaps the strip before; the first ones of a shorter row. */
typedef enum { WHOLE, LAST, FIRST } strip_lanes;

__attribute__((noinline)) static f32x4 load_first(const float *p, int32_t n) { return load_part(p, n); }

/* The strip at constant offset u, or the `rest` positions there that are no whole strip. */
TW_INLINE f32x4 load_strip(const strip_lanes lanes, const float *p, const int32_t u, int32_t rest, v128_t mask) {
    if (lanes == WHOLE) return load4(p + u);
    return lanes == LAST ? wasm_v128_and(load4(p + rest - 4), mask) : load_first(p, rest);
}

TW_INLINE void weight_step(const int32_t rows, const int32_t taps, const strip_lanes lanes, const int32_t u, int32_t rest,
                           const float *const line[TILE_M], const float *const source[TILE_K],
                           f32x4 sum[TILE_M][TILE_K]) {
    f32x4 v[TILE_K];
    v128_t mask = lanes == LAST ? wasm_v128_not(first_lanes(4 - rest)) : splat(0);
    UNROLL for (int32_t j = 0; j < taps; j++) v[j] = load_strip(lanes, source[j], u, rest, mask);
    UNROLL for (int32_t i = 0; i < rows; i++) {
        f32x4 d = load_strip(lanes, line[i], u, rest, mask);
        UNROLL for (int32_t j = 0; j < taps; j++) {
            sum[i][j] = madd(d, v[j], sum[i][j]);
            IN_ORDER(sum[i][j]);
        }
    }
}

/* Positions side by side. */
TW_INLINE void weight_row(const int32_t rows, const int32_t taps, int32_t positions, const float *line[TILE_M],
                          const float *source[TILE_K], f32x4 sum[TILE_M][TILE_K]) {
    int32_t n = positions;
    for (; n >= 16; n -= 16) {
        UNROLL for (int32_t u = 0; u < 16; u += 4) weight_step(rows, taps, WHOLE, u, 0, line, source, sum);
        UNROLL for (int32_t i = 0; i < rows; i++) line[i] += 16;
        UNROLL for (int32_t j = 0; j < taps; j++) source[j] += 16;
    }
    for (; n >= 4; n -= 4) {
        weight_step(rows, taps, WHOLE, 0, 0, line, source, sum);
        UNROLL for (int32_t i = 0; i < rows; i++) line[i] += 4;
        UNROLL for (int32_t j = 0; j < taps; j++) source[j] += 4;
    }
    if (n && positions >= 4) weight_step(rows, taps, LAST, 0, n, line, source, sum);
    else if (n) weight_step(rows, taps, FIRST, 0, n, line, source, sum);
}

/* Strips whose sources lie anywhere; the strips of dy lie side by side. */
TW_INLINE void weight_strips(const int32_t rows, const int32_t taps, int32_t strips, const int32_t *places,
                             const float *line[TILE_M], const float *const source[TILE_K], f32x4 sum[TILE_M][TILE_K]) {
    for (; strips >= 4; strips -= 4, places += 4) {
        UNROLL for (int32_t u = 0; u < 4; u++) {
            const float *at[TILE_K];
            UNROLL for (int32_t j = 0; j < taps; j++) at[j] = (const float *)((const char *)source[j] + places[u]) - 4 * u;
            weight_step(rows, taps, WHOLE, 4 * u, 0, line, at, sum);
        }
        UNROLL for (int32_t i = 0; i < rows; i++) line[i] += 16;
    }
    for (; strips; strips--, places++) {
        const float *at[TILE_K];
        UNROLL for (int32_t j = 0; j < taps; j++) at[j] = (const float *)((const char *)source[j] + *places);
        weight_step(rows, taps, WHOLE, 0, 0, line, at, sum);
        UNROLL for (int32_t i = 0; i < rows; i++) line[i] += 4;
    }
}

/* acc[i][j] += sum over positions of dy line i times the source of tap j. */
TW_INLINE void weight_tile(const int32_t rows, const int32_t taps, const weight_view *v, const float *dy,
                           const int32_t *offsets, float *acc, int32_t acc_line) {
    f32x4 sum[TILE_M][TILE_K];
    const float *line[TILE_M], *source[TILE_K];
    const int32_t dy_channel = v->dy_channel, positions = v->positions;
    UNROLL for (int32_t i = 0; i < rows; i++) {
        UNROLL for (int32_t j = 0; j < taps; j++) sum[i][j] = load4(acc + i * acc_line + 4 * j);
    }
    for (int32_t image = 0; image < v->images; image++) {
        const float *x = v->x + image * v->x_image;
        UNROLL for (int32_t i = 0; i < rows; i++) line[i] = dy + image * v->dy_image + i * dy_channel;
        UNROLL for (int32_t j = 0; j < taps; j++) source[j] = (const float *)((const char *)x + offsets[j]);
        if (v->places) weight_strips(rows, taps, positions / 4, v->places, line, source, sum);
        else weight_row(rows, taps, positions, line, source, sum);
    }
    UNROLL for (int32_t i = 0; i < rows; i++) {
        UNROLL for (int32_t j = 0; j < taps; j++) store4(acc + i * acc_line + 4 * j, sum[i][j]);
    }
}

#define TILE_PARAMS const weight_view *v, const float *dy, const int32_t *offsets, float *acc, int32_t acc_line
#define TILE_ARGS v, dy, offsets, acc, acc_line
#define TILE(rows)                                                                                                     \
    static void tile_##rows##x1(TILE_PARAMS) { weight_tile(rows, 1, TILE_ARGS); }                                      \
    static void tile_##rows##x2(TILE_PARAMS) { weight_tile(rows, 2, TILE_ARGS); }
#define TILE_ENTRY(rows) {tile_##rows##x1, tile_##rows##x2}

TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
#ifdef TW_RELAXED
TILE(6)
#endif

typedef void (*tile_fn)(TILE_PARAMS);
static const tile_fn tiles[TILE_M][TILE_K] = {
    TILE_ENTRY(1), TILE_ENTRY(2), TILE_ENTRY(3), TILE_ENTRY(4), TILE_ENTRY(5),
#ifdef TW_RELAXED
    TILE_ENTRY(6),
#endif
};

/* Measured: shorter rows than this are merged. */
enum { MERGED_COLS = 8 };

/* Parts of the workspace of a chunk: accumulators, offsets of (channel, tap), places of strips, boxes; merged sources and
   dy where it is copied. */
typedef struct {
    float *acc;
    int32_t *offsets, *places;
    float *boxes, *columns, *dy;
} weight_space;

/* acc[m][k] += products of all positions of the view; rows of dy stay in the first cache. */
static void add_products(const weight_view *v, int32_t rows_m, int32_t k, float *acc) {
    int32_t blocks = ceil_div(rows_m, TILE_M);
    for (int32_t b = 0; b < blocks; b++) {
        int32_t i = b * rows_m / blocks, rows = (b + 1) * rows_m / blocks - i;
        for (int32_t j = 0; j < k; j += TILE_K) {
            tiles[rows - 1][min_i32(TILE_K, k - j) - 1](v, v->dy + i * v->dy_channel, v->offsets + j, acc + (i * k + j) * 4,
                                                       4 * k);
        }
    }
}

/* Start of the box in the planes of dy of one image and group. */
static int32_t plane_at(const weight_pass *p, int32_t m, const conv_box *box) {
    const conv_axis *a = p->axis;
    return ((m * a[0].out + box->depth) * a[1].out + box->row0) * a[2].out + box->col0;
}

/* The sources of each (channel, tap) of an image side by side: out[k][stride]. Whole vectors: up to three floats behind a
   row are overwritten. */
static void spread_taps(const conv_box *box, const conv_layout *l, const float *sources, const int32_t *offsets, int32_t k,
                        float *out, int32_t stride) {
    for (int32_t j = 0; j < k; j++, out += stride) {
        const float *line = (const float *)((const char *)sources + offsets[j]);
        float *to = out;
        for (int32_t r = 0; r < box->rows; r++, line += l->out_stride, to += box->cols) {
            for (int32_t col = 0; col < box->cols; col += 4) store4(to + col, load4(line + col));
        }
    }
}

/* Positions of several images side by side, filled up with zeros to whole vectors. */
static weight_view merge_images(const weight_pass *p, const conv_box *box, int32_t m, int32_t rows_m, int32_t images,
                                const weight_space *space, const conv_layout *l) {
    const conv_weight_gradient_f32_args *a = p->a;
    int32_t area = box->rows * box->cols, k = box->channels * p->taps, total = images * area, end = (total + 3) & ~3;
    int32_t stride = end + 4, volume = volume_of(a->out);
    tap_offsets(p->axis, l, box->channels, space->offsets);
    for (int32_t image = 0; image < images; image++) {
        int32_t n = (box->n + image) * a->groups + box->group;
        gather_box(l, box, a->x + n * p->cg * volume_of(a->size), space->boxes);
        spread_taps(box, l, space->boxes, space->offsets, k, space->columns + image * area, stride);
        const float *dy = a->dy + n * p->mg * volume + plane_at(p, m, box);
        float *to = space->dy + image * area;
        for (int32_t i = 0; i < rows_m; i++) copy_line(dy + i * volume, 1, to + i * stride, 0, area);
    }
    for (int32_t j = 0; j < k; j++) space->offsets[j] = 4 * j * stride;
    for (int32_t q = total; q < end; q++) {
        for (int32_t j = 0; j < k; j++) space->columns[j * stride + q] = 0;
        for (int32_t i = 0; i < rows_m; i++) space->dy[i * stride + q] = 0;
    }
    return (weight_view){space->dy, space->columns, 1, end, 0, stride, 0, space->offsets, 0};
}

/* Rows of dy, each filled up with zeros to whole strips: out[m][image][row][col]. */
static void gather_dy(const weight_pass *p, const conv_box *box, int32_t m, int32_t rows_m, int32_t images, float *out) {
    const conv_weight_gradient_f32_args *a = p->a;
    int32_t width = (box->cols + 3) & ~3;
    for (int32_t i = 0; i < rows_m; i++) {
        for (int32_t image = 0; image < images; image++) {
            int32_t n = (box->n + image) * a->groups + box->group;
            const float *line = a->dy + n * p->mg * volume_of(a->out) + plane_at(p, m + i, box);
            for (int32_t r = 0; r < box->rows; r++, line += p->axis[2].out, out += width) {
                copy_line(line, 1, out, 0, box->cols);
                for (int32_t col = box->cols; col < width; col++) out[col] = 0;
            }
        }
    }
}

/* True unless the rows of dy are whole strips, one after the other. */
static bool copies_dy(const weight_pass *p) { return p->axis[2].out % 4 || p->cols < p->axis[2].out; }

/* Sources in the workspace; dy where it lies or copied. */
static weight_view gather_strips(const weight_pass *p, const conv_box *box, int32_t m, int32_t rows_m, int32_t images,
                                 const float *dy, const weight_space *space, const conv_layout *l) {
    const conv_weight_gradient_f32_args *a = p->a;
    int32_t volume = volume_of(a->out), image_stride = box->channels * l->channel_stride, per_row = ceil_div(box->cols, 4);
    tap_offsets(p->axis, l, box->channels, space->offsets);
    for (int32_t image = 0; image < images; image++) {
        int32_t n = (box->n + image) * a->groups + box->group;
        gather_box(l, box, a->x + n * p->cg * volume_of(a->size), space->boxes + image * image_stride);
    }
    int32_t *place = space->places;
    for (int32_t r = 0; r < box->rows; r++) {
        for (int32_t i = 0; i < per_row; i++) *place++ = 4 * (r * l->out_stride + 4 * i);
    }
    weight_view v = {dy, space->boxes, images, 4 * box->rows * per_row, a->m * volume, volume, image_stride, space->offsets,
                     space->places};
    if (copies_dy(p)) {
        gather_dy(p, box, m, rows_m, images, space->dy);
        v.dy = space->dy, v.dy_image = v.positions, v.dy_channel = images * v.positions;
    }
    return v;
}

/* Planes where they lie. */
static weight_view view_planes(const weight_pass *p, const conv_box *box, int32_t images, const float *dy,
                               const weight_space *space) {
    const conv_weight_gradient_f32_args *a = p->a;
    int32_t volume = volume_of(a->out);
    const float *x = a->x + ((box->n * a->groups + box->group) * p->cg + box->channel0) * volume + box->col0;
    for (int32_t c = 0; c < box->channels; c++) space->offsets[c] = 4 * c * volume;
    return (weight_view){dy, x, images, box->cols, a->m * volume, volume, a->c * volume, space->offsets, 0};
}

static void add_box(const weight_pass *p, const conv_box *box, int32_t m, int32_t rows_m, int32_t images,
                    const weight_space *space) {
    const conv_weight_gradient_f32_args *a = p->a;
    const float *dy = a->dy + (box->n * a->groups + box->group) * p->mg * volume_of(a->out) + plane_at(p, m, box);
    conv_layout l = layout_box(p->reach, box->rows, box->cols);
    weight_view v = p->layout == IN_PLACE ? view_planes(p, box, images, dy, space)
                    : p->layout == MERGED ? merge_images(p, box, m, rows_m, images, space, &l)
                                          : gather_strips(p, box, m, rows_m, images, dy, space, &l);
    add_products(&v, rows_m, box->channels * p->taps, space->acc);
}

static double strips_of_image(const weight_pass *p) {
    return p->layout == STRIPS ? (double)p->rows * ceil_div(p->cols, 4) : 0;
}

/* Floats that copies of dy need a channel: strips, or merged positions and one vector more. */
static double copied_floats(const weight_pass *p) {
    if (p->layout == MERGED) return (double)p->images * p->rows * p->cols + 7;
    return p->layout == STRIPS && copies_dy(p) ? 4 * p->images * strips_of_image(p) : 0;
}

static double space_floats(const weight_pass *p) {
    double k = (double)p->channels * p->taps, copied = copied_floats(p);
    double boxes = p->layout == MERGED ? 1 : p->layout == IN_PLACE ? 0 : p->images;
    return 4.0 * p->rows_m * k + k + strips_of_image(p) + boxes * box_floats(p->reach, p->channels, p->rows, p->cols) +
           (p->rows_m + (p->layout == MERGED ? k : 0)) * copied;
}

static weight_space divide_scratch(const weight_pass *p) {
    int32_t k = p->channels * p->taps, copied = (int32_t)copied_floats(p) & ~3;
    weight_space space = {.acc = thread_scratch()};
    space.columns = space.acc + 4 * p->rows_m * k;
    space.dy = space.columns + (p->layout == MERGED ? k * copied : 0);
    space.offsets = (int32_t *)(space.dy + p->rows_m * copied);
    space.places = space.offsets + k;
    space.boxes = (float *)(space.places + (int32_t)strips_of_image(p));
    return space;
}

/* Sums of the lanes of acc[n][4], in the order of hsum. */
static void sum_lanes(const float *acc, int32_t n, float *out, bool add) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4, acc += 16) {
        f32x4 a = load4(acc), b = load4(acc + 4), c = load4(acc + 8), d = load4(acc + 12);
        transpose4(&a, &b, &c, &d);
        f32x4 sum = add4(add4(a, c), add4(b, d));
        store4(out + i, add ? add4(load4(out + i), sum) : sum);
    }
    for (; i < n; i++, acc += 4) out[i] = add ? out[i] + hsum(load4(acc)) : hsum(load4(acc));
}

static void weight_chunk(const void *args, int32_t chunk) {
    const weight_pass *p = args;
    const conv_weight_gradient_f32_args *a = p->a;
    int32_t m = chunk % p->m_blocks * p->rows_m, rows_m = min_i32(p->rows_m, p->mg - m);
    chunk /= p->m_blocks;
    conv_box box = {.channel0 = chunk % p->c_blocks * p->channels};
    chunk /= p->c_blocks;
    box.group = chunk % a->groups;
    int32_t image_group = chunk / a->groups, end = (int32_t)((int64_t)(image_group + 1) * a->n / p->image_groups);
    box.channels = min_i32(p->channels, p->cg - box.channel0);
    int32_t k = box.channels * p->taps;
    weight_space space = divide_scratch(p);
    tw_zero(space.acc, 16 * (size_t)(rows_m * k));
    for (box.n = (int32_t)((int64_t)image_group * a->n / p->image_groups); box.n < end; box.n += p->images) {
        int32_t images = min_i32(p->images, end - box.n);
        for (box.depth = 0; box.depth < p->axis[0].out; box.depth++) {
            for (box.row0 = 0; box.row0 < p->axis[1].out; box.row0 += p->rows) {
                box.rows = min_i32(p->rows, p->axis[1].out - box.row0);
                for (box.col0 = 0; box.col0 < p->axis[2].out; box.col0 += p->cols) {
                    box.cols = min_i32(p->cols, p->axis[2].out - box.col0);
                    add_box(p, &box, m, rows_m, images, &space);
                }
            }
        }
    }
    bool parts = p->image_groups > 1;
    float *dw = parts ? a->partial + image_group * a->m * p->cg * p->taps : a->dw;
    for (int32_t i = 0; i < rows_m; i++) {
        float *line = dw + ((box.group * p->mg + m + i) * p->cg + box.channel0) * p->taps;
        sum_lanes(space.acc + 4 * i * k, k, line, a->accumulate && !parts);
    }
}

static void add_image_groups(const weight_pass *p) {
    const conv_weight_gradient_f32_args *a = p->a;
    int32_t n = a->m * p->cg * p->taps;
    for (int32_t i = 0; i < n; i++) {
        float sum = a->partial[i];
        for (int32_t g = 1; g < p->image_groups; g++) sum += a->partial[g * n + i];
        a->dw[i] = a->accumulate ? a->dw[i] + sum : sum;
    }
}

/* ---- one weight at a time, for windows that no workspace holds ---- */

static double weight_at(const weight_pass *p, int32_t m, int32_t c, const int32_t tap[3]) {
    const conv_weight_gradient_f32_args *a = p->a;
    int32_t group = m / p->mg, first[3];
    double sum = 0;
    for (int32_t i = 0; i < 3; i++) first[i] = tap[i] * a->dilation[i] - a->pad[i];
    for (int32_t n = 0; n < a->n; n++) {
        const float *x = a->x + ((n * a->groups + group) * p->cg + c) * volume_of(a->size);
        const float *dy = a->dy + (n * a->m + m) * volume_of(a->out);
        for (int32_t oz = 0; oz < a->out[0]; oz++) {
            int32_t z = oz * a->stride[0] + first[0];
            for (int32_t oy = 0; oy < a->out[1]; oy++) {
                int32_t y = oy * a->stride[1] + first[1];
                bool outside = z < 0 || z >= a->size[0] || y < 0 || y >= a->size[1];
                for (int32_t ox = 0; ox < a->out[2]; ox++, dy++) {
                    int32_t i = ox * a->stride[2] + first[2];
                    if (!outside && i >= 0 && i < a->size[2]) sum += (double)*dy * x[(z * a->size[1] + y) * a->size[2] + i];
                }
            }
        }
    }
    return sum;
}

static void weight_pair(const void *args, int32_t pair) {
    const weight_pass *p = args;
    const conv_weight_gradient_f32_args *a = p->a;
    float *dw = a->dw + pair * p->taps;
    int32_t tap[3];
    for (tap[0] = 0; tap[0] < a->kernel[0]; tap[0]++) {
        for (tap[1] = 0; tap[1] < a->kernel[1]; tap[1]++) {
            for (tap[2] = 0; tap[2] < a->kernel[2]; tap[2]++, dw++) {
                float sum = (float)weight_at(p, pair / p->cg, pair % p->cg, tap);
                *dw = a->accumulate ? *dw + sum : sum;
            }
        }
    }
}

/* ---- bias ---- */

typedef struct {
    const float *dy;
    float *db;
    int32_t n, m, volume;
    bool accumulate;
} bias_task;

static void bias_chunk(const void *args, int32_t m) {
    const bias_task *a = args;
    int32_t volume = a->volume;
    float sum = 0;
    for (int32_t n = 0; n < a->n; n++) {
        const float *dy = a->dy + (n * a->m + m) * volume;
        f32x4 part[4] = {splat(0), splat(0), splat(0), splat(0)};
        int32_t i = 0;
        for (; i + 16 <= volume; i += 16)
            UNROLL for (int32_t j = 0; j < 4; j++) part[j] = add4(part[j], load4(dy + i + 4 * j));
        for (; i + 4 <= volume; i += 4) part[0] = add4(part[0], load4(dy + i));
        float image = hsum(add4(add4(part[0], part[1]), add4(part[2], part[3])));
        for (; i < volume; i++) image += dy[i];
        sum += image;
    }
    a->db[m] = a->accumulate ? a->db[m] + sum : sum;
}

void channel_sums(const float *dy, float *db, int32_t n, int32_t m, int32_t volume, bool accumulate) {
    bias_task task = {dy, db, n, m, volume, accumulate};
    parallel_for(bias_chunk, &task, m);
}

/* ---- blocking ---- */

enum { LIMIT_FLOATS = THREAD_SCRATCH_BYTES / 4, ACC_FLOATS = 64 << 10, PREFERRED_FLOATS = 160 << 10 };
enum { MAX_COLS = 1024, MIN_COLS = 32, ENOUGH_STRIPS = 96, CHUNK_WORK = 1 << 20, CHUNKS = CONV_IMAGE_GROUPS };
/* Positions that make up for summing lanes of a group of images once more. */
enum { GROUPED_POSITIONS = 512 };
/* Each block of rows gathers its sources anew, so channels are parted first, into blocks of about this many. */
enum { GATHERED_CHANNELS = 16 };

/* Planes of x and dy that are the same row: a stride may leave one row of several, or of padding. */
static bool whole_planes(const weight_pass *p) {
    const conv_axis *x = &p->axis[2];
    for (int32_t i = 0; i < 2; i++) {
        if (p->axis[i].source != 1 || p->axis[i].shift_first) return false;
    }
    return p->taps == 1 && x->step == 1 && x->out >= 4 && x->out == volume_of(p->a->out) && x->source == x->out;
}

/* Groups of images and blocks of dw for the chunks, from shapes alone. */
static void choose_chunks(weight_pass *p) {
    const conv_weight_gradient_f32_args *a = p->a;
    double positions = (double)a->n * volume_of(a->out), weights = (double)a->m * p->cg * p->taps;
    double want = positions * weights / CHUNK_WORK < CHUNKS ? positions * weights / CHUNK_WORK : CHUNKS;
    p->channels = p->cg;
    p->rows_m = p->mg;
    p->image_groups = 1;
    double most = min_i32(a->n, CHUNKS);
    if (most > positions / GROUPED_POSITIONS) most = positions / GROUPED_POSITIONS;
    if (weights > CONV_GROUPED_WEIGHTS || a->groups > 1) most = 1;
    while (p->image_groups < want && p->image_groups + 1 <= most) p->image_groups++;
    for (;;) {
        p->c_blocks = ceil_div(p->cg, p->channels);
        p->m_blocks = ceil_div(p->mg, p->rows_m);
        bool fits = 4.0 * p->rows_m * p->channels * p->taps <= ACC_FLOATS;
        if (fits && (double)a->groups * p->image_groups * p->c_blocks * p->m_blocks >= want) break;
        double least = whole_planes(p) ? p->rows_m : GATHERED_CHANNELS;
        if (p->channels > 1 && ((double)p->channels * p->taps >= least || p->rows_m <= TILE_M)) {
            p->channels = (p->channels + 1) / 2;
        } else if (p->rows_m > TILE_M) {
            p->rows_m = ceil_div((p->rows_m + 1) / 2, TILE_M) * TILE_M;
        } else {
            break;
        }
    }
}

/* The layout of positions, and boxes of them; false if even the smallest do not fit. */
static bool choose_layout(weight_pass *p) {
    const conv_axis *y = &p->axis[1], *x = &p->axis[2];
    p->layout = whole_planes(p) ? IN_PLACE : x->out < MERGED_COLS ? MERGED : STRIPS;
    p->images = 1;
    p->rows = y->out;
    p->cols = min_i32(x->out, MAX_COLS);
    while (p->rows > 1 && space_floats(p) > PREFERRED_FLOATS) p->rows = (p->rows + 1) / 2;
    if (p->layout == MERGED && space_floats(p) > LIMIT_FLOATS) p->layout = STRIPS;
    while (p->cols > MIN_COLS && space_floats(p) > LIMIT_FLOATS) p->cols = (p->cols / 2 + 3) & ~3;
    if (space_floats(p) > LIMIT_FLOATS) return false;
    if (p->rows < y->out || p->cols < x->out) return true;
    while (p->images < p->a->n && p->images * p->rows * ceil_div(p->cols, 4) < ENOUGH_STRIPS) {
        p->images++;
        if (space_floats(p) <= PREFERRED_FLOATS) continue;
        p->images--;
        break;
    }
    return true;
}

void product_weight_gradient(const conv_weight_gradient_f32_args *a) {
    weight_pass p = {.a = a, .cg = a->c / a->groups, .mg = a->m / a->groups, .taps = a->kernel[0] * a->kernel[1] * a->kernel[2]};
    for (int32_t i = 0; i < 3; i++) {
        p.axis[i] = (conv_axis){a->out[i], a->stride[i], a->kernel[i], 0, 1, -a->pad[i], a->dilation[i], 0, 1,
                                a->size[i], a->out[i]};
    }
    merge_pointwise_axes(p.axis);
    for (int32_t i = 0; i < 3; i++) p.reach[i] = reach_of(&p.axis[i]);
    if (p.cg && p.mg) {
        choose_chunks(&p);
        if (choose_layout(&p)) {
            parallel_for(weight_chunk, &p, a->groups * p.image_groups * p.c_blocks * p.m_blocks);
            if (p.image_groups > 1) add_image_groups(&p);
        } else {
            parallel_for(weight_pair, &p, a->m * p.cg);
        }
    }
}
