"""Blocks that append to `self.base.graph`, the way ONNX Runtime documents for operators without a block."""

import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import mlp

import trainweb
from trainweb import onnxblock
from trainweb.artifacts import OptimType, build_artifacts
from trainweb.onnxblock import blocks

SCALE = np.array([0.5, 2.0, -1.0], np.float32)


class Appending(onnxblock.Block):
    """mean(|logits * scale + shift|), by appending protos between calls of blocks; `shift` is a new input."""

    def __init__(self) -> None:
        self.abs, self.mean = blocks.Abs(), blocks.ReduceMean(keepdims=False)

    def build(self, logits: str) -> str:
        graph = self.base.graph  # held over the calls of other blocks
        graph.initializer.append(numpy_helper.from_array(SCALE, "my.scale"))
        graph.input.append(helper.make_tensor_value_info("shift", TensorProto.FLOAT, [3]))
        graph.node.append(helper.make_node("Mul", [logits, "my.scale"], ["my.scaled"], "my_mul"))
        graph.node.append(helper.make_node("Add", ["my.scaled", "shift"], ["my.shifted"], "my_add"))
        rectified = self.abs("my.shifted")
        assert graph.node[-1].output == [rectified], "what a block makes is seen"
        graph.node.append(helper.make_node("Identity", [rectified], ["my.same"], "my_identity"))
        doubled = self.add_node("Add", ["my.same", "my.same"])
        assert self.base.graph.node[-1].output == [doubled]
        graph.node.append(helper.make_node("Sub", [doubled, "my.same"], ["my.back"], "my_sub"))
        return str(self.mean("my.back"))


def test_a_loss_of_appended_nodes_trains() -> None:
    """Loss and the gradient of the last bias, against numpy in float64."""
    model = mlp()
    made = build_artifacts(model, loss=Appending(), optimizer=OptimType.SGD)
    x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    shift = np.array([0.3, -0.2, 0.1], np.float32)
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    hidden = np.maximum(x @ weights["fc1.weight"].T + weights["fc1.bias"], 0)
    y = (hidden @ weights["fc2.weight"].T + weights["fc2.bias"]) * SCALE + shift
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    with trainweb.TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model) as s:
        assert s.input_names() == ["x", "shift"]
        (loss,) = s.train_step({"x": x, "shift": shift}).values()
        np.testing.assert_allclose(loss, np.abs(y).mean(), rtol=1e-5)
        gradient = (np.sign(y) * SCALE / y.size).sum(0)
        np.testing.assert_allclose(state.parameters["fc2.bias"].grad, gradient, rtol=1e-5, atol=1e-7)


def test_the_model_under_construction_is_one_message() -> None:
    with onnxblock.base(mlp()) as accessor:
        view = accessor.model
        assert isinstance(view, onnx.ModelProto)
        before = [n.name for n in view.graph.node]
        view.graph.node.append(helper.make_node("Abs", ["logits"], ["mine.out"], "mine"))
        out = blocks.Neg()("mine.out")
        assert accessor.model is view
        assert [n.name for n in view.graph.node][: len(before) + 1] == [*before, "mine"]
        assert view.graph.node[-1].output == [out]
        view.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        blocks.Abs()(out)
        assert accessor.graph.opsets["com.microsoft"] == 1
        del view.graph.node[len(before) :]
        accessor.sync()
        assert [n.name for n in accessor.graph.nodes] == before


def test_a_forward_block_of_appended_nodes_alone() -> None:
    class Twice(onnxblock.ForwardBlock):
        def build(self, name: str) -> str:
            self.base.graph.node.append(helper.make_node("Add", [name, name], ["twice"], "twice"))
            return "twice"

    block = Twice()
    with onnxblock.base(mlp()):
        block("logits")
    session, plain = trainweb.InferenceSession(block.to_model_proto()), trainweb.InferenceSession(mlp())
    x = np.ones((2, 5), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * plain.run(None, {"x": x})[0])
    session.release()
    plain.release()


def test_without_the_onnx_package_the_error_names_add_node(monkeypatch: pytest.MonkeyPatch) -> None:
    data = mlp().SerializeToString()

    class Block(onnxblock.Block):
        def build(self) -> Any:
            return self.base.graph

    monkeypatch.setitem(sys.modules, "onnx", None)
    with onnxblock.base(data), pytest.raises(AttributeError, match=r"self\.add_node"):
        Block()()
