/* Gradients of a convolution by its weights and its bias: weight_gradient.c. */
#ifndef CONV_WEIGHT_GRADIENT_H
#define CONV_WEIGHT_GRADIENT_H
#include <stdbool.h>

#include "guard.h"

/* dw alone, of convolutions of any shape. */
void product_weight_gradient(const conv_weight_gradient_f32_args *a);

/* db[m] (+)= sum over images and positions of dy[n, m, volume]. */
void channel_sums(const float *dy, float *db, int32_t n, int32_t m, int32_t volume, bool accumulate);
#endif
