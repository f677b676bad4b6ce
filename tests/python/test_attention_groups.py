"""Heads of queries that share heads of keys and values: neither these nor their gradients are stored for each."""

import re
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.python import pipelines
from tests.python.kernel_runner import KernelRunner
from tests.python.plan_builder import PlanFailed
from tests.python.products import product
from tests.python.test_attention import (
    MASKS,
    TOLERANCE,
    Attention,
    arena_buffers,
    check,
    compute,
    kernels,
    results_of,
    without_fusion,
)
from tests.python.test_compiler_hazards import RandomProgram
from tests.python.test_compiler_hazards import check as check_program
from tests.python.test_pass_guards import Written

from trainweb import CheckpointState, TrainingSession
from trainweb.backend.plan import Plan
from trainweb.compiler.passes.attention import fuse_attention
from trainweb.ir import calls
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import REDUCE_MEAN, REDUCE_SUM
from trainweb.ir.shapes import TensorType
from trainweb.lora import inject
from trainweb.model.graph import Node, Value
from trainweb.training.step_kind import TRAIN

LLAMA = Path(__file__).parents[1] / "lora" / "recorded" / "llama.dynamo.onnx"
MS = "com.microsoft"

# ---- the kernels against float64


def reference(operands: Iterable[np.ndarray], mask: np.ndarray, group: int, scale: float) -> dict[str, np.ndarray]:
    """y and the gradients of q, k, v and dy, with [batch, heads, rows, width] of everything."""
    q, k, v, dy = (x.astype(np.float64) for x in operands)
    keys, values = (np.repeat(x, group, axis=1) for x in (k, v))
    s = scale * q @ keys.swapaxes(2, 3) + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = dy @ values.swapaxes(2, 3)
    ds = scale * p * (dp - (dp * p).sum(-1, keepdims=True))

    def total(x: np.ndarray) -> np.ndarray:
        batch, heads, n, width = x.shape
        return np.asarray(x.reshape(batch, heads // group, group, n, width).sum(2))

    dk, dv = total(ds.swapaxes(2, 3) @ q), total(p.swapaxes(2, 3) @ dy)
    return {"y": p @ values, "dq": ds @ keys, "dk": dk, "dv": dv}


def laid_out(x: np.ndarray, between: bool) -> tuple[np.ndarray, list[int]]:
    """The memory of [batch, heads, rows, width], perhaps heads between rows and a gap behind each, and its strides."""
    batch, heads, rows, width = x.shape
    if not between:
        return x, [heads * rows * width, rows * width, width]
    padded = np.zeros((batch, rows, heads, width + 3), np.float32)
    padded[..., :width] = x.swapaxes(1, 2)
    return padded, [rows * heads * (width + 3), width + 3, heads * (width + 3)]


def taken(memory: np.ndarray, like: np.ndarray, between: bool) -> np.ndarray:
    if not between:
        return memory.reshape(like.shape)
    batch, heads, rows, width = like.shape
    return memory.reshape(batch, rows, heads, width + 3)[..., :width].swapaxes(1, 2)


class Heads:
    """Arguments of both kernels for `shape`: batch, heads, group, m, n, d, e."""

    def __init__(self, shape: tuple[int, ...], mask: str = "none", between: bool = False) -> None:
        batch, heads, self.group, m, n, d, e = shape
        self.between, draw = between, np.random.default_rng(3).standard_normal
        sizes = {"q": (heads, m, d), "k": (heads // self.group, n, d), "v": (heads // self.group, n, e)}
        sizes |= {"y": (heads, m, e), "dy": (heads, m, e)}
        self.x = {name: draw((batch, *size)).astype(np.float32) for name, size in sizes.items()}
        self.mask = np.zeros((m, n), np.float32)
        if mask != "none":
            self.mask[np.arange(n) > np.arange(m)[:, None] + max(0, n - m)] = -np.inf if mask == "-inf" else -1e4
        self.args: dict[str, Any] = {"batch": [batch, heads], "group": self.group, "m": m, "n": n, "d": d, "e": e}
        self.args |= {"scale": d**-0.5, "fill": -np.inf, "ratio": 0.0, "salt": 0, "draw": 0, "mask": self.mask}
        self.args["mask_strides"] = [0, 0, n]
        for name in ("q", "k", "v", "y"):
            self.args[name], self.args[f"{name}_strides"] = laid_out(self.x[name], between)
            self.args[f"d{name}_strides"] = self.args[f"{name}_strides"]

    def run(self, kernels: KernelRunner, parts: int = 1, wanted: str = "qkv") -> dict[str, np.ndarray]:
        forward = {
            name: x
            for name, x in self.args.items()
            if name not in ("dq_strides", "dk_strides", "dv_strides", "dy_strides")
        }
        statistics = np.zeros((*self.args["batch"], self.args["m"]), np.float32)
        made = kernels.run("attention_f32", **forward, top=statistics, inverse=statistics, guarded=0)
        given = {**self.args, "dy": laid_out(self.x["dy"], self.between)[0], **made}
        results = {f"d{x}": np.full_like(self.args[x], np.nan) for x in wanted}
        given = {**given, **results, "parts": parts, "conditional": int(np.isinf(self.mask).any())}
        gradients = kernels.run("attention_gradient_f32", **given)
        like = {"y": self.x["y"]} | {f"d{x}": self.x[x] for x in wanted}
        return {name: taken((made | gradients)[name], x, self.between) for name, x in like.items()}

    def expected(self) -> dict[str, np.ndarray]:
        operands = [self.x[name] for name in ("q", "k", "v", "dy")]
        return reference(operands, self.mask, self.group, self.args["scale"])


SHAPES = [
    ((2, 6, 3, 20, 20, 8, 8), 1),
    ((1, 6, 2, 70, 70, 16, 5), 1),
    ((1, 9, 3, 128, 128, 64, 64), 2),
    ((3, 4, 4, 33, 130, 12, 20), 3),
    ((2, 4, 2, 130, 9, 8, 7), 1),
    ((1, 8, 8, 1, 200, 16, 16), 4),
    ((2, 3, 1, 65, 65, 5, 6), 2),
]
"""And parts."""


@pytest.mark.parametrize(("shape", "parts"), SHAPES, ids=str)
@pytest.mark.parametrize("mask", ["none", "-1e4", "-inf"])
@pytest.mark.parametrize("between", [False, True], ids=["heads", "heads between rows"])
def test_kernels(kernels: KernelRunner, shape: tuple[int, ...], parts: int, mask: str, between: bool) -> None:
    heads = Heads(shape, mask, between)
    results = heads.run(kernels, parts)
    for name, value in heads.expected().items():
        assert np.abs(results[name] - value).max() < TOLERANCE * max(1, np.abs(value).max()), name


@pytest.mark.parametrize("wanted", ["k", "v", "qv", "kv"])
@pytest.mark.parametrize("m", [40, 100])
def test_a_gradient_does_not_depend_on_which_others_are_wanted(kernels: KernelRunner, wanted: str, m: int) -> None:
    heads = Heads((2, 6, 3, m, 70, 8, 8), "-1e4")
    every, some = heads.run(kernels), heads.run(kernels, wanted=wanted)
    for name in wanted:
        assert every[f"d{name}"].tobytes() == some[f"d{name}"].tobytes()


def test_results_are_those_of_repeated_keys(kernels: KernelRunner) -> None:
    """Bytes of y and dq; for few queries, those of the sum over a group in order, too."""
    heads = Heads((2, 6, 3, 50, 130, 8, 12), "-inf")
    apart = Heads((2, 6, 1, 50, 130, 8, 12), "-inf")
    for name in heads.x:
        apart.x[name] = heads.x[name] if name in ("q", "y", "dy") else np.repeat(heads.x[name], 3, axis=1)
        if name != "dy":
            apart.args[name] = apart.x[name]
    shared, each = heads.run(kernels), apart.run(kernels)
    assert all(shared[name].tobytes() == each[name].tobytes() for name in ("y", "dq"))
    for name in ("dk", "dv"):
        first, second, third = np.moveaxis(each[name].reshape(2, 2, 3, 130, -1), 2, 0)
        assert shared[name].tobytes() == (first + second + third).tobytes()


@pytest.mark.parametrize("group", [0, 4, 7])
def test_a_group_must_divide_the_heads(kernels: KernelRunner, group: int) -> None:
    heads = Heads((1, 6, 2, 5, 5, 4, 4))
    heads.args["group"] = group
    with pytest.raises(PlanFailed, match="TW_BAD_CONDITION"):
        heads.run(kernels)


# ---- graphs


class Grouped(Attention):
    """Attention whose keys and values serve `group` heads of queries each: one of the `WAYS` repeats them."""

    def __init__(self, shape: tuple[int, ...], group: int) -> None:
        super().__init__(*shape)
        self.group = group

    def operands(self, layout: str) -> tuple[str, str, str]:
        batch, heads, m, n, d, e = self.sizes
        shared = heads // self.group
        sizes = (("k", d), ("v", e))
        if layout == "before heads":
            made = [self.normal(x, batch, n, shared, 1, width) for x, width in sizes]
        else:
            made = [self.normal(x, batch, shared, n, width) for x, width in sizes]
        k, v = (WAYS[layout](self, x, width) for x, (_, width) in zip(made, sizes, strict=True))
        return self.normal("q", batch, heads, m, d), self.op("Transpose", k, perm=[0, 1, 3, 2]), v

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values))

    def all_heads(self, x: str, width: int) -> str:
        batch, heads, _, n, _, _ = self.sizes
        return self.op("Reshape", x, self.ints(batch, heads, n, width))


def expand(a: Grouped, x: str, width: int) -> str:
    repeated = a.op("Expand", a.op("Unsqueeze", x, a.ints(2)), a.ints(1, 1, a.group, 1, 1))
    return a.all_heads(repeated, width)


def tile(a: Grouped, x: str, width: int) -> str:
    repeated = a.op("Tile", a.op("Unsqueeze", x, a.ints(2)), a.ints(1, 1, a.group, 1, 1))
    return a.all_heads(repeated, width)


def before_heads(a: Grouped, x: str, width: int) -> str:
    batch, heads, _, n, _, _ = a.sizes
    repeated = a.op("Expand", x, a.ints(1, 1, 1, a.group, 1))
    return a.op("Transpose", a.op("Reshape", repeated, a.ints(batch, n, heads, width)), perm=[0, 2, 1, 3])


def wrong_order(a: Grouped, x: str, width: int) -> str:
    """Query head h reads head h % (heads / group) of the keys: heads that share them are not side by side."""
    return a.op("Tile", x, a.ints(1, a.group, 1, 1))


WAYS: dict[str, Callable[[Grouped, str, int], str]] = {
    "expand": expand,
    "tile": tile,
    "before heads": before_heads,
    "one head": lambda a, x, width: a.op("Expand", x, a.ints(1, a.sizes[1], 1, 1)),
    "wrong order": wrong_order,
}


def groups(plan: Plan) -> list[int]:
    return [int(n) for line in plan.text for n in re.findall(r"^attention.* group=(\d+)", line)]


@pytest.mark.parametrize(
    ("shape", "group"),
    [((2, 6, 20, 20, 8, 8), 3), ((1, 9, 70, 70, 8, 8), 3), ((2, 4, 33, 130, 12, 20), 2), ((3, 8, 1, 70, 16, 16), 4)],
    ids=str,
)
@pytest.mark.parametrize("way", ["expand", "tile", "before heads"])
@pytest.mark.parametrize("mask", ["none", "causal -inf", "padding"])
def test_keys_are_not_repeated(shape: tuple[int, ...], group: int, way: str, mask: str) -> None:
    plan = check(Grouped(shape, group).build(way, mask=mask))
    assert groups(plan) == [group, group]
    assert "reduce_f32" not in kernels(plan) and not any("Expand" in line or "Tile" in line for line in plan.text)


@pytest.mark.parametrize("batch", [1, 2])
def test_one_head_of_keys(batch: int) -> None:
    plan = check(Grouped((batch, 4, 70, 70, 8, 8), 4).build("one head", mask="causal"))
    assert groups(plan) == [4, 4]
    assert "reduce_f32" not in kernels(plan) and not any("Expand" in line for line in plan.text)


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    assert groups(check(Grouped((2, 6, 70, 70, 8, 8), 3).build("expand", mask=mask))) == [3, 3]


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("guard", [False, True])
def test_dropout(mask: str, guard: bool) -> None:
    assert groups(check(Grouped((2, 6, 70, 90, 8, 8), 3).build("expand", mask=mask, dropout=0.3, guard=guard))) == [
        3,
        3,
    ]


@pytest.mark.parametrize("trained", [["q"], ["k"], ["v"], ["q", "v"], ["k", "v"], ["q", "k"]], ids="".join)
def test_only_some_gradients_are_wanted(trained: list[str]) -> None:
    a = Grouped((2, 6, 70, 70, 8, 8), 3).build("expand", mask="causal")
    a.trained = trained
    results, plan = results_of(a)
    assert groups(plan) == [3, 3] and "reduce_f32" not in kernels(plan)
    for name, value in without_fusion(a)[0].items():
        assert np.abs(results[name] - value).max() < TOLERANCE * max(1, np.abs(value).max()), name


def test_memory() -> None:
    """Nothing has the size of repeated keys."""
    a = Grouped((1, 8, 64, 512, 16, 16), 8).build("expand")
    assert max(arena_buffers(results_of(a)[1])) < 4 * 8 * 512 * 16


def test_without_gradients() -> None:
    a = Grouped((2, 6, 5, 70, 8, 8), 3).build("expand", mask="padding")
    y = a.graph.outputs[0].name
    results, plan = compute(a.graph, a.feeds, [y])
    assert groups(plan) == [3]
    with pipelines.passes(pipelines.without("fuse_attention")):
        expected = compute(a.graph, a.feeds, [y])[0]
    assert np.abs(results[y] - expected[y]).max() < TOLERANCE


def test_group_query_attention() -> None:
    a = Attention(2, 6, 20, 20, 8)
    q, k, v = (a.normal(name, 2, 20, 8 * heads) for name, heads in (("q", 6), ("k", 2), ("v", 2)))
    lengths, whole = (a.constant(np.array(x, np.int32)) for x in ([19, 19], 20))
    heads = {"num_heads": 6, "kv_num_heads": 2}
    a.graph.nodes.append(Node("GroupQueryAttention", [q, k, v, "", "", lengths, whole], ["y"], heads, MS, "attention"))
    a.graph.outputs = [Value("y", "float32", None)]
    plan = check(a)
    assert groups(plan) == [3, 3] and "reduce_f32" not in kernels(plan)


def test_the_model_whose_training_is_recorded_shares_keys() -> None:
    """tests/lora/test_lora.py compares its losses and parameters with PyTorch's."""
    artifacts = inject(LLAMA, rank=4, targets=["q_proj", "v_proj"]).build_artifacts(loss="CrossEntropyLoss")
    with TrainingSession(CheckpointState.load_checkpoint(artifacts.checkpoint), artifacts.training_model) as s:
        rows = {"input": TensorType("int64", (6, 5)), "labels": TensorType("int64", (6,))}
        plan = s._core.models.compile_step(
            TRAIN, {name: rows.get(name, rows["input"]) for name in s.input_names()}, True
        )
    assert groups(plan) == [2, 2, 2, 2]


@pytest.mark.parametrize("group", [2, 3])
def test_heads_in_another_order_stay_repeated(group: int) -> None:
    assert groups(check(Grouped((2, 2 * group, 40, 40, 8, 8), group).build("wrong order"))) == [1, 1]


def test_values_of_one_column_are_shared() -> None:
    assert groups(check(Grouped((1, 4, 6, 5, 8, 1), 2).build("expand"))) == [2, 2]


@pytest.mark.parametrize("heads", [6, 1])
def test_keys_and_values_are_shared_alike_or_not_at_all(heads: int) -> None:
    a = Grouped((2, 6, 40, 40, 8, 8), 3)
    x = {"k": (heads, 40, 8), "v": (2, 40, 8), "q": (6, 40, 8)}
    q, k, v = (a.normal(name, 2, *x[name]) for name in "qkv")
    if heads == 1:
        k = WAYS["one head"](a, k, 8)
    p = a.op("Softmax", a.op("MatMul", q, a.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    y = a.op("MatMul", p, expand(a, v, 8))
    a.graph.outputs = [Value(y, "float32", None)]
    assert groups(check(a)) == [1, 1]
    assert groups(compute(a.graph, a.feeds, [y])[1]) == [1]


@pytest.mark.parametrize(("heads", "copies", "used", "group"), [(1, 3, 3, 3), (1, 3, 2, 1), (2, 1, 2, 1), (2, 2, 4, 2)])
def test_keys_are_shared_by_all_heads_of_a_group(heads: int, copies: int, used: int, group: int) -> None:
    w = Written()
    for name in ("k", "v"):
        w.new(name, heads, 1, N * WIDTH)
        whole = w.new(f"all {name}", heads, copies, N * WIDTH)
        unread = w.new(f"unread {name}", *whole.shape)
        w.builder.elementwise([whole], [unread, w.bufs[name]], lambda e, _, x: x)
        w.bufs[f"all {name}"] = whole.view((used, N, WIDTH))
    w.new("q", used, M, WIDTH)
    w.new("scores", used, M, N)
    w.new("weights", used, M, N)
    w.new("y", used, M, WIDTH)
    w.product("scores", "q", "all k", b_turned=True)
    softmax = {"outer": used * M, "n": N, "inner": 1, "log": 0}
    w.builder.emit(calls.Softmax(x=w.bufs["scores"], y=w.bufs["weights"], **softmax))
    w.product("y", "weights", "all v")
    program = w.program()
    fuse_attention(program, pipelines.context())
    assert [i.group for i in program if isinstance(i, calls.Attention)] == [group]


def test_repeated_keys_that_others_read_stay() -> None:
    a = Grouped((2, 6, 40, 40, 8, 8), 3).build("expand")
    repeated = next(node.outputs[0] for node in a.graph.nodes if node.op_type == "Expand")
    results, plan = compute(a.graph, a.feeds, [a.graph.outputs[0].name, repeated])
    assert groups(plan) == [3]
    assert np.array_equal(results[repeated], np.repeat(a.feeds["k"][:, :, None], 3, axis=2))


def test_gradients_of_repeated_keys_that_are_wanted_stay() -> None:
    a = Grouped((2, 6, 40, 40, 8, 8), 3).build("expand")
    a.trained = [next(node.outputs[0] for node in a.graph.nodes if node.op_type == "Expand"), "k"]
    results, plan = results_of(a)
    assert groups(plan) == [1, 1]
    for name, value in without_fusion(a)[0].items():
        assert np.abs(results[name] - value).max() < TOLERANCE * max(1, np.abs(value).max()), name


# ---- programs made by hand, in which operands change

GROUP, M, N, WIDTH = 3, 4, 6, 4
"""One head of keys and values."""


def batched(call: calls.Gemm) -> calls.Gemm:
    """The product for each head."""
    call = copy(call)
    call.batch = (1, GROUP)
    call.a_batch, call.b_batch, call.c_batch = ((0, x) for x in (call.m * call.k, call.k * call.n, call.m * call.n))
    return call


def shared_keys(p: RandomProgram, steps: str, places: dict[str, str]) -> None:
    """softmax(q k') v with repeated k and v, and its gradients, in these steps.

    `change:NAME` changes what a tensor holds, `fill:NAME` fills it, `read:NAME` reads it. `places`: tensors that are
    another.
    """
    sizes = dict.fromkeys(("q", "dy", "y", "dq"), GROUP * M * WIDTH) | dict.fromkeys(("k", "v", "dk", "dv"), N * WIDTH)
    sizes |= dict.fromkeys(("keys", "values", "dkeys", "dvalues"), GROUP * N * WIDTH)
    sizes |= dict.fromkeys(("s", "w", "d", "ds"), GROUP * M * N)
    b: dict[str, Buf] = {name: p.new((size,)) for name, size in sizes.items()}
    b |= {name: b[other] for name, other in places.items()}
    factors = p.feeds[2].view((GROUP, 1), 0)
    for name in ("q", "dy"):
        row = p.feeds[1].view((1, M * WIDTH))
        p.builder.elementwise([b[name].view((GROUP, M * WIDTH))], [row, factors], lambda e, x, y: e.tanh(e.mul(x, y)))
    for name in ("k", "v"):
        p.builder.elementwise([b[name]], [p.feeds[0].view((N * WIDTH,))], lambda e, x: e.tanh(x))

    def repeat(x: str, result: str, factor: float = 1) -> None:
        y = b[result].view((GROUP, N * WIDTH))
        p.builder.elementwise(
            [y], [b[x].view((1, N * WIDTH))], lambda e, v: v if factor == 1 else e.mul(v, e.const(factor))
        )

    def multiply(x: str, y: str, result: str, sizes: tuple[int, int, int], turned: str = "") -> None:
        call = product(b[x], b[y], b[result], sizes, turned=(turned == x, turned == y))
        p.builder.emit(batched(call))

    def total(x: str, result: str, op: int = REDUCE_SUM) -> None:
        p.builder.emit(calls.Reduce(x=b[x], y=b[result], outer=1, n=GROUP, inner=N * WIDTH, op=op))

    compute: dict[str, Callable[[], None]] = {
        "keys": lambda: repeat("k", "keys"),
        "halves": lambda: repeat("k", "keys", 0.5),
        "values": lambda: repeat("v", "values"),
        "s": lambda: multiply("q", "keys", "s", (M, N, WIDTH), "keys"),
        "w": lambda: p.builder.emit(calls.Softmax(x=b["s"], y=b["w"], outer=GROUP * M, n=N, inner=1, log=0)),
        "y": lambda: multiply("w", "values", "y", (M, WIDTH, N)),
        "dvalues": lambda: multiply("w", "dy", "dvalues", (N, WIDTH, M), "w"),
        "d": lambda: multiply("dy", "values", "d", (M, N, WIDTH), "values"),
        "ds": lambda: p.builder.emit(
            calls.SoftmaxGrad(dy=b["d"], y=b["w"], dx=b["ds"], outer=GROUP * M, n=N, inner=1, log=0)
        ),
        "dq": lambda: multiply("ds", "keys", "dq", (M, WIDTH, N)),
        "dkeys": lambda: multiply("ds", "q", "dkeys", (N, WIDTH, M), "ds"),
        "dk": lambda: total("dkeys", "dk"),
        "mean": lambda: total("dkeys", "dk", REDUCE_MEAN),
        "dv": lambda: total("dvalues", "dv"),
    }
    for step in steps.split():
        what, _, name = step.partition(":")
        if what == "change":
            p.builder.elementwise([b[name]], [b[name]], lambda e, x: e.sub(x, e.const(3)))
        elif what == "fill":
            p.builder.elementwise([b[name]], [], lambda e: e.const(2))
        elif what == "read":
            result = p.new((b[name].size,))
            p.builder.elementwise([result], [b[name]], lambda e, x: e.neg(x))
            p.done(result)
        else:
            compute[what]()
    p.done(b["y"], b["dq"], b["dk"], b["dv"])


def group_of(steps: str, places: dict[str, str] | None = None) -> int:
    """The group of the gradient's kernel, 0 without one; the program must compute the same in any case."""
    made = RandomProgram(0, partial(shared_keys, steps=steps, places=places or {}))
    program = check_program(made, pipelines.alone("fuse_attention"), steps)
    return next((i.group for i in program if isinstance(i, calls.AttentionGradient)), 0)


FORWARD = "keys values s w y"


@pytest.mark.parametrize(
    "steps",
    [
        "dvalues dv d ds dq dkeys dk",
        "d ds dkeys dq dvalues dk read:dk dv change:k",
        "fill:dv dvalues d ds dq dkeys dk dv",
    ],
)
def test_sums_of_gradients_are_made_by_the_kernel(steps: str) -> None:
    assert group_of(f"{FORWARD} {steps}") == GROUP


@pytest.mark.parametrize(
    ("steps", "places"),
    [
        ("keys change:k values s w y dvalues dv d ds dq dkeys dk", {}),
        ("keys values s w change:v y dvalues dv d ds dq dkeys dk", {}),
        ("halves values s w y dvalues dv d ds dq dkeys dk", {}),
        (f"{FORWARD} change:k dvalues dv d ds dq dkeys dk", {}),
        (f"{FORWARD} dvalues dv d ds change:k dq dkeys dk", {}),
        (f"{FORWARD} dvalues d ds dq dkeys dk change:k change:v dv", {}),
        (f"{FORWARD} dvalues d ds fill:dv dq dkeys dk dv", {}),
        (f"{FORWARD} d ds dq dkeys dvalues read:dkeys dv dk", {}),
        (f"{FORWARD} dvalues dv d ds dq dkeys mean", {}),
        (f"{FORWARD} dvalues dv d ds dq dkeys dk read:dkeys", {}),
        (f"{FORWARD} dvalues dv d ds dq dkeys dk", {"dv": "k"}),
        (f"{FORWARD} dvalues dv d ds dq dkeys dk", {"dk": "v"}),
        (f"{FORWARD} dvalues dv read:dv d ds dq dkeys dk", {"dk": "dv"}),
    ],
)
def test_repeated_keys_stay_where_what_they_are_made_of_changes(steps: str, places: dict[str, str]) -> None:
    assert group_of(steps, places) == 1
