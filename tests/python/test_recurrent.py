"""Recurrent layers over thousands of steps: what they take to compile, and that they are right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.ops.op_runner import gradients, run

from trainweb.artifacts import build_artifacts
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.training.inference import InferenceCore

STEPS = 5000


def layer(op_type: str, gates: int, steps: int, hidden: int, **attrs: object) -> Graph:
    """One item, one feature; the loss is the sum of the last state."""
    shapes = {"x": (steps, 1, 1), "w": (1, gates * hidden, 1), "r": (1, gates * hidden, hidden)}
    node = Node(op_type, ["x", "w", "r"], ["y", "last"], {"hidden_size": hidden, **attrs}, "", "layer")
    graph = Graph("g", [node, Node("ReduceSum", ["last"], ["loss"], {"keepdims": 0}, "", "sum")], opsets={"": 17})
    graph.inputs = [Value(name, "float32", shape) for name, shape in shapes.items()]
    graph.outputs = [Value("loss", "float32", ())]
    return graph


def test_a_linear_recurrence_of_5000_steps_is_its_closed_form() -> None:
    graph = layer("RNN", 1, STEPS, 1, activations=["Relu"])
    rng = np.random.default_rng(0)
    x, w, r = rng.uniform(0.1, 1, (STEPS, 1, 1)), np.array([[[0.7]]]), np.array([[[0.999]]])
    feeds = {name: value.astype(np.float32) for name, value in (("x", x), ("w", w), ("r", r))}
    found = gradients(graph, ["x", "w", "r"], feeds)
    # All states are positive: last = sum over t of r^(T - 1 - t) w x_t.
    x, w, r = (feeds[name].astype(np.float64).ravel() for name in ("x", "w", "r"))
    left = np.arange(STEPS)[::-1].astype(np.float64)
    expected = {"x": w * r**left, "w": np.sum(r**left * x), "r": np.sum(left * r ** np.maximum(left - 1, 0) * w * x)}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].ravel(), value, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_plan_is_no_longer_for_more_steps(op_type: str, gates: int) -> None:
    from trainweb.autodiff.gradient import build_gradients

    counts = set()
    for steps in (2, STEPS):
        graph = build_gradients(layer(op_type, gates, steps, 8), "loss", ["x", "w", "r"])
        core = InferenceCore(graph)
        feeds = {v.name: TensorType("float32", v.shape) for v in graph.inputs}  # type: ignore[arg-type]
        counts.add(core.model.compile(feeds).text.count("\n"))
        core.host.release()
    assert len(counts) == 1
    assert counts.pop() < 40


def test_an_lstm_of_5000_steps_forgets_as_its_gates_say() -> None:
    # Without inputs and recurrent weights all gates are constant: c goes to i g / (1 - f), f the sigmoid of its bias.
    hidden, bias = 2, np.zeros((1, 16), np.float32)
    i, o, f, g = (np.array(v, np.float64) for v in ([0.5, -1], [1, 2], [6, 7], [0.3, -0.4]))
    bias[0, :8] = np.concatenate([i, o, f, g])
    node = Node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], {"hidden_size": hidden}, "", "layer")
    shapes = {"x": (STEPS, 1, 1), "w": (1, 8, 1), "r": (1, 8, 2), "b": (1, 16)}
    graph = Graph("g", [node], opsets={"": 17})
    graph.inputs = [Value(name, "float32", shape) for name, shape in shapes.items()]
    graph.outputs = [Value("y", "float32", None), Value("c", "float32", None)]
    feeds = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} | {"b": bias}
    found = run(graph, feeds)

    def sigmoid(v: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-v))

    t = np.arange(1, STEPS + 1)[:, None]
    cells = sigmoid(i) * np.tanh(g) * (1 - sigmoid(f) ** t) / (1 - sigmoid(f))
    np.testing.assert_allclose(found["c"].ravel(), cells[-1], rtol=1e-4)
    np.testing.assert_allclose(found["y"][:, 0, 0], sigmoid(o) * np.tanh(cells), rtol=1e-3)


def test_portable_artifacts_have_operators_of_onnx_runtime_alone() -> None:
    """Those it runs: tests/conformance/test_artifacts_gradients.py."""
    graph = layer("LSTM", 4, 3, 2)
    x, *weights = graph.inputs
    graph.inputs = [x]
    graph.initializers = {v.name: Tensor.of(v.name, "float32", v.shape, [0.5] * math.prod(v.shape)) for v in weights}
    domains = []
    for portable in (False, True):
        built = build_artifacts(graph, requires_grad=["w", "r"], portable=portable)
        domains.append({node.domain for node in built.graphs[0].nodes})
    assert "ai.trainweb" in domains[0]
    assert "ai.trainweb" not in domains[1]
    with pytest.raises(TypeError, match="'portable' must be of type bool, got str"):
        build_artifacts(graph, portable="yes")  # type: ignore[arg-type]
