"""Meaning of the arguments of build_artifacts, and the values that they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.python.sessions import take_steps

import trainweb
from trainweb import onnxblock
from trainweb.artifacts import Artifacts, LossType, OptimType, build_artifacts, generate_artifacts
from trainweb.checkpoint import read_checkpoint
from trainweb.errors import FeedError, GradientError, ModelError, UnsupportedError
from trainweb.model.reader import read_model

from .models import batch_norm_net, make_model, mlp, normal

ALL = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


def parameters(artifacts: Artifacts) -> tuple[list[str], list[str]]:
    """Names of the trainable and the frozen parameters."""
    checkpoint = read_checkpoint(artifacts.checkpoint)
    return [t.name for t in checkpoint.trained], [t.name for t in checkpoint.frozen]


def op_types(model: bytes) -> list[str]:
    return [node.op_type for node in read_model(model).nodes]


def session(artifacts: Artifacts) -> trainweb.TrainingSession:
    return trainweb.TrainingSession(**artifacts)


def losses(artifacts: Artifacts, feeds: dict[str, Any], steps: int = 4) -> list[float]:
    with session(artifacts) as s:
        s.set_learning_rate(0.05)
        found = take_steps(s, feeds, steps)
        return found


# Which parameters.


def test_a_scalar_that_is_added_is_no_table_of_positions() -> None:
    # The golden transformer adds a scalar epsilon to a variance.
    source = Path(__file__).parent.parent / "golden" / "transformer" / "base.onnx"
    trained, frozen = parameters(build_artifacts(source, loss=LossType.CrossEntropyLoss))
    assert len(trained) > 10 and not frozen


def test_without_lists_every_parameter_is_trained() -> None:
    artifacts = build_artifacts(mlp(), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    assert parameters(artifacts) == (ALL, [])


def test_without_requires_grad_the_rest_of_frozen_params_is_trained() -> None:
    artifacts = build_artifacts(mlp(), frozen_params=["fc1.weight"], loss=LossType.CrossEntropyLoss)
    assert parameters(artifacts) == (ALL[1:], ALL[:1])


def test_regular_expressions_match_whole_names_in_graph_order() -> None:
    artifacts = build_artifacts(
        mlp(),
        requires_grad=[r"fc2\..*", "fc1.bias"],
        frozen_params=r".*1\.weight",
        loss=LossType.CrossEntropyLoss,
    )
    assert parameters(artifacts) == (ALL[1:], ALL[:1])
    with pytest.raises(ModelError, match="Node arg fc2 is not found"):
        build_artifacts(mlp(), requires_grad=["fc2"], loss=LossType.CrossEntropyLoss)


def test_initializers_in_neither_list_stay_constants() -> None:
    artifacts = build_artifacts(mlp(), requires_grad=["fc2.weight"], loss=LossType.CrossEntropyLoss)
    training = read_model(artifacts.training_model)
    assert {"fc1.weight", "fc1.bias", "fc2.bias"} <= set(training.initializers)
    assert [v.name for v in training.inputs] == [
        "x",
        "labels",
        "fc2.weight",
        "fc2.weight_grad.accumulation.buffer",
        "lazy_reset_grad",
    ]


def test_scalars_and_integers_are_trained_only_by_name() -> None:
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Mul", ["m", "temperature"], ["s"]),
            helper.make_node("Reshape", ["s", "shape"], ["logits"]),
        ],
        {"x": ["batch", 5]},
        {"logits": ["batch", 3]},
        {"w": normal(5, 3), "temperature": np.float32(0.5), "shape": np.array([-1, 3])},
    )
    with pytest.warns(UserWarning, match="'temperature' is left out"):
        assert parameters(build_artifacts(model, loss=LossType.CrossEntropyLoss)) == (["w"], [])
    named = build_artifacts(model, ["w", "temperature"], loss=LossType.CrossEntropyLoss)
    assert parameters(named) == (["w", "temperature"], [])
    with pytest.raises(ModelError, match="'shape' is int64"):
        build_artifacts(model, ["shape"], loss=LossType.CrossEntropyLoss)


def test_parameters_given_as_constant_nodes_are_found() -> None:
    weight = helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(normal(5, 3)))
    model = make_model(
        [weight, helper.make_node("MatMul", ["x", "w"], ["logits"])],
        {"x": ["batch", 5]},
        {"logits": ["batch", 3]},
        {},
    )
    artifacts = build_artifacts(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD)
    assert parameters(artifacts) == (["w"], [])
    assert "Constant" not in op_types(artifacts.eval_model)
    assert losses(artifacts, {"x": normal(4, 5, seed=1), "labels": np.array([0, 1, 2, 1])})[-1] < 2.5


def test_bad_names_are_refused() -> None:
    with pytest.raises(ModelError, match="Node arg zz is not found"):
        build_artifacts(mlp(), requires_grad=["zz"], loss=LossType.CrossEntropyLoss)
    with pytest.raises(ModelError, match="cannot be frozen and require gradient"):
        build_artifacts(mlp(), ["fc1.weight"], ["fc1.*"], loss=LossType.CrossEntropyLoss)
    with pytest.raises(ModelError, match=r"Node arg zz is not found. In frozen_params"):
        build_artifacts(mlp(), frozen_params=["zz"], loss=LossType.CrossEntropyLoss)
    with pytest.raises(ModelError, match=r"Node arg z{80} is not found. In requires_grad, it is neither"):
        build_artifacts(mlp(), requires_grad=["z" * 1000], loss=LossType.CrossEntropyLoss)
    with pytest.raises(ModelError, match=r"there are .*\. For all parameters of the module write 'fc1\\\\\.\.\*'\."):
        build_artifacts(mlp(), frozen_params=["fc1"], loss=LossType.CrossEntropyLoss)
    with pytest.raises(ModelError, match="nothing to train"):
        build_artifacts(mlp(), requires_grad=[], loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD)


def test_a_parameter_the_loss_does_not_depend_on_is_unreachable() -> None:
    model = mlp()
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(2), "unused"))
    text = "Cannot compute the partial derivative for 'unused' as it's unreachable"
    with pytest.raises(GradientError, match=text):
        build_artifacts(model, ["unused"], loss=LossType.CrossEntropyLoss)
    assert parameters(build_artifacts(model, loss=LossType.CrossEntropyLoss)) == (ALL, [])


# Losses.


def test_without_a_loss_the_first_output_is_it() -> None:
    model = make_model(
        [
            helper.make_node("Mul", ["x", "w"], ["y"]),
            helper.make_node("ReduceMean", ["y"], ["l"], keepdims=0),
        ],
        {"x": [2, 3]},
        {"l": []},
        {"w": normal(3)},
    )
    artifacts = build_artifacts(model, optimizer=OptimType.SGD)
    assert next(v.name for v in read_model(artifacts.training_model).outputs) == "l"
    with session(artifacts) as s:
        x = normal(2, 3, seed=1)
        s.train_step({"x": x})
        np.testing.assert_allclose(s._core.state.parameters["w"].grad, x.sum(0) / 6, rtol=1e-6)


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'logits' has shape .*must be a scalar"):
        build_artifacts(mlp(), optimizer=OptimType.SGD)
    with pytest.raises(TypeError, match="There is no loss 'mse'"):
        build_artifacts(mlp(), loss="mse")


@pytest.mark.parametrize("opset", [9, 11])
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.1}, {"ignore_index": 1, "reduction": "sum"}], ids=str)
def test_cross_entropy_of_models_older_than_its_operator(opset: int, settings: dict[str, Any]) -> None:
    """SoftmaxCrossEntropyLoss is of opset 12: losses and trained parameters equal the same model of opset 12."""
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal((4, 5)).astype(np.float32), "labels": np.array([0, 2, 1, 2])}
    found = []
    for version in (opset, 12):
        loss = {"type": "CrossEntropyLoss", **settings}
        artifacts = build_artifacts(mlp(opset=version), loss=loss, optimizer="SGD")
        with session(artifacts) as s:
            s.set_learning_rate(0.1)
            losses = take_steps(s, feeds, 3)
            found.append((losses, s.get_contiguous_parameters()))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][0][2] < found[0][0][0]


def bce(x: np.ndarray, t: np.ndarray, p: Any = 1.0) -> np.ndarray:
    """Binary cross entropy of logits in float64."""
    x = x.astype(np.float64)
    return (1 - t) * x + (1 + (np.asarray(p) - 1) * t) * np.logaddexp(0, -x)


@pytest.mark.parametrize("pos_weight", [None, [3.0, 0.5]])
def test_binary_cross_entropy_is_stable_and_exact_at_zero(pos_weight: Any) -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "b"], ["logits"])],
        {"x": ["batch", 2]},
        {"logits": ["batch", 2]},
        {"b": np.zeros(2, np.float32)},
    )
    loss = onnxblock.loss.BCEWithLogitsLoss(reduction="sum", pos_weight=pos_weight)
    artifacts = build_artifacts(model, loss=loss, optimizer=OptimType.SGD)
    x = np.array([[0.0, 0.0], [80.0, -80.0], [-80.0, 80.0], [1.0, -2.0]], np.float32)
    t = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.25, 1.0]], np.float32)
    with session(artifacts) as s:
        got = float(next(iter(s.train_step({"x": x, "target": t}).values())))
        gradient = s._core.state.parameters["b"].grad
    p = 1.0 if pos_weight is None else np.asarray(pos_weight)
    assert got == pytest.approx(bce(x, t, p).sum(), rel=1e-6)
    exact = (1 - t) - (1 + (p - 1) * t) / (1 + np.exp(x.astype(np.float64)))
    np.testing.assert_allclose(gradient, exact.sum(0), rtol=1e-5)


def test_losses_without_reduction_can_be_combined() -> None:
    class PerSample(onnxblock.Block):
        def __init__(self) -> None:
            self.each = onnxblock.loss.MSELoss(reduction="none")
            self.sum = onnxblock.blocks.ReduceSum(keepdims=False)

        def build(self, pred: str) -> str:
            return self.sum(self.each(pred))

    artifacts = build_artifacts(mlp(), loss=PerSample(), optimizer=OptimType.SGD)
    found = losses(artifacts, {"x": normal(4, 5, seed=5), "target": normal(4, 3, seed=6)})
    assert found[-1] < found[0]


def test_a_loss_on_one_of_several_outputs() -> None:
    model = mlp()
    model.graph.output.append(helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["batch", 4]))
    with pytest.raises(ModelError, match="takes 1 of the model's outputs, but these are given: logits, a"):
        build_artifacts(model, loss=LossType.CrossEntropyLoss)
    artifacts = build_artifacts(
        model,
        loss=LossType.MSELoss,
        loss_input_names=["a"],
        additional_output_names=["logits", "h"],
    )
    assert parameters(artifacts)[0] == ["fc1.weight", "fc1.bias"]
    outputs = read_model(artifacts.eval_model).outputs
    assert [(v.name, v.shape) for v in outputs[1:]] == [
        ("logits", ("batch", 3)),
        ("h", ("batch", 4)),
    ]
    with pytest.raises(ModelError, match="zz is not a graph value info or a graph output"):
        build_artifacts(mlp(), loss=LossType.MSELoss, additional_output_names=["zz"])
    with pytest.raises(ModelError, match="additional_output_names must be a list"):
        build_artifacts(mlp(), loss=LossType.MSELoss, additional_output_names="h")


def test_what_weights_demand_is_declared() -> None:
    model = mlp()
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", "n"]))
    artifacts = build_artifacts(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD)
    for built in (artifacts.training_model, artifacts.eval_model):
        assert read_model(built).inputs[0].shape == ("batch", 5)  # type: ignore[union-attr]
    feeds = {"x": normal(4, 5, seed=5), "labels": np.array([0, 1, 2, 0])}
    found = losses(artifacts, feeds)
    assert found == losses(build_artifacts(mlp(), loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD), feeds)
    with session(artifacts) as s, pytest.raises(FeedError, match="index: 1 Got: 4 Expected: 5"):
        s.train_step({"x": normal(4, 4, seed=5), "labels": feeds["labels"]})


def test_labels_that_the_model_has_are_used() -> None:
    model = mlp()
    model.graph.input.append(helper.make_tensor_value_info("labels", onnx.TensorProto.INT32, ["rows"]))
    artifacts = build_artifacts(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD)
    labels = {v.name: v for v in read_model(artifacts.training_model).inputs}["labels"]
    # The loss needs as many labels as there are scores.
    assert (labels.dtype, labels.shape) == ("int32", ("batch",))
    feeds = {"x": normal(4, 5, seed=5), "labels": np.array([0, 1, 2, 0], np.int32)}
    found = losses(artifacts, feeds)
    assert found[-1] < found[0]


# Batch normalization and dropout.


@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize("training_mode", [False, True])
def test_batch_normalization_trains_whatever_form_it_has(training_mode: bool, opset: int) -> None:
    model = batch_norm_net(training_mode=training_mode, opset=opset)
    artifacts = build_artifacts(model, loss=LossType.MSELoss, optimizer=OptimType.SGD)
    trainable, frozen = parameters(artifacts)
    assert frozen == ["bn.mean", "bn.var"] and "bn.scale" in trainable
    assert "BatchNormInternal" in op_types(artifacts.training_model)
    x = 3 * normal(6, 2, 4, 4, seed=4) + 1
    with session(artifacts) as s:
        before = s.get_parameter("bn.mean")
        s.train_step({"x": x, "target": normal(6, 2, seed=5)})
        after = s.get_parameter("bn.mean")
        conv = sum(
            np.einsum("ncij,oc->noij", x[:, :, a : a + 2, b : b + 2], normal(3, 2, 3, 3)[:, :, a, b])
            for a in range(3)
            for b in range(3)
        )
        np.testing.assert_allclose(after, 0.9 * before + 0.1 * conv.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        assert np.isfinite(next(iter(s.eval_step({"x": x, "target": normal(6, 2, seed=5)}).values())))
    evaluation = [n for n in read_model(artifacts.eval_model).nodes if n.op_type == "BatchNormalization"]
    assert len(evaluation[0].outputs) == 1 and not evaluation[0].attrs.get("training_mode")


@pytest.mark.parametrize(
    "arguments", [{"requires_grad": ["conv.weight", "head.weight"]}, {"batch_norm": "as_exported"}]
)
def test_batch_normalization_in_inference_form_can_stay_so(arguments: dict[str, Any]) -> None:
    artifacts = build_artifacts(batch_norm_net(), loss=LossType.MSELoss, optimizer=OptimType.SGD, **arguments)
    assert "BatchNormInternal" not in op_types(artifacts.training_model)
    assert "bn.mean" not in parameters(artifacts)[1]
    feeds = {"x": normal(6, 2, 4, 4, seed=4), "target": normal(6, 2, seed=5)}
    with session(artifacts) as s:
        train = float(next(iter(s.train_step(feeds).values())))
        assert train == pytest.approx(float(next(iter(s.eval_step(feeds).values()))), rel=1e-6)


def test_a_batch_normalization_exported_for_training_trains_as_exported() -> None:
    model = batch_norm_net(training_mode=True)
    artifacts = build_artifacts(
        model,
        ["head.weight"],
        loss=LossType.MSELoss,
        optimizer=OptimType.SGD,
        batch_norm="as_exported",
    )
    assert "BatchNormInternal" in op_types(artifacts.training_model)
    assert parameters(artifacts) == (["head.weight"], ["bn.mean", "bn.var"])
    with pytest.raises(ModelError, match="batch_norm is 'eval'"):
        build_artifacts(model, loss=LossType.MSELoss, batch_norm="eval")


def test_dropout_is_off_in_the_eval_model() -> None:
    model = make_model(
        [
            helper.make_node("Gemm", ["x", "w"], ["h"], "fc"),
            helper.make_node("Dropout", ["h", "ratio", "mode"], ["logits"], "drop"),
        ],
        {"x": ["batch", 5]},
        {"logits": ["batch", 3]},
        {"w": normal(5, 3), "ratio": np.float32(0.5), "mode": np.array(True)},
    )
    artifacts = build_artifacts(model, ["w"], loss=LossType.MSELoss, optimizer=OptimType.SGD)
    nodes = {n.op_type: n for n in read_model(artifacts.eval_model).nodes}
    assert nodes["Dropout"].inputs == ["h", "ratio"]
    assert "mode" not in read_model(artifacts.eval_model).initializers
    feeds = {"x": normal(64, 5, seed=4), "target": np.zeros((64, 3), np.float32)}
    with session(artifacts) as s:
        eval_loss = float(next(iter(s.eval_step(feeds).values())))
        train_losses = {float(next(iter(s.train_step(feeds).values()))) for _ in range(3)}
    assert len(train_losses) == 3
    assert eval_loss == pytest.approx(((feeds["x"] @ normal(5, 3)) ** 2).mean(), rel=1e-5)


# Files.


def test_generate_artifacts_writes_the_files_it_builds(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(mlp(), source)
    target = tmp_path / "out"
    target.mkdir()
    arguments: dict[str, Any] = {"loss": LossType.CrossEntropyLoss, "optimizer": OptimType.AdamW}
    generate_artifacts(source, artifact_directory=target, prefix="p_", nominal_checkpoint=True, **arguments)
    built = build_artifacts(source, **arguments)
    assert {p.name: p.read_bytes() for p in target.iterdir()} == {
        "p_training_model.onnx": built.training_model,
        "p_eval_model.onnx": built.eval_model,
        "p_optimizer_model.onnx": built.optimizer_model,
        "p_checkpoint": built.checkpoint,
        "p_nominal_checkpoint": built.nominal_checkpoint,
    }
    with pytest.raises(FileNotFoundError):
        generate_artifacts(source, artifact_directory=tmp_path / "none", **arguments)


def test_without_an_optimizer_there_is_no_optimizer_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generate_artifacts(mlp(), loss=LossType.CrossEntropyLoss)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint",
        "eval_model.onnx",
        "training_model.onnx",
    ]
    assert build_artifacts(mlp(), loss=LossType.CrossEntropyLoss).optimizer_model is None


def test_what_only_native_runtimes_can_do_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="ort_format"):
        build_artifacts(mlp(), loss=LossType.MSELoss, ort_format=True)
    with pytest.raises(UnsupportedError, match="native code"):
        build_artifacts(mlp(), loss=LossType.MSELoss, custom_op_library="ops.so")


def test_an_unknown_operator_is_named() -> None:
    model = make_model(
        [
            helper.make_node("Gemm", ["x", "w"], ["h"], "fc"),
            helper.make_node("StringNormalizer", ["h"], ["logits"], "hard"),
        ],
        {"x": ["batch", 5]},
        {"logits": ["batch", 3]},
        {"w": normal(5, 3)},
    )
    with pytest.raises((UnsupportedError, GradientError), match="StringNormalizer") as caught:
        build_artifacts(model, ["w"], loss=LossType.MSELoss)
    assert caught.value.node == "hard"
