"""The calls of kernels. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead.

A class a kernel, in a module a family of kernels, which is named like their C file. A field is an argument of the
kernel, by its name; None where an optional buffer is absent. Scratch is made by `Builder.emit`. What each call reads
and writes is exact: a result that is only written is not among the reads.
"""

from __future__ import annotations

from trainweb.ir.calls.adafactor import Adafactor, AdafactorVector
from trainweb.ir.calls.attention import Attention, AttentionGradient
from trainweb.ir.calls.columns import ColumnsConv, ColumnsDataGradient, ColumnsWeightGradient
from trainweb.ir.calls.conv import (
    Conv,
    ConvDataGradient,
    ConvWeightGradient,
    WinogradConv,
    WinogradWeightGradient,
    WinogradWeights,
)
from trainweb.ir.calls.copy import ConvertHalf, Copy, StridedCopy
from trainweb.ir.calls.ctc import CtcLoss, CtcLossGrad
from trainweb.ir.calls.gemm import Gemm, GemmInt
from trainweb.ir.calls.hoist import NoteChange, NoteCurrent, SkipIfCurrent
from trainweb.ir.calls.index import (
    CheckIndices,
    Gather,
    GatherElements,
    GatherGrad,
    GatherNd,
    OneHot,
    ScatterElements,
    ScatterNd,
)
from trainweb.ir.calls.loop import LoopBegin, LoopEnd, LoopPut, LoopTake, LoopWhile
from trainweb.ir.calls.metrics import CountClasses, CountTop, ErrorSums
from trainweb.ir.calls.norm import (
    BatchNorm,
    BatchNormGrad,
    BatchNormTrain,
    GroupNorm,
    GroupNormGrad,
    LayerNorm,
    LayerNormGrad,
)
from trainweb.ir.calls.optim import (
    Adadelta,
    Adagrad,
    Adam,
    Adamw,
    Average,
    ClipGradNorm,
    ClipGrads,
    Lamb,
    LinearLr,
    Lion,
    Momentum,
    OptimizerAdvance,
    Rmsprop,
    Sgd,
    StateWithRate,
)
from trainweb.ir.calls.pool import AveragePool, AveragePoolGradient, MaxPool, MaxPoolGradient
from trainweb.ir.calls.random import Dropout, Random, RandomAdvance
from trainweb.ir.calls.recurrent import Recurrence, RecurrenceGradient
from trainweb.ir.calls.reduce import ArgReduce, ArgReduceI64, Cumsum, Reduce, ReduceInt, Topk, TopkI64
from trainweb.ir.calls.sizes import (
    bands,
    cell_gates,
    cell_kept,
    chunks,
    conv_weights,
    ctc_states,
    few_positions,
    grouped,
    key_blocks,
    mask_spans,
    panels,
    positions,
    windows,
    winograd_channels,
    winograd_planes,
    winograd_tiled,
    winograd_window,
)
from trainweb.ir.calls.softmax import CrossEntropy, CrossEntropyGrad, Softmax, SoftmaxGrad

TakesRelu = Gemm | Conv | ConvDataGradient | WinogradConv | ColumnsConv | ColumnsDataGradient
"""Calls that apply relu to their `result` where `activation` is ACTIVATION_RELU."""
TakesFactor = Gemm
"""Calls that multiply what they make by `alpha`."""
TakesBias = Gemm
"""Calls that add `bias`, a vector along the columns of the result where `bias_col` is 1."""
Accumulates = Gemm | Conv | ConvDataGradient | ConvWeightGradient | WinogradConv | WinogradWeightGradient | ColumnsConv | ColumnsDataGradient | ColumnsWeightGradient
"""Calls that add to what `accumulated` hold where `accumulate` is 1."""

__all__ = [
    "Accumulates",
    "Adadelta",
    "Adafactor",
    "AdafactorVector",
    "Adagrad",
    "Adam",
    "Adamw",
    "ArgReduce",
    "ArgReduceI64",
    "Attention",
    "AttentionGradient",
    "Average",
    "AveragePool",
    "AveragePoolGradient",
    "BatchNorm",
    "BatchNormGrad",
    "BatchNormTrain",
    "CheckIndices",
    "ClipGradNorm",
    "ClipGrads",
    "ColumnsConv",
    "ColumnsDataGradient",
    "ColumnsWeightGradient",
    "Conv",
    "ConvDataGradient",
    "ConvWeightGradient",
    "ConvertHalf",
    "Copy",
    "CountClasses",
    "CountTop",
    "CrossEntropy",
    "CrossEntropyGrad",
    "CtcLoss",
    "CtcLossGrad",
    "Cumsum",
    "Dropout",
    "ErrorSums",
    "Gather",
    "GatherElements",
    "GatherGrad",
    "GatherNd",
    "Gemm",
    "GemmInt",
    "GroupNorm",
    "GroupNormGrad",
    "Lamb",
    "LayerNorm",
    "LayerNormGrad",
    "LinearLr",
    "Lion",
    "LoopBegin",
    "LoopEnd",
    "LoopPut",
    "LoopTake",
    "LoopWhile",
    "MaxPool",
    "MaxPoolGradient",
    "Momentum",
    "NoteChange",
    "NoteCurrent",
    "OneHot",
    "OptimizerAdvance",
    "Random",
    "RandomAdvance",
    "Recurrence",
    "RecurrenceGradient",
    "Reduce",
    "ReduceInt",
    "Rmsprop",
    "ScatterElements",
    "ScatterNd",
    "Sgd",
    "SkipIfCurrent",
    "Softmax",
    "SoftmaxGrad",
    "StateWithRate",
    "StridedCopy",
    "TakesBias",
    "TakesFactor",
    "TakesRelu",
    "Topk",
    "TopkI64",
    "WinogradConv",
    "WinogradWeightGradient",
    "WinogradWeights",
    "bands",
    "cell_gates",
    "cell_kept",
    "chunks",
    "conv_weights",
    "ctc_states",
    "few_positions",
    "grouped",
    "key_blocks",
    "mask_spans",
    "panels",
    "positions",
    "windows",
    "winograd_channels",
    "winograd_planes",
    "winograd_tiled",
    "winograd_window",
]
