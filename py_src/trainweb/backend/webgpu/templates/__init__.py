"""Templates: what makes kernels of a call. Each takes a call of ir/calls.py and returns its dispatches in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainweb.backend.webgpu.shader import Kernel, NoKernelError
from trainweb.backend.webgpu.templates.channel_norms import batch_norm, batch_norm_gradient, batch_norm_train
from trainweb.backend.webgpu.templates.clipping import clip_gradient_norm, clip_gradients
from trainweb.backend.webgpu.templates.convolution import conv, conv_data_gradient, conv_weight_gradient
from trainweb.backend.webgpu.templates.copies import copy, gather, gather_gradient, strided_copy
from trainweb.backend.webgpu.templates.elementwise import elementwise
from trainweb.backend.webgpu.templates.losses import cross_entropy, cross_entropy_gradient
from trainweb.backend.webgpu.templates.norms import layer_norm, layer_norm_gradient
from trainweb.backend.webgpu.templates.pools import max_pool, max_pool_gradient
from trainweb.backend.webgpu.templates.products import gemm
from trainweb.backend.webgpu.templates.sums import reduce, softmax, softmax_gradient
from trainweb.ir import calls
from trainweb.ir.instructions import ElementwiseCall, Instruction, KernelCall

TEMPLATES: dict[type[KernelCall], Callable[[Any], list[Kernel]]] = {
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
    calls.Gather: gather,
    calls.GatherGrad: gather_gradient,
    calls.Gemm: gemm,
    calls.LayerNorm: layer_norm,
    calls.LayerNormGrad: layer_norm_gradient,
    calls.MaxPool: max_pool,
    calls.MaxPoolGradient: max_pool_gradient,
    calls.Reduce: reduce,
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
