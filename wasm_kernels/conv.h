/* The view of a convolution that its three kernels share. */
#ifndef CONV_H
#define CONV_H
#include <stdbool.h>

#include "guard.h"

/* Output coordinate o of an axis sums over t < taps: weight w_first + t * w_step times source
   o * step + shift_first + t * shift_step (zero outside the source); it is stored at out_first + o * out_step. */
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

/* How the workspace holds a box: [channel][slice][row][slot][line]; a slot holds every step-th column. */
typedef struct {
    conv_reach reach[3];
    int32_t slices, rows, slots, line;
    int32_t row_stride, slice_stride, channel_stride; /* floats */
} conv_layout;

TW_INLINE int32_t ceil_div(int32_t a, int32_t b) { return a / b + (a % b != 0); }

/* Axes that only enumerate positions become one: no strip is then cut at the end of a row. */
void merge_pointwise_axes(conv_axis axis[3]);

conv_reach reach_of(const conv_axis *axis);

conv_layout layout_box(const conv_reach reach[3], int32_t rows, int32_t cols);

/* Floats that a box needs, without overflow. */
double box_floats(const conv_reach reach[3], int32_t channels, int32_t rows, int32_t cols);

/* `x` is the first plane of the box's image and group. */
void gather_box(const conv_layout *layout, const conv_box *box, const float *x, float *out);

/* Byte offsets from an output position's place in the workspace to the source of each (channel, tap). */
void tap_offsets(const conv_axis axis[3], const conv_layout *layout, int32_t channels, int32_t *offsets);
#endif
