"""Products of gradients leave out rows of zeros: the kernels beside NumPy in float64, and the pass that asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from tests.python.kernel_cases import BUILDS, assert_close_sum, random, runner
from tests.python.test_attention import compute
from tests.python.test_kernels_threads import NODE, Job
from tests.python.test_kernels_unpack import packed

from trainweb.autodiff.gradient import build_gradients
from trainweb.backend.plan import Plan
from trainweb.backend.wasm.engine import get_engine
from trainweb.model.graph import Graph, Node, Value
from trainweb.training.arrays import from_numpy

ROWS = 200
ZERO_ROWS: dict[str, Iterable[int]] = {
    "none": [],
    "first half": range(100),
    "last half": range(100, ROWS),
    "ends of four texts": [50 * text + row for text in range(4) for row in range(20 + 7 * text, 50)],
    "single rows": range(5, ROWS, 2),
    "all but one row": [row for row in range(ROWS) if row != 77],
    "all but the first half and the last row": range(100, ROWS - 1),
    "all": range(ROWS),
}
SIZES = [(24, 40), (10, 64), (1, 50), (96, 600)]
"""Columns and depth: tiles, dot products, a vector, several blocks of the depth."""


def case(zero_rows: Iterable[int], n: int, k: int, rows: int = ROWS) -> dict[str, Any]:
    a = random(rows, k, seed=1)
    a[list(zero_rows)] = 0
    a[list(zero_rows), ::3] = -0.0
    args = {"a": a.reshape(-1), "bias": None, "c": np.full(rows * n, np.nan, np.float32), "m": rows, "n": n, "k": k}
    args |= {"a_row": k, "a_col": 1, "c_row": n, "bias_row": 0, "bias_col": 0, "alpha": 0.5, "beta": 1.0}
    return args | {"accumulate": 0, "activation": 0, "sparse": 1, "wanted": None}


def dense(args: dict[str, Any], w: np.ndarray, turned: bool) -> dict[str, Any]:
    n, k = args["n"], args["k"]
    batch = {"batch": [1, 1], **{f"{name}_batch": [0, 0] for name in ("a", "b", "c", "bias")}}
    stored = {"b": w.reshape(-1), "b_row": 1 if turned else n, "b_col": k if turned else 1}
    return args | batch | stored


def expected(args: dict[str, Any], values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product with `values` [k, n] in float64, and the sums of the absolute values of its terms."""
    a = args["a"].reshape(args["m"], args["k"]).astype(np.float64)
    return 0.5 * a @ values, 0.5 * abs(a) @ abs(values)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("zero_rows", ZERO_ROWS)
def test_products(zero_rows: str, size: tuple[int, int], turned: bool, build: str) -> None:
    n, k = size
    args = case(ZERO_ROWS[zero_rows], n, k)
    w = random(*((n, k) if turned else (k, n)), seed=2)
    want, magnitude = expected(args, w.T if turned else w)
    got = runner(build).run("gemm_f32", dense(args, w, turned), last="b")["c"].reshape(ROWS, n)
    assert_close_sum(got, want, magnitude, k + 2)
    start = random(ROWS, n, seed=3)
    added = dense(args, w, turned) | {"accumulate": 1, "c": start.reshape(-1)}
    got = runner(build).run("gemm_f32", added)["c"].reshape(ROWS, n)
    assert_close_sum(got, want + start, magnitude + abs(start), k + 3)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("zero_rows", ZERO_ROWS)
def test_products_with_quantized_weights(zero_rows: str, turned: bool, build: str) -> None:
    n, k = 48, 96
    w = packed("8", (n, k) if turned else (k, n), (1, 32), zeros=True)
    args = case(ZERO_ROWS[zero_rows], n, k) | {name: x for name, x in w.args.items() if name != "x"}
    args |= {"w": w.args["x"], "turned": int(turned)}
    want, magnitude = expected(args, w.values.T if turned else w.values)
    got = runner(build).run("gemm_quantized_f32", args, last="w")["c"].reshape(ROWS, n)
    assert_close_sum(got, want, magnitude, k + 4)


@pytest.mark.parametrize("rows", [ROWS, 4000])
def test_zero_rows_are_not_computed(rows: int) -> None:
    """A product with NaN would show; more runs than are listed join their neighbours."""
    gaps = [row for row in range(rows) if row % 40 >= 20]
    args = dense(case(gaps, 24, 40, rows), np.full((40, 24), np.nan, np.float32), False)
    got = runner("kernels").run("gemm_f32", args)["c"].reshape(rows, 24)
    if rows == ROWS:
        assert (got[gaps] == 0).all()
    assert np.isnan(got[[row for row in range(rows) if row % 40 < 20]]).all()
    asked = runner("kernels").run("gemm_f32", args | {"sparse": 0})["c"]
    assert np.isnan(asked).all(), "without the flag, zero times NaN is NaN"


@pytest.mark.parametrize("place", [0, 3, 39, 40])
@pytest.mark.parametrize("number", [-1.0, 1e-45, np.nan])
def test_one_number_makes_a_row_count(number: float, place: int) -> None:
    n, k = 24, 41
    args = dense(case(ZERO_ROWS["all"], n, k), np.full((k, n), 2.0, np.float32), False)
    args["a"].reshape(ROWS, k)[ROWS // 2, place] = number
    got = runner("kernels").run("gemm_f32", args)["c"].reshape(ROWS, n)
    want = np.zeros((ROWS, n), np.float32)
    want[ROWS // 2] = number
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_and_relu_still_apply_to_zero_rows(bias: bool) -> None:
    w, start = random(40, 24, seed=2), random(ROWS, 24, seed=3)
    args = dense(case(ZERO_ROWS["first half"], 24, 40), w, False) | {"accumulate": 1, "c": start.reshape(-1)}
    args |= {"bias": random(24, seed=4), "bias_col": 1} if bias else {"activation": 1}
    got = runner("kernels").run("gemm_f32", args)["c"].reshape(ROWS, 24)[:100]
    want = start[:100] + args["bias"] if bias else np.maximum(start[:100], 0)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.skipif(NODE is None, reason="Node runs the shared memory")
def test_any_number_of_threads_gives_the_same_bytes() -> None:
    job = Job(get_engine(reproducible=True))
    for zero_rows in ZERO_ROWS.values():
        for n, k in ((260, 300), (10, 400)):
            job.call("gemm_f32", **dense(case(zero_rows, n, k), random(k, n, seed=2), False))
    expected = job.run_natively()
    for threads in (1, 2, 3, 8):
        assert job.run_threads(threads)["digests"] == [expected], f"{threads} threads"


# The pass.


def network(labels: np.ndarray, x: np.ndarray, ignore: dict[str, int]) -> tuple[Graph, dict[str, np.ndarray]]:
    """Two products, the second with a bias, and cross entropy."""
    graph = Graph("network", opsets={"": 17})
    feeds = {"x": x, "labels": labels}
    graph.inputs = [Value(name, from_numpy(name, a).dtype, a.shape) for name, a in feeds.items()]
    weights = {"u": random(8, 30, seed=1), "v": random(30, 5, seed=2), "bias": random(5, seed=3)}
    graph.initializers = {name: from_numpy(name, a) for name, a in weights.items()}
    graph.nodes = [
        Node("MatMul", ["x", "u"], ["hidden"]),
        Node("Sigmoid", ["hidden"], ["active"]),
        Node("Gemm", ["active", "v", "bias"], ["scores"]),
        Node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"], {"reduction": "mean", **ignore}),
    ]
    graph.outputs = [Value("loss", "float32", ())]
    return build_gradients(graph, "loss", ["x", "u", "v", "bias"]), feeds


def products_of(plan: Plan) -> list[bool]:
    """Whether each product leaves out zero rows, in the order of the plan."""
    return ["sparse=1" in line for line in plan.text if line.startswith("gemm_f32")]


def test_only_products_of_gradients_by_rows_leave_out_zero_rows() -> None:
    labels, x = np.arange(90) % 5, random(90, 8)
    outputs = ["loss", "x_grad", "u_grad", "v_grad", "bias_grad"]
    labels[:50] = -100
    found, plan = compute(*network(labels, x, {"ignore_index": -100}), outputs)
    # Forward by u and v; backward by v, by its input, by u, by x.
    assert sorted(products_of(plan)) == [False] * 4 + [True] * 2
    kept, _ = compute(*network(labels[50:], x[50:], {}), outputs)
    for name in ("loss", "u_grad", "v_grad", "bias_grad"):
        np.testing.assert_allclose(found[name], kept[name], rtol=1e-5, atol=1e-7)
    assert not found["x_grad"][:50].any()
    np.testing.assert_allclose(found["x_grad"][50:], kept["x_grad"], rtol=1e-5, atol=1e-7)


def test_a_loss_that_ignores_no_label_asks_for_nothing() -> None:
    _, plan = compute(*network(np.arange(90) % 5, random(90, 8), {}), ["loss", "x_grad"])
    assert products_of(plan) and not any(products_of(plan))
