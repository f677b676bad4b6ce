"""Attention, rotary embedding and the loss of a head against float64 numpy, with all scores in memory."""

from typing import Any

import numpy as np
import pytest
from tests.webgpu.cases import Case, close
from tests.webgpu.host import open_device

from trainweb.ir import calls
from trainweb.ir import layout as c

FILL = -1e9


@pytest.fixture(autouse=True)
def _device() -> None:
    open_device()


def strides(shape: tuple[int, ...], heads_inside: bool) -> tuple[int, int, int]:
    """Strides of [batch, heads, rows, width], or of [batch, rows, heads, width] under the same names."""
    _, heads, rows, width = shape
    if heads_inside:
        return rows * heads * width, width, heads * width
    return heads * rows * width, rows * width, width


def stored(array: np.ndarray, heads_inside: bool) -> np.ndarray:
    return array.transpose(0, 2, 1, 3) if heads_inside else array


def named(array: np.ndarray, heads_inside: bool) -> np.ndarray:
    return array.transpose(0, 2, 1, 3) if heads_inside else array


def softmax(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        p = np.exp(x - x.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)


SIZES = [
    ((1, 1), 1, (1, 1, 1, 1)),
    ((2, 3), 1, (5, 7, 3, 2)),
    ((1, 4), 2, (67, 131, 16, 24)),
    ((2, 6), 3, (33, 64, 70, 65)),
    ((1, 1), 1, (3, 200, 256, 256)),
]


@pytest.mark.parametrize(("batch", "group", "sizes"), SIZES)
@pytest.mark.parametrize(("masked", "inside"), [(False, True), (True, False)])
def test_attention_and_its_gradient(
    batch: tuple[int, int], group: int, sizes: tuple[int, int, int, int], masked: bool, inside: bool
) -> None:
    case = Case()
    (outer, heads), (m, n, d, e) = batch, sizes
    shapes = {"q": (outer, heads, m, d), "k": (outer, heads // group, n, d), "v": (outer, heads // group, n, e)}
    shapes |= {"y": (outer, heads, m, e), "dy": (outer, heads, m, e)}
    steps = {f"{name}_strides": strides(shape, inside) for name, shape in shapes.items()}
    steps |= {f"d{name}_strides": steps[f"{name}_strides"] for name in "qkv"}
    arrays = {name: case.rng.standard_normal(shapes[name]).astype(np.float32) for name in ("q", "k", "v", "dy")}
    feeds = {name: case.feed(stored(a, inside)) for name, a in arrays.items()}
    q, k, v, dy = (a.astype(np.float64) for a in arrays.values())
    mask = case.rng.standard_normal((outer, 1, m, n)).astype(np.float32)
    mask[case.rng.random(mask.shape) < 0.4] = -np.inf
    shared: dict[str, Any] = dict(
        mask=case.feed(mask) if masked else None, mask_strides=(m * n, 0, n), batch=batch, group=group, m=m, n=n, d=d,
        e=e, scale=d**-0.5, fill=FILL, ratio=0.0, salt=0, draw=0,
    )  # fmt: skip
    y = case.result(stored(np.empty(shapes["y"]), inside).shape)
    top, inverse = case.result((outer, heads, m)), case.result((outer, heads, m))
    gradients = [case.result(stored(np.empty(shapes[name]), inside).shape) for name in "qkv"]
    operands = {name: feeds[name] for name in "qkv"}
    places = {name: steps[f"{name}_strides"] for name in "qkvy"}
    case.builder.emit(
        calls.Attention(
            **operands,
            **shared,
            y=y,
            top=top,
            inverse=inverse,
            guarded=0,
            **{f"{n}_strides": s for n, s in places.items()},
        )
    )
    case.builder.emit(
        calls.AttentionGradient(
            **operands, **shared, **steps, y=y, dy=feeds["dy"], top=top, inverse=inverse, dq=gradients[0],
            dk=gradients[1], dv=gradients[2], conditional=int(masked), parts=1,
        )
    )  # fmt: skip
    k, v = (np.repeat(a, group, 1) for a in (k, v))
    scores = d**-0.5 * q @ k.transpose(0, 1, 3, 2)
    hidden = np.isneginf(mask) if masked else np.zeros(mask.shape, bool)
    if masked:
        scores = np.where(hidden, FILL, scores + np.where(hidden, 0, mask))
    p = softmax(scores)
    slope = dy @ v.transpose(0, 1, 3, 2)
    ds = d**-0.5 * p * (slope - (slope * p).sum(-1, keepdims=True)) * ~hidden
    by_k, by_v = ds.transpose(0, 1, 3, 2) @ q, p.transpose(0, 1, 3, 2) @ dy
    by_k, by_v = (a.reshape(outer, heads // group, group, *a.shape[2:]).sum(2) for a in (by_k, by_v))
    found = case.run()
    for result, wanted in zip([found[0], *found[3:]], (p @ v, ds @ k, by_k, by_v), strict=True):
        close(named(result, inside), wanted, 3e-5)
    close(found[1], scores.max(-1))


@pytest.mark.parametrize("guarded", [0, 1])
def test_rows_of_attention_that_are_masked_wholly(guarded: int) -> None:
    case = Case()
    (q, _), (k, _), (v, v64) = case.normal(3, 4), case.normal(70, 4), case.normal(70, 5)
    mask = np.zeros((3, 70), np.float32)
    mask[1] = -np.inf
    y = case.result((3, 5))
    rows = {"q_strides": (0, 0, 4), "k_strides": (0, 0, 4), "v_strides": (0, 0, 5), "y_strides": (0, 0, 5)}
    case.builder.emit(
        calls.Attention(
            q=q, k=k, v=v, mask=case.feed(mask), y=y, batch=(1, 1), group=1, m=3, n=70, d=4, e=5, scale=0.0,
            mask_strides=(0, 0, 70), fill=-np.inf, ratio=0.0, salt=0, draw=0, guarded=guarded, **rows,
        )
    )  # fmt: skip
    (found,) = case.run()
    close(found[[0, 2]], np.tile(v64.mean(0), (2, 1)))
    assert (found[1] == 0).all() if guarded else np.isnan(found[1]).all()


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize(("dims", "half"), [((1, 1, 1), 1), ((2, 3, 5), 7)])
def test_rotary(dims: tuple[int, int, int], half: int, back: int) -> None:
    case = Case()
    (x, x64), (cos, c64), (sin, s64) = (
        case.normal(*dims, 2 * half),
        case.normal(dims[2], 2 * half),
        case.normal(dims[2], half),
    )
    y, rows = case.result(x.shape), (dims[1] * dims[2] * 2 * half, dims[2] * 2 * half, 2 * half)
    case.builder.emit(
        calls.Rotary(
            x=x, cos=cos, sin=sin, y=y, dims=dims, half=half, x_strides=rows, cos_strides=(0, 0, 2 * half),
            sin_strides=(0, 0, half), y_strides=rows, cos_half=half, sin_half=0, back=back,
        )
    )  # fmt: skip
    x1, x2, s = x64[..., :half], x64[..., half:], s64 * (-1 if back else 1)
    wanted = np.concatenate([x1 * c64[:, :half] - x2 * s, x2 * c64[:, half:] + x1 * s], -1)
    close(case.run()[0], wanted)


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
    (x, x64), (bias, b64) = case.normal(n, d), case.normal(classes)
    w = case.rng.standard_normal((classes, d)).astype(np.float32) / 4
    labels = case.rng.integers(0, classes, n)
    if weighted and n > 1:
        labels[2] = -100
    of_class = np.abs(case.rng.standard_normal(classes)).astype(np.float32)
    each = reduction == c.LOSS_EACH
    shape = (n,) if each else ()
    slope = case.rng.standard_normal(shape).astype(np.float32)
    before = case.rng.standard_normal(w.shape).astype(np.float32)
    loss, dx, log_sum = case.result(shape), case.result((n, d)), case.result((n,))
    dw = case.result((d, classes) if turned else (classes, d), before.T if turned else before)
    shared: dict[str, Any] = dict(
        x=x, w=case.feed(w.T if turned else w), bias=bias, labels=case.feed(labels),
        weights=case.feed(of_class) if weighted else None, n=n, c=classes, d=d, turned=turned, alpha=0.5, label_size=8,
        has_ignore=int(weighted), ignore_index=-100, reduction=reduction,
    )  # fmt: skip
    case.builder.emit(calls.HeadLoss(**shared, loss=loss, slope=dx, log_sum=log_sum, parts=parts, gradient=1))
    case.builder.emit(calls.HeadLossWeightGrad(**shared, dy=case.feed(slope), log_sum=log_sum, dw=dw, accumulate=1))
    scores = 0.5 * x64 @ w.astype(np.float64).T + b64
    counts = (labels >= 0) if weighted else np.ones(n, bool)
    weights = np.where(counts, of_class[labels * (labels >= 0)].astype(np.float64) if weighted else 1.0, 0.0)
    p = softmax(scores)
    rows = -weights * np.log(p[np.arange(n), labels * counts])
    divisor = weights.sum() if reduction == c.LOSS_MEAN else 1.0
    ds = (p - np.eye(classes)[labels * counts]) * (weights / divisor)[:, None] * 0.5
    found = case.run()
    close(found[0], rows if each else rows.sum() / divisor, 1e-5)
    close(found[1], ds @ w, 1e-5)
    by_w = before + (ds * slope.reshape(-1, 1)).T @ x64
    close(found[3], by_w.T if turned else by_w, 1e-5)
