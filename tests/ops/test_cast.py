"""Casts of numbers that the other type does not have, and of every pair of types."""

import numpy as np
import pytest
from tests.ops.op_runner import feeds_of, run, single_node

from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Node
from trainweb.ops.conversion import Cast
from trainweb.ops.frame.infer import infer_outputs
from trainweb.ops.frame.op import bind

TYPES = {1: np.float32, 2: np.uint8, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}
"""ONNX's numbers of types."""


def cast(x: np.ndarray, to: int) -> np.ndarray:
    graph = single_node(Cast, [x], {"to": to}, 19, 1)
    return run(graph, feeds_of(graph, [x]))["y0"]


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("to", TYPES)
def test_every_pair_of_types(source: int, to: int) -> None:
    unsigned = 2 in (source, to)
    values = np.concatenate([np.arange(0 if unsigned else -20, 41), [100, 127, 200, 255]]).astype(np.float64)
    if source in (1, 11):
        values += 0.75
    x: np.ndarray = values.astype(TYPES[source])
    for n in (x.size, 1):
        np.testing.assert_array_equal(cast(x[:n], to), x[:n].astype(TYPES[to]))


def test_floats_saturate_to_integers() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 300.5, -1.5], np.float32)
    i32, i64 = np.iinfo(np.int32), np.iinfo(np.int64)
    assert cast(x, 6).tolist() == [0, i32.max, i32.min, i32.max, i32.min, 300, -1]
    assert cast(x, 7).tolist() == [0, i64.max, i64.min, 3000000000, -3000000000, 300, -1]
    assert cast(x, 9).tolist() == [True] * 7


KNOWN = [(1.0, "int64", (1,)), (7, "float32", (7.0,)), (0, "bool", (False,))]


@pytest.mark.parametrize(("value", "like", "expected"), KNOWN)
def test_castlike_of_what_is_known_is_known(value: float, like: str, expected: tuple[object, ...]) -> None:
    """torch's dynamo exporter writes the arguments of Range like this."""
    op = bind(Node("CastLike", ["x", "like"], ["y"]), {"": 20})
    x = TensorType("float32" if isinstance(value, float) else "int64", (1,), (value,))
    (found, *_), _ = infer_outputs(op, {"x": x, "like": TensorType(like, (1,), (0,))})
    assert (found.dtype, found.value) == (like, expected)
