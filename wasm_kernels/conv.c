/* Convolutions as products without materialised columns: a chunk copies the sources of a box of outputs, padded with
   zeros, into its workspace; there the source of 4 neighbouring outputs for any (channel, tap) is 4 neighbouring floats
   at a fixed offset, so that a register tile of output channels x output columns streams weights and offsets. */
#include "conv.h"

#include "parallel.h"
#include "tile.h"
#include "winograd.h"

/* ---- the workspace ---- */

static int32_t gcd(int32_t a, int32_t b) {
    while (b) {
        int32_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

conv_layout layout_box(const conv_axis axis[3], int32_t rows, int32_t cols) {
    const conv_axis *y = &axis[1], *x = &axis[2];
    conv_layout l;
    l.rows = (rows - 1) * y->step + axis_span(y) + 1;
    l.row_min = axis_min(y);
    l.col_min = axis_min(x);
    /* Taps fall on multiples of the gcd, modulo the step. */
    l.slot_step = x->taps > 1 ? gcd(x->step, x->shift_step < 0 ? -x->shift_step : x->shift_step) : x->step;
    l.slots = x->step / l.slot_step;
    l.line = ((cols + 3) & ~3) + axis_span(x) / x->step;
    l.row_stride = l.slots * l.line;
    l.slice_stride = l.rows * l.row_stride;
    l.channel_stride = axis[0].taps * l.slice_stride;
    return l;
}

/* out[i] = line[first + i * step] for i < n, zero outside [0, size). */
static void gather_line(const float *line, int32_t size, int32_t first, int32_t step, float *out, int32_t n) {
    int32_t lo = first < 0 ? min_i32(n, ceil_div(-first, step)) : 0;
    int32_t hi = first >= size ? lo : max_i32(lo, min_i32(n, ceil_div(size - first, step)));
    int32_t i = 0;
    for (; i < lo; i++) out[i] = 0;
    if (step == 1) {
        for (; i + 4 <= hi; i += 4) store4(out + i, load4(line + first + i));
    } else if (step == 2) {
        for (; i + 4 < hi; i += 4) {
            f32x4 even = load4(line + first + 2 * i), odd = load4(line + first + 2 * i + 4);
            store4(out + i, wasm_i32x4_shuffle(even, odd, 0, 2, 4, 6));
        }
    }
    for (; i < hi; i++) out[i] = line[first + i * step];
    for (; i < n; i++) out[i] = 0;
}

static void zero_floats(float *out, int32_t n) {
    for (int32_t i = 0; i < n; i++) out[i] = 0;
}

void gather_box(const conv_axis axis[3], const conv_layout *l, const conv_box *box, const float *x, float *out) {
    const conv_axis *z = &axis[0], *y = &axis[1], *w = &axis[2];
    int32_t row_first = box->row0 * y->step + l->row_min, col_first = box->col0 * w->step + l->col_min;
    for (int32_t c = box->channel0; c < box->channel0 + box->channels; c++) {
        for (int32_t t = 0; t < z->taps; t++) {
            int32_t depth = box->depth * z->step + z->shift_first + t * z->shift_step;
            const float *slice = x + (c * z->source + depth) * y->source * w->source;
            for (int32_t r = 0; r < l->rows; r++, out += l->row_stride) {
                int32_t row = row_first + r;
                if (depth < 0 || depth >= z->source || row < 0 || row >= y->source) {
                    zero_floats(out, l->row_stride);
                    continue;
                }
                for (int32_t s = 0; s < l->slots; s++) {
                    gather_line(slice + row * w->source, w->source, col_first + s * l->slot_step, w->step,
                                out + s * l->line, l->line);
                }
            }
        }
    }
}

void tap_offsets(const conv_axis axis[3], const conv_layout *l, int32_t channels, int32_t *offsets) {
    for (int32_t c = 0; c < channels; c++) {
        for (int32_t tz = 0; tz < axis[0].taps; tz++) {
            for (int32_t ty = 0; ty < axis[1].taps; ty++) {
                int32_t row = axis[1].shift_first + ty * axis[1].shift_step - l->row_min;
                int32_t base = c * l->channel_stride + tz * l->slice_stride + row * l->row_stride;
                for (int32_t tx = 0; tx < axis[2].taps; tx++) {
                    int32_t col = axis[2].shift_first + tx * axis[2].shift_step - l->col_min;
                    int32_t slot = col % axis[2].step / l->slot_step;
                    *offsets++ = 4 * (base + slot * l->line + col / axis[2].step);
                }
            }
        }
    }
}

/* ---- register tiles ---- */

/* One pass computes every output that its axes reach: a whole forward convolution, or one residue class of the
   data gradient's strides. */
typedef struct {
    const float *x, *w, *bias;
    float *y;
    int32_t n, groups, in_channels, out_channels; /* per group */
    int32_t w_row;                                /* floats between the weights of two output channels */
    conv_axis axis[3];
    bool accumulate, relu;
    int32_t rows, row_blocks, cols, col_blocks, channels, m_blocks, total_taps;
} conv_pass;

/* Where the outputs of a tile go. */
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
    if (lanes < 4 || step != 1) {
        store_lanes(y, step, lanes, v, add, relu);
        return;
    }
    if (add) v = add4(v, load4(y));
    if (relu) v = wasm_f32x4_pmax(v, splat(0));
    store4(y, v);
}

/* One (channel, tap): its weights at constant offset u, its sources at byte offset `at`. */
TW_INLINE void conv_step(const int32_t rows, const int32_t strips, const int32_t u, const float *const line[TILE_ROWS],
                         const char *const source[2], int32_t at, f32x4 acc[TILE_ROWS][2]) {
    f32x4 v[2];
    UNROLL for (int32_t j = 0; j < strips; j++) v[j] = load4((const float *)(source[j] + at));
    UNROLL for (int32_t i = 0; i < rows; i++) {
        f32x4 weight = load_splat(line[i] + u);
        UNROLL for (int32_t j = 0; j < strips; j++) {
            acc[i][j] = madd(weight, v[j], acc[i][j]);
            IN_ORDER(acc[i][j]);
        }
    }
}

/* rows output channels x strips of 4 columns; sources of strip j at base[j], its outputs at y[j] of channel 0. */
TW_INLINE void conv_tile(const int32_t rows, const int32_t strips, int32_t k, const float *w, int32_t w_row,
                         const int32_t *offsets, const float *const *base, const strip_out *o, const int32_t *at,
                         const int32_t *lanes) {
    f32x4 acc[TILE_ROWS][2];
    const float *line[TILE_ROWS];
    const char *source[2];
    UNROLL for (int32_t i = 0; i < rows; i++) {
        f32x4 start = splat(o->bias ? o->bias[i] : 0);
        UNROLL for (int32_t j = 0; j < strips; j++) acc[i][j] = start;
        line[i] = w + i * w_row;
    }
    UNROLL for (int32_t j = 0; j < strips; j++) source[j] = (const char *)base[j];
    for (; k >= 4; k -= 4, offsets += 4) {
        UNROLL for (int32_t u = 0; u < 4; u++) conv_step(rows, strips, u, line, source, offsets[u], acc);
        UNROLL for (int32_t i = 0; i < rows; i++) line[i] += 4;
    }
    for (; k; k--, offsets++) {
        conv_step(rows, strips, 0, line, source, *offsets, acc);
        UNROLL for (int32_t i = 0; i < rows; i++) line[i]++;
    }
    UNROLL for (int32_t i = 0; i < rows; i++) {
        UNROLL for (int32_t j = 0; j < strips; j++) {
            store_strip(o->y + i * o->channel_stride + at[j], o->step, lanes[j], acc[i][j], o->add, o->relu);
        }
    }
}

#define TILE_PARAMS                                                                                                    \
    int32_t k, const float *w, int32_t w_row, const int32_t *offsets, const float *const *base, const strip_out *o,    \
        const int32_t *at, const int32_t *lanes
#define TILE_ARGS k, w, w_row, offsets, base, o, at, lanes
#define TILE(rows)                                                                                                     \
    static void tile_##rows##x1(TILE_PARAMS) { conv_tile(rows, 1, TILE_ARGS); }                                        \
    static void tile_##rows##x2(TILE_PARAMS) { conv_tile(rows, 2, TILE_ARGS); }

TILE(1)
TILE(2)
TILE(3)
TILE(4)
#ifdef TW_RELAXED
TILE(5)
TILE(6)
#endif

typedef void (*tile_fn)(TILE_PARAMS);
static const tile_fn tiles[TILE_ROWS][2] = {
    {tile_1x1, tile_1x2}, {tile_2x1, tile_2x2}, {tile_3x1, tile_3x2}, {tile_4x1, tile_4x2},
#ifdef TW_RELAXED
    {tile_5x1, tile_5x2}, {tile_6x1, tile_6x2},
#endif
};

/* ---- a chunk: one box of outputs and a range of its channels ---- */

static int32_t out_position(const conv_pass *p, const conv_box *box, int32_t row, int32_t col) {
    const conv_axis *y = &p->axis[1], *x = &p->axis[2];
    return (y->out_first + (box->row0 + row) * y->out_step) * x->out + x->out_first + (box->col0 + col) * x->out_step;
}

/* All strips of the box for output channels [m, m + rows). */
static void run_strips(const conv_pass *p, const conv_box *box, const conv_layout *l, const int32_t *offsets,
                       const float *sources, int32_t k, const float *w, int32_t rows, const strip_out *o) {
    const float *base[2];
    int32_t at[2], lanes[2], held = 0;
    for (int32_t r = 0; r < box->rows; r++) {
        for (int32_t col = 0; col < box->cols; col += 4) {
            base[held] = sources + r * p->axis[1].step * l->row_stride + col;
            at[held] = out_position(p, box, r, col);
            lanes[held] = min_i32(4, box->cols - col);
            if (++held == 2) {
                tiles[rows - 1][1](k, w, p->w_row, offsets, base, o, at, lanes);
                held = 0;
            }
        }
    }
    if (held) tiles[rows - 1][0](k, w, p->w_row, offsets, base, o, at, lanes);
}

static conv_box chunk_box(const conv_pass *p, int32_t chunk, int32_t *m_block) {
    conv_box box;
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

static void conv_chunk(const void *args, int32_t chunk) {
    const conv_pass *p = args;
    int32_t m_block;
    conv_box box = chunk_box(p, chunk, &m_block);
    conv_layout l = layout_box(p->axis, box.rows, box.cols);
    int32_t *offsets = (int32_t *)thread_scratch();
    float *sources = thread_scratch() + p->channels * p->total_taps;
    tap_offsets(p->axis, &l, min_i32(p->channels, p->in_channels), offsets);
    const float *x = p->x + (box.n * p->groups + box.group) * p->in_channels * volume(p, false);
    int32_t blocks = row_blocks(p->out_channels);
    int32_t first = m_block * blocks / p->m_blocks, end = (m_block + 1) * blocks / p->m_blocks;
    int32_t depth_out = (p->axis[0].out_first + box.depth * p->axis[0].out_step) * p->axis[1].out * p->axis[2].out;
    strip_out o = {0, volume(p, true), p->axis[2].out_step, 0, false, false};
    for (box.channel0 = 0; box.channel0 < p->in_channels; box.channel0 += p->channels) {
        box.channels = min_i32(p->channels, p->in_channels - box.channel0);
        bool last = box.channel0 + box.channels == p->in_channels;
        gather_box(p->axis, &l, &box, x, sources);
        o.add = p->accumulate || box.channel0 > 0;
        o.relu = p->relu && last;
        for (int32_t i = first; i < end; i++) {
            int32_t m = row_block_start(p->out_channels, i), rows = row_block_start(p->out_channels, i + 1) - m;
            int32_t channel = box.group * p->out_channels + m;
            o.y = p->y + (box.n * p->groups * p->out_channels + channel) * o.channel_stride + depth_out;
            o.bias = p->bias && last ? p->bias + channel : 0;
            const float *w = p->w + channel * p->w_row + box.channel0 * p->total_taps;
            run_strips(p, &box, &l, offsets, sources, box.channels * p->total_taps, w, rows, &o);
        }
    }
}

/* ---- outputs one at a time, for windows that no workspace holds ---- */

static float conv_at(const conv_pass *p, const float *x, const float *w, const int32_t o[3]) {
    const conv_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
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
    const float *x = p->x + (image * p->groups + group) * p->in_channels * volume(p, false);
    float *y = p->y + plane * volume(p, true);
    int32_t o[3], at[3];
    for (o[0] = 0; o[0] < p->axis[0].count; o[0]++) {
        for (o[1] = 0; o[1] < p->axis[1].count; o[1]++) {
            for (o[2] = 0; o[2] < p->axis[2].count; o[2]++) {
                for (int32_t i = 0; i < 3; i++) at[i] = p->axis[i].out_first + o[i] * p->axis[i].out_step;
                float *out = y + (at[0] * p->axis[1].out + at[1]) * p->axis[2].out + at[2];
                float value = conv_at(p, x, p->w + channel * p->w_row, o) + (p->bias ? p->bias[channel] : 0);
                if (p->accumulate) value += *out;
                *out = p->relu && value < 0 ? 0 : value;
            }
        }
    }
}

/* Outputs that no tap reaches: strides longer than the kernel. */
static void unreached_plane(const void *args, int32_t plane) {
    const conv_pass *p = args;
    const conv_axis *az = &p->axis[0], *ay = &p->axis[1], *ax = &p->axis[2];
    float bias = p->bias ? p->bias[plane % (p->groups * p->out_channels)] : 0;
    for (int32_t z = 0; z < az->count; z++) {
        for (int32_t y = 0; y < ay->count; y++) {
            int32_t row = (az->out_first + z * az->out_step) * ay->out + ay->out_first + y * ay->out_step;
            float *out = p->y + plane * volume(p, true) + row * ax->out + ax->out_first;
            for (int32_t x = 0; x < ax->count; x++, out += ax->out_step) {
                float value = p->accumulate ? *out + bias : bias;
                *out = p->relu && value < 0 ? 0 : value;
            }
        }
    }
}

/* ---- passes ---- */

/* Floats: sources should stay in the second-level cache, and must fit with the offsets into thread_scratch. */
enum { PREFERRED_FLOATS = 96 << 10, LIMIT_FLOATS = THREAD_SCRATCH_BYTES / 4, MAX_COLS = 1024, MIN_COLS = 32 };
/* Multiply-adds that a chunk should hold at least, and how many chunks keep all threads busy. */
enum { CHUNK_WORK = 1 << 19, CHUNKS = 16 };

static double box_floats(const conv_pass *p, int32_t channels, int32_t rows, int32_t cols) {
    const conv_axis *y = &p->axis[1], *x = &p->axis[2];
    double lines = (rows - 1.0) * y->step + axis_span(y) + 1, line = (cols + 3.0 + axis_span(x) / x->step) * x->step;
    return channels * (lines * line * p->axis[0].taps + p->total_taps);
}

/* Chooses the boxes from shapes alone; false if even the smallest does not fit. */
static bool choose_boxes(conv_pass *p) {
    p->channels = p->in_channels;
    p->rows = p->axis[1].count;
    p->cols = min_i32(p->axis[2].count, MAX_COLS);
    while (p->rows > 1 && box_floats(p, p->channels, p->rows, p->cols) > PREFERRED_FLOATS) p->rows = (p->rows + 1) / 2;
    while (p->channels > 1 && box_floats(p, p->channels, p->rows, p->cols) > LIMIT_FLOATS)
        p->channels = (p->channels + 1) / 2;
    while (p->cols > MIN_COLS && box_floats(p, p->channels, p->rows, p->cols) > LIMIT_FLOATS)
        p->cols = (p->cols / 2 + 3) & ~3;
    if (box_floats(p, p->channels, p->rows, p->cols) > LIMIT_FLOATS) return false;
    double boxes = (double)p->n * p->groups * p->axis[0].count * ceil_div(p->axis[2].count, p->cols);
    double work = (double)p->n * p->groups * p->in_channels * p->out_channels * p->total_taps * p->axis[0].count *
                  p->axis[1].count * p->axis[2].count;
    double want = work / CHUNK_WORK < CHUNKS ? work / CHUNK_WORK : CHUNKS;
    while (p->rows > 4 && boxes * ceil_div(p->axis[1].count, p->rows) < want) p->rows = (p->rows + 1) / 2;
    p->row_blocks = ceil_div(p->axis[1].count, p->rows);
    p->col_blocks = ceil_div(p->axis[2].count, p->cols);
    p->m_blocks = 1;
    while (p->m_blocks < row_blocks(p->out_channels) && boxes * p->row_blocks * p->m_blocks < want) p->m_blocks++;
    return true;
}

static void run_pass(conv_pass *p) {
    if (p->n == 0 || p->groups * p->out_channels == 0) return;
    for (int32_t i = 0; i < 3; i++)
        if (p->axis[i].count == 0) return;
    p->total_taps = p->axis[0].taps * p->axis[1].taps * p->axis[2].taps;
    bool reached = p->in_channels && p->total_taps;
    if (!reached && p->accumulate && !p->bias && !p->relu) return;
    if (!reached) {
        parallel_for(unreached_plane, p, p->n * p->groups * p->out_channels);
    } else if (choose_boxes(p)) {
        parallel_for(conv_chunk, p, p->n * p->groups * p->axis[0].count * p->row_blocks * p->col_blocks * p->m_blocks);
    } else {
        parallel_for(conv_plane, p, p->n * p->groups * p->out_channels);
    }
}

/* Neighbouring axes that only enumerate positions become one: no strip is then cut at the end of a row. */
static void merge_pointwise_axes(conv_axis axis[3]) {
    for (int32_t i = 0; i < 3; i++) {
        conv_axis *a = &axis[i];
        if (a->taps != 1 || a->step != 1 || a->shift_first || a->out_step != 1 || a->out_first || a->w_first ||
            a->count != a->source || a->count != a->out)
            return;
    }
    int32_t total = axis[0].count * axis[1].count * axis[2].count;
    axis[2].count = axis[2].source = axis[2].out = total;
    axis[0].count = axis[0].source = axis[0].out = axis[1].count = axis[1].source = axis[1].out = 1;
}

/* 3x3 of stride 1, one group, two dimensions. kernels.def sizes `transformed` by the same conditions: no stricter ones. */
#define IS_PLAIN_3X3(a)                                                                                                \
    ((a)->groups == 1 && (a)->kernel[0] == 1 && (a)->kernel[1] == 3 && (a)->kernel[2] == 3 && (a)->size[0] == 1 &&    \
     (a)->out[0] == 1 && (a)->pad[0] == 0 && all_ones((a)->stride) && all_ones((a)->dilation))

static bool all_ones(const int32_t x[3]) { return x[0] == 1 && x[1] == 1 && x[2] == 1; }

int32_t kernel_conv_f32(const conv_f32_args *a) {
    if (IS_PLAIN_3X3(a) && winograd_suits(a->c, a->m, a->out[1], a->out[2])) {
        winograd_conv conv = {a->n, a->c, a->m, a->size[1], a->size[2], a->out[1], a->out[2], a->pad[1], a->pad[2],
                              a->x, a->w, a->bias, 9 * a->c, 9, false, a->accumulate != 0, a->activation == 1,
                              a->y, a->transformed};
        winograd_convolve(&conv);
        return TW_OK;
    }
    conv_pass p = {.x = a->x, .w = a->w, .bias = a->bias, .y = a->y, .n = a->n, .groups = a->groups,
                   .in_channels = a->c / a->groups, .out_channels = a->m / a->groups, .accumulate = a->accumulate != 0,
                   .relu = a->activation == 1};
    for (int32_t i = 0; i < 3; i++) {
        p.axis[i] = (conv_axis){a->out[i], a->stride[i], a->kernel[i], 0, 1, -a->pad[i], a->dilation[i], 0, 1,
                                a->size[i], a->out[i]};
    }
    p.w_row = p.in_channels * a->kernel[0] * a->kernel[1] * a->kernel[2];
    merge_pointwise_axes(p.axis);
    run_pass(&p);
    return TW_OK;
}

/* ---- gradient by the data ---- */

/* The inputs i = first + q * stride of one residue class meet the taps k with i + pad - k * dilation divisible by the
   stride: every (stride / gcd(stride, dilation))-th one. */
static conv_axis gradient_axis(int32_t first, int32_t size, int32_t out, int32_t kernel, int32_t stride,
                               int32_t dilation, int32_t pad) {
    conv_axis a = {.count = ceil_div(size - first, stride), .step = 1, .out_first = first, .out_step = stride,
                   .source = out, .out = size, .w_step = stride / gcd(stride, dilation)};
    while (a.w_first < a.w_step && (first + pad - (int64_t)a.w_first * dilation) % stride) a.w_first++;
    if (a.w_first < a.w_step && a.w_first < kernel) a.taps = ceil_div(kernel - a.w_first, a.w_step);
    a.shift_first = (int32_t)((first + pad - (int64_t)a.w_first * dilation) / stride);
    a.shift_step = (int32_t)(-(int64_t)a.w_step * dilation / stride);
    return a;
}

typedef struct {
    const conv_data_gradient_f32_args *a;
    const conv_axis *axis;
    float *out;
} weight_swap;

/* Weights [group][c][m][taps of this residue class] for one input channel of all. */
static void swap_weights(const void *args, int32_t channel) {
    const weight_swap *s = args;
    int32_t cg = s->a->c / s->a->groups, mg = s->a->m / s->a->groups;
    const int32_t *kernel = s->a->kernel;
    const conv_axis *az = &s->axis[0], *ay = &s->axis[1], *ax = &s->axis[2];
    float *out = s->out + channel * mg * az->taps * ay->taps * ax->taps;
    for (int32_t m = channel / cg * mg, end = m + mg; m < end; m++) {
        const float *w = s->a->w + (m * cg + channel % cg) * kernel[0] * kernel[1] * kernel[2];
        for (int32_t z = 0; z < az->taps; z++) {
            for (int32_t y = 0; y < ay->taps; y++) {
                const float *line = w + ((az->w_first + z * az->w_step) * kernel[1] + ay->w_first + y * ay->w_step) * kernel[2];
                for (int32_t x = 0; x < ax->taps; x++) *out++ = line[ax->w_first + x * ax->w_step];
            }
        }
    }
}

int32_t kernel_conv_data_gradient_f32(const conv_data_gradient_f32_args *a) {
    if (IS_PLAIN_3X3(a) && winograd_suits(a->c, a->m, a->size[1], a->size[2])) {
        winograd_conv conv = {a->n, a->m, a->c, a->out[1], a->out[2], a->size[1], a->size[2], 2 - a->pad[1],
                              2 - a->pad[2], a->dy, a->w, a->bias, 9, 9 * a->c, true, a->accumulate != 0,
                              a->activation == 1, a->dx, a->transformed};
        winograd_convolve(&conv);
        return TW_OK;
    }
    conv_pass p = {.x = a->dy, .w = a->transformed, .bias = a->bias, .y = a->dx, .n = a->n, .groups = a->groups,
                   .in_channels = a->m / a->groups, .out_channels = a->c / a->groups,
                   .accumulate = a->accumulate != 0, .relu = a->activation == 1};
    weight_swap swap = {a, p.axis, a->transformed};
    int32_t first[3];
    for (first[0] = 0; first[0] < min_i32(a->stride[0], a->size[0]); first[0]++) {
        for (first[1] = 0; first[1] < min_i32(a->stride[1], a->size[1]); first[1]++) {
            for (first[2] = 0; first[2] < min_i32(a->stride[2], a->size[2]); first[2]++) {
                for (int32_t i = 0; i < 3; i++) {
                    p.axis[i] = gradient_axis(first[i], a->size[i], a->out[i], a->kernel[i], a->stride[i],
                                              a->dilation[i], a->pad[i]);
                }
                p.w_row = p.in_channels * p.axis[0].taps * p.axis[1].taps * p.axis[2].taps;
                parallel_for(swap_weights, &swap, a->c);
                merge_pointwise_axes(p.axis);
                run_pass(&p);
            }
        }
    }
    return TW_OK;
}
