"""Passes of the compiler change no result: random graphs with all of them, without each, and in numpy float64."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.ops.op_runner import run
from tests.python import pipelines
from tests.python.random_graphs import RandomGraph

from trainweb.backend import memory
from trainweb.backend.wasm.passes import reductions
from trainweb.compiler import compile as compiler
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value
from trainweb.training.arrays import from_numpy
from trainweb.training.inference import InferenceCore

N_GRAPHS = 60
"""Per variant; a graph takes some 20 ms."""

OTHERS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "computation": (compiler, "computation", lambda op, results: object()),
    "fold": (compiler._Compilation, "fold", lambda *args: None),
    "in_place": (memory, "_in_place_donor", lambda *args: None),
}
"""What else the compiler does that must change no result."""


@cache
def random_graph(seed: int, zero_sizes: bool) -> RandomGraph:
    """Made once for all variants."""
    return RandomGraph(seed, zero_sizes=zero_sizes)


def check(seed: int, zero_sizes: bool = False) -> None:
    made = random_graph(seed, zero_sizes)
    results = run(made.graph.copy(), made.feeds)
    for name, expected in made.expected().items():
        assert results[name].shape == expected.shape, f"seed {seed}: {name}"
        expected = expected.astype(np.float64)
        scale = max(1.0, np.abs(expected).max(initial=0))
        error = np.abs(results[name].astype(np.float64) - expected).max(initial=0) / scale
        assert error < 1e-4, f"seed {seed}: {name} is off by {error}"


@pytest.mark.parametrize("name", ["nothing", *pipelines.NAMES])
def test_random_graphs_compute_what_numpy_computes_without(name: str) -> None:
    with pipelines.passes(pipelines.without(name)):
        for seed in range(N_GRAPHS):
            check(seed)


@pytest.mark.parametrize("name", pipelines.NAMES)
def test_random_graphs_compute_what_numpy_computes_with_one_pass_alone(name: str) -> None:
    with pipelines.passes(pipelines.alone(name)):
        for seed in range(N_GRAPHS):
            check(seed)


@pytest.mark.parametrize("what", OTHERS)
def test_random_graphs_compute_what_numpy_computes_without_the_rest(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*OTHERS[what])
    for seed in range(N_GRAPHS):
        check(seed)


def plan_of(graph: Graph, **feeds: np.ndarray) -> Any:
    core = InferenceCore(graph)
    try:
        return core.plan({n: TensorType(v.dtype.name, v.shape) for n, v in feeds.items()}).plan
    finally:
        core.host.release()


def constant_graph(nodes: list[Node], **constants: np.ndarray) -> Graph:
    graph = Graph("constants", nodes, [Value("x", "float32", (64, 8))], opsets={"": 17, "com.microsoft": 1})
    graph.initializers = {k: from_numpy(k, v) for k, v in constants.items()}
    graph.outputs = [Value(nodes[-1].outputs[0], "float32", None)]
    return graph


def test_what_constants_decide_is_computed_when_the_plan_is_made() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((64, 8)).astype(np.float32), rng.integers(-9, 9, (16, 8))
    nodes = [
        Node("Cast", ["w"], ["f"], {"to": 1}),
        Node("Mul", ["f", "half"], ["h"]),
        Node("Exp", ["h"], ["e"]),
        Node("Transpose", ["e"], ["t"], {"perm": [1, 0]}),
        Node("MatMul", ["x", "t"], ["y"]),
    ]
    graph = constant_graph(nodes, w=w, half=np.float32(0.5))
    assert [line.split("(")[0] for line in plan_of(graph, x=x).text] == ["gemm_f32"]
    np.testing.assert_allclose(run(graph, {"x": x})["y"], x @ np.exp(w.T * 0.5), rtol=1e-5, atol=1e-5)


def test_a_constant_grows_to_no_big_one() -> None:
    nodes = [Node("Neg", ["w"], ["n"]), Node("Expand", ["n", "shape"], ["e"]), Node("Add", ["x", "e"], ["y"])]
    graph = constant_graph(nodes, w=np.ones((1, 64, 8), np.float32), shape=np.array([500, 64, 8]))
    plan = plan_of(graph, x=np.zeros((64, 8), np.float32))
    assert 64 * 8 * 4 <= len(plan.constants) + len(plan.large) < 500 * 64 * 8 * 4
    assert len(plan.text) == 1 and "neg" not in plan.text[0]


def test_parts_of_one_constant_may_fold_apart() -> None:
    nodes = [
        Node("Neg", ["w"], ["n"]),
        Node("Split", ["n", "sizes"], ["a", "b"], {"axis": 0}),
        Node("Expand", ["b", "shape"], ["c"]),
        Node("Add", ["x", "a"], ["d"]),
        Node("Add", ["c", "d"], ["y"]),
    ]
    w = np.arange(65 * 8, dtype=np.float32).reshape(65, 8)
    graph = constant_graph(nodes, w=w, sizes=np.array([64, 1]), shape=np.array([300, 64, 8]))
    x = np.ones((64, 8), np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], np.broadcast_to(x - w[:64] - w[64], (300, 64, 8)))


def test_equal_computations_are_done_once() -> None:
    nodes = [
        Node("Softmax", ["x"], ["a"]),
        Node("Softmax", ["x"], ["b"]),
        Node("Softmax", ["x"], ["c"], {"axis": 0}),
        Node("LeakyRelu", ["x"], ["d"], {"alpha": 0.0}),
        Node("LeakyRelu", ["x"], ["e"], {"alpha": -0.0}),
        Node("Transpose", ["a"], ["f"]),
        Node("Transpose", ["b"], ["g"]),
        Node("Sum", ["b", "c", "d", "e"], ["y"]),
    ]
    graph = constant_graph(nodes)
    graph.outputs += [Value(n, "float32", None) for n in "abfg"]
    x = np.random.default_rng(2).standard_normal((64, 8)).astype(np.float32)
    kernels = [line.split("(")[0] for line in plan_of(graph, x=x).text]
    assert kernels.count("softmax_f32") == 2 and sum(k.startswith("transpose") for k in kernels) <= 1
    results = run(graph, {"x": x})
    for first, second in ("ab", "fg"):
        np.testing.assert_array_equal(results[first], results[second])
    np.testing.assert_array_equal(results["f"], results["a"].T)


@pytest.mark.parametrize("size", [2, 4], ids=["scalars", "vectors"])
def test_constants_of_either_sign_of_zero_are_two(size: int) -> None:
    nodes = [Node("Where", ["c", "plus", "minus"], ["z"]), Node("Reciprocal", ["z"], ["y"])]
    graph = Graph("zeros", nodes, [Value("c", "bool", (size,))], [Value("y", "float32", None)], opsets={"": 17})
    graph.initializers = {n: from_numpy(n, np.float32(v)) for n, v in (("plus", 0.0), ("minus", -0.0))}
    assert run(graph, {"c": np.arange(size) % 2 == 0})["y"].tolist() == [np.inf, -np.inf] * (size // 2)


def test_every_node_that_draws_draws_numbers_of_its_own() -> None:
    nodes = [Node("RandomNormalLike", ["x"], [name], {}) for name in "abc"] + [Node("Sum", ["a", "b", "c"], ["y"])]
    graph = constant_graph(nodes)
    graph.outputs += [Value(n, "float32", None) for n in "abc"]
    results = run(graph, {"x": np.zeros((64, 8), np.float32)})
    assert not (results["a"] == results["b"]).any() and not (results["b"] == results["c"]).any()


def test_functions_of_strips_give_the_bits_of_single_elements() -> None:
    """Three elements are computed one by one; 1815 in whole strips, five vectors, and three by themselves."""
    nodes = [
        Node("Tanh", ["x"], ["t"]),
        Node("Exp", ["t"], ["e"]),
        Node("Erf", ["x"], ["f"]),
        Node("Sigmoid", ["x"], ["s"]),
        Node("Abs", ["x"], ["a"]),
        Node("Pow", ["a", "s"], ["p"]),
        Node("Sin", ["x"], ["i"]),
        Node("Cos", ["i"], ["c"]),
        Node("Log", ["a"], ["l"]),
        Node("Elu", ["x"], ["u"]),
        Node("Softplus", ["l"], ["o"]),
        Node("Sum", ["e", "f", "p", "c", "u", "o"], ["y"]),
    ]
    graph = constant_graph(nodes)
    x = np.random.default_rng(3).standard_normal((3, 605)).astype(np.float32)
    whole = InferenceCore(Graph("rows", nodes, [Value("x", "float32", (3, 605))], graph.outputs, opsets=graph.opsets))
    three = InferenceCore(Graph("row", nodes, [Value("x", "float32", (3,))], graph.outputs, opsets=graph.opsets))
    y = np.frombuffer(whole.run({"x": from_numpy("x", x)})["y"].data, np.float32)
    alone = [three.run({"x": from_numpy("x", part)})["y"].data for part in x.reshape(-1, 3)]
    np.testing.assert_array_equal(y, np.frombuffer(b"".join(alone), np.float32))
    for core in (whole, three):
        assert len(core.host.loaded[-1].plan.text) == 1
        core.host.release()


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    ],
)
def test_relu_gradients_go_before_those_of_pooling(attrs: dict[str, list[int]], kept: bool) -> None:
    nodes = [
        Node("Relu", ["x"], ["y"]),
        Node("MaxPool", ["y"], ["p", "i"], attrs),
        Node("Exp", ["p"], ["d"]),
        Node("MaxPoolGrad", ["d", "i"], ["y_grad"], attrs),
        Node("ReluGrad", ["y_grad", "x"], ["x_grad"], {}, "com.microsoft"),
    ]
    x = np.random.default_rng(4).standard_normal((2, 3, 9, 12)).astype(np.float32).round(1) - 1
    x[0, 1, 2, 3] = np.nan
    outputs = [Value(n, "float32", None) for n in ["x_grad", *["y_grad"] * kept]]
    graph = Graph("pool", nodes, [Value("x", "float32", x.shape)], outputs, opsets={"": 18, "com.microsoft": 1})
    sizes = [b for b in plan_of(graph, x=x).text if "select" in b]
    results = run(graph, {"x": x})
    with pipelines.passes(pipelines.without("mask_maxima")):
        expectations = run(graph, {"x": x})
    for name, expected in expectations.items():
        np.testing.assert_array_equal(results[name], expected)
    assert (results["x_grad"] != 0).any() and len(sizes) == 1
    assert (f" {x.size} " in sizes[0]) == kept


def chain(*axes: int, op: str = "ReduceSum") -> list[Node]:
    """d = (x - y) * tanh(x), and its reduction s."""
    attrs = {"axes": list(axes)} if op == "ReduceMean" else {}
    inputs = ["d"] if op == "ReduceMean" else ["d", "axes"]
    return [
        Node("Sub", ["x", "y"], ["a"]),
        Node("Tanh", ["x"], ["t"]),
        Node("Mul", ["a", "t"], ["d"]),
        Node(op, inputs, ["s"], {"keepdims": 0, **attrs}),
    ]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    ("x_shape", "y_shape", "axes", "names"),
    [
        ((300, 70), (300, 70), (1,), ["f0"]),  # rows in two chunks, the second one not full
        ((300, 70), (300, 1), (1,), ["f0"]),
        ((60, 7), (7,), (0,), ["f0"]),
        ((20, 30, 50), (20, 1, 50), (1,), ["f0"]),
        ((20, 30, 50), (30, 50), (2,), ["f0"]),
        ((5, 3), (5, 3), (0, 1), ["f0"]),
        ((3000, 70), (3000, 70), (0,), ["f0", "reduce_f32"]),
        ((3000, 70), (70,), (0,), ["f0", "reduce_f32"]),
        ((1000, 1000), (1000, 1000), (0, 1), ["f0", "reduce_f32"]),
        ((1000, 1000), (1000, 1), (0, 1), ["f0", "reduce_f32"]),
    ],
)
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
def test_chains_reduce_their_results(
    op: str,
    x_shape: tuple[int, ...],
    y_shape: tuple[int, ...],
    axes: tuple[int, ...],
    names: list[str],
    stored: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one function, a whole plane of the reduction with the bits of the kernel, a part of one about as exactly."""
    monkeypatch.setattr(reductions, "CACHED_BYTES", 0)
    graph = Graph("chain", chain(*axes, op=op), opsets={"": 17})
    graph.inputs = [Value("x", "float32", x_shape), Value("y", "float32", y_shape)]
    graph.initializers = {"axes": from_numpy("axes", np.array(axes))}
    graph.outputs = [Value(n, "float32", None) for n in ("s", "d")[: 1 + stored]]
    rng = np.random.default_rng(4)
    feeds = {"x": rng.standard_normal(x_shape).astype(np.float32), "y": rng.standard_normal(y_shape).astype(np.float32)}
    text = plan_of(graph, **feeds).text
    assert [line.removeprefix("generated ").split("(")[0].split()[0] for line in text[: len(names)]] == names
    assert len(text) == len(names) + (op == "ReduceMean" and len(names) > 1) and " -> " in text[0]
    got = run(graph, feeds)
    graph.outputs = [Value(n, "float32", None) for n in "sd"]
    with pipelines.passes(pipelines.without("fuse_reductions")):
        kernel = run(graph, feeds)
    terms = kernel["d"].astype(np.float64)
    n = np.prod([x_shape[k] for k in axes])
    reduced = np.sum if op == "ReduceSum" else np.mean
    bound = (20 + np.log2(n)) * 2.0**-24 * reduced(np.abs(terms), axis=axes)
    assert (np.abs(got["s"] - reduced(terms, axis=axes)) <= bound).all()
    if len(names) == 1:
        np.testing.assert_array_equal(got["s"], kernel["s"])
    if stored:
        np.testing.assert_array_equal(got["d"], kernel["d"])


def test_chains_leave_reductions_to_the_kernel_that_they_would_slow_down() -> None:
    graph = Graph("chain", chain(0), opsets={"": 17})
    graph.initializers = {"axes": from_numpy("axes", np.array([0]))}
    for outputs, shape, wanted in (
        ("sd", (512, 512), False),
        ("s", (512, 512), False),
        ("s", (4096, 64), True),
        ("sd", (4096, 64), False),
        ("sd", (1024, 1024), True),
        ("sd", (8, 16384), False),
    ):
        graph.outputs = [Value(n, "float32", None) for n in outputs]
        graph.inputs = [Value(n, "float32", shape) for n in "xy"]
        x = np.zeros(shape, np.float32)
        assert (" -> " in plan_of(graph, x=x, y=x).text[0]) == wanted


def test_random_graphs_with_empty_tensors() -> None:
    for seed in range(N_GRAPHS):
        check(1000 + seed, zero_sizes=True)


def test_a_fill_does_not_erase_the_product_that_is_copied_over_it() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((4, 3), (3, 5)))
    graph = Graph("margin", opsets={"": 17, "com.microsoft": 1})
    graph.inputs = [Value("a", "float32", a.shape), Value("b", "float32", b.shape)]
    for name, value in (("shape", [4, 9]), ("start", [2]), ("end", [7]), ("axis", [1])):
        graph.initializers[name] = from_numpy(name, np.array(value))
    graph.nodes = [
        Node("MatMul", ["a", "b"], ["product"], {}, "", "product"),
        Node("SliceGrad", ["product", *graph.initializers], ["y"], {}, "com.microsoft", "margin"),
    ]
    graph.outputs = [Value("y", "float32", None)]
    y = run(graph, {"a": a, "b": b})["y"]
    np.testing.assert_allclose(y[:, 2:7], a @ b, rtol=1e-5, atol=1e-6)
    assert not y[:, :2].any()
    assert not y[:, 7:].any()


def test_results_that_are_used_twice_over_and_over_compile_in_linear_time() -> None:
    n = 60
    graph = Graph("doubling", opsets={"": 17})
    graph.inputs = [Value("x0", "float32", (4,))]
    graph.nodes = [Node("Add", [f"x{k}"] * 2, [f"x{k + 1}"], {}, "", f"n{k}") for k in range(n)]
    graph.outputs = [Value(f"x{n}", "float32", None)]
    assert run(graph, {"x0": np.ones(4, np.float32)})[f"x{n}"].tolist() == [2.0**n] * 4


def test_cheap_results_are_not_kept_for_those_who_read_what_they_are_made_of() -> None:
    """x / 1.4 is computed twice, of x, which the second chain reads anyway; erf(x / 1.4) once: the same bytes."""
    nodes = [
        Node("Div", ["x", "c"], ["t"]),
        Node("Erf", ["t"], ["r"]),
        Node("MatMul", ["r", "w"], ["m"]),
        Node("Mul", ["t", "m"], ["a"]),
        Node("Mul", ["r", "x"], ["b"]),
        Node("Add", ["a", "b"], ["y"]),
    ]
    graph = Graph("kept", nodes, opsets={"": 17})
    graph.inputs = [Value("x", "float32", (9, 9)), Value("w", "float32", (9, 9))]
    graph.initializers = {"c": from_numpy("c", np.array(1.4, np.float32))}
    graph.outputs = [Value("y", "float32", None)]
    rng = np.random.default_rng(5)
    feeds = {name: rng.standard_normal((9, 9)).astype(np.float32) for name in "xw"}
    repeated, got = plan_of(graph, **feeds).text, run(graph, feeds)
    with pipelines.passes(pipelines.without("repeat_cheap")):
        kept, expected = plan_of(graph, **feeds).text, run(graph, feeds)
    assert [len(text) for text in (repeated, kept)] == [3, 3]
    assert [sum("div" in line for line in text) for text in (repeated, kept)] == [2, 1]
    np.testing.assert_array_equal(got["y"], expected["y"])


@pytest.mark.parametrize(
    ("op", "attrs", "kernel"),
    [
        ("Conv", {"group": 2}, "conv_f32"),
        ("Conv", {"pads": [1, 1, 1, 1]}, "winograd_conv_f32"),
        ("ConvTranspose", {"strides": [2, 2], "group": 2}, "conv_data_gradient_f32"),
    ],
)
def test_relu_goes_into_every_convolution(op: str, attrs: dict[str, Any], kernel: str) -> None:
    """As `epilogue` of kernels.def says: no list of kernels is in the pass."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 8, 9, 10)).astype(np.float32)
    w = rng.standard_normal((8, 8 // attrs.get("group", 1), 3, 3)).astype(np.float32)
    nodes = [Node(op, ["x", "w"], ["c"], attrs), Node("Relu", ["c"], ["y"])]
    graph = Graph("conv", nodes, [Value("x", "float32", x.shape)], opsets={"": 17})
    graph.initializers = {"w": from_numpy("w", w)}
    graph.outputs = [Value("y", "float32", None)]
    lines = plan_of(graph, x=x).text
    assert any(line.startswith(f"{kernel}(") and "activation=1" in line for line in lines)
    assert not any(line.startswith("generated") for line in lines)
    fused = run(graph, {"x": x})["y"]
    with pipelines.passes(pipelines.without("fuse_epilogues")):
        apart = run(graph, {"x": x})["y"]
    assert (fused >= 0).all()
    assert (apart == fused).all()
    assert 0.2 < (apart > 0).mean() < 0.8
