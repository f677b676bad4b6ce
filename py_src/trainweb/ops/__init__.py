"""Operators: one file per family, one class per operator."""

from __future__ import annotations

from importlib import import_module

FAMILIES = (
    "elementwise",
    "conversion",
    "logic",
    "activation",
    "trigonometry",
    "matmul",
    "einsum",
    "conv",
    "pool",
    "resize",
    "extrema",
    "reduce",
    "view",
    "shape",
    "constant",
    "join",
    "slicing",
    "index",
    "norm",
    "softmax_loss",
    "ctc",
    "random",
    "linear_quantization",
    "ml",
    "attention.onnx",
    "attention.microsoft",
    "contrib",
    "packed",
    "recurrent.layers",
    "recurrent.ort_training",
    "attention.linear",
    "determinant",
    "recurrent.cell",
    "repeat",
    "branch",
    "composed",
    "spectral",
    "regions",
    "grid_sample",
    "deformable",
    "fold",
    "selection",
    "vectorize",
    "stateful",
    "optim.operators",
    "optim.rules",
    "metrics",
)


def load() -> None:
    """Import every family, which registers its operators."""
    for family in FAMILIES:
        import_module(f"trainweb.ops.{family}")
