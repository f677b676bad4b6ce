"""Passes leave alone what they would break: small programs in which one instruction stands in the way.

Each pattern is found without that instruction: it is the guard that is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from tests.python import pipelines
from tests.python.products import product
from tests.python.test_program import check_index
from tests.python.test_recompute import Restless

from trainweb.compiler.context import Cache
from trainweb.compiler.passes import attention as attention_pass
from trainweb.compiler.passes import head as head_pass
from trainweb.compiler.passes.accumulate import accumulate_in_place
from trainweb.compiler.passes.attention import fuse_attention
from trainweb.compiler.passes.epilogue import absorb_factors, fuse_epilogues
from trainweb.compiler.passes.fuse import CHEAP_OPERATIONS, MAX_BUFFERS, MAX_OPERATIONS, fuse_elementwise, repeat_cheap
from trainweb.compiler.passes.head import fuse_head_loss
from trainweb.compiler.passes.hoist import hoist
from trainweb.compiler.passes.pooling import mask_maxima
from trainweb.compiler.passes.recompute import Schedule, Values
from trainweb.compiler.passes.rotary import fuse_rotary
from trainweb.compiler.passes.strided import absorb_copies
from trainweb.compiler.passes.transaction import write_state_last
from trainweb.ir import calls
from trainweb.ir.arena import align
from trainweb.ir.builder import Builder
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, KernelCall, Storage
from trainweb.ir.layout import ARENA, GRADIENTS, LOSS_MEAN, PARAMETERS
from trainweb.ir.loop import LoopCall
from trainweb.ir.program import Program
from trainweb.ops.copies import copy_axis, strided_copy

N, WIDTH = 3, 2


class Written:
    """A program under construction, of named tensors."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.bufs: dict[str, Buf] = {}
        self.outputs: list[str] = []

    def new(self, name: str, *shape: int, segment: int = ARENA) -> Buf:
        b = self.builder.temp("float32", shape)
        b.storage.segment, b.name = segment, name
        self.bufs[name] = b
        return b

    def fill(self, name: str) -> None:
        """Overwrite a tensor."""
        self.builder.fill(self.bufs[name], 1.0)

    def read(self, name: str) -> None:
        """Copy a tensor to somewhere else."""
        b = self.bufs[name]
        self.builder.copy(self.new(f"{name} copied", *b.shape), b)

    def product(self, c: str, a: str, b: str, *, a_turned: bool = False, b_turned: bool = False) -> None:
        """c = a b, of matrices or batches of them, of which a and b may be turned."""
        x, y, out = (self.bufs[name] for name in (a, b, c))
        m, k = reversed(x.shape[-2:]) if a_turned else x.shape[-2:]
        n = y.shape[-2 if b_turned else -1]
        call = product(x, y, out, (m, n, k), turned=(a_turned, b_turned))
        if len(x.shape) > 2:
            call.batch, call.a_batch, call.b_batch, call.c_batch = (1, x.shape[0]), (0, m * k), (0, k * n), (0, m * n)
        self.builder.emit(call)

    def program(self) -> Program:
        return Program(self.builder, [], [self.bufs[n] for n in self.outputs], self.builder.instructions)


Elementwise = tuple[str, str, Callable[..., Expr | tuple[Expr, ...]]]
"""Results and operands of a call, and what it computes."""
FORWARD = ("scores", "weights", "y")
BACKWARD = ("dv", "dweights", "dscores", "dq", "dk")


def attention(
    *order: str,
    shared: dict[str, str] | None = None,
    changes: dict[str, dict[str, object]] | None = None,
    more: dict[str, Elementwise] | None = None,
) -> list[str]:
    """Kernels that are left of y = softmax(q k') v and its gradients.

    `order` has steps by their results, and others as "read NAME" and "fill NAME"; `shared`: tensors that are another;
    `changes`: arguments of a step, in which a tensor is a name; `more`: other steps.
    """
    w = Written()
    for name in ("scores", "mask", "masked", "weights", "kept", "dweights", "dkept", "dscores", "dmasked", "other"):
        w.new(name, N, N)
    for name in ("q", "k", "v", "y", "y'", "dy", "dq", "dk", "dv", "dv'"):
        w.new(name, N, WIDTH)
    w.new("column", N, 1)
    b = w.bufs
    for name in ("condition", "other condition", "is_nan"):
        b[name] = w.builder.temp("bool", (N, N))
    for name in ("scores", "mask", "masked"):
        b[f"flat {name}"] = b[name].view((N * N,))
    for name in ("weights", "kept", "dweights", "dkept", "masked"):
        b[f"part of {name}"] = b[name].view((1, N))
    b["state"] = w.builder.state
    for name, other in (shared or {}).items():
        b[name] = b[other]
    numbers = {"outer": N, "n": N, "inner": 1, "log": 0}
    draw: dict[str, Any] = {"mask": None, "state": b["state"], "n": N * N, "ratio": 0.5, "salt": 1, "draw": 0}
    steps: dict[str, Callable[[], None]] = {
        "scores": lambda: w.product("scores", "q", "k", b_turned=True),
        "weights": lambda: w.builder.emit(calls.Softmax(x=b["scores"], y=b["weights"], **numbers)),
        "masked": lambda: w.builder.elementwise([b["masked"]], [b["scores"], b["mask"]], lambda e, x, y: e.add(x, y)),
        "weights-of-masked": lambda: w.builder.emit(calls.Softmax(x=b["masked"], y=b["weights"], **numbers)),
        "y": lambda: w.product("y", "weights", "v"),
        "dv": lambda: w.product("dv", "weights", "dy", a_turned=True),
        "dweights": lambda: w.product("dweights", "dy", "v", b_turned=True),
        "dscores": lambda: w.builder.emit(
            calls.SoftmaxGrad(dy=b["dweights"], y=b["weights"], dx=b["dscores"], **numbers)
        ),
        "dq": lambda: w.product("dq", "dscores", "k"),
        "dk": lambda: w.product("dk", "dscores", "q", a_turned=True),
        "dropout": lambda: w.builder.emit(calls.Dropout(x=b["weights"], y=b["kept"], **draw)),
        "y'": lambda: w.product("y'", "weights", "k"),
        "dv'": lambda: w.product("dv'", "weights", "q", a_turned=True),
        "dscores'": lambda: w.builder.emit(calls.SoftmaxGrad(dy=b["mask"], y=b["weights"], dx=b["other"], **numbers)),
        "ddropout": lambda: w.builder.emit(calls.Dropout(x=b["dweights"], y=b["dkept"], **draw)),
    }
    for step in order:
        what, _, name = step.partition(" ")
        if name:
            (w.read if what == "read" else w.fill)(name)
        elif more and what in more:
            outs, ins, compute = more[what]
            w.builder.elementwise([b[n] for n in outs.split(", ")], [b[n] for n in ins.split(", ")], compute)
        else:
            steps[what]()
            for argument, value in (changes or {}).get(what, {}).items():
                setattr(w.builder.instructions[-1], argument, b[value] if isinstance(value, str) else value)
    program = w.program()
    fuse_attention(program, pipelines.context())
    check_index(program)
    return [i.KERNEL for i in program if isinstance(i, KernelCall) and not isinstance(i, calls.Copy)]


def test_attention_is_found() -> None:
    assert attention(*FORWARD) == ["attention_f32"]
    assert attention(*FORWARD, *BACKWARD) == ["attention_f32", "attention_gradient_f32"]


@pytest.mark.parametrize(
    "order",
    [
        ("scores", "fill q", "weights", "y"),
        ("scores", "weights", "fill k", "y"),
        (*FORWARD, "fill q", *BACKWARD),
        (*FORWARD, "fill k", *BACKWARD),
        (*FORWARD, "fill v", *BACKWARD),
        (*FORWARD, "fill y", *BACKWARD),
        (*FORWARD, "dv", "fill dy", *BACKWARD[1:]),
        (*FORWARD, "dv", "read dq", *BACKWARD[1:]),
        (*FORWARD, "dv", "dweights", "read dk", "dscores", "dq", "dk"),
        (*FORWARD, "dv", "fill dq", *BACKWARD[1:]),
        (*FORWARD, "dv", "dweights", "fill dk", "dscores", "dq", "dk"),
        ("scores", "weights", "dv", "y", *BACKWARD[1:]),
        ("scores", "read scores", "weights", "y"),
        ("scores", "weights", "read weights", "y"),
        (*FORWARD, "read weights", *BACKWARD),
        (*FORWARD, "dv", "dweights", "read dweights", *BACKWARD[2:]),
        (*FORWARD, *BACKWARD[:3], "read dscores", *BACKWARD[3:]),
    ],
    ids=" ".join,
)
def test_attention_stays_where_an_operand_changes_or_a_result_is_not_free_yet(order: tuple[str, ...]) -> None:
    kernels = attention(*order)
    assert "softmax_f32" in kernels and not any("attention" in kernel for kernel in kernels)


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("scores", {"activation": 1}),
        ("scores", {"accumulate": 1}),
        ("scores", {"a_row": 1, "a_col": N}),
        ("y", {"b_row": 1, "b_col": N}),
        ("weights", {"log": 1}),
        ("weights", {"outer": 1, "inner": N}),
        ("y", {"alpha": 0.5}),
        ("y", {"activation": 1}),
        ("dv", {"alpha": 0.5}),
        ("dv", {"a": "dweights"}),
        ("dv", {"b": "q"}),
        ("dweights", {"alpha": 0.5}),
        ("dweights", {"a": "q"}),
        ("dweights", {"b": "k"}),
        ("dscores", {"log": 1}),
        ("dscores", {"outer": 1, "inner": N}),
        ("dq", {"alpha": 0.5}),
        ("dq", {"b": "v"}),
        ("dq", {"activation": 1}),
        ("dk", {"alpha": 0.5}),
        ("dk", {"b": "v"}),
        ("dk", {"a_row": N, "a_col": 1}),
    ],
    ids=str,
)
def test_attention_stays_where_a_step_computes_something_else(step: str, change: dict[str, object]) -> None:
    order = FORWARD if step in FORWARD else (*FORWARD, *BACKWARD)
    assert not any("attention" in kernel for kernel in attention(*order, changes={step: change}))


MASKED = ("scores", "fill mask", "masked", "weights-of-masked", "y")
"""The mask is made after the product of the scores, which is early enough."""


def test_a_mask_may_be_made_until_it_is_added() -> None:
    assert "attention_f32" in attention(*MASKED)
    assert "attention_gradient_f32" in attention(*MASKED, *BACKWARD)


@pytest.mark.parametrize("place", range(3, 6))
def test_attention_stays_where_a_mask_changes_after_it_was_added(place: int) -> None:
    order = (*MASKED[:place], "fill mask", *MASKED[place:], *BACKWARD)
    assert not any("attention" in kernel for kernel in attention(*order))


@pytest.mark.parametrize("shared", [{"y": "q"}, {"y": "v"}], ids=str)
def test_attention_does_not_store_its_result_in_an_operand(shared: dict[str, str]) -> None:
    assert attention(*FORWARD, shared=shared).count("gemm_f32") == 2


@pytest.mark.parametrize("shared", [{"dq": "q"}, {"dq": "dy"}, {"dq": "y"}, {"dq": "dk"}], ids=str)
def test_gradients_of_attention_are_not_stored_in_what_they_are_made_of(shared: dict[str, str]) -> None:
    order = (*FORWARD, "dv", "dweights", "dscores", "dk", "dq")
    assert attention(*order, shared=shared).count("gemm_f32") == 6
    assert attention(*order).count("gemm_f32") == 0


def hidden(fill: float, *, inverse: bool = False) -> Callable[..., Expr]:
    """A function of scores and a condition that has a number where it is false."""
    return lambda e, x, c: e.select(c, e.const(fill), x) if inverse else e.select(c, x, e.const(fill))


def scaled(e: Emitter, x: Expr, *_: Expr) -> Expr:
    """Half of an operand."""
    return e.mul(x, e.const(0.5))


def added(e: Emitter, x: Expr, y: Expr) -> Expr:
    """The sum of operands."""
    return e.add(x, y)


MASKING = ("scores", "mask!", "weights", "y")
"""Attention whose scores a step changes."""
IS_MASKED: dict[str, dict[str, object]] = {"weights": {"x": "masked"}, "dq": {"a": "dmasked"}, "dk": {"a": "dmasked"}}
CONDITION: dict[str, Elementwise] = {
    "mask!": ("masked", "scores, condition", hidden(-1e4)),
    "dmask!": ("dmasked", "dscores, condition", hidden(0)),
    "another!": ("other", "scores, condition", hidden(-1e4)),
}
UNMASKING = ("dv", "dweights", "dscores", "dmask!", "dq", "dk")


@pytest.mark.parametrize(
    "step",
    [
        ("masked", "scores, condition", hidden(-1e4)),
        ("masked", "scores, mask", added),
        ("masked", "scores", scaled),
    ],
    ids=str,
)
def test_scores_may_be_masked_or_scaled(step: Elementwise) -> None:
    assert attention(*MASKING, changes=IS_MASKED, more={"mask!": step}).count("attention_f32") == 1


@pytest.mark.parametrize(
    "step",
    [
        ("masked", "scores, condition, other", lambda e, x, c, y: e.select(c, x, y)),
        ("masked", "scores, condition, other", lambda e, x, c, y: e.select(c, y, e.const(0))),
        ("masked", "scores, other", lambda e, x, y: y),
        ("masked, other", "scores, mask", lambda e, x, y: (e.add(x, y), e.neg(x))),
        ("flat masked", "flat scores, flat mask", added),
        ("masked", "scores, column", added),
    ],
    ids=str,
)
def test_attention_stays_where_scores_are_masked_in_another_way(step: Elementwise) -> None:
    assert "softmax_f32" in attention(*MASKING, changes=IS_MASKED, more={"mask!": step})


def test_attention_stays_where_a_row_of_the_scores_is_repeated() -> None:
    more: dict[str, Elementwise] = {
        "mask!": ("masked", "scores", scaled),
        "scale!": ("other", "part of masked", scaled),
    }
    assert "softmax_f32" in attention(
        "scores", "mask!", "scale!", "weights", "y", changes={"weights": {"x": "other"}}, more=more
    )


def test_no_gradient_goes_through_scores_that_a_condition_hides() -> None:
    kernels = attention(*MASKING, *UNMASKING, changes=IS_MASKED, more=CONDITION)
    assert "attention_gradient_f32" in kernels and "softmax_f32" not in kernels


@pytest.mark.parametrize(
    "steps",
    [
        {"dmask!": ("dmasked", "dscores, condition", hidden(0, inverse=True))},
        {"dmask!": ("dmasked", "dscores, other condition", hidden(0))},
        {"dmask!": ("dmasked", "dscores, condition", hidden(1))},
        {"dmask!": ("dmasked", "dscores", lambda e, x: x)},
        {"dmask!": ("dmasked", "dscores, mask", added), "mask!": ("masked", "scores, mask", added)},
        {"dmask!": ("dmasked", "other, dscores", scaled), "mask!": ("masked", "scores", scaled)},
    ],
    ids=str,
)
def test_attention_stays_where_gradients_of_scores_go_another_way(steps: dict[str, Elementwise]) -> None:
    assert "softmax_f32" in attention(*MASKING, *UNMASKING, changes=IS_MASKED, more=CONDITION | steps)


@pytest.mark.parametrize(("shape", "is_whole"), [((2, N, N), True), ((N, 2, 1, N), False)])
def test_gradients_are_hidden_in_the_shape_of_the_scores(shape: tuple[int, ...], is_whole: bool) -> None:
    """The condition is of heads and keys: in another shape it hides others."""
    w = Written()
    for name in ("scores", "masked", "weights", "dweights", "dscores", "dmasked"):
        w.new(name, 2, N, N)
    for name in ("q", "k", "v", "y", "dy", "dq", "dk", "dv"):
        w.new(name, 2, N, WIDTH)
    b, condition = w.bufs, w.builder.temp("bool", (2, 1, N))
    rows = {"outer": 2 * N, "n": N, "inner": 1, "log": 0}
    w.product("scores", "q", "k", b_turned=True)
    w.builder.elementwise([b["masked"]], [b["scores"], condition], hidden(-1e4))
    w.builder.emit(calls.Softmax(x=b["masked"], y=b["weights"], **rows))
    w.product("y", "weights", "v")
    w.product("dweights", "dy", "v", b_turned=True)
    w.builder.emit(calls.SoftmaxGrad(dy=b["dweights"], y=b["weights"], dx=b["dscores"], **rows))
    w.builder.elementwise([b["dmasked"].view(shape)], [b["dscores"].view(shape), condition], hidden(0))
    w.product("dq", "dmasked", "k")
    program = w.program()
    fuse_attention(program, pipelines.context())
    assert any(isinstance(i, calls.AttentionGradient) for i in program) == is_whole


def test_attention_stays_where_two_conditions_hide_gradients_or_others_read_them() -> None:
    first: dict[str, Elementwise] = {"first!": ("other", "dscores, other condition", hidden(0))}
    second: dict[str, Elementwise] = {"dmask!": ("dmasked", "other, condition", hidden(0))}
    order = (*MASKING, "dv", "dweights", "dscores", "first!", "dmask!", "dq", "dk")
    assert "softmax_f32" in attention(*order, changes=IS_MASKED, more=CONDITION | first | second)
    order = (*MASKING, "dv", "dweights", "dscores", "dmask!", "read dscores", "dq", "dk")
    assert "softmax_f32" in attention(*order, changes=IS_MASKED, more=CONDITION)


def test_attention_stays_where_two_products_or_gradients_read_the_probabilities() -> None:
    for order in ((*FORWARD, "y'"), (*FORWARD, "dv", "dv'"), (*FORWARD, *BACKWARD, "dscores'")):
        assert "softmax_f32" in attention(*order)


IS_NAN: dict[str, Elementwise] = {
    "nan!": ("is_nan", "weights, weights", lambda e, x, y: e.compare("ne", x, y)),
    "zero!": ("kept", "weights, is_nan", hidden(0, inverse=True)),
    "dzero!": ("dkept", "dweights, is_nan", hidden(0, inverse=True)),
    "zero!!": ("other", "weights, is_nan", hidden(0, inverse=True)),
}
"""A guard against NaN among the probabilities, as torch's exporter writes it."""
IS_KEPT: dict[str, dict[str, object]] = {"y": {"a": "kept"}, "dv": {"a": "kept"}, "dscores": {"dy": "dkept"}}
GUARDED = ("scores", "weights", "nan!", "zero!", "y", "dv", "dweights", "dzero!", "dscores", "dq", "dk")


def test_a_guard_against_nan_is_found() -> None:
    kernels = attention(*GUARDED, changes=IS_KEPT, more=IS_NAN)
    assert "attention_gradient_f32" in kernels and "softmax_f32" not in kernels


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("nan!", ("is_nan", "weights, other", lambda e, x, y: e.compare("ne", x, y))),
        ("nan!", ("is_nan", "weights", lambda e, x: e.compare("ne", x, e.const(0)))),
        ("zero!", ("kept", "other, is_nan, weights", lambda e, x, c, _: e.select(c, e.const(0), x))),
        ("zero!", ("kept", "weights, is_nan", scaled)),
        ("zero!", ("kept", "weights, is_nan", hidden(0))),
        ("zero!", ("kept", "weights, is_nan", hidden(1, inverse=True))),
        ("dzero!", ("dkept", "dweights, is_nan", hidden(0))),
        ("dzero!", ("dkept", "dweights, is_nan", hidden(1, inverse=True))),
    ],
    ids=str,
)
def test_attention_stays_where_a_guard_against_nan_is_none(name: str, step: Elementwise) -> None:
    assert "softmax_f32" in attention(*GUARDED, changes=IS_KEPT, more=IS_NAN | {name: step})


def test_attention_stays_where_others_read_what_is_nan() -> None:
    for other in ("read is_nan", "zero!!"):
        assert "softmax_f32" in attention(*GUARDED[:4], other, *GUARDED[4:], changes=IS_KEPT, more=IS_NAN)
    without = ("scores", "weights", "nan!", "read is_nan", "y")
    assert "softmax_f32" in attention(*without, more=IS_NAN)
    part = IS_KEPT | {"dscores": {"dy": "part of dkept"}}
    assert "softmax_f32" in attention(*GUARDED, changes=part, more=IS_NAN)


def test_loops_over_a_batch_have_the_strides_of_a_view_of_it() -> None:
    rng, views = np.random.default_rng(0), 0
    for _ in range(2000):
        dims, loops = (tuple(int(d) for d in rng.choice((1, 1, 2, 2, 3, 4), 3)) for _ in range(2))
        strides = tuple(int(s) for s in rng.choice((0, 1, 2, 3, 4, 6, 8, 12), 3))
        x = np.lib.stride_tricks.as_strided(np.zeros(99, np.int8), dims, strides)
        try:
            found = attention_pass._regroup(dims, strides, loops)
        except attention_pass._MismatchError:
            continue
        views += loops != dims
        view = x.reshape(loops, copy=False)
        assert found == tuple(s if d > 1 else 0 for s, d in zip(view.strides, loops, strict=True))
    assert views > 50


DROPPED = ("scores", "weights", "dropout", "y", "dv", "dweights", "ddropout", "dscores", "dq", "dk")


def test_dropout_is_found() -> None:
    kernels = attention(*DROPPED, changes=IS_KEPT)
    assert "attention_gradient_f32" in kernels and "dropout_f32" not in kernels


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("dropout", {"n": N}),
        ("dropout", {"x": "part of weights"}),
        ("ddropout", {"n": N}),
        ("ddropout", {"salt": 2}),
        ("dscores", {"dy": "part of dkept"}),
    ],
    ids=str,
)
def test_attention_stays_where_dropout_is_another(step: str, change: dict[str, object]) -> None:
    assert "softmax_f32" in attention(*DROPPED, changes=IS_KEPT | {step: change})


# The head of a language model.

CLASSES = 5


def head(
    changes: dict[str, dict[str, object]] | None = None,
    *between: str,
    is_trained: bool = True,
    outputs: tuple[str, ...] = (),
) -> list[str]:
    """Kernels that are left of the cross entropy of x w' and, if it is trained, its gradients by x and w.

    `changes`: arguments of a step, in which a tensor is a name; `between`: "read NAME" before the gradients; `outputs`:
    other results that are wanted.
    """
    w = Written()
    for name in ("x", "dx", "other x"):
        w.new(name, N, WIDTH)
    for name in ("w", "dw", "other w"):
        w.new(name, CLASSES, WIDTH)
    for name in ("scores", "log_prob", "dscores"):
        w.new(name, N, CLASSES)
    for name in ("loss", "dloss"):
        w.new(name)
    w.new("bias", CLASSES)
    w.bufs |= {name: w.builder.temp("int32", (N,)) for name in ("labels", "other labels")}
    b = w.bufs
    numbers = {"n": N, "c": CLASSES, "inner": 1, "label_size": 4, "has_ignore": 0, "ignore_index": 0}
    numbers |= {"reduction": LOSS_MEAN, "from_log": 0}
    targets = {"labels": b["labels"], "log_prob": b["log_prob"] if is_trained else None}
    steps: dict[str, Callable[[], None]] = {
        "scores": lambda: w.product("scores", "x", "w", b_turned=True),
        "loss": lambda: w.builder.emit(calls.CrossEntropy(scores=b["scores"], loss=b["loss"], **targets, **numbers)),
        "dscores": lambda: w.builder.emit(calls.CrossEntropyGrad(dy=b["dloss"], dx=b["dscores"], **targets, **numbers)),
        "dx": lambda: w.product("dx", "dscores", "w"),
        "dw": lambda: w.product("dw", "dscores", "x", a_turned=True),
    }
    for step, emit in [*steps.items()][: None if is_trained else 2]:
        emit()
        for argument, value in (changes or {}).get(step, {}).items():
            setattr(w.builder.instructions[-1], argument, b[value] if isinstance(value, str) else value)
        if step == "loss":
            for each in between:
                w.read(each.removeprefix("read "))
    w.outputs = ["loss", *outputs, *(["dx", "dw"] if is_trained else [])]
    program = w.program()
    fuse_head_loss(program, pipelines.context())
    check_index(program)
    return [i.KERNEL for i in program if isinstance(i, KernelCall)]


@pytest.fixture
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of any size are worth it."""
    monkeypatch.setattr(head_pass, "SCORES_BYTES", 0)
    monkeypatch.setattr(head_pass, "TRAINED_SCORES_BYTES", 0)


def test_a_head_is_found(small_heads: None) -> None:
    kernels = head()
    assert "head_loss_f32" in kernels and "cross_entropy_f32" not in kernels and "gemm_f32" not in kernels


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("scores", {"activation": 1}),
        ("scores", {"accumulate": 1}),
        ("scores", {"a_row": 1, "a_col": N}),
        ("scores", {"b_row": WIDTH + 1}),
        ("loss", {"from_log": 1}),
        ("dscores", {"from_log": 1}),
        ("dscores", {"labels": "other labels"}),
        ("dscores", {"has_ignore": 1}),
        ("dx", {"alpha": 0.5}),
        ("dx", {"activation": 1}),
        ("dx", {"b": "other w"}),
        ("dw", {"alpha": 0.5}),
        ("dw", {"activation": 1}),
        ("dw", {"b": "other x"}),
    ],
    ids=str,
)
def test_a_head_stays_where_a_step_computes_something_else(
    small_heads: None, step: str, change: dict[str, object]
) -> None:
    assert "cross_entropy_f32" in head({step: change})


@pytest.mark.parametrize(
    "change",
    [
        {"b_row": WIDTH + 1},
        {"a_row": 1, "a_col": N},
        {"bias": "bias", "bias_col": 1, "beta": 0.5},
        {"bias": "bias", "bias_row": 1, "bias_col": 0},
        {"activation": 1},
        {"accumulate": 1},
    ],
    ids=str,
)
def test_a_head_that_is_not_trained_stays_where_its_product_is_another(
    small_heads: None, change: dict[str, object]
) -> None:
    assert "head_loss_f32" in head({"scores": {"bias": "bias", "bias_col": 1, "beta": 1.0}}, is_trained=False)
    assert "cross_entropy_f32" in head({"scores": change}, is_trained=False)


@pytest.mark.parametrize("change", [{"from_log": 1}, {"n": 1, "inner": N}, {"n": N - 1}], ids=str)
def test_a_head_that_is_not_trained_stays_where_its_loss_is_another(
    small_heads: None, change: dict[str, object]
) -> None:
    assert "cross_entropy_f32" in head({"loss": change}, is_trained=False)


@pytest.mark.parametrize("name", ["scores", "log_prob", "dscores"])
def test_a_head_stays_where_a_result_is_wanted_that_it_would_not_store(small_heads: None, name: str) -> None:
    assert "cross_entropy_f32" in head(outputs=(name,))


@pytest.mark.parametrize("name", ["scores", "log_prob"])
def test_a_head_stays_where_somebody_reads_what_it_would_not_store(small_heads: None, name: str) -> None:
    assert "cross_entropy_f32" in head(None, f"read {name}")


# Accumulation.


def is_rotation(*between: str, factor: str = "cos") -> bool:
    """Whether one call makes rows y of halves that cos and sin turn; `between` stands before the second half of y.

    A step reads or fills a tensor, or covers the first column of y by that of a tensor. `factor`: what the halves are
    multiplied by, "cos", "column" or a number.
    """
    w = Written()
    x, y = w.new("x", 1, N, 2 * WIDTH), w.new("y", 1, N, 2 * WIDTH)
    names = ("x1", "x2", "cos", "sin", "real", "imaginary")
    x1, x2, cos, sin, real, imaginary = (w.new(name, 1, N, WIDTH) for name in names)
    w.bufs["half of y"] = y.view((WIDTH,), 0)
    w.new("column", 1, N, 1)
    for name in ("x", "cos", "sin"):
        w.bufs[name].storage.segment = GRADIENTS
    for k, half in enumerate((x1, x2)):
        copy_axis(w.builder, half, x, 2, WIDTH, source_start=k * WIDTH)
    ins = [x1, x2, w.bufs.get(factor, cos), sin]

    def by(e: Emitter, x: Expr, c: Expr) -> Expr:
        return e.mul(x, c if factor in w.bufs else e.const(float(factor)))

    w.builder.elementwise([real], ins, lambda e, a, b, c, s: e.sub(by(e, a, c), e.mul(b, s)))
    w.builder.elementwise([imaginary], ins, lambda e, a, b, c, s: e.add(by(e, b, c), e.mul(a, s)))
    copy_axis(w.builder, y, real, 2, WIDTH, out_start=0)
    for step in between:
        what, name = step.split(" ", 1)
        if what == "cover":
            copy_axis(w.builder, y, w.bufs[name], 2, 1, out_start=0)
        else:
            (w.read if what == "read" else w.fill)(name)
    copy_axis(w.builder, y, imaginary, 2, WIDTH, out_start=WIDTH)
    w.outputs = ["y"]
    program = w.program()
    fuse_rotary(program, pipelines.context())
    check_index(program)
    return any(isinstance(i, calls.Rotary) for i in program)


def test_rotations_are_found() -> None:
    assert is_rotation() and is_rotation("read real")


@pytest.mark.parametrize("factor", ["column", "0.5"])
def test_rows_that_no_table_turns_stay(factor: str) -> None:
    assert not is_rotation(factor=factor)


@pytest.mark.parametrize("between", ["read half of y", "fill half of y", "cover cos", "fill cos", "fill x"])
def test_rows_that_others_see_or_change_before_they_are_complete_stay(between: str) -> None:
    assert not is_rotation(between)


def accumulated(*between: str, output: bool = False, twice: bool = False) -> bool:
    """True if a product adds to the gradient buffer itself, with these steps between it and the sum."""
    w = Written()
    for name, shape in (("x", (4, N)), ("dy", (4, WIDTH)), ("dw", (N, WIDTH))):
        w.new(name, *shape)
    buffer = w.new("buffer", N, WIDTH, segment=GRADIENTS)
    w.product("dw", "x", "dy", a_turned=True)
    for step in between:
        what, _, name = step.partition(" ")
        (w.read if what == "read" else w.fill)(name)
    w.builder.accumulate(buffer, w.bufs["dw"], overwrite=False)
    if twice:
        w.read("dw")
    w.outputs = ["dw"] * output
    program = w.program()
    accumulate_in_place(program, pipelines.context())
    check_index(program)
    return any(isinstance(i, calls.Gemm) and i.accumulate for i in program)


def test_products_add_to_gradient_buffers() -> None:
    assert accumulated()


@pytest.mark.parametrize("between", ["read buffer", "fill buffer", "read dw", "fill dw"])
def test_products_do_not_add_before_others_have_seen_the_buffer_or_the_product(between: str) -> None:
    assert not accumulated(between)


def test_products_that_others_want_are_stored() -> None:
    assert not accumulated(output=True)
    assert not accumulated(twice=True)


# Pooling.


def masked_first(
    *after: str, output: bool = False, between: tuple[str, ...] = (), sign: str = "relu", zero: float = 0
) -> bool:
    """True if relu's gradient goes before the max pooling's, with steps after the pooling or between both.

    `sign`: the tensor whose elements choose gradients where they are above `zero`, which the others become.
    """
    w = Written()
    for name, size in (("x", 16), ("relu", 16), ("p", 4), ("dp", 4), ("drelu", 16), ("dx", 16)):
        w.new(name, size)
    b = w.bufs
    indices = w.builder.temp("int32", (4,))
    w.builder.elementwise([b["relu"]], [b["x"]], lambda e, x: e.pmax(x, e.const(0)))
    square = {"kernel": (2, 2), "out": (2, 2), "stride": (2, 2), "dilation": (1, 1), "pad": (0, 0)}
    w.builder.emit(calls.MaxPool(x=b["relu"], y=b["p"], indices=indices, planes=1, size=(4, 4), **square))
    for step in (*after, None, *between):
        if step is None:
            back = calls.MaxPoolGradient(dy=b["dp"], indices=indices, dx=b["drelu"], planes=1, size=16, out_size=4)
            w.builder.emit(back)
        else:
            what, _, name = step.partition(" ")
            (w.read if what == "read" else w.fill)(name)
    least = w.builder.emitter.const(zero)
    w.builder.elementwise(
        [b["dx"]], [b["drelu"], b[sign]], lambda e, g, y: e.select(e.compare("gt", y, least), g, least)
    )
    w.outputs = ["drelu"] * output
    program = w.program()
    mask_maxima(program, pipelines.context())
    check_index(program)
    (pooled,) = (i for i in program if isinstance(i, calls.MaxPoolGradient))
    return pooled is program.instructions[-1]


def test_maxima_are_masked() -> None:
    assert masked_first()
    assert masked_first("read relu", "read p")


@pytest.mark.parametrize("after", ["fill p", "fill relu"])
def test_maxima_are_not_masked_by_what_has_changed_since(after: str) -> None:
    assert not masked_first(after)


def test_maxima_are_masked_by_what_was_pooled_alone() -> None:
    assert not masked_first(sign="x")
    assert not masked_first(zero=0.5)


def test_gradients_of_pooling_that_others_want_are_stored() -> None:
    assert not masked_first(between=("read drelu",))
    assert not masked_first(output=True)


# Factors and epilogues.


def test_a_factor_of_a_sum_is_no_factor_of_the_product_that_is_added() -> None:
    w = Written()
    for name, shape in (("x", (N, N)), ("c", (N, N)), ("y", (N, N))):
        w.new(name, *shape)
    w.product("c", "x", "x")
    (product,) = w.builder.instructions
    assert isinstance(product, calls.Gemm)
    product.accumulate = 1
    w.builder.elementwise([w.bufs["y"]], [w.bufs["c"]], lambda e, a: e.mul(a, e.const(0.5)))
    for run in (absorb_factors, fuse_epilogues):
        program = w.program()
        run(program, pipelines.context())
        assert list(program) == w.builder.instructions


def test_a_factor_is_one_of_the_input_that_is_read() -> None:
    w = Written()
    for name in ("other", "x", "half", "c"):
        w.new(name, N, N)
    b = w.bufs
    # Outputs that nobody wants leave inputs behind that no other reads.
    w.builder.elementwise([b["half"]], [b["other"], b["x"]], lambda e, _, a: e.mul(a, e.const(0.5)))
    w.product("c", "half", "half")
    program = w.program()
    absorb_factors(program, pipelines.context())
    (product,) = program
    assert isinstance(product, calls.Gemm)
    assert product.a.storage is product.b.storage is b["x"].storage
    check_index(program)


def test_a_factor_of_both_operands_counts_twice() -> None:
    w = Written()
    for name in ("z", "half", "c"):
        w.new(name, N, N)
    w.builder.elementwise([w.bufs["half"]], [w.bufs["z"]], lambda e, a: e.mul(a, e.const(0.5)))
    w.product("c", "half", "half")
    program = w.program()
    absorb_factors(program, pipelines.context())
    (product,) = program
    assert isinstance(product, calls.Gemm)
    assert (product.alpha, product.a.storage, product.b.storage) == (0.25, w.bufs["z"].storage, w.bufs["z"].storage)
    check_index(program)


@pytest.mark.parametrize("kept", [True, False])
def test_a_bias_that_the_sum_overwrites_is_added_after_the_product(kept: bool) -> None:
    w = Written()
    for name, shape in (("x", (1, N)), ("w", (N, N)), ("c", (1, N)), ("bias", (1, N)), ("sum", (1, N))):
        w.new(name, *shape)
    w.product("c", "x", "w")
    out = w.bufs["sum" if kept else "bias"]
    w.builder.elementwise([out], [w.bufs["c"], w.bufs["bias"]], lambda e, a, b: e.add(a, b))
    program = w.program()
    fuse_epilogues(program, pipelines.context())
    (gemm,) = (i for i in program if isinstance(i, calls.Gemm))
    assert (gemm.bias is not None, len(list(program))) == ((True, 1) if kept else (False, 2))
    check_index(program)


BESIDE_EPILOGUES: dict[str, tuple[str, Callable[..., Expr | tuple[Expr, ...]]]] = {
    "two results": ("y z = c", lambda e, c: (e.pmax(c, e.const(0)), e.neg(c))),
    "a part of the result": ("y = first", lambda e, c: e.pmax(c, e.const(0))),
    "a result that is repeated": ("wide = row", lambda e, c: e.pmax(c, e.const(0))),
    "a constant less the result": ("y = c", lambda e, c: e.sub(e.const(0.5), c)),
    "a constant that is added": ("y = c", lambda e, c: e.add(c, e.const(0.5))),
    "the square": ("y = c", lambda e, c: e.mul(c, c)),
    "the inverse": ("y = c", lambda e, c: e.div(e.const(2), c)),
    "the double sum": ("y = c", lambda e, c: e.add(c, c)),
    "a bias along the rows": ("y = c column", lambda e, c, x: e.add(c, x)),
    "a product with another tensor": ("y = c bias", lambda e, c, x: e.mul(c, x)),
    "a factor of a sum with a bias": ("y = biased", lambda e, c: e.mul(c, e.const(0.5))),
    "a second bias": ("y = biased bias", lambda e, c, x: e.add(c, x)),
}
"""Results and operands of a call after a product, and what it computes that no product computes itself."""


@pytest.mark.parametrize("name", BESIDE_EPILOGUES)
def test_products_do_not_compute_what_is_no_epilogue(name: str) -> None:
    text, compute = BESIDE_EPILOGUES[name]
    outs, ins = (side.split() for side in text.split(" = "))
    w = Written()
    for tensor in ("x", "w", "c", "biased", "y", "z"):
        w.new(tensor, N, N)
    for tensor, shape in (("bias", (N,)), ("column", (N, 1)), ("one", (1, N)), ("row", (1, N)), ("wide", (N, N))):
        w.new(tensor, *shape)
    made = ins[0] if ins[0] in ("biased", "row") else "c"
    w.product(made, "one" if made == "row" else "x", "w")
    if made == "biased":
        product = w.builder.instructions[-1]
        assert isinstance(product, calls.Gemm)
        product.bias, product.beta, product.bias_col = w.bufs["bias"], 1.0, 1
    w.bufs["first"] = w.bufs["c"].view((1, N))
    if ins == ["first"]:
        w.bufs["y"] = w.bufs["y"].view((1, N))
    w.builder.elementwise([w.bufs[n] for n in outs], [w.bufs[n] for n in ins], compute)
    program = w.program()
    fuse_epilogues(program, pipelines.context())
    assert list(program) == w.builder.instructions


# Chains.


def gated(*between: str, kept: tuple[str, ...] = (), segment: int = ARENA) -> int:
    """Elementwise calls that are left of the gradients of y = sigmoid(a) b.

    A product reads that of b, then come steps, then the gradient of a, which reads the sigmoid.
    """
    w = Written()
    for name in ("a", "b", "dy", "s", "db", "w", "dx"):
        w.new(name, N, N)
    b, da = w.bufs, w.new("da", N, N, segment=segment)
    w.builder.elementwise([b["s"]], [b["a"]], lambda e, a: e.sigmoid(a))
    w.builder.elementwise([b["db"]], [b["dy"], b["s"]], lambda e, dy, s: e.mul(dy, s))
    w.product("dx", "db", "w")
    for step in between:
        what, _, name = step.partition(" ")
        if what == "read":
            w.read(name)
        else:
            w.builder.copy(b[name], b["w"])
    w.builder.elementwise(
        [da], [b["dy"], b["b"], b["s"]], lambda e, dy, b, s: e.mul(e.mul(dy, b), e.mul(s, e.sub(e.const(1), s)))
    )
    w.outputs = ["dx", "da", *kept]
    if segment == ARENA:
        w.read("da")
        w.outputs.remove("da")
    program = w.program()
    fuse_elementwise(program, pipelines.context())
    check_index(program)
    return sum(isinstance(i, ElementwiseCall) and len(i.ins) > 0 for i in program)


@pytest.mark.parametrize("between", [(), ("read s",), ("read b", "read db"), ("change db",)])
def test_a_chain_that_others_wait_for_takes_in_a_later_one(between: tuple[str, ...]) -> None:
    assert gated(*between) == 1


@pytest.mark.parametrize("between", ["change dy", "change s", "change b", "read da", "change da"])
def test_a_chain_stays_behind_what_changes_its_operands_or_sees_its_result(between: str) -> None:
    assert gated(between) == 2


def test_a_chain_stays_where_its_result_would_wait_beside_its_operands() -> None:
    assert gated(kept=("dy", "b")) == 1, "the sigmoid makes room"
    assert gated(kept=("dy", "b", "s")) == 2


def test_a_chain_that_changes_state_stays_behind_what_may_fail() -> None:
    assert gated(segment=GRADIENTS) == 2


def fused(w: Written) -> int:
    """Elementwise calls that are left of a program."""
    program = w.program()
    fuse_elementwise(program, pipelines.context())
    check_index(program)
    return sum(isinstance(i, ElementwiseCall) for i in program)


def test_a_chain_of_another_shape_takes_in_no_operand_that_is_repeated() -> None:
    w = Written()
    for name, shape in (("x", (N, N)), ("bias", (N,)), ("y", (N, N)), ("z", (N * N,))):
        w.new(name, *shape)
    b = w.bufs
    for operand, count in (("x", 1), ("bias", 2)):
        w.builder.instructions.clear()
        w.builder.elementwise([b["y"]], [b["x"], b[operand]], lambda e, x, v: e.add(x, v))
        w.builder.elementwise([b["z"]], [b["y"].view((N * N,))], lambda e, y: e.exp(y))
        w.outputs = ["z"]
        assert fused(w) == count


def test_a_chain_takes_in_no_call_of_another_size_that_leaves_its_result_unread() -> None:
    w = Written()
    for name, shape in (("x", (N, N)), ("y", (N, N)), ("q", (N,)), ("r", (N,))):
        w.new(name, *shape)
    b = w.bufs
    w.builder.elementwise([b["y"]], [b["x"]], lambda e, x: e.exp(x))
    w.builder.elementwise([b["r"]], [b["q"], b["y"]], lambda e, q, _: e.exp(q))
    w.read("r")
    w.outputs = ["y"]
    assert fused(w) == 2


@pytest.mark.parametrize(("start", "count"), [(0, 1), (1, 2), (N, 1)])
def test_a_chain_is_not_stored_across_its_operands(start: int, count: int) -> None:
    w = Written()
    x, y, w.outputs = w.new("x", 2 * N), w.new("y", N), ["x"]
    w.builder.elementwise([y], [x.view((N,))], lambda e, a: e.exp(a))
    w.builder.elementwise([x.view((N,), start)], [y], lambda e, a: e.tanh(a))
    assert fused(w) == count


@pytest.mark.parametrize(("inputs", "count"), [(MAX_BUFFERS - 2, 1), (MAX_BUFFERS - 1, 2)])
def test_a_chain_holds_no_more_addresses_than_registers(inputs: int, count: int) -> None:
    w = Written()
    ins = [w.new(f"x{k}", N) for k in range(inputs)]
    y, z, w.outputs = w.new("y", N), w.new("z", N), ["y", "z"]
    w.builder.elementwise([y], ins, lambda e, *xs: reduce(e.add, xs))
    w.builder.elementwise([z], [y], lambda e, x: e.exp(x))
    assert fused(w) == count


@pytest.mark.parametrize(("operations", "count"), [(MAX_OPERATIONS - 1, 1), (MAX_OPERATIONS, 2)])
def test_a_chain_has_a_limit_of_operations(operations: int, count: int) -> None:
    w = Written()
    x, y, z, w.outputs = w.new("x", N), w.new("y", N), w.new("z", N), ["z"]
    w.builder.elementwise([y], [x], lambda e, x: reduce(lambda v, k: e.add(v, e.const(k)), range(operations), x))
    w.builder.elementwise([z], [y], lambda e, x: e.exp(x))
    assert fused(w) == count


# Cheap results.


def repeated(*steps: str) -> set[str]:
    """Results that calls make themselves that read them.

    A step is "fill NAME" or "read NAME", or a result, its operands, and how many constants are added to their sum.
    """
    w = Written()
    for name in "xyzabcd":
        w.new(name, N, N)
    w.bufs["part of y"] = w.bufs["y"].view((N,))
    results = []
    for step in steps:
        what, _, name = step.partition(" ")
        if what in ("read", "fill"):
            (w.read if what == "read" else w.fill)(name)
            continue
        result, operands, constants = step.split(",")
        ins = [w.bufs[name] for name in operands.split("+")]
        out = w.bufs[result] if ins[-1].size == N * N else w.new(result, N)
        results.append(result)

        def compute(e: Emitter, *xs: Expr, count: str = constants) -> Expr:
            if count == "exp":
                return e.exp(reduce(e.add, xs))
            return reduce(lambda v, k: e.mul(v, e.const(float(k + 2))), range(int(count)), reduce(e.add, xs))

        w.builder.elementwise([out], ins, compute)
    w.outputs = [name for name in results if name in "abcd"]
    program = w.program()
    repeat_cheap(program, pipelines.context())
    check_index(program)
    return {name for name in results if not program.writers(w.bufs[name].storage)}


MANY = CHEAP_OPERATIONS - 1
"""Products with constants that are cheap, and still are with another operation."""


def test_cheap_results_are_made_where_they_are_read() -> None:
    assert repeated("y,x,1", "a,y+x,1", "b,y+x,1") == {"y"}
    assert repeated("y,x,1", "z,y+x,1", "a,z+x,1") == {"y", "z"}


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        (("y,x,1", "a,y+x,1", "fill x", "b,y+x,1"), ""),
        (("y,x,1", "a,y+x,1", "read y"), ""),
        (("y,x,exp", "a,y+x,1"), ""),
        ((f"y,x,{CHEAP_OPERATIONS}", "a,y+x,1"), "y"),
        ((f"y,x,{CHEAP_OPERATIONS + 1}", "a,y+x,1"), ""),
        (("y,x,1", "a,y+x,1", "b,y,1"), ""),
        (("y,x,1", "a,x+part of y,1"), ""),
        (("y,x,1", f"z,y+x,{MANY}", "a,z+x,1"), "y"),
        (("y,x,1", "z,y+x,1", "a,z,1"), "y"),
        (("y,x,1", "z,y+x,1", "a,z+x,1", "fill x", "b,z+x,1"), "y"),
    ],
    ids=str,
)
def test_results_are_stored_that_others_read_or_that_are_not_cheap(steps: tuple[str, ...], names: str) -> None:
    assert repeated(*steps) == set(names)


# Results that are kept from run to run.


def hoisted(*steps: str, outputs: tuple[str, ...] = ()) -> set[str]:
    """Results that are made once for all steps.

    A step is a result and its operands, and "loop" where a loop makes it. p is a frozen parameter, f a feed.
    """
    w = Written()
    for name in "xyzf":
        w.new(name, N)
    w.new("p", N, segment=PARAMETERS).storage.offset = 0
    w.bufs["f"].storage.is_feed = True
    for step in steps:
        result, *operands = (w.bufs[name] for name in step.removesuffix(" loop"))
        w.builder.elementwise([result], operands, lambda e, *xs: e.exp(reduce(e.add, xs)))
        if step.endswith("loop"):
            body = w.builder.instructions.pop()
            w.builder.instructions.append(LoopCall([body], 2, frozenset(), w.builder.temp("uint8", (8,)), "loop"))
    w.outputs = list(outputs)
    program, context = w.program(), pipelines.context()
    context.cache = Cache({0})
    hoist(program, context)
    check_index(program)
    made = {b.storage for part in program.hoisted.values() for i in part for b in i.writes}
    return {name for name in "xyz" if w.bufs[name].storage in made}


def test_results_of_parameters_are_kept_from_run_to_run() -> None:
    assert hoisted("xp", "yx", "zyf") == {"x", "y"}
    assert hoisted("xp", "xxp", "zxf") == {"x"}


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        (("xf", "yx", "zy"), ""),
        (("xp", "xxf", "yx", "zyf"), ""),
        (("xp", "yxf", "xf", "zx"), ""),
        (("xp", "yxf", "xxp", "zxf"), ""),
        (("yx", "zyf"), ""),
        (("xp", "yx loop", "zyf"), "x"),
    ],
    ids=str,
)
def test_results_are_made_in_each_step_that_it_may_change(steps: tuple[str, ...], names: str) -> None:
    assert hoisted(*steps) == set(names)


def test_outputs_are_made_in_each_step() -> None:
    assert hoisted("xp", "yx", "zyf", outputs=("x",)) == set()


# Copies that products do without.


def reads_in_place(*between: str, start: int = 0, rows: int = N, part: tuple[int, int] = (0, N)) -> bool:
    """True if a product reads x where it is instead of its transpose, with these steps between.

    `start`, `rows`: what the copy leaves out of the transpose; `part`: the first row that the product reads, and the
    number of rows.
    """
    w = Written()
    for name, shape in (("x", (N, N)), ("turned", (N, N)), ("y", (N, N)), ("c", (N, N))):
        w.new(name, *shape)
    strided_copy(w.builder, w.bufs["turned"], w.bufs["x"], (rows, N), (N, 1), (1, N), out_start=start)
    for name in between:
        w.fill(name)
    first, count = part
    w.bufs["turned"], w.bufs["c"] = w.bufs["turned"].view((count, N), N * first), w.bufs["c"].view((count, N))
    w.product("c", "turned", "y")
    program = w.program()
    absorb_copies(program, pipelines.context())
    check_index(program)
    (product,) = (i for i in program if isinstance(i, calls.Gemm))
    return product.a.storage is w.bufs["x"].storage


def test_products_read_transposed_tensors_in_place() -> None:
    assert reads_in_place()
    assert reads_in_place(part=(N - 1, 1))


def test_products_read_copies_of_what_changes_or_is_copied_in_part() -> None:
    assert not reads_in_place("x")
    assert not reads_in_place("turned")
    assert not reads_in_place(rows=N - 1)
    assert not reads_in_place(rows=N - 1, start=N, part=(N - 1, 1))


def stores_in_place(
    *between: str,
    before: tuple[str, ...] = (),
    target: int = ARENA,
    output: bool = False,
    accumulate: int = 0,
    strides: tuple[int, int] = (1, N),
    source: tuple[int, int] = (N, 1),
) -> bool:
    """True if a product stores its result where a copy would move it, with steps before and between."""
    w = Written()
    for name in ("x", "y", "c"):
        w.new(name, N, N)
    w.new("target", 2 * N * N, segment=target)
    for step in (*before, None, *between):
        if step is None:
            w.product("c", "x", "y")
            product = w.builder.instructions[-1]
            assert isinstance(product, calls.Gemm)
            product.accumulate = accumulate
        else:
            what, _, name = step.partition(" ")
            (w.read if what == "read" else w.fill)(name)
    strided_copy(w.builder, w.bufs["target"], w.bufs["c"], (N, N), strides, source)
    w.outputs = ["target", *["c"] * output]
    program = w.program()
    absorb_copies(program, pipelines.context())
    check_index(program)
    return not any(isinstance(i, calls.StridedCopy) for i in program)


def test_products_store_transposed_results_in_place() -> None:
    assert stores_in_place()
    assert stores_in_place(before=("fill target",))
    assert stores_in_place(target=GRADIENTS)


@pytest.mark.parametrize("between", ["read c", "fill c", "read target", "fill target"])
def test_products_store_no_result_that_others_read_or_change(between: str) -> None:
    assert not stores_in_place(between)


def test_products_store_what_is_wanted_or_has_no_row_in_order() -> None:
    assert not stores_in_place(output=True)
    assert not stores_in_place(before=("fill c",), accumulate=1)
    assert not stores_in_place(target=PARAMETERS)
    assert not stores_in_place(strides=(2, 2 * N))
    assert not stores_in_place(source=(0, 1))


# Results that are made again.


def made_again(*steps: str) -> set[str]:
    """Results that are made again before the last step, where everything is given up that can be.

    A step is "read NAME", or results and their operands, "yp = yp". p is a parameter, f a feed that is read in the end.
    """
    w = Written()
    for name in "xyzf":
        w.new(name, N)
    w.new("p", N, segment=PARAMETERS)
    w.bufs["f"].storage.is_feed = True
    for step in (*steps[:-1], "z = p", steps[-1], "z = f"):
        if step.startswith("read "):
            w.read(step.removeprefix("read "))
        else:
            outs, ins = ([w.bufs[name] for name in side] for side in step.split(" = "))
            w.builder.elementwise(outs, ins, lambda e, *xs: tuple(e.exp(x) for x in xs))
    program = Program(w.builder, [w.bufs["f"]], [], w.builder.instructions)
    schedule = Restless.of(program)
    repeated = [schedule.values.instructions[k] for k in schedule.repeated]
    return {name for name in "xyzfp" if any(b.storage is w.bufs[name].storage for i in repeated for b in i.writes)}


def test_results_are_made_again() -> None:
    assert made_again("x = f", "read x", "read x") == {"x"}
    assert made_again("x = f", "x = x", "read x", "read x") == {"x"}
    assert made_again("xy = fp", "read x", "read x") == {"x", "y"}


@pytest.mark.parametrize(
    "steps",
    [
        ("xp = fp", "read x", "read x"),
        ("x = f", "read x", "x = x", "read x", "read x"),
        ("f = f", "read f", "read f"),
        ("x = p", "read x", "p = f", "read x"),
    ],
    ids=str,
)
def test_results_are_kept_whose_makers_cannot_run_again(steps: tuple[str, ...]) -> None:
    assert not made_again(*steps)


def seen(instructions: Iterable[Instruction]) -> list[object]:
    """What the instructions store outside of the workspace, as text of what it is made of."""
    contents: dict[Storage, object] = {}
    stored = []
    for i in instructions:
        value = (i.node.removesuffix(", again"), *(contents.get(b.storage) for b in i.reads))
        contents |= {b.storage: value for b in i.writes}
        stored += [value for b in i.writes if b.storage.segment != ARENA]
    return stored


def test_a_schedule_within_any_limit_stores_what_the_program_stores() -> None:
    w = Written()
    for name in "fxyz":
        w.new(name, N)
    for name in "pqr":
        w.new(name, N, segment=PARAMETERS)
    w.bufs["f"].storage.is_feed = True
    for step in ("xf", "yx", "zy", "pz", "qxyz", "rf"):
        result, *operands = (w.bufs[name] for name in step)
        w.builder.node = step
        w.builder.elementwise([result], operands, lambda e, *xs: e.exp(reduce(e.add, xs)))
    program = Program(w.builder, [w.bufs["f"]], [], w.builder.instructions)
    fits = []
    for limit in range(0, 6 * align(1), align(1)):
        schedule = Schedule(Values(program), limit, 1.0)
        fits.append(schedule.run())
        assert not fits[-1] or seen(schedule.instructions) == seen(program)
    assert fits == [False] * 4 + [True] * 2


# State that is written last.


@pytest.mark.parametrize("fails", [False, True])
def test_state_is_copied_only_in_steps_that_may_fail_midway(fails: bool) -> None:
    w = Written()
    for name, segment in (("x", ARENA), ("y", ARENA), ("p", PARAMETERS)):
        w.new(name, N, segment=segment)
    w.builder.elementwise([w.bufs["p"]], [w.bufs["p"]], lambda e, x: e.exp(x))
    if fails:
        indices = w.builder.temp("int64", (N,))
        sizes = {"outer": 1, "dim": N, "n": N, "inner": 4, "index_size": 8}
        w.builder.emit(calls.Gather(data=w.bufs["x"], indices=indices, y=w.bufs["y"], **sizes))
    program = w.program()
    write_state_last(program, pipelines.context())
    check_index(program)
    assert (list(program) != w.builder.instructions) == fails
