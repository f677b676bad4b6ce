"""Gradient graphs of single operators in ONNX Runtime, against recorded ones; tests/ops runs them natively."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainweb.autodiff.gradient import build_gradients
from trainweb.model.graph import Graph, Value
from trainweb.model.reader import read_model
from trainweb.onnxblock.transforms import constants_to_initializers, train_batch_norms
from trainweb.ops.frame.functions import write_interchangeable

from .golden_artifacts import GOLDEN

FOLDER = GOLDEN / "op_grads"
INDEX = {entry["name"]: entry for entry in json.loads((FOLDER / "index.json").read_text())}
ARRAYS = np.load(FOLDER / "op_grads.npz")
ORT_PYTHON = os.environ.get("TRAINWEB_ORT_PYTHON", "")

RECORDED = {"rtol": 2e-5, "atol": 2e-5}
"""Against gradients that ONNX Runtime computed in float32; relative to the largest element."""
NUMERIC = 5e-3
"""Against central differences of a float32 forward, as their recorder states."""

ZERO = {"sign", "floor"}
"""Piecewise constant operators: what lies behind them is unreachable."""
NOT_IN_ORT = {"averagepool_dynamic_batch", "maxpool_dynamic_size", "instancenormalization", "negativeloglikelihoodloss"}
"""Two whose shape ONNX Runtime takes from shape inference (wrong shapes, crashes), and two it has no gradient of."""


@cache
def gradient_graph(name: str) -> Graph:
    """The model of a case with its gradients as outputs."""
    graph = constants_to_initializers(read_model(FOLDER / f"{name}.onnx"))
    graph = train_batch_norms(graph, [], "as_exported")
    wanted = inputs_of(name)
    result = build_gradients(graph, "loss", wanted)
    types = {v.name: v for v in graph.inputs if isinstance(v, Value)}
    result.outputs = [Value(f"{x}_grad", "float32", types[x].shape) for x in wanted]
    return result


def inputs_of(name: str) -> list[str]:
    """Inputs to differentiate: those a gradient or central differences were recorded for."""
    prefixes = (f"{name}/grad/", f"{name}/numeric/")
    found = (k.rsplit("/", 1)[1] for k in ARRAYS.files if k.startswith(prefixes))
    return list(dict.fromkeys(found))


def check(name: str, results: dict[str, np.ndarray]) -> None:
    wrong = " ".join(INDEX[name].get("peer_wrong", ()))
    for x in inputs_of(name):
        got = results[f"{x}_grad"]
        recorded, numeric = f"{name}/grad/{x}", f"{name}/numeric/{x}"
        if recorded in ARRAYS.files and f"gradient of {x} " not in wrong:
            want, bound = ARRAYS[recorded], RECORDED["atol"]
        else:
            want, bound = ARRAYS[numeric], NUMERIC
        assert got.shape == want.shape
        scale = max(1.0, float(np.abs(want).max(initial=0.0)))
        np.testing.assert_allclose(got, want, rtol=RECORDED["rtol"], atol=bound * scale, err_msg=f"{name} {x}")


@pytest.fixture(scope="module")
def ort_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of every gradient graph in ONNX Runtime; started again after a crash."""
    models, results = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("results")
    for name in INDEX:
        if name not in ZERO:
            (models / f"{name}.onnx").write_bytes(write_interchangeable(gradient_graph(name)))
    script = Path(__file__).with_name("ort_gradients.py")
    command = [ORT_PYTHON, str(script), str(models), str(FOLDER / "op_grads.npz"), str(results)]
    for _ in range(len(INDEX)):
        if subprocess.run(command, capture_output=True, timeout=600).returncode == 0:
            break
    return results


@pytest.mark.skipif(not ORT_PYTHON, reason="set TRAINWEB_ORT_PYTHON to a Python with onnxruntime-training 1.19.2")
@pytest.mark.parametrize("name", [n for n in INDEX if n not in ZERO])
def test_gradients_run_in_onnx_runtime(name: str, ort_folder: Path) -> None:
    error = ort_folder / f"{name}.txt"
    results: dict[str, Any] = {} if error.exists() else dict(np.load(ort_folder / f"{name}.npz"))
    if name in NOT_IN_ORT:
        with pytest.raises((AssertionError, KeyError)):
            check(name, results)
        return
    assert not error.exists(), error.read_text()
    check(name, results)
