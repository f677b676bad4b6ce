"""The pre-flight report."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model
from tests.python.test_deciding_feeds import windowed

import trainweb
from trainweb.artifacts import LossType, OptimType
from trainweb.ops.frame.op import Op, find
from trainweb.session.example import Feed, example_code

GOLDEN = Path(__file__).parent.parent / "golden"


def model(*nodes: tuple[str, list[str], list[str]], opset: int = 17) -> bytes:
    w = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    return make_model(
        [helper.make_node(op, i, o, name=f"{op}_{k}") for k, (op, i, o) in enumerate(nodes)],
        {"x": ["batch", 4]},
        {"y": ["batch", 3]},
        [w],
        opset=opset,
    ).SerializeToString()


def test_a_model_that_trains_is_reported_with_its_cost() -> None:
    case = GOLDEN / "mlp"
    report = trainweb.check(
        case / "base.onnx", loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, dims={"batch": 8}
    )
    assert report.ok, str(report)
    assert report.trainable["fc1.weight"] == (16, 10) and not report.frozen
    # Forward, weight and data gradients of three products, the first without a data gradient.
    assert report.flops == 2 * 8 * (2 * 16 * 10 + 3 * 12 * 16 + 3 * 4 * 12)
    # Parameters, gradients and two moments are 432 elements each.
    assert 4 * 4 * 432 < report.peak_bytes < 1 << 20
    assert "can be trained" in str(report) and "432 elements" in str(report)


def test_a_model_is_reported_with_the_adapters_that_it_is_to_train() -> None:
    asked: dict[str, Any] = {"loss": "CrossEntropyLoss", "lora": {"rank": 2, "targets": ["fc2"]}}
    report = trainweb.check(GOLDEN / "mlp" / "base.onnx", dims={"batch": 8}, optimizer="AdamW", **asked)
    assert report.ok, str(report)
    # Two factors of a layer with 16 inputs and 12 outputs; all else is frozen, and no gradient goes below the layer.
    assert sorted(report.trainable.values()) == [(2, 16), (12, 2)]
    assert report.frozen["fc1.weight"] == (16, 10)
    assert {d.name for d in report.trained} == set(report.trainable) and not report.left_out
    with trainweb.TrainingSession.from_model(GOLDEN / "mlp" / "base.onnx", **asked) as session:
        assert session.get_parameters_size(True) == sum(map(np.prod, report.trainable.values()))
    assert 'lora={"rank": 2, "targets": ["fc2"]}' in report.code["python"]
    assert 'lora: { rank: 2, targets: ["fc2"] }' in report.code["javascript"]


def test_faults_of_adapters_are_reported_and_misspelt_settings_raise() -> None:
    base = GOLDEN / "mlp" / "base.onnx"
    report = trainweb.check(base, loss="CrossEntropyLoss", lora={"targets": ["q_proj"]})
    assert not report.ok and "q_proj" in str(report.error)
    with pytest.raises(TypeError, match="'rank'"):
        trainweb.check(base, lora={"rnk": 2})
    with pytest.raises(TypeError, match="'requires_grad' is not an argument here"):
        trainweb.check(base, ["fc1.weight"], lora={"rank": 2})


def test_every_unsupported_operator_is_listed_with_its_nodes() -> None:
    report = trainweb.check(
        model(("MatMul", ["x", "w"], ["a"]), ("Fake", ["a"], ["b"]), ("Bogus", ["b"], ["c"]), ("Bogus", ["c"], ["y"]))
    )
    assert not report.ok
    assert {p.op: p.nodes for p in report.unsupported} == {"Fake": ["Fake_1"], "Bogus": ["Bogus_2", "Bogus_3"]}
    assert "Bogus_3" in str(report)


def test_what_else_is_wrong_is_listed_beside_unsupported_operators() -> None:
    broken = ("Softmax", ["a"], ["s"])
    report = trainweb.check(
        model(("MatMul", ["x", "w"], ["a"]), ("Fake", ["a"], ["b"]), broken, ("Add", ["b", "s"], ["y"]))
    )
    assert [p.op for p in report.unsupported] == ["Fake"] and report.error is None
    proto = onnx.load_from_string(
        model(("MatMul", ["x", "w"], ["a"]), ("Fake", ["a"], ["b"]), broken, ("Add", ["b", "s"], ["y"]))
    )
    proto.graph.node[2].attribute.append(helper.make_attribute("axis", 9))
    report = trainweb.check(proto.SerializeToString())
    assert [p.op for p in report.unsupported] == ["Fake"]
    assert report.error is not None and "axis 9" in report.error and "Add" not in report.error


def test_a_missing_gradient_is_named() -> None:
    proto = onnx.load_from_string(model(("MatMul", ["x", "w"], ["a"]), ("TanhGrad", ["a", "a"], ["y"])))
    proto.graph.node[1].domain = "com.microsoft"
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    report = trainweb.check(proto.SerializeToString(), loss=LossType.MSELoss)
    assert not report.ok
    assert [p.op for p in report.missing_gradients] == ["TanhGrad"]


def test_a_broken_model_is_reported_not_raised() -> None:
    report = trainweb.check(b"not a model")
    assert not report.ok and report.error is not None and report.error.startswith("ModelError")


def test_a_model_of_one_constant_is_reported_and_trains() -> None:
    """It has no rows to count. An input that is the loss has no node that reads its gradient."""
    file = make_model([helper.make_node("Constant", [], ["y"], value_float=3.0)], {}, {"y": []}, {})
    reports = [trainweb.check(file), trainweb.check(make_model([], {"x": [2]}, {}, {}), loss={"x": "MSELoss"})]
    assert "outputs, but these are given: ." in str(trainweb.check(make_model([], {}, {}, {}), loss="MSELoss"))
    assert [len(report.trainable) for report in reports] == [0, 0] and not any(report.error for report in reports)
    asked: dict[str, Any] = {"optimizer": "SGD", "learning_rate": 0.25, "requires_grad": ".*"}
    with trainweb.TrainingSession.from_model(file, loss="MSELoss", **asked) as session:
        (loss,) = session.train_step({"target": np.float32(1)}).values()
        session.optimizer_step()
        (value,) = session.get_contiguous_parameters(trainable_only=True)
    assert loss == (3 - 1) ** 2 and value == 3 - 0.25 * 2 * (3 - 1)


def declared(dims: list[object], *nodes: tuple[str, list[str], list[str]]) -> bytes:
    proto = onnx.load_from_string(model(*nodes))
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, dims))
    return proto.SerializeToString()


def test_sizes_are_spoken_of_in_the_symbols_of_the_model() -> None:
    source = declared(["batch", "n"], ("MatMul", ["x", "w"], ["y"]))
    report = trainweb.check(source, loss=LossType.CrossEntropyLoss, dims={"batch": 8})
    assert report.ok and report.refined == ["n = 4, as MatMul node 'MatMul_0' needs n = 4"]
    assert report.refined[0] in str(report)
    assert report.flops == 2 * 8 * 4 * 3 * 2
    refused = trainweb.check(source, loss=LossType.CrossEntropyLoss, dims={"n": 5})
    assert refused.error is not None and "'n' cannot be 5: n = 4, as MatMul node" in refused.error
    unknown = trainweb.check(source, loss=LossType.CrossEntropyLoss, dims={"m": 5})
    assert unknown.error is not None and "no dimension 'm'; the model's are batch, n" in unknown.error


def test_labels_are_as_many_as_rows_are_computed() -> None:
    source = declared(["batch", 6, 4], ("MatMul", ["x", "w"], ["a"]), ("Flatten", ["a"], ["b"]), ("Relu", ["b"], ["y"]))
    proto = onnx.load_from_string(source)
    proto.graph.node[1].attribute.append(helper.make_attribute("axis", 2))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    report = trainweb.check(proto.SerializeToString(), loss=LossType.CrossEntropyLoss, dims={"batch": 5})
    assert report.ok, str(report)


def two_towers(first: str, second: str) -> bytes:
    """loss input y = first(x w) + second(x v): both are on the way to a parameter."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node(first, ["a"], ["b"], "one"),
        helper.make_node("MatMul", ["x", "v"], ["c"], "other"),
        helper.make_node(second, ["c"], ["d"], "two"),
        helper.make_node("Add", ["b", "d"], ["y"], "sum"),
    ]
    tensors = [numpy_helper.from_array(np.ones((4, 3), np.float32), name) for name in "wv"]
    return make_model(nodes, {"x": ["batch", 4]}, {"y": ["batch", 3]}, tensors).SerializeToString()


def without_gradient(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        cls = find("", name)
        assert cls is not None
        monkeypatch.setattr(cls, "gradient", Op.gradient)


def test_all_missing_gradients_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    without_gradient(monkeypatch, "Sin", "Cos")
    report = trainweb.check(two_towers("Sin", "Cos"), requires_grad=["w", "v"], loss=LossType.MSELoss)
    assert not report.ok
    assert sorted((p.op, p.nodes) for p in report.missing_gradients) == [("Cos", ["two"]), ("Sin", ["one"])]
    assert trainweb.check(two_towers("Tanh", "Relu"), requires_grad=["w", "v"], loss=LossType.MSELoss).ok


def test_all_nodes_that_do_not_fit_are_listed() -> None:
    broken = two_towers("Relu", "Relu")
    proto = onnx.load_from_string(broken)
    for k, name in ((0, "w"), (1, "v")):
        proto.graph.initializer[k].CopyFrom(numpy_helper.from_array(np.ones((5 + k, 3), np.float32), name))
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]))
    report = trainweb.check(proto.SerializeToString(), loss=LossType.MSELoss)
    assert report.error is not None and "'product'" in report.error and "'other'" in report.error
    assert "'sum'" not in report.error and "can be trained" not in str(report)


def test_sizes_follow_from_feeds_and_labels_from_them() -> None:
    source = declared(["batch", None, 4], ("MatMul", ["x", "w"], ["a"]), ("ReduceMean", ["a"], ["y"]))
    proto = onnx.load_from_string(source)
    proto.graph.node[1].attribute.append(helper.make_attribute("axes", [1]))
    proto.graph.node[1].attribute.append(helper.make_attribute("keepdims", 0))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    source = proto.SerializeToString()
    x = np.zeros((5, 7, 4), np.float32)
    report = trainweb.check(source, loss=LossType.CrossEntropyLoss, feeds={"x": x})
    assert report.ok, str(report)
    # Forward and weight gradient of 5 * 7 rows: the dim without a name is the array's.
    assert report.flops == 2 * 2 * 5 * 7 * 4 * 3
    wrong = trainweb.check(source, loss=LossType.CrossEntropyLoss, feeds={"x": np.zeros((5, 7, 6), np.float32)})
    assert wrong.error is not None and "6" in wrong.error and not wrong.ok
    apart = trainweb.check(source, loss=LossType.CrossEntropyLoss, feeds={"x": x, "labels": np.zeros(6, np.int64)})
    assert apart.error is not None and "labels" in apart.error
    unknown = trainweb.check(source, loss=LossType.CrossEntropyLoss, feeds={"z": x})
    assert unknown.error is not None and "'z'" in unknown.error


def test_what_decides_by_its_value_needs_one() -> None:
    source = windowed().SerializeToString()
    asked = trainweb.check(source, requires_grad=["w"])
    assert asked.error is not None and "feeds={'count': ...}" in asked.error
    report = trainweb.check(source, requires_grad=["w"], feeds={"x": np.zeros((6, 3), "f4"), "count": [4]})
    assert report.ok, str(report)


def map_of_scores(*dims: int | str | None) -> bytes:
    """A convolution of images, whose output says that it has `dims`."""
    weight = np.random.default_rng(3).standard_normal((5, 3, 1, 1)).astype("f4")
    return make_model(
        [helper.make_node("Conv", ["image", "w"], ["scores"])],
        {"image": ["n", 3, "h", "w"]},
        {"scores": dims},
        {"w": weight},
    ).SerializeToString()


def scaled(*dims: int | str | None) -> bytes:
    """A factor times an input of these dims."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in ("x", "y")]
    factor = numpy_helper.from_array(np.ones(1, "f4"), "w")
    return make_model(
        [helper.make_node("Mul", ["x", "w"], ["y"])], values[:1], values[1:], [factor]
    ).SerializeToString()


OF_MAPS = {"type": "CrossEntropyLoss", "class_axis": 1}
USUAL: dict[tuple[int | str | None, ...], str | dict[str, object]] = {
    ("n", 10): "CrossEntropyLoss",
    ("n", "t", 100): "CrossEntropyLoss",
    ("n",): "MSELoss",
    ("n", 1): "MSELoss",
    ("n", "classes"): "MSELoss",
    ("n", 21, "h", "w"): OF_MAPS,
    (1, 21, 64, 64): OF_MAPS,
    ("n", 5, 32, 48): OF_MAPS,
    ("n", 4, 16, 16, 16): OF_MAPS,
    ("n", "h", "w", 21): "CrossEntropyLoss",
    (1, 64, 64, 21): "CrossEntropyLoss",
    ("n", 3, 64, 64): "MSELoss",
    ("n", 1, "h", "w"): "MSELoss",
    ("n", 64, 64, 3): "MSELoss",
}
"""Dims of outputs, and the loss that people train such ones with: classes of rows, tokens, pixels; numbers, images."""


@pytest.mark.parametrize("dims", USUAL, ids=str)
def test_the_suggested_loss_fits_the_output(dims: tuple[int | str | None, ...]) -> None:
    report = trainweb.check(scaled(*dims))
    assert report.suggested_loss == USUAL[dims]
    assert ("for classes along axis 1" in str(report.missing_loss)) == (USUAL[dims] is OF_MAPS)


def test_lines_without_common_rows_keep_the_loop() -> None:
    """`fit` takes rows: feeds whose first axes differ are no rows of one table."""
    with_rows, without = ([Feed("x", "float32", [4, 2]), Feed("y", "int64", [n])] for n in (4, 3))
    assert "fit(feeds, { epochs: 100, batchSize: 4 })" in example_code({}, with_rows, ["y"], [])["javascript"]
    lines = example_code({}, without, ["y"], [])
    assert "runTrainStep(feeds)" in lines["javascript"] and "session.train_step(feeds)" in lines["python"]


def test_the_lines_for_a_map_of_scores_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes in axis 1: labels have the other axes, and five even guesses a loss of log 5."""
    data = map_of_scores("n", 5, "h", "w")
    loss = trainweb.check(data).suggested_loss
    report = trainweb.check(data, loss=loss, dims={"n": 2, "h": 4, "w": 6})
    assert report.ok and [feed.shape for feed in report.feeds] == [[2, 3, 4, 6], [2, 4, 6]]
    assert 'loss: { type: "CrossEntropyLoss", classAxis: 1 }' in report.code["javascript"]
    (tmp_path / "model.onnx").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {}
    exec(report.code["python"], values)
    values["session"].release()
    losses = values["history"]["loss"]
    assert len(losses) == 100 and float(losses[0]) == pytest.approx(np.log(5), abs=1e-6)
    assert onnx.load_from_string(values["trained"]).graph.output[0].name == "scores"
