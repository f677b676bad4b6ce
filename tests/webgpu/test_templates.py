"""Calls that no operator makes alone, against the kernels or numpy; NaN, infinities and random numbers."""

from math import erf, prod
from typing import Any

import numpy as np
import pytest
from tests.ops.test_sizes import SPECIAL
from tests.webgpu.cases import Case

from trainweb.backend.webgpu.templates import TEMPLATES
from trainweb.errors import TrainwebError
from trainweb.ir import calls
from trainweb.ir import layout as c
from trainweb.ir.instructions import Buf

FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": np.vectorize(erf),
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


def gemm(
    a: Buf, b: Buf, bias: Buf | None, out: Buf, k: int, *, is_turned: bool = False, accumulate: int = 0, **more: Any
) -> calls.Gemm:
    (m, n), none = out.shape, (0, 0)
    strides = dict(a_row=1, a_col=m, b_row=1, b_col=k) if is_turned else dict(a_row=k, a_col=1, b_row=n, b_col=1)
    return calls.Gemm(
        a=a, b=b, bias=bias, c=out, m=m, n=n, k=k, c_row=n, bias_row=0, bias_col=1, clears=0, alpha=0.5, beta=2.0,
        accumulate=accumulate, activation=accumulate, batch=(1, 1), a_batch=none, b_batch=none, c_batch=none,
        bias_batch=none, **strides,
    )  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), [(17, 1, 5), (33, 65, 67), (64, 10, 2000), (33, 8, 700)])
def test_products_add_to_their_results(m: int, n: int, k: int) -> None:
    case = Case()
    (out,) = case.results((m, n))
    case.builder.emit(gemm(case.normal(k, m), case.normal(n, k), case.normal(n), out, k, is_turned=True, accumulate=1))
    case.compare(4e-6)


def test_convolutions_add_to_their_results() -> None:
    case = Case()
    at: dict[str, Any] = dict(
        n=1, c=4, m=6, groups=2, size=(1, 8, 7), out=(1, 4, 3), kernel=(1, 3, 2), stride=(1, 2, 2),
        dilation=(1, 1, 2), pad=(0, 1, 0), accumulate=1,
    )  # fmt: skip
    x, w, dy, bias = case.normal(1, 4, 56), case.normal(6, 2, 6), case.normal(1, 6, 12), case.normal(6)
    y, dx, dw, db = case.results(*(b.shape for b in (dy, x, w, bias)))
    case.builder.emit(calls.Conv(x=x, w=w, bias=bias, y=y, activation=1, **at))
    case.builder.emit(calls.ConvDataGradient(dy=dy, w=w, dx=dx, activation=0, **at))
    case.builder.emit(calls.ConvWeightGradient(x=x, dy=dy, dw=dw, db=db, **at))
    case.compare(4e-6)


@pytest.mark.parametrize(
    ("m", "n", "form"), [(4, 768, "vector"), (8, 96, "vector"), (9, 96, ""), (4, 9000, ""), (1, 9000, "vector")]
)
def test_few_rows_have_many_lanes(m: int, n: int, form: str) -> None:
    """A tile for each lane would be 576 lanes for the first, of many thousands that a GPU has."""
    case = Case()
    call = gemm(case.normal(m, 768), case.normal(768, n), None, case.result((m, n)), 768)
    kernel = TEMPLATES[calls.Gemm](call)[0]
    assert kernel.shared is None if not form else kernel.shared is not None and form in kernel.shared.name
    if kernel.shared is not None:
        assert prod(kernel.shared.grid) == m * n * kernel.value("splits")


def test_nan_and_infinity_pass_through_products() -> None:
    case = Case()
    x = case.rng.standard_normal((6, 5)).astype(np.float32)
    x[1, 2], x[3, 0] = np.nan, np.inf
    out = case.result((6, 4))
    y = np.abs(case.rng.standard_normal((4, 5))).astype(np.float32)
    y[0, 2] = np.inf
    case.builder.emit(gemm(case.feed(x), case.feed(y), None, out, 5, is_turned=True, accumulate=1))
    (found,) = case.compare()
    assert np.isnan(found[1]).all() and (found[3, 1:] == np.inf).all()
    assert np.isfinite(found[[0, 2, 4, 5], 1:]).all()


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


@pytest.mark.parametrize(
    ("n", "classes", "d", "parts"), [(1, 1, 1, 1), (7, 1100, 5, 3), (67, 70, 130, 1), (5, 67, 400, 1)]
)
@pytest.mark.parametrize(
    ("reduction", "turned", "weighted"), [(c.LOSS_MEAN, 0, True), (c.LOSS_EACH, 1, False), (c.LOSS_SUM, 0, False)]
)
def test_loss_of_a_head_and_its_gradients(
    n: int, classes: int, d: int, parts: int, reduction: int, turned: int, weighted: bool
) -> None:
    case = Case()
    labels, of_class = case.rng.integers(0, classes, n), np.abs(case.rng.standard_normal(classes)).astype(np.float32)
    if weighted and n > 1:
        labels[2] = -100
    shape, of_w = (n,) if reduction == c.LOSS_EACH else (), (d, classes) if turned else (classes, d)
    w = case.feed(case.rng.standard_normal(of_w).astype(np.float32) / 4)
    x, slope, bias = case.normal(n, d), case.normal(*shape), case.normal(classes)
    loss, dx, log_sum, (dw,) = case.result(shape), case.result((n, d)), case.result((n,)), case.results(of_w)
    shared: dict[str, Any] = dict(
        x=x, w=w, bias=bias, labels=case.feed(labels),
        weights=case.feed(of_class) if weighted else None, n=n, c=classes, d=d, turned=turned, alpha=0.5, label_size=8,
        has_ignore=int(weighted), ignore_index=-100, reduction=reduction,
    )  # fmt: skip
    case.builder.emit(calls.HeadLoss(**shared, loss=loss, slope=dx, log_sum=log_sum, parts=parts, gradient=1))
    case.builder.emit(calls.HeadLossWeightGrad(**shared, dy=slope, log_sum=log_sum, dw=dw, accumulate=1))
    case.compare(1e-5)


@pytest.mark.parametrize(("n", "ratio"), [(1, 0.5), (67, 0.1), (40003, 0.3)])
def test_dropout_masks_are_those_of_the_kernels(n: int, ratio: float) -> None:
    case = Case()
    words = np.arange(c.STATE_WORDS, dtype=np.uint32)
    words[c.STATE_RANDOM_OFFSET] = 0xFFFFFFF8  # the sum with the draw carries
    case.state = words.tobytes()
    x, y, mask, state = case.normal(n), case.result((n,)), case.other("bool", (n,)), case.builder.state
    case.builder.emit(calls.Dropout(x=x, y=y, mask=mask, state=state, n=n, ratio=ratio, salt=7, draw=9))
    case.builder.emit(calls.RandomAdvance(state=state, n=5))
    found = case.compare(0)
    assert n < 100 or abs(found[1].mean() - (1 - ratio)) < 0.02


@pytest.mark.parametrize("normal", [0, 1])
def test_random_numbers_are_those_of_the_kernels(normal: int) -> None:
    case = Case()
    y = case.result((4001,))
    case.builder.emit(calls.Random(y=y, state=case.builder.state, n=4001, salt=3, draw=1, normal=normal, a=-2.0, b=5.0))
    (found,) = case.compare(3e-7)
    assert abs(found.mean() - (-2 if normal else 1.5)) < 0.3


PACKINGS = [
    (c.PACKED_4, 0, 4), (c.PACKED_4, 8, 4), (c.PACKED_8, 128, 8), (c.PACKED_16, 0, 16), (c.PACKED_HALF, 0, 16),
    (c.PACKED_BFLOAT, 0, 16),
]  # fmt: skip


@pytest.mark.parametrize(("packing", "flip", "bits"), PACKINGS)
@pytest.mark.parametrize("turned", [0, 1])
def test_packed_numbers(packing: int, flip: int, bits: int, turned: int) -> None:
    case = Case()
    m, n, k, block = 5, 7, 12, 4
    rows, cols = (n, k) if turned else (k, n)
    pitch = 8 if cols == 7 else 12
    if packing in (c.PACKED_HALF, c.PACKED_BFLOAT):
        wide = case.rng.standard_normal((rows, pitch)).astype(np.float32)
        raw = wide.astype(np.float16) if packing == c.PACKED_HALF else (wide.view(np.uint32) >> 16).astype(np.uint16)
        raw = raw.view(np.uint8)
    else:
        scales = case.rng.standard_normal((rows, -(-cols // block))).astype(np.float32)
        raw, zeros = (_packed(case.rng.integers(0, 1 << bits, n), bits) for n in ((rows, pitch), scales.shape))
    is_integer = packing <= c.PACKED_32
    layout: dict[str, Any] = dict(
        scale=case.feed(scales) if is_integer else None, zero=case.feed(zeros) if is_integer else None,
        pitch=pitch, packing=packing, flip=flip, center=0, block_rows=1, block_cols=block,
        scale_row=-(-cols // block), scale_col=1,
        zero_row=-(-cols // block), zero_col=1,
    )  # fmt: skip
    x, a = case.feed(raw), case.normal(m, k)
    whole, picked, out = case.result((rows, cols)), case.result((3, cols)), case.result((m, n))
    indices = case.feed(np.array([rows - 1, 0, -2]))
    case.builder.emit(calls.Dequantize(x=x, y=whole, rows=rows, cols=cols, **layout))
    sizes = {"rows": rows, "cols": cols}
    case.builder.emit(calls.GatherDequantized(x=x, indices=indices, y=picked, n=3, index_size=8, **sizes, **layout))
    case.builder.emit(
        calls.GemmQuantized(
            a=a, w=x, c=out, m=m, n=n, k=k, turned=turned, a_row=k, a_col=1, c_row=n, bias_row=0, bias_col=0, alpha=0.5,
            beta=0.0, accumulate=0, activation=0, clears=0, **layout,
        )
    )  # fmt: skip
    labels = case.integers(0, n, m)
    loss, slope = case.result((m,)), case.result((m, k))
    case.builder.emit(
        calls.HeadLossQuantized(
            x=a, w=x, labels=labels, loss=loss, slope=slope, n=m, c=n, d=k, turned=1 - turned, alpha=0.1,
            label_size=8, has_ignore=0, ignore_index=0, reduction=c.LOSS_EACH, parts=1, gradient=1, **layout,
        )
    )  # fmt: skip
    case.compare(1e-5)


def _packed(numbers: np.ndarray, bits: int) -> np.ndarray:
    flat = numbers.reshape(-1)
    if bits == 4:
        flat = np.append(flat, np.zeros(len(flat) % 2, flat.dtype))
        return (flat[::2] | flat[1::2] << 4).astype(np.uint8)
    return flat.astype({8: np.uint8, 16: np.uint16}[bits]).view(np.uint8)
