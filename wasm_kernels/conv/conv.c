/* Choice of the method of a convolution. With few channels in a group direct.c computes it in the plane; otherwise boxed.c
   and weight_gradient.c do, which take any. Winograd's method has separate kernels, since weights that stay are transformed
   once: the pass `select_methods` chooses it by its `pays` clause in kernels.def. */
#include "boxed.h"
#include "direct.h"
#include "weight_gradient.h"

/* Two dimensions without dilation, one stride. */
#define IS_PLANAR(a)                                                                                                   \
    ((a)->kernel[0] == 1 && (a)->size[0] == 1 && (a)->out[0] == 1 && (a)->pad[0] == 0 && (a)->stride[0] == 1 &&        \
     (a)->stride[1] == (a)->stride[2] && (a)->dilation[0] == 1 && (a)->dilation[1] == 1 && (a)->dilation[2] == 1)

int32_t kernel_conv_f32(const conv_f32_args *a) {
    if (!a->n) return TW_OK;
    int32_t cg = a->c / a->groups, mg = a->m / a->groups, taps = a->kernel[1] * a->kernel[2];
    if (IS_PLANAR(a) && direct_suits(cg, mg, a->kernel + 1, a->stride[1], a->out[2])) {
        direct_conv conv = {a->n, a->groups, cg, mg, {a->size[1], a->size[2]}, {a->out[1], a->out[2]},
                            {a->kernel[1], a->kernel[2]}, {a->pad[1], a->pad[2]}, a->stride[1], a->x, a->w, a->bias,
                            mg * cg * taps, cg * taps, taps, false, a->accumulate != 0,
                            a->activation == ACTIVATION_RELU, a->y};
        direct_convolve(&conv);
    } else {
        boxed_convolve(a);
    }
    return TW_OK;
}

int32_t kernel_conv_data_gradient_f32(const conv_data_gradient_f32_args *a) {
    if (!a->n) return TW_OK;
    int32_t cg = a->c / a->groups, mg = a->m / a->groups, taps = a->kernel[1] * a->kernel[2];
    if (IS_PLANAR(a) && direct_suits(mg, cg, a->kernel + 1, a->stride[1], a->size[2])) {
        direct_conv conv = {a->n, a->groups, mg, cg, {a->size[1], a->size[2]}, {a->out[1], a->out[2]},
                            {a->kernel[1], a->kernel[2]}, {a->pad[1], a->pad[2]}, a->stride[1], a->dy, a->w, a->bias,
                            mg * cg * taps, taps, cg * taps, true, a->accumulate != 0,
                            a->activation == ACTIVATION_RELU, a->dx};
        direct_convolve(&conv);
    } else {
        boxed_data_gradient(a);
    }
    return TW_OK;
}

int32_t kernel_conv_weight_gradient_f32(const conv_weight_gradient_f32_args *a) {
    int32_t cg = a->c / a->groups, mg = a->m / a->groups, volume = a->out[0] * a->out[1] * a->out[2];
    if (a->db) channel_sums(a->dy, a->db, a->n, a->m, volume, a->accumulate != 0);
    if (IS_PLANAR(a) && direct_suits(cg, mg, a->kernel + 1, a->stride[1], a->out[2])) {
        direct_gradient gradient = {a->n, a->groups, cg, mg, {a->size[1], a->size[2]}, {a->out[1], a->out[2]},
                                    {a->kernel[1], a->kernel[2]}, {a->pad[1], a->pad[2]}, a->stride[1], a->x, a->dy,
                                    a->accumulate != 0, a->dw};
        direct_weight_gradient(&gradient);
    } else {
        product_weight_gradient(a);
    }
    return TW_OK;
}
