"""Attention, rotary embedding and the loss of a head, against the kernels."""

from typing import Any

import numpy as np
import pytest
from tests.webgpu.cases import Case
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
    stored = {
        name: (b, rows, h, width) if inside else (b, h, rows, width) for name, (b, h, rows, width) in shapes.items()
    }
    feeds = {name: case.normal(*stored[name]) for name in ("q", "k", "v", "dy")}
    mask = case.rng.standard_normal((outer, 1, m, n)).astype(np.float32)
    mask[case.rng.random(mask.shape) < 0.4] = -np.inf
    shared: dict[str, Any] = dict(
        mask=case.feed(mask) if masked else None, mask_strides=(m * n, 0, n), batch=batch, group=group, m=m, n=n, d=d,
        e=e, scale=d**-0.5, fill=FILL, ratio=0.0, salt=0, draw=0,
    )  # fmt: skip
    y, top, inverse = case.result(stored["y"]), case.result((outer, heads, m)), case.result((outer, heads, m))
    shared |= {"y": y, "top": top, "inverse": inverse, **{name: feeds[name] for name in "qkv"}}
    gradients = {f"d{name}": case.result(stored[name]) for name in "qkv"}
    forward = {f"{name}_strides": steps[f"{name}_strides"] for name in "qkvy"}
    case.builder.emit(calls.Attention(**shared, **forward, guarded=0))
    gradients["dy"] = feeds["dy"]
    case.builder.emit(calls.AttentionGradient(**shared, **steps, **gradients, conditional=int(masked), parts=1))
    case.compare(3e-5)


@pytest.mark.parametrize("guarded", [0, 1])
def test_rows_of_attention_that_are_masked_wholly(guarded: int) -> None:
    case = Case()
    q, k, v = case.normal(3, 4), case.normal(70, 4), case.normal(70, 5)
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
    (found,) = case.compare()
    assert (found[1] == 0).all() if guarded else np.isnan(found[1]).all()


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize(("dims", "half"), [((1, 1, 1), 1), ((2, 3, 5), 7)])
def test_rotary(dims: tuple[int, int, int], half: int, back: int) -> None:
    case = Case()
    x, cos, sin = case.normal(*dims, 2 * half), case.normal(dims[2], 2 * half), case.normal(dims[2], half)
    y, rows = case.result(x.shape), (dims[1] * dims[2] * 2 * half, dims[2] * 2 * half, 2 * half)
    case.builder.emit(
        calls.Rotary(
            x=x, cos=cos, sin=sin, y=y, dims=dims, half=half, x_strides=rows, cos_strides=(0, 0, 2 * half),
            sin_strides=(0, 0, half), y_strides=rows, cos_half=half, sin_half=0, back=back,
        )
    )  # fmt: skip
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
