"""Attention stays as it is where a step computes something else: small programs with one instruction in the way.

Each pattern is found without that instruction: it is the guard that is tested.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.python.test_pass_guards import WIDTH, N, Written

from trainweb.compiler.passes import attention as attention_pass
from trainweb.compiler.passes.attention import fuse_attention
from trainweb.ir import calls
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import KernelCall

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
    program = w.after(fuse_attention)
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


PLAIN: dict[str, Elementwise] = {
    "a condition": ("masked", "scores, condition", hidden(-1e4)),
    "a mask": ("masked", "scores, mask", added),
    "a factor": ("masked", "scores", scaled),
}
"""Changes of scores that attention makes itself."""
OTHERS: dict[str, Elementwise] = {
    "two tensors": ("masked", "scores, condition, other", lambda e, x, c, y: e.select(c, x, y)),
    "another tensor under a condition": (
        "masked",
        "scores, condition, other",
        lambda e, x, c, y: e.select(c, y, e.const(0)),
    ),
    "another tensor": ("masked", "scores, other", lambda e, x, y: y),
    "two results": ("masked, other", "scores, mask", lambda e, x, y: (e.add(x, y), e.neg(x))),
    "another shape": ("flat masked", "flat scores, flat mask", added),
    "a column": ("masked", "scores, column", added),
}
"""Changes of scores that it does not make."""


@pytest.mark.parametrize("name", PLAIN)
def test_scores_may_be_masked_or_scaled(name: str) -> None:
    assert attention(*MASKING, changes=IS_MASKED, more={"mask!": PLAIN[name]}).count("attention_f32") == 1


@pytest.mark.parametrize("name", OTHERS)
def test_attention_stays_where_scores_are_masked_in_another_way(name: str) -> None:
    assert "softmax_f32" in attention(*MASKING, changes=IS_MASKED, more={"mask!": OTHERS[name]})


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


OTHER_GRADIENTS: dict[str, dict[str, Elementwise]] = {
    "the others": {"dmask!": ("dmasked", "dscores, condition", hidden(0, inverse=True))},
    "another condition": {"dmask!": ("dmasked", "dscores, other condition", hidden(0))},
    "another number": {"dmask!": ("dmasked", "dscores, condition", hidden(1))},
    "no condition": {"dmask!": ("dmasked", "dscores", lambda e, x: x)},
    "a sum": {"dmask!": ("dmasked", "dscores, mask", added), "mask!": PLAIN["a mask"]},
    "another tensor": {"dmask!": ("dmasked", "other, dscores", scaled), "mask!": PLAIN["a factor"]},
}
"""Changes of the scores and of their gradient that do not belong together."""


@pytest.mark.parametrize("name", OTHER_GRADIENTS)
def test_attention_stays_where_gradients_of_scores_go_another_way(name: str) -> None:
    more = CONDITION | OTHER_GRADIENTS[name]
    assert "softmax_f32" in attention(*MASKING, *UNMASKING, changes=IS_MASKED, more=more)


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
    assert any(isinstance(i, calls.AttentionGradient) for i in w.after(fuse_attention)) == is_whole


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


NO_GUARDS: dict[str, dict[str, Elementwise]] = {
    "of another": {"nan!": ("is_nan", "weights, other", lambda e, x, y: e.compare("ne", x, y))},
    "of a number": {"nan!": ("is_nan", "weights", lambda e, x: e.compare("ne", x, e.const(0)))},
    "for another": {"zero!": ("kept", "other, is_nan, weights", lambda e, x, c, _: e.select(c, e.const(0), x))},
    "unread": {"zero!": ("kept", "weights, is_nan", scaled)},
    "of what is no NaN": {"zero!": ("kept", "weights, is_nan", hidden(0))},
    "with ones": {"zero!": ("kept", "weights, is_nan", hidden(1, inverse=True))},
    "of another gradient": {"dzero!": ("dkept", "dweights, is_nan", hidden(0))},
    "with ones in the gradient": {"dzero!": ("dkept", "dweights, is_nan", hidden(1, inverse=True))},
}
"""Steps that are no guard against NaN."""


@pytest.mark.parametrize("name", NO_GUARDS)
def test_attention_stays_where_a_guard_against_nan_is_none(name: str) -> None:
    assert "softmax_f32" in attention(*GUARDED, changes=IS_KEPT, more=IS_NAN | NO_GUARDS[name])


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
