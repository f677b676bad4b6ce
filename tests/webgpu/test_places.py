"""Integers that a model computes: from feeds by the kernels, which check them, or by the GPU in a range."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tests.webgpu.operators import plan_of, run

from trainweb.errors import FeedError, UnsupportedError
from trainweb.model.reader import read_model

X = np.random.default_rng(6).normal(size=(4, 5, 6)).astype(np.float32)
IDS = np.array([3, -4, 1])
CONSTANTS = "int64[1] one = {1}, int64[2] column = {3, 1}, int64[3] images = {4, 1, 1}, int64[1] axis = {0}"
TUPLES = "p = Reshape(ids, column) q = Sub(p, one) t = Concat<axis=1>(p, q)"
CHECKED = {
    "gather": f"{TUPLES} y = GatherND(h, t)",
    "scatter": f"{TUPLES} u = GatherND(h, t) v = Add(u, u) y = ScatterND(h, t, v)",
    "batch": f"{TUPLES} r = Unsqueeze(q, axis) b = Expand(r, images) y = GatherND<batch_dims=1>(h, b)",
}
"""Graphs that look up tuples of `ids` along axes of 4 and 5, or `ids` less 1 along one of 5."""
BOUNDED = {
    "largest": "i = ArgMax<axis=1, keepdims=0>(h) y = Gather<axis=1>(h, i)",
    "moved": "i = ArgMin<axis=1, keepdims=0>(h) c = Cast<to=6>(i) y = Gather<axis=1>(h, c)",
    "in order": "v, i = TopK<axis=1>(h, one) y = GatherElements<axis=1>(h, i)",
}
UNBOUNDED = {
    "too large": "i = ArgMax<axis=2, keepdims=0>(g) y = Gather<axis=1>(g, i)",
    "of numbers": "i = Cast<to=7>(g) y = GatherElements<axis=1>(g, i)",
    "beside": "c = Cast<to=7>(g) i = ArgMax<axis=0>(g) j = Concat<axis=0>(c, i) y = GatherElements<axis=0>(g, j)",
    "looked up": "k = Cast<to=7>(g) j = Gather<axis=0>(k, one) y = GatherElements<axis=1>(g, j)",
    "added to": "i = ArgMax<axis=1>(g) j = Add(i, one) y = GatherElements<axis=1>(g, j)",
}
"""Of numbers `g`, the product with a weight, which the head has not."""


def model_of(body: str) -> onnx.ModelProto:
    """A model of numbers `x` and indices `ids`; the tanh of the numbers is the GPU's."""
    types = "(float[4,5,6] x, int64[3] ids) => (float y)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g {types} <{CONSTANTS}> {{ h = Tanh(x) {body} }}'
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))


@pytest.mark.parametrize("body", [*CHECKED.values(), *BOUNDED.values()], ids=[*CHECKED, *BOUNDED])
def test_computed_indices_find_their_elements(body: str) -> None:
    model = model_of(body)
    for ids in (IDS, IDS[::-1].copy()):
        feeds = {"x": X, "ids": ids}
        found, wanted = (
            run(read_model(model.SerializeToString()), feeds)["y"],
            ReferenceEvaluator(model).run(None, feeds)[0],
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("wrong", [[0, 1, -5], [0, 6, 1]])
def test_the_head_checks_tuples_of_indices(name: str, wrong: list[int]) -> None:
    with pytest.raises(FeedError, match=r"ND .*: the index (-6|-5|5|6) at position .* is out of range"):
        run(read_model(model_of(CHECKED[name]).SerializeToString()), {"x": X, "ids": np.array(wrong)})


@pytest.mark.parametrize("body", UNBOUNDED.values(), ids=UNBOUNDED)
def test_indices_that_nobody_checks_are_refused(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainweb.backend.webgpu.partition.OF_TAIL", ())
    with pytest.raises(UnsupportedError, match="needs indices that the GPU computes"):
        model = model_of(f"g = MatMul(h, w) {body}")
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((6, 40_000), np.float32), "w"))
        plan_of(read_model(model.SerializeToString()), {"x": X, "ids": IDS})


def test_the_head_computes_integers_that_only_the_kernels_can() -> None:
    """A list of int64, which the GPU could make, products, and the largest one, on the way to the GPU's numbers."""
    largest = "c = Concat<axis=0>(ids, one) s = Mul(c, c) b = ReduceMax<keepdims=0>(s)"
    model = model_of(f"{largest} f = Cast<to=1>(b) y = Mul(h, f)")
    graph, feeds = read_model(model.SerializeToString()), {"x": X, "ids": IDS << 13}
    np.testing.assert_allclose(run(graph, feeds)["y"], ReferenceEvaluator(model).run(None, feeds)[0], rtol=1e-6)
    with pytest.raises(FeedError, match=r"Cast .*: the index 17179869184 at position 0 is out of range"):
        run(graph, {"x": X, "ids": IDS << 15})


@pytest.mark.parametrize(("dtype", "number"), [("uint8", 2), ("int8", 3), ("int16", 5)])
@pytest.mark.parametrize("via", [6, 7])
def test_small_integers_wrap(dtype: str, number: int, via: int) -> None:
    """Of an integer beyond their range the low bits stay, and the bytes beside it."""
    x = np.array([-70000.7, -300.7, -129, -1, 0, 1.5, 127, 128, 200, 255, 256, 300, 33000.2], np.float32)
    last = "" if dtype == "int16" else f", {dtype} i"
    square = "" if last else "z = Mul(i, i)"
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[13] x, float[13] w) => (float y{last}) {{
        h = Mul(x, w) b = Cast<to={via}>(h) i = Cast<to={number}>(b) {square} f = Cast<to=1>({"z" if square else "i"})
        y = Add(f, x) }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    feeds = {"x": x, "w": np.ones(13, np.float32)}
    found = run(read_model(model.SerializeToString()), feeds)
    small = x.astype(np.int64).astype(dtype)
    with np.errstate(over="ignore"):
        y = (small * small if square else small).astype(np.float32) + x
    assert np.array_equal(found["y"], y) and (not last or np.array_equal(found["i"], small))
