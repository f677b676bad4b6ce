"""Fused attention: what stored scores give, forward and all gradients, and nothing of the scores' size in the plan."""

import math
import re
import struct
from collections.abc import Callable
from typing import Self

import numpy as np
import pytest
from numpy.typing import ArrayLike
from tests.ops.op_runner import with_loss
from tests.python import pipelines

from trainweb.autodiff.gradient import build_gradients
from trainweb.backend.plan import Plan
from trainweb.compiler import compile_model
from trainweb.ir.layout import HEADER_WORDS
from trainweb.ir.program import Program
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.inference import InferenceCore

TOLERANCE = 2e-5
"""Of the largest element: sums in another order, over at most a few hundred terms."""
MASKED = -1e9
Mask = Callable[["Attention", str], str]


class Attention:
    """A graph of softmax attention as exporters write it; `feeds` are its inputs, `graph.outputs` is y."""

    def __init__(self, batch: int, heads: int, m: int, n: int, d: int, e: int = 0, seed: int = 0) -> None:
        self.sizes = (batch, heads, m, n, d, e or d)
        self.rng = np.random.default_rng(seed)
        self.graph = Graph("attention", opsets={"": 17, "com.microsoft": 1})
        self.feeds: dict[str, np.ndarray] = {}
        self.trained: list[str] = []

    def feed(self, name: str, value: np.ndarray, *, trained: bool = False) -> str:
        self.feeds[name] = value
        self.graph.inputs.append(Value(name, from_numpy(name, value).dtype, value.shape))
        self.trained += [name] * trained
        return name

    def normal(self, name: str, *shape: int) -> str:
        return self.feed(name, self.rng.standard_normal(shape).astype(np.float32), trained=True)

    def constant(self, value: ArrayLike) -> str:
        name = f"constant{len(self.graph.initializers)}"
        self.graph.initializers[name] = from_numpy(name, np.asarray(value))
        return name

    def op(self, op_type: str, *inputs: str, **attrs: int | list[int]) -> str:
        name = f"{op_type}{len(self.graph.nodes)}"
        self.graph.nodes.append(Node(op_type, list(inputs), [name], dict(attrs), "", f"node {name}"))
        return name

    def split_heads(self, x: str, length: int, width: int, perm: tuple[int, ...]) -> str:
        batch, heads = self.sizes[:2]
        shape = self.constant(np.array([batch, length, heads, width]))
        return self.op("Transpose", self.op("Reshape", x, shape), perm=list(perm))

    def operands(self, layout: str) -> tuple[str, str, str]:
        """q, k transposed, v."""
        batch, heads, m, n, d, e = self.sizes
        if layout == "heads":
            q, k, v = (self.normal(x, batch, heads, *s) for x, s in (("q", (m, d)), ("k", (n, d)), ("v", (n, e))))
            return q, self.op("Transpose", k, perm=[0, 1, 3, 2]), v
        if layout == "flat":  # torch.bmm
            q, k, v = (self.normal(x, batch * heads, *s) for x, s in (("q", (m, d)), ("k", (n, d)), ("v", (n, e))))
            return q, self.op("Transpose", k, perm=[0, 2, 1]), v
        if layout == "one head of keys":  # Falcon and GPT BigCode
            shapes = (("q", (heads, m, d)), ("k", (1, n, d)), ("v", (1, n, e)))
            q, k, v = (self.normal(x, batch, *s) for x, s in shapes)
            return q, self.op("Transpose", k, perm=[0, 1, 3, 2]), v
        if layout == "joined":
            assert m == n and d == e
            qkv = self.normal("qkv", batch, n, 3 * heads * d)
            parts = [f"part{k}" for k in range(3)]
            widths = self.constant(np.array([heads * d] * 3))
            self.graph.nodes.append(Node("Split", [qkv, widths], parts, {"axis": 2}, "", "node split"))
            q, k, v = parts
        else:
            q, k, v = (self.normal(x, batch, r, heads * w) for x, r, w in (("q", m, d), ("k", n, d), ("v", n, e)))
        return (
            self.split_heads(q, m, d, (0, 2, 1, 3)),
            self.split_heads(k, n, d, (0, 2, 3, 1)),
            self.split_heads(v, n, e, (0, 2, 1, 3)),
        )

    def build(
        self,
        layout: str = "separate",
        scale: str = "mul",
        mask: str = "none",
        dropout: float = 0,
        *,
        guard: bool = False,
    ) -> Self:
        batch, heads, m, _, d, e = self.sizes
        q, k, v = self.operands(layout)
        factor = np.float32(1 / math.sqrt(d))
        if scale == "q":
            q = self.op("Mul", q, self.constant(factor))
        if scale == "roots":  # torch's scaled_dot_product_attention
            q, k = (self.op("Mul", x, self.constant(np.sqrt(factor))) for x in (q, k))
        s = self.op("MatMul", q, k)
        if scale == "mul":
            s = self.op("Mul", s, self.constant(factor))
        if scale == "div":
            s = self.op("Div", s, self.constant(1 / factor))
        p = self.op("Softmax", MASKS[mask](self, s), axis=-1)
        if guard:  # torch's dynamo exporter
            p = self.op("Where", self.op("IsNaN", p), self.constant(np.float32(0)), p)
        if dropout:
            p = self.op("Dropout", p, self.constant(np.float32(dropout)), self.constant(np.array(True)))
        y = self.op("MatMul", p, v)
        if layout not in ("heads", "flat", "one head of keys"):
            y = self.op("Transpose", y, perm=[0, 2, 1, 3])
            y = self.op("Reshape", y, self.constant(np.array([batch, m, heads * e])))
        self.graph.outputs = [Value(y, "float32", None)]
        return self

    @property
    def causal(self) -> np.ndarray:
        """The positions that each query may read: [m, n]; the last query sees every key."""
        m, n = self.sizes[2:4]
        return np.tri(m, n, max(0, n - m), dtype=bool)


def added(value: Callable[[Attention], np.ndarray], *, fed: bool = False) -> Mask:
    def apply(a: Attention, scores: str) -> str:
        mask = value(a).astype(np.float32)
        return a.op("Add", scores, a.feed("mask", mask) if fed else a.constant(mask))

    return apply


def padding(a: Attention) -> np.ndarray:
    """The last keys of each sample are padding: [batch, 1, 1, n]."""
    batch, _, _, n = a.sizes[:4]
    lengths = 1 + np.arange(batch) * 7 % n
    return np.arange(n) < lengths[:, None, None, None]


def where(keep: Callable[[Attention], np.ndarray], fill: float, *, inverse: bool = False) -> Mask:
    def apply(a: Attention, scores: str) -> str:
        condition, value = keep(a), a.constant(np.float32(fill))
        condition = a.feed("condition", ~condition if inverse else condition)
        return a.op("Where", condition, value, scores) if inverse else a.op("Where", condition, scores, value)

    return apply


def added_then_where(a: Attention, scores: str) -> str:
    bias = a.rng.standard_normal((a.sizes[1], *a.sizes[2:4]))
    return where(lambda a: a.causal, MASKED)(a, added(lambda a: bias)(a, scores))


def where_then_added(a: Attention, scores: str) -> str:
    scores = where(lambda a: a.causal, -math.inf)(a, scores)
    return added(lambda a: np.where(padding(a), 0, MASKED), fed=True)(a, scores)


def two_added(a: Attention, scores: str) -> str:
    """As T5: a bias of each head, and padding, of which one is made after the product."""
    scores = MASKS["bias"](a, scores)
    padded = a.feed("padding", np.where(padding(a), 0, MASKED).astype(np.float32))
    return a.op("Add", a.op("Mul", padded, a.constant(np.float32(1))), scores)


def cast_between(a: Attention, scores: str) -> str:
    return a.op("Cast", MASKS["causal"](a, scores), to=1)


def sink_and_window(a: Attention) -> np.ndarray:
    """The first keys and the latest ones: what is masked lies between."""
    m, n = a.sizes[2:4]
    return a.causal & ((np.arange(n) < 3) | ~np.tri(m, n, max(0, n - m) - 9, dtype=bool))


def late_keys(a: Attention) -> np.ndarray:
    """Every other row sees no key of the first block: what comes later counts all the same."""
    m, n = a.sizes[2:4]
    return np.where(np.arange(n) >= (66 * (np.arange(m) % 2))[:, None], 0, -math.inf)


MASKS: dict[str, Mask] = {
    "none": lambda a, scores: scores,
    "causal": added(lambda a: np.where(a.causal, 0, MASKED)[None, None]),
    "causal -inf": added(lambda a: np.where(a.causal, 0, -math.inf)),
    "sink and window": added(lambda a: np.where(sink_and_window(a), 0, -1e4)),
    "causal of each batch": added(lambda a: np.where(a.causal & padding(a), 0, -1e4), fed=True),
    "padding": added(lambda a: np.where(padding(a), 0, MASKED), fed=True),
    "late keys -inf": added(late_keys),
    "reversed padding": added(lambda a: np.where(padding(a)[..., ::-1], 0, MASKED)),
    "bias": added(lambda a: a.rng.standard_normal((a.sizes[1], *a.sizes[2:4]))),
    "bias of each score": added(lambda a: a.rng.standard_normal(a.sizes[:4]), fed=True),
    "where": where(lambda a: a.causal, MASKED),
    "where not": where(lambda a: a.causal[None, None], -math.inf, inverse=True),
    "where padding": where(padding, -1e4),
    "bias then where": added_then_where,
    "where then padding": where_then_added,
    "two added": two_added,
    "causal, cast": cast_between,
}


def compute(graph: Graph, feeds: dict[str, np.ndarray], outputs: list[str]) -> tuple[dict[str, np.ndarray], Plan]:
    """Outputs by name, and the plan that made them."""
    graph = graph.copy()
    graph.outputs = [Value(name, "float32", None) for name in outputs]
    core = InferenceCore(graph)
    try:
        tensors = {n: from_numpy(n, feeds[n]) for n in core.inputs}
        results = core.run(tensors)
        plan = core.plan({n: TensorType(t.dtype, t.shape) for n, t in tensors.items()}).plan
        return {n: to_numpy(t).copy() for n, t in results.items()}, plan
    finally:
        core.host.release()


def results_of(a: Attention) -> tuple[dict[str, np.ndarray], Plan]:
    """y and the gradients of a weighted sum of it."""
    y = a.graph.outputs[0].name
    (shape,) = (x.shape for x in compute(a.graph, a.feeds, [y])[0].values())
    weights = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    extended = build_gradients(with_loss(a.graph, [(y, weights)]), "loss", a.trained)
    return compute(extended, a.feeds | {"w0": weights}, [y, *(f"{n}_grad" for n in a.trained)])


def without_fusion(a: Attention) -> tuple[dict[str, np.ndarray], Plan]:
    with pipelines.passes(pipelines.without("fuse_attention")):
        return results_of(a)


def kernels(plan: Plan) -> list[str]:
    return [re.split(r"[( ]", line)[0] for line in plan.text]


def check(a: Attention, tolerance: float = TOLERANCE) -> Plan:
    """Fused and unfused give the same; returns the fused plan."""
    results, plan = results_of(a)
    expected, stored = without_fusion(a)
    assert "softmax_grad_f32" in kernels(stored)
    assert kernels(plan).count("attention_f32") == kernels(plan).count("attention_gradient_f32") == 1
    assert not {"softmax_f32", "softmax_grad_f32"} & set(kernels(plan))
    for name, value in expected.items():
        assert np.array_equal(np.isnan(results[name]), np.isnan(value)), name
        finite = ~np.isnan(value)
        error = np.abs(results[name] - value)[finite].max(initial=0) / max(1, np.abs(value[finite]).max(initial=0))
        assert error < tolerance, f"{name} is off by {error}"
    return plan


SHAPES = [
    (2, 3, 64, 64, 32, 0),
    (1, 1, 7, 7, 4, 0),
    (2, 2, 65, 65, 5, 0),
    (1, 2, 200, 200, 16, 0),
    (2, 1, 33, 130, 12, 20),
    (1, 3, 130, 9, 8, 7),
    (3, 1, 1, 70, 16, 0),
    (2, 2, 5, 2, 3, 0),
    (1, 1, 300, 300, 64, 0),
    (1, 1, 70, 70, 256, 256),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_shapes(shape: tuple[int, ...], mask: str) -> None:
    check(Attention(*shape).build(mask=mask))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [(2, 3, 70, 70, 8, 8), (3, 2, 21, 90, 8, 8)], ids=str)
def test_masks(mask: str, shape: tuple[int, ...]) -> None:
    check(Attention(*shape).build(mask=mask))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_dropout_drops_what_it_would_drop_of_stored_probabilities(shape: tuple[int, ...], mask: str) -> None:
    plan = check(Attention(*shape).build(mask=mask, dropout=0.3))
    assert "dropout_f32" not in kernels(plan)


@pytest.mark.parametrize("layout", ["separate", "joined", "heads", "flat", "one head of keys"])
@pytest.mark.parametrize("scale", ["mul", "div", "q", "roots", "none"])
def test_ways_to_write_it(layout: str, scale: str) -> None:
    mask = "causal -inf" if layout == "flat" else "padding"
    check(Attention(2, 3, 40, 40, 8).build(layout, scale, mask))


@pytest.mark.parametrize("scale", ["mul", "roots"])
def test_gradients_of_keys_that_all_heads_share(scale: str) -> None:
    a = Attention(2, 3, 20, 30, 8).build("one head of keys", scale)
    q, k, v = (a.feeds[x].astype(np.float64) for x in "qkv")
    e = np.exp(q @ k.swapaxes(2, 3) / math.sqrt(8))
    p = e / e.sum(-1, keepdims=True)
    dy = np.random.default_rng(9).standard_normal(q.shape).astype(np.float32)
    dp = dy @ v.swapaxes(2, 3)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(8)
    expected = {"q_grad": ds @ k, "k_grad": (ds.swapaxes(2, 3) @ q).sum(1, keepdims=True)}
    expected["v_grad"] = (p.swapaxes(2, 3) @ dy).sum(1, keepdims=True)
    results, plan = results_of(a)
    assert kernels(plan).count("attention_gradient_f32") == 1
    assert "strided_copy" not in kernels(plan)
    for name, value in expected.items():
        assert np.abs(results[name] - value).max() < TOLERANCE * np.abs(value).max(), name


def test_probabilities_may_be_cast_to_their_own_type() -> None:
    a = Attention(2, 2, 40, 40, 8)
    q, k, v = a.operands("heads")
    p = a.op("Cast", a.op("Softmax", a.op("MatMul", q, k), axis=-1), to=1)
    y = a.op("MatMul", a.op("CastLike", p, v), v)
    a.graph.outputs = [Value(y, "float32", None)]
    check(a)


@pytest.mark.parametrize("trained", [["q"], ["k"], ["v"], ["q", "v"], ["k", "v"], ["q", "k"]], ids="".join)
@pytest.mark.parametrize("dropout", [0, 0.5])
def test_only_some_gradients_are_wanted(trained: list[str], dropout: float) -> None:
    a = Attention(1, 2, 70, 70, 8).build(mask="causal", dropout=dropout)
    a.trained = trained
    results, plan = results_of(a)
    with pipelines.passes(pipelines.without("fuse_attention")):
        expected = results_of(a)[0]
    assert "softmax_f32" not in kernels(plan)
    for name, value in expected.items():
        assert np.abs(results[name] - value).max() < TOLERANCE * max(1, np.abs(value).max()), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dropout", [0, 0.3])
def test_guarded_probabilities(shape: tuple[int, ...], dropout: float) -> None:
    plan = check(Attention(*shape).build(mask="causal", dropout=dropout, guard=True))
    assert not any("select" in line or "ne(" in line for line in plan.text)


def masked_rows(value: float) -> Mask:
    def rows(a: Attention) -> np.ndarray:
        mask = np.where(a.causal, 0, value)
        mask[[0, 3, a.sizes[2] - 1]] = value
        return mask

    return added(rows)


@pytest.mark.parametrize("name", ["added -inf", "added -1e9", "where -1e9", "where -inf"])
def test_rows_without_any_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(a: Attention) -> np.ndarray:
        rows = a.causal.copy()
        rows[[0, 3, a.sizes[2] - 1]] = False
        return rows

    kind, value = name.split()
    monkeypatch.setitem(MASKS, name, masked_rows(float(value)) if kind == "added" else where(keep, float(value)))
    a = Attention(2, 2, 70, 70, 8).build(mask=name)
    check(a)
    y = results_of(a)[0][a.graph.outputs[0].name]
    assert np.isnan(y[:, [0, 3, 69]]).all() == value.endswith("inf") and np.isfinite(y[:, [1, 2, 4, 68]]).all()


@pytest.mark.parametrize("n", [40, 70])
def test_guarded_rows_without_any_key_are_zeros_and_have_no_gradient(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in PyTorch. Stored probabilities have NaN in these gradients."""
    monkeypatch.setitem(MASKS, "some", masked_rows(-math.inf))
    a = Attention(2, 2, n, n, 8).build("heads", mask="some", guard=True)
    results, plan = results_of(a)
    assert kernels(plan).count("attention_f32") == kernels(plan).count("attention_gradient_f32") == 1
    q, k, v = (a.feeds[x].astype(np.float64) for x in "qkv")
    kept = a.causal.copy()
    kept[[0, 3, n - 1]] = False
    e = np.exp(q @ k.swapaxes(2, 3) / math.sqrt(8)) * kept
    p = e / np.where(kept.any(1), 1, np.inf)[:, None] / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    dy = np.random.default_rng(9).standard_normal(q.shape)
    dp = dy @ v.swapaxes(2, 3)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(8)
    expected = {"q_grad": ds @ k, "k_grad": ds.swapaxes(2, 3) @ q, "v_grad": p.swapaxes(2, 3) @ dy}
    for name, value in {a.graph.outputs[0].name: p @ v, **expected}.items():
        assert np.abs(results[name] - value).max() < TOLERANCE * max(1, np.abs(value).max()), name


def test_a_guard_that_is_read_elsewhere_stays() -> None:
    a = Attention(1, 2, 40, 40, 8).build(guard=True)
    (is_nan,) = [node.outputs[0] for node in a.graph.nodes if node.op_type == "IsNaN"]
    count = a.op("Cast", is_nan, to=1)
    y = a.graph.outputs[0].name
    results, plan = compute(a.graph, a.feeds, [y, count])
    assert "softmax_f32" in kernels(plan) and "attention_f32" not in kernels(plan)
    assert not results[count].any()


@pytest.mark.parametrize(("size", "mask"), [(30.0, "causal"), (1e4, "causal"), (1e4, "sink and window")])
def test_large_scores(size: float, mask: str) -> None:
    """Even so large that the mask rules nothing out."""
    a = Attention(1, 2, 70, 70, 8).build(mask=mask)
    a.feeds["q"] *= np.float32(size)
    # A rounding of a score is an error of the probability relative to it.
    largest = size * np.abs(a.feeds["k"]).max() * 8
    check(a, TOLERANCE + 2.0**-24 * largest)


def test_a_nan_stays_where_it_was() -> None:
    a = Attention(2, 2, 70, 70, 8).build()
    a.feeds["q"][1, 66] = np.nan
    check(a)


def arena_buffers(plan: Plan) -> list[int]:
    """Sizes of what the instructions use in the arena."""
    words = struct.unpack(f"<{len(plan.words) // 4}I", plan.words)
    n_segments, n_buffers = words[5], words[6]
    at = HEADER_WORDS + 3 * n_segments
    return [words[at + 3 * k + 2] for k in range(n_buffers) if words[at + 3 * k] == 0]


@pytest.mark.parametrize(
    ("mask", "dropout"), [("none", 0), ("causal", 0), ("where", 0), ("padding", 0), ("causal", 0.1)]
)
def test_nothing_has_the_size_of_the_scores(mask: str, dropout: float) -> None:
    a = Attention(2, 4, 256, 256, 8).build(mask=mask, dropout=dropout)
    scores = 4 * 2 * 4 * 256 * 256
    plan = check(a)
    assert max(arena_buffers(plan)) <= scores // 4
    assert scores in arena_buffers(without_fusion(a)[1])
    assert plan.arena_bytes < scores // 2


@pytest.mark.parametrize("shape", [(2, 3, 5, 7, 4, 6), (1, 2, 70, 33, 8, 3)], ids=str)
@pytest.mark.parametrize("dropout", [0, 0.5])
def test_flops_are_those_of_the_products_it_stands_for(shape: tuple[int, ...], dropout: float) -> None:
    a = Attention(*shape).build("heads", dropout=dropout)
    batch, heads, m, n, d, e = shape
    _, forward = compute(a.graph, a.feeds, [a.graph.outputs[0].name])
    _, both = results_of(a)
    assert "attention_gradient_f32" in kernels(both)
    # [m, d] by [d, n] for the scores and [m, n] by [n, e] for the result; a multiplication and an addition each.
    pairs = 2 * batch * heads * m * n
    assert forward.flops == pairs * (d + e)
    # dy [m, e] by v' [e, n] and weights' [n, m] by dy [m, e]; ds [m, n] by k [n, d] and ds' [n, m] by q [m, d].
    assert both.flops - forward.flops == pairs * (e + e + d + d)


def test_one_mask_for_all_layers() -> None:
    a = Attention(1, 2, 16, 16, 4)
    keep = a.feed("keep", a.causal)
    y = a.normal("x", 1, 2, 16, 4)
    for _ in range(3):
        s = a.op("MatMul", y, a.op("Transpose", y, perm=[0, 1, 3, 2]))
        y = a.op("MatMul", a.op("Softmax", a.op("Where", keep, s, a.constant(np.float32(MASKED))), axis=-1), y)
    a.graph.outputs = [Value(y, "float32", None)]
    results, plan = results_of(a)
    expected = without_fusion(a)[0]
    assert kernels(plan).count("attention_gradient_f32") == 3
    assert sum("select" in line for line in plan.text) == 1
    for name, value in expected.items():
        assert np.abs(results[name] - value).max() < TOLERANCE * max(1, np.abs(value).max()), name


def test_inference_keeps_no_statistics_and_the_group_has_a_name() -> None:
    a = Attention(1, 2, 20, 20, 8).build(mask="causal")
    _, plan = compute(a.graph, a.feeds, [a.graph.outputs[0].name])
    (line,) = [text for text in plan.disassemble().splitlines() if "attention_f32" in text]
    assert "top=null, inverse=null" in line
    assert re.search(r"; attention from MatMul node 'node MatMul\d+' to MatMul node 'node MatMul\d+'$", line)


def unusual(name: str) -> tuple[Attention, list[str]]:
    """Attention that must keep its scores, and what else is an output."""
    a = Attention(1, 2, 12, 12, 300 if name == "wide heads" else 8)
    q, k, v = a.operands("heads")
    s = a.op("MatMul", q, k)
    if name == "trained bias":
        s = a.op("Add", s, a.normal("bias", 2, 12, 12))
    if name == "trained bias of all heads":
        s = a.op("Add", s, a.normal("bias", 12, 12))
    if name == "tanh of scores":
        s = a.op("Tanh", s)
    if name == "three masks":
        for mask in ("causal", "bias", "sink and window"):
            s = MASKS[mask](a, s)
    if name == "two conditions":
        s = where(lambda a: ~a.causal, -1e4, inverse=True)(a, where(lambda a: sink_and_window(a), -1e4)(a, s))
    if name == "finite condition, then a mask":
        s = MASKS["causal"](a, MASKS["where padding"](a, s))
    if name == "scaled after a mask":
        s = a.op("Mul", MASKS["causal"](a, s), a.constant(np.float32(0.3)))
    if name == "fed scale":
        s = a.op("Mul", s, a.feed("scale", np.float32([0.3])))
    if name == "keys scaled after their transposition":
        s = a.op("MatMul", q, a.op("Mul", k, a.feed("scale", np.float32([0.3]))))
    if name == "condition of each score":
        condition = a.feed("condition", a.rng.random((1, 2, 12, 12)) < 0.7)
        s = a.op("Where", condition, s, a.constant(np.float32(MASKED)))
    p = a.op("Softmax", s, axis=2 if name == "other axis" else -1)
    weights, kept = p, "kept elements"
    if "dropout" in name:
        training = a.constant(np.array(True))
        weights = "weights"
        a.graph.nodes.append(Node("Dropout", [p, "", training], [weights, kept], {}, "", "dropout"))
    if name == "bias after softmax":
        weights = a.op("Add", p, a.constant(np.float32(0.1)))
    y = a.op("MatMul", weights, v)
    if name == "probabilities used twice":
        y = a.op("Add", y, a.op("MatMul", p, q))
    a.graph.outputs = [Value(y, "float32", None)]
    if name == "mask of dropout wanted":
        return a, [a.op("Cast", kept, to=1)]
    wanted = {"scores wanted": [s], "probabilities wanted": [p], "probabilities before dropout wanted": [p]}
    return a, wanted.get(name, [])


SCORES_READ = "another node reads the scores, or they are an output"
PROBABILITIES_READ = "another node reads the probabilities, or they are an output"
GRADIENT_READ = "another node reads the gradient of the scores, as that of a trained mask does"
REASONS = {
    "wide heads": "a head has more than 256 columns",
    "trained bias": GRADIENT_READ,
    "trained bias of all heads": GRADIENT_READ,
    "tanh of scores": "Tanh node 'node Tanh2' changes the scores",
    "three masks": "more than 2 masks are added",
    "two conditions": "two conditions mask the scores",
    "finite condition, then a mask": "a mask is added after a condition with a finite number",
    "scaled after a mask": "the scores are scaled after a mask",
    "fed scale": "the scale is not a constant",
    "keys scaled after their transposition": "a node computes on the keys after they were transposed",
    "condition of each score": "a condition masks each score of each item of the batch",
    "other axis": "the softmax is not along the last axis",
    "bias after softmax": "",
    "probabilities used twice": PROBABILITIES_READ,
    "scores wanted": SCORES_READ,
    "probabilities wanted": PROBABILITIES_READ,
    "mask of dropout wanted": "",
    "probabilities before dropout wanted": PROBABILITIES_READ,
}
"""What the pass says of each; nothing where no change of the model would help."""


@pytest.mark.parametrize("name", REASONS)
def test_what_does_not_fit_stays_as_it_was_and_the_pass_says_why(name: str) -> None:
    a, others = unusual(name)
    outputs, graph = [a.graph.outputs[0].name, *others], a.graph.copy()
    if not others:
        graph = build_gradients(
            with_loss(graph, [(outputs[0], np.ones((1, 2, 12, a.sizes[5]), np.float32))]), "loss", a.trained
        )
        outputs += [f"{n}_grad" for n in a.trained]
        graph.inputs = [v for v in graph.inputs if v.name != "w0"]
        graph.initializers["w0"] = from_numpy("w0", np.ones((1, 2, 12, a.sizes[5]), np.float32))
    types = {n: TensorType(str(value.dtype), value.shape) for n, value in a.feeds.items()}
    programs: dict[str, Program] = {}
    plan = compile_model(graph, types, outputs, observe=programs.__setitem__)
    assert "softmax_f32" in kernels(plan) and "attention_f32" not in kernels(plan)
    refusals = programs["fuse_attention"].refusals
    assert [(r.what, r.reason) for r in refusals] == ([("attention", REASONS[name])] if REASONS[name] else [])
    assert all("Softmax" in r.node for r in refusals)


def test_a_softmax_of_classes_is_no_attention() -> None:
    a = Attention(1, 2, 12, 12, 8)
    q, k, _ = a.operands("heads")
    y = a.op("Softmax", a.op("Tanh", a.op("MatMul", q, k)), axis=-1)
    programs: dict[str, Program] = {}
    types = {n: TensorType(str(value.dtype), value.shape) for n, value in a.feeds.items()}
    compile_model(a.graph, types, [y], observe=programs.__setitem__)
    assert not programs["fuse_attention"].refusals
