"""Products leave out the tokens that no counted label depends on: the kernels, and the pass."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.python import pipelines
from tests.python.kernel_cases import BUILDS, assert_close_sum, random, runner
from tests.python.test_attention import Attention, compute
from tests.python.test_kernels_threads import NODE, Job
from tests.python.test_kernels_unpack import packed

from trainweb import CheckpointState, TrainingSession
from trainweb.autodiff.gradient import build_gradients
from trainweb.backend.plan import Plan
from trainweb.backend.wasm.engine import get_engine
from trainweb.compiler import pipeline
from trainweb.compiler.compile import compile_model
from trainweb.compiler.context import Context
from trainweb.compiler.passes import head, padding
from trainweb.compiler.passes.padding import Product, gradients_of
from trainweb.compiler.rows import laid_out
from trainweb.ir import calls
from trainweb.ir.instructions import Rows
from trainweb.ir.program import Program
from trainweb.ir.shapes import TensorType
from trainweb.lora import inject
from trainweb.model.graph import Graph, Node, Value
from trainweb.onnxblock.loss import CrossEntropyLoss

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
@pytest.mark.parametrize("unwanted", UNWANTED)
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


@pytest.mark.parametrize("unwanted", UNWANTED)
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
@pytest.mark.parametrize("unwanted", UNWANTED)
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
    for threads in (1, 2, 3, 8):
        assert job.run_threads(threads)["digests"] == [expected], f"{threads} threads"


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


# The axes of rows.


def rows_at(parts: Iterable[tuple[int, int]]) -> np.ndarray:
    """The row of each element of a tensor with these parts."""
    rows = np.zeros(1, np.int64)
    for size, step in parts:
        rows = (rows[:, None] + step * np.arange(size)).reshape(-1)
    return rows


def test_views_have_the_rows_of_their_elements() -> None:
    rng = np.random.default_rng(0)
    views = 0
    for _ in range(2000):
        # Texts, tokens and other axes in any order, and a view that splits and joins them.
        texts, tokens = (int(n) for n in rng.integers(1, 7, 2))
        axes = [(texts, tokens), (tokens, 1), *((int(n), 0) for n in rng.integers(1, 7, 2))]
        axes = [axes[k] for k in rng.permutation(4)]
        divisors = [[d for d in range(1, n + 1) if n % d == 0] for n, _ in axes]
        shape = [int(part) for ds, (n, _) in zip(divisors, axes, strict=True) for part in _halves(rng.choice(ds), n)]
        while rng.random() < 0.5 and len(shape) > 1:
            k = int(rng.integers(len(shape) - 1))
            shape[k : k + 2] = [shape[k] * shape[k + 1]]
        layout = laid_out(axes, shape)
        if layout is not None:
            views += 1
            assert [prod(n for n, _ in axis) for axis in layout] == shape
            np.testing.assert_array_equal(rows_at(part for axis in layout for part in axis), rows_at(axes))
    assert views > 1500
    assert laid_out([(2, 3), (3, 1), (4, 0)], (4, 6)) is None


def _halves(divisor: int, n: int) -> tuple[int, int]:
    return divisor, n // divisor


def test_loops_have_the_rows_of_their_steps_or_none() -> None:
    rng = np.random.default_rng(1)
    known = 0
    for _ in range(2000):
        sizes = [int(n) for n in rng.integers(2, 6, 3)]
        parts = tuple(zip(sizes, rng.permutation([0, 1, sizes[0]]).tolist(), strict=True))
        rows = rows_at(parts)
        n, stride = int(rng.integers(1, 9)), int(rng.integers(0, 40))
        step = Rows(parts, 0).of_loop(n, stride)
        if step is None:
            continue
        known += 1
        np.testing.assert_array_equal(rows[np.arange(n) * stride], step * np.arange(n))
    assert known > 300


# The pass.

TEXTS, LENGTH, WIDTH, CLASSES = 3, 40, 16, 50
COUNTS = (25, 11, 33)
"""Tokens of each text; padding follows."""
SKIPPED = sum(LENGTH - n for n in COUNTS)


class Model(Attention):
    """Two layers of attention and products with biases, and cross entropy."""

    def __init__(self, lengths: Iterable[int], length: int, *, causal: bool = True) -> None:
        self.lengths = list(lengths)
        super().__init__(len(self.lengths), 2, length, length, WIDTH // 2)
        words = np.random.default_rng(7).integers(0, CLASSES, (TEXTS, LENGTH))[: len(self.lengths), :length]
        if len(self.lengths) == 1:
            words = np.random.default_rng(7).integers(0, CLASSES, (TEXTS, LENGTH))[COUNTS.index(self.lengths[0]), None]
            words = words[:, :length]
        real = np.arange(length) < np.array(self.lengths)[:, None]
        self.feed("words", np.where(real, words, 0))
        self.feed("labels", np.where(real, (words * 7 + 3) % CLASSES, -100).reshape(-1))
        attends = real[:, None, None, :] & (np.tri(length, dtype=bool) | (not causal))
        mask = np.where(attends | np.eye(length, dtype=bool), 0, -np.inf)
        self.feed("mask", mask.astype(np.float32))

    def weights(self, name: str, *shape: int) -> str:
        value = np.random.default_rng(len(self.feeds)).standard_normal(shape) / np.sqrt(shape[0])
        return self.feed(name, value.astype(np.float32), trained=True)

    def dense(self, x: str, name: str, width: int) -> str:
        return self.op(
            "Add", self.op("MatMul", x, self.weights(name, WIDTH, width)), self.weights(f"{name}_bias", width)
        )

    def layer(self, x: str, name: str) -> str:
        length = self.sizes[2]
        q, k, v = (self.dense(x, f"{name}_{part}", WIDTH) for part in "qkv")
        q = self.split_heads(q, length, WIDTH // 2, (0, 2, 1, 3))
        k = self.split_heads(k, length, WIDTH // 2, (0, 2, 3, 1))
        v = self.split_heads(v, length, WIDTH // 2, (0, 2, 1, 3))
        p = self.op("Softmax", self.op("Add", self.op("MatMul", q, k), "mask"), axis=-1)
        y = self.op("Transpose", self.op("MatMul", p, v), perm=[0, 2, 1, 3])
        y = self.op("Reshape", y, self.constant(np.array([len(self.lengths), length, WIDTH])))
        return self.op("Add", x, self.op("Tanh", self.dense(y, f"{name}_o", WIDTH)))

    def hidden(self) -> str:
        x = self.op("Gather", self.weights("embedding", CLASSES, WIDTH), "words")
        return self.layer(self.layer(x, "first"), "second")

    def finish(self, x: str, ignore: int | None = -100) -> tuple[Graph, list[str]]:
        self.lose(x, ignore)
        return self.gradients("loss")

    def lose(self, x: str, ignore: int | None = -100) -> None:
        rows = self.op("Reshape", x, self.constant(np.array([-1, WIDTH])))
        scores = self.op("MatMul", rows, self.weights("head", WIDTH, CLASSES))
        attrs = {} if ignore is None else {"ignore_index": ignore}
        loss = Node("SoftmaxCrossEntropyLoss", [scores, "labels"], ["loss"], {"reduction": "sum", **attrs})
        self.graph.nodes.append(loss)
        self.graph.outputs = [Value("loss", "float32", ())]

    def gradients(self, loss: str) -> tuple[Graph, list[str]]:
        graph = build_gradients(self.graph, loss, self.trained)
        return graph, ["loss", *(f"{name}_grad" for name in self.trained)]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "LEAST_WORK", 0)


def chosen_rows(plan: Plan, clears: int = 0) -> int:
    """How many products have wanted rows, those of gradients with `clears`."""
    products = [line for line in plan.text if line.startswith("gemm_f32") and "wanted=arena" in line]
    return sum(f"clears={clears}" in line for line in products)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_padded_texts_give_what_they_give_alone(causal: bool, stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "SCORES_BYTES", 1 << 30 if stored else 0)
    monkeypatch.setattr(head, "TRAINED_SCORES_BYTES", 1 << 30 if stored else 0)
    model = Model(COUNTS, LENGTH, causal=causal)
    graph, outputs = model.finish(model.hidden())
    found, plan = compute(graph, model.feeds, outputs)
    # Four products a layer, and the head, if its scores are stored.
    assert chosen_rows(plan) == chosen_rows(plan, clears=1) == 8 + stored
    want = dict.fromkeys(outputs, np.zeros(()))
    for count in COUNTS:
        alone = Model([count], count, causal=causal)
        graph, _ = alone.finish(alone.hidden())
        for name, value in compute(graph, alone.feeds, outputs)[0].items():
            want[name] = want[name] + value
    for name in outputs:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-5, err_msg=name)


def mixed(model: Model, x: str, how: str) -> str:
    """Hidden states that depend on more than what attention reads."""
    length = model.sizes[2]
    if how == "mean of a text":
        return model.op("Add", x, model.op("ReduceMean", x, axes=[1], keepdims=1))
    if how == "cumulative sum":
        return model.op("Add", x, model.op("CumSum", x, model.constant(np.int64(1))))
    if how == "reversed":
        ends = [model.constant(np.array([n])) for n in (-1, -LENGTH - 1, 1, -1)]
        return model.op("Add", x, model.op("Slice", x, *ends))
    if how == "next token":
        starts = [model.constant(np.array([n])) for n in (1, length, 1)]
        later = model.op("Slice", x, *starts)
        pads = model.constant(np.array([0, 0, 0, 0, 1, 0]))
        return model.op("Add", x, model.op("Pad", later, pads, model.constant(np.float32(0))))
    if how == "next text":
        parts = [
            model.op("Slice", x, *(model.constant(np.array([n])) for n in ends)) for ends in ((1, 3, 0), (0, 1, 0))
        ]
        return model.op("Add", x, model.op("Concat", *parts, axis=0))
    if how == "scores without a softmax":
        return model.op("Add", x, model.op("MatMul", model.weights("mixer", length, length), x))
    raise ValueError(how)


MIXED = ["mean of a text", "cumulative sum", "reversed", "next token", "next text", "scores without a softmax"]


@pytest.mark.parametrize("how", MIXED)
def test_what_mixes_tokens_reads_them_all(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[dict[str, np.ndarray], Plan]:
        model = Model(COUNTS, LENGTH)
        graph, outputs = model.finish(mixed(model, model.hidden(), how))
        return compute(graph, model.feeds, outputs)

    found, plan = run()
    assert chosen_rows(plan) == 1, "only the head comes after it"
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    want, plan = run()
    assert chosen_rows(plan) == 0
    for name, value in want.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_rows_that_lie_in_two_ways_are_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many texts as tokens, whose places are changed."""
    model = Model([3, 2, 3], 3)
    x = model.hidden()
    graph, outputs = model.finish(model.op("Add", x, model.op("Transpose", x, perm=[1, 0, 2])))
    found, plan = compute(graph, model.feeds, outputs)
    assert chosen_rows(plan) == 1, "only the head comes after it"
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def term(model: Model, x: str, read: str) -> str:
    """A second loss of the hidden states."""
    if "product" in read:
        x = model.op("MatMul", x, model.constant(random(WIDTH, 9)))
    return model.op("ReduceSumSquare", x, keepdims=0)


READ = [
    "an output",
    "a twin",
    "scores",
    "log probabilities",
    "a second loss",
    "a second gradient",
    "a second gradient of a product",
]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("read", READ)
def test_what_else_is_read_is_computed(read: str, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(COUNTS, LENGTH)
    x = model.hidden()
    loss, first = "loss", []
    if turned and "second" in read:
        first = [term(model, x, read)]
    model.lose(x)
    outputs = [x] if read == "an output" else []
    if read == "a twin":
        # Computed once, under the name of the first.
        node = next(node for node in model.graph.nodes if x in node.outputs)
        outputs = [model.op(node.op_type, *node.inputs)]
    if read == "scores":
        outputs = [model.graph.nodes[-1].inputs[0]]
    if read == "log probabilities":
        model.graph.nodes[-1].outputs.append("log_prob")
        outputs = ["log_prob"]
    if "second" in read:
        loss = model.op("Sum", *first, "loss", *([] if first else [term(model, x, read)]))
    if read == "a second loss":
        # If nobody reads the loss, only the gradients of the second are left of it.
        outputs = [loss]
    model.graph.outputs = [Value(name, "float32", None) for name in (loss, *outputs)]
    graph = build_gradients(model.graph, loss, model.trained)
    outputs += [f"{name}_grad" for name in model.trained]
    found, plan = compute(graph, model.feeds, outputs)
    assert chosen_rows(plan) == (0 if read in ("scores", "log probabilities") else 1), "the head is the only one left"
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_steps_that_keep_every_tensor_compute_all_tokens() -> None:
    model = Model(COUNTS, LENGTH)
    graph, outputs = model.finish(model.hidden())
    feeds = {name: TensorType(str(a.dtype), a.shape) for name, a in model.feeds.items()}
    for keep_all, count in ((False, 9), (True, 0)):
        assert chosen_rows(compile_model(graph, feeds, outputs, keep_all=keep_all)) == count


def test_a_loss_that_ignores_no_label_asks_for_nothing() -> None:
    model = Model(COUNTS, LENGTH)
    model.feeds["labels"] = np.abs(model.feeds["labels"]) % CLASSES
    graph, outputs = model.finish(model.hidden(), ignore=None)
    plan = compute(graph, model.feeds, outputs)[1]
    assert chosen_rows(plan) == chosen_rows(plan, clears=1) == 0


@pytest.mark.parametrize(
    ("trained", "same"), [(("first", "second"), False), (("first", "second"), True), (("second",), False)]
)
def test_tokens_of_a_loss_whose_value_is_not_read_are_computed(
    trained: tuple[str, ...], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(COUNTS, LENGTH)
    x = model.op("Reshape", model.hidden(), model.constant(np.array([-1, WIDTH])))
    for name, ignored in (("first", slice(40, None)), ("second", slice(0, 40))):
        labels = np.arange(TEXTS * LENGTH) % CLASSES
        labels[ignored] = -100
        scores = model.op("LogSoftmax", model.op("MatMul", x, model.weights(f"{name}_head", WIDTH, CLASSES)), axis=1)
        fed = "first_labels" if same and name == "second" else model.feed(f"{name}_labels", labels)
        node = Node("NegativeLogLikelihoodLoss", [scores, fed], [name])
        node.attrs["ignore_index"] = -100
        model.graph.nodes.append(node)
    loss = model.op("Sum", *trained)
    model.graph.outputs = [Value(name, "float32", ()) for name in (loss, "first")]
    outputs = ["first", *(f"{name}_grad" for name in model.trained if name != "first_head")]
    graph = build_gradients(model.graph, loss, [name for name in model.trained if name != "first_head"])
    found, plan = compute(graph, model.feeds, outputs)
    assert chosen_rows(plan) == chosen_rows(plan, clears=1) == 0
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_last_layer_leaves_out_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(COUNTS, LENGTH)
    model.feeds["labels"].reshape(TEXTS, LENGTH)[:, : min(COUNTS) - 3] = -100
    graph, outputs = model.finish(model.hidden())
    found, plan = compute(graph, model.feeds, outputs)
    wanted = [
        x for line in plan.text for x in re.findall(r"wanted=(arena\+\d+):.*m=120", line) if "wanted_" not in line
    ]
    assert [wanted.count(x) for x in dict.fromkeys(wanted)] == [14, 4], "the output of attention, and the head"
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


class Merged(Model):
    """Attention over [texts * heads, tokens, width], as torch.bmm is exported."""

    def layer(self, x: str, name: str) -> str:
        length, texts, width = self.sizes[2], len(self.lengths), WIDTH // 2

        def heads(y: str) -> str:
            y = self.op("Reshape", y, self.constant(np.array([texts, length, 2, width])))
            y = self.op("Transpose", y, perm=[0, 2, 1, 3])
            return self.op("Reshape", y, self.constant(np.array([2 * texts, length, width])))

        q, k, v = (heads(self.dense(x, f"{name}_{part}", WIDTH)) for part in "qkv")
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 1]))
        y = self.op("MatMul", self.op("Softmax", self.op("Add", scores, "merged mask"), axis=-1), v)
        y = self.op("Reshape", y, self.constant(np.array([texts, 2, length, width])))
        y = self.op("Transpose", y, perm=[0, 2, 1, 3])
        y = self.op("Reshape", y, self.constant(np.array([texts, length, WIDTH])))
        return self.op("Add", x, self.op("Tanh", self.dense(y, f"{name}_o", WIDTH)))


def test_heads_in_the_axis_of_texts_keep_what_masks_of_each_lead_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Merged(COUNTS, LENGTH)
    mask = np.repeat(model.feeds["mask"], 2, axis=1).reshape(-1, LENGTH, LENGTH)
    model.feed("merged mask", mask)
    model.feeds["labels"].reshape(TEXTS, LENGTH)[:, :8] = -100
    graph, outputs = model.finish(model.hidden())
    found, plan = compute(graph, model.feeds, outputs)
    assert chosen_rows(plan) == 2, "the output of the last attention, and the head"
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("how", ["stored scores", "probabilities are an output", "scores are an output"])
def test_attention_that_is_not_fused_reads_all_keys(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing follows its mask, or something reads what the mask rules out."""
    model = Model(COUNTS, LENGTH)
    model.feeds["labels"].reshape(TEXTS, LENGTH)[:, :8] = -100
    x = model.hidden()
    softmax = [node for node in model.graph.nodes if node.op_type == "Softmax"][-1]
    model.lose(x)
    read = [] if how == "stored scores" else softmax.outputs if "prob" in how else softmax.inputs
    model.graph.outputs += [Value(name, "float32", None) for name in read]
    graph, outputs = model.gradients("loss")
    some = pipelines.without("fuse_attention") if how == "stored scores" else pipeline.PASSES
    monkeypatch.setattr(pipeline, "PASSES", some)
    found, plan = compute(graph, model.feeds, [*outputs, *read])
    assert chosen_rows(plan) == 2, "the output of the last attention, and the head"
    monkeypatch.setattr(pipeline, "PASSES", tuple(each for each in some if each.name != "leave_out_padding"))
    for name, value in compute(graph, model.feeds, [*outputs, *read])[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_masks_that_come_late_are_made_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask of the second layer is made after the products of the first, and leads to tokens of its own."""
    model = Model(COUNTS, LENGTH)
    labels = model.feeds["labels"].reshape(TEXTS, LENGTH)
    for text, count in enumerate(COUNTS):
        labels[text, : count - 1] = -100
    x = model.op("Gather", model.weights("embedding", CLASSES, WIDTH), "words")
    for name, distances in (("first", [0]), ("second", [0, 20])):
        attends = sum(np.eye(LENGTH, k=-distance) for distance in distances)
        mask = model.op("Add", "mask", model.constant(np.where(attends, 0, -np.inf).astype(np.float32)))
        start = len(model.graph.nodes)
        x = model.layer(x, name)
        for node in model.graph.nodes[start:]:
            node.inputs[:] = [mask if each == "mask" else each for each in node.inputs]
    graph, outputs = model.finish(x)
    found, plan = compute(graph, model.feeds, outputs)
    assert chosen_rows(plan) == 9
    kernels = [line.split("(")[0] for line in plan.text]
    assert kernels.count("wanted_tokens") == 3
    assert kernels.index("wanted_tokens") < kernels.index("gemm_f32")
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("how", ["drawn", "joined"])
def test_late_masks_leave_state_and_parts_in_order(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask of the second layer is drawn, so that it reads the random offset, or is written in two parts."""

    def run() -> tuple[dict[str, np.ndarray], Plan]:
        model = Model(COUNTS, LENGTH)
        drop = model.constant(np.float32(0.3)), model.constant(np.array(True))
        x = model.op("Gather", model.weights("embedding", CLASSES, WIDTH), "words")
        x = model.layer(model.op("Dropout", x, *drop), "first")
        if how == "drawn":
            ones = model.constant(np.ones((LENGTH, LENGTH), np.float32))
            mask = model.op("Add", "mask", model.op("Log", model.op("Dropout", ones, *drop)))
            mask = model.op("Max", mask, model.constant(np.where(np.eye(LENGTH), 0, -np.inf).astype(np.float32)))
        else:
            halves = [f"half{k}" for k in range(2)]
            model.graph.nodes.append(Node("Split", ["mask"], halves, {"axis": 2}, "", "halves"))
            mask = model.op("Concat", *(model.op("Add", half, half) for half in halves), axis=2)
        start = len(model.graph.nodes)
        x = model.layer(x, "second")
        for node in model.graph.nodes[start:]:
            node.inputs[:] = [mask if each == "mask" else each for each in node.inputs]
        graph, outputs = model.finish(x)
        return compute(graph, model.feeds, outputs)

    found, plan = run()
    assert chosen_rows(plan) == (9 if how == "drawn" else 0)
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in run()[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


class Tied(Model):
    """Both layers have the same matrices."""

    def weights(self, name: str, *shape: int) -> str:
        name = name.replace("second", "first")
        return name if name in self.feeds else super().weights(name, *shape)


def test_a_matrix_of_two_layers_makes_gradients_of_the_tokens_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tied(COUNTS, LENGTH)
    model.feeds["labels"].reshape(TEXTS, LENGTH)[:, : min(COUNTS) - 3] = -100
    graph, outputs = model.finish(model.hidden())
    found, plan = compute(graph, model.feeds, outputs)
    assert chosen_rows(plan, clears=1) == 9
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_matrix_that_also_reads_tokens_in_another_order_clears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(COUNTS, LENGTH)
    shared = model.weights("shared", WIDTH, WIDTH)
    x = model.op("Transpose", model.op("Tanh", model.op("MatMul", model.hidden(), shared)), perm=[1, 0, 2])
    x = model.op("MatMul", model.op("Relu", x), shared)
    graph, outputs = model.finish(model.op("Transpose", model.op("Tanh", x), perm=[1, 0, 2]))
    found, plan = compute(graph, model.feeds, outputs)
    assert (chosen_rows(plan), chosen_rows(plan, clears=1)) == (10, 9)
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_tokens_in_another_order_are_all_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[dict[str, np.ndarray], Plan]:
        model = Model(COUNTS, LENGTH)
        x = model.op("Relu", model.op("Transpose", model.hidden(), perm=[1, 0, 2]))
        x = model.op("Tanh", model.dense(x, "turned", WIDTH))
        graph, outputs = model.finish(model.op("Transpose", x, perm=[1, 0, 2]))
        return compute(graph, model.feeds, outputs)

    found, plan = run()
    assert chosen_rows(plan) == 9, "the layers and the head"
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in run()[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


FILES = Path(__file__).resolve().parents[1] / "lora" / "quantized"


@pytest.mark.parametrize(
    "name", ["gemma3_float32", "gpt2_int8_blocks", "llama_nbits", "modernbert_float32", "qwen3_float32"]
)
def test_language_models_leave_out_padding_in_every_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load(FILES / f"{name}.onnx")
    adapted = inject(FILES / f"{name}.onnx", rank=2)
    artifacts = adapted.build_artifacts(loss=CrossEntropyLoss(ignore_index=-100), optimizer="AdamW")
    words = np.random.default_rng(0).integers(1, 90, (3, 12))
    # Only a part of the second text counts.
    labels, mask = np.full((3, 12), -100), np.arange(12) < np.array([[12], [7], [3]])
    labels[1, :7] = words[1, 1:8]
    feeds = {"x": words, "attention_mask": mask.astype(np.int64), "labels": labels}
    names = {x.name for x in model.graph.input} | {"labels"}
    products = []

    def train() -> tuple[list[float], np.ndarray]:
        state = CheckpointState.load_checkpoint(artifacts.checkpoint)
        session = TrainingSession(state, artifacts.training_model, None, artifacts.optimizer_model)
        losses = []
        for _ in range(2):
            losses += [float(x) for x in session.train_step({k: v for k, v in feeds.items() if k in names}).values()]
            session.optimizer_step()
            session.lazy_reset_grad()
        parameters = np.array(session.get_contiguous_parameters())
        session.release()
        return losses, parameters

    def count(program: Program, context: Context) -> None:
        padding.leave_out_padding(program, context)
        gradients = gradients_of(program)
        forward = [i for i in program if isinstance(i, Product) and i.a.storage not in gradients and i.m == 36]
        if any(isinstance(i, calls.Attention) for i in program):
            products.append((sum(i.wanted is not None for i in forward), len(forward)))

    counted = [replace(each, run=count) if each.name == "leave_out_padding" else each for each in pipeline.PASSES]
    monkeypatch.setattr(pipeline, "PASSES", counted)
    found = train()
    assert products and all(n == total > 5 for n, total in products)
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    want = train()
    assert found[0] == want[0]
    np.testing.assert_array_equal(found[1], want[1])
