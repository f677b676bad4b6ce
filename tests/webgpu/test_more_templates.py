"""Random numbers, computed places, norms of groups, average pools, recurrent layers and packed numbers."""

import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.webgpu.cases import Case, close
from tests.webgpu.host import open_device

from trainweb.ir import calls
from trainweb.ir import layout as c


@pytest.fixture(autouse=True)
def _device() -> None:
    open_device()


@pytest.mark.parametrize(("n", "ratio"), [(1, 0.5), (67, 0.1), (40003, 0.3)])
def test_dropout_masks_are_those_of_the_kernels(n: int, ratio: float) -> None:
    found = []
    for on_kernels in (False, True):
        case = Case()
        words = np.arange(c.STATE_WORDS, dtype=np.uint32)
        words[c.STATE_RANDOM_OFFSET] = 0xFFFFFFF8  # the sum with the draw carries
        case.state = words.tobytes()
        x, y = case.normal(n)[0], case.result((n,))
        mask = case.other("bool", (n,))
        case.builder.emit(
            calls.Dropout(x=x, y=y, mask=mask, state=case.builder.state, n=n, ratio=ratio, salt=7, draw=9)
        )
        case.builder.emit(calls.RandomAdvance(state=case.builder.state, n=5))
        found.append(case.run(on_kernels=on_kernels))
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    assert n < 100 or abs(found[0][1].mean() - (1 - ratio)) < 0.02


@pytest.mark.parametrize("normal", [0, 1])
def test_random_numbers_are_those_of_the_kernels(normal: int) -> None:
    found = []
    for on_kernels in (False, True):
        case = Case()
        y = case.result((4001,))
        case.builder.emit(
            calls.Random(y=y, state=case.builder.state, n=4001, salt=3, draw=1, normal=normal, a=-2.0, b=5.0)
        )
        found.append(case.run(on_kernels=on_kernels)[0])
    close(found[0], found[1], 3e-7)
    assert abs(found[0].mean() - (-2 if normal else 1.5)) < 0.3


def test_attention_drops_the_scores_of_the_kernels() -> None:
    found = []
    for on_kernels in (False, True):
        case = Case()
        (q, _), (k, _), (v, _), (dy, _) = (case.normal(2, 9, 4) for _ in range(4))
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
        found.append(case.run(on_kernels=on_kernels))
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-5)


def test_elements_and_slices_by_their_places() -> None:
    case = Case()
    data, x = case.normal(5, 7, 6)
    at = case.rng.integers(-7, 7, (5, 4, 6))
    indices, (updates, u) = case.feed(at), case.normal(5, 4, 6)
    picked = case.result((5, 4, 6))
    dims, strides = (1, 1, 1, 1, 1, 5, 4, 6), (0, 0, 0, 0, 0, 42, 0, 1)
    shared: dict[str, Any] = dict(
        indices=indices, dims=dims, strides=strides, axis_dim=7, axis_stride=6, size=4, index_size=8
    )
    case.builder.emit(calls.GatherElements(data=data, y=picked, **shared))
    wanted = [np.take_along_axis(x, at, 1)]
    places = np.indices(at.shape)
    where = (places[0], at % 7, places[2])
    for reduction, apply in {
        c.SCATTER_SET: None, c.SCATTER_ADD: np.add, c.SCATTER_MUL: np.multiply, c.SCATTER_MAX: np.maximum,
        c.SCATTER_MIN: np.minimum,
    }.items():  # fmt: skip
        y = case.result(x.shape, x)
        case.builder.emit(
            calls.ScatterElements(updates=updates, y=y, reduction=reduction, type=c.SCATTER_F32, **shared)
        )
        held = x.copy()
        if apply is None:
            for place in np.ndindex(at.shape):
                held[place[0], at[place], place[2]] = u[place]
        else:
            apply.at(held, where, u)
        wanted.append(held)
    for found, expected in zip(case.run(), wanted, strict=True):
        close(found, expected)


def test_slices_by_tuples() -> None:
    case = Case()
    data, x = case.normal(2, 3, 4, 5)
    at = case.rng.integers(0, 3, (2, 6, 2)) - 1
    indices, (updates, u) = case.feed(at), case.normal(2, 6, 5)
    picked, held = case.result((2, 6, 5)), x.copy()
    y = case.result(x.shape, x)
    shared: dict[str, Any] = dict(
        indices=indices, batch=2, n=6, k=2, dims=(3, 4, 1, 1, 1, 1, 1, 1), slice=20, index_size=8
    )
    case.builder.emit(calls.GatherNd(data=data, y=picked, **shared))
    case.builder.emit(calls.ScatterNd(updates=updates, y=y, reduction=c.SCATTER_ADD, type=c.SCATTER_F32, **shared))
    np.add.at(held, (np.arange(2)[:, None], at[..., 0], at[..., 1]), u)
    found = case.run()
    close(found[0], x[np.arange(2)[:, None], at[..., 0], at[..., 1]])
    close(found[1], held)


@pytest.mark.parametrize(("dtype", "inner"), [("bool", 1), ("uint8", 3), ("bool", 8), ("uint8", 6)])
def test_rows_of_bytes(dtype: str, inner: int) -> None:
    """Masks of transformers are looked up with bool elements."""
    case = Case()
    x = case.rng.integers(0, 2 if dtype == "bool" else 256, (2, 5, inner)).astype(dtype)
    rows, tuples = case.rng.integers(-5, 5, 7), case.rng.integers(-5, 5, (2, 3, 1))
    data, taken, picked = case.feed(x), case.other(dtype, (2, 7, inner)), case.other(dtype, (2, 3, inner))
    case.builder.emit(
        calls.Gather(data=data, indices=case.feed(rows), y=taken, outer=2, dim=5, n=7, inner=inner, index_size=8)
    )
    case.builder.emit(
        calls.GatherNd(
            data=data,
            indices=case.feed(tuples),
            y=picked,
            batch=2,
            n=3,
            k=1,
            dims=(5, 1, 1, 1, 1, 1, 1, 1),
            slice=inner,
            index_size=8,
        )
    )
    found = case.run()
    assert np.array_equal(found[0], x[:, rows])
    assert np.array_equal(found[1], x[np.arange(2)[:, None], tuples[..., 0]])


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 130, 5)])
def test_sums_places_and_rows_along_an_axis(sizes: tuple[int, int, int]) -> None:
    case = Case()
    outer, n, inner = sizes
    x = case.rng.integers(-3, 4, sizes).astype(np.float32)
    if n > 1:
        x[1, 7, 2] = np.nan
    b, rows = case.feed(x), {"outer": outer, "n": n, "inner": inner}
    kinds = [*product((0, 1), (0, 1))]
    sums, places = [case.result(sizes) for _ in kinds], [case.other("int64", (outer, inner)) for _ in kinds]
    for (first, second), y, at in zip(kinds, sums, places, strict=True):
        case.builder.emit(calls.Cumsum(x=b, y=y, exclusive=first, reverse=second, **rows))
        case.builder.emit(calls.ArgReduce(x=b, y=at, select_max=first, last_index=second, **rows))
    labels = case.rng.integers(-n, n, (outer, inner))
    hot = case.result((outer, n, inner))
    values = case.feed(np.array([0.5, 2.0], np.float32))
    case.builder.emit(
        calls.OneHot(
            indices=case.feed(labels), values=values, y=hot, outer=outer, depth=n, inner=inner, size=4, index_size=8
        )
    )
    found = case.run()
    for (exclusive, reverse), result in zip(kinds, found[: len(kinds)], strict=True):
        turned = x[:, ::-1] if reverse else x
        total = turned.astype(np.float64).cumsum(1) - (turned if exclusive else 0)
        wanted = total[:, ::-1] if reverse else total
        if exclusive and n > 1:
            wanted[1, 7, 2] = result[1, 7, 2]  # NaN less itself
        close(result, wanted, 1e-5)
    for (most, last), result in zip(kinds, found[len(kinds) : -1], strict=True):
        key = np.where(np.isnan(x), np.inf, x if most else -x)
        wanted = n - 1 - key[:, ::-1].argmax(1) if last else key.argmax(1)
        assert np.array_equal(result, wanted)
    close(found[-1], np.where(np.arange(n)[:, None] == (labels % n)[:, None], 2.0, 0.5))


@pytest.mark.parametrize(("batch", "channels", "size", "groups"), [(1, 1, 1, 1), (3, 6, 35, 2), (2, 4, 300, 4)])
def test_group_normalization_and_its_gradient(batch: int, channels: int, size: int, groups: int) -> None:
    case = Case()
    shape = (batch, channels, size)
    (x, x64), (scale, s), (bias, b), (dy, g) = (case.normal(*n) for n in (shape, (channels,), (channels,), shape))
    y, dx, dscale, dbias = (case.result(n) for n in (shape, shape, (channels,), (channels,)))
    shared: dict[str, Any] = dict(
        x=x, scale=scale, batch=batch, channels=channels, size=size, groups=groups, epsilon=1e-2
    )
    case.builder.emit(calls.GroupNorm(bias=bias, y=y, **shared))
    case.builder.emit(calls.GroupNormGrad(dy=dy, dx=dx, dscale=dscale, dbias=dbias, **shared))
    rows = x64.reshape(batch, groups, -1)
    inverse = 1 / np.sqrt(rows.var(-1, keepdims=True) + 1e-2)
    normal = (rows - rows.mean(-1, keepdims=True)) * inverse
    slope = (g * s[:, None]).reshape(rows.shape)
    back = inverse * (slope - slope.mean(-1, keepdims=True) - normal * (slope * normal).mean(-1, keepdims=True))
    normal = normal.reshape(shape)
    wanted = [normal * s[:, None] + b[:, None], back.reshape(shape), (g * normal).sum((0, 2)), g.sum((0, 2))]
    for found, expected in zip(case.run(), wanted, strict=True):
        close(found, expected, 1e-5)


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
    (x, x64), (dy, g) = case.normal(planes, *size), case.normal(planes, *out)
    y, dx = case.result((planes, *out)), case.result((planes, *size))
    shared: dict[str, Any] = dict(
        planes=planes, size=size, kernel=kernel, out=out, stride=stride, dilation=dilation, pad=pad, pad_end=end,
        count_include_pad=counted,
    )  # fmt: skip
    case.builder.emit(calls.AveragePool(x=x, y=y, **shared))
    case.builder.emit(calls.AveragePoolGradient(dy=dy, dx=dx, **shared))
    wanted, back = np.zeros((planes, *out)), np.zeros((planes, *size))
    for position in np.ndindex(*out):
        places = [
            tuple(o * t - p + k * d for o, t, p, k, d in zip(position, stride, pad, inside, dilation, strict=True))
            for inside in np.ndindex(*kernel)
        ]
        within = [at for at in places if all(0 <= a < s for a, s in zip(at, size, strict=True))]
        padded = [at for at in places if all(-p <= a < s + q for a, s, p, q in zip(at, size, pad, end, strict=True))]
        count = max(1, len(padded if counted else within))
        for at in within:
            wanted[(slice(None), *position)] += x64[(slice(None), *at)] / count
            back[(slice(None), *at)] += g[(slice(None), *position)] / count
    found = case.run()
    close(found[0], wanted)
    close(found[1], back)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _layer(
    cell: int, x: np.ndarray, r: np.ndarray, bias: np.ndarray, lengths: np.ndarray, h: np.ndarray, s: np.ndarray
) -> tuple[np.ndarray, ...]:
    """A recurrent layer in float64."""
    hidden, ys = h.shape[1], []
    w = r.reshape(-1, hidden, hidden)
    for t, step in enumerate(x):
        a = np.split(step, len(w), 1)
        p = [h @ m.T + part for m, part in zip(w, np.split(bias, len(w)), strict=True)]
        if cell == c.CELL_LSTM:
            i, o, f = (_sigmoid(a[n] + p[n]) for n in range(3))
            new_s = f * s + i * np.tanh(a[3] + p[3])
            new = o * np.tanh(new_s)
        elif cell in (c.CELL_GRU, c.CELL_GRU_LINEAR):
            z, reset = (_sigmoid(a[n] + p[n]) for n in range(2))
            part = reset * p[2] if cell == c.CELL_GRU_LINEAR else (reset * h) @ w[2].T + np.split(bias, 3)[2]
            new, new_s = (1 - z) * np.tanh(a[2] + part) + z * h, s
        else:
            v = a[0] + p[0]
            new, new_s = (np.maximum(v, 0) if cell == c.CELL_RNN_RELU else np.tanh(v)), s
        goes_on = (t < lengths)[:, None]
        h, s = np.where(goes_on, new, h), np.where(goes_on, new_s, s)
        ys.append(np.where(goes_on, new, 0))
    return np.array(ys), h, s


@pytest.mark.parametrize("cell", range(5))
@pytest.mark.parametrize("span", [1, 1 << 24])
def test_recurrent_layers(cell: int, span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["trainweb.backend.webgpu.templates.recurrence"], "MOST_WORK", span)
    case = Case()
    steps, batch, hidden = 4, 3, 67
    gates = calls.cell_gates(cell)
    x, r, bias = (
        case.rng.standard_normal(n).astype(np.float32) / 4
        for n in ((steps, batch, gates * hidden), (gates * hidden, hidden), (gates * hidden,))
    )
    lengths = np.array([4, 2, 3], np.int32)
    h0, c0, dh, dc = (case.rng.standard_normal((batch, hidden)).astype(np.float32) for _ in range(4))
    dy = case.rng.standard_normal((steps, batch, hidden)).astype(np.float32)
    y, h, s = case.result(dy.shape), case.result(h0.shape), case.result(h0.shape)
    kept = case.result((steps, batch, calls.cell_kept(cell) * hidden))
    before, cells = case.result(dy.shape), case.result(dy.shape)
    is_lstm = cell == c.CELL_LSTM
    shared: dict[str, Any] = dict(
        r=case.feed(r), lengths=case.feed(lengths), steps=steps, batch=batch, hidden=hidden, cell=cell, reverse=0,
        gates=kept, before=before, cells=cells if is_lstm else None,
    )  # fmt: skip
    first = {"h0": case.feed(h0), "c0": case.feed(c0) if is_lstm else None, "h": h, "c": s if is_lstm else None}
    case.builder.emit(calls.Recurrence(x=case.feed(x), bias=case.feed(bias), y=y, **first, **shared))
    dx, dproduct, dh0, dc0 = case.result(x.shape), case.result(x.shape), case.result(h0.shape), case.result(h0.shape)
    last = {"dh": case.feed(dh), "dc": case.feed(dc) if is_lstm else None, "dh0": dh0, "dc0": dc0 if is_lstm else None}
    case.builder.emit(calls.RecurrenceGradient(dy=case.feed(dy), dx=dx, dproduct=dproduct, **last, **shared))
    found = case.run()
    arrays = [a.astype(np.float64) for a in (x, r, bias, lengths, h0, c0)]
    for result, wanted in zip(found[: 3 if is_lstm else 2], _layer(cell, *arrays), strict=False):
        close(result, wanted, 1e-5)

    def total(*changed: np.ndarray) -> float:
        ys, last_h, last_s = _layer(cell, *changed)
        return float((ys * dy).sum() + (last_h * dh).sum() + is_lstm * (last_s * dc).sum())

    for position, result in ((0, found[6]), (4, found[8]), *([(5, found[9])] if is_lstm else [])):
        direction = case.rng.standard_normal(arrays[position].shape)
        ends = []
        for sign in (1e-5, -1e-5):
            changed = [*arrays]
            changed[position] = arrays[position] + sign * direction
            ends.append(total(*changed))
        slope = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose((result * direction).sum(), slope, rtol=2e-4, atol=2e-4)


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
    if packing == c.PACKED_HALF:
        wide = case.rng.standard_normal((rows, pitch)).astype(np.float16)
        raw, w = wide.view(np.uint8), wide.astype(np.float64)
    elif packing == c.PACKED_BFLOAT:
        words = case.rng.standard_normal((rows, pitch)).astype(np.float32).view(np.uint32) >> 16
        raw, w = (
            words.astype(np.uint16).view(np.uint8),
            (words << 16).astype(np.uint32).view(np.float32).astype(np.float64),
        )
    else:
        numbers = case.rng.integers(0, 1 << bits, (rows, pitch))
        scales = case.rng.standard_normal((rows, -(-cols // block))).astype(np.float32)
        zeros = case.rng.integers(0, 1 << bits, scales.shape)
        spread = [np.repeat(a, block, 1)[:, :cols] for a in (scales.astype(np.float64), zeros)]
        w = ((numbers[:, :cols] ^ flip) - (spread[1] ^ flip)) * spread[0]
        raw, zero_bytes = _packed(numbers, bits), _packed(zeros, bits)
    is_integer = packing <= c.PACKED_32
    layout: dict[str, Any] = dict(
        scale=case.feed(scales) if is_integer else None, zero=case.feed(zero_bytes) if is_integer else None,
        pitch=pitch, packing=packing, flip=flip, center=0, block_rows=1, block_cols=block,
        scale_row=-(-cols // block), scale_col=1,
        zero_row=-(-cols // block), zero_col=1,
    )  # fmt: skip
    w, x = w[:, :cols], case.feed(raw)
    whole, picked, out = case.result((rows, cols)), case.result((3, cols)), case.result((m, n))
    indices = np.array([rows - 1, 0, -2])
    case.builder.emit(calls.Dequantize(x=x, y=whole, rows=rows, cols=cols, **layout))
    case.builder.emit(
        calls.GatherDequantized(
            x=x, indices=case.feed(indices), y=picked, n=3, index_size=8, rows=rows, cols=cols, **layout
        )
    )
    a, a64 = case.normal(m, k)
    case.builder.emit(
        calls.GemmQuantized(
            a=a, w=x, c=out, m=m, n=n, k=k, turned=turned, a_row=k, a_col=1, c_row=n, bias_row=0, bias_col=0, alpha=0.5,
            beta=0.0, accumulate=0, activation=0, clears=0, **layout,
        )
    )  # fmt: skip
    labels = case.rng.integers(0, n, m)
    loss, slope = case.result((m,)), case.result((m, k))
    case.builder.emit(
        calls.HeadLossQuantized(
            x=a, w=x, labels=case.feed(labels), loss=loss, slope=slope, n=m, c=n, d=k, turned=1 - turned, alpha=0.1,
            label_size=8, has_ignore=0, ignore_index=0, reduction=c.LOSS_EACH, parts=1, gradient=1, **layout,
        )
    )  # fmt: skip
    found = case.run()
    close(found[0], w)
    close(found[1], w[indices])
    of_class = w if turned else w.T
    close(found[2], 0.5 * a64 @ of_class.T, 4e-6)
    scores = 0.1 * a64 @ of_class.T
    scores -= scores.max(1, keepdims=True)
    total = np.exp(scores).sum(1, keepdims=True)
    close(found[3], np.log(total[:, 0]) - scores[np.arange(m), labels], 1e-5)
    p = np.exp(scores) / total
    close(found[4], 0.1 * (p - np.eye(n)[labels]) @ of_class, 1e-5)


def _packed(numbers: np.ndarray, bits: int) -> np.ndarray:
    flat = numbers.reshape(-1)
    if bits == 4:
        flat = np.append(flat, np.zeros(len(flat) % 2, flat.dtype))
        return (flat[::2] | flat[1::2] << 4).astype(np.uint8)
    return flat.astype({8: np.uint8, 16: np.uint16}[bits]).view(np.uint8)
