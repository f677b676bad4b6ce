"""Remarks on files that train, but maybe not as their makers mean: warnings of a build, lines of `trainweb.check`."""

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import Artifacts, LossType, build_artifacts
from trainweb.errors import ModelError, UnsupportedError
from trainweb.session.training_session import TrainingSession

Values = list[tuple[str, int, list[Any]]]
RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    nodes: list[Any], inputs: Values, outputs: Values, tensors: dict[str, np.ndarray], producer: str = ""
) -> bytes:
    return make_model(
        nodes,
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        tensors,
        domains=["ai.onnx.ml"],
        producer=producer,
    ).SerializeToString()


X, Y = [("x", TensorProto.FLOAT, ["n", 4])], [("y", TensorProto.FLOAT, ["n", 3])]


def built(file: bytes, **arguments: Any) -> tuple[Artifacts, list[str]]:
    """Artifacts, and what building them warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        artifacts = build_artifacts(file, optimizer="SGD", **arguments)
    return artifacts, [str(w.message) for w in caught]


def first_loss(artifacts: Artifacts, feeds: dict[str, np.ndarray]) -> float:
    with TrainingSession(**artifacts) as session:
        return float(next(iter(session.train_step(feeds).values())))


# Batch normalization of an inference file.

NORM = {
    "fc.weight": drawn(4, 3),
    "bn.weight": np.ones(3, np.float32),
    "bn.bias": np.zeros(3, np.float32),
    "bn.running_mean": drawn(3) + 5,
    "bn.running_var": np.abs(drawn(3)) + 9,
}


def normalized(**attributes: int) -> bytes:
    names = ["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"]
    outputs = ["y", "mean", "var"] if attributes else ["y"]
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["a"]),
        helper.make_node("BatchNormalization", ["a", *names], outputs, **attributes),
    ]
    return model(nodes, X, Y, NORM, "pytorch")


def test_batch_norms_of_an_inference_file_are_told() -> None:
    _, said = built(normalized(), loss="MSELoss")
    (remark,) = said
    assert "1 BatchNormalization node is in inference mode" in remark and "batch_norm='as_exported'" in remark
    for loss in ("MSELoss", None):  # without a loss, too, when the report names the parameters and asks for one
        report = trainweb.check(normalized(), loss=loss)
        assert report.remarks == said and remark in str(report) and report.as_data()["remarks"] == said


@pytest.mark.parametrize("batch_norm", ["train", "as_exported"])
def test_a_choice_about_batch_norms_says_that_it_is_known(batch_norm: str) -> None:
    artifacts, said = built(normalized(), loss="MSELoss", batch_norm=batch_norm)
    assert not said
    assert not trainweb.check(normalized(), loss="MSELoss", batch_norm=batch_norm).remarks
    x, target = drawn(5, 4), drawn(5, 3)
    h = x.astype(float) @ NORM["fc.weight"]
    batch = batch_norm == "train"
    mean, variance = (h.mean(0), h.var(0)) if batch else (NORM["bn.running_mean"], NORM["bn.running_var"])
    expected = np.square((h - mean) / np.sqrt(variance + 1e-5) - target).mean()
    assert first_loss(artifacts, {"x": x, "target": target}) == pytest.approx(expected, rel=1e-5)


def test_batch_norms_that_train_anyway_are_no_news() -> None:
    assert not built(normalized(training_mode=1), loss="MSELoss")[1]
    assert not built(normalized(), loss="MSELoss", frozen_params=["bn.weight", "bn.bias"])[1]


# A loss that applies what the model did already.


def activated(operator: str, *moves: str) -> bytes:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["scores"], name="head")]
    names = ["scores", *(f"h{k}" for k in range(len(moves))), "y"]
    parts = {"first": np.array([0]), "last": np.array([3])} if "Slice" in moves else {}
    for op, a, b in zip((operator, *moves), names, names[1:], strict=False):
        nodes.append(helper.make_node(op, [a, *(parts if op == "Slice" else ())], [b]))
    return model(nodes, X, [("y", TensorProto.FLOAT, ["n", 3])], {"w": drawn(4, 3), **parts}, "tf2onnx")


@pytest.mark.parametrize(
    ("loss", "operator", "moves", "told"),
    [
        ("CrossEntropyLoss", "Softmax", (), True),
        (LossType.CrossEntropyLoss, "Softmax", ("Identity", "Identity"), True),
        ({"type": "FocalLoss"}, "Softmax", (), True),
        ("CrossEntropyLoss", "Softmax", ("Slice", "Identity"), True),
        ("BCEWithLogitsLoss", "Sigmoid", ("Identity",), True),
        ("CrossEntropyLoss", "LogSoftmax", (), False),
        ("CrossEntropyLoss", "Relu", (), False),
        ("MSELoss", "Softmax", (), False),
        ("KLDivLoss", "LogSoftmax", (), False),
    ],
)
def test_a_loss_that_applies_softmax_itself(loss: Any, operator: str, moves: tuple[str, ...], told: bool) -> None:
    said = built(activated(operator, *moves), loss=loss)[1]
    assert trainweb.check(activated(operator, *moves), loss=loss).remarks == said
    assert bool(said) == told
    if told:
        assert f"applies {operator} itself" in said[0] and "loss_input_names=['scores']" in said[0]
        assert not built(activated(operator, *moves), loss=loss, loss_input_names=["scores"])[1]


@pytest.mark.parametrize("operators", [["MatMul"], ["MatMul", "Add"], ["MatMul", "Softmax"]])
def test_a_loss_of_log_probabilities(operators: list[str]) -> None:
    edges = ["x", *(f"h{k}" for k in range(len(operators) - 1)), "y"]
    tensors = {"MatMul": {"w": drawn(4, 3)}, "Add": {"b": drawn(3)}, "Softmax": {}}
    nodes = [helper.make_node(op, [edges[k], *tensors[op]], [edges[k + 1]], name=op) for k, op in enumerate(operators)]
    file = model(nodes, X, Y, {name: t for op in operators for name, t in tensors[op].items()})
    (said,) = built(file, loss="KLDivLoss")[1]
    assert "KLDivLoss takes log-probabilities, but 'y' is made by" in said and "LogSoftmax" in said
    assert not built(file, loss="MSELoss")[1]


# Dropout of an inference file.


def dropped(opset: int, ratio: float | None = 0.25, training: bool | None = None) -> bytes:
    inputs = ["a", "" if ratio is None or opset < 12 else "ratio", "" if training is None else "training"]
    while not inputs[-1]:
        inputs.pop()
    attributes = {"ratio": ratio} if opset < 12 else {}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Dropout", inputs, ["y"], **attributes)]
    tensors = {"w": drawn(4, 3), "ratio": np.array(ratio or 0, np.float32), "training": np.array(bool(training))}
    proto = onnx.load_from_string(model(nodes, X, Y, {k: v for k, v in tensors.items() if k in {"w", *inputs}}))
    proto.opset_import[0].version = opset
    return proto.SerializeToString()


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (dropped(17), True),
        (dropped(17, None), True),
        (dropped(17, training=False), True),
        (dropped(11), True),
        (dropped(17, training=True), False),
        (dropped(17, 0.0), False),
    ],
)
def test_dropout_that_stays_off_is_told(file: bytes, told: bool) -> None:
    said = built(file, loss="MSELoss")[1]
    assert trainweb.check(file, loss="MSELoss").remarks == trainweb.check(file).remarks == said
    assert [text.startswith("1 of 1 Dropout nodes are in inference mode") for text in said] == [True] * told


def test_dropouts_that_work_are_told_apart_from_those_of_attention() -> None:
    """As PyTorch's exporter writes a module in training mode with scaled_dot_product_attention."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Dropout", ["a", "ratio", "training"], ["b"]),
        helper.make_node("Dropout", ["b", "none"], ["c"]),
        helper.make_node("Softmax", ["c"], ["d"]),
        helper.make_node("Dropout", ["d", "ratio"], ["y"]),
    ]
    tensors = {"w": drawn(4, 3), "ratio": np.float32(0.25), "none": np.float32(0), "training": np.bool_(True)}
    file = model(nodes, X, Y, {name: np.array(tensor) for name, tensor in tensors.items()})
    artifacts, (said,) = built(file, loss="MSELoss")
    assert said.startswith("1 of 2 Dropout nodes are") and "attn_implementation='eager'" in said
    feeds = {"x": drawn(64, 4), "labels": drawn(64, 3)}
    with TrainingSession(**artifacts) as session:
        assert len({float(next(iter(session.train_step(feeds).values()))) for _ in range(3)}) == 3
        again = session.export(outputs="y")
    assert "2 of 2 Dropout nodes are" in (said := built(again, loss="MSELoss")[1][0]) and "session's export" in said


# Outputs that the file declares wrong.


@pytest.mark.parametrize("declared", [["n", 3], ["n", 1, 4]], ids=["rank", "size"])
@pytest.mark.parametrize("loss", ["MSELoss", "CrossEntropyLoss"])
def test_labels_fit_what_the_model_computes(declared: list[Any], loss: str) -> None:
    """As in a file of ddddocr, whose output is declared with two axes and has three."""
    w = drawn(4, 3)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Unsqueeze", ["a", "axes"], ["y"])]
    file = model(nodes, X, [("y", TensorProto.FLOAT, declared)], {"w": w, "axes": np.array([1])}, "other")
    x = drawn(5, 4)
    scores = (x.astype(float) @ w)[:, None]
    if loss == "MSELoss":
        labels: np.ndarray = drawn(5, 1, 3)
        expected = np.square(scores - labels).mean()
    else:
        labels = RNG.integers(0, 3, (5, 1))
        log_softmax = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        expected = -np.take_along_axis(log_softmax, labels[..., None], -1).mean()
    report = trainweb.check(file, loss=loss, dims={"n": 5})
    assert report.ok and {feed.name: feed.shape for feed in report.feeds}["labels"] == list(labels.shape)
    assert first_loss(built(file, loss=loss)[0], {"x": x, "labels": labels}) == pytest.approx(expected, rel=1e-5)


# Operators that the loss does not need.


def labelled() -> bytes:
    """As skl2onnx writes classifiers: scores, and behind them an operator that only looks names up."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["k"], axis=1),
        helper.make_node("ArrayFeatureExtractor", ["classes", "k"], ["found"], domain="ai.onnx.ml", name="look_up"),
        helper.make_node("Identity", ["found"], ["label"]),
    ]
    tensors = {"w": drawn(4, 3), "classes": np.arange(3)}
    return model(nodes, X, [("label", TensorProto.INT64, [1, "n"]), *Y], tensors, "skl2onnx")


def test_operators_that_the_loss_does_not_read_refuse_nothing() -> None:
    arguments = {"loss": "MSELoss", "loss_input_names": ["y"]}
    artifacts, _ = built(labelled(), **arguments)
    report = trainweb.check(labelled(), **arguments)
    assert report.ok and list(report.trainable) == ["w"], str(report)
    assert np.isfinite(first_loss(artifacts, {"x": drawn(2, 4), "target": drawn(2, 3)}))


@pytest.mark.parametrize(
    "arguments",
    [{}, {"loss_input_names": ["label"]}, {"loss_input_names": ["y"], "additional_output_names": ["label"]}],
    ids=["all outputs", "the loss", "an output"],
)
def test_operators_that_are_asked_for_refuse(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="ArrayFeatureExtractor"):
        built(labelled(), loss="MSELoss", **arguments)
    report = trainweb.check(labelled(), loss="MSELoss", **arguments)
    assert [problem.nodes for problem in report.unsupported] == [["look_up"]]


# Quantized weights.


@pytest.mark.parametrize("rows", [0, 3], ids=["per tensor", "per channel"])
def test_scales_of_quantized_weights_are_not_trained(rows: int) -> None:
    """As onnxruntime.quantization writes them, whose weights are integers."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w_q", "w_scale", "w_zero"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    shape = (rows,) if rows else ()
    tensors = {
        "w_q": RNG.integers(-9, 9, (4, 3), np.int8),
        "w_scale": np.full(shape, 0.5, np.float32),
        "w_zero": np.zeros(shape, np.int8),
        "b": drawn(3),
    }
    report = trainweb.check(model(nodes, X, Y, tensors, "onnx.quantize"), loss="MSELoss")
    assert list(report.trainable) == ["b"], str(report)
    assert [d.reason for d in report.left_out] == ["the scale of numbers in fewer bits, which a quantizer chose"]
    (share,) = report.remarks
    assert share.startswith("Only 3 of 15 numbers in the file's parameters are trained. Its weights have fewer bits")
    assert share in trainweb.check(model(nodes, X, Y, tensors)).remarks
    assert not trainweb.check(model(nodes, X, Y, tensors), loss="MSELoss", requires_grad=["b"]).remarks
    del tensors["b"]
    file = model([nodes[0], helper.make_node("MatMul", ["x", "w"], ["y"])], X, Y, tensors, "onnx.quantize")
    with pytest.raises(ModelError, match="train the model before it is quantized"):
        built(file, loss="MSELoss")


# Keras.


def keras_normalization(*inputs: str) -> bytes:
    """Keras' nodes for Normalization and Dense, its mean an input of the graph as in Keras, or a constant."""
    prefix = "sequential/normalization"
    nodes = [
        helper.make_node("Sub", ["x", f"{prefix}/Sub/y:0"], ["a"]),
        helper.make_node("Mul", ["a", f"ConstantFolding/{prefix}/truediv_recip:0"], ["b"]),
        helper.make_node("MatMul", ["b", "sequential/dense/Cast/ReadVariableOp:0"], ["c"]),
        helper.make_node("Add", ["c", "sequential/dense/BiasAdd/ReadVariableOp:0"], ["y"]),
    ]
    tensors = {
        f"{prefix}/Sub/y:0": drawn(1, 4),
        f"ConstantFolding/{prefix}/truediv_recip:0": np.abs(drawn(1, 4)),
        "sequential/dense/Cast/ReadVariableOp:0": drawn(4, 3),
        "sequential/dense/BiasAdd/ReadVariableOp:0": drawn(3),
    }
    given: Values = [(name, TensorProto.FLOAT, list(tensors.pop(name).shape)) for name in inputs]
    return model(nodes, [*X, *given], Y, tensors, "tf2onnx")


def test_statistics_of_keras_normalization_are_not_trained() -> None:
    artifacts, (said,) = built(keras_normalization(), loss="MSELoss")
    trained = [d.name for d in artifacts.decisions if d.trained and not d.doubtful]
    assert trained == [f"sequential/dense/{part}/ReadVariableOp:0" for part in ("Cast", "BiasAdd")]
    assert {d.name for d in artifacts.decisions if d.doubtful and not d.trained} == {
        "sequential/normalization/Sub/y:0",
        "ConstantFolding/sequential/normalization/truediv_recip:0",
    }
    assert "truediv_recip:0' is left out" in said


def test_tensors_of_layers_that_became_inputs_are_told() -> None:
    inner = "sequential/normalization/Sub/y:0"
    said = built(keras_normalization(inner), loss="MSELoss")[1]
    assert any(f"became inputs of the file: {inner!r}" in text for text in said)
    for loss in ("MSELoss", None):
        assert any(repr(inner) in text for text in trainweb.check(keras_normalization(inner), loss=loss).remarks)
    assert not any("became inputs" in text for text in built(keras_normalization(), loss="MSELoss")[1])


# A recorded parameter that trains in no way.


@pytest.mark.parametrize("detach", ["detach", "squared"])
def test_a_parameter_behind_a_detach_is_listed_as_left_out(detach: str) -> None:
    """As torch's dynamo exporter writes the table of nn.Embedding(max_norm=...), which is changed in forward."""
    nodes = [
        helper.make_node("Identity", ["e.weight"], [detach], name="node_detach"),
        helper.make_node("Mul", ["x", detach], ["h"]),
        helper.make_node("MatMul", ["h", "fc.weight"], ["y"]),
    ]
    tensors = {"e.weight": drawn(4), "fc.weight": drawn(4, 3)}
    proto = onnx.load_from_string(model(nodes, X, Y, tensors, "pytorch"))
    for tensor in proto.graph.initializer:
        tensor.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value="InputKind.PARAMETER")
        proto.graph.value_info.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims))
        proto.graph.value_info[-1].metadata_props.extend(tensor.metadata_props)
    proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{detach}']")
    report = trainweb.check(proto.SerializeToString(), loss="MSELoss")
    is_detached = detach == "detach"
    left_out = {d.name: d.reason for d in report.left_out}
    assert list(left_out) == (["e.weight"] if is_detached else []) and not report.doubtful
    assert set(report.trainable) == ({"fc.weight"} if is_detached else {"e.weight", "fc.weight"})
    assert not is_detached or "only a detach lies between it and the loss" in left_out["e.weight"]


def test_a_classifier_of_scikit_learn_trains() -> None:
    """As skl2onnx writes StandardScaler with MLPClassifier: labels are looked up by an operator that is not there."""
    offset, scale = [0.5, -1.0, 2.0, 0.0], [2.0, 0.25, 1.0, 4.0]
    proto = onnx.load_from_string(labelled())
    proto.graph.node[0].input[0] = "scaled"
    scaler = helper.make_node("Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=offset, scale=scale)
    proto.graph.node.insert(0, scaler)
    w = numpy_helper.to_array(proto.graph.initializer[0]).astype(float)
    x, labels = drawn(5, 4), RNG.integers(0, 3, 5)
    scores = (x.astype(float) - offset) * scale @ w
    log_softmax = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    artifacts, said = built(proto.SerializeToString(), loss="CrossEntropyLoss", loss_input_names=["y"])
    assert not said
    found = first_loss(artifacts, {"x": x, "labels": labels})
    assert found == pytest.approx(-log_softmax[np.arange(5), labels].mean(), rel=1e-5)


def test_an_input_that_no_node_reads_is_remarked_on() -> None:
    """Torch leaves one of two inputs without a reader that had one tensor in the export."""
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    for inputs, count in (({"x": [2]}, 0), ({"x": [2], "types": [2]}, 1)):
        model = make_model([node], inputs, {"y": [2]}, {"w": np.ones(2, np.float32)})
        said = [text for text in trainweb.check(model.SerializeToString()).remarks if "No node reads" in text]
        assert len(said) == count and all("changes nothing: 'types'. " in text for text in said)
        assert built(model.SerializeToString(), loss="MSELoss", sample_weight="rows")[1] == said
