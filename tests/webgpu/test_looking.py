"""Eval and predict steps on the GPU: the kernels run their tail, such as metrics in float64, on what comes down."""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from tests.webgpu.host import GpuHost
from tests.webgpu.networks import networks
from tests.webgpu.operators import plan_of, run
from tests.webgpu.train import core_of, types_of

from trainweb.artifacts import build_artifacts
from trainweb.backend.webgpu.partition import cut
from trainweb.backend.webgpu.templates import TEMPLATES
from trainweb.errors import UnsupportedError
from trainweb.ir import calls
from trainweb.ir.instructions import Buf, KernelCall, Storage
from trainweb.ir.layout import ARENA, PARAMETERS
from trainweb.ir.shapes import TensorType
from trainweb.metrics import metrics_of, request_of
from trainweb.model.graph import Graph, Tensor
from trainweb.model.reader import read_model
from trainweb.onnxblock.optim import AdamW
from trainweb.page.bundle import make_bundle
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.core import SessionCore
from trainweb.training.step_kind import EVAL, TRAIN, StepKind

ROWS, CLASSES = 24, 7
NAMES = ("accuracy", "precision", "recall", "auc", "confusionMatrix", "perplexity")


@pytest.fixture(autouse=True)
def _no_topk(monkeypatch: pytest.MonkeyPatch) -> None:
    """TopK stands for calls without a template."""
    monkeypatch.delitem(TEMPLATES, calls.Topk)


def perceptron(width: int) -> networks.Network:
    """Two layers."""
    net = networks.Network("looking", 3, dict(kind="mlp", batch=ROWS))
    x = net.op("Relu", [net.linear(net.input([ROWS, 12]), ROWS, 12, 33, "fc1", needs_dx=False)])
    net.output(net.linear(x, ROWS, 33, width, "fc2"), ROWS, width)
    return net


def segmentation() -> networks.Network:
    """Scores of each pixel."""
    net = networks.Network("looking", 4, dict(kind="mlp", batch=2))
    x = net.conv(net.input([2, 3, 9, 9]), 3, CLASSES, "conv", out_pixels=81, kernel=3)
    net.op("Transpose", [x], output="logits", perm=[0, 2, 3, 1])
    net.outputs.append(onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [2, 9, 9, CLASSES]))
    return net


CASES: dict[str, tuple[Callable[[], networks.Network], str, list[Any], Any]] = {
    "classes": (
        lambda: perceptron(CLASSES),
        "CrossEntropyLoss",
        [*NAMES, {"type": "topK", "k": 3}, {"type": "f1", "average": "none"}],
        lambda rng: rng.integers(0, CLASSES, ROWS),
    ),
    "ignored": (
        lambda: perceptron(CLASSES),
        "CrossEntropyLoss",
        [{"type": "accuracy", "ignore_index": 2}, {"type": "topK", "k": 2, "ignore_index": 2}],
        lambda rng: rng.integers(0, CLASSES, ROWS),
    ),
    "images": (segmentation, "CrossEntropyLoss", ["mIoU", "accuracy"], lambda rng: rng.integers(0, CLASSES, (2, 9, 9))),
    "numbers": (
        lambda: perceptron(2),
        "MSELoss",
        ["mae", "r2"],
        lambda rng: rng.normal(size=(ROWS, 2)).astype(np.float32),
    ),
    "two classes": (
        lambda: perceptron(1),
        "BCEWithLogitsLoss",
        ["accuracy", {"type": "topK", "k": 1}, "f1", "auc"],
        lambda rng: rng.integers(0, 2, (ROWS, 1)).astype(np.float32),
    ),
}
"""By what is predicted: network, loss, metrics, targets."""


def open_case(name: str) -> tuple[SessionCore, dict[str, Tensor], list[Any]]:
    build, loss, metrics, targets = CASES[name]
    net, rng = build(), np.random.default_rng(5)
    model = onnx.shape_inference.infer_shapes(net.model()).SerializeToString()
    core = core_of(build_artifacts(model, [p.name for p in net.parameters], [], loss, AdamW()))
    arrays: dict[str, np.ndarray] = {}
    for input_, value in core.inputs["eval"].items():
        shape = [n if isinstance(n, int) else ROWS for n in value.shape or ()]
        is_x = input_ == "x"
        arrays[input_] = rng.normal(size=shape).astype(np.float32) if is_x else np.asarray(targets(rng), value.dtype)
    return core, {name: from_numpy(name, a) for name, a in arrays.items()}, metrics


def look(core: SessionCore, kind: StepKind, feeds: dict[str, Tensor]) -> list[dict[str, np.ndarray]]:
    """All results of a step on the GPU, and those of the next, which finds what the first has left."""
    host = GpuHost(list(core.host.sizes))
    try:
        host.write(PARAMETERS, 0, core.host.read_segment(PARAMETERS, 0, core.host.sizes[PARAMETERS]))
        plan = core.models.compile_step(kind, types_of(feeds), True, target="webgpu")
        loaded = host.load(plan)
        assert plan.body is not None
        found = []
        for _ in range(2):
            host.run(loaded, feeds)
            found.append({name: host.output(loaded, name) for name in (*plan.body.outputs, *plan.outputs)})
        return found
    finally:
        host.release()


@pytest.mark.parametrize("name", CASES)
def test_metrics_are_those_of_the_kernels(name: str) -> None:
    core, feeds, metrics = open_case(name)
    try:
        kind = StepKind("eval", request_of(core.models.own.asked(metrics_of(metrics))))
        found = look(core, kind, feeds)
        expected = {n: to_numpy(t) for n, t in core.step(kind, feeds).items()}
        assert len(expected) > 1
        for n, value in expected.items():
            for run_ in found:
                assert run_[n].dtype == value.dtype
                np.testing.assert_allclose(run_[n], value, rtol=1e-6, atol=1e-7, err_msg=n)
    finally:
        core.release()


def graph_of(body: str, types: str, **constants: np.ndarray) -> Graph:
    """A graph of rows `x` and places `ids`, with one output."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4,64] x, int64[3] ids) => ({types}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    return read_model(model.SerializeToString())


X = np.random.default_rng(6).normal(size=(4, 64)).astype(np.float32)
FEEDS = {"x": X, "ids": np.array([3000, 5, 1])}


def test_all_that_depends_on_the_tail_is_in_it() -> None:
    """A joint tensor has parts of the body, the tail and the feeds; the rest of the program reads it."""
    body = """h = Tanh(x) v, p = TopK(h, two) j = Concat<axis=1>(h, v, x) e = Exp(j) s = ReduceSum(e, two)
        q = Cast<to=1>(p) t = ReduceSum(q, two) y = Add(s, t)"""
    graph = graph_of(body.replace("(e, two)", "(e, one)").replace("(q, two)", "(q, one)"), "float[4,1] y",
                     two=np.array([2]), one=np.array([1]))  # fmt: skip
    found = run(graph, FEEDS)["y"]
    h = np.tanh(X.astype(np.float64))
    places = np.argsort(-h, axis=1, kind="stable")[:, :2]
    joint = np.concatenate([h, np.take_along_axis(h, places, 1), X], 1)
    np.testing.assert_allclose(found, (np.exp(joint).sum(1) + places.sum(1))[:, None], rtol=1e-5)


def test_the_head_looks_up_indices_in_a_large_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainweb.backend.webgpu.partition.OF_TAIL", ())
    table = np.arange(4096) % 4
    found = run(graph_of("i = Gather(table, ids) h = Tanh(x) y = Gather(h, i)", "float[3,64] y", table=table), FEEDS)
    np.testing.assert_allclose(found["y"], np.tanh(X)[table[FEEDS["ids"]]], rtol=1e-5)


def test_a_tail_has_no_parameters() -> None:
    """They are on the GPU: whoever asks for such a step runs all of it on the CPU."""
    w = np.ones((2, 40_000), np.float32)
    graph = graph_of("h = Tanh(x) v, p = TopK(h, two) y = MatMul(v, w)", "float[4,40000] y", two=np.array([2]), w=w)
    with pytest.raises(UnsupportedError, match=r"MatMul node .* needs a result that the host makes"):
        plan_of(graph, FEEDS)


def test_the_body_leaves_what_the_tail_reads() -> None:
    """A tensor that changes later is changed by the tail, too: it runs after the whole body."""
    weights = [Buf(Storage(PARAMETERS, 64, offset=at), "float32", (16,)) for at in (0, 64)]
    a, b, best = (Buf(Storage(ARENA, n), "float32", (n // 4,), name="best") for n in (64, 64, 8))
    steps: list[KernelCall] = [calls.Copy(src=w, dst=to, n=64) for w, to in zip(weights, (a, b), strict=True)]
    topk = calls.Topk(x=a, y=best, outer=1, n=16, inner=1, k=2, largest=1)
    topk.heap = Buf(Storage(ARENA, 64), "int32", (16,))
    steps += [topk, calls.Copy(src=b, dst=a, n=64)]
    for step in steps:
        step.node = "node"
    parts = cut(steps, [best])
    assert [type(i).__name__ for i in parts.tail] == ["Topk", "Copy"] and len(parts.body) == 2
    assert [*parts.downloads] == [a.storage, b.storage]


def test_a_train_step_has_no_tail() -> None:
    net = perceptron(CLASSES)
    net.ops("TopK", ["logits", net.constant(np.array([2]))], ["best", "places"])
    net.outputs.append(onnx.helper.make_tensor_value_info("best", onnx.TensorProto.FLOAT, [ROWS, 2]))
    names = [p.name for p in net.parameters]
    made = build_artifacts(
        net.model().SerializeToString(), names, [], "CrossEntropyLoss", AdamW(),
        loss_input_names=["logits"], additional_output_names=["best"],
    )  # fmt: skip
    core = core_of(made)
    feeds = {"x": TensorType("float32", (ROWS, 12)), "labels": TensorType("int64", (ROWS,))}
    assert core.models.compile_step(EVAL, feeds, True, target="webgpu").outputs
    with pytest.raises(UnsupportedError, match=r"TopK node .* needs the kernel topk_f32, .* Device 'wasm' runs it"):
        core.models.compile_step(TRAIN, feeds, True, target="webgpu")
    core.release()


@pytest.mark.parametrize("targets", [("wasm", "webgpu"), ("webgpu",)])
def test_a_bundle_has_eval_plans_for_the_kernels_where_the_gpu_has_none(
    targets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    core, feeds, _ = open_case("classes")
    types = [types_of(feeds)]

    def kinds() -> list[tuple[str, str]]:
        bundle = make_bundle(core.models, core.state._lent(), types, metrics=["accuracy"], targets=targets)
        (length,) = struct.unpack_from("<I", bundle, 12)
        plans = json.loads(bundle[64 : 64 + length])["plans"]
        return [(p["kind"].split(" ")[0], p.get("target", "wasm")) for p in plans if p["kind"].startswith("eval")]

    assert sorted(kinds()) == sorted(2 * [("eval", target) for target in targets])
    monkeypatch.setattr("trainweb.backend.webgpu.partition.OF_TAIL", ())
    assert kinds().count(("eval", "webgpu")) == 1 and kinds().count(("eval", "wasm")) == len(targets)
    core.release()
