"""Gradient graphs of models with symbolic dimensions give the same numbers as with static ones."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.ops.op_runner import Case, by_operator, gradients, run
from tests.ops.test_gradient import CASES, loss_graph, wanted

from trainweb.autodiff.gradient import build_gradients
from trainweb.errors import ModelError, UnsupportedError
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model
from trainweb.ops.frame.shapes import ShapeInference
from trainweb.training.inference import InferenceCore

MOST = 340
"""Other samples have constants (shapes, indices) that fit their own sizes only."""


def symbolic(graph: Graph) -> Graph:
    """The same graph where every size of an input but 1 is a symbol, equal sizes the same one."""
    graph = graph.copy()
    graph.inputs = [
        Value(v.name, v.dtype, tuple(f"size_{dim}" if dim != 1 else 1 for dim in v.shape or ()))
        for v in graph.inputs
        if isinstance(v, Value)
    ]
    return graph


def holds_for_other_sizes(case: Case) -> bool:
    try:
        ShapeInference(symbolic(loss_graph(case)[0]))
    except ModelError:
        return False
    return True


@cache
def symbolic_cases() -> frozenset[str]:
    """The names of the samples that hold for other sizes."""
    return frozenset(str(case) for case in CASES if holds_for_other_sizes(case))


def test_most_samples_hold_for_other_sizes() -> None:
    assert len(symbolic_cases()) > MOST


STATIC: dict[str, dict[str, np.ndarray]] = {}


def static(case: Case) -> dict[str, np.ndarray]:
    """The gradients with constants as they are and static dimensions, run once for all tests of a case."""
    if str(case) not in STATIC:
        graph, feeds, _ = loss_graph(case)
        STATIC[str(case)] = gradients(graph, [f"x{k}" for k in wanted(case)], feeds)
    return STATIC[str(case)]


def contents(graph: Graph) -> tuple[Any, ...]:
    """Everything that a compilation takes of a graph besides the shapes of its feeds."""
    nodes = [(n.domain, n.op_type, n.inputs, n.outputs, comparable(n.attrs)) for n in graph.nodes]
    return nodes, comparable(graph.initializers), graph.opsets


def comparable(named: Mapping[str, Any]) -> dict[str, Any]:
    return {k: (v.dtype, v.shape, bytes(v.data)) if isinstance(v, Tensor) else v for k, v in named.items()}


@by_operator(CASES)
def test_symbolic_gradient(case: Case) -> None:
    if str(case) not in symbolic_cases():
        return
    graph, feeds, _ = loss_graph(case)
    names = [f"x{k}" for k in wanted(case)]
    of_symbols, of_sizes = (build_gradients(one, "loss", names) for one in (symbolic(graph), graph))
    if contents(of_symbols) == contents(of_sizes):
        return  # Two thirds of the cases: the same graph computes the same.
    outputs = [f"{name}_grad" for name in names]
    found, expected = run(of_symbols, feeds, outputs), static(case)
    for name in names:
        scale = float(np.abs(expected[name]).max(initial=1.0))
        np.testing.assert_allclose(found[f"{name}_grad"], expected[name], rtol=1e-6, atol=1e-6 * scale)


def computed_constants(graph: Graph) -> tuple[Graph, int]:
    """The same graph where nodes make its constants of parts, as exporters write scales, axes and pads."""
    graph = graph.copy()
    made = []
    for name, t in list(graph.initializers.items()):
        if len(t.shape) != 1 or t.size < 1:
            continue
        del graph.initializers[name]
        for k, value in enumerate(t.values()):
            part = Tensor.of(f"{name}_{k}", t.dtype, (1,), [value])
            made.append(Node("Constant", [], [part.name], {"value": part}, name=f"make_{part.name}"))
        parts = [f"{name}_{k}" for k in range(t.size)]
        made.append(Node("Concat", parts, [name], {"axis": 0}, name=f"make_{name}"))
    graph.nodes = made + graph.nodes
    return graph, len(made)


@by_operator(CASES)
def test_constants_may_be_computed(case: Case) -> None:
    graph, feeds, _ = loss_graph(case)
    computed, made = computed_constants(graph)
    if not made:
        return
    names = [f"x{k}" for k in wanted(case)]
    found, expected = gradients(computed, names, feeds), static(case)
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize(("n", "m"), [(5, 5), (5, 1), (1, 4)])
def test_symbols_that_meet_are_summed_where_they_broadcast(n: int, m: int) -> None:
    graph = Graph(
        "sum",
        [
            Node("Add", ["x", "y"], ["s"], name="add"),
            Node("Mul", ["s", "s"], ["q"], name="square"),
            Node("ReduceSum", ["q"], ["loss"], {"keepdims": 0}, name="loss"),
        ],
        [Value("x", "float32", ("n", 3)), Value("y", "float32", ("m", 3))],
        [Value("loss", "float32", ())],
        opsets={"": 17},
    )
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, 3)).astype("f4"), rng.standard_normal((m, 3)).astype("f4")
    found = gradients(graph, ["x", "y"], {"x": x, "y": y})
    whole = 2 * (x + y)
    for name, given in (("x", x), ("y", y)):
        expected = whole if len(given) == len(whole) else whole.sum(axis=0, keepdims=True)
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_a_part_of_the_features_is_turned_whatever_their_number() -> None:
    node = Node("RotaryEmbedding", ["x", "c", "s"], ["y"], {"rotary_embedding_dim": 4}, name="rotary")
    graph = Graph("g", [node, Node("ReduceSum", ["y"], ["loss"], {"keepdims": 0}, "", "sum")], opsets={"": 23})
    shapes = {"x": ("b", 2, "n", "width"), "c": ("b", "n", 2), "s": ("b", "n", 2)}
    graph.inputs = [Value(name, "float32", shape) for name, shape in shapes.items()]
    graph.outputs = [Value("loss", "float32", ())]
    rng = np.random.default_rng(0)
    given = {"x": (1, 2, 3, 6), "c": (1, 3, 2), "s": (1, 3, 2)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in given.items()}
    # The width is not taken for 4: the gradient of what is not turned would be lost.
    found = gradients(graph, ["x"], feeds)["x"]
    first, second = feeds["c"] + feeds["s"], feeds["c"] - feeds["s"]
    expected = np.concatenate([first, second, np.ones_like(first)], -1)[:, None].repeat(2, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def lstm(steps: object) -> Graph:
    """The gradient of the sum of the last hidden states of an LSTM, as read from a file."""
    shapes = {"x": (steps, 2, 3), "w": (1, 20, 3), "r": (1, 20, 5), "h": (1, 2, 5), "c": (1, 2, 5)}
    node = Node(
        "LSTM", ["x", "w", "r", "", "", "h", "c"], ["", "last", ""], {"hidden_size": 5, "clip": 2.0}, "", "lstm"
    )
    graph = Graph("g", [node, Node("ReduceSum", ["last"], ["loss"], {"keepdims": 0}, "", "sum")], opsets={"": 17})
    graph.inputs = [Value(name, "float32", shape) for name, shape in shapes.items()]  # type: ignore[arg-type]
    result = build_gradients(graph, "loss", list(shapes))
    result.outputs = [Value(f"{name}_grad", "float32", None) for name in shapes]
    return read_model(write_model(result))


def test_a_recurrent_layer_is_differentiated_for_each_length() -> None:
    waiting, rng = lstm("steps"), np.random.default_rng(1)
    assert [n.op_type for n in waiting.nodes if n.domain == "ai.trainweb"] == ["CompositeGradient"]
    for steps in (1, 4):
        shapes = {"x": (steps, 2, 3), "w": (1, 20, 3), "r": (1, 20, 5), "h": (1, 2, 5), "c": (1, 2, 5)}
        unrolled = lstm(steps)
        assert not [n for n in unrolled.nodes if n.domain == "ai.trainweb"]
        assert {v.name: v.shape for v in unrolled.inputs if isinstance(v, Value)} == shapes
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        expected = run(unrolled, feeds)
        for name, value in run(waiting, feeds).items():
            np.testing.assert_array_equal(value, expected[name])


def test_a_gradient_that_waited_computes_no_more_than_another() -> None:
    def plan(graph: Graph) -> list[str]:
        core = InferenceCore(graph)
        shapes = {"x": (4, 2, 3), "w": (1, 20, 3), "r": (1, 20, 5), "h": (1, 2, 5), "c": (1, 2, 5)}
        text = core.model.compile({name: TensorType("float32", shape) for name, shape in shapes.items()}).text
        core.host.release()
        return text

    waiting, unrolled = plan(lstm("steps")), plan(lstm(4))
    assert [waiting.count(kernel) for kernel in ("gemm_f32", "elementwise")] == [
        unrolled.count(kernel) for kernel in ("gemm_f32", "elementwise")
    ]


def test_sequences_that_are_too_long_are_refused_when_they_come() -> None:
    shapes = {"x": (1025, 2, 3), "w": (1, 20, 3), "r": (1, 20, 5), "h": (1, 2, 5), "c": (1, 2, 5)}
    with pytest.raises(UnsupportedError, match="a sequence of 1025 steps"):
        run(lstm("steps"), {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})


def test_what_no_result_with_a_gradient_depends_on_has_gradient_zero() -> None:
    nodes = [
        Node("Attention", ["q", "k", "v"], ["", "keys", "values"], {}, "", "attention"),
        Node("ReduceSum", ["keys"], ["loss"], {"keepdims": 0}, "", "sum"),
    ]
    graph = Graph("g", nodes, opsets={"": 23})
    graph.inputs = [Value(name, "float32", (1, 2, 3, "width")) for name in "qkv"]
    graph.outputs = [Value("loss", "float32", ())]
    feeds = {name: np.ones((1, 2, 3, 4), np.float32) for name in "qkv"}
    found = gradients(graph, ["q", "k"], feeds)
    np.testing.assert_array_equal(found["q"], np.zeros((1, 2, 3, 4)))
    np.testing.assert_array_equal(found["k"], np.ones((1, 2, 3, 4)))
