/* 3x3 convolutions of stride 1 and 2 by Winograd's minimal filtering. */
#ifndef WINOGRAD_H
#define WINOGRAD_H
#include <stdbool.h>

#include "guard.h"

enum { WINOGRAD_POINTS = 36, WINOGRAD_MIN_CHANNELS = 4, WINOGRAD_MAX_CHANNELS = 640, WINOGRAD_MAX_STRIDED = 256 };
/* Floats between the planes of one weight each: without them, planes of a power of two meet in one set of the cache. */
enum { WINOGRAD_PADDING = 16 };
/* Partial sums of the weight gradient; kernels.def sizes its scratch by these. */
enum { WINOGRAD_GROUPS = 8, WINOGRAD_PARTIAL_FLOATS = 1 << 20 };

/* y[n, m] = x[n, c] * g[m, c]: the weight of (m, c) at g + m * g_m + c * g_c. `flipped`: y is the data gradient of a
   convolution with this stride and padding, x the gradient of its outputs. */
typedef struct {
    int32_t stride, n, c, m, h, w, out_h, out_w, pad_y, pad_x;
    const float *x, *g, *bias;
    int32_t g_m, g_c;
    bool flipped, accumulate, relu;
    float *y, *u; /* u: transformed weights, 36 planes of m * c rounded up to whole vectors */
} winograd_conv;

/* dw[m, c] (+)= sum over images and outputs of dy x. */
typedef struct {
    int32_t stride, n, c, m, h, w, out_h, out_w, pad_y, pad_x;
    const float *x, *dy;
    bool accumulate;
    float *dw, *partial;
} winograd_gradient;

/* Whether the method pays; the kernel is 3x3 of dilation 1 and there is one group. `back`: the data gradient. */
typedef struct {
    int32_t stride, c, m, out_h, out_w, pad_y, pad_x;
    bool back;
} winograd_shape;

bool winograd_suits(const winograd_shape *shape);

void winograd_convolve(const winograd_conv *conv);
void winograd_weight_gradient(const winograd_gradient *gradient);
#endif
