"""The checkpoint file of ONNX Runtime training."""

from .content import Checkpoint, OptimizerGroup
from .files import write_file_atomically
from .reader import read_checkpoint
from .writer import checkpoint_parts, write_checkpoint

__all__ = [
    "Checkpoint",
    "OptimizerGroup",
    "checkpoint_parts",
    "read_checkpoint",
    "write_checkpoint",
    "write_file_atomically",
]
