"""Operators of opset 7 to 10 whose gradient, or whose own definition, takes operators that came later."""

from typing import Any

import numpy as np
import onnx
import pytest
from tests.control.test_control_flow import FLOAT, LOSS, agree, body, gradient_agrees, gradients, info, model, node, run

from trainweb.artifacts import build_artifacts

SHAPE = (2, 4, 4, 6)
X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)

CASES: list[tuple[int, str, dict[str, Any], dict[str, np.ndarray]]] = [
    (7, "Abs", {}, {}),
    (8, "ReduceL1", {"axes": [3], "keepdims": 0}, {}),
    (7, "GlobalAveragePool", {}, {}),
    (7, "Split", {"axis": 3, "split": [2, 4]}, {}),
    (8, "Pad", {"pads": [0, 0, 1, 1, 0, 0, 2, 1], "mode": "reflect"}, {}),
    (10, "Pad", {"pads": [0, 0, 0, 0, 0, 0, 2, 1], "mode": "edge"}, {}),
    (7, "LpPool", {"kernel_shape": [2, 2]}, {}),
    (10, "ReverseSequence", {"batch_axis": 0, "time_axis": 1}, {"lengths": np.array([4, 2])}),
]


def single(opset: int, op_type: str, attrs: dict[str, Any], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    outputs = ["y", "rest"] if op_type == "Split" else ["y"]
    nodes = [node("Mul", ["x", "w"], ["xw"]), node(op_type, ["xw", *constants], outputs, **attrs), *LOSS]
    weight = {"w": np.linspace(0.5, 2, 6, dtype=np.float32)}
    inputs = [info("x", FLOAT, ["n", "c", "h", 6])]
    return model(nodes, inputs, [info("loss", FLOAT, []), info("y", FLOAT, None)], {**weight, **constants}, opset)


@pytest.mark.parametrize(("opset", "op_type", "attrs", "constants"), CASES, ids=[f"{c[1]}-{c[0]}" for c in CASES])
def test_gradients_in_an_old_model(
    opset: int, op_type: str, attrs: dict[str, Any], constants: dict[str, np.ndarray]
) -> None:
    proto = single(opset, op_type, attrs, constants)
    agree(proto, {"x": X})
    gradient_agrees(proto, {"x": X}, ["x", "w"])
    # Through the files, too.
    assert build_artifacts(proto, requires_grad=["w"]).training_model


def test_max_unpool_and_hardmax_of_old_models() -> None:
    places: np.ndarray = np.arange(X.size).reshape(SHAPE)[..., ::2, ::2]
    nodes = [
        node("Slice", ["x"], ["part"], starts=[0, 0], ends=[2, 3], axes=[2, 3]),
        node("Mul", ["part", "w"], ["weighted"]),
        node("MaxUnpool", ["weighted", "at"], ["wide"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Hardmax", ["x"], ["hot"], axis=1),
        node("Add", ["wide", "hot"], ["y"]),
        *LOSS,
    ]
    made = [info("loss", FLOAT, []), info("y", FLOAT, None)]
    weight = np.array([1, 2, 3], np.float32)
    constants = {"w": weight, "at": places}
    proto = model(nodes, [info("x", FLOAT, ["n", "c", "h", "w_"])], made, constants, 9)
    newer = onnx.ModelProto.FromString(proto.SerializeToString())
    y = np.zeros(X.size, np.float32)
    y[places] = X[..., :2, :3] * weight
    flat = X.reshape(2, -1)
    hot = (flat == flat.max(axis=1, keepdims=True)).astype(np.float32)
    y = y.reshape(SHAPE) + hot.reshape(SHAPE)
    np.testing.assert_allclose(run(newer, ["y"], {"x": X})[0], y, rtol=1e-6)
    found = gradients(newer, {"x": X}, ["w"])["w_grad"]
    expected = (2 / y.size * y.reshape(-1)[places] * X[..., :2, :3]).sum(axis=(0, 1, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_both_branches_run_in_a_model_older_than_where() -> None:
    branches: dict[str, Any] = {
        f"{which}_branch": body([node(op_type, ["x"], ["a"])], [], [info("a", FLOAT, [3])])
        for which, op_type in (("then", "Tanh"), ("else", "Exp"))
    }
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "nought"], ["c"]),
        node("If", ["c"], ["r"], "choose", **branches),
        node("Mul", ["r", "w"], ["y"]),
        *LOSS,
    ]
    constants = {"w": np.array([1, 2, 3], np.float32), "nought": np.array(0, np.float32)}
    proto = model(nodes, [info("x", FLOAT, [3])], [info("loss", FLOAT, [])], constants, 8)
    for x in (np.array(values, np.float32) for values in ([0.3, 0.2, 0.1], [-0.3, 0.2, -0.1])):
        agree(proto, {"x": x})
        gradient_agrees(proto, {"x": x}, ["x", "w"])
