"""Scales and zero points as ONNX Runtime takes them, which takes more than the onnx reference does."""

import numpy as np
import pytest

from trainweb.errors import ModelError
from trainweb.model.graph import Graph, Node, Value

from .op_runner import run

PLACES = np.array([[0, 3, -128], [1, 2, 4]], np.int8)
NUMBERS = np.array([[0.2, 1.7, -300], [0.5, 2, 4]], np.float32)
ONE = [(), (1,)]


def result(operator: str, x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    feeds = {"x": x, "scale": scale, "zero": zero}
    node = Node(operator, list(feeds), ["y"], {"axis": 0})
    y = Value("y", "float32" if operator == "DequantizeLinear" else "int8", x.shape)
    graph = Graph("g", [node], [], [y], opsets={"": 17})
    graph.inputs = [Value(name, array.dtype.name, array.shape) for name, array in feeds.items()]
    return run(graph, feeds)["y"]


@pytest.mark.parametrize("scale", ONE)
@pytest.mark.parametrize("zero", ONE)
def test_one_scale_and_zero_point_are_scalars_or_vectors_of_one(scale: tuple[int, ...], zero: tuple[int, ...]) -> None:
    """Recorded with onnxruntime 1.32, which takes all four; its quantizer writes a vector and a scalar per channel."""
    given = np.full(scale, 0.5, np.float32), np.full(zero, 3, np.int8)
    dequantized = [[-1.5, 0.0, -65.5], [-1.0, -0.5, 0.5]]
    assert result("DequantizeLinear", PLACES, *given).tolist() == dequantized
    assert result("QuantizeLinear", NUMBERS, *given).tolist() == [[3, 6, -128], [4, 7, 11]]


def test_one_zero_point_for_more_scales_is_refused() -> None:
    """Onnxruntime 1.32: "x_zero_point must be null or 1D tensor with size 2"."""
    with pytest.raises(ModelError, match="zero point has shape"):
        result("DequantizeLinear", PLACES, np.full(2, 0.5, np.float32), np.array(3, np.int8))
