"""The checkpoint file of ONNX Runtime training."""

from .content import Checkpoint, OptimizerGroup
from .files import write_file_atomically
from .reader import read_checkpoint
from .writer import write_checkpoint

__all__ = [
    "Checkpoint",
    "OptimizerGroup",
    "read_checkpoint",
    "write_checkpoint",
    "write_file_atomically",
]
