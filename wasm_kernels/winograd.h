/* 3x3 convolutions of stride 1 by Winograd's minimal filtering F(4x4, 3x3). */
#ifndef WINOGRAD_H
#define WINOGRAD_H
#include <stdbool.h>

#include "guard.h"

enum { WINOGRAD_POINTS = 36, WINOGRAD_MIN_CHANNELS = 4, WINOGRAD_MAX_CHANNELS = 640 };
/* Partial sums of the weight gradient; kernels.def sizes its scratch by these. */
enum { WINOGRAD_GROUPS = 8, WINOGRAD_PARTIAL_FLOATS = 1 << 20 };

/* y[n, m] = x[n, c] * g[m, c]: the weight of (m, c) at g + m * g_m + c * g_c, read backwards where `flipped`. */
typedef struct {
    int32_t n, c, m, h, w, out_h, out_w, pad_y, pad_x;
    const float *x, *g, *bias;
    int32_t g_m, g_c;
    bool flipped, accumulate, relu;
    float *y, *u; /* u: transformed weights, 36 * m * c rounded up to whole vectors */
} winograd_conv;

/* dw[m, c] (+)= sum over images and outputs of dy x. */
typedef struct {
    int32_t n, c, m, h, w, out_h, out_w, pad_y, pad_x;
    const float *x, *dy;
    bool accumulate;
    float *dw, *partial;
} winograd_gradient;

/* Whether the shapes suit the method; the kernel is 3x3 of stride and dilation 1 and there is one group. */
bool winograd_suits(int32_t c, int32_t m, int32_t out_h, int32_t out_w);

void winograd_convolve(const winograd_conv *conv);
void winograd_weight_gradient(const winograd_gradient *gradient);
#endif
