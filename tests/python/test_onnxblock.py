"""onnxblock: blocks, contexts, forward and training models, checkpoints."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model
from tests.python.sessions import infer

import trainweb
from trainweb import onnxblock
from trainweb.checkpoint import read_checkpoint
from trainweb.errors import (
    CheckpointError,
    GradientError,
    ModelError,
    SessionError,
    UnsupportedError,
)
from trainweb.onnxblock import blocks


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def base_model(**initializers: np.ndarray) -> onnx.ModelProto:
    """x[batch, 3] -> MatMul w (or what is given) -> y[batch, 2]."""
    arrays = {"w": normal(3, 2)} | initializers
    return make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")], {"x": ["batch", 3]}, {"y": ["batch", 2]}, arrays
    )


class Forward(onnxblock.ForwardBlock):
    """Any block on the model's output as a forward model."""

    def __init__(self, block: onnxblock.Block) -> None:
        super().__init__()
        self.block = block

    def build(self, *names: str) -> Any:
        return self.block(*names)


def run_block(block: onnxblock.Block, *names: str, **feeds: np.ndarray) -> np.ndarray:
    """Result of a block on `names` of the base model."""
    forward = Forward(block)
    with onnxblock.base(base_model()):
        forward(*names)
    return infer(forward.to_model_proto(), feeds)[0]


X = normal(4, 3, seed=1)
Y = X @ normal(3, 2)


@pytest.mark.parametrize(
    ("block", "names", "expected"),
    [
        (blocks.Add(), ("y", "y"), Y + Y),
        (blocks.Sub(), ("y", "y"), Y - Y),
        (blocks.Mul(), ("y", "y"), Y * Y),
        (blocks.Div(), ("y", "y"), Y / Y),
        (blocks.Pow(2.0), ("y",), Y**2),
        (blocks.Neg(), ("y",), -Y),
        (blocks.Abs(), ("y",), np.abs(Y)),
        (blocks.Sigmoid(), ("y",), 1 / (1 + np.exp(-Y))),
        (blocks.Softplus(), ("y",), np.log1p(np.exp(Y))),
        (blocks.ReduceMean(), ("y",), Y.mean(keepdims=True)),
        (blocks.ReduceSum(keepdims=False), ("y",), Y.sum()),
        (blocks.Clip(-0.5, 0.25), ("y",), Y.clip(-0.5, 0.25)),
        (blocks.Clip(clip_max=0.25), ("y",), Y.clip(None, 0.25)),
        (blocks.PassThrough(), ("y",), Y),
        (blocks.Cast("int64"), ("y",), Y.astype(np.int64)),
        (blocks.Cast(TensorProto.INT32), ("y",), Y.astype(np.int32)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, onnxblock.Block) else "",
)
def test_blocks_compute_what_they_say(block: Any, names: tuple[str, ...], expected: np.ndarray) -> None:
    got = run_block(block, *names, x=X)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_log_of_a_constant() -> None:
    class LogTwo(onnxblock.Block):
        def build(self, y: str) -> str:
            return blocks.Mul()(y, blocks.Log()(blocks.Constant(2.0)()))

    np.testing.assert_allclose(run_block(LogTwo(), "y", x=X), Y * np.log(2), rtol=1e-5)


def test_linear_adds_its_parameters() -> None:
    forward = Forward(blocks.Linear(2, 5, alpha=0.5))
    with onnxblock.base(base_model()):
        forward("y")
    proto = forward.to_model_proto()
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    weight = next(a for n, a in arrays.items() if "linear.weight" in n)
    bias = next(a for n, a in arrays.items() if "linear.bias" in n)
    assert (weight.shape, bias.shape) == ((2, 5), (5,)) and weight.std() > 0.2
    np.testing.assert_allclose(infer(proto, {"x": X})[0], 0.5 * Y @ weight + bias, rtol=1e-4, atol=1e-5)


def test_inputs_like_other_tensors() -> None:
    with onnxblock.base(base_model()) as accessor:
        name = blocks.InputLike("y")("target")
        again = blocks.InputLike("y")("target")
        generated = blocks.InputLike("x")()
        with pytest.raises(ModelError, match="zz is not a graph value info or a graph output"):
            blocks.InputLike("zz")("other")
        with pytest.raises(ModelError, match="labels"):
            blocks.InputLike("labels")("y")  # the two names in the wrong order
        inputs = {i.name: i for i in accessor.model.graph.input}
    assert name == again == "target" and generated.startswith("onnx::input::")
    dims = inputs["target"].type.tensor_type.shape.dim
    assert (dims[0].dim_param, dims[1].dim_value) == ("batch", 2)
    assert len(inputs) == 3


def test_nodes_of_any_operator_and_domain() -> None:
    with onnxblock.base(base_model()) as accessor:
        total = blocks.ReduceAllL2()("x", "y")
        values, indices = blocks.Block().add_node("TopK", ["y", blocks.add_initializer_of("int64", "k", [1])], 2)
        encoded = blocks.LabelEncoder(keys_int64=[1, 2], values_int64=[5, 6], default_int64=0)(indices)
        sequence = blocks.SequenceConstruct()("x", "y")
        model = accessor.model
    nodes = {n.output[0]: n for n in model.graph.node}
    assert nodes[total].domain == "com.microsoft" and nodes[total].op_type == "ReduceAllL2"
    assert list(nodes[values].output) == [values, indices]
    assert nodes[encoded].domain == "ai.onnx.ml" and nodes[sequence].op_type == "SequenceConstruct"
    assert {o.domain for o in model.opset_import} == {"", "com.microsoft", "ai.onnx.ml"}


# Contexts.


def test_blocks_need_one_context_and_no_second() -> None:
    with pytest.raises(SessionError, match=r"with onnxblock\.base"):
        blocks.Add()("x", "y")
    with pytest.raises(SessionError, match="Model cannot be None"), onnxblock.base(None):
        pass
    twice = pytest.raises(SessionError, match="multiple ModelAccessors")
    with onnxblock.base(base_model()), twice, onnxblock.base(base_model()):
        pass
    with onnxblock.base(base_model()) as accessor:  # the failed one left nothing behind
        assert [n.name for n in accessor.model.graph.node] == ["matmul"]


def test_the_base_model_is_not_changed() -> None:
    model = base_model()
    before = model.SerializeToString()
    with onnxblock.base(model):
        blocks.Neg()("y")
    assert model.SerializeToString() == before


def test_an_empty_base_has_the_opset_asked_for() -> None:
    with onnxblock.empty_base(opset_version=14) as accessor:
        assert {o.domain: o.version for o in accessor.model.opset_import} == {
            "": 14,
            "com.microsoft": 1,
        }
    with pytest.raises(UnsupportedError, match=r"ops\.so"):
        onnxblock.custom_op_library("ops.so")


def test_models_are_bytes_where_the_onnx_package_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = base_model().SerializeToString()
    monkeypatch.setitem(sys.modules, "onnx", None)
    block = TrainingNet()
    with onnxblock.base(data) as accessor:
        block("y")
        assert isinstance(accessor.model, bytes)
    training, evaluation = block.to_model_proto()
    assert isinstance(training, bytes) and isinstance(evaluation, bytes)
    assert [t.name for t in block.parameters()[0]] == ["w"]


# Training models.


class TrainingNet(onnxblock.TrainingBlock):
    """Mean squared error of y."""

    def __init__(self, *trainable: str, frozen: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.loss = onnxblock.loss.MSELoss()
        for name in trainable or ("w",):
            self.requires_grad(name)
        for name in frozen:
            self.requires_grad(name, False)

    def build(self, output: str) -> Any:
        return self.loss(output), output


def test_a_training_block_makes_models_that_train() -> None:
    block = TrainingNet()
    with onnxblock.base(base_model()):
        names = block("y")
    training, evaluation = block.to_model_proto()
    assert [o.name for o in training.graph.output] == [*names, "w_grad.accumulation.out"]
    assert [i.name for i in evaluation.graph.input] == ["x", "target", "w"]
    trainable, frozen = block.parameters()
    assert [t.name for t in trainable] == ["w"] and frozen == []
    np.testing.assert_array_equal(numpy_helper.to_array(trainable[0]), normal(3, 2))
    optimizer = onnxblock.optim.SGD()
    with onnxblock.empty_base():
        optimizer(block.parameters())
    state = trainweb.CheckpointState.load_checkpoint(onnxblock_checkpoint(block))
    with trainweb.TrainingSession(state, training, evaluation, optimizer.to_model_proto()) as session:
        target = normal(4, 2, seed=2)
        session.set_learning_rate(0.5)
        loss, y = session.train_step({"x": X, "target": target}).values()
        np.testing.assert_allclose(loss, ((Y - target) ** 2).mean(), rtol=1e-5)
        np.testing.assert_allclose(y, Y, rtol=1e-5, atol=1e-6)
        session.optimizer_step()
        expected = normal(3, 2) - 0.5 * X.T @ (Y - target) * 2 / 8
        np.testing.assert_allclose(session.get_parameter("w"), expected, rtol=1e-4, atol=1e-5)


def onnxblock_checkpoint(block: onnxblock.TrainingBlock) -> bytes:
    from trainweb.checkpoint import write_checkpoint
    from trainweb.onnxblock.checkpoint import generated_checkpoint

    return write_checkpoint(generated_checkpoint(*block.parameters()), generated=True)


def test_frozen_parameters_are_inputs_without_gradient() -> None:
    model = base_model(b=normal(2, seed=3))
    model.graph.node.append(helper.make_node("Add", ["y", "b"], ["z"], "add"))
    block = TrainingNet("w", frozen=("b",))
    with onnxblock.base(model):
        block("z")
    training = block.to_model_proto()[0]
    assert [i.name for i in training.graph.input] == [
        "x",
        "target",
        "w",
        "b",
        "w_grad.accumulation.buffer",
        "lazy_reset_grad",
    ]
    assert [t.name for t in block.parameters()[1]] == ["b"]


def test_a_graph_input_may_require_a_gradient() -> None:
    block = TrainingNet("w", "x")
    with onnxblock.base(base_model()):
        block("y")
    training = block.to_model_proto()[0]
    assert "x_grad.accumulation.buffer" in [i.name for i in training.graph.input]
    assert [o.name for o in training.graph.output][-2:] == [
        "x_grad.accumulation.out",
        "w_grad.accumulation.out",
    ]
    assert [t.name for t in block.parameters()[0]] == ["w"]


def test_training_blocks_refuse_what_cannot_be_trained() -> None:
    block = TrainingNet("zz")
    with onnxblock.base(base_model()), pytest.raises(ModelError, match="Node arg zz is not found"):
        block("y")
    with pytest.raises(SessionError, match="Please build the training model first"):
        block.parameters()
    with pytest.raises(SessionError, match="Please build the training model first"):
        block.to_model_proto()
    with pytest.raises(SessionError, match="Please build the forward model first"):
        onnxblock.optim.SGD().to_model_proto()
    unused = TrainingNet("u")
    with (
        onnxblock.base(base_model(u=normal(2))),
        pytest.raises(GradientError, match="'u' as it's unreachable"),
    ):
        unused("y")

    class NoResult(TrainingNet):
        def build(self, output: str) -> Any:
            return None

    with (
        onnxblock.base(base_model()),
        pytest.raises(ModelError, match="must return the name of an output"),
    ):
        NoResult()("y")


@pytest.mark.parametrize("loss", [onnxblock.loss.MSELoss, onnxblock.loss.L1Loss, onnxblock.loss.CrossEntropyLoss])
def test_unknown_reductions_are_refused(loss: Any) -> None:
    with pytest.raises(ModelError, match="it must be mean, sum or none"):
        loss(reduction="median")


def test_scores_need_a_class_axis() -> None:
    with onnxblock.base(base_model()), pytest.raises(ModelError, match="have no class axis 3"):
        onnxblock.loss.CrossEntropyLoss(class_axis=3)("y")


# Optimizers.


def node_attributes(model: onnx.ModelProto) -> dict[str, dict[str, Any]]:
    return {n.op_type: {a.name: helper.get_attribute_value(a) for a in n.attribute} for n in model.graph.node}


def test_optimizer_attributes() -> None:
    clip = onnxblock.optim.ClipGradNorm(2.5)
    adamw = onnxblock.optim.AdamW(False, (0.8, 0.95), 1e-5, 0.25, clip, adam_mode=0)
    with onnxblock.empty_base():
        adamw(([], []))
    attributes = node_attributes(adamw.to_model_proto())
    assert attributes["InplaceClipGradNorm"] == {"max_norm": 2.5}
    assert attributes["AdamWOptimizer"] == {
        "adam_mode": 0,
        "alpha": pytest.approx(0.8),
        "beta": pytest.approx(0.95),
        "correct_bias": 0,
        "epsilon": pytest.approx(1e-5),
        "weight_decay": 0.25,
    }
    onnx.checker.check_model(adamw.to_model_proto())


def test_an_optimizer_takes_its_parameters_as_two_arguments_too() -> None:
    sgd = onnxblock.optim.SGD(clip_grad=onnxblock.optim.ClipGradNorm(1.0))
    with onnxblock.empty_base():
        sgd([], [])
    model = sgd.to_model_proto()
    assert [i.name for i in model.graph.input] == [
        "learning_rate",
        "step",
        "params",
        "gradients",
        "first_order_moments",
    ]
    assert [n.op_type for n in model.graph.node] == ["InplaceClipGradNorm", "SGDOptimizerV2"]


# Checkpoints.


def test_checkpoints_are_saved_and_loaded_into_models(tmp_path: Path) -> None:
    trained = [numpy_helper.from_array(normal(3, 2, seed=7), "w")]
    onnxblock.save_checkpoint((trained, []), tmp_path / "checkpoint")
    read = read_checkpoint(tmp_path / "checkpoint")
    assert [t.name for t in read.trained] == ["w"] and not read.is_nominal
    model = base_model()
    assert onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", model) is model
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), normal(3, 2, seed=7))
    data = onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", base_model().SerializeToString())
    loaded = onnx.load_model_from_string(data)
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.initializer[0]), normal(3, 2, seed=7))


def test_checkpoints_that_do_not_fit_a_model_are_refused(tmp_path: Path) -> None:
    onnxblock.save_checkpoint(([numpy_helper.from_array(normal(2, 3), "w")], []), tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"\[2, 3\] in the checkpoint, \[3, 2\] in the model"):
        onnxblock.load_checkpoint_to_model(tmp_path / "other", base_model())
    onnxblock.save_checkpoint(([numpy_helper.from_array(normal(3, 2), "w")], []), tmp_path / "nominal", True)
    assert read_checkpoint(tmp_path / "nominal").is_nominal
    with pytest.raises(CheckpointError, match="nominal"):
        onnxblock.load_checkpoint_to_model(tmp_path / "nominal", base_model())
