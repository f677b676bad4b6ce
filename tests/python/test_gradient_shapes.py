"""Shape inference over symbolic dimensions."""

from __future__ import annotations

from typing import Any

import pytest

from trainweb.errors import ModelError, UnsupportedError
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.ops.shapes import infer_shapes


def graph_of(
    nodes: list[Node],
    inputs: dict[str, Any],
    constants: dict[str, list[int]] | None = None,
    **outputs: Any,
) -> Graph:
    tensors = {n: Tensor.of(n, "int64", (len(v),), v) for n, v in (constants or {}).items()}
    return Graph(
        "test",
        nodes,
        [Value(n, "float32", s) for n, s in inputs.items()],
        [Value(n, "float32", s) for n, s in outputs.items()],
        tensors,
        opsets={"": 17},
    )


def shapes(graph: Graph) -> dict[str, Any]:
    return {name: value.shape for name, value in infer_shapes(graph).items()}


def test_symbols_travel_and_static_sizes_stay() -> None:
    found = shapes(
        graph_of(
            [
                Node("MatMul", ["x", "w"], ["h"]),
                Node("Transpose", ["h"], ["t"], {"perm": [1, 0]}),
                Node("Shape", ["t"], ["s"]),
            ],
            {"x": ("batch", 5), "w": (5, 3)},
        )
    )
    assert found == {
        "x": ("batch", 5),
        "w": (5, 3),
        "h": ("batch", 3),
        "t": (3, "batch"),
        "s": (2,),
    }


def test_computed_sizes_are_unknown() -> None:
    found = shapes(
        graph_of(
            [
                Node("Concat", ["x", "x"], ["twice"], {"axis": 0}),
                Node("Reshape", ["x", "flat"], ["rows"]),
                Node("Reshape", ["x", "keep"], ["kept"]),
            ],
            {"x": ("n", "k", 4)},
            {"flat": [-1, 4], "keep": [0, 0, 2, 2]},
        )
    )
    assert found["twice"] == (None, "k", 4)
    assert found["rows"] == (None, 4)
    assert found["kept"] == ("n", "k", 2, 2)


def test_shape_arithmetic_finds_symbols_again() -> None:
    graph = graph_of(
        [
            Node("Shape", ["x"], ["shape"]),
            Node("Gather", ["shape", "first"], ["n"], {"axis": 0}),
            Node("Concat", ["n", "rest"], ["target"], {"axis": 0}),
            Node("Reshape", ["x", "target"], ["y"]),
        ],
        {"x": ("n", 2, 3)},
        {"first": [0], "rest": [6]},
    )
    assert shapes(graph)["y"] == ("n", 6)


def test_unnamed_dimensions_have_no_symbol() -> None:
    found = shapes(graph_of([Node("Abs", ["x"], ["y"])], {"x": (None, 3)}))
    assert found["y"] == (None, 3)


def test_a_minimum_is_not_taken_for_a_constant() -> None:
    graph = graph_of([Node("Slice", ["x", "start", "end"], ["y"])], {"x": ("n", 3)}, {"start": [0], "end": [40]})
    assert shapes(graph)["y"] == (None, 3)


def test_differently_named_dimensions_may_have_to_be_equal() -> None:
    found = shapes(graph_of([Node("Add", ["x", "y"], ["z"])], {"x": ("a", 3), "y": ("b", 3)}))
    assert found["z"] == ("a", 3)


def test_repeated_halving_needs_sizes_that_can_be_halved() -> None:
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [Node("AveragePool", ["x"], ["p"], pool)]
    nodes += [Node("AveragePool", ["p"], ["q"], pool)]
    nodes += [Node("Reshape", ["q", "fold"], ["f"]), Node("Reshape", ["x", "unfold"], ["g"])]
    nodes += [Node("Add", ["f", "g"], ["z"])]
    graph = graph_of(nodes, {"x": ("n", 1, "h", "h")}, {"fold": [1, -1, 1], "unfold": [1, -1, 16]})
    assert shapes(graph)["z"] == (1, None, 16)


def test_a_baked_batch_size_is_found() -> None:
    graph = graph_of([Node("Reshape", ["x", "shape"], ["y"])], {"x": ("n", 6)}, {"shape": [8, 2, 3]})
    assert shapes(graph)["y"] == (None, 2, 3)


def test_a_symbol_that_is_declared_of_a_computed_size_is_shared_with_labels() -> None:
    graph = graph_of(
        [Node("Reshape", ["x", "rows"], ["logits"]), Node("Mul", ["logits", "t"], ["y"])],
        {"x": ("n", 6, 4), "t": ("tokens", 4)},
        {"rows": [-1, 4]},
        logits=("tokens", 4),
    )
    found = shapes(graph)
    assert found["y"] == ("tokens", 4) and found["x"] == ("n", 6, 4)


def test_what_cannot_fit_is_an_error_that_names_the_node() -> None:
    graph = graph_of([Node("MatMul", ["x", "w"], ["y"], name="bad")], {"x": ("n", 5), "w": (4, 3)})
    with pytest.raises(ModelError, match=r"MatMul node 'bad'.*Symbolic dimensions were tried as n="):
        infer_shapes(graph)
    with pytest.raises(ModelError, match="Input 'x' has no declared shape"):
        infer_shapes(graph_of([Node("Abs", ["x"], ["y"])], {"x": None}))
    with pytest.raises(UnsupportedError, match="'Nonsense'"):
        infer_shapes(graph_of([Node("Nonsense", ["x"], ["y"])], {"x": (1,)}))
    with pytest.raises(ModelError, match="reads 'zz', which nothing defines"):
        infer_shapes(graph_of([Node("Add", ["x", "zz"], ["y"])], {"x": (1,)}))
