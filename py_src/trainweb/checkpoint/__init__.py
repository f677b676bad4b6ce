"""The checkpoint file of ONNX Runtime training."""

from .content import Checkpoint, LazyTensor, OptimizerGroup
from .files import write_file_atomically
from .reader import read_checkpoint
from .writer import checkpoint_buffer, write_checkpoint

__all__ = [
    "Checkpoint",
    "LazyTensor",
    "OptimizerGroup",
    "checkpoint_buffer",
    "read_checkpoint",
    "write_checkpoint",
    "write_file_atomically",
]
