"""Every template against float64 numpy: sizes of 1 and primes, strides, offsets, NaN and infinities."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from tests.webgpu.cases import Case, close
from tests.webgpu.host import open_device

from trainweb.backend.chosen import TARGETS, WEBGPU
from trainweb.backend.webgpu.templates import TEMPLATES
from trainweb.errors import TrainwebError, UnsupportedError
from trainweb.ir import calls
from trainweb.ir import layout as c
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf, Storage
from trainweb.ir.layout import GRADIENTS, PARAMETERS
from trainweb.ir.program import Program

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 88.9, -88.9, 104.0, 1e30, -1e30, 0.5, 2.5, -3.5],
    np.float32,
)


@pytest.fixture(autouse=True)
def _device() -> None:
    open_device()


def erf(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.vectorize(erf)(x)


FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "log1p": np.log1p,
    "expm1": np.expm1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one_number(name: str) -> None:
    case = Case()
    x = np.concatenate([SPECIAL, case.rng.standard_normal(4001).astype(np.float32) * 8])
    x = x[np.abs(x) < 1e6] if name in ("sin", "cos") else x
    y = case.result(x.shape)
    case.builder.elementwise([y], [case.feed(x)], lambda e, a: e.math(name, a))
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name](x.astype(np.float64)).astype(np.float32)
    (found,) = case.run()
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    finite = np.isfinite(wanted)
    assert np.array_equal(found[~finite & ~np.isnan(wanted)], wanted[~finite & ~np.isnan(wanted)])
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=4e-7, atol=2e-7 if name in ("sin", "cos") else 1e-37)


def test_powers() -> None:
    case = Case()
    xs = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.7, 3.3, np.inf, -np.inf, np.nan], np.float32)
    ys = np.array([0.0, 1.0, 2.0, -1.0, 3.0, 0.5, -0.5, 2.5, np.inf, -np.inf, np.nan], np.float32)
    x, y = (a.reshape(-1) for a in np.meshgrid(xs, ys))
    out = case.result(x.shape)
    case.builder.elementwise([out], [case.feed(x), case.feed(y)], lambda e, a, b: e.math("pow", a, b))
    (found,) = case.run()
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=2e-6)


def _arithmetic(e: Emitter, a: Expr, b: Expr) -> tuple[Expr, ...]:
    chosen = e.select(e.compare("lt", a, b), e.mul(a, b), e.div(a, e.const(3.0)))
    return e.add(chosen, e.sqrt(e.abs(e.sub(a, b)))), e.max(a, b), e.min(a, b), e.pmax(a, b), e.floor(e.neg(a))


@pytest.mark.parametrize(
    "shapes", [((1,), (1,)), ((7, 13), (13,)), ((7, 1, 5), (1, 11, 1)), ((70001,), (70001,)), ((3, 1), (3, 997))]
)
def test_elementwise_calls_broadcast(shapes: tuple[tuple[int, ...], ...]) -> None:
    case = Case()
    operands = [case.normal(*shape) for shape in shapes]
    shape = np.broadcast_shapes(*shapes)
    outs = [case.result(shape) for _ in range(5)]
    case.builder.elementwise(outs, [b for b, _ in operands], _arithmetic)
    a, b = np.broadcast_arrays(*(array for _, array in operands))
    wanted = [np.where(a < b, a * b, a / 3) + np.sqrt(np.abs(a - b)), np.maximum(a, b), np.minimum(a, b)]
    for found, expected in zip(case.run(), [*wanted, np.maximum(a, b), np.floor(-a)], strict=True):
        close(found, expected)


def test_comparisons_and_bytes() -> None:
    """Results of bytes share words; NaN compares as nothing else does."""
    case = Case()
    a, b = (x.reshape(-1).copy() for x in np.meshgrid(SPECIAL, SPECIAL))
    x, y = case.feed(a), case.feed(b)
    names = ("lt", "le", "gt", "ge", "eq", "ne")
    outs = [case.other("bool", a.shape) for _ in names]
    case.builder.elementwise(outs, [x, y], lambda e, p, q: tuple(e.compare(name, p, q) for name in names))
    number = case.other("int64", a.shape)
    case.builder.elementwise(
        [number], [outs[0], x], lambda e, m, p: e.select(m, e.cast(p, "int64"), e.const(-3, "int64"))
    )
    *found, numbers = case.run()
    compare = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
    for result, how in zip(found, compare, strict=True):
        assert np.array_equal(result, how(a, b))
    mask = found[0] & (np.abs(a) < 1e9)
    assert np.array_equal(numbers[mask], a[mask].astype(np.int64))
    assert (numbers[~found[0]] == -3).all()


GEMMS = [
    (m, n, k, *rest)
    for (m, n, k), rest in zip(
        [(1, 1, 1), (1, 7, 13), (17, 1, 5), (5, 3, 2), (4, 4, 4), (33, 65, 67), (3, 130, 1031), (64, 10, 2000)],
        [(t, u, bias, relu) for t, u in product((0, 1), (0, 1)) for bias, relu in (("row", 1), ("", 0))],
        strict=True,
    )
]


@pytest.mark.parametrize(("m", "n", "k", "ta", "tb", "bias", "relu"), GEMMS)
@pytest.mark.parametrize("accumulate", [0, 1])
def test_products(m: int, n: int, k: int, ta: int, tb: int, bias: str, relu: int, accumulate: int) -> None:
    case = Case()
    a, x = case.normal(*((k, m) if ta else (m, k)))
    b, y = case.normal(*((n, k) if tb else (k, n)))
    w, v = case.normal(n) if bias else (None, np.zeros(n))
    before = case.rng.standard_normal((m, n)).astype(np.float32)
    out = case.result((m, n), before)
    case.builder.emit(
        gemm(a, b, w, out, (m, n, k), (ta, tb), alpha=0.5, beta=2.0, accumulate=accumulate, activation=relu)
    )
    wanted = 0.5 * (x.T if ta else x) @ (y.T if tb else y) + 2 * v + accumulate * before
    close(case.run()[0], np.maximum(wanted, 0) if relu else wanted, 4e-6)


def gemm(
    a: Buf, b: Buf, bias: Buf | None, out: Buf, sizes: tuple[int, int, int], transposed: tuple[int, int], **more: Any
) -> calls.Gemm:
    m, n, k = sizes
    none = (0, 0)
    given = {"batch": (1, 1), "a_batch": none, "b_batch": none, "c_batch": none, "bias_batch": none, **more}
    rows = {"a": (1, m) if transposed[0] else (k, 1), "b": (1, k) if transposed[1] else (n, 1)}
    strides = {f"{x}_{axis}": s for x, pair in rows.items() for axis, s in zip(("row", "col"), pair, strict=True)}
    return calls.Gemm(
        a=a, b=b, bias=bias, c=out, m=m, n=n, k=k, c_row=n, bias_row=0, bias_col=1, clears=0, **strides, **given
    )


SHARED = [(33, 70, 5, 0, 0), (65, 129, 37, 1, 0), (64, 32, 1100, 0, 1), (1, 7, 1100, 0, 1), (70, 1, 300, 1, 0)]
SHARED += [(5, 70, 300, 0, 0), (33, 8, 700, 1, 1)]


@pytest.mark.parametrize(("m", "n", "k", "ta", "tb"), SHARED)
def test_products_by_tiles_or_sums_that_lanes_share(m: int, n: int, k: int, ta: int, tb: int) -> None:
    case = Case()
    a, x = case.normal(*((k, m) if ta else (m, k)))
    b, y = case.normal(*((n, k) if tb else (k, n)))
    before = case.rng.standard_normal((m, n)).astype(np.float32)
    (w, v), out = case.normal(n), case.result((m, n), before)
    case.builder.emit(gemm(a, b, w, out, (m, n, k), (ta, tb), alpha=0.5, beta=1.0, accumulate=1, activation=0))
    close(case.run(is_tiled=True)[0], 0.5 * (x.T if ta else x) @ (y.T if tb else y) + v + before, 4e-6)


@pytest.mark.parametrize(
    ("m", "n", "form"), [(4, 768, "vector"), (8, 96, "vector"), (9, 96, ""), (4, 9000, ""), (1, 9000, "vector")]
)
def test_few_rows_have_many_lanes(m: int, n: int, form: str) -> None:
    """A tile for each lane would be 576 lanes for the first, of many thousands that a GPU has."""
    case = Case()
    sizes = (m, n, 768)
    call = gemm(case.normal(m, 768)[0], case.normal(768, n)[0], None, case.result((m, n)), sizes, (0, 0), alpha=1.0,
                beta=0.0, accumulate=0, activation=0)  # fmt: skip
    kernel = TEMPLATES[calls.Gemm](call)[0]
    assert kernel.shared is None if not form else kernel.shared is not None and form in kernel.shared.name
    if kernel.shared is not None:
        assert prod(kernel.shared.grid) == m * n * kernel.value("splits")


def test_convolutions_by_tiles_that_lanes_share() -> None:
    """The results are those of the other form."""
    found = []
    for is_tiled in (False, True):
        case = Case()
        axes = {"size": (1, 9, 7), "out": (1, 9, 7), "kernel": (1, 3, 3)}
        at: dict[str, Any] = dict(
            n=2, c=36, m=40, groups=1, stride=(1, 1, 1), dilation=(1, 1, 1), pad=(0, 1, 1), **axes
        )
        (x, _), (w, _), (dy, _) = case.normal(2, 36, 63), case.normal(40, 36, 9), case.normal(2, 40, 63)
        y, dx, dw = (case.result(b.shape) for b in (dy, x, w))
        case.builder.emit(calls.Conv(x=x, w=w, y=y, activation=0, accumulate=0, **at))
        case.builder.emit(calls.ConvDataGradient(dy=dy, w=w, dx=dx, activation=0, accumulate=0, **at))
        case.builder.emit(calls.ConvWeightGradient(x=x, dy=dy, dw=dw, accumulate=0, **at))
        found.append(case.run(is_tiled=is_tiled))
    for one, other in zip(*found, strict=True):
        close(one, other)


def test_products_in_batches_with_a_stride_of_0() -> None:
    case = Case()
    (a, x), (b, y) = case.normal(2, 3, 5, 7), case.normal(3, 7, 6)
    out = case.result((2, 3, 5, 6))
    batches = {"batch": (2, 3), "a_batch": (105, 35), "b_batch": (0, 42), "c_batch": (90, 30)}
    case.builder.emit(
        gemm(a, b, None, out, (5, 6, 7), (0, 0), alpha=1.0, beta=0.0, accumulate=0, activation=0, **batches)
    )
    close(case.run()[0], x @ y)


def test_nan_and_infinity_pass_through_products() -> None:
    case = Case()
    x = case.rng.standard_normal((6, 5)).astype(np.float32)
    x[1, 2], x[3, 0] = np.nan, np.inf
    out = case.result((6, 4))
    b = case.feed(np.abs(case.rng.standard_normal((5, 4))).astype(np.float32))
    case.builder.emit(
        gemm(case.feed(x), b, None, out, (6, 4, 5), (0, 0), alpha=1.0, beta=0.0, accumulate=0, activation=1)
    )
    (found,) = case.run()
    assert np.isnan(found[1]).all() and (found[3] == np.inf).all() and np.isfinite(found[[0, 2, 4, 5]]).all()


REDUCTIONS = {
    c.REDUCE_SUM: lambda x: x.sum(1),
    c.REDUCE_MEAN: lambda x: x.mean(1),
    c.REDUCE_MAX: lambda x: x.max(1),
    c.REDUCE_MIN: lambda x: x.min(1),
    c.REDUCE_PROD: lambda x: x.prod(1),
    c.REDUCE_SUM_SQUARES: lambda x: (x * x).sum(1),
    c.REDUCE_SUM_ABS: lambda x: np.abs(x).sum(1),
    c.REDUCE_NORM: lambda x: np.sqrt((x * x).sum(1)),
    c.REDUCE_LOG_SUM: lambda x: np.log(x.sum(1)),
    c.REDUCE_LOG_SUM_EXP: lambda x: np.log(np.exp(x).sum(1)),
}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 517, 1), (1, 97, 33), (5, 7, 13)])
def test_reductions(op: int, sizes: tuple[int, int, int]) -> None:
    case = Case()
    outer, n, inner = sizes
    x = (np.abs(case.rng.standard_normal(sizes)) + 0.2).astype(np.float32) if op == c.REDUCE_LOG_SUM else None
    b, x64 = case.normal(*sizes) if x is None else (case.feed(x), x.astype(np.float64))
    y = case.result((outer, inner))
    case.builder.emit(calls.Reduce(x=b, y=y, outer=outer, n=n, inner=inner, op=op))
    close(case.run()[0], REDUCTIONS[op](x64), 1e-5)


def test_a_reduction_of_more_rows_than_a_grid_is_wide() -> None:
    case = Case()
    b, x = case.normal(70001, 3, 1)
    y = case.result((70001, 1))
    case.builder.emit(calls.Reduce(x=b, y=y, outer=70001, n=3, inner=1, op=c.REDUCE_SUM))
    close(case.run()[0], x.sum(1))


@pytest.mark.parametrize("log", [0, 1])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 131, 1), (3, 7, 5)])
def test_softmax_and_its_gradient(log: int, sizes: tuple[int, int, int]) -> None:
    case = Case()
    outer, n, inner = sizes
    (x, x64), (dy, dy64) = case.normal(*sizes), case.normal(*sizes)
    y, dx = case.result(sizes), case.result(sizes)
    case.builder.emit(calls.Softmax(x=x, y=y, outer=outer, n=n, inner=inner, log=log))
    case.builder.emit(calls.SoftmaxGrad(dy=dy, y=y, dx=dx, outer=outer, n=n, inner=inner, log=log))
    p = np.exp(x64 - x64.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    found = case.run()
    close(found[0], np.log(p) if log else p)
    close(
        found[1], dy64 - p * dy64.sum(1, keepdims=True) if log else p * (dy64 - (dy64 * p).sum(1, keepdims=True)), 1e-5
    )


@pytest.mark.parametrize("reduction", [c.LOSS_EACH, c.LOSS_MEAN, c.LOSS_SUM])
@pytest.mark.parametrize(("weighted", "ignore"), [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("inner", [1, 5])
def test_cross_entropy_and_its_gradient(reduction: int, weighted: bool, ignore: bool, inner: int) -> None:
    case = Case()
    n, classes = 13, 67
    x, x64 = case.normal(n, classes, inner)
    labels = case.rng.integers(0, classes, (n, inner))
    labels[3] = 2
    w = np.abs(case.rng.standard_normal(classes)).astype(np.float32)
    weights = case.feed(w) if weighted else None
    each = reduction == c.LOSS_EACH
    slope = case.rng.standard_normal((n, inner) if each else ()).astype(np.float32)
    loss, log_prob, dx = case.result((n, inner) if each else ()), case.result(x.shape), case.result(x.shape)
    shared: dict[str, Any] = dict(
        labels=case.feed(labels), weights=weights, n=n, c=classes, inner=inner, label_size=8,
        has_ignore=int(ignore), ignore_index=2, reduction=reduction, from_log=0,
    )  # fmt: skip
    case.builder.emit(calls.CrossEntropy(scores=x, loss=loss, log_prob=log_prob, **shared))
    case.builder.emit(calls.CrossEntropyGrad(dy=case.feed(slope), log_prob=log_prob, dx=dx, **shared))
    lp = x64 - x64.max(1, keepdims=True)
    lp -= np.log(np.exp(lp).sum(1, keepdims=True))
    of_label = np.where(ignore & (labels == 2), 0.0, w[labels] if weighted else 1.0)
    chosen = np.eye(classes)[labels].transpose(0, 2, 1)
    rows = -of_label * (lp * chosen).sum(1)
    divisor = of_label.sum() if reduction == c.LOSS_MEAN else 1.0
    found = case.run()
    close(found[0], rows if each else rows.sum() / divisor)
    close(found[1], lp)
    scale = of_label * slope / divisor
    close(found[2], (np.exp(lp) - chosen) * scale[:, None])


def test_strided_copies_and_lookups() -> None:
    case = Case()
    b, x = case.normal(5, 7, 6)
    turned, rows, back = case.result((7, 6, 5)), case.result((4, 42)), case.result((5, 42))
    case.builder.emit(
        calls.StridedCopy(
            src=b, dst=turned, size=4, dims=(1, 1, 1, 1, 1, 7, 6, 5), src_offset=0, dst_offset=0,
            src_strides=(0, 0, 0, 0, 0, 6, 1, 42), dst_strides=(0, 0, 0, 0, 0, 30, 5, 1),
        )
    )  # fmt: skip
    indices = np.array([3, -1, 0, 3])
    at = case.feed(indices)
    case.builder.emit(calls.Gather(data=b, indices=at, y=rows, outer=1, dim=5, n=4, inner=168, index_size=8))
    dy, slopes = case.normal(4, 42)
    case.builder.emit(calls.GatherGrad(indices=at, dy=dy, dx=back, outer=1, dim=5, n=4, inner=42, index_size=8))
    found = case.run()
    assert np.array_equal(found[0], x.transpose(1, 2, 0).astype(np.float32))
    assert np.array_equal(found[1], x.reshape(5, 42)[indices].astype(np.float32))
    wanted = np.zeros((5, 42))
    np.add.at(wanted, indices, slopes)
    close(found[2], wanted)


@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (7, 131), (33, 16)])
def test_layer_normalization_and_its_gradient(rms: int, rows: int, n: int) -> None:
    case = Case()
    (x, x64), (scale, s), (bias, b), (dy, g) = (
        case.normal(rows, n),
        case.normal(n),
        case.normal(n),
        case.normal(rows, n),
    )
    y, mean, inv_std = case.result((rows, n)), case.result((rows,)), case.result((rows,))
    dx, dscale, dbias = case.result((rows, n)), case.result((n,)), case.result((n,))
    kept = None if rms else mean
    epsilon = 1e-2
    case.builder.emit(
        calls.LayerNorm(
            x=x,
            scale=scale,
            bias=None if rms else bias,
            y=y,
            mean=kept,
            inv_std=inv_std,
            rows=rows,
            n=n,
            epsilon=epsilon,
            rms=rms,
        )
    )
    case.builder.emit(
        calls.LayerNormGrad(
            dy=dy,
            x=x,
            scale=scale,
            mean=kept,
            inv_std=inv_std,
            dx=dx,
            dscale=dscale,
            dbias=None if rms else dbias,
            rows=rows,
            n=n,
            rms=rms,
        )
    )
    m = np.zeros((rows, 1)) if rms else x64.mean(1, keepdims=True)
    inverse = 1 / np.sqrt(((x64 - m) ** 2).mean(1, keepdims=True) + epsilon)
    normal = (x64 - m) * inverse
    slope = g * s
    wanted = inverse * (
        slope - (0 if rms else slope.mean(1, keepdims=True)) - normal * (slope * normal).mean(1, keepdims=True)
    )
    found = case.run()
    close(found[0], normal * s + (0 if rms else b), 1e-5)
    close(found[2], inverse[:, 0], 1e-5)
    close(found[3], wanted, 1e-5)
    close(found[4], (g * normal).sum(0), 1e-5)
    if not rms:
        close(found[5], g.sum(0), 1e-5)


CONVOLUTIONS = [
    dict(
        n=2, c=3, m=5, groups=1, size=(1, 9, 11), kernel=(1, 3, 3), stride=(1, 1, 1), dilation=(1, 1, 1), pad=(0, 1, 1)
    ),
    dict(
        n=1, c=4, m=6, groups=2, size=(1, 8, 7), kernel=(1, 3, 2), stride=(1, 2, 2), dilation=(1, 1, 2), pad=(0, 1, 0)
    ),
    dict(
        n=3, c=7, m=7, groups=7, size=(1, 6, 6), kernel=(1, 5, 5), stride=(1, 1, 1), dilation=(1, 1, 1), pad=(0, 2, 2)
    ),
    dict(
        n=2, c=2, m=3, groups=1, size=(5, 4, 6), kernel=(2, 3, 3), stride=(2, 1, 2), dilation=(1, 1, 1), pad=(1, 1, 0)
    ),
    dict(
        n=1, c=1, m=1, groups=1, size=(1, 1, 1), kernel=(1, 1, 1), stride=(1, 1, 1), dilation=(1, 1, 1), pad=(0, 0, 0)
    ),
    dict(
        n=2, c=6, m=5, groups=1, size=(1, 7, 9), kernel=(1, 1, 1), stride=(1, 2, 2), dilation=(1, 1, 1), pad=(0, 0, 0)
    ),
    dict(
        n=2, c=3, m=4, groups=1, size=(1, 13, 12), kernel=(1, 7, 7), stride=(1, 2, 2), dilation=(1, 1, 1), pad=(0, 3, 3)
    ),
    dict(
        n=2, c=2, m=3, groups=1, size=(1, 1, 40), kernel=(1, 1, 11), stride=(1, 1, 1), dilation=(1, 1, 2), pad=(0, 0, 5)
    ),
]
"""Windows of one element, as wide as a tile of a line, and wider than what is no loop."""


@pytest.mark.parametrize("at", CONVOLUTIONS, ids=lambda at: f"groups{at['groups']}-{at['size']}")
@pytest.mark.parametrize("accumulate", [0, 1])
def test_convolutions_and_their_gradients(at: dict[str, Any], accumulate: int) -> None:
    case = Case()
    n, channels, m, groups = at["n"], at["c"], at["m"], at["groups"]
    axes = zip(at["size"], at["kernel"], at["stride"], at["dilation"], at["pad"], strict=True)
    out = tuple(
        (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for size, kernel, stride, dilation, pad in axes
    )
    (x, x64), (w, w64) = case.normal(n, channels, *at["size"]), case.normal(m, channels // groups, *at["kernel"])
    (bias, b64), (dy, dy64) = case.normal(m), case.normal(n, m, *out)
    held = [case.rng.standard_normal(shape).astype(np.float32) for shape in ((n, m, *out), x64.shape, w64.shape, (m,))]
    y, dx, dw, db = (case.result(before.shape, before) for before in held)
    shared = {**at, "out": out, "accumulate": accumulate}
    case.builder.emit(calls.Conv(x=x, w=w, bias=bias, y=y, activation=1, **shared))
    case.builder.emit(calls.ConvDataGradient(dy=dy, w=w, dx=dx, activation=0, **shared))
    case.builder.emit(calls.ConvWeightGradient(x=x, dy=dy, dw=dw, db=db, **shared))
    wanted = [accumulate * before.astype(np.float64) for before in held]
    wanted[0] += b64[:, None, None, None]
    wanted[3] += dy64.sum((0, 2, 3, 4))
    per_in, per_out = channels // groups, m // groups
    for image, o, position in product(range(n), range(m), np.ndindex(*out)):
        for i, window in product(range(per_in), np.ndindex(*at["kernel"])):
            place = tuple(
                p * s + k * d - pad
                for p, s, k, d, pad in zip(position, at["stride"], window, at["dilation"], at["pad"], strict=True)
            )
            if all(0 <= p < size for p, size in zip(place, at["size"], strict=True)):
                source = (image, o // per_out * per_in + i, *place)
                wanted[0][(image, o, *position)] += w64[(o, i, *window)] * x64[source]
                wanted[1][source] += w64[(o, i, *window)] * dy64[(image, o, *position)]
                wanted[2][(o, i, *window)] += x64[source] * dy64[(image, o, *position)]
    found = case.run()
    close(found[0], np.maximum(wanted[0], 0), 4e-6)
    for result, expected in zip(found[1:], wanted[1:], strict=True):
        close(result, expected, 4e-6)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [((1, 2, 2), (1, 2, 2), (0, 0, 0)), ((1, 3, 3), (1, 1, 2), (0, 1, 1))]
)
def test_max_pools_and_their_gradient(kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...]) -> None:
    case = Case()
    planes, size = 5, (1, 8, 9)
    out = tuple((s + 2 * p - k) // t + 1 for s, k, t, p in zip(size, kernel, stride, pad, strict=True))
    x = case.rng.integers(0, 5, (planes, *size)).astype(np.float32)
    x[1, 0, 3, 3] = np.nan
    y, indices, dx = case.result((planes, *out)), case.other("int64", (planes, *out)), case.result(x.shape)
    dy, slopes = case.normal(planes, *out)
    case.builder.emit(
        calls.MaxPool(
            x=case.feed(x),
            y=y,
            indices=indices,
            planes=planes,
            size=size,
            kernel=kernel,
            out=out,
            stride=stride,
            dilation=(1, 1, 1),
            pad=pad,
        )
    )
    case.builder.emit(
        calls.MaxPoolGradient(
            dy=dy, indices=indices, dx=dx, planes=planes, size=int(np.prod(size)), out_size=int(np.prod(out))
        )
    )
    found = case.run()
    wanted, places, back = np.zeros((planes, *out)), np.zeros((planes, *out), np.int64), np.zeros(x.shape)
    for position in np.ndindex(planes, *out):
        window = [
            (position[0], *(p * t - q + k for p, t, q, k in zip(position[1:], stride, pad, inside, strict=True)))
            for inside in np.ndindex(*kernel)
        ]
        window = [at for at in window if all(0 <= a < s for a, s in zip(at[1:], size, strict=True))]
        values = [x[at] for at in window]
        best = next((n for n, v in enumerate(values) if np.isnan(v)), int(np.argmax(np.nan_to_num(values, nan=-1))))
        wanted[position], places[position] = values[best], np.ravel_multi_index(window[best], x.shape)
        back[window[best]] += slopes[position]
    close(found[0], wanted)
    assert np.array_equal(found[1], places)
    close(found[2], back)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 7, 33), (2, 3, 400)])
def test_batch_normalization_and_its_gradient(sizes: tuple[int, int, int]) -> None:
    case = Case()
    batch, channels, size = sizes
    (x, x64), (scale, s), (bias, b), (dy, g) = (case.normal(*shape) for shape in (sizes, sizes[1:2], sizes[1:2], sizes))
    means, variances = (np.abs(case.rng.standard_normal(channels)).astype(np.float32) for _ in range(2))
    outs = [case.result(shape) for shape in (sizes, (channels,), (channels,))]
    y, mean, inv_std = outs
    running = [case.result((channels,), held) for held in (means, variances)]
    stored, (dx, dscale, dbias) = (
        case.result(sizes),
        (case.result(shape) for shape in (sizes, (channels,), (channels,))),
    )
    shared = {"batch": batch, "channels": channels, "size": size}
    fixed = {"mean": case.feed(means), "var": case.feed(variances)}
    case.builder.emit(calls.BatchNorm(x=x, scale=scale, bias=bias, y=stored, epsilon=1e-2, **fixed, **shared))
    case.builder.emit(
        calls.BatchNormTrain(
            x=x, scale=scale, bias=bias, y=y, mean=mean, inv_std=inv_std, running_mean=running[0],
            running_var=running[1], epsilon=1e-2, momentum=0.75, **shared,
        )
    )  # fmt: skip
    gradient = {"dx": dx, "dscale": dscale, "dbias": dbias}
    case.builder.emit(calls.BatchNormGrad(dy=dy, x=x, scale=scale, mean=mean, inv_std=inv_std, **gradient, **shared))
    axes, wide = (0, 2), (slice(None), None)
    m, v = x64.mean(axes), x64.var(axes)
    inverse = 1 / np.sqrt(v + 1e-2)
    normal = (x64 - m[wide]) * inverse[wide]
    slope = g - g.mean(axes)[wide] - normal * (g * normal).mean(axes)[wide]
    wanted = [
        normal * s[wide] + b[wide], m, inverse, 0.75 * means + 0.25 * m, 0.75 * variances + 0.25 * v,
        (x64 - means[wide]) / np.sqrt(variances + 1e-2)[wide] * s[wide] + b[wide],
        (s * inverse)[wide] * slope, (g * normal).sum(axes), g.sum(axes),
    ]  # fmt: skip
    for found, expected in zip(case.run(), wanted, strict=True):
        close(found, expected, 2e-5)


@pytest.mark.parametrize(("value", "norm"), [(0.5, np.inf), (np.inf, 3.0), (1.0, 2.0), (np.inf, np.inf), (9.0, 1e9)])
@pytest.mark.parametrize("n", [1, 40003])
def test_clipping(value: float, norm: float, n: int) -> None:
    case = Case()
    g = case.rng.standard_normal(n).astype(np.float32)
    both, alone = case.result((n,), g), case.result((n,), g)
    case.builder.emit(calls.ClipGrads(g=both, limits=case.feed(np.array([value, norm], np.float32)), n=n))
    case.builder.emit(calls.ClipGradNorm(g=alone, n=n, max_norm=norm))
    for found, before in zip(
        case.run(), (np.clip(g.astype(np.float64), -value, value), g.astype(np.float64)), strict=True
    ):
        close(found, before * min(1, norm / (np.sqrt((before**2).sum()) + 1e-6)))


@pytest.mark.parametrize("largest", [3, 4])
def test_labels_that_a_model_computes_are_checked(largest: int) -> None:
    case = Case()
    (x, x64), given = case.normal(5, 4), np.array([-1, 0, 2, 1, largest - 1])
    labels, loss = case.builder.temp("int64", (5,)), case.result((5,))
    case.builder.elementwise([labels], [case.feed(given)], lambda e, a: e.add(a, e.const(1, "int64")))
    case.builder.emit(
        calls.CrossEntropy(
            scores=x, labels=labels, loss=loss, n=5, c=4, inner=1, label_size=8, has_ignore=0, ignore_index=0,
            reduction=c.LOSS_EACH, from_log=0,
        )
    )  # fmt: skip
    if largest == 4:
        with pytest.raises(TrainwebError, match="4"):
            case.run()
        return
    wanted = np.log(np.exp(x64).sum(1)) - x64[np.arange(5), given + 1]
    close(case.run()[0], wanted)


def test_indices_that_the_gpu_computes_are_refused() -> None:
    """A tail may use them, but it has no parameters."""
    case = Case()
    data = Buf(Storage(PARAMETERS, 48, 0), "float32", (4, 2))
    x, at = Buf(Storage(PARAMETERS, 60, 0), "float32", (3, 5)), case.builder.temp("int64", (3,))
    case.builder.emit(calls.ArgReduce(x=x, y=at, outer=3, n=5, inner=1, select_max=1, last_index=0))
    y = case.result((3, 2))
    case.builder.emit(calls.Gather(data=data, indices=at, y=y, outer=1, dim=4, n=3, inner=8, index_size=8))
    program = Program(case.builder, [], [], case.builder.instructions)
    with pytest.raises(UnsupportedError, match="indices that the GPU computes"):
        TARGETS[WEBGPU].compile_program(program, [0] * 9, 1 << 20)


def test_a_call_without_a_template_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TEMPLATES, calls.Topk)
    case = Case()
    b, _ = case.normal(3, 4)
    case.builder.node = "TopK node 'best'"
    out = case.builder.temp("float32", (3, 4))
    case.builder.elementwise([out], [b], lambda e, a: e.neg(a))
    y = Buf(Storage(GRADIENTS, 24, 0), "float32", (3, 2))
    case.builder.emit(calls.Topk(x=out, y=y, outer=3, n=4, inner=1, k=2, largest=1))
    program = Program(case.builder, [b], [], case.builder.instructions)
    with pytest.raises(UnsupportedError, match=r"TopK node 'best' needs the kernel topk_f32, .* device='wasm' runs it"):
        TARGETS[WEBGPU].compile_program(program, [0] * 9, 1 << 20)
