/* Convolutions from or to one channel a group: depthwise ones, first layers. */
#ifndef CONV_DIRECT_H
#define CONV_DIRECT_H
#include <stdbool.h>

#include "guard.h"

/* y[n, g, o] (+)= sum over s of x[n, g, s] * w[g, o, s], all in planes of two axes of dilation 1. `flipped`: y is the
   gradient by the data of such a convolution, x the gradient by its outputs; stride and pad are the convolution's. */
typedef struct {
    int32_t n, groups, sources, outputs; /* planes a group */
    int32_t size[2], out[2], kernel[2], pad[2], stride;
    const float *x, *w, *bias;
    int32_t w_group, w_output, w_source; /* strides of w */
    bool flipped, accumulate, relu;
    float *y;
} direct_conv;

/* dw[g, o, s] (+)= sum over images and positions of dy[n, g, o] x[n, g, s]. */
typedef struct {
    int32_t n, groups, sources, outputs;
    int32_t size[2], out[2], kernel[2], pad[2], stride;
    const float *x, *dy;
    bool accumulate;
    float *dw;
} direct_gradient;

/* True if the method pays and its workspace fits. */
bool direct_suits(int32_t sources, int32_t outputs, const int32_t kernel[2], int32_t stride, int32_t cols);

void direct_convolve(const direct_conv *conv);
void direct_weight_gradient(const direct_gradient *gradient);
#endif
