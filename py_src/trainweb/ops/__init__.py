"""Operators: one file per family, one class per operator."""

from __future__ import annotations

from importlib import import_module

FAMILIES = (
    "elementwise",
    "logic",
    "activation",
    "trigonometry",
    "matmul",
    "einsum",
    "conv",
    "conv_transpose",
    "pool",
    "resize",
    "reduce",
    "view",
    "shape",
    "constant",
    "join",
    "slicing",
    "index",
    "norm",
    "group_norm",
    "softmax_loss",
    "random",
    "quantize",
    "optim",
    "matrix_optim",
)


def load() -> None:
    """Import every family, which registers its operators."""
    for family in FAMILIES:
        import_module(f"trainweb.ops.{family}")
