/* Convolutions of any shape: boxed.c. */
#ifndef CONV_BOXED_H
#define CONV_BOXED_H
#include "guard.h"

void boxed_convolve(const conv_f32_args *a);
void boxed_data_gradient(const conv_data_gradient_f32_args *a);
#endif
