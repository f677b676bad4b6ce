/* Sums straight over the planes, for convolutions of one channel a group. These are depthwise convolutions and first
   layers, whose sums are too short for tiles of many channels. A tile is one vector of columns in up to 7 rows of one
   output plane. Each vector of the source that it loads serves as many rows as the kernel has. A chunk copies the lines
   that it reads, padded with zeros, into its workspace. For stride 2 it separates even and odd columns.

   Back through a stride of 2, even and odd rows and columns of the result are four convolutions of stride 1. */
#include "direct.h"

#include "parallel.h"
#include "tile.h"
#include "view.h"

enum { MAX_ROWS = 7, BACK_ROWS = 4 };
/* Channels a group on one side or the other: with 3, tiles of many channels are faster (1.2 times, of stride 2 twice). */
enum { MAX_CHANNELS = 1 };
/* Floats: lines of a band should stay in the first cache, and must fit into thread_scratch. */
enum { BAND_FLOATS = 6 << 10, LIMIT_FLOATS = THREAD_SCRATCH_BYTES / 4 };
/* Bands that keep all threads busy. */
enum { ENOUGH_BANDS = 16, ENOUGH_CHUNKS = 8 };

/* ---- what both directions share ---- */

/* The sources of one output plane in the workspace, and their weights; strides of `at` and lines in bytes. */
typedef struct {
    const float *w;
    int32_t w_source, w_row, w_col; /* from one source, row and column of the kernel to the next */
    int32_t sources, ky, kx, source_stride, line;
    const int32_t *at; /* of each column of the kernel */
} direct_sum;

/* How a chunk stores what it computed. */
typedef struct {
    float *y;
    int32_t width; /* of a line of y */
    float bias;
    bool add, relu;
} direct_out;

/* Partial vectors and sums with what y holds. Elsewhere the last vector of a line overlaps the one before. */
__attribute__((noinline)) static void store_slowly(const direct_out *o, float *y, int32_t width, const f32x4 *acc,
                                                   int32_t rows, int32_t lanes) {
    for (int32_t r = 0; r < rows; r++, y += width) {
        f32x4 v = acc[r];
        if (o->add) v = add4(v, load_some(y, lanes));
        if (o->relu) v = wasm_f32x4_pmax(v, splat(0));
        store_some(y, v, lanes);
    }
}

/* One vector of columns in `rows` lines of y. */
TW_INLINE void store_column(const int32_t rows, const direct_out *o, float *y, int32_t width, const f32x4 *acc,
                            int32_t lanes, bool plain) {
    if (plain && lanes >= 4 && !o->relu) {
        UNROLL for (int32_t r = 0; r < rows; r++, y += width) store4(y, acc[r]);
    } else if (plain && lanes >= 4) {
        UNROLL for (int32_t r = 0; r < rows; r++, y += width) store4(y, wasm_f32x4_pmax(acc[r], splat(0)));
    } else {
        f32x4 held[MAX_ROWS];
        UNROLL for (int32_t r = 0; r < rows; r++) held[r] = acc[r];
        store_slowly(o, y, width, held, rows, lanes);
    }
}

/* ---- forward, and backward of stride 1 ---- */

/* acc[r] += all sources and taps, of one vector of columns in `rows` rows; `height` rows of the kernel at a time. */
TW_INLINE void add_taps(const int32_t rows, const int32_t height, const int32_t ky, const int32_t step, const direct_sum *d,
                        const char *src, f32x4 acc[MAX_ROWS]) {
    const float *w = d->w;
    for (int32_t s = 0; s < d->sources; s++, src += d->source_stride, w += d->w_source) {
        const char *top = src;
        const float *w_top = w;
        for (int32_t ty = 0; ty < ky; ty += height, top += height * d->line, w_top += height * d->w_row) {
            const float *weight = w_top;
            for (int32_t tx = 0; tx < d->kx; tx++, weight += d->w_col) {
                f32x4 g[5];
                const char *p = top + d->at[tx];
                UNROLL for (int32_t t = 0; t < height; t++) g[t] = load_splat(weight + t * d->w_row);
                UNROLL for (int32_t i = 0; i < (rows - 1) * step + height; i++, p += d->line) {
                    f32x4 v = load4((const float *)p);
                    UNROLL for (int32_t r = 0; r < rows; r++) {
                        int32_t t = i - r * step;
                        if (t < 0 || t >= height) continue;
                        acc[r] = madd(g[t], v, acc[r]);
                        IN_ORDER(acc[r]);
                    }
                }
            }
        }
    }
}

/* `rows` rows of y, `cols` wide. */
TW_INLINE void direct_rows(const int32_t rows, const int32_t height, const int32_t ky, const int32_t step,
                           const direct_sum *d, const char *src, const direct_out *o, float *y, int32_t cols) {
    const bool plain = !o->add;
    const int32_t width = o->width;
    for (int32_t col = 0; col < cols; col += 4) {
        f32x4 acc[MAX_ROWS];
        if (plain && cols >= 4) col = min_i32(col, cols - 4);
        UNROLL for (int32_t r = 0; r < rows; r++) acc[r] = load_splat(&o->bias);
        add_taps(rows, height, ky, step, d, src + 4 * col, acc);
        store_column(rows, o, y + col, width, acc, cols - col, plain);
    }
}

/* The same for one source and a kernel of 3x3, whose weights stay in registers. */
TW_INLINE void rows_3x3(const int32_t rows, const int32_t step, const direct_sum *d, const char *src, const direct_out *o,
                        float *y, int32_t cols) {
    const bool plain = !o->add;
    const int32_t width = o->width, line = d->line, odd = step == 1 ? 4 : d->at[1];
    f32x4 g[3][3];
    UNROLL for (int32_t ty = 0; ty < 3; ty++) {
        UNROLL for (int32_t tx = 0; tx < 3; tx++) g[ty][tx] = load_splat(d->w + ty * d->w_row + tx * d->w_col);
    }
    for (int32_t col = 0; col < cols; col += 4) {
        if (plain && cols >= 4) col = min_i32(col, cols - 4);
        f32x4 acc[4];
        const char *p = src + 4 * col;
        UNROLL for (int32_t r = 0; r < rows; r++) acc[r] = load_splat(&o->bias);
        UNROLL for (int32_t i = 0; i < (rows - 1) * step + 3; i++, p += line) {
            UNROLL for (int32_t tx = 0; tx < 3; tx++) {
                f32x4 v = load4((const float *)(tx == 1 ? p + odd : tx == 0 ? p : step == 1 ? p + 8 : p + 4));
                UNROLL for (int32_t r = 0; r < rows; r++) {
                    int32_t t = i - r * step;
                    if (t < 0 || t >= 3) continue;
                    acc[r] = madd(g[t][tx], v, acc[r]);
                    IN_ORDER(acc[r]);
                }
            }
        }
        store_column(rows, o, y + col, width, acc, cols - col, plain);
    }
}

#define ROWS_PARAMS const direct_sum *d, const char *src, const direct_out *o, float *y, int32_t cols
#define ROWS_ARGS d, src, o, y, cols
#define ROWS(rows)                                                                                                     \
    static void rows_##rows##_3_1(ROWS_PARAMS) { direct_rows(rows, 3, 3, 1, ROWS_ARGS); }                              \
    static void rows_##rows##_5_1(ROWS_PARAMS) { direct_rows(rows, 5, 5, 1, ROWS_ARGS); }                              \
    static void rows_##rows##_5_2(ROWS_PARAMS) { direct_rows(rows, 5, 5, 2, ROWS_ARGS); }
#define ROWS_ANY(rows)                                                                                                 \
    static void rows_##rows##_any_1(ROWS_PARAMS) { direct_rows(rows, 1, d->ky, 1, ROWS_ARGS); }                        \
    static void rows_##rows##_any_2(ROWS_PARAMS) { direct_rows(rows, 1, d->ky, 2, ROWS_ARGS); }
#define ROWS_3X3(rows)                                                                                                 \
    static void rows_##rows##_3x3_1(ROWS_PARAMS) { rows_3x3(rows, 1, ROWS_ARGS); }                                     \
    static void rows_##rows##_3x3_2(ROWS_PARAMS) { rows_3x3(rows, 2, ROWS_ARGS); }
#define ROWS_3X3_ENTRY(rows) {rows_##rows##_3x3_1, rows_##rows##_3x3_2}

ROWS(1)
ROWS(4)
ROWS(7)
ROWS_ANY(1)
ROWS_ANY(4)
ROWS_3X3(1)
ROWS_3X3(2)
ROWS_3X3(3)
ROWS_3X3(4)

typedef void (*rows_fn)(ROWS_PARAMS);
/* By height of the kernel, stride and rows: 1, 4, and 7 where a load serves enough of them. */
enum { ANY, THREE, FIVE };
static const rows_fn row_tiles[3][2][3] = {
    [ANY] = {{rows_1_any_1, rows_4_any_1}, {rows_1_any_2, rows_4_any_2}},
    [THREE] = {{rows_1_3_1, rows_4_3_1, rows_7_3_1}},
    [FIVE] = {{rows_1_5_1, rows_4_5_1, rows_7_5_1}, {rows_1_5_2, rows_4_5_2, rows_7_5_2}},
};
/* By rows and stride. */
static const rows_fn tiles_3x3[4][2] = {ROWS_3X3_ENTRY(1), ROWS_3X3_ENTRY(2), ROWS_3X3_ENTRY(3), ROWS_3X3_ENTRY(4)};

/* Number of rows, out of `rows`, for the next tile: 7 and 4 make any number from 18 on. */
static int32_t tile_rows(int32_t rows, int32_t kernel) {
    int32_t fours = 0;
    while (4 * fours <= rows && (rows - 4 * fours) % 7) fours++;
    if (kernel == ANY || 4 * fours > rows) return rows >= 4 ? 4 : 1;
    return fours ? 4 : 7;
}

/* A band of y. */
static void direct_band(const direct_sum *d, int32_t step, const float *src, const direct_out *o, int32_t rows,
                        int32_t cols) {
    bool small = d->sources == 1 && d->ky == 3 && d->kx == 3;
    int32_t kernel = d->ky == 3 && step == 1 ? THREE : d->ky == 5 ? FIVE : ANY, blocks = ceil_div(rows, 4);
    for (int32_t row = 0, b = 0; row < rows; b++) {
        int32_t height = small ? (b + 1) * rows / blocks - row : tile_rows(rows - row, kernel);
        const char *line = (const char *)src + row * step * d->line;
        rows_fn fn = small ? tiles_3x3[height - 1][step - 1] : row_tiles[kernel][step - 1][height / 3];
        fn(d, line, o, o->y + row * o->width, cols);
        row += height;
    }
}

/* ---- backward of stride 2 ---- */

/* Even or odd outputs of an axis: the source of tap t lies `first - t` after output 0; byte offsets of the columns. */
typedef struct {
    int32_t count, taps, w_first, at;
} back_axis;

/* `rows` rows of one parity, both parities of columns. */
TW_INLINE void back_rows(const int32_t rows, const direct_sum *d, const back_axis *down, const back_axis across[2],
                         const char *src, const direct_out *o, float *y, int32_t cols) {
    const bool plain = !o->add;
    const int32_t width = 2 * o->width;
    const bool overlap = plain && cols >= 8 && cols % 2 == 0;
    src += down->at;
    for (int32_t col = 0; col < cols; col += 8) {
        f32x4 acc[2][BACK_ROWS];
        if (overlap) col = min_i32(col, cols - 8);
        UNROLL for (int32_t odd = 0; odd < 2; odd++) {
            const back_axis *x = &across[odd];
            const char *plane = src + 2 * col + x->at;
            const float *w = d->w + down->w_first * d->w_row + x->w_first * d->w_col;
            UNROLL for (int32_t r = 0; r < rows; r++) acc[odd][r] = load_splat(&o->bias);
            for (int32_t s = 0; s < d->sources; s++, plane += d->source_stride, w += d->w_source) {
                for (int32_t ty = 0; ty < down->taps; ty++) {
                    for (int32_t tx = 0; tx < x->taps; tx++) {
                        f32x4 g = load_splat(w + 2 * (ty * d->w_row + tx * d->w_col));
                        const char *p = plane - ty * d->line - 4 * tx;
                        UNROLL for (int32_t r = 0; r < rows; r++, p += d->line) {
                            acc[odd][r] = madd(g, load4((const float *)p), acc[odd][r]);
                            IN_ORDER(acc[odd][r]);
                        }
                    }
                }
            }
        }
        f32x4 left[BACK_ROWS], right[BACK_ROWS];
        UNROLL for (int32_t r = 0; r < rows; r++) {
            left[r] = wasm_i32x4_shuffle(acc[0][r], acc[1][r], 0, 4, 1, 5);
            right[r] = wasm_i32x4_shuffle(acc[0][r], acc[1][r], 2, 6, 3, 7);
        }
        store_column(rows, o, y + col, width, left, cols - col, plain);
        if (cols - col > 4) store_column(rows, o, y + col + 4, width, right, cols - col - 4, plain);
    }
}

#define BACK_PARAMS                                                                                                    \
    const direct_sum *d, const back_axis *down, const back_axis across[2], const char *src, const direct_out *o,       \
        float *y, int32_t cols
#define BACK_ARGS d, down, across, src, o, y, cols
static void back_1(BACK_PARAMS) { back_rows(1, BACK_ARGS); }
static void back_2(BACK_PARAMS) { back_rows(2, BACK_ARGS); }
static void back_3(BACK_PARAMS) { back_rows(3, BACK_ARGS); }
static void back_4(BACK_PARAMS) { back_rows(4, BACK_ARGS); }

typedef void (*back_fn)(BACK_PARAMS);
static const back_fn back_tiles[BACK_ROWS] = {back_1, back_2, back_3, back_4};

/* ---- the workspace ---- */

/* `width` columns of each source line from `skip` on are read; `lead` columns of zeros come before them. */
typedef struct {
    conv_layout l;
    int32_t skip, lead, width;
} band_layout;

static band_layout plan_band(const conv_reach reach[3], int32_t rows, int32_t cols) {
    band_layout b = {.l = layout_box(reach, rows, cols)};
    const conv_reach *x = &reach[2];
    b.skip = max_i32(0, x->min);
    b.lead = max_i32(0, -x->min);
    b.width = min_i32(x->source - b.skip, b.l.line * x->step - b.lead);
    return b;
}

/* Copies the lines of the band from output row0 on; what lies outside the planes was zeroed before. */
static void copy_band(const band_layout *b, int32_t row0, int32_t channels, const float *x, float *out) {
    const conv_layout *l = &b->l;
    const conv_reach *y = &l->reach[1];
    int32_t top = row0 * y->step + y->min, from = max_i32(0, -top), rows = min_i32(l->rows, y->source - top) - from;
    int32_t source = l->reach[2].source, even = place_of(l, b->lead), odd = place_of(l, b->lead + 1), width = b->width;
    x += (top + from) * source + b->skip;
    out += from * l->row_stride;
    for (int32_t c = 0; c < channels; c++, x += y->source * source, out += l->channel_stride) {
        const float *line = x;
        float *to = out;
        for (int32_t r = 0; r < rows; r++, line += source, to += l->row_stride) {
            if (l->slots == 2) copy_apart(line, width, to + even, to + odd);
            else copy_line(line, 1, to + even, 0, width);
        }
    }
}

/* ---- a chunk ---- */

typedef struct {
    const direct_conv *conv;
    conv_axis axis[3]; /* backward of stride 2: of the even outputs, the others in `odd` */
    conv_axis odd[3];
    conv_reach reach[3];
    band_layout layout;
    int32_t rows, bands; /* rows of a band, bands of a plane */
    bool back;
} direct_pass;

static back_axis back_axis_of(const conv_axis *a, int32_t min, int32_t stride) {
    return (back_axis){a->count, a->taps, a->w_first, (a->shift_first - min) * stride};
}

static void back_band(const direct_pass *p, const direct_sum *d, int32_t row0, int32_t max_rows, const float *src,
                      const direct_out *o) {
    int32_t cols = p->axis[2].out;
    back_axis across[2] = {back_axis_of(&p->axis[2], p->reach[2].min, 4), back_axis_of(&p->odd[2], p->reach[2].min, 4)};
    for (int32_t odd = 0; odd < 2; odd++) {
        const conv_axis *axis = odd ? &p->odd[1] : &p->axis[1];
        back_axis down = back_axis_of(axis, p->reach[1].min, d->line);
        int32_t rows = min_i32(max_rows, down.count - row0), blocks = ceil_div(max_i32(rows, 0), BACK_ROWS);
        for (int32_t b = 0; b < blocks; b++) {
            int32_t row = b * rows / blocks, height = (b + 1) * rows / blocks - row;
            const char *line = (const char *)src + row * d->line;
            back_tiles[height - 1](d, &down, across, line, o, o->y + (2 * row + odd) * o->width, cols);
        }
    }
}

/* One band of all outputs of a group; `again`: after another unit of the chunk. */
static void direct_unit(const direct_pass *p, int32_t index, bool again) {
    const direct_conv *c = p->conv;
    int32_t taps = c->kernel[0] * c->kernel[1], plane = index / p->bands, group = plane % c->groups, at[8], *cols = at;
    const conv_layout *l = &p->layout.l;
    int32_t row0 = index % p->bands * p->rows, rows = min_i32(p->rows, p->axis[1].count - row0);
    float *sources = thread_scratch();
    if (!again || p->bands > 1) tw_zero(sources, 4 * (size_t)(c->sources * l->channel_stride));
    copy_band(&p->layout, row0, c->sources, c->x + plane * c->sources * p->axis[1].source * p->axis[2].source, sources);
    if (c->kernel[1] > 8) cols = (int32_t *)(sources + c->sources * l->channel_stride);
    for (int32_t t = 0; t < c->kernel[1]; t++) cols[t] = 4 * place_of(l, t);
    direct_sum d = {0, c->w_source, c->kernel[1], 1, c->sources, c->kernel[0], c->kernel[1], 4 * l->channel_stride,
                    4 * l->row_stride, cols};
    bool turned = c->flipped && !p->back;
    if (turned) d.w_row = -d.w_row, d.w_col = -1;
    int32_t area = p->axis[1].out * p->axis[2].out, first = row0 * p->axis[1].out_step * p->axis[2].out;
    for (int32_t i = 0; i < c->outputs; i++) {
        int32_t channel = group * c->outputs + i;
        d.w = c->w + group * c->w_group + i * c->w_output + (turned ? taps - 1 : 0);
        direct_out o = {c->y + (plane * c->outputs + i) * area + first, p->axis[2].out, c->bias ? c->bias[channel] : 0,
                        c->accumulate, c->relu};
        if (p->back) back_band(p, &d, row0, rows, sources, &o);
        else direct_band(&d, c->stride, sources, &o, rows, p->axis[2].count);
    }
}

static void direct_chunk(const void *args, int64_t lo, int64_t hi) {
    const direct_pass *p = args;
    for (int32_t i = (int32_t)lo; i < hi; i++) direct_unit(p, i, i > lo);
}

static void plan_axes(direct_pass *p) {
    const direct_conv *c = p->conv;
    p->axis[0] = p->odd[0] = (conv_axis){1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1};
    for (int32_t i = 0; i < 2; i++) {
        int32_t size = c->size[i], out = c->out[i], kernel = c->kernel[i], pad = c->pad[i];
        conv_axis *a = &p->axis[i + 1];
        if (p->back) {
            *a = gradient_axis(0, size, out, kernel, 2, 1, pad);
            p->odd[i + 1] = gradient_axis(1, size, out, kernel, 2, 1, pad);
        } else if (c->flipped) {
            *a = (conv_axis){size, 1, kernel, 0, 1, pad - kernel + 1, 1, 0, 1, out, size};
        } else {
            *a = (conv_axis){out, c->stride, kernel, 0, 1, -pad, 1, 0, 1, size, out};
        }
    }
    for (int32_t i = 0; i < 3; i++) {
        int32_t taps = p->axis[i].taps;
        p->reach[i] = reach_of(&p->axis[i]);
        if (p->back && i) widen_reach(&p->reach[i], &taps, &p->odd[i]);
    }
}

/* Rows of a band that leave its lines in the first cache, and at least as many as a tile has. */
static int32_t band_rows(const conv_reach reach[3], int32_t sources, int32_t count, int32_t cols, int32_t planes) {
    int32_t rows = count;
    while (rows > 2 * MAX_ROWS && box_floats(reach, sources, rows, cols) > BAND_FLOATS) rows = (rows + 1) / 2;
    while (rows > 2 * MAX_ROWS && planes * ceil_div(count, rows) < ENOUGH_BANDS) rows = (rows + 1) / 2;
    return rows;
}

void direct_convolve(const direct_conv *c) {
    direct_pass p = {.conv = c, .back = c->flipped && c->stride == 2};
    if (c->n * c->groups == 0) return;
    plan_axes(&p);
    p.rows = band_rows(p.reach, c->sources, p.axis[1].count, p.axis[2].count, c->n * c->groups);
    p.bands = ceil_div(p.axis[1].count, p.rows);
    p.layout = plan_band(p.reach, p.rows, p.axis[2].count);
    int64_t cost = (int64_t)c->sources * c->outputs * c->kernel[0] * c->kernel[1] * p.rows * p.axis[2].count / 4;
    parallel_ranges(direct_chunk, &p, (int64_t)c->n * c->groups * p.bands, units_per_chunk(cost));
}

/* ---- gradient by the weights ---- */

/* One plane of x and one of dy in the workspace; `line` and `at` in bytes. At least as many rows and columns
   as a block takes. */
typedef struct {
    const int32_t *at;
    int32_t line, rows, cols, kx, odd; /* odd: from an even column of the kernel to the next one */
} gradient_view;

/* acc[t][j] += sum over all positions of dy times x moved by tap (t, j). `src` and `acc` point at the first of `height` rows
   and `width` columns of the kernel; `rows` rows of dy are taken at a time. */
TW_INLINE void weight_sum(const int32_t rows, const int32_t height, const int32_t width, const int32_t step,
                          const gradient_view *v, const char *src, const float *dy, float *acc) {
    const int32_t line = v->line, cols = v->cols, odd = step == 1 ? 4 : v->odd;
    f32x4 sum[5][3];
    UNROLL for (int32_t t = 0; t < height; t++) {
        UNROLL for (int32_t j = 0; j < width; j++) sum[t][j] = load4(acc + (t * v->kx + j) * 4);
    }
    for (int32_t row = 0; row < v->rows; row += rows) {
        /* The last rows and columns overlap the ones before, which count as zeros then. */
        int32_t new_rows = min_i32(rows, v->rows - row), top = row - rows + new_rows;
        const char *left = src + top * step * line;
        const float *from = dy + top * v->cols;
        for (int32_t col = 0; col < cols; col += 4) {
            int32_t new_cols = min_i32(4, cols - col), at = col - 4 + new_cols;
            f32x4 d[4];
            const char *p = left + 4 * at;
            const float *q = from + at;
            UNROLL for (int32_t r = 0; r < rows; r++, q += cols) d[r] = load4(q);
            if (new_rows < rows || new_cols < 4) {
                v128_t mask = wasm_v128_not(first_lanes(4 - new_cols));
                UNROLL for (int32_t r = 0; r < rows; r++) {
                    d[r] = r < rows - new_rows ? splat(0) : wasm_v128_and(d[r], mask);
                }
            }
            UNROLL for (int32_t i = 0; i < (rows - 1) * step + height; i++, p += line) {
                UNROLL for (int32_t j = 0; j < width; j++) {
                    f32x4 x = load4((const float *)(j == 1 ? p + odd : j == 0 ? p : step == 1 ? p + 8 : p + 4));
                    UNROLL for (int32_t r = 0; r < rows; r++) {
                        int32_t t = i - r * step;
                        if (t < 0 || t >= height) continue;
                        sum[t][j] = madd(d[r], x, sum[t][j]);
                        IN_ORDER(sum[t][j]);
                    }
                }
            }
        }
    }
    UNROLL for (int32_t t = 0; t < height; t++) {
        UNROLL for (int32_t j = 0; j < width; j++) store4(acc + (t * v->kx + j) * 4, sum[t][j]);
    }
}

#define SUM_PARAMS const gradient_view *v, const char *src, const float *dy, float *acc
#define SUM(rows, height, width)                                                                                       \
    static void sum_##height##x##width##_1(SUM_PARAMS) { weight_sum(rows, height, width, 1, v, src, dy, acc); }    \
    static void sum_##height##x##width##_2(SUM_PARAMS) { weight_sum(rows, height, width, 2, v, src, dy, acc); }
#define SUM_ENTRY(height, width) {sum_##height##x##width##_1, sum_##height##x##width##_2}

SUM(4, 3, 3)
SUM(4, 3, 1)
SUM(3, 5, 2)
SUM(3, 5, 1)
SUM(3, 1, 2)
SUM(3, 1, 1)

typedef void (*sum_fn)(SUM_PARAMS);
/* A block of the kernel: of the kind (3 rows, 5 rows, 1 row), as wide as possible or 1 wide; by stride. */
static const int32_t block_height[3] = {3, 5, 1}, block_width[3] = {3, 2, 2};
static const sum_fn sums[3][2][2] = {{SUM_ENTRY(3, 3), SUM_ENTRY(3, 1)}, {SUM_ENTRY(5, 2), SUM_ENTRY(5, 1)},
                                     {SUM_ENTRY(1, 2), SUM_ENTRY(1, 1)}};

/* Rows of dy that a block takes at a time: accumulators, they and a source fit the registers. */
TW_INLINE int32_t rows_at_a_time(int32_t ky) { return ky == 3 ? 4 : 3; }

/* acc[taps][4] of one pair of planes. */
static void sum_planes(const gradient_view *v, int32_t ky, int32_t step, const char *src, const float *dy, float *acc) {
    for (int32_t ty = 0; ty < ky;) {
        int32_t kind = ky == 3 ? 0 : ky - ty >= 5 ? 1 : 2;
        for (int32_t tx = 0; tx < v->kx;) {
            /* Wide blocks begin with even columns. */
            bool narrow = v->kx - tx < block_width[kind] || (kind == 0 && v->kx != 3);
            sums[kind][narrow][step - 1](v, src + ty * v->line + v->at[tx], dy, acc + (ty * v->kx + tx) * 4);
            tx += narrow ? 1 : block_width[kind];
        }
        ty += block_height[kind];
    }
}

typedef struct {
    const direct_gradient *gradient;
    conv_axis axis[3];
    conv_reach reach[3];
    band_layout layout;
    int32_t rows, o_block, o_blocks;
} gradient_pass;

/* Lines of dy filled up with zeros to the rows and columns of the view. */
static const float *pad_lines(const float *dy, int32_t rows, int32_t cols, const gradient_view *v, float *out) {
    tw_zero(out, 4 * (size_t)(v->rows * v->cols));
    for (int32_t r = 0; r < rows; r++) tw_copy(out + r * v->cols, dy + r * cols, 4 * (size_t)cols);
    return out;
}

/* Adds the products of a band of one image, for outputs [o0, o0 + o_count) of a group. */
static void gradient_band(const gradient_pass *p, int32_t plane, int32_t o0, int32_t o_count, int32_t row0, float *acc,
                          int32_t *at) {
    const direct_gradient *g = p->gradient;
    const conv_layout *l = &p->layout.l;
    int32_t taps = g->kernel[0] * g->kernel[1], cols = g->out[1], rows = min_i32(p->rows, g->out[0] - row0);
    gradient_view v = {at, 4 * l->row_stride, max_i32(rows, rows_at_a_time(g->kernel[0])), max_i32(cols, 4), g->kernel[1],
                       at[1 % g->kernel[1]]};
    float *padded = (float *)(at + ((g->kernel[1] + 3) & ~3));
    float *sources = padded + (v.rows > rows || v.cols > cols ? (v.rows * v.cols + 3) & ~3 : 0);
    if (plane < g->groups || p->rows < g->out[0]) tw_zero(sources, 4 * (size_t)(g->sources * l->channel_stride));
    copy_band(&p->layout, row0, g->sources, g->x + plane * g->sources * g->size[0] * g->size[1], sources);
    for (int32_t o = o0; o < o0 + o_count; o++) {
        const float *dy = g->dy + ((plane * g->outputs + o) * g->out[0] + row0) * cols;
        if (v.rows > rows || v.cols > cols) dy = pad_lines(dy, rows, cols, &v, padded);
        for (int32_t s = 0; s < g->sources; s++, acc += 4 * taps) {
            sum_planes(&v, g->kernel[0], g->stride, (const char *)(sources + s * l->channel_stride), dy, acc);
        }
    }
}

static void gradient_chunk(const void *args, int32_t chunk) {
    const gradient_pass *p = args;
    const direct_gradient *g = p->gradient;
    int32_t group = chunk / p->o_blocks, o0 = chunk % p->o_blocks * p->o_block;
    int32_t o_count = min_i32(p->o_block, g->outputs - o0), n_sums = o_count * g->sources * g->kernel[0] * g->kernel[1];
    float *acc = thread_scratch();
    int32_t *at = (int32_t *)(acc + 4 * n_sums);
    tw_zero(acc, 16 * (size_t)n_sums);
    for (int32_t t = 0; t < g->kernel[1]; t++) at[t] = 4 * place_of(&p->layout.l, t);
    for (int32_t n = 0; n < g->n; n++) {
        for (int32_t row0 = 0; row0 < g->out[0]; row0 += p->rows) {
            gradient_band(p, n * g->groups + group, o0, o_count, row0, acc, at);
        }
    }
    float *dw = g->dw + (group * g->outputs + o0) * g->sources * g->kernel[0] * g->kernel[1];
    for (int32_t i = 0; i < n_sums; i++) {
        float sum = hsum(load4(acc + 4 * i));
        dw[i] = g->accumulate ? dw[i] + sum : sum;
    }
}

void direct_weight_gradient(const direct_gradient *g) {
    gradient_pass p = {.gradient = g, .axis = {{1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1}}};
    for (int32_t i = 0; i < 2; i++) {
        p.axis[i + 1] = (conv_axis){g->out[i], g->stride, g->kernel[i], 0, 1, -g->pad[i], 1, 0, 1, g->size[i], g->out[i]};
    }
    for (int32_t i = 0; i < 3; i++) p.reach[i] = reach_of(&p.axis[i]);
    p.rows = band_rows(p.reach, g->sources, g->out[0], g->out[1], ENOUGH_BANDS);
    p.layout = plan_band(p.reach, max_i32(p.rows, rows_at_a_time(g->kernel[0])), max_i32(g->out[1], 4));
    p.o_blocks = min_i32(g->outputs, ceil_div(ENOUGH_CHUNKS, max_i32(1, g->groups)));
    p.o_block = ceil_div(g->outputs, max_i32(1, p.o_blocks));
    p.o_blocks = ceil_div(g->outputs, max_i32(1, p.o_block));
    parallel_for(gradient_chunk, &p, g->groups * p.o_blocks);
}

/* ---- when ---- */

bool direct_suits(int32_t sources, int32_t outputs, const int32_t kernel[2], int32_t stride, int32_t cols) {
    if (stride > 2 || sources * outputs == 0 || kernel[1] == 1 || (kernel[0] == 1 && stride == 2)) return false;
    if (sources > MAX_CHANNELS && outputs > MAX_CHANNELS) return false;
    /* The lines of the shortest band, one kernel too many for their ends. */
    double taps = (double)kernel[0] * kernel[1], sums = 4 * taps * sources * outputs;
    double lines = (2.0 * MAX_ROWS + 3) * 2 + kernel[0], line = (cols + 8.0 + kernel[1]) * 2;
    return (sources + 1) * lines * line + kernel[1] + sums <= LIMIT_FLOATS;
}
