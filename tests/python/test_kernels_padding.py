"""Products that leave out rows, and the tokens that are wanted: the kernels."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from tests.each import over
from tests.python.kernel_cases import assert_close_sum, random
from tests.python.kernel_runner import BUILDS, runner
from tests.python.test_kernels_threads import NODE, Job
from tests.python.test_kernels_unpack import packed

from trainweb.backend.wasm.engine import get_engine

# Products.


ROWS = 200
UNWANTED: dict[str, Iterable[int]] = {
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


def case(unwanted: Iterable[int], n: int, k: int, rows: int = ROWS) -> tuple[dict[str, Any], np.ndarray]:
    """The arguments of a product whose operand has numbers in all rows, and which of them are wanted."""
    wanted = np.ones(rows, np.int32)
    wanted[list(unwanted)] = 0
    args = {"a": random(rows, k, seed=5).reshape(-1), "bias": None, "wanted": wanted, "m": rows, "n": n, "k": k}
    args |= {"a_row": k, "a_col": 1, "c_row": n, "bias_row": 0, "bias_col": 0, "alpha": 0.5, "beta": 1.0}
    args |= {"accumulate": 0, "activation": 0, "clears": 0, "c": np.full(rows * n, np.nan, np.float32)}
    return args, wanted != 0


def dense(args: dict[str, Any], w: np.ndarray, turned: bool) -> dict[str, Any]:
    n, k = args["n"], args["k"]
    batch = {"batch": [1, 1], **{f"{name}_batch": [0, 0] for name in ("a", "b", "c", "bias")}}
    stored = {"b": w.reshape(-1), "b_row": 1 if turned else n, "b_col": k if turned else 1}
    return args | batch | stored


def expected(args: dict[str, Any], values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product with `values` [k, n] in float64, and the sums of the absolute values of its terms."""
    a = args["a"].reshape(args["m"], args["k"]).astype(np.float64)
    return 0.5 * a @ values, 0.5 * abs(a) @ abs(values)


def gradient(args: dict[str, Any]) -> dict[str, Any]:
    """The same product of a gradient, whose other rows are zeros."""
    a = args["a"].reshape(args["m"], args["k"]) * (args["wanted"] != 0)[:, None]
    return args | {"a": a.reshape(-1), "clears": 1}


def check_rows(got: np.ndarray, want: np.ndarray, magnitude: np.ndarray, terms: int, wanted: np.ndarray) -> None:
    """Wanted rows are the product. Another row is its product, too, or one of the wanted rows, or zeros without any."""
    assert_close_sum(got[wanted], want[wanted], magnitude[wanted], terms)
    for row in np.flatnonzero(~wanted):
        repeated = (got[wanted] == got[row]).all(axis=1).any() if wanted.any() else not got[row].any()
        if not repeated:
            assert_close_sum(got[row], want[row], magnitude[row], terms)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
@over("unwanted", UNWANTED)
def test_products(unwanted: str, size: tuple[int, int], turned: bool, build: str) -> None:
    n, k = size
    w, bias = random(*((n, k) if turned else (k, n)), seed=2), random(n, seed=4)
    args, wanted = case(UNWANTED[unwanted], n, k)
    args, values = dense(args, w, turned), w.T if turned else w
    want, magnitude = expected(args, values)
    got = runner(build).run("gemm_f32", args, last="b")["c"].reshape(ROWS, n)
    check_rows(got, want, magnitude, k + 2, wanted)
    biased = args | {"bias": bias, "bias_col": 1, "activation": 1}
    got = runner(build).run("gemm_f32", biased)["c"].reshape(ROWS, n)
    check_rows(got, np.maximum(want + bias, 0), magnitude + abs(bias), k + 3, wanted)
    got = runner(build).run("gemm_f32", gradient(args))["c"].reshape(ROWS, n)
    assert_close_sum(got, *expected(gradient(args), values), k + 2)


@over("unwanted", UNWANTED)
def test_a_sum_keeps_the_rows_that_are_left_out(unwanted: str) -> None:
    n, k = SIZES[0]
    w, start = random(k, n, seed=2), random(ROWS, n, seed=3)
    args, wanted = case(UNWANTED[unwanted], n, k)
    args = dense(args, w, False)
    product, magnitude = expected(args, w)
    want, magnitude = start + product, abs(start) + magnitude
    got = runner("kernels").run("gemm_f32", args | {"accumulate": 1, "c": start.reshape(-1)})["c"].reshape(ROWS, n)
    kept = ~wanted & (got == start).all(axis=1)
    assert_close_sum(got[~kept], want[~kept], magnitude[~kept], k + 3)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("turned", [False, True])
@over("unwanted", UNWANTED)
def test_products_with_quantized_weights(unwanted: str, turned: bool, build: str) -> None:
    n, k = 48, 96
    w = packed("8", (n, k) if turned else (k, n), (1, 32), zeros=True)
    args, wanted = case(UNWANTED[unwanted], n, k)
    args |= {name: x for name, x in w.args.items() if name != "x"} | {"w": w.args["x"], "turned": int(turned)}
    values = w.values.T if turned else w.values
    want, magnitude = expected(args, values)
    got = runner(build).run("gemm_quantized_f32", args, last="w")["c"].reshape(ROWS, n)
    check_rows(got, want, magnitude, k + 4, wanted)
    got = runner(build).run("gemm_quantized_f32", gradient(args))["c"].reshape(ROWS, n)
    assert_close_sum(got, *expected(gradient(args), values), k + 4)


@pytest.mark.parametrize("rows", [ROWS, 4000])
def test_rows_that_are_left_out_are_not_computed(rows: int) -> None:
    """A product of NaN would show; more runs than are listed join their neighbours."""
    gaps = [row for row in range(rows) if row % 40 >= 20]
    args, wanted = case(gaps, 24, 40, rows)
    args = dense(args, random(40, 24, seed=2), False)
    args["a"].reshape(rows, 40)[gaps] = np.nan
    results = {clears: runner("kernels").run("gemm_f32", args | {"clears": clears})["c"] for clears in (0, 1)}
    repeated, cleared = (results[clears].reshape(rows, 24) for clears in (0, 1))
    np.testing.assert_array_equal(repeated[wanted], cleared[wanted])
    assert np.isfinite(repeated[wanted]).all()
    if rows == ROWS:
        assert np.isfinite(repeated).all() and repeated[gaps].any() and not cleared[gaps].any()
    assert np.isnan(runner("kernels").run("gemm_f32", args | {"wanted": None})["c"].reshape(rows, 24)[gaps]).all()


@pytest.mark.skipif(NODE is None, reason="Node runs the shared memory")
def test_any_number_of_threads_gives_the_same_bytes() -> None:
    job = Job(get_engine(reproducible=True))
    for unwanted in UNWANTED.values():
        for n, k in ((260, 300), (10, 400)):
            args = dense(case(unwanted, n, k)[0], random(k, n, seed=2), False)
            job.call("gemm_f32", **args)
            job.call("gemm_f32", **gradient(args))
    expected = job.run_natively()
    assert [result["digests"] for result in job.run_threads(1, 2, 3, 8)] == [[expected]] * 4


# The tokens that are wanted.

HIDDEN = {"minus infinity": -np.inf, "least number": float(np.finfo(np.float32).min), "limit": -1e30}


def closure(counted: np.ndarray, attends: np.ndarray) -> np.ndarray:
    """What `counted` [texts, m] reaches through any number of layers; attends [texts, m, m]."""
    reached = counted
    for _ in range(counted.shape[1]):
        reached = reached | np.einsum("bi,bij->bj", reached, attends).astype(bool)
    return reached


def wanted_tokens(
    labels: np.ndarray, mask: np.ndarray | None, ignore: int = -100, *, turned: bool = False
) -> np.ndarray:
    """labels [texts, m], mask [texts or 1, heads, m, m]; `turned`: heads are the outer dim of the batch."""
    texts, m = labels.shape
    heads = 1 if mask is None else mask.shape[1]
    strides = [0, 0, 0] if mask is None else [mask[0].size * (len(mask) > 1), m * m, m]
    batch, token_strides = [texts, heads], [m, 0]
    if turned:
        batch, token_strides, strides = batch[::-1], token_strides[::-1], [strides[1], strides[0], strides[2]]
    args = {
        "labels": np.ascontiguousarray(labels).view(np.uint8).reshape(-1),
        "mask": None if mask is None else mask.astype(np.float32).reshape(-1),
        "wanted": np.full(texts * m, 7, np.int32),
        "n": texts * m,
        "label_size": labels.itemsize,
        "ignore": ignore,
        "batch": batch,
        "m": m,
        "mask_strides": strides,
        "token_strides": token_strides,
        "ruled_out": -1e30,
    }
    wanted: np.ndarray = runner("kernels").run("wanted_tokens", args)["wanted"]
    return np.asarray(wanted.reshape(texts, m) == 1)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("hidden", HIDDEN)
def test_wanted_tokens_are_those_that_masks_lead_to(hidden: str, heads: int, dtype: type, turned: bool) -> None:
    rng = np.random.default_rng(heads)
    found = set[int]()
    for texts, m in ((1, 1), (3, 17), (2, 40), (5, 8)):
        for density in (0.02, 0.06, 0.2):
            attends = rng.random((texts, heads, m, m)) < density
            labels: np.ndarray = rng.integers(0, 9, (texts, m)).astype(dtype)
            labels[rng.random((texts, m)) > 0.1] = -100
            labels[0, 0] = 3
            mask = np.where(attends, rng.choice([0, -5.0, -1e4, -9.9e29], attends.shape), HIDDEN[hidden])
            # A row that the mask hides all of attends to all.
            everything = attends | ~attends.any(axis=-1, keepdims=True)
            want = closure(np.asarray(labels != -100), np.asarray(everything.any(axis=1)))
            np.testing.assert_array_equal(wanted_tokens(labels, mask, turned=turned), want)
            found.add(int(want.sum()))
    assert len(found) > 5


def test_without_a_mask_a_text_is_wanted_as_a_whole() -> None:
    labels = np.full((3, 10), -100, np.int64)
    labels[1, 4] = 2
    np.testing.assert_array_equal(wanted_tokens(labels, None).all(axis=1), [False, True, False])
    np.testing.assert_array_equal(wanted_tokens(labels, None).any(axis=1), [False, True, False])


def test_without_a_label_all_is_wanted() -> None:
    itself = np.where(np.eye(10) == 1, 0, -np.inf)[None, None]
    assert wanted_tokens(np.full((3, 10), 5, np.int32), itself, 5).all()


def test_a_second_call_goes_on_from_the_tokens_of_the_first() -> None:
    """A call for each mask, from the last layer on."""
    labels = np.array([[-100, -100, -100, 7]])
    last, before = (np.full((1, 1, 4, 4), -np.inf) for _ in range(2))
    last[..., range(4), range(4)] = before[..., range(4), range(4)] = 0
    last[..., 3, 1] = before[..., 1, 2] = before[..., 2, 0] = 0
    found = wanted_tokens(labels, last)
    np.testing.assert_array_equal(found, [[False, True, False, True]])
    np.testing.assert_array_equal(wanted_tokens(found.astype(np.int32), before, 0), [[True] * 4])
    np.testing.assert_array_equal(wanted_tokens(labels, before), [[False, False, False, True]])
