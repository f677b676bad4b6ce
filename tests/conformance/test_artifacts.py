"""Our artifacts against ONNX Runtime's: same interface, same training."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from trainweb.checkpoint import read_checkpoint
from trainweb.model.graph import Graph, Node, Value
from trainweb.model.reader import read_model

from .golden_artifacts import GOLDEN, artifacts_of, trace_of
from .replay import CASES, replay

ORT_PYTHON = os.environ.get("TRAINWEB_ORT_PYTHON", "")
"""An interpreter with onnxruntime-training 1.19.2."""
needs_ort = pytest.mark.skipif(
    not ORT_PYTHON, reason="set TRAINWEB_ORT_PYTHON to a Python with onnxruntime-training 1.19.2"
)
UNCHECKABLE = {"MaxPoolGrad", "AveragePoolGrad"}
"""Operators of ONNX Runtime in the ai.onnx domain, where onnx.checker does not know them."""


def interface(graph: Graph) -> tuple[list[Any], list[Any]]:
    def types(values: Any) -> list[Any]:
        return [(v.name, v.dtype, v.shape if isinstance(v, Value) else "sequence") for v in values]

    return types(graph.inputs), types(graph.outputs)


@pytest.mark.parametrize("model", ["training_model", "eval_model", "optimizer_model"])
@pytest.mark.parametrize("case", CASES)
def test_inputs_and_outputs_are_those_of_the_recorded_model(case: str, model: str) -> None:
    ours = read_model(getattr(artifacts_of(case), model))
    theirs = read_model(GOLDEN / case / f"{model}.onnx")
    assert interface(ours) == interface(theirs)


@pytest.mark.parametrize("case", CASES)
def test_the_eval_model_has_the_recorded_nodes(case: str) -> None:
    if case == "bce":
        pytest.skip("the loss is built from other operators, stably")
    ours = read_model(artifacts_of(case).eval_model)
    theirs = read_model(GOLDEN / case / "eval_model.onnx")
    assert [(n.op_type, n.inputs, n.outputs) for n in ours.nodes] == [
        (n.op_type, n.inputs, n.outputs) for n in theirs.nodes
    ]
    assert ours.initializers == theirs.initializers
    assert ours.opsets == theirs.opsets and ours.ir_version == theirs.ir_version


@pytest.mark.parametrize("case", CASES)
def test_graphs_are_what_their_files_say(case: str) -> None:
    built = artifacts_of(case)
    files = built.training_model, built.eval_model, built.optimizer_model
    for graph, file in zip(built.graphs, files, strict=True):
        assert graph is not None and file is not None
        read = read_model(file)
        assert [vars_of(n) for n in read.nodes] == [vars_of(n) for n in graph.nodes]
        assert interface(read) == interface(graph)
        assert list(read.initializers.items()) == list(graph.initializers.items())
        assert (read.opsets, read.ir_version) == (graph.opsets, graph.ir_version)
    for nominal, file in ((False, built.checkpoint), (True, built.nominal_checkpoint)):
        assert read_checkpoint(file) == built.contents(nominal=nominal)


def vars_of(node: Node) -> tuple[Any, ...]:
    lists = {k: list(v) if isinstance(v, tuple) else v for k, v in node.attrs.items()}
    return node.op_type, node.domain, node.name, node.inputs, node.outputs, lists


@pytest.mark.parametrize("case", CASES)
def test_the_checkpoint_is_the_recorded_one(case: str) -> None:
    ours = read_checkpoint(artifacts_of(case).checkpoint)
    theirs = read_checkpoint(GOLDEN / case / "checkpoint")
    assert ours == theirs


def test_the_nominal_checkpoint_is_the_recorded_one() -> None:
    ours = read_checkpoint(artifacts_of("nominal").nominal_checkpoint)
    assert ours == read_checkpoint(GOLDEN / "nominal" / "nominal_checkpoint")
    assert ours.is_nominal


@pytest.mark.parametrize("case", CASES)
def test_accumulators_stand_where_onnx_runtime_puts_them(case: str) -> None:
    def accumulators(graph: Graph) -> list[Any]:
        return [(n.name, n.inputs, n.outputs) for n in graph.nodes if n.op_type == "InPlaceAccumulatorV2"]

    ours = read_model(artifacts_of(case).training_model)
    assert accumulators(ours) == accumulators(read_model(GOLDEN / case / "training_model.onnx"))


@pytest.mark.parametrize("model", ["training_model", "eval_model", "optimizer_model"])
@pytest.mark.parametrize("case", CASES)
def test_onnx_checker_accepts_our_models(case: str, model: str) -> None:
    proto = onnx.load_model_from_string(getattr(artifacts_of(case), model))
    for node in proto.graph.node:
        if node.op_type in UNCHECKABLE:
            node.domain = "com.microsoft"
    onnx.checker.check_model(proto, full_check=model != "optimizer_model")


@pytest.mark.parametrize("case", CASES)
def test_our_artifacts_train_to_the_recorded_trajectory(case: str) -> None:
    result = replay(GOLDEN / case, artifacts=artifacts_of(case))
    assert result["compared"] > 10


@pytest.fixture(scope="module")
def ort_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of ONNX Runtime training with our artifacts of every case."""
    root = tmp_path_factory.mktemp("artifacts")
    pairs: list[str] = []
    for case in CASES:
        (root / case).mkdir()
        artifacts_of(case).write(root / case, nominal=True)
        pairs += [str(GOLDEN / case), str(root / case)]
    script = Path(__file__).with_name("ort_replay.py")
    run = subprocess.run([ORT_PYTHON, str(script), *pairs], capture_output=True, text=True, timeout=600)
    results = {r["case"]: r for r in map(json.loads, run.stdout.splitlines())}
    missing = {"error": f"the process ended with {run.returncode}: {run.stderr[-2000:]}"}
    return {case: results.get(case, missing) for case in CASES}


@needs_ort
@pytest.mark.parametrize("case", CASES)
def test_onnx_runtime_trains_our_artifacts_to_the_recorded_trajectory(case: str, ort_results: dict[str, Any]) -> None:
    result = ort_results[case]
    assert "error" not in result, result["error"]
    assert result["compared"] == sum(len(call.get("results", {})) for call in trace_of(case)["trace"])
    assert result["worst"] <= 1.0
