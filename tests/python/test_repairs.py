"""Exporters that write something else than they mean, against the meaning."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper
from tests.conformance.models import make_model, normal
from tests.python.sessions import infer

X, UPDATES = normal(5, 3, seed=1), normal(4, 3, seed=2)
WORDS = np.array([0, 2, 0, 4])
"""Two of them meet."""
ONES = np.ones((4, 3), np.float32)


def scatter(
    op_type: str = "ScatterND",
    *,
    start: str = "zeros",
    updates: str = "updates",
    twice: bool = False,
    opset: int = 17,
    **attrs: Any,
) -> ModelProto:
    """y = x + what is scattered into `start`, as the TorchScript exporter writes index_put and scatter_add."""
    where = np.broadcast_to(WORDS[:, None], (4, 3)) if op_type == "ScatterElements" else WORDS[:, None]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], "shape"),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"], "zeros"),
        helper.make_node("Expand", ["one", "size"], ["expanded"], "expand"),
        helper.make_node("Slice", ["x", "first", "last", "first"], ["part"], "part"),
        helper.make_node("Shape", ["part"], ["part_shape"], "part_shape"),
        helper.make_node("Expand", ["ones", "part_shape"], ["counted"], "counted"),
        helper.make_node(op_type, [start, "where", updates], ["scattered"], "scatter", **attrs),
        helper.make_node("Add", ["x", "scattered"], ["y"], "add"),
    ]
    if twice:
        nodes.append(helper.make_node("Neg", ["scattered"], ["z"], "again"))
    held = {
        "where": where.astype(np.int64),
        "ones": ONES,
        "one": np.float32(1),
        "size": np.array([4, 3]),
        "first": np.array([0]),
        "last": np.array([1]),
        "held_zeros": np.zeros((5, 3), np.float32),
        "held_ones": np.ones((5, 3), np.float32),
    }
    outputs = {"y": [5, 3], "z": [5, 3]} if twice else {"y": [5, 3]}
    return make_model(nodes, {"x": [5, 3], "updates": [4, 3]}, outputs, held, opset=opset)


def run(file: ModelProto) -> np.ndarray:
    return np.array(infer(file, {"x": X, "updates": UPDATES}, ["y"])[0])


def summed(updates: np.ndarray = UPDATES) -> np.ndarray:
    found = X.astype(float)
    np.add.at(found, WORDS, updates.astype(float))
    return found


def put(updates: np.ndarray = UPDATES, start: float = 0.0) -> np.ndarray:
    found = np.full((5, 3), start)
    found[WORDS] = updates
    return found + X


@pytest.mark.parametrize("op_type", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize("start", ["zeros", "held_zeros"])
@pytest.mark.parametrize("opset", [13, 17])
def test_what_is_scattered_into_zeros_and_added_adds_up(op_type: str, start: str, opset: int) -> None:
    file = scatter(op_type, start=start, opset=opset)
    np.testing.assert_allclose(run(file), summed(), rtol=1e-6)


@pytest.mark.parametrize("updates", ["ones", "expanded"])
def test_codes_of_several_words_stay_ones(updates: str) -> None:
    """`zeros.scatter(1, words, 1.0) + x`: equal numbers that meet are one."""
    np.testing.assert_allclose(run(scatter("ScatterElements", updates=updates)), put(ONES), rtol=1e-6)


def test_what_is_put_into_something_else_or_read_twice_is_put() -> None:
    np.testing.assert_allclose(run(scatter(start="held_ones")), put(start=1.0), rtol=1e-6)
    np.testing.assert_allclose(run(scatter(twice=True)), put(), rtol=1e-6)


def test_a_reduction_that_the_file_names_stays() -> None:
    largest = np.zeros((5, 3))
    np.maximum.at(largest, WORDS, UPDATES)
    np.testing.assert_allclose(run(scatter(reduction="max", opset=18)), X + largest, rtol=1e-6)


def test_degrees_of_nodes_are_counted() -> None:
    """`index_add` of constant ones: the exporter expands them to a slice of what they are added to."""
    np.testing.assert_allclose(run(scatter("ScatterElements", updates="counted")), summed(ONES), rtol=1e-6)
