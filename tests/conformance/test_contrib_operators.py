"""Operators of com.microsoft that exporters of language models write, against ONNX Runtime's own kernels."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.ops.op_runner import Case, cases, feeds_of, run, single_node
from tests.ops.test_forward import inputs

from trainweb.model.graph import Graph, Node, Value
from trainweb.model.writer import write_model

ORT_PYTHON = os.environ.get("TRAINWEB_ORT_PYTHON", "")

NAMES = {
    "Attention",
    "EmbedLayerNormalization",
    "FusedConv",
    "FusedGemm",
    "GroupQueryAttention",
    "MatMulNBits",
    "MultiHeadAttention",
    "RotaryEmbedding",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""Two float32 implementations; that of ONNX Runtime rounds exponentials and rotations in another order."""
CASES = [case for case in cases() if case.cls.domain == "com.microsoft" and case.cls.op_type() in NAMES]
NOT_IN_ORT = {
    "com.microsoft.MultiHeadAttention-4": "Packed QKV of shape (B, L, N, 3, H) not implemented for CPU",
    "com.microsoft.MultiHeadAttention-5": "Packed KV not implemented for CPU",
    "com.microsoft.GroupQueryAttention-6": "has input size 11 not in range",
}
"""Samples that ONNX Runtime 1.19.2 has no kernel for on this processor, with its words."""
OTHER_IN_ORT = {"com.microsoft.GroupQueryAttention-3"}
"""Samples that 1.19.2 computes otherwise: a local window of 2 has the query's own key and two before it, where newer
versions (1.31) and models whose sliding window is 2 have one before it."""
WITHOUT = {"com.microsoft.SkipSimplifiedLayerNormalization-0": "x3"}
"""Inputs that its kernel leaves out: the bias, which the schema has as input 3 and the kernel looks for as input 4."""


def graph_of(case: Case) -> tuple[Graph, dict[str, np.ndarray]]:
    """The sample as a model with what to feed it."""
    arrays = inputs(case)
    graph = single_node(case.cls, arrays, case.sample.attrs, case.opset, case.sample.outputs or 1)
    return graph, feeds_of(graph, arrays)


def integers(name: str, graph: Graph) -> str:
    """Dtype of an output."""
    return "int32" if name == "y1" and graph.nodes[0].op_type == "EmbedLayerNormalization" else "float32"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of every sample in ONNX Runtime; started again after a crash."""
    models, results = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("results")
    arrays: dict[str, np.ndarray] = {}
    for case in CASES:
        graph, feeds = graph_of(case)
        graph.outputs = [Value(v.name, integers(v.name, graph), None) for v in graph.outputs if isinstance(v, Value)]
        (models / f"{case}.onnx").write_bytes(write_model(graph))
        arrays.update({f"{case}/in/{name}": x for name, x in feeds.items()})
    np.savez(results / "inputs.npz", **arrays)  # type: ignore[arg-type]
    script = Path(__file__).with_name("ort_gradients.py")
    command = [ORT_PYTHON, str(script), str(models), str(results / "inputs.npz"), str(results)]
    for _ in range(len(CASES)):
        if subprocess.run(command, capture_output=True, timeout=600).returncode == 0:
            break
    return results


@pytest.mark.skipif(not ORT_PYTHON, reason="set TRAINWEB_ORT_PYTHON to a Python with onnxruntime-training 1.19.2")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_onnx_runtime(case: Case, recorded: Path) -> None:
    error = recorded / f"{case}.txt"
    if str(case) in NOT_IN_ORT:
        assert NOT_IN_ORT[str(case)] in error.read_text()
        return
    assert not error.exists(), error.read_text()
    expected = dict(np.load(recorded / f"{case}.npz"))
    graph, feeds = graph_of(case)
    if str(case) in OTHER_IN_ORT:
        window = next(n for n in graph.nodes if n.attrs.get("local_window_size", -1) > 0)
        window.attrs["local_window_size"] += 1
    if str(case) in WITHOUT:
        feeds[WITHOUT[str(case)]] *= 0
    results = run(graph, feeds)
    assert results.keys() == expected.keys()
    for name, actual in results.items():
        assert (actual.dtype, actual.shape) == (expected[name].dtype, expected[name].shape)
        np.testing.assert_allclose(actual, expected[name], **TOLERANCE)


def test_a_local_window_is_as_wide_as_it_says() -> None:
    """As a sliding window of transformers: of 2, the query's own key and the one before it."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 5, 16)).astype(np.float32) for _ in range(3))
    feeds = {"q": q, "k": k, "v": v, "lengths": np.array([4], np.int32), "whole": np.array(5, np.int32)}
    values = [Value(name, str(x.dtype), x.shape) for name, x in feeds.items()]
    attrs = {"num_heads": 1, "kv_num_heads": 1, "local_window_size": 2}
    node = Node("GroupQueryAttention", ["q", "k", "v", "", "", "lengths", "whole"], ["y"], attrs, "com.microsoft", "a")
    graph = Graph("window", [node], values, [Value("y", "float32", None)], {}, opsets={"": 17, "com.microsoft": 1})
    y = run(graph, feeds)["y"]
    for i in range(5):
        seen = slice(max(0, i - 1), i + 1)
        scores = np.exp(k[0, seen].astype(np.float64) @ q[0, i] / 4)
        np.testing.assert_allclose(y[0, i], scores / scores.sum() @ v[0, seen], **TOLERANCE)
