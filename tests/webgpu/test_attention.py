"""Attention, its gradient and rotary embedding against the kernels."""

from typing import Any

import numpy as np
import pytest
from tests.webgpu.cases import Case

from trainweb.ir import calls

FILL = -1e9


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
