/* Convolutions as products without materialised columns. A chunk copies the sources of a box of outputs, padded with
   zeros, into its workspace. There the source of 4 neighbouring outputs for any (channel, tap) is 4 neighbouring floats
   at a fixed offset. So a register tile of output channels x output columns streams weights and offsets. */
#include "boxed.h"

#include "parallel.h"
#include "tile.h"
#include "view.h"

/* ---- register tiles ---- */

/* Residue classes of the outputs by the stride: a forward convolution has one, the data gradient one for each residue
   on each axis; their outputs interleave. */
typedef struct {
    const float *x, *w, *bias;
    float *y;
    int32_t n, groups, in_channels, out_channels; /* per group */
    int32_t classes[3];                           /* numbers of residues */
    int32_t kernel[3], stride[3], dilation[3], pad[3];
    bool gradient, accumulate, relu;
    bool sparse; /* single pixels back through a stride: the sums of one class, zeros between them */
    conv_axis axis[3]; /* of the first class, which has the most outputs */
    conv_reach reach[3];
    int32_t rows, row_blocks, cols, col_blocks, channels, m_blocks, max_taps;
} conv_pass;

/* The destination of a tile's outputs. */
typedef struct {
    float *y;
    int32_t channel_stride, step;
    const float *bias; /* null unless this is the last block of channels */
    bool add, relu;
} strip_out;

static void store_lanes(float *y, int32_t step, int32_t lanes, f32x4 v, bool add, bool relu) {
    float t[4];
    store4(t, v);
    for (int32_t i = 0; i < lanes; i++) {
        float value = add ? y[i * step] + t[i] : t[i];
        y[i * step] = relu && value < 0 ? 0 : value;
    }
}

TW_INLINE void store_strip(float *y, int32_t step, int32_t lanes, f32x4 v, bool add, bool relu) {
    if (lanes < 4 || (step != 1 && (add || relu))) {
        store_lanes(y, step, lanes, v, add, relu);
    } else if (step != 1) {
        wasm_v128_store32_lane(y, v, 0);
        wasm_v128_store32_lane(y + step, v, 1);
        wasm_v128_store32_lane(y + 2 * step, v, 2);
        wasm_v128_store32_lane(y + 3 * step, v, 3);
    } else {
        if (add) v = add4(v, load4(y));
        if (relu) v = wasm_f32x4_pmax(v, splat(0));
        store4(y, v);
    }
}

/* One (channel, tap): its weights at constant offset u, its sources at byte offset `at`. */
TW_INLINE void conv_step(const int32_t rows, const int32_t strips, const bool adjacent, const int32_t u,
                         const float *const line[TILE_ROWS], const char *const source[2], int32_t at,
                         f32x4 acc[TILE_ROWS][2]) {
    f32x4 v[2];
    if (adjacent) {
        const float *both = (const float *)(source[0] + at);
        v[0] = load4(both), v[1] = load4(both + 4);
    } else {
        UNROLL for (int32_t j = 0; j < strips; j++) v[j] = load4((const float *)(source[j] + at));
    }
    UNROLL for (int32_t i = 0; i < rows; i++) {
        f32x4 weight = load_splat(line[i] + u);
        UNROLL for (int32_t j = 0; j < strips; j++) {
            acc[i][j] = madd(weight, v[j], acc[i][j]);
            IN_ORDER(acc[i][j]);
        }
    }
}

/* rows output channels x strips of 4 columns, over all (channel, tap). */
TW_INLINE void conv_sum(const int32_t rows, const int32_t strips, const bool adjacent, int32_t k, const float *w,
                        int32_t w_row, const int32_t *offsets, const char *const source[2], const float *bias,
                        f32x4 acc[TILE_ROWS][2]) {
    const float *line[TILE_ROWS];
    UNROLL for (int32_t i = 0; i < rows; i++) {
        f32x4 start = bias ? load_splat(bias + i) : splat(0);
        UNROLL for (int32_t j = 0; j < strips; j++) acc[i][j] = start;
        line[i] = w + i * w_row;
    }
    for (; k >= 4; k -= 4, offsets += 4) {
        UNROLL for (int32_t u = 0; u < 4; u++) conv_step(rows, strips, adjacent, u, line, source, offsets[u], acc);
        UNROLL for (int32_t i = 0; i < rows; i++) line[i] += 4;
    }
    for (; k; k--, offsets++) {
        conv_step(rows, strips, adjacent, 0, line, source, *offsets, acc);
        UNROLL for (int32_t i = 0; i < rows; i++) line[i]++;
    }
}

/* Strips anywhere; sources of strip j at base[j], its outputs at at[j] of channel 0. */
TW_INLINE void conv_tile(const int32_t rows, const int32_t strips, int32_t k, const float *w, int32_t w_row,
                         const int32_t *offsets, const float *const *base, const strip_out *o, const int32_t *at,
                         const int32_t *lanes) {
    f32x4 acc[TILE_ROWS][2];
    const char *source[2];
    UNROLL for (int32_t j = 0; j < strips; j++) source[j] = (const char *)base[j];
    conv_sum(rows, strips, false, k, w, w_row, offsets, source, o->bias, acc);
    UNROLL for (int32_t i = 0; i < rows; i++) {
        UNROLL for (int32_t j = 0; j < strips; j++) {
            store_strip(o->y + i * o->channel_stride + at[j], o->step, lanes[j], acc[i][j], o->add, o->relu);
        }
    }
}

/* A run of `pairs` pairs of whole strips side by side in one row of outputs. */
TW_INLINE void conv_run(const int32_t rows, int32_t pairs, int32_t k, const float *w, int32_t w_row,
                        const int32_t *offsets, const float *base, const strip_out *o, float *y) {
    int32_t channel_stride = o->channel_stride;
    for (; pairs; pairs--, base += 8, y += 8) {
        f32x4 acc[TILE_ROWS][2];
        const char *source[2] = {(const char *)base, 0};
        conv_sum(rows, 2, true, k, w, w_row, offsets, source, o->bias, acc);
        if (o->add) {
            UNROLL for (int32_t i = 0; i < rows; i++) {
                UNROLL for (int32_t j = 0; j < 2; j++) {
                    acc[i][j] = add4(acc[i][j], load4(y + i * channel_stride + 4 * j));
                }
            }
        }
        if (o->relu) {
            f32x4 zero = splat(0);
            UNROLL for (int32_t i = 0; i < rows; i++) {
                UNROLL for (int32_t j = 0; j < 2; j++) acc[i][j] = wasm_f32x4_pmax(acc[i][j], zero);
            }
        }
        UNROLL for (int32_t i = 0; i < rows; i++) {
            UNROLL for (int32_t j = 0; j < 2; j++) store4(y + i * channel_stride + 4 * j, acc[i][j]);
        }
    }
}

#define TILE_PARAMS                                                                                                    \
    int32_t k, const float *w, int32_t w_row, const int32_t *offsets, const float *const *base, const strip_out *o,    \
        const int32_t *at, const int32_t *lanes
#define TILE_ARGS k, w, w_row, offsets, base, o, at, lanes
#define RUN_PARAMS                                                                                                     \
    int32_t pairs, int32_t k, const float *w, int32_t w_row, const int32_t *offsets, const float *base,                \
        const strip_out *o, float *y
#define RUN_ARGS pairs, k, w, w_row, offsets, base, o, y
#define TILE(rows)                                                                                                     \
    static void tile_##rows##x1(TILE_PARAMS) { conv_tile(rows, 1, TILE_ARGS); }                                        \
    static void tile_##rows##x2(TILE_PARAMS) { conv_tile(rows, 2, TILE_ARGS); }                                        \
    static void run_##rows(RUN_PARAMS) { conv_run(rows, RUN_ARGS); }

TILE(1)
TILE(2)
TILE(3)
TILE(4)
#ifdef TW_RELAXED
TILE(5)
TILE(6)
#endif

typedef void (*run_fn)(RUN_PARAMS);
static const run_fn runs[TILE_ROWS] = {
    run_1, run_2, run_3, run_4,
#ifdef TW_RELAXED
    run_5, run_6,
#endif
};

typedef void (*tile_fn)(TILE_PARAMS);
static const tile_fn tiles[TILE_ROWS][2] = {
    {tile_1x1, tile_1x2}, {tile_2x1, tile_2x2}, {tile_3x1, tile_3x2}, {tile_4x1, tile_4x2},
#ifdef TW_RELAXED
    {tile_5x1, tile_5x2}, {tile_6x1, tile_6x2},
#endif
};

/* ---- residue classes ---- */

static void class_axes(const conv_pass *p, int32_t index, conv_axis axis[3]) {
    for (int32_t i = 2; i >= 0; i--) {
        axis[i] = p->axis[i];
        if (p->gradient) {
            axis[i] = gradient_axis(index % p->classes[i], axis[i].out, axis[i].source, p->kernel[i], p->stride[i],
                                    p->dilation[i], p->pad[i]);
        }
        index /= p->classes[i];
    }
}

TW_INLINE int32_t n_taps(const conv_axis axis[3]) { return axis[0].taps * axis[1].taps * axis[2].taps; }
TW_INLINE int32_t n_classes(const conv_pass *p) { return p->classes[0] * p->classes[1] * p->classes[2]; }

/* Sources that any class reaches. */
static void join_classes(conv_pass *p) {
    int32_t taps[3];
    for (int32_t i = 0; i < 3; i++) {
        conv_reach *r = &p->reach[i];
        *r = reach_of(&p->axis[i]);
        taps[i] = p->axis[i].taps;
        for (int32_t first = 1; first < p->classes[i]; first++) {
            conv_axis axis = gradient_axis(first, p->axis[i].out, p->axis[i].source, p->kernel[i], p->stride[i],
                                           p->dilation[i], p->pad[i]);
            widen_reach(r, &taps[i], &axis);
        }
    }
    p->max_taps = taps[0] * taps[1] * taps[2];
}

/* Lines that windows of single pixels read follow each other, so that strips need not end with them. */
static void close_lines(conv_layout *l, int32_t cols) {
    l->line = l->row_stride = l->out_stride = cols;
    l->slice_stride = l->rows * cols;
    l->channel_stride = l->slices * l->slice_stride;
}

/* ---- a chunk: one box of outputs and a range of its channels ---- */

/* All strips of the box for output channels [m, m + rows). */
static void run_strips(const conv_axis axis[3], const conv_box *box, const conv_layout *l, const int32_t *offsets,
                       const float *sources, int32_t k, const float *w, int32_t w_row, int32_t rows, const strip_out *o) {
    const float *base[2];
    int32_t at[2], lanes[2], held = 0, first_row = axis[1].out_first + box->row0 * axis[1].out_step;
    int32_t cols = min_i32(box->cols, axis[2].count - box->col0), n_rows = min_i32(box->rows, axis[1].count - box->row0);
    if (l->out_stride == cols && cols == axis[2].out && axis[1].out_step == 1 && axis[2].out_step == 1) {
        cols *= n_rows;
        n_rows = 1;
    }
    for (int32_t r = 0; r < n_rows; r++) {
        int32_t row_at = (first_row + r * axis[1].out_step) * axis[2].out + axis[2].out_first + box->col0 * axis[2].out_step;
        const float *line = sources + r * l->out_stride;
        int32_t pairs = o->step == 1 ? cols / 8 : 0;
        if (pairs) runs[rows - 1](pairs, k, w, w_row, offsets, line, o, o->y + row_at);
        for (int32_t col = 8 * pairs; col < cols; col += 4) {
            base[held] = line + col;
            at[held] = row_at + col * axis[2].out_step;
            lanes[held] = min_i32(4, cols - col);
            if (++held == 2) {
                tiles[rows - 1][1](k, w, w_row, offsets, base, o, at, lanes);
                held = 0;
            }
        }
    }
    if (held) tiles[rows - 1][0](k, w, w_row, offsets, base, o, at, lanes);
}

static conv_box chunk_box(const conv_pass *p, int32_t chunk, int32_t *m_block) {
    conv_box box = {0};
    *m_block = chunk % p->m_blocks;
    chunk /= p->m_blocks;
    box.col0 = chunk % p->col_blocks * p->cols;
    box.cols = min_i32(p->cols, p->axis[2].count - box.col0);
    chunk /= p->col_blocks;
    box.row0 = chunk % p->row_blocks * p->rows;
    box.rows = min_i32(p->rows, p->axis[1].count - box.row0);
    chunk /= p->row_blocks;
    box.depth = chunk % p->axis[0].count;
    chunk /= p->axis[0].count;
    box.group = chunk % p->groups;
    box.n = chunk / p->groups;
    return box;
}

static int32_t volume(const conv_pass *p, bool out) {
    int32_t v = 1;
    for (int32_t i = 0; i < 3; i++) v *= out ? p->axis[i].out : p->axis[i].source;
    return v;
}

/* out[first + i * step] = line[i] for i < count, zeros elsewhere below n. */
static void spread_line(const float *line, int32_t count, int32_t first, int32_t step, float *out, int32_t n) {
    int32_t i = 0, pairs = step == 2 && first == 0 ? min_i32(count, n / 2) : 0;
    for (; i + 4 <= pairs; i += 4) {
        f32x4 v = load4(line + i);
        store4(out + 2 * i, wasm_i32x4_shuffle(v, splat(0), 0, 4, 1, 4));
        store4(out + 2 * i + 4, wasm_i32x4_shuffle(v, splat(0), 2, 4, 3, 4));
    }
    zero_floats(out + i * step, n - i * step);
    for (; i < count; i++) out[first + i * step] = line[i];
}

/* Write the lines of the box of `channels` planes y: the class that has taps gets `sums`, with zeros between them. */
static void spread_box(const conv_axis axis[3], const conv_box *box, const float *sums, int32_t channels, float *y) {
    const conv_axis *down = &axis[1], *across = &axis[2];
    int32_t step = down->out_step, top = box->row0 * step, end = min_i32(down->out, top + box->rows * step);
    for (int32_t i = 0; i < channels; i++, y += down->out * across->out, sums += box->rows * across->count) {
        for (int32_t row = top; row < end; row++) {
            float *line = y + row * across->out;
            int32_t from = row - down->out_first, r = from / step;
            if (from % step || r >= down->count) {
                zero_floats(line, across->out);
            } else {
                const float *sum = sums + (r - box->row0) * across->count;
                spread_line(sum, across->count, across->out_first, across->out_step, line, across->out);
            }
        }
    }
}

/* The outputs of one class in the box; `w` holds the weights of the class for all output channels of all groups. */
static void run_class(const conv_pass *p, const conv_axis axis[3], const conv_box *box, const conv_layout *l,
                      const int32_t *offsets, const float *sources, const float *w, int32_t m_block, float *sums) {
    bool last = box->channel0 + box->channels == p->in_channels;
    row_split split = split_rows(p->out_channels);
    int32_t taps = n_taps(axis);
    int32_t first = m_block * split.count / p->m_blocks, end = (m_block + 1) * split.count / p->m_blocks;
    int32_t depth = (axis[0].out_first + box->depth * axis[0].out_step) * axis[1].out * axis[2].out;
    strip_out o = {0, volume(p, true), axis[2].out_step, 0, p->accumulate || box->channel0 > 0, p->relu && last};
    conv_axis close[3] = {axis[0], axis[1], axis[2]}; /* lines of sums in the workspace follow each other */
    close[1].out_first = -box->row0, close[2].out_first = 0;
    close[1].out_step = close[2].out_step = 1;
    close[2].out = axis[2].count;
    for (int32_t i = first; i < end; i++) {
        int32_t m = split_start(&split, i), rows = split_height(&split, i);
        int32_t channel = box->group * p->out_channels + m;
        o.y = p->y + (box->n * p->groups * p->out_channels + channel) * o.channel_stride + depth;
        o.bias = p->bias && last ? p->bias + channel : 0;
        const float *lines = w + (channel * p->in_channels + box->channel0) * taps;
        if (p->sparse) {
            strip_out closed = {.y = sums, .channel_stride = box->rows * axis[2].count, .step = 1};
            run_strips(close, box, l, offsets, sources, box->channels, lines, p->in_channels, rows, &closed);
            spread_box(axis, box, sums, rows, o.y);
        } else {
            run_strips(axis, box, l, offsets, sources, box->channels * taps, lines, p->in_channels * taps, rows, &o);
        }
    }
}

/* True if the sources of the box lie as the workspace would hold them, in whole strips. */
static bool lies_closed(const conv_pass *p, const conv_box *box) {
    for (int32_t i = 0; i < 3; i++) {
        const conv_reach *r = &p->reach[i];
        if (r->span || r->min || r->step != 1 || p->axis[i].count > r->source) return false;
    }
    bool lines = box->rows == 1 || box->cols == p->reach[2].source;
    return lines && p->reach[0].source == 1 && box->rows * box->cols % 4 == 0;
}

static void conv_chunk(const void *args, int32_t chunk) {
    const conv_pass *p = args;
    int32_t m_block;
    conv_box box = chunk_box(p, chunk, &m_block);
    conv_layout l = layout_box(p->reach, box.rows, box.cols);
    if (p->reach[1].span == 0 && p->reach[2].span == 0) close_lines(&l, box.cols);
    bool in_place = lies_closed(p, &box);
    if (in_place) l.channel_stride = volume(p, false);
    int32_t *offsets = (int32_t *)thread_scratch();
    float *sources = thread_scratch() + p->channels * p->max_taps;
    float *sums = sources + (in_place ? 0 : p->channels * l.channel_stride);
    const float *x = p->x + (box.n * p->groups + box.group) * p->in_channels * volume(p, false);
    do {
        box.channels = min_i32(p->channels, p->in_channels - box.channel0);
        const float *from = sources;
        if (in_place) from = x + box.channel0 * l.channel_stride + box.row0 * box.cols + box.col0;
        else gather_box(&l, &box, x, sources);
        const float *w = p->w;
        for (int32_t i = 0; i < n_classes(p); i++) {
            conv_axis axis[3];
            class_axes(p, i, axis);
            if (p->sparse && !n_taps(axis)) continue;
            tap_offsets(axis, &l, box.channels, offsets);
            if (box.depth < axis[0].count) run_class(p, axis, &box, &l, offsets, from, w, m_block, sums);
            w += p->groups * p->out_channels * p->in_channels * n_taps(axis);
        }
        box.channel0 += box.channels;
    } while (box.channel0 < p->in_channels);
}

/* ---- outputs one at a time, for windows that no workspace holds ---- */

static float conv_at(const conv_pass *p, const conv_axis axis[3], const float *x, const float *w, const int32_t o[3]) {
    const conv_axis *az = &axis[0], *ay = &axis[1], *ax = &axis[2];
    double sum = 0;
    for (int32_t c = 0; c < p->in_channels; c++) {
        for (int32_t tz = 0; tz < az->taps; tz++) {
            int32_t z = o[0] * az->step + az->shift_first + tz * az->shift_step;
            for (int32_t ty = 0; ty < ay->taps; ty++) {
                int32_t y = o[1] * ay->step + ay->shift_first + ty * ay->shift_step;
                const float *line = x + ((c * az->source + z) * ay->source + y) * ax->source;
                bool outside = z < 0 || z >= az->source || y < 0 || y >= ay->source;
                for (int32_t tx = 0; tx < ax->taps; tx++, w++) {
                    int32_t i = o[2] * ax->step + ax->shift_first + tx * ax->shift_step;
                    if (!outside && i >= 0 && i < ax->source) sum += (double)line[i] * *w;
                }
            }
        }
    }
    return (float)sum;
}

static void conv_plane(const void *args, int32_t plane) {
    const conv_pass *p = args;
    int32_t channel = plane % (p->groups * p->out_channels), group = channel / p->out_channels;
    int32_t image = plane / (p->groups * p->out_channels);
    const float *x = p->x + (image * p->groups + group) * p->in_channels * volume(p, false), *w = p->w;
    float *y = p->y + plane * volume(p, true);
    for (int32_t class = 0; class < n_classes(p); class++) {
        conv_axis axis[3];
        int32_t o[3], at[3];
        class_axes(p, class, axis);
        const float *lines = w + channel * p->in_channels * n_taps(axis);
        for (o[0] = 0; o[0] < axis[0].count; o[0]++) {
            for (o[1] = 0; o[1] < axis[1].count; o[1]++) {
                for (o[2] = 0; o[2] < axis[2].count; o[2]++) {
                    for (int32_t i = 0; i < 3; i++) at[i] = axis[i].out_first + o[i] * axis[i].out_step;
                    float *out = y + (at[0] * axis[1].out + at[1]) * axis[2].out + at[2];
                    float value = conv_at(p, axis, x, lines, o) + (p->bias ? p->bias[channel] : 0);
                    if (p->accumulate) value += *out;
                    *out = p->relu && value < 0 ? 0 : value;
                }
            }
        }
        w += p->groups * p->out_channels * p->in_channels * n_taps(axis);
    }
}

/* ---- blocking ---- */

/* Floats: sources should stay in the second-level cache, and must fit with the offsets into thread_scratch. */
enum { PREFERRED_FLOATS = 96 << 10, LIMIT_FLOATS = THREAD_SCRATCH_BYTES / 4, MAX_COLS = 1024, MIN_COLS = 32 };
/* Multiply-adds that a chunk should hold at least, and how many chunks keep all threads busy. */
enum { CHUNK_WORK = 1 << 19, CHUNKS = 16 };

static double chunk_floats(const conv_pass *p) {
    return (double)p->channels * p->max_taps + box_floats(p->reach, p->channels, p->rows, p->cols);
}

/* Chooses the boxes from shapes alone; false if even the smallest does not fit. */
static bool choose_boxes(conv_pass *p) {
    p->channels = p->in_channels;
    p->rows = p->axis[1].count;
    p->cols = min_i32(p->axis[2].count, MAX_COLS);
    while (p->rows > 1 && chunk_floats(p) > PREFERRED_FLOATS) p->rows = (p->rows + 1) / 2;
    while (p->channels > 1 && chunk_floats(p) > LIMIT_FLOATS) p->channels = (p->channels + 1) / 2;
    while (p->cols > MIN_COLS && chunk_floats(p) > LIMIT_FLOATS) p->cols = (p->cols / 2 + 3) & ~3;
    if (chunk_floats(p) > LIMIT_FLOATS) return false;
    double boxes = (double)p->n * p->groups * p->axis[0].count * ceil_div(p->axis[2].count, p->cols);
    double work = (double)p->n * p->groups * p->in_channels * p->out_channels * p->max_taps * p->axis[0].count *
                  p->axis[1].count * p->axis[2].count;
    double want = work / CHUNK_WORK < CHUNKS ? work / CHUNK_WORK : CHUNKS;
    while (p->rows > 4 && boxes * ceil_div(p->axis[1].count, p->rows) < want) p->rows = (p->rows + 1) / 2;
    p->row_blocks = ceil_div(p->axis[1].count, p->rows);
    p->col_blocks = ceil_div(p->axis[2].count, p->cols);
    p->m_blocks = 1;
    while (p->m_blocks < split_rows(p->out_channels).count && boxes * p->row_blocks * p->m_blocks < want) p->m_blocks++;
    return true;
}

static bool is_sparse(const conv_pass *p) {
    bool pixels = p->gradient && p->kernel[0] * p->kernel[1] * p->kernel[2] == 1 && p->axis[0].out == 1;
    bool plain = !p->bias && !p->relu && !p->accumulate;
    /* If a stride meets only padding, no class has taps, and all classes write zeros. */
    return pixels && plain && p->max_taps && p->col_blocks == 1 && p->channels == p->in_channels &&
           chunk_floats(p) + TILE_ROWS * (double)p->rows * p->cols <= LIMIT_FLOATS;
}

static void run_pass(conv_pass *p) {
    if (p->n == 0 || p->groups * p->out_channels == 0) return;
    join_classes(p);
    if (choose_boxes(p)) {
        p->sparse = is_sparse(p);
        parallel_for(conv_chunk, p, p->n * p->groups * p->axis[0].count * p->row_blocks * p->col_blocks * p->m_blocks);
    } else {
        parallel_for(conv_plane, p, p->n * p->groups * p->out_channels);
    }
}

/* ---- both directions ---- */

void boxed_convolve(const conv_f32_args *a) {
    conv_pass p = {.x = a->x, .w = a->w, .bias = a->bias, .y = a->y, .n = a->n, .groups = a->groups,
                   .in_channels = a->c / a->groups, .out_channels = a->m / a->groups, .classes = {1, 1, 1},
                   .accumulate = a->accumulate != 0, .relu = a->activation == ACTIVATION_RELU};
    for (int32_t i = 0; i < 3; i++) {
        p.axis[i] = (conv_axis){a->out[i], a->stride[i], a->kernel[i], 0, 1, -a->pad[i], a->dilation[i], 0, 1,
                                a->size[i], a->out[i]};
    }
    merge_pointwise_axes(p.axis);
    run_pass(&p);
}

typedef struct {
    const conv_pass *pass;
    const float *w;
    float *out;
} weight_order;

/* Channels that a chunk orders: enough to pay for finding the classes. */
enum { ORDERED_CHANNELS = 16 };

/* Weights [class][group][c][m][taps of the class] for some input channels of all. */
static void order_weights(const void *args, int32_t chunk) {
    const weight_order *order = args;
    const conv_pass *p = order->pass;
    int32_t cg = p->out_channels, mg = p->in_channels, kernel = p->kernel[0] * p->kernel[1] * p->kernel[2];
    int32_t channels = p->groups * cg, end = min_i32(channels, (chunk + 1) * ORDERED_CHANNELS);
    float *class_out = order->out;
    for (int32_t i = 0; i < n_classes(p); i++) {
        conv_axis axis[3];
        class_axes(p, i, axis);
        const conv_axis *az = &axis[0], *ay = &axis[1], *ax = &axis[2];
        int32_t taps = n_taps(axis);
        for (int32_t t = 0; t < taps; t++) {
            int32_t z = t / (ay->taps * ax->taps), y = t / ax->taps % ay->taps, x = t % ax->taps;
            int32_t line = (az->w_first + z * az->w_step) * p->kernel[1] + ay->w_first + y * ay->w_step;
            const float *tap = order->w + line * p->kernel[2] + ax->w_first + x * ax->w_step;
            for (int32_t c = chunk * ORDERED_CHANNELS; c < end; c++) {
                const float *w = tap + (c / cg * mg * cg + c % cg) * kernel;
                float *out = class_out + c * mg * taps + t;
                for (int32_t m = 0; m < mg; m++) out[m * taps] = w[m * cg * kernel];
            }
        }
        class_out += channels * mg * taps;
    }
}

void boxed_data_gradient(const conv_data_gradient_f32_args *a) {
    conv_pass p = {.x = a->dy, .w = a->ordered, .bias = a->bias, .y = a->dx, .n = a->n, .groups = a->groups,
                   .in_channels = a->m / a->groups, .out_channels = a->c / a->groups, .gradient = true,
                   .accumulate = a->accumulate != 0, .relu = a->activation == ACTIVATION_RELU};
    for (int32_t i = 0; i < 3; i++) {
        p.kernel[i] = a->kernel[i];
        p.stride[i] = a->stride[i];
        p.dilation[i] = a->dilation[i];
        p.pad[i] = a->pad[i];
        p.classes[i] = min_i32(a->stride[i], a->size[i]);
        p.axis[i] = gradient_axis(0, a->size[i], a->out[i], a->kernel[i], a->stride[i], a->dilation[i], a->pad[i]);
    }
    weight_order order = {&p, a->w, a->ordered};
    parallel_for(order_weights, &order, ceil_div(a->c, ORDERED_CHANNELS));
    if (n_classes(&p) == 1) {
        p.gradient = false;
        merge_pointwise_axes(p.axis);
    }
    run_pass(&p);
}
