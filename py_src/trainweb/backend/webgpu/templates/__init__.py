"""Templates: what makes kernels of a call. Each takes a call of ir/calls.py and returns its dispatches in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainweb.backend.webgpu.shader import Kernel, NoKernelError
from trainweb.backend.webgpu.templates.attention import attention, attention_gradient, rotary
from trainweb.backend.webgpu.templates.channel_norms import (
    batch_norm,
    batch_norm_gradient,
    batch_norm_train,
    group_norm,
    group_norm_gradient,
)
from trainweb.backend.webgpu.templates.clipping import clip_gradient_norm, clip_gradients
from trainweb.backend.webgpu.templates.convolution import conv, conv_data_gradient, conv_weight_gradient
from trainweb.backend.webgpu.templates.copies import copy, gather, gather_gradient, strided_copy
from trainweb.backend.webgpu.templates.elementwise import elementwise
from trainweb.backend.webgpu.templates.head_loss import head_loss, head_loss_weight_gradient
from trainweb.backend.webgpu.templates.indexing import (
    arg_reduce,
    cumsum,
    gather_elements,
    gather_nd,
    one_hot,
    scatter_elements,
    scatter_nd,
)
from trainweb.backend.webgpu.templates.losses import cross_entropy, cross_entropy_gradient
from trainweb.backend.webgpu.templates.norms import layer_norm, layer_norm_gradient
from trainweb.backend.webgpu.templates.packed import dequantize, gather_dequantized, gemm_quantized
from trainweb.backend.webgpu.templates.pools import average_pool, average_pool_gradient, max_pool, max_pool_gradient
from trainweb.backend.webgpu.templates.products import gemm
from trainweb.backend.webgpu.templates.random import dropout, random
from trainweb.backend.webgpu.templates.recurrence import recurrence, recurrence_gradient
from trainweb.backend.webgpu.templates.sums import reduce, softmax, softmax_gradient
from trainweb.ir import calls
from trainweb.ir.instructions import ElementwiseCall, Instruction, KernelCall

TEMPLATES: dict[type[KernelCall], Callable[[Any], list[Kernel]]] = {
    calls.ArgReduce: arg_reduce,
    calls.Attention: attention,
    calls.AttentionGradient: attention_gradient,
    calls.AveragePool: average_pool,
    calls.AveragePoolGradient: average_pool_gradient,
    calls.BatchNorm: batch_norm,
    calls.BatchNormGrad: batch_norm_gradient,
    calls.BatchNormTrain: batch_norm_train,
    calls.ClipGradNorm: clip_gradient_norm,
    calls.ClipGrads: clip_gradients,
    calls.Conv: conv,
    calls.ConvDataGradient: conv_data_gradient,
    calls.ConvWeightGradient: conv_weight_gradient,
    calls.Copy: copy,
    calls.CrossEntropy: cross_entropy,
    calls.CrossEntropyGrad: cross_entropy_gradient,
    calls.Cumsum: cumsum,
    calls.Dequantize: dequantize,
    calls.Dropout: dropout,
    calls.Gather: gather,
    calls.GatherDequantized: gather_dequantized,
    calls.GatherElements: gather_elements,
    calls.GatherGrad: gather_gradient,
    calls.GatherNd: gather_nd,
    calls.Gemm: gemm,
    calls.GemmQuantized: gemm_quantized,
    calls.GroupNorm: group_norm,
    calls.GroupNormGrad: group_norm_gradient,
    calls.HeadLoss: head_loss,
    calls.HeadLossQuantized: head_loss,
    calls.HeadLossWeightGrad: head_loss_weight_gradient,
    calls.LayerNorm: layer_norm,
    calls.LayerNormGrad: layer_norm_gradient,
    calls.MaxPool: max_pool,
    calls.MaxPoolGradient: max_pool_gradient,
    calls.OneHot: one_hot,
    calls.Random: random,
    calls.Recurrence: recurrence,
    calls.RecurrenceGradient: recurrence_gradient,
    calls.Reduce: reduce,
    calls.Rotary: rotary,
    calls.ScatterElements: scatter_elements,
    calls.ScatterNd: scatter_nd,
    calls.Softmax: softmax,
    calls.SoftmaxGrad: softmax_gradient,
    calls.StridedCopy: strided_copy,
}


def kernels_of(i: Instruction) -> list[Kernel]:
    """The dispatches of an instruction.

    Raises
    ------
    NoKernelError
        No template takes it.
    """
    if isinstance(i, ElementwiseCall):
        return elementwise(i)
    template = TEMPLATES.get(type(i))
    if template is None:
        raise NoKernelError(f"the kernel {i.KERNEL}")
    return template(i)
