"""Products whose results are added to each other: the later ones add to the first, with the bias and relu behind."""

from typing import Any

import numpy as np
import pytest
from tests.ops.op_runner import run
from tests.python import pipelines
from tests.python.test_compiler_passes import plan_of
from tests.python.test_pass_guards import Written

from trainweb.compiler.passes.accumulate import accumulate_sums
from trainweb.ir import calls
from trainweb.model.graph import Graph, Node, Value
from trainweb.training.arrays import from_numpy

N = 3


def kernels(graph: Graph, **feeds: np.ndarray) -> list[str]:
    return [line.split("(")[0].split()[0] for line in plan_of(graph, **feeds).text]


def graph_of(nodes: list[Node], shape: tuple[int, ...], **weights: np.ndarray) -> Graph:
    graph = Graph("sums", nodes, [Value("x", "float32", shape)], opsets={"": 17})
    graph.initializers = {k: from_numpy(k, v.astype(np.float32)) for k, v in weights.items()}
    graph.outputs = [Value("y", "float32", None)]
    return graph


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_an_adapter_takes_no_pass_of_its_own(bias: bool, relu: bool) -> None:
    rng = np.random.default_rng(0)
    x, w, a, b, v = (rng.standard_normal(s).astype(np.float32) for s in ((13, 10), (10, 21), (10, 4), (4, 21), (21,)))
    nodes = [
        Node("MatMul", ["x", "w"], ["base"]),
        Node("MatMul", ["x", "a"], ["low"]),
        Node("MatMul", ["low", "b"], ["out"]),
        Node("Mul", ["out", "scale"], ["scaled"]),
        Node("Add", ["base", "scaled"], ["y"]),
    ]
    weights: dict[str, Any] = {"w": w, "a": a, "b": b, "scale": np.float32(0.5)}
    expected = x.astype(np.float64) @ w + 0.5 * (x.astype(np.float64) @ a @ b)
    for wanted, op, more in ((bias, "Add", {"v": v}), (relu, "Relu", {})):
        if wanted:
            nodes[-1].outputs[0] = f"before {op}"
            nodes.append(Node(op, [f"before {op}", *more], ["y"]))
            weights |= more
            expected = expected + v if more else np.maximum(expected, 0)
    graph = graph_of(nodes, x.shape, **weights)
    assert kernels(graph, x=x) == ["gemm_f32"] * 3
    np.testing.assert_allclose(run(graph, {"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


def test_a_sum_of_several_has_one_operand_less_for_each_product_but_the_first() -> None:
    rng = np.random.default_rng(1)
    x, u, v, w = (rng.standard_normal(s).astype(np.float32) for s in ((6, 6), (6, 6), (6, 6), (6, 6)))
    nodes = [
        Node("MatMul", ["x", "u"], ["p"]),
        Node("MatMul", ["x", "v"], ["q"]),
        Node("MatMul", ["x", "w"], ["r"]),
        Node("Sum", ["q", "p", "r", "x"], ["y"]),
    ]
    graph = graph_of(nodes, x.shape, u=u, v=v, w=w)
    plan = plan_of(graph, x=x)
    assert [line.split("(")[0].split()[0] for line in plan.text] == ["gemm_f32"] * 3 + ["generated"]
    assert plan.text[-1].count("add(") == 1
    x64 = x.astype(np.float64)
    np.testing.assert_allclose(run(graph, {"x": x})["y"], x64 @ u + x64 @ v + x64 @ w + x64, rtol=1e-5, atol=1e-5)


def summed(*between: str, outputs: tuple[str, ...] = (), bias: str = "", twice: bool = False) -> bool:
    """True if the second of two products adds to the first, with these steps before the sum."""
    w = Written()
    for name in ("a", "b", "p", "q", "sum"):
        w.new(name, N, N)
    w.new("v", N)
    w.product("p", "a", "b")
    w.product("q", "b", "a")
    product = w.builder.instructions[-1]
    if bias:
        assert isinstance(product, calls.Gemm)
        product.bias, product.bias_col = w.bufs[bias], 1
    for step in between:
        what, _, name = step.partition(" ")
        (w.read if what == "read" else w.fill)(name)
    w.builder.elementwise([w.bufs["sum"]], [w.bufs["p"], w.bufs["p" if twice else "q"]], lambda e, x, y: e.add(x, y))
    w.read("sum")
    w.outputs = list(outputs)
    program = w.after(accumulate_sums)
    return any(isinstance(i, calls.Gemm) and i.accumulate for i in program)


def test_products_add_to_products() -> None:
    assert summed()
    assert summed(outputs=("sum",))


@pytest.mark.parametrize("between", ["read p", "fill p", "read q", "fill q", "read sum", "fill sum"])
def test_products_are_stored_where_others_see_them(between: str) -> None:
    assert not summed(between)


@pytest.mark.parametrize(("order", "left"), [("pqr", 0), ("qpr", 0), ("prq", 1), ("rqp", 1)])
def test_a_sum_keeps_its_order_and_so_its_bytes(order: str, left: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 9)).astype(np.float32)
    weights = {f"w{name}": rng.standard_normal((9, 33)).astype(np.float32) for name in "pqr"}
    nodes = [Node("MatMul", ["x", f"w{name}"], [name]) for name in "pqr"]
    graph = graph_of([*nodes, Node("Sum", list(order), ["y"])], x.shape, **weights)
    assert kernels(graph, x=x) == ["gemm_f32"] * 3 + ["generated"] * left
    with pipelines.passes(pipelines.without("accumulate_sums")):
        expected = run(graph, {"x": x})["y"]
    assert run(graph, {"x": x})["y"].tobytes() == expected.tobytes()


def test_products_that_are_wanted_or_have_a_bias_or_are_added_to_themselves_stay() -> None:
    assert not summed(outputs=("p",))
    assert not summed(outputs=("q",))
    assert not summed(bias="v")
    assert not summed(twice=True)
