"""Files that other tools let pass: what leaves no doubt is repaired, and what is refused is named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model
from tests.python.sessions import infer

import trainweb
from trainweb.artifacts import LossType, OptimType, build_artifacts
from trainweb.errors import ModelError, TrainwebError, UnsupportedError
from trainweb.model.reader import read_model
from trainweb.session.inference_session import InferenceSession
from trainweb.training.arrays import to_numpy

W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
node = helper.make_node
PRODUCT = node("MatMul", ["x", "w"], ["h"], "first")


def model(*nodes: Any, opset: int = 17, **constants: Any) -> onnx.ModelProto:
    tensors = {"w": W, **constants}
    return make_model(
        [PRODUCT, *nodes], {"x": ["n", 4]}, {"y": ["n", 3]}, {k: np.asarray(v) for k, v in tensors.items()}, opset=opset
    )


def shapeless_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].type.tensor_type.ClearField("shape")


def typeless_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].ClearField("type")


def listed_initializers(proto: onnx.ModelProto) -> None:
    proto.ir_version = 3
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]))


def duplicate_names(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].name = "first"


def newer_version(proto: onnx.ModelProto) -> None:
    proto.ir_version = 99


def unread_input_without_rank(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("spare", TensorProto.FLOAT, None))


def other_names_for_sizes(proto: onnx.ModelProto) -> None:
    for dim in ("n", "batch"):
        proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [dim, 3]))


def unnamed_sizes(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["unk__12", "?"]))


FAULTS = [
    shapeless_output,
    typeless_output,
    listed_initializers,
    duplicate_names,
    newer_version,
    unread_input_without_rank,
    other_names_for_sizes,
    unnamed_sizes,
]


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda f: f.__name__)
def test_faults_that_leave_no_doubt(spoil: Callable[[onnx.ModelProto], None]) -> None:
    proto = model(node("Tanh", ["h"], ["y"], "second"))
    spoil(proto)
    built = build_artifacts(proto, loss=LossType.MSELoss, optimizer=OptimType.SGD)
    feeds = {"x": X, "target": np.zeros((5, 3), np.float32), "spare": np.zeros(2, np.float32)}
    with trainweb.TrainingSession(**built) as session:
        names = [v.name for v in built.graphs[0].inputs]
        (loss,) = session.train_step({n: v for n, v in feeds.items() if n in names}).values()
    assert float(loss) == pytest.approx(float((np.tanh(X.astype(np.float64) @ W) ** 2).mean()), rel=1e-5)
    report = trainweb.check(proto, loss=LossType.MSELoss)
    assert report.ok, str(report)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_bias_of_zeros_in_the_shape_of_a_matrix_is_none(value: float) -> None:
    """torch's dynamo exporter makes one for a Conv3d without a bias; anything but zeros is refused."""
    x, w = np.random.default_rng(2).standard_normal((2, 2, 1, 3, 4, 4)).astype(np.float32)
    nodes = [
        node("Shape", ["w"], ["rows"], start=0, end=1),
        node("Constant", [], ["two"], value_ints=[2]),
        node("Concat", ["rows", "two"], ["shape"], axis=0),
        node("Constant", [], ["zero"], value=numpy_helper.from_array(np.float32(value))),
        node("CastLike", ["zero", "x"], ["like"]),
        node("Expand", ["like", "shape"], ["bias"]),
        node("Conv", ["x", "w", "bias"], ["y"]),
    ]
    data = make_model(nodes, {"x": x.shape}, {"y": None}, {"w": w}, opset=18).SerializeToString()
    session = InferenceSession(data)
    try:
        if value:
            with pytest.raises(ModelError, match=r"the bias has shape \[2, 2\]"):
                session.run(None, {"x": x})
            return
        (y,) = session.run(None, {"x": x})
    finally:
        session.release()
    expected = np.einsum("nidhw,oidhw->no", x.astype(float), w.astype(float)).reshape(2, 2, 1, 1, 1)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_nodes_of_one_name_are_told_apart() -> None:
    proto = model(node("Tanh", ["h"], ["y"], "first"))
    assert [n.name for n in read_model(proto).nodes] == ["first", "first_1"]


NORM = {"s": np.full(3, 2, "f4"), "b": np.ones(3, "f4"), "m": np.full(3, 0.5, "f4"), "v": np.full(3, 4, "f4")}


@pytest.mark.parametrize(
    ("opset", "outputs", "attrs"),
    [
        (17, ["y"], {}),
        (17, ["y", "m2", "v2"], {"training_mode": 1}),
        (13, ["y"], {}),
        (9, ["y", "m2", "v2", "sm", "sv"], {}),
        (9, ["y", "m", "v", "sm", "sv"], {}),
    ],
    ids=str,
)
def test_batch_normalization_in_either_form_trains_alike(opset: int, outputs: list[str], attrs: dict[str, int]) -> None:
    proto = model(node("BatchNormalization", ["h", "s", "b", "m", "v"], outputs, "norm", **attrs), opset=opset, **NORM)
    with trainweb.TrainingSession.from_model(
        proto, loss=LossType.MSELoss, requires_grad=["w", "s", "b"], optimizer=OptimType.SGD
    ) as session:
        feeds = {"x": X, "target": np.zeros((5, 3), np.float32)}
        (loss,) = session.train_step(feeds).values()
        h = X.astype(np.float64) @ W
        normed = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5) * NORM["s"] + NORM["b"]
        assert float(loss) == pytest.approx(float((normed**2).mean()), rel=1e-5)
        mean = to_numpy(session._core.get_parameter("m"))
        np.testing.assert_allclose(mean, 0.9 * NORM["m"] + 0.1 * h.mean(0), rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_that_was_left_in(training: bool) -> None:
    constants = {"ratio": np.float32(0.5), "training": np.array(training)}
    proto = model(node("Dropout", ["h", "ratio", "training"], ["y"], "drop"), **constants)
    built = build_artifacts(proto, loss=LossType.MSELoss, requires_grad=["w"])
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    target = np.zeros((5, 3), np.float32)
    whole = float(((X.astype(np.float64) @ W) ** 2).mean())
    with trainweb.TrainingSession(state, built.training_model, built.eval_model) as session:
        losses = {float(next(iter(session.train_step({"x": X, "target": target}).values()))) for _ in range(4)}
        evaluated = float(next(iter(session.eval_step({"x": X, "target": target}).values())))
    assert evaluated == pytest.approx(whole, rel=1e-5)
    assert (len(losses) == 4) is training
    if not training:
        assert losses.pop() == pytest.approx(whole, rel=1e-5)


def unknown_field(proto: onnx.ModelProto) -> bytes:
    """Field 63 of the graph, which ONNX does not define; a message may be continued at its end."""
    proto.ir_version = 99
    field = bytes([63 << 3 & 0x7F | 0x80, 63 >> 4, 1])
    return proto.SerializeToString() + bytes([7 << 3 | 2, len(field)]) + field


REFUSED: list[tuple[Callable[[onnx.ModelProto], bytes], type[TrainwebError], str]] = [
    (unknown_field, UnsupportedError, "IR version 99 and uses field 63 of a GraphProto"),
    (
        lambda p: (p.ClearField("opset_import"), setattr(p, "ir_version", 2), p.SerializeToString())[-1],
        ModelError,
        "IR version 2: the versions of its operators are unknown. Convert it",
    ),
    (
        lambda p: (p.graph.input[0].type.tensor_type.ClearField("shape"), p.SerializeToString())[-1],
        ModelError,
        "Input 'x' has no declared shape; its rank must be known: MatMul node 'first'",
    ),
]


@pytest.mark.parametrize(("spoil", "error", "message"), REFUSED, ids=["newer field", "before opsets", "no rank"])
def test_what_is_refused_says_what_to_do(
    spoil: Callable[[onnx.ModelProto], bytes], error: type[TrainwebError], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_artifacts(spoil(model(node("Tanh", ["h"], ["y"]))), loss=LossType.MSELoss)


def test_an_output_without_a_shape_is_exported_with_one() -> None:
    proto = model(node("Relu", ["h"], ["y"]))
    shapeless_output(proto)
    with trainweb.TrainingSession.from_model(proto, loss=LossType.MSELoss, optimizer=OptimType.SGD) as session:
        exported = onnx.load_from_string(session.export_model_for_inferencing(graph_output_names=["y"]))
    onnx.checker.check_model(exported, full_check=True)
    assert [d.dim_value or d.dim_param for d in exported.graph.output[0].type.tensor_type.shape.dim] == ["n", 3]


def test_an_unsupported_operator_is_named_before_a_missing_shape() -> None:
    proto = model(node("Bogus", ["h"], ["g"], "odd"), node("Strange", ["g"], ["y"]))
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match=r"'odd': operator 'Bogus'.*Not supported either: Strange") as info:
        build_artifacts(proto, loss=LossType.MSELoss)
    assert info.value.op == "Bogus"


def test_an_unsupported_operator_in_a_branch_is_named() -> None:
    branches = [
        helper.make_graph(
            [node(op, ["h"], ["r"])], op, [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
        )
        for op in ("Tanh", "Bogus")
    ]
    proto = model(node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]), c=np.array(True))
    with pytest.raises(UnsupportedError, match="Bogus"):
        build_artifacts(proto, loss=LossType.MSELoss)
    assert [p.op for p in trainweb.check(proto, loss=LossType.MSELoss).unsupported] == ["Bogus"]


def test_models_run_as_they_are_evaluated() -> None:
    proto = model(node("BatchNormalization", ["h", "s", "b", "m", "v"], ["y"], "norm"), **NORM)
    expected = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": X})[0]
    np.testing.assert_allclose(infer(proto, {"x": X})[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("to", "instead"),
    [(TensorProto.COMPLEX128, "bfloat16.*dynamo=True"), (TensorProto.COMPLEX64, "view_as_real"), (8, "number what")],
    ids=["complex128", "complex64", "string"],
)
def test_a_cast_to_what_nothing_is_computed_in_says_what_to_do(to: int, instead: str) -> None:
    """The TorchScript exporter writes the bfloat16 of Falcon's ALiBi as complex128: both are 15, here and there."""
    proto = model(node("Cast", ["h"], ["c"], "cast", to=to), node("Cast", ["c"], ["y"], "back", to=1))
    with pytest.raises(UnsupportedError, match=f"Cast node 'cast': dtype .* \\(.*{instead}.*\\) is not supported"):
        build_artifacts(proto, loss=LossType.MSELoss)
