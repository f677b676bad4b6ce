/* dw[m][c, tap] = sum over positions dy[m] x[c, tap]. Both run along the positions, so a register tile accumulates four
   positions side by side and lanes are summed at the very end. A chunk owns a block of dw and walks over all images in
   order: no partial sums of other threads, hence the same bytes for any number of threads. */
#include "conv.h"
#include "conv_direct.h"
#include "parallel.h"
#include "tile.h"

typedef struct {
    const conv_weight_gradient_f32_args *a;
    conv_axis axis[3];
    conv_reach reach[3];
    int32_t cg, mg, taps; /* channels per group */
    int32_t channels, c_blocks, rows_m, m_blocks;
    int32_t rows, cols, images;
    bool in_place; /* dy needs no copy: its rows are whole strips and lie one after the other */
    bool bare;     /* nor does x, whose windows have one tap */
} weight_pass;

TW_INLINE int32_t volume_of(const int32_t size[3]) { return size[0] * size[1] * size[2]; }

enum { TILE_M = 3, TILE_K = 3 };

/* One strip: dy at constant offset u, sources at byte offset `at`. */
TW_INLINE void weight_step(const int32_t rows, const int32_t taps, const int32_t u, const float *const line[TILE_M],
                           const char *const source[TILE_K], int32_t at, f32x4 sum[TILE_M][TILE_K]) {
    f32x4 v[TILE_K];
    UNROLL for (int32_t j = 0; j < taps; j++) v[j] = load4((const float *)(source[j] + at));
    UNROLL for (int32_t i = 0; i < rows; i++) {
        f32x4 d = load4(line[i] + u);
        UNROLL for (int32_t j = 0; j < taps; j++) {
            sum[i][j] = madd(d, v[j], sum[i][j]);
            IN_ORDER(sum[i][j]);
        }
    }
}

/* acc[i][j] += sum over strips of dy line i times the source of tap j; without `positions` strips follow each other. */
TW_INLINE void weight_tile(const int32_t rows, const int32_t taps, int32_t strips, const float *dy, int32_t dy_line,
                           const float *sources, const int32_t *offsets, const int32_t *positions, float *acc,
                           int32_t acc_line) {
    f32x4 sum[TILE_M][TILE_K];
    const char *source[TILE_K];
    const float *line[TILE_M];
    UNROLL for (int32_t i = 0; i < rows; i++) {
        UNROLL for (int32_t j = 0; j < taps; j++) sum[i][j] = load4(acc + i * acc_line + 4 * j);
        line[i] = dy + i * dy_line;
    }
    UNROLL for (int32_t j = 0; j < taps; j++) source[j] = (const char *)sources + offsets[j];
    if (positions) {
        for (int32_t s = 0; s < strips; s++) {
            weight_step(rows, taps, 0, line, source, positions[s], sum);
            UNROLL for (int32_t i = 0; i < rows; i++) line[i] += 4;
        }
    } else {
        for (; strips >= 4; strips -= 4) {
            UNROLL for (int32_t u = 0; u < 4; u++) weight_step(rows, taps, 4 * u, line, source, 16 * u, sum);
            UNROLL for (int32_t i = 0; i < rows; i++) line[i] += 16;
            UNROLL for (int32_t j = 0; j < taps; j++) source[j] += 64;
        }
        for (; strips; strips--) {
            weight_step(rows, taps, 0, line, source, 0, sum);
            UNROLL for (int32_t i = 0; i < rows; i++) line[i] += 4;
            UNROLL for (int32_t j = 0; j < taps; j++) source[j] += 16;
        }
    }
    UNROLL for (int32_t i = 0; i < rows; i++) {
        UNROLL for (int32_t j = 0; j < taps; j++) store4(acc + i * acc_line + 4 * j, sum[i][j]);
    }
}

#define TILE_PARAMS                                                                                                    \
    int32_t strips, const float *dy, int32_t dy_line, const float *sources, const int32_t *offsets,                    \
        const int32_t *positions, float *acc, int32_t acc_line
#define TILE_ARGS strips, dy, dy_line, sources, offsets, positions, acc, acc_line
#define TILE(rows)                                                                                                     \
    static void tile_##rows##x1(TILE_PARAMS) { weight_tile(rows, 1, TILE_ARGS); }                                      \
    static void tile_##rows##x2(TILE_PARAMS) { weight_tile(rows, 2, TILE_ARGS); }                                      \
    static void tile_##rows##x3(TILE_PARAMS) { weight_tile(rows, 3, TILE_ARGS); }

TILE(1)
TILE(2)
TILE(3)

typedef void (*tile_fn)(TILE_PARAMS);
static const tile_fn tiles[TILE_M][TILE_K] = {
    {tile_1x1, tile_1x2, tile_1x3}, {tile_2x1, tile_2x2, tile_2x3}, {tile_3x1, tile_3x2, tile_3x3}};

/* Parts of the workspace of a chunk. */
typedef struct {
    float *acc, *sources, *dy;
    int32_t *offsets, *positions;
    int32_t source_stride, strips; /* per image */
    bool in_line; /* the strips follow each other */
} weight_space;

/* Where the box begins in the planes of dy of one image and group. */
static int32_t plane_at(const weight_pass *p, int32_t m, const conv_box *box) {
    const conv_axis *a = p->axis;
    return ((m * a[0].out + box->depth) * a[1].out + box->row0) * a[2].out + box->col0;
}

/* Rows of dy, each filled up with zeros to whole strips: out[m][image][row][col]. */
static void gather_dy(const weight_pass *p, const conv_box *box, const float *dy, int32_t m, int32_t rows_m,
                      int32_t image, const weight_space *space) {
    int32_t width = (box->cols + 3) & ~3;
    for (int32_t i = 0; i < rows_m; i++) {
        const float *plane = dy + plane_at(p, m + i, box);
        float *out = space->dy + (i * p->images + image) * 4 * space->strips;
        for (int32_t r = 0; r < box->rows; r++, plane += p->axis[2].out, out += width) {
            int32_t col = 0;
            for (; col + 4 <= box->cols; col += 4) store4(out + col, load4(plane + col));
            for (; col < box->cols; col++) out[col] = plane[col];
            for (; col < width; col++) out[col] = 0;
        }
    }
}

static void add_products(const weight_space *space, const float *dy, int32_t dy_line, int32_t rows_m, int32_t k,
                         int32_t images) {
    int32_t blocks = ceil_div(rows_m, TILE_M);
    const int32_t *positions = space->in_line ? 0 : space->positions;
    for (int32_t j = 0; j < k; j += TILE_K) {
        for (int32_t b = 0; b < blocks; b++) {
            int32_t i = b * rows_m / blocks, rows = (b + 1) * rows_m / blocks - i;
            tiles[rows - 1][min_i32(TILE_K, k - j) - 1](images * space->strips, dy + i * dy_line, dy_line, space->sources,
                                                       space->offsets + j, positions, space->acc + (i * k + j) * 4, 4 * k);
        }
    }
}

/* Planes of whole strips, where they lie. */
static void add_planes(const weight_pass *p, const conv_box *box, int32_t m, int32_t rows_m, weight_space *space) {
    const conv_weight_gradient_f32_args *a = p->a;
    int32_t n = box->n * a->groups + box->group, volume = volume_of(a->out);
    for (int32_t c = 0; c < box->channels; c++) space->offsets[c] = 4 * c * volume;
    space->strips = box->cols / 4;
    space->in_line = true;
    space->sources = (float *)a->x + (n * p->cg + box->channel0) * volume + box->col0;
    add_products(space, a->dy + n * p->mg * volume + plane_at(p, m, box), volume, rows_m, box->channels, 1);
}

static void add_box(const weight_pass *p, conv_box *box, int32_t m, int32_t rows_m, int32_t images, weight_space *space) {
    const conv_weight_gradient_f32_args *a = p->a;
    if (p->bare) {
        add_planes(p, box, m, rows_m, space);
        return;
    }
    conv_layout l = layout_box(p->reach, box->rows, box->cols);
    int32_t k = box->channels * p->taps, per_row = ceil_div(box->cols, 4);
    space->source_stride = box->channels * l.channel_stride;
    space->strips = box->rows * per_row;
    space->in_line = l.out_stride == 4 * per_row && images == 1;
    tap_offsets(p->axis, &l, box->channels, space->offsets);
    int32_t *position = space->positions;
    for (int32_t image = 0; image < images; image++) {
        int32_t n = (box->n + image) * a->groups + box->group;
        const float *x = a->x + n * p->cg * volume_of(a->size);
        gather_box(&l, box, x, space->sources + image * space->source_stride);
        if (!p->in_place) gather_dy(p, box, a->dy + n * p->mg * volume_of(a->out), m, rows_m, image, space);
        for (int32_t r = 0; r < box->rows; r++) {
            int32_t row = image * space->source_stride + r * l.out_stride;
            for (int32_t s = 0; s < per_row; s++) *position++ = 4 * (row + 4 * s);
        }
    }
    if (p->in_place) {
        const float *dy = a->dy + (box->n * a->groups + box->group) * p->mg * volume_of(a->out) + plane_at(p, m, box);
        add_products(space, dy, volume_of(a->out), rows_m, k, 1);
    } else {
        add_products(space, space->dy, p->images * 4 * space->strips, rows_m, k, images);
    }
}

static weight_space divide_scratch(const weight_pass *p) {
    weight_space space = {0};
    int32_t k = p->channels * p->taps;
    int32_t strips = p->images * p->rows * ceil_div(p->cols, 4);
    space.acc = thread_scratch();
    space.dy = space.acc + 4 * p->rows_m * k;
    space.offsets = (int32_t *)(space.dy + p->rows_m * 4 * strips);
    space.positions = space.offsets + k;
    space.sources = (float *)(space.positions + strips);
    return space;
}

static void weight_chunk(const void *args, int32_t chunk) {
    const weight_pass *p = args;
    const conv_weight_gradient_f32_args *a = p->a;
    int32_t m = chunk % p->m_blocks * p->rows_m, rows_m = min_i32(p->rows_m, p->mg - m);
    conv_box box = {.group = chunk / p->m_blocks / p->c_blocks, .channel0 = chunk / p->m_blocks % p->c_blocks * p->channels};
    box.channels = min_i32(p->channels, p->cg - box.channel0);
    int32_t k = box.channels * p->taps;
    weight_space space = divide_scratch(p);
    for (int32_t i = 0; i < 4 * rows_m * k; i++) space.acc[i] = 0;
    for (box.n = 0; box.n < a->n; box.n += p->images) {
        int32_t images = min_i32(p->images, a->n - box.n);
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
    for (int32_t i = 0; i < rows_m; i++) {
        float *dw = a->dw + ((box.group * p->mg + m + i) * p->cg + box.channel0) * p->taps;
        for (int32_t j = 0; j < k; j++) {
            float sum = hsum(load4(space.acc + (i * k + j) * 4));
            dw[j] = a->accumulate ? dw[j] + sum : sum;
        }
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

/* ---- the kernel ---- */

enum { LIMIT_FLOATS = THREAD_SCRATCH_BYTES / 4, ACC_FLOATS = 64 << 10, PREFERRED_FLOATS = 160 << 10 };
enum { MAX_COLS = 1024, MIN_COLS = 32, ENOUGH_STRIPS = 96, CHUNK_WORK = 1 << 20, CHUNKS = 8 };

static double space_floats(const weight_pass *p) {
    double k = (double)p->channels * p->taps, strips = (double)p->images * p->rows * ceil_div(p->cols, 4);
    return 4.0 * p->rows_m * k + 4.0 * p->rows_m * strips + k + strips +
           p->images * box_floats(p->reach, p->channels, p->rows, p->cols);
}

/* Chooses blocks of dw and boxes of positions from shapes alone; false if even the smallest do not fit. */
static bool choose_blocks(weight_pass *p) {
    const conv_weight_gradient_f32_args *a = p->a;
    double work = (double)a->n * p->mg * a->c * p->taps * a->out[0] * a->out[1] * a->out[2];
    double want = work / CHUNK_WORK < CHUNKS ? work / CHUNK_WORK : CHUNKS;
    p->channels = p->cg;
    p->rows_m = p->mg;
    for (;;) {
        p->c_blocks = ceil_div(p->cg, p->channels);
        p->m_blocks = ceil_div(p->mg, p->rows_m);
        bool fits = 4.0 * p->rows_m * p->channels * p->taps <= ACC_FLOATS;
        if (fits && (double)a->groups * p->c_blocks * p->m_blocks >= want) break;
        if (p->channels > 1 && ((double)p->channels * p->taps >= p->rows_m || p->rows_m == 1)) {
            p->channels = (p->channels + 1) / 2;
        } else if (p->rows_m > TILE_M) {
            p->rows_m = ceil_div((p->rows_m + 1) / 2, TILE_M) * TILE_M;
        } else {
            break;
        }
    }
    const conv_axis *y = &p->axis[1], *x = &p->axis[2];
    p->images = 1;
    p->rows = y->out;
    p->cols = min_i32(x->out, MAX_COLS);
    while (p->rows > 1 && space_floats(p) > PREFERRED_FLOATS) p->rows = (p->rows + 1) / 2;
    while (p->cols > MIN_COLS && space_floats(p) > LIMIT_FLOATS) p->cols = (p->cols / 2 + 3) & ~3;
    if (space_floats(p) > LIMIT_FLOATS) return false;
    p->in_place = x->out % 4 == 0 && (p->cols == x->out || p->rows == 1) && p->rows * p->cols >= 4 * ENOUGH_STRIPS / 2;
    p->bare = p->taps == 1 && x->out % 4 == 0 && x->step == 1 && x->out == volume_of(a->out) && x->source == x->out;
    p->in_place |= p->bare;
    if (p->in_place || p->rows < y->out || p->cols < x->out) return true;
    while (p->images < a->n && p->images * p->rows * ceil_div(p->cols, 4) < ENOUGH_STRIPS) {
        p->images++;
        if (space_floats(p) <= PREFERRED_FLOATS) continue;
        p->images--;
        break;
    }
    return true;
}

int32_t kernel_conv_weight_gradient_f32(const conv_weight_gradient_f32_args *a) {
    if (a->db) channel_sums(a->dy, a->db, a->n, a->m, volume_of(a->out), a->accumulate != 0);
    int32_t cg = a->c / a->groups, mg = a->m / a->groups;
    if (IS_PLANAR(a) && direct_suits(cg, mg, a->kernel + 1, a->stride[1], a->out[2])) {
        direct_gradient gradient = {a->n, a->groups, cg, mg, {a->size[1], a->size[2]}, {a->out[1], a->out[2]},
                                    {a->kernel[1], a->kernel[2]}, {a->pad[1], a->pad[2]}, a->stride[1], a->x, a->dy,
                                    a->accumulate != 0, a->dw};
        direct_weight_gradient(&gradient);
        return TW_OK;
    }
    weight_pass p = {.a = a, .cg = cg, .mg = mg, .taps = a->kernel[0] * a->kernel[1] * a->kernel[2]};
    for (int32_t i = 0; i < 3; i++) {
        p.axis[i] = (conv_axis){a->out[i], a->stride[i], a->kernel[i], 0, 1, -a->pad[i], a->dilation[i], 0, 1,
                                a->size[i], a->out[i]};
    }
    merge_pointwise_axes(p.axis);
    for (int32_t i = 0; i < 3; i++) p.reach[i] = reach_of(&p.axis[i]);
    if (p.cg && p.mg) {
        if (choose_blocks(&p)) parallel_for(weight_chunk, &p, a->groups * p.c_blocks * p.m_blocks);
        else parallel_for(weight_pair, &p, a->m * p.cg);
    }
    return TW_OK;
}
