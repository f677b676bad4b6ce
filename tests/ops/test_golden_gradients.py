"""Single-operator models and gradient graphs recorded from ONNX Runtime training (tests/golden/op_grads)."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.each import grouped
from tests.ops.op_runner import gradients, run

from trainweb.errors import GradientError
from trainweb.model.graph import Graph
from trainweb.model.reader import read_model
from trainweb.onnxblock.transforms import train_batch_norms

FOLDER = Path(__file__).parents[1] / "golden" / "op_grads"
ENTRIES: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text())
STEPS = {"Floor", "Sign"}
"""Piecewise constant: no gradient flows, and asking for one is an error."""

RTOL, ATOL = 2e-5, 5e-6
"""Against the peer's float32 results; `ATOL` is relative to the largest element."""
NUMERIC_ATOL = 6e-3
"""Central differences of a float32 forward pass, relative to the largest element (README of the recordings)."""


@cache
def arrays() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "op_grads.npz") as stored:
        return dict(stored)


def recorded(name: str, kind: str) -> dict[str, np.ndarray]:
    """Arrays NAME/kind/*."""
    prefix = f"{name}/{kind}/"
    return {key[len(prefix) :]: value for key, value in arrays().items() if key.startswith(prefix)}


def feeds(entry: dict[str, Any], graph: Graph) -> dict[str, np.ndarray]:
    given = recorded(entry["name"], "in")
    return {v.name: given[v.name] for v in graph.inputs if v.name in given}


def assert_close(actual: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> None:
    assert actual.shape == expected.shape
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol * scale)


def by_operator(entries: Iterable[dict[str, Any]]) -> Callable[[Callable[[dict[str, Any]], None]], Callable[..., None]]:
    return grouped(entries, lambda entry: str(entry["op"]), lambda entry: str(entry["name"]))


@by_operator(e for e in ENTRIES if recorded(e["name"], "out"))
def test_forward(entry: dict[str, Any]) -> None:
    graph = read_model((FOLDER / f"{entry['name']}.onnx").read_bytes())
    expected = recorded(entry["name"], "out")
    results = run(graph, feeds(entry, graph), list(expected))
    for name, value in expected.items():
        assert_close(results[name], value, RTOL, ATOL)


@by_operator(e for e in ENTRIES if recorded(e["name"], "numeric") or e["status"] == "ok")
def test_our_gradient(entry: dict[str, Any]) -> None:
    graph = read_model((FOLDER / f"{entry['name']}.onnx").read_bytes())
    if entry["op"] in STEPS:
        with pytest.raises(GradientError, match="unreachable"):
            gradients(graph, ["X"], feeds(entry, graph))
        return
    peer = recorded(entry["name"], "grad") if not entry.get("peer_wrong") else {}
    numeric = recorded(entry["name"], "numeric")
    wanted = sorted({*peer, *numeric})
    assert wanted
    found = gradients(train_batch_norms(graph, wanted, "as_exported"), wanted, feeds(entry, graph))
    for name in wanted:
        if name in peer:
            assert_close(found[name], peer[name], RTOL, ATOL)
        if name in numeric:
            assert_close(found[name], numeric[name], 0.0, NUMERIC_ATOL)


PORTABLE = [e for e in ENTRIES if e["status"] == "ok" and not e.get("peer_wrong")]


@by_operator(PORTABLE)
def test_the_gradient_graph_of_onnx_runtime_runs_here(entry: dict[str, Any]) -> None:
    graph = read_model((FOLDER / f"{entry['name']}.gradient.onnx").read_bytes())
    peer = recorded(entry["name"], "grad")
    assert peer
    results = run(graph, feeds(entry, graph), [f"{name}_grad" for name in peer])
    for name, value in peer.items():
        assert_close(results[f"{name}_grad"], value, RTOL, ATOL)
