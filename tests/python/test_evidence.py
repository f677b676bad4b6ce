"""What names and uses tell about a file of torch's TorchScript exporter, which notes nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.zoo.recording import load

import trainweb
from trainweb.artifacts import build_artifacts


def convolution(weight: str, bias: str, matrix: str, *, producer: str = "pytorch") -> bytes:
    """loss = the mean of a convolution, rectified, flattened and multiplied by a matrix, under names given."""
    nodes = [
        helper.make_node("Conv", ["x", weight, bias], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", matrix], ["m"]),
        helper.make_node("ReduceMean", ["m"], ["loss"], keepdims=0),
    ]
    rng = np.random.default_rng(3)
    shapes = {weight: (2, 1, 3, 3), bias: (2,), matrix: (8, 3)}
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1, 4, 4])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), name) for name, s in shapes.items()],
    )
    model = helper.make_model(graph, producer_name=producer, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


@pytest.mark.parametrize("names", [("onnx::Conv_15", "onnx::Conv_16"), ("61", "62")], ids=["named", "numbered"])
def test_a_folded_convolution_is_trained_with_a_warning(names: tuple[str, str]) -> None:
    """In evaluation mode the exporter folds batch normalization: what is trained is no parameter of the module."""
    with pytest.warns(UserWarning, match=r"folded into it.*TrainingMode\.TRAINING"):
        decisions = {d.name: d for d in build_artifacts(convolution(*names, "onnx::MatMul_20")).decisions}
    assert all(decisions[name].trained and decisions[name].doubtful for name in names)
    assert decisions["onnx::MatMul_20"].trained, "a linear layer's weight, transposed"
    assert not decisions["onnx::MatMul_20"].doubtful


def test_other_convolutions_are_trained_without_a_word() -> None:
    files = convolution("conv.weight", "conv.bias", "onnx::MatMul_20"), convolution("W1", "B_2", "M", producer="keras")
    for file in files:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            decisions = build_artifacts(file).decisions
        assert all(d.trained and not d.doubtful for d in decisions)


@pytest.mark.parametrize("how", ["Slice", "Gather"])
@pytest.mark.parametrize("producer", ["pytorch", "other"])
def test_tables_of_which_parts_are_factors_are_left_out(how: str, producer: str) -> None:
    """Rotary positions of sequences shorter than the table, or by fed ids, as older modules look them up."""
    angles = np.outer(np.arange(6), [1.0, 0.1])
    tables = {"rope.cos": np.cos(angles), "rope.sin": np.sin(angles)}
    tensors = {**tables, "head.weight": np.random.default_rng(0).standard_normal((2, 3))}
    constants = [numpy_helper.from_array(t.astype(np.float32), name) for name, t in tensors.items()]
    constants += [numpy_helper.from_array(np.array([n]), name) for n, name in ((0, "nought"), (4, "four"))]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 2])]
    if how == "Gather":
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 4]))
    nodes = []
    for name in ("cos", "sin"):
        given = ["nought", "four", "nought"] if how == "Slice" else ["ids"]
        nodes += [
            helper.make_node(how, [f"rope.{name}", *given], [name]),
            helper.make_node("Mul", ["x", name], [f"x{name}"]),
        ]
    nodes += [helper.make_node("Add", ["xcos", "xsin"], ["h"]), helper.make_node("MatMul", ["h", "head.weight"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name=producer)
    decisions = {d.name: d for d in build_artifacts(proto.SerializeToString(), loss="MSELoss").decisions}
    assert [name for name, d in decisions.items() if d.trained] == ["head.weight"]
    assert all("table of cosines and sines" in decisions[name].reason for name in tables)


@pytest.mark.parametrize("exporter", ["script", "dynamo", "plain"])
def test_what_an_exporter_never_tells_is_said(exporter: str) -> None:
    """Of torch's files those of TorchScript lack what others note; of other exporters nothing is known."""
    report = trainweb.check(load("mlp").files[exporter])
    assert (report.untold is None) == (exporter != "script")
    assert ("no trace of detach" in str(report)) == (exporter == "script")
    assert trainweb.check(convolution("a.weight", "a.bias", "b.weight", producer="tf2onnx")).untold is None


def clipped(names: tuple[str, str], producer: str) -> bytes:
    """loss = the mean of x w between two bounds."""
    nodes = [
        helper.make_node("MatMul", ["x", "layer.weight"], ["h"]),
        helper.make_node("Clip", ["h", *names], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    weight = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)
    bounds = [numpy_helper.from_array(np.float32(b), name) for name, b in zip(names, (0, 6), strict=True)]
    graph = helper.make_graph(
        nodes,
        "clipped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(weight, "layer.weight"), *bounds],
    )
    model = helper.make_model(graph, producer_name=producer, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("names", "producer", "trained"),
    [
        (("onnx::Clip_3", "onnx::Clip_4"), "pytorch", False),
        (("low", "high"), "keras", False),
        (("low", "high"), "pytorch", True),
    ],
)
def test_bounds_are_learned_where_torch_names_them(names: tuple[str, str], producer: str, trained: bool) -> None:
    """A scalar attribute of a module is a parameter or a buffer; the others are the 0 and 6 of a rectifier."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if trained else "error")
        decisions = {d.name: d for d in build_artifacts(clipped(names, producer)).decisions}
    assert [decisions[name].trained for name in names] == [trained] * 2
    assert decisions["layer.weight"].trained
