"""The checkpoint file of ONNX Runtime training."""

from .contents import SessionContents, digest_of, scaling_of
from .files import write_file_atomically, written
from .reader import read_checkpoint
from .writer import checkpoint_parts, write_checkpoint, write_checkpoint_file

__all__ = [
    "SessionContents",
    "checkpoint_parts",
    "digest_of",
    "read_checkpoint",
    "scaling_of",
    "write_checkpoint",
    "write_checkpoint_file",
    "write_file_atomically",
    "written",
]
