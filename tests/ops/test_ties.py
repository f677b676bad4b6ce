"""Gradients at ties, at bounds and at zero, where PyTorch chose one: its own, recorded (tests/golden/ties)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.each import grouped
from tests.ops.op_runner import gradients, run, with_loss

from trainweb.model.graph import FX_NODE, Graph, Node, Value
from trainweb.ops.frame.op import registry
from trainweb.training.arrays import from_numpy

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "ties" / "recorded.json").read_text())
CASES: list[dict[str, Any]] = RECORDED["cases"]
TOLERANCE = 5e-6
"""Of float32 functions of another library; relative, and absolute beside gradients of 1 to 20."""
FAMILIES = ("elementwise", "activation", "trigonometry", "reduce", "pool", "extrema", "logic", "regions")
"""Modules of operators that work on elements, reduce, pool or sort."""
SMOOTH = {"Sum", "Mean"}
"""Linear, like Add, and not in PyTorch."""


def graph_of(case: dict[str, Any]) -> Graph:
    graph = Graph(case["name"], opsets={"": case["opset"], "com.microsoft": 1, "ai.trainweb": 1})
    for k, (op, inputs, outputs, attrs, note) in enumerate(case["nodes"]):
        node = Node(op, list(inputs), list(outputs), dict(attrs), "", f"node{k}")
        if note:
            node.notes = {FX_NODE: note}
        graph.nodes.append(node)
    for name, value in case["inputs"].items():
        graph.inputs.append(Value(name, "float32", np.shape(value)))
    for name, held in case["constants"].items():
        graph.initializers[name] = from_numpy(name, np.asarray(held["value"], held["dtype"]))
    graph.outputs = [Value("y", "float32", None)]
    return graph


def found(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Our gradients of the sum of y times 1, 2, 3, ..."""
    feeds = {name: np.asarray(value, np.float32) for name, value in case["inputs"].items()}
    shape = np.shape(case["y"])
    weights = np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    graph = with_loss(graph_of(case), [("y", weights)])
    return gradients(graph, list(case["gradients"]), feeds | {"w0": weights})


@grouped(CASES, lambda case: str(case["nodes"][0][0]), lambda case: str(case["name"]))
def test_results_and_gradients_are_those_of_pytorch(case: dict[str, Any]) -> None:
    graph = graph_of(case)
    feeds = {name: np.asarray(value, np.float32) for name, value in case["inputs"].items()}
    np.testing.assert_allclose(run(graph, feeds)["y"], np.asarray(case["y"], np.float32), TOLERANCE, TOLERANCE)
    for name, value in found(case).items():
        expected = np.asarray(case["gradients"][name], np.float32)
        np.testing.assert_allclose(value, expected, TOLERANCE, TOLERANCE, err_msg=name)


def test_every_operator_of_these_families_is_recorded() -> None:
    recorded = {node[0] for case in CASES for node in case["nodes"]}
    here = {
        cls.op_type()
        for cls in registry()
        if not cls.domain and cls.differentiable and cls.__module__.rpartition(".")[2] in FAMILIES
    }
    assert here - recorded == SMOOTH
