/* The view of a convolution that its methods share. */
#ifndef CONV_VIEW_H
#define CONV_VIEW_H
#include <stdbool.h>

#include "tile.h"

/* Output coordinate o of an axis is a sum over t < taps. A term is weight w_first + t * w_step times source
   o * step + shift_first + t * shift_step. Outside the source there are zeros. The sum is stored at out_first + o *
   out_step. */
typedef struct {
    int32_t count, step, taps, w_first, w_step, shift_first, shift_step, out_first, out_step, source, out;
} conv_axis;

/* Sources that output coordinate o reaches: o * step + min ... + span, on multiples of `grid`. */
typedef struct {
    int32_t min, span, step, grid, source;
} conv_reach;

/* A box of output coordinates and of source channels whose padded sources lie in the workspace. */
typedef struct {
    int32_t n, group, depth, row0, rows, col0, cols, channel0, channels;
} conv_box;

/* How the workspace holds a box: [channel][slice][row][slot][line]; a slot holds every step-th column. Windows of one row
   leave the rows between them out. */
typedef struct {
    conv_reach reach[3];
    int32_t slices, rows, slots, line;
    int32_t row_step;                                             /* source rows from one row to the next */
    int32_t row_stride, out_stride, slice_stride, channel_stride; /* floats; out_stride: of the rows of outputs */
} conv_layout;

/* Axes that only enumerate positions become one: no strip is then cut at the end of a row. */
void merge_pointwise_axes(conv_axis axis[3]);

/* Outputs first, first + stride, ... of a data gradient along an axis; without any taps where the dilation skips them. */
conv_axis gradient_axis(int32_t first, int32_t size, int32_t out, int32_t kernel, int32_t stride, int32_t dilation,
                        int32_t pad);

conv_reach reach_of(const conv_axis *axis);

/* Adds the sources that `axis` reaches; `taps` is the largest number of taps up to here. */
void widen_reach(conv_reach *reach, int32_t *taps, const conv_axis *axis);

conv_layout layout_box(const conv_reach reach[3], int32_t rows, int32_t cols);

/* Floats that a box needs, without overflow. */
double box_floats(const conv_reach reach[3], int32_t channels, int32_t rows, int32_t cols);

/* Lines may be short: whoever calls this decides whether to inline it. */
static inline void zero_floats(float *out, int32_t n) {
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        UNROLL for (int32_t j = 0; j < 16; j += 4) store4(out + i + j, splat(0));
    }
    for (; i + 4 <= n; i += 4) store4(out + i, splat(0));
    for (; i < n; i++) out[i] = 0;
}

/* Four elements of a line, from each step-th of 1 or 2. */
TW_INLINE f32x4 load_every(const float *line, const int32_t step) {
    return step == 1 ? load4(line) : wasm_i32x4_shuffle(load4(line), load4(line + 3), 0, 2, 5, 7);
}

/* out[i] = line[i * step] for lo <= i < hi. The last vector may overlap the one before. */
TW_INLINE void copy_line(const float *line, const int32_t step, float *out, int32_t lo, int32_t hi) {
    int32_t i = lo;
    if (step <= 2 && hi - lo >= 4) {
        for (; i + 8 <= hi; i += 8) {
            store4(out + i, load_every(line + i * step, step));
            store4(out + i + 4, load_every(line + (i + 4) * step, step));
        }
        if (i + 4 < hi) store4(out + i, load_every(line + i * step, step));
        if (i < hi) store4(out + hi - 4, load_every(line + (hi - 4) * step, step));
    } else {
        for (; i < hi; i++) out[i] = line[i * step];
    }
}

/* Place of column `col` of the padded source in a line of the workspace. */
TW_INLINE int32_t place_of(const conv_layout *l, int32_t col) {
    return l->slots == 2 ? (col & 1) * l->line + (col >> 1) : col;
}

/* Four pairs of neighbours. */
TW_INLINE void part_pairs(const float *line, float *even, float *odd) {
    f32x4 a = load4(line), b = load4(line + 4);
    store4(even, wasm_i32x4_shuffle(a, b, 0, 2, 4, 6));
    store4(odd, wasm_i32x4_shuffle(a, b, 1, 3, 5, 7));
}

/* Every second element of a line to `even`, the others to `odd`. The last vectors may overlap the ones before. */
TW_INLINE void copy_apart(const float *line, int32_t n, float *even, float *odd) {
    int32_t pairs = n >> 1, i = 0;
    if (pairs >= 4) {
        for (; i + 8 <= pairs; i += 8) {
            const float *from = line + 2 * i;
            f32x4 a = load4(from), b = load4(from + 4), c = load4(from + 8), d = load4(from + 12);
            store4(even + i, wasm_i32x4_shuffle(a, b, 0, 2, 4, 6));
            store4(even + i + 4, wasm_i32x4_shuffle(c, d, 0, 2, 4, 6));
            store4(odd + i, wasm_i32x4_shuffle(a, b, 1, 3, 5, 7));
            store4(odd + i + 4, wasm_i32x4_shuffle(c, d, 1, 3, 5, 7));
        }
        if (i + 4 < pairs) part_pairs(line + 2 * i, even + i, odd + i);
        if (i < pairs) part_pairs(line + 2 * pairs - 8, even + pairs - 4, odd + pairs - 4);
    } else {
        for (; i < pairs; i++) even[i] = line[2 * i], odd[i] = line[2 * i + 1];
    }
    if (n & 1) even[pairs] = line[n - 1];
}

/* `x` is the first plane of the box's image and group. */
void gather_box(const conv_layout *layout, const conv_box *box, const float *x, float *out);

/* Byte offsets from an output position's place in the workspace to the source of each (channel, tap). */
void tap_offsets(const conv_axis axis[3], const conv_layout *layout, int32_t channels, int32_t *offsets);
#endif
