"""Random numbers, computed places, norms of groups, average pools, recurrent layers and packed numbers."""

import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.webgpu.cases import Case
from tests.webgpu.host import open_device

from trainweb.ir import calls
from trainweb.ir import layout as c


@pytest.fixture(autouse=True)
def _device() -> None:
    open_device()


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


def test_attention_drops_the_scores_of_the_kernels() -> None:
    case = Case()
    q, k, v, dy = (case.normal(2, 9, 4) for _ in range(4))
    y, top, inverse = case.result((2, 9, 4)), case.result((2, 9)), case.result((2, 9))
    results = {name: case.result((2, 9, 4)) for name in ("dq", "dk", "dv")}
    rows = {f"{name}_strides": (0, 36, 4) for name in ("q", "k", "v", "y")}
    shared: dict[str, Any] = dict(
        q=q, k=k, v=v, state=case.builder.state, batch=(1, 2), group=1, m=9, n=9, d=4, e=4, scale=0.5, fill=0.0,
        ratio=0.4, salt=2, draw=1, mask_strides=(0, 0, 0), y=y, top=top, inverse=inverse,
    )  # fmt: skip
    case.builder.emit(calls.Attention(**shared, **rows, guarded=0))
    rows |= {f"d{name}_strides": (0, 36, 4) for name in ("y", "q", "k", "v")}
    case.builder.emit(calls.AttentionGradient(**shared, **rows, **results, dy=dy, conditional=0, parts=1))
    case.compare(1e-5)


def test_elements_and_slices_by_their_places() -> None:
    case = Case()
    data, indices, updates = case.normal(5, 7, 6), case.integers(-7, 7, 5, 4, 6), case.normal(5, 4, 6)
    shared: dict[str, Any] = dict(
        indices=indices, dims=(1, 1, 1, 1, 1, 5, 4, 6), strides=(0, 0, 0, 0, 0, 42, 0, 1), axis_dim=7, axis_stride=6,
        size=4, index_size=8,
    )  # fmt: skip
    case.builder.emit(calls.GatherElements(data=data, y=case.result((5, 4, 6)), **shared))
    for reduction in (c.SCATTER_SET, c.SCATTER_ADD, c.SCATTER_MUL, c.SCATTER_MAX, c.SCATTER_MIN):
        (y,) = case.results(data.shape)
        case.builder.emit(
            calls.ScatterElements(updates=updates, y=y, reduction=reduction, type=c.SCATTER_F32, **shared)
        )
    case.compare()


def test_slices_by_tuples() -> None:
    case = Case()
    data, indices, updates = case.normal(2, 3, 4, 5), case.integers(-1, 2, 2, 6, 2), case.normal(2, 6, 5)
    picked, (y,) = case.result((2, 6, 5)), case.results(data.shape)
    shared: dict[str, Any] = dict(
        indices=indices, batch=2, n=6, k=2, dims=(3, 4, 1, 1, 1, 1, 1, 1), slice=20, index_size=8
    )
    case.builder.emit(calls.GatherNd(data=data, y=picked, **shared))
    case.builder.emit(calls.ScatterNd(updates=updates, y=y, reduction=c.SCATTER_ADD, type=c.SCATTER_F32, **shared))
    case.compare()


@pytest.mark.parametrize(("dtype", "inner"), [("bool", 1), ("uint8", 3), ("bool", 8), ("uint8", 6)])
def test_rows_of_bytes(dtype: str, inner: int) -> None:
    """Masks of transformers are looked up with bool elements."""
    case = Case()
    data = case.feed(case.rng.integers(0, 2 if dtype == "bool" else 256, (2, 5, inner)).astype(dtype))
    rows, tuples = case.integers(-5, 5, 7), case.integers(-5, 5, 2, 3, 1)
    taken, picked = case.other(dtype, (2, 7, inner)), case.other(dtype, (2, 3, inner))
    case.builder.emit(calls.Gather(data=data, indices=rows, y=taken, outer=2, dim=5, n=7, inner=inner, index_size=8))
    case.builder.emit(
        calls.GatherNd(
            data=data, indices=tuples, y=picked, batch=2, n=3, k=1, dims=(5, 1, 1, 1, 1, 1, 1, 1), slice=inner,
            index_size=8,
        )
    )  # fmt: skip
    case.compare(0)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 130, 5)])
def test_sums_places_and_rows_along_an_axis(sizes: tuple[int, int, int]) -> None:
    case = Case()
    outer, n, inner = sizes
    x = case.rng.integers(-3, 4, sizes).astype(np.float32)
    if n > 1:
        x[1, 7, 2] = np.nan
    b, rows = case.feed(x), {"outer": outer, "n": n, "inner": inner}
    for first, second in product((0, 1), (0, 1)):
        y, at = case.result(sizes), case.other("int64", (outer, inner))
        case.builder.emit(calls.Cumsum(x=b, y=y, exclusive=first, reverse=second, **rows))
        case.builder.emit(calls.ArgReduce(x=b, y=at, select_max=first, last_index=second, **rows))
    labels, values = case.integers(-n, n, outer, inner), case.feed(np.array([0.5, 2.0], np.float32))
    hot = {"y": case.result((outer, n, inner)), "outer": outer, "depth": n, "inner": inner}
    case.builder.emit(calls.OneHot(indices=labels, values=values, size=4, index_size=8, **hot))
    case.compare(1e-5)


@pytest.mark.parametrize(("batch", "channels", "size", "groups"), [(1, 1, 1, 1), (3, 6, 35, 2), (2, 4, 300, 4)])
def test_group_normalization_and_its_gradient(batch: int, channels: int, size: int, groups: int) -> None:
    case = Case()
    shape = (batch, channels, size)
    x, scale, bias, dy = (case.normal(*n) for n in (shape, (channels,), (channels,), shape))
    y, dx, dscale, dbias = (case.result(n) for n in (shape, shape, (channels,), (channels,)))
    shared: dict[str, Any] = dict(
        x=x, scale=scale, batch=batch, channels=channels, size=size, groups=groups, epsilon=1e-2
    )
    case.builder.emit(calls.GroupNorm(bias=bias, y=y, **shared))
    case.builder.emit(calls.GroupNormGrad(dy=dy, dx=dx, dscale=dscale, dbias=dbias, **shared))
    case.compare(1e-5)


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pad", "end"),
    [((1, 2, 2), (1, 2, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0)), ((2, 3, 3), (1, 2, 3), (1, 2, 1), (1, 2, 1), (0, 2, 1))],
)
def test_average_pools_and_their_gradient(
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    pad: tuple[int, ...],
    end: tuple[int, ...],
    counted: int,
) -> None:
    case = Case()
    planes, size = 3, (3, 8, 9)
    axes = [*zip(size, kernel, stride, dilation, pad, end, strict=True)]
    out = tuple((s + p + q - d * (k - 1) - 1) // t + 1 for s, k, t, d, p, q in axes)
    x, dy = case.normal(planes, *size), case.normal(planes, *out)
    y, dx = case.result(dy.shape), case.result(x.shape)
    shared: dict[str, Any] = dict(
        planes=planes, size=size, kernel=kernel, out=out, stride=stride, dilation=dilation, pad=pad, pad_end=end,
        count_include_pad=counted,
    )  # fmt: skip
    case.builder.emit(calls.AveragePool(x=x, y=y, **shared))
    case.builder.emit(calls.AveragePoolGradient(dy=dy, dx=dx, **shared))
    case.compare()


@pytest.mark.parametrize("cell", range(5))
@pytest.mark.parametrize("span", [1, 1 << 24])
def test_recurrent_layers(cell: int, span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["trainweb.backend.webgpu.templates.recurrence"], "MOST_WORK", span)
    case = Case()
    steps, batch, hidden = 4, 3, 67
    gates, is_lstm = calls.cell_gates(cell), cell == c.CELL_LSTM
    sizes = (steps, batch, gates * hidden), (gates * hidden, hidden), (gates * hidden,)
    x, r, bias = (case.feed(case.rng.standard_normal(n).astype(np.float32) / 4) for n in sizes)
    h0, c0, dh, dc = (case.normal(batch, hidden) for _ in range(4))
    y, before, cells = (case.result((steps, batch, hidden)) for _ in range(3))
    h, s, dh0, dc0 = (case.result((batch, hidden)) for _ in range(4))
    kept, dx, dproduct = (case.result((steps, batch, n * hidden)) for n in (calls.cell_kept(cell), gates, gates))
    shared: dict[str, Any] = dict(
        r=r, lengths=case.feed(np.array([4, 2, 3], np.int32)), steps=steps, batch=batch, hidden=hidden, cell=cell,
        reverse=0, gates=kept, before=before, cells=cells if is_lstm else None,
    )  # fmt: skip
    first = {"h0": h0, "c0": c0 if is_lstm else None, "h": h, "c": s if is_lstm else None}
    case.builder.emit(calls.Recurrence(x=x, bias=bias, y=y, **first, **shared))
    last = {"dh": dh, "dc": dc if is_lstm else None, "dh0": dh0, "dc0": dc0 if is_lstm else None}
    dy = case.normal(steps, batch, hidden)
    case.builder.emit(calls.RecurrenceGradient(dy=dy, dx=dx, dproduct=dproduct, **last, **shared))
    case.compare(1e-5)


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
