"""ONNX protobuf <-> `Graph`."""

from .checks import Limits
from .graph import Graph, Node, Sequence, Tensor, Value
from .reader import read_model
from .writer import write_model

__all__ = ["Graph", "Limits", "Node", "Sequence", "Tensor", "Value", "read_model", "write_model"]
