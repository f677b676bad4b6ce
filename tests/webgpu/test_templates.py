"""Every template against the kernels, or numpy: sizes of 1 and primes, strides, offsets, NaN and infinities."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from tests.webgpu.cases import Case
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
    outs = [case.result(np.broadcast_shapes(*shapes)) for _ in range(5)]
    case.builder.elementwise(outs, [case.normal(*shape) for shape in shapes], _arithmetic)
    case.compare()


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
    a, b = case.normal(*((k, m) if ta else (m, k))), case.normal(*((n, k) if tb else (k, n)))
    w, (out,) = case.normal(n) if bias else None, case.results((m, n))
    case.builder.emit(
        gemm(a, b, w, out, (m, n, k), (ta, tb), alpha=0.5, beta=2.0, accumulate=accumulate, activation=relu)
    )
    case.compare(4e-6)


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
    a, b = case.normal(*((k, m) if ta else (m, k))), case.normal(*((n, k) if tb else (k, n)))
    (out,) = case.results((m, n))
    case.builder.emit(
        gemm(a, b, case.normal(n), out, (m, n, k), (ta, tb), alpha=0.5, beta=1.0, accumulate=1, activation=0)
    )
    case.compare(4e-6, is_tiled=True)


@pytest.mark.parametrize(
    ("m", "n", "form"), [(4, 768, "vector"), (8, 96, "vector"), (9, 96, ""), (4, 9000, ""), (1, 9000, "vector")]
)
def test_few_rows_have_many_lanes(m: int, n: int, form: str) -> None:
    """A tile for each lane would be 576 lanes for the first, of many thousands that a GPU has."""
    case = Case()
    sizes = (m, n, 768)
    call = gemm(case.normal(m, 768), case.normal(768, n), None, case.result((m, n)), sizes, (0, 0), alpha=1.0,
                beta=0.0, accumulate=0, activation=0)  # fmt: skip
    kernel = TEMPLATES[calls.Gemm](call)[0]
    assert kernel.shared is None if not form else kernel.shared is not None and form in kernel.shared.name
    if kernel.shared is not None:
        assert prod(kernel.shared.grid) == m * n * kernel.value("splits")


def test_convolutions_by_tiles_that_lanes_share() -> None:
    case = Case()
    at: dict[str, Any] = dict(
        n=2, c=36, m=40, groups=1, stride=(1, 1, 1), dilation=(1, 1, 1), pad=(0, 1, 1), size=(1, 9, 7), out=(1, 9, 7),
        kernel=(1, 3, 3), accumulate=0,
    )  # fmt: skip
    x, w, dy = case.normal(2, 36, 63), case.normal(40, 36, 9), case.normal(2, 40, 63)
    y, dx, dw = (case.result(b.shape) for b in (dy, x, w))
    case.builder.emit(calls.Conv(x=x, w=w, y=y, activation=0, **at))
    case.builder.emit(calls.ConvDataGradient(dy=dy, w=w, dx=dx, activation=0, **at))
    case.builder.emit(calls.ConvWeightGradient(x=x, dy=dy, dw=dw, **at))
    case.compare(4e-6, is_tiled=True)


def test_products_in_batches_with_a_stride_of_0() -> None:
    case = Case()
    a, b, out = case.normal(2, 3, 5, 7), case.normal(3, 7, 6), case.result((2, 3, 5, 6))
    batches = {"batch": (2, 3), "a_batch": (105, 35), "b_batch": (0, 42), "c_batch": (90, 30)}
    case.builder.emit(
        gemm(a, b, None, out, (5, 6, 7), (0, 0), alpha=1.0, beta=0.0, accumulate=0, activation=0, **batches)
    )
    case.compare()


def test_nan_and_infinity_pass_through_products() -> None:
    case = Case()
    x = case.rng.standard_normal((6, 5)).astype(np.float32)
    x[1, 2], x[3, 0] = np.nan, np.inf
    out = case.result((6, 4))
    y = np.abs(case.rng.standard_normal((4, 5))).astype(np.float32)
    y[0, 2] = np.inf
    case.builder.emit(
        gemm(case.feed(x), case.feed(y), None, out, (6, 4, 5), (0, 1), alpha=1.0, beta=1.0, accumulate=0, activation=1)
    )
    (found,) = case.compare()
    assert np.isnan(found[1]).all() and (found[3, 1:] == np.inf).all()
    assert np.isfinite(found[[0, 2, 4, 5], 1:]).all()


@pytest.mark.parametrize("op", range(c.REDUCE_LOG_SUM + 1))
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 517, 1), (1, 97, 33), (5, 7, 13)])
def test_reductions(op: int, sizes: tuple[int, int, int]) -> None:
    case = Case()
    outer, n, inner = sizes
    x = case.rng.standard_normal(sizes).astype(np.float32)
    b, y = case.feed(np.abs(x) + np.float32(0.2) if op == c.REDUCE_LOG_SUM else x), case.result((outer, inner))
    case.builder.emit(calls.Reduce(x=b, y=y, outer=outer, n=n, inner=inner, op=op))
    case.compare(1e-5)


def test_a_reduction_of_more_rows_than_a_grid_is_wide() -> None:
    case = Case()
    x, y = case.normal(70001, 3, 1), case.result((70001, 1))
    case.builder.emit(calls.Reduce(x=x, y=y, outer=70001, n=3, inner=1, op=c.REDUCE_SUM))
    case.compare()


@pytest.mark.parametrize("log", [0, 1])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 131, 1), (3, 7, 5)])
def test_softmax_and_its_gradient(log: int, sizes: tuple[int, int, int]) -> None:
    case = Case()
    outer, n, inner = sizes
    x, dy, y, dx = case.normal(*sizes), case.normal(*sizes), case.result(sizes), case.result(sizes)
    case.builder.emit(calls.Softmax(x=x, y=y, outer=outer, n=n, inner=inner, log=log))
    case.builder.emit(calls.SoftmaxGrad(dy=dy, y=y, dx=dx, outer=outer, n=n, inner=inner, log=log))
    case.compare(1e-5)


@pytest.mark.parametrize("reduction", [c.LOSS_EACH, c.LOSS_MEAN, c.LOSS_SUM])
@pytest.mark.parametrize(("weighted", "ignore"), [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("inner", [1, 5])
def test_cross_entropy_and_its_gradient(reduction: int, weighted: bool, ignore: bool, inner: int) -> None:
    case = Case()
    n, classes = 13, 67
    labels = case.rng.integers(0, classes, (n, inner))
    labels[3] = 2
    weights = case.feed(np.abs(case.rng.standard_normal(classes)).astype(np.float32)) if weighted else None
    shape = (n, inner) if reduction == c.LOSS_EACH else ()
    x, loss, log_prob, dx = (
        case.normal(n, classes, inner),
        *(case.result(s) for s in (shape, *[(n, classes, inner)] * 2)),
    )
    shared: dict[str, Any] = dict(
        labels=case.feed(labels), weights=weights, n=n, c=classes, inner=inner, label_size=8,
        has_ignore=int(ignore), ignore_index=2, reduction=reduction, from_log=0,
    )  # fmt: skip
    case.builder.emit(calls.CrossEntropy(scores=x, loss=loss, log_prob=log_prob, **shared))
    case.builder.emit(calls.CrossEntropyGrad(dy=case.normal(*shape), log_prob=log_prob, dx=dx, **shared))
    case.compare()


def test_strided_copies_and_lookups() -> None:
    case = Case()
    b = case.normal(5, 7, 6)
    turned, rows, back = case.result((7, 6, 5)), case.result((4, 42)), case.result((5, 42))
    case.builder.emit(
        calls.StridedCopy(
            src=b, dst=turned, size=4, dims=(1, 1, 1, 1, 1, 7, 6, 5), src_offset=0, dst_offset=0,
            src_strides=(0, 0, 0, 0, 0, 6, 1, 42), dst_strides=(0, 0, 0, 0, 0, 30, 5, 1),
        )
    )  # fmt: skip
    at = case.feed(np.array([3, -1, 0, 3]))
    case.builder.emit(calls.Gather(data=b, indices=at, y=rows, outer=1, dim=5, n=4, inner=168, index_size=8))
    case.builder.emit(
        calls.GatherGrad(indices=at, dy=case.normal(4, 42), dx=back, outer=1, dim=5, n=4, inner=42, index_size=8)
    )
    case.compare()


@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (7, 131), (33, 16)])
def test_layer_normalization_and_its_gradient(rms: int, rows: int, n: int) -> None:
    case = Case()
    wide, narrow = (rows, n), (n,)
    x, scale, bias, dy = (case.normal(*shape) for shape in (wide, narrow, narrow, wide))
    y, mean, inv_std, dx, dscale, dbias = (case.result(s) for s in (wide, (rows,), (rows,), wide, narrow, narrow))
    shared: dict[str, Any] = dict(
        x=x, scale=scale, mean=None if rms else mean, inv_std=inv_std, rows=rows, n=n, rms=rms
    )
    case.builder.emit(calls.LayerNorm(bias=None if rms else bias, y=y, epsilon=1e-2, **shared))
    case.builder.emit(calls.LayerNormGrad(dy=dy, dx=dx, dscale=dscale, dbias=None if rms else dbias, **shared))
    case.compare(1e-5)


CONVOLUTIONS = [
    ((2, 3, 5, 1), (1, 9, 11), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1)),
    ((1, 4, 6, 2), (1, 8, 7), (1, 3, 2), (1, 2, 2), (1, 1, 2), (0, 1, 0)),
    ((3, 7, 7, 7), (1, 6, 6), (1, 5, 5), (1, 1, 1), (1, 1, 1), (0, 2, 2)),
    ((2, 2, 3, 1), (5, 4, 6), (2, 3, 3), (2, 1, 2), (1, 1, 1), (1, 1, 0)),
    ((1, 1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0)),
    ((2, 6, 5, 1), (1, 7, 9), (1, 1, 1), (1, 2, 2), (1, 1, 1), (0, 0, 0)),
    ((2, 3, 4, 1), (1, 13, 12), (1, 7, 7), (1, 2, 2), (1, 1, 1), (0, 3, 3)),
    ((2, 2, 3, 1), (1, 1, 40), (1, 1, 11), (1, 1, 1), (1, 1, 2), (0, 0, 5)),
]
"""(n, c, m, groups), size, kernel, stride, dilation and pad.

Windows have one element, are as wide as a tile of a line, and wider than what is no loop."""


@pytest.mark.parametrize("window", CONVOLUTIONS, ids=lambda at: f"groups{at[0][3]}-{at[1]}")
@pytest.mark.parametrize("accumulate", [0, 1])
def test_convolutions_and_their_gradients(window: tuple[Any, ...], accumulate: int) -> None:
    case = Case()
    (n, channels, m, groups), *axes = window
    size, kernel, stride, dilation, pad = axes
    out = tuple((s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, t, d, p in zip(*axes, strict=True))
    x, w = case.normal(n, channels, *size), case.normal(m, channels // groups, *kernel)
    dy, bias = case.normal(n, m, *out), case.normal(m)
    y, dx, dw, db = case.results(*(b.shape for b in (dy, x, w, bias)))
    shared: dict[str, Any] = dict(
        n=n, c=channels, m=m, groups=groups, size=size, kernel=kernel, stride=stride, dilation=dilation, pad=pad,
        out=out, accumulate=accumulate,
    )  # fmt: skip
    case.builder.emit(calls.Conv(x=x, w=w, bias=bias, y=y, activation=1, **shared))
    case.builder.emit(calls.ConvDataGradient(dy=dy, w=w, dx=dx, activation=0, **shared))
    case.builder.emit(calls.ConvWeightGradient(x=x, dy=dy, dw=dw, db=db, **shared))
    case.compare(4e-6)


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
    shared: dict[str, Any] = dict(kernel=kernel, out=out, stride=stride, dilation=(1, 1, 1), pad=pad)
    case.builder.emit(calls.MaxPool(x=case.feed(x), y=y, indices=indices, planes=planes, size=size, **shared))
    sizes = {"planes": planes, "size": prod(size), "out_size": prod(out)}
    case.builder.emit(calls.MaxPoolGradient(dy=case.normal(planes, *out), indices=indices, dx=dx, **sizes))
    case.compare()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 7, 33), (2, 3, 400)])
def test_batch_normalization_and_its_gradient(sizes: tuple[int, int, int]) -> None:
    case = Case()
    batch, channels, size = sizes
    x, scale, bias, dy = (case.normal(*shape) for shape in (sizes, (channels,), (channels,), sizes))
    means, variances = (np.abs(case.rng.standard_normal(channels)).astype(np.float32) for _ in range(2))
    y, stored, dx = (case.result(sizes) for _ in range(3))
    mean, inv_std, dscale, dbias = (case.result((channels,)) for _ in range(4))
    running = {"running_mean": case.result((channels,), means), "running_var": case.result((channels,), variances)}
    shared = {"x": x, "scale": scale, "batch": batch, "channels": channels, "size": size}
    fixed = {"mean": case.feed(means), "var": case.feed(variances)}
    kept = {"mean": mean, "inv_std": inv_std}
    case.builder.emit(calls.BatchNorm(bias=bias, y=stored, epsilon=1e-2, **fixed, **shared))
    case.builder.emit(calls.BatchNormTrain(bias=bias, y=y, epsilon=1e-2, momentum=0.75, **kept, **running, **shared))
    case.builder.emit(calls.BatchNormGrad(dy=dy, dx=dx, dscale=dscale, dbias=dbias, **kept, **shared))
    case.compare(2e-5)


@pytest.mark.parametrize(("value", "norm"), [(0.5, np.inf), (np.inf, 3.0), (1.0, 2.0), (np.inf, np.inf), (9.0, 1e9)])
@pytest.mark.parametrize("n", [1, 40003])
def test_clipping(value: float, norm: float, n: int) -> None:
    case = Case()
    g = case.rng.standard_normal(n).astype(np.float32)
    both, alone = case.result((n,), g), case.result((n,), g)
    case.builder.emit(calls.ClipGrads(g=both, limits=case.feed(np.array([value, norm], np.float32)), n=n))
    case.builder.emit(calls.ClipGradNorm(g=alone, n=n, max_norm=norm))
    case.compare()


@pytest.mark.parametrize("largest", [3, 4])
def test_labels_that_a_model_computes_are_checked(largest: int) -> None:
    case = Case()
    x, given = case.normal(5, 4), np.array([-1, 0, 2, 1, largest - 1])
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
    else:
        case.compare()


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
    b = case.normal(3, 4)
    case.builder.node = "TopK node 'best'"
    out = case.builder.temp("float32", (3, 4))
    case.builder.elementwise([out], [b], lambda e, a: e.neg(a))
    y = Buf(Storage(GRADIENTS, 24, 0), "float32", (3, 2))
    case.builder.emit(calls.Topk(x=out, y=y, outer=3, n=4, inner=1, k=2, largest=1))
    program = Program(case.builder, [b], [], case.builder.instructions)
    with pytest.raises(UnsupportedError, match=r"TopK node 'best' needs the kernel topk_f32, .* device='wasm' runs it"):
        TARGETS[WEBGPU].compile_program(program, [0] * 9, 1 << 20)
