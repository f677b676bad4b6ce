"""Einsum becomes the same plan as the products it spells."""

import numpy as np
import pytest
from tests.ops.op_runner import with_loss

from trainweb.autodiff.gradient import build_gradients
from trainweb.compiler.compile import compile_model
from trainweb.errors import GradientError
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value

SHAPE = (2, 6, 3, 8)


def attention() -> Graph:
    graph = Graph("attention", opsets={"": 17, "com.microsoft": 1})
    graph.inputs = [Value(name, "float32", SHAPE) for name in "qkv"]
    graph.nodes = [
        Node("Einsum", ["q", "k"], ["s"], {"equation": "bihd,bjhd->bhij"}, name="scores"),
        Node("Softmax", ["s"], ["p"], {"axis": -1}, name="softmax"),
        Node("Einsum", ["p", "v"], ["y"], {"equation": "bhij,bjhd->bihd"}, name="values"),
    ]
    graph.outputs = [Value("y", "float32", SHAPE)]
    return graph


def kernels(graph: Graph, outputs: list[str]) -> list[str]:
    feeds = {v.name: TensorType("float32", SHAPE) for v in graph.inputs}
    plan = compile_model(graph, feeds, outputs)
    return [line.partition("(")[0] for line in plan.text]


def test_attention_is_fused() -> None:
    assert kernels(attention(), ["y"]) == ["attention_f32"]


def test_its_gradient_is_fused() -> None:
    graph = build_gradients(with_loss(attention(), [("y", np.ones(SHAPE, np.float32))]), "loss", list("qkv"))
    used = kernels(graph, ["loss", *(f"{name}_grad" for name in "qkv")])
    assert {"attention_f32", "attention_gradient_f32"} <= set(used)
    assert not {"gemm_f32", "strided_copy", "softmax_f32"} & set(used)


def test_sizes_that_may_broadcast_have_no_gradient() -> None:
    node = Node("Einsum", ["a", "b"], ["y"], {"equation": "...i,...i->..."}, name="dot")
    cases: list[tuple[tuple[int | str, int | str], bool]] = [(("n", "n"), True), (("n", "m"), False), ((1, "n"), True)]
    for dims, fits in cases:
        graph = Graph("g", [node, Node("ReduceSum", ["y"], ["loss"], {"keepdims": 0}, "", "sum")], opsets={"": 17})
        graph.inputs = [Value(x, "float32", (dim, 4)) for x, dim in zip("ab", dims, strict=True)]
        graph.outputs = [Value("loss", "float32", ())]
        if fits:
            assert build_gradients(graph, "loss", ["a", "b"]).nodes
        else:
            with pytest.raises(GradientError, match="may broadcast"):
                build_gradients(graph, "loss", ["a", "b"])
