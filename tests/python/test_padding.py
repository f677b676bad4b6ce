"""Products leave out the tokens that no counted label depends on: the pass."""

import re
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.python import pipelines
from tests.python.kernel_cases import random
from tests.python.sessions import take_steps
from tests.python.test_attention import Attention, compute

from trainweb import TrainingSession
from trainweb.autodiff.gradient import build_gradients
from trainweb.backend.plan import Plan
from trainweb.compiler import pipeline
from trainweb.compiler.compile import compile_model
from trainweb.compiler.context import Context
from trainweb.compiler.passes import head, padding
from trainweb.compiler.passes.padding import Product
from trainweb.compiler.rows import laid_out
from trainweb.ir import calls
from trainweb.ir.instructions import Rows
from trainweb.ir.program import Program
from trainweb.ir.shapes import TensorType
from trainweb.lora import inject
from trainweb.model.graph import Graph, Node, Value
from trainweb.onnxblock.loss import CrossEntropyLoss

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
    assert not reasons(graph, model.feeds, outputs)
    want = dict.fromkeys(outputs, np.zeros(()))
    for count in COUNTS:
        alone = Model([count], count, causal=causal)
        graph, _ = alone.finish(alone.hidden())
        for name, value in compute(graph, alone.feeds, outputs)[0].items():
            want[name] = want[name] + value
    for name in outputs:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-5, err_msg=name)


def reasons(graph: Graph, feeds: dict[str, np.ndarray], outputs: list[str]) -> dict[str, str]:
    """Why products compute all tokens, by node."""
    programs: dict[str, Program] = {}
    types = {name: TensorType(str(value.dtype), value.shape) for name, value in feeds.items()}
    compile_model(graph, types, outputs, observe=programs.__setitem__)
    return {r.node: r.reason for r in programs["leave_out_padding"].refusals if r.what == "padding"}


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
    if how == "picked tokens":
        places = np.broadcast_to(np.arange(length)[::-1, None], (len(model.lengths), length, WIDTH))
        return model.op("Add", x, model.op("GatherElements", x, model.constant(places.copy()), axis=1))
    if how == "shifted":
        pads = model.constant(np.array([0, -1, 0, 0, 1, 0]))
        return model.op("Add", x, model.op("Pad", x, pads, model.constant(np.float32(0))))
    if how == "normalized":
        return model.op("LayerNormalization", x, model.constant(np.ones((length, WIDTH), np.float32)), axis=1)
    if how == "weighed":
        return model.op("Mul", x, model.op("Softmax", x, axis=1))
    if how == "scores without a softmax":
        return model.op("Add", x, model.op("MatMul", model.weights("mixer", length, length), x))
    raise ValueError(how)


IN_TWO_WAYS = "NODE and a later node read rows of 'Add44' in two ways"
MIXED = {
    "mean of a text": ("ReduceMean45", IN_TWO_WAYS),
    "cumulative sum": ("CumSum45", "how NODE reads rows is not known"),
    "reversed": ("Slice45", "NODE reads all rows"),
    "next token": ("Pad46", "NODE reads all rows"),
    "next text": ("Concat47", "NODE reads all rows"),
    "scores without a softmax": ("MatMul45", IN_TWO_WAYS),
    "picked tokens": ("GatherElements45", "NODE reads all rows"),
    "shifted": ("Pad45", "NODE reads all rows"),
    "normalized": ("LayerNormalization45", "NODE reads all rows"),
    "weighed": ("Softmax45", "NODE reads all rows"),
}
"""The last node before the loss that mixes tokens, and the reason."""


@pytest.mark.parametrize("how", MIXED)
def test_what_mixes_tokens_reads_them_all(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[dict[str, np.ndarray], Plan]:
        model = Model(COUNTS, LENGTH)
        graph, outputs = model.finish(mixed(model, model.hidden(), how))
        return compute(graph, model.feeds, outputs)

    found, plan = run()
    assert chosen_rows(plan) == 1, "only the head comes after it"
    model = Model(COUNTS, LENGTH)
    graph, outputs = model.finish(mixed(model, model.hidden(), how))
    name, reason = MIXED[how]
    node = f"{name.rstrip('0123456789')} node 'node {name}'"
    assert reasons(graph, model.feeds, outputs) == {"MatMul node 'node MatMul1'": reason.replace("NODE", node)}
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
    return model.op("ReduceSum" if "sum" in read else "ReduceSumSquare", x, keepdims=0)


OTHER_GRADIENT = "the gradient of another value is added"
READ = {
    "an output": {"'Add44' is an output of the step"},
    "a twin": {"'Add44' is an output of the step"},
    "scores": {"'MatMul46' is an output of the step"},
    "log probabilities": {
        "SoftmaxCrossEntropyLoss node making 'loss' reads no matrix of scores, or its logarithms are read"
    },
    "a second loss": {"'Sum49' is an output of the step", OTHER_GRADIENT},
    "a second gradient": {"Sum node 'AccumulateGrad_Add44_grad' reads all rows", OTHER_GRADIENT},
    "a second gradient of a product": {"Sum node 'AccumulateGrad_Add44_grad' reads all rows", OTHER_GRADIENT},
    "a second gradient of a sum": {OTHER_GRADIENT},
    "a second gradient of a sum of a product": {OTHER_GRADIENT},
}
"""Why products compute all tokens."""


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
    assert set(reasons(graph, model.feeds, outputs).values()) == READ[read]
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("sign", ["", "Neg"])
def test_parts_with_a_second_gradient_are_computed(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One half of the numbers of each token goes to the loss, the other to a sum that does not keep its values."""
    model = Model(COUNTS, LENGTH)
    halves = ["to the loss", "to the sum"]
    model.graph.nodes.append(Node("Split", [model.hidden()], list(halves), {"axis": 2}, "", "halves"))
    halves[0] = model.op("Tanh", model.op("MatMul", halves[0], model.weights("widening", WIDTH // 2, WIDTH)))
    model.lose(halves[0])
    if sign:
        halves[1] = model.op(sign, halves[1])
    loss = model.op("Sum", "loss", model.op("ReduceSum", halves[1], keepdims=0))
    # Nobody reads the sum of both.
    model.graph.outputs = [Value(name, "float32", ()) for name in (loss, "loss")]
    graph, outputs = model.gradients(loss)
    found, plan = compute(graph, model.feeds, outputs)
    assert chosen_rows(plan) == chosen_rows(plan, clears=1) == 2, "the head, and the product before it"
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(graph, model.feeds, outputs)[0].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


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
    ("trained", "labels"),
    [
        (("first", "second"), "two"),
        (("first", "second"), "one"),
        (("second",), "two"),
        (("second",), "other are ignored"),
    ],
)
def test_tokens_of_a_loss_whose_value_is_not_read_are_computed(
    trained: tuple[str, ...], labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(COUNTS, LENGTH)
    x = model.op("Reshape", model.hidden(), model.constant(np.array([-1, WIDTH])))
    for name, ignored in (("first", slice(40, None)), ("second", slice(0, 40))):
        classes = np.arange(TEXTS * LENGTH) % CLASSES
        if labels != "other are ignored":
            classes[ignored] = -100
        scores = model.op("LogSoftmax", model.op("MatMul", x, model.weights(f"{name}_head", WIDTH, CLASSES)), axis=1)
        fed = "first_labels" if labels != "two" and name == "second" else model.feed(f"{name}_labels", classes)
        node = Node("NegativeLogLikelihoodLoss", [scores, fed], [name])
        node.attrs["ignore_index"] = -100 if labels != "other are ignored" else len(name)
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
    (reason,) = reasons(graph, model.feeds, outputs).values()
    assert re.fullmatch(r"keys of attention from MatMul node .* may be no tokens of its text", reason)
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
    said = {f"{name!r} is an output of the step" for name in read}
    if "scores" in how:
        said.add(f"Softmax node 'node {softmax.outputs[0]}' is not fused and reads all keys")
    assert set(reasons(graph, model.feeds, [*outputs, *read]).values()) == said
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

    def step() -> tuple[Graph, dict[str, np.ndarray], list[str]]:
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
        return graph, model.feeds, outputs

    found, plan = compute(*step())
    assert chosen_rows(plan) == (9 if how == "drawn" else 0)
    said = [] if how == "drawn" else ["labels or a mask are made later"]
    assert list(reasons(*step()).values()) == said
    monkeypatch.setattr(pipeline, "PASSES", pipelines.without("leave_out_padding"))
    for name, value in compute(*step())[0].items():
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
        session = TrainingSession(**artifacts)
        losses = take_steps(session, {k: v for k, v in feeds.items() if k in names}, 2)
        parameters = np.array(session.get_contiguous_parameters())
        session.release()
        return losses, parameters

    def count(program: Program, context: Context) -> None:
        padding.leave_out_padding(program, context)
        forward = [i for i in program if isinstance(i, Product) and not i.a.storage.is_slope and i.m == 36]
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
