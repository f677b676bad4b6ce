"""Passes of the compiler change no result: random graphs with all of them, without each, and in numpy float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.op_runner import run
from tests.python.random_graphs import RandomGraph

from trainweb.compiler import compile as compiler
from trainweb.compiler import memory
from trainweb.model.graph import Graph, Node, Value
from trainweb.training.arrays import from_numpy

N_GRAPHS = 60
"""Per variant; a graph takes some 20 ms."""

WITHOUT: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "absorb_copies": (compiler, "absorb_copies", lambda instructions, outputs: instructions),
    "fuse_epilogues": (compiler, "fuse_epilogues", lambda instructions, outputs: instructions),
    "fuse_elementwise": (compiler, "fuse_elementwise", lambda instructions, outputs, emitter: instructions),
    "in_place": (memory, "_in_place_donor", lambda *args: None),
}


def check(seed: int, zero_sizes: bool = False) -> None:
    made = RandomGraph(seed, zero_sizes=zero_sizes)
    results = run(made.graph, made.feeds)
    for name, expected in made.expected().items():
        assert results[name].shape == expected.shape, f"seed {seed}: {name}"
        expected = expected.astype(np.float64)
        scale = max(1.0, np.abs(expected).max(initial=0))
        error = np.abs(results[name].astype(np.float64) - expected).max(initial=0) / scale
        assert error < 1e-4, f"seed {seed}: {name} is off by {error}"


@pytest.mark.parametrize("without", ["nothing", *WITHOUT])
def test_random_graphs_compute_what_numpy_computes(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if without != "nothing":
        monkeypatch.setattr(*WITHOUT[without])
    for seed in range(N_GRAPHS):
        check(seed)


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
