"""Recurrent layers over thousands of steps: what they take to compile, and that they are right."""

import numpy as np
import onnx
import onnx.inliner
import pytest
from tests.ops.cases import Sample, cases_of
from tests.ops.op_runner import gradients, materialize, run

from trainweb.autodiff.gradient import build_gradients
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import TRAINWEB, Graph, Node, Value
from trainweb.model.reader import read_model
from trainweb.ops.frame.functions import write_interchangeable
from trainweb.ops.recurrent.cell import Recurrence
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


CELLS = [(k, sample) for k, sample in enumerate(cases_of(Recurrence).samples) if sample.inputs[0] != (0, 3, 32)]
"""Samples with steps: a Scan without any is refused."""


def weighted_sum(sample: Sample) -> tuple[Graph, dict[str, np.ndarray], list[str]]:
    """A node with its gradient: the loss weights all elements of its states."""
    arrays = materialize(sample.inputs, "functions", sample)
    names = ["x", "r", "bias", "lengths", "h0", "c0"][: len(arrays)]
    feeds = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    inputs = [name if name in feeds else "" for name in names]
    is_lstm = sample.attrs["cell"] == "lstm"
    states = ["y", "h", "c"][: 2 + is_lstm]
    graph = Graph("g", [Node("Recurrence", inputs, states, dict(sample.attrs), TRAINWEB, "node")])
    graph.opsets = {"": 17, TRAINWEB: 1}
    for name in states:
        nodes = [Node("Sin", [name], [f"{name}_sin"], {}, "", f"{name}_sin")]
        nodes.append(Node("ReduceSum", [f"{name}_sin"], [f"{name}_sum"], {"keepdims": 0}, "", f"{name}_sum"))
        graph.nodes += nodes
    graph.nodes.append(Node("Sum", [f"{name}_sum" for name in states], ["loss"], {}, "", "loss"))
    graph.inputs = [Value(name, str(array.dtype), array.shape) for name, array in feeds.items()]
    wanted = [name for name in feeds if name != "lengths"]
    result = build_gradients(graph, "loss", wanted)
    result.outputs = [Value(f"{name}_grad", "float32", feeds[name].shape) for name in wanted]
    result.outputs += [Value(name, "float32", (None,) * (3 if name == "y" else 2)) for name in states]
    return result, feeds, [v.name for v in result.outputs]


@pytest.mark.parametrize("sample", [sample for _, sample in CELLS], ids=[str(k) for k, _ in CELLS])
def test_functions_in_files_compute_what_kernels_do(sample: Sample) -> None:
    """Of every cell; in onnxruntime-training: tests/conformance/test_artifacts_in_ort.py."""
    graph, feeds, names = weighted_sum(sample)
    data = write_interchangeable(graph)
    model = onnx.load_model_from_string(data)
    onnx.checker.check_model(model)
    assert {f.name for f in model.functions} == {"Recurrence_1", "RecurrenceGrad_1"}
    assert [node.op_type for node in read_model(data).nodes] == [node.op_type for node in graph.nodes]
    # Written out by the onnx package, it is products and elementwise operators in the place of one kernel.
    plain = onnx.inliner.inline_local_functions(model)
    assert not any(node.domain for node in plain.graph.node)
    found, expected = (run(read_model(d), feeds, names) for d in (data, plain.SerializeToString()))
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_kinds_of_nodes_have_functions_of_their_own() -> None:
    shapes = {"x": (4, 2, 8), "r": (8, 2)}
    nodes = [Node("Recurrence", ["x", "r"], [f"y{k}"], {"cell": "lstm", "reverse": k % 2}, TRAINWEB) for k in range(3)]
    graph = Graph("g", nodes, opsets={"": 17, TRAINWEB: 1}, ir_version=4)
    graph.inputs = [Value(name, "float32", shape) for name, shape in shapes.items()]
    graph.outputs = [Value(f"y{k}", "float32", None) for k in range(3)]
    model = onnx.load_model_from_string(write_interchangeable(graph))
    assert [node.op_type for node in model.graph.node] == ["Recurrence_1", "Recurrence_2", "Recurrence_1"]
    assert [f.name for f in model.functions] == ["Recurrence_1", "Recurrence_2"]
    assert model.ir_version == 8  # the first with functions
    graph.opsets[""] = 8  # has no Scan over the first axis
    assert not onnx.load_model_from_string(write_interchangeable(graph)).functions
