"""Passes leave alone what they would break: small programs in which one instruction stands in the way.

Each pattern is found without that instruction: it is the guard that is tested.
"""

from collections.abc import Callable, Iterable
from functools import reduce

import pytest
from tests.python import pipelines
from tests.python.products import product
from tests.python.test_program import check_index
from tests.python.test_recompute import Restless

from trainweb.compiler.context import Cache, Context
from trainweb.compiler.passes import head as head_pass
from trainweb.compiler.passes.accumulate import accumulate_in_place
from trainweb.compiler.passes.epilogue import absorb_factors, fuse_epilogues
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
from trainweb.ir.instructions import Buf, Instruction, KernelCall, Storage
from trainweb.ir.layout import ACTIVATION_RELU, ARENA, GRADIENTS, LOSS_MEAN, PARAMETERS, REDUCE_MAX, REDUCE_SUM
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

    def after(self, run: Callable[[Program, Context], None]) -> Program:
        """The program after a pass, whose index is right."""
        program = self.program()
        run(program, pipelines.context())
        check_index(program)
        return program


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
    program = w.after(fuse_head_loss)
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


def is_rotation(*between: str, factor: str = "cos", rows: int = N, formula: str = "", start: int = 0) -> bool:
    """Whether one call makes rows y of halves that cos and sin turn; `between` stands before the second half of y.

    A step reads or fills a tensor, covers the first column of y by that of a tensor, or copies the first half of x.
    `factor`: what the halves are multiplied by, "cos", "column" or a number; `rows`: of x, the others are ones;
    `formula`: "plus" for the other sign, "more" for another product, "beside" for one that is another result's;
    `start`: first column of what is taken for the first half.
    """
    w = Written()
    x, y = w.new("x", 1, rows, 2 * WIDTH), w.new("y", 1, N, 2 * WIDTH)
    names = ("x1", "x2", "cos", "sin", "real", "imaginary")
    x1, x2, cos, sin, real, imaginary = (w.new(name, 1, N, WIDTH) for name in names)
    w.bufs["half of y"] = y.view((WIDTH,), 0)
    w.new("column", 1, N, 1)
    for name in ("x", "cos", "sin"):
        w.bufs[name].storage.segment = GRADIENTS

    def take(half: Buf, column: int) -> None:
        strided_copy(w.builder, half, x, (rows, WIDTH), (WIDTH, 1), (2 * WIDTH, 1), source_start=column)

    for half, column in ((x1, start), (x2, WIDTH)):
        w.builder.fill(half, 1.0)
        take(half, column)
    ins = [x1, x2, w.bufs.get(factor, cos), sin]

    def by(e: Emitter, x: Expr, c: Expr) -> Expr:
        return e.mul(x, c if factor in w.bufs else e.const(float(factor)))

    def compute(e: Emitter, a: Expr, b: Expr, c: Expr, s: Expr) -> tuple[Expr, ...]:
        first = (e.add if formula == "plus" else e.sub)(by(e, a, c), e.mul(b, s))
        if formula == "beside":
            return first, e.mul(a, s)
        return (e.add(first, e.mul(a, s)) if formula == "more" else first,)

    outs = [w.new("other", 1, N, WIDTH), real] if formula == "beside" else [real]
    w.builder.elementwise(outs, ins, compute)
    w.builder.elementwise([imaginary], ins, lambda e, a, b, c, s: e.add(by(e, b, c), e.mul(a, s)))
    copy_axis(w.builder, y, real, 2, WIDTH, out_start=0)
    for step in between:
        what, name = step.split(" ", 1)
        if what == "cover":
            copy_axis(w.builder, y, w.bufs[name], 2, 1, out_start=0)
        elif what == "take":
            take(x1, 0)
        else:
            (w.read if what == "read" else w.fill)(name)
    copy_axis(w.builder, y, imaginary, 2, WIDTH, out_start=WIDTH)
    w.outputs = ["y"]
    program = w.after(fuse_rotary)
    said = ["another node reads or writes a part of the result"] if "read half of y" in between else []
    assert [r.reason for r in program.refusals if r.what == "rotary embedding"] == said
    return any(isinstance(i, calls.Rotary) for i in program)


def test_rotations_are_found() -> None:
    assert is_rotation() and is_rotation("read real")


@pytest.mark.parametrize("factor", ["column", "0.5"])
def test_rows_that_no_table_turns_stay(factor: str) -> None:
    assert not is_rotation(factor=factor)


def test_rows_stay_of_which_some_come_from_elsewhere_or_come_later() -> None:
    assert not is_rotation(rows=N - 1)
    assert not is_rotation("take x", start=WIDTH)


@pytest.mark.parametrize("formula", ["plus", "more", "beside"])
def test_rows_stay_that_are_turned_by_another_formula(formula: str) -> None:
    assert not is_rotation(formula=formula)


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
    program = w.after(accumulate_in_place)
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
    program = w.after(mask_maxima)
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


# Sums of products.


def summed(*between: str, turned: bool = False, strides: tuple[int, ...] = (N * N, 1, N), **changes: int) -> bool:
    """True if the sums of products of two batches each are stored scaled, or `turned`, without a call for it.

    `between`: "read NAME" before that; `strides`: of the copy in its target; `changes`: arguments of the product and of
    the sum, or the axes that the factor adds.
    """
    w = Written()
    for name in ("x", "z", "c"):
        w.new(name, 4, N, N)
    w.new("sums", 2, N, N)
    w.new("y", *(2,) * changes.pop("repeated", 0), 2, N, N)
    w.new("wide", 2, N, 2 * N)
    b = w.bufs
    w.product("c", "x", "z")
    first = w.builder.instructions[-1]
    assert isinstance(first, calls.Gemm)
    first.activation, first.c_row = changes.pop("activation", 0), changes.pop("c_row", N)
    if changes.pop("bias", 0):
        first.bias, first.beta = w.new("bias", N), 1.0
    numbers = {"outer": 2, "n": 2, "inner": N * N, "op": REDUCE_SUM} | changes
    w.builder.emit(calls.Reduce(x=b["c"], y=b["sums"], **numbers))
    for step in between:
        w.read(step.removeprefix("read "))
    if turned:
        target = b["y"] if strides[0] == N * N else b["wide"]
        strided_copy(w.builder, target, b["sums"], (2, N, N), strides, (N * N, N, 1))
    else:
        w.builder.elementwise([b["y"]], [b["sums"]], lambda e, a: e.mul(a, e.const(0.5)))
        target = b["y"]
    w.read("wide" if target is b["wide"] else "y")
    program = w.after(absorb_copies if turned else absorb_factors)
    product, total = program.instructions[:2]
    done = isinstance(total, calls.Reduce) and total.y.storage is target.storage
    assert isinstance(product, calls.Gemm) and product.alpha == (0.5 if done and not turned else 1)
    assert (product.a.storage is b["z"].storage) == (done and turned)
    return done


@pytest.mark.parametrize("turned", [False, True])
def test_sums_of_products_are_stored_as_what_reads_them_makes_them(turned: bool) -> None:
    assert summed(turned=turned)
    assert not summed("read c", turned=turned)
    assert not summed("read sums", turned=turned)
    assert not summed(turned=turned, op=REDUCE_MAX)
    assert not summed(turned=turned, bias=1)
    assert not summed(turned=turned, activation=ACTIVATION_RELU)


def test_only_sums_of_whole_matrices_are_turned() -> None:
    assert not summed(turned=True, c_row=N + 1)
    assert not summed(turned=True, strides=(N * N, N, 1))
    assert not summed(turned=True, strides=(2 * N * N, 1, 2 * N))
    assert not summed(turned=True, outer=2 * N, n=2, inner=N)
    assert not summed(turned=True, outer=1, n=2, inner=2 * N * N)


def test_a_factor_that_repeats_the_sum_stays() -> None:
    assert not summed(repeated=1)


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
    program = w.after(absorb_factors)
    (product,) = program
    assert isinstance(product, calls.Gemm)
    assert product.a.storage is product.b.storage is b["x"].storage


def test_a_factor_of_both_operands_counts_twice() -> None:
    w = Written()
    for name in ("z", "half", "c"):
        w.new(name, N, N)
    w.builder.elementwise([w.bufs["half"]], [w.bufs["z"]], lambda e, a: e.mul(a, e.const(0.5)))
    w.product("c", "half", "half")
    program = w.after(absorb_factors)
    (product,) = program
    assert isinstance(product, calls.Gemm)
    assert (product.alpha, product.a.storage, product.b.storage) == (0.25, w.bufs["z"].storage, w.bufs["z"].storage)


@pytest.mark.parametrize("kept", [True, False])
def test_a_bias_that_the_sum_overwrites_is_added_after_the_product(kept: bool) -> None:
    w = Written()
    for name, shape in (("x", (1, N)), ("w", (N, N)), ("c", (1, N)), ("bias", (1, N)), ("sum", (1, N))):
        w.new(name, *shape)
    w.product("c", "x", "w")
    out = w.bufs["sum" if kept else "bias"]
    w.builder.elementwise([out], [w.bufs["c"], w.bufs["bias"]], lambda e, a, b: e.add(a, b))
    program = w.after(fuse_epilogues)
    (gemm,) = (i for i in program if isinstance(i, calls.Gemm))
    assert (gemm.bias is not None, len(list(program))) == ((True, 1) if kept else (False, 2))


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
    program = w.after(fuse_epilogues)
    assert list(program) == w.builder.instructions


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
    program = w.after(absorb_copies)
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
    program = w.after(absorb_copies)
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
    program = w.after(write_state_last)
    assert (list(program) != w.builder.instructions) == fails
