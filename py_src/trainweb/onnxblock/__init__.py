"""Blocks that compose losses, optimizers and training models, as onnxruntime.training has them."""

from __future__ import annotations

from trainweb.onnxblock import blocks, loss, optim
from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.checkpoint import load_checkpoint_to_model, save_checkpoint
from trainweb.onnxblock.context import base, custom_op_library, empty_base
from trainweb.onnxblock.training import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
__dir__ = __all__.copy
