"""Gradient graphs of models with symbolic dimensions give the same numbers as with static ones."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.op_runner import Case, gradients
from tests.ops.test_gradient import CASES, loss_graph, wanted

from trainweb.errors import ModelError, UnsupportedError
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.ops.shapes import ShapeInference

BUILT_BY_SIZE = {
    *(f"Attention-{k}" for k in (0, 2, 3, 4, 5, 6, 7, 8)),
    *(f"CenterCropPad-{k}" for k in range(2)),
    *(f"CumProd-{k}" for k in range(3)),
    *(f"{name}-{k}" for name in ("GRU", "LSTM", "RNN") for k in range(5)),
    *(f"LRN-{k}" for k in range(2)),
    *(f"RotaryEmbedding-{k}" for k in range(4)),
    *(f"com.microsoft.Attention-{k}" for k in (0, 1, 2, 4, 5)),
    *(f"com.microsoft.GroupQueryAttention-{k}" for k in range(6)),
    *(f"com.microsoft.MultiHeadAttention-{k}" for k in (0, 2, 3, 4, 5, 6, 7)),
    *(f"com.microsoft.RotaryEmbedding-{k}" for k in range(1, 4)),
}
"""Operators whose nodes depend on a size that is a symbol here: steps of a sequence, the size of a head, channels."""
MOST = 340
"""Other samples have constants (shapes, indices) that fit their own sizes only."""


def symbolic(graph: Graph) -> Graph:
    """The same graph where every size of an input but 1 is a symbol, equal sizes the same one."""
    graph = graph.copy()
    graph.inputs = [
        Value(v.name, v.dtype, tuple(f"size_{dim}" if dim != 1 else 1 for dim in v.shape or ())) for v in graph.inputs
    ]
    return graph


def holds_for_other_sizes(case: Case) -> bool:
    try:
        ShapeInference(symbolic(loss_graph(case)[0]))
    except ModelError:
        return False
    return True


SYMBOLIC = [case for case in CASES if holds_for_other_sizes(case)]


def test_most_samples_hold_for_other_sizes() -> None:
    assert len(SYMBOLIC) > MOST


@pytest.mark.parametrize("case", SYMBOLIC, ids=str)
def test_symbolic_gradient(case: Case) -> None:
    graph, feeds, _ = loss_graph(case)
    names = [f"x{k}" for k in wanted(case)]
    if str(case) in BUILT_BY_SIZE:
        with pytest.raises(UnsupportedError, match="only known at run time"):
            gradients(symbolic(graph), names, feeds)
        return
    found, expected = gradients(symbolic(graph), names, feeds), gradients(graph, names, feeds)
    for name in names:
        scale = float(np.abs(expected[name]).max(initial=1.0))
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6 * scale)


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


WITH_CONSTANTS = [case for case in CASES if computed_constants(loss_graph(case)[0])[1]]


@pytest.mark.parametrize("case", WITH_CONSTANTS, ids=str)
def test_constants_may_be_computed(case: Case) -> None:
    graph, feeds, _ = loss_graph(case)
    names = [f"x{k}" for k in wanted(case)]
    found, expected = gradients(computed_constants(graph)[0], names, feeds), gradients(graph, names, feeds)
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
    # Not taken for 4: the rest of the features would be lost.
    with pytest.raises(UnsupportedError, match=r"\(width\)"):
        gradients(graph, ["x"], {})
