"""The convolution kernels against sums over shifted views in float64."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.each import over
from tests.python.kernel_cases import assert_close_sum, random
from tests.python.kernel_description import kernels_of
from tests.python.kernel_runner import BUILDS, runner
from tests.python.plan_builder import PlanFailed

from trainweb.backend.wasm.engine import get_engine

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Conv:
    """Shapes of one convolution; axes are (depth, height, width)."""

    n: int
    c: int
    m: int
    size: Triple
    kernel: Triple
    pad: Triple = (0, 0, 0)
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    groups: int = 1
    pad_end: Triple | None = None

    @property
    def out(self) -> Triple:
        ends = self.pad_end or self.pad
        return tuple(
            (size + p + e - d * (k - 1) - 1) // s + 1
            for size, k, p, e, s, d in zip(
                self.size, self.kernel, self.pad, ends, self.stride, self.dilation, strict=True
            )
        )  # type: ignore[return-value]

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.n, self.c, *self.size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.m, self.c // self.groups, *self.kernel)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.n, self.m, *self.out)

    @property
    def words(self) -> dict[str, Any]:
        """The integer arguments of the kernels."""
        return {
            "n": self.n,
            "c": self.c,
            "m": self.m,
            "groups": self.groups,
            "size": self.size,
            "kernel": self.kernel,
            "out": self.out,
            "stride": self.stride,
            "dilation": self.dilation,
            "pad": self.pad,
        }


def conv2d(n: int, c: int, m: int, h: int, w: int, k: int, p: int = 0, s: int = 1, d: int = 1, g: int = 1) -> Conv:
    """Square kernel, same padding, stride and dilation on both axes."""
    return Conv(n, c, m, (1, h, w), (1, k, k), (0, p, p), (1, s, s), (1, d, d), g)


CASES = {
    # Single pixels with a stride along one axis: of two rows one is left, or of padding.
    "a pixel of every third row": Conv(3, 1, 1, (1, 2, 7), (1, 1, 1), stride=(1, 3, 1)),
    "pixels of halved rows": Conv(2, 5, 6, (1, 2, 8), (1, 1, 1), stride=(1, 2, 1)),
    "one row of padding": Conv(5, 3, 1, (1, 1, 8), (1, 1, 1), (0, 1, 0), (1, 3, 1)),
    "nothing but padding": Conv(5, 1, 1, (1, 2, 7), (1, 1, 1), (0, 1, 0), (1, 3, 3)),
    "padding beside groups": Conv(2, 4, 2, (1, 1, 9), (1, 1, 1), (0, 1, 1), (1, 3, 3), (1, 1, 1), 2, (0, 2, 2)),
    "pointwise": conv2d(2, 5, 7, 6, 7, 1),
    "pointwise_stride2": conv2d(2, 6, 9, 9, 8, 1, s=2),
    "3x3_same": conv2d(2, 4, 10, 7, 9, 3, 1),
    "3x3_valid": conv2d(1, 3, 6, 5, 6, 3),
    "3x3_one_channel": conv2d(3, 1, 8, 11, 12, 3, 1),
    "3x3_many_channels": conv2d(1, 40, 33, 8, 8, 3, 1),
    "3x3_resnet": conv2d(3, 16, 16, 16, 16, 3, 1),
    "3x3_winograd_tails": conv2d(3, 6, 22, 13, 11, 3, 1),
    "3x3_winograd_valid": conv2d(2, 5, 9, 10, 23, 3),
    "3x3_winograd_wide": conv2d(1, 9, 12, 5, 260, 3, 1),
    "3x3_winograd_wide_pad": conv2d(1, 4, 8, 9, 9, 3, 3),
    "3x3_winograd_deep": conv2d(1, 130, 70, 8, 8, 3, 1),
    "3x3_winograd_most": conv2d(1, 640, 7, 4, 5, 3, 1),
    "3x3_winograd_asymmetric": Conv(2, 5, 6, (1, 9, 10), (1, 3, 3), (0, 1, 0), pad_end=(0, 0, 3)),
    "3x3_depth_stride": Conv(2, 5, 6, (1, 9, 10), (1, 3, 3), (0, 1, 1), (3, 1, 1)),
    "3x3_stride2_winograd": conv2d(2, 5, 9, 16, 15, 3, 1, s=2),
    "3x3_stride2_winograd_valid": conv2d(2, 8, 6, 17, 18, 3, 0, s=2),
    "3x3_stride2_winograd_pad2": conv2d(1, 4, 22, 13, 14, 3, 2, s=2),
    "3x3_stride2_winograd_pad3": conv2d(1, 7, 5, 11, 10, 3, 3, s=2),
    "3x3_stride2_winograd_many": conv2d(3, 33, 40, 8, 8, 3, 1, s=2),
    "3x3_stride2_winograd_wide": conv2d(1, 5, 6, 8, 530, 3, 1, s=2),
    "3x3_stride2_winograd_deep": conv2d(1, 256, 9, 8, 7, 3, 1, s=2),
    "3x3_stride2_winograd_asymmetric": Conv(2, 5, 6, (1, 15, 16), (1, 3, 3), (0, 0, 1), (1, 2, 2), pad_end=(0, 2, 0)),
    "3x3_stride2_unused_end": Conv(2, 5, 6, (1, 16, 24), (1, 3, 3), (0, 0, 2), (1, 2, 2), pad_end=(0, 0, 0)),
    "3x3_tiny_plane": conv2d(4, 8, 8, 2, 2, 3, 1),
    "3x3_one_pixel": conv2d(4, 8, 8, 1, 1, 3, 1),
    "3x3_wide_pad": conv2d(1, 2, 3, 5, 5, 3, 4),
    "3x3_stride2": conv2d(2, 5, 6, 9, 8, 3, 1, s=2),
    "3x3_stride2_odd": conv2d(2, 3, 13, 7, 7, 3, 0, s=2),
    "3x3_stride3": conv2d(1, 4, 5, 11, 10, 3, 1, s=3),
    "3x3_stride5": conv2d(1, 2, 3, 17, 16, 3, 1, s=5),
    "3x3_dilated": conv2d(1, 3, 5, 11, 10, 3, 2, d=2),
    "dilated_and_strided": conv2d(2, 3, 5, 13, 14, 3, 2, s=2, d=2),
    "dilation3_stride2": conv2d(1, 2, 4, 15, 14, 3, 1, s=2, d=3),
    "stride4_dilation6": conv2d(1, 2, 4, 23, 22, 3, 1, s=4, d=6),
    "whole_strips": conv2d(2, 3, 7, 16, 20, 5, 2),
    "whole_strips_1d": Conv(1, 3, 8, (1, 1, 2304), (1, 1, 9), (0, 0, 4)),
    "pointwise_whole_strips": conv2d(3, 9, 11, 16, 16, 1),
    "pointwise_3d": Conv(2, 5, 6, (3, 4, 5), (1, 1, 1)),
    "5x5": conv2d(2, 3, 7, 12, 11, 5, 2),
    "7x7_stride2": conv2d(1, 3, 8, 21, 20, 7, 3, s=2),
    "groups": conv2d(2, 6, 9, 7, 6, 3, 1, g=3),
    "depthwise": conv2d(2, 7, 7, 9, 10, 3, 1, g=7),
    "depthwise_stride2": conv2d(1, 5, 5, 9, 11, 3, 1, s=2, g=5),
    "depthwise_multiplier": conv2d(1, 4, 12, 8, 8, 3, 1, g=4),
    "depthwise_multiplier_stride2": conv2d(2, 3, 9, 11, 10, 3, 1, s=2, g=3),
    "depthwise_5x5": conv2d(2, 3, 3, 13, 14, 5, 2, g=3),
    "depthwise_5x5_stride2": conv2d(1, 4, 4, 15, 13, 5, 2, s=2, g=4),
    "depthwise_5x5_multiplier": conv2d(2, 2, 6, 7, 7, 5, 2, g=2),
    "depthwise_7x7": conv2d(1, 2, 2, 11, 16, 7, 3, g=2),
    "depthwise_4x4_stride2": conv2d(1, 3, 3, 9, 10, 4, 1, s=2, g=3),
    "depthwise_2x2_stride2": conv2d(2, 3, 6, 8, 9, 2, 0, s=2, g=3),
    "depthwise_9x9": conv2d(1, 2, 2, 18, 12, 9, 4, g=2),
    "depthwise_many_planes": conv2d(3, 170, 170, 7, 7, 3, 1, g=170),
    "depthwise_bands": conv2d(1, 2, 2, 113, 118, 3, 1, g=2),
    "depthwise_bands_stride2": conv2d(1, 2, 2, 114, 111, 3, 1, s=2, g=2),
    "depthwise_asymmetric": Conv(2, 3, 3, (1, 15, 16), (1, 3, 3), (0, 0, 1), (1, 2, 2), groups=3, pad_end=(0, 2, 0)),
    "depthwise_unused_end": Conv(1, 2, 2, (1, 16, 24), (1, 3, 3), (0, 0, 2), (1, 2, 2), groups=2, pad_end=(0, 0, 0)),
    "depthwise_wide_pad": conv2d(1, 2, 2, 5, 6, 3, 4, g=2),
    "depthwise_wide_pad_stride2": conv2d(1, 2, 2, 6, 5, 3, 4, s=2, g=2),
    "depthwise_tiny_plane": conv2d(3, 4, 4, 2, 2, 3, 1, g=4),
    "depthwise_one_pixel": conv2d(2, 4, 4, 1, 1, 3, 1, s=2, g=4),
    "depthwise_dilated": conv2d(1, 3, 3, 9, 10, 3, 2, d=2, g=3),
    "depthwise_stride3": conv2d(1, 3, 3, 9, 10, 3, 1, s=3, g=3),
    "depthwise_oblong": Conv(1, 4, 4, (1, 6, 19), (1, 5, 2), (0, 3, 0), groups=4),
    "depthwise_3x2_stride2": Conv(1, 3, 6, (1, 9, 11), (1, 3, 2), (0, 1, 1), (1, 2, 2), groups=3),
    "depthwise_3x1_stride2": Conv(1, 3, 3, (1, 9, 11), (1, 3, 1), (0, 1, 0), (1, 2, 2), groups=3),
    "depthwise_1d": Conv(2, 5, 5, (1, 1, 50), (1, 1, 5), (0, 0, 2), groups=5),
    "depthwise_long_lines": conv2d(1, 2, 2, 4, 1500, 3, 1, g=2),
    "depthwise_too_long_lines": conv2d(1, 2, 2, 4, 4500, 3, 1, g=2),
    "from_one_channel_5x5": conv2d(2, 1, 6, 12, 11, 5, 2),
    "from_one_channel_stride2": conv2d(3, 1, 8, 11, 12, 3, 1, s=2),
    "to_one_channel": conv2d(2, 6, 1, 18, 11, 3, 1),
    "to_one_channel_5x5": conv2d(2, 6, 1, 11, 14, 5, 2),
    "to_one_channel_stride2": conv2d(2, 6, 1, 12, 11, 3, 1, s=2),
    "asymmetric_pads": Conv(2, 3, 5, (1, 8, 7), (1, 3, 2), (0, 0, 1), pad_end=(0, 2, 0)),
    "oblong": Conv(1, 4, 6, (1, 6, 19), (1, 5, 2), (0, 3, 0), (1, 2, 3), (1, 1, 2)),
    "end_of_input_unused": Conv(1, 2, 3, (1, 10, 10), (1, 2, 2), (0, 0, 0), (1, 3, 3)),
    "1d": Conv(2, 5, 7, (1, 1, 50), (1, 1, 5), (0, 0, 2)),
    "1d_long": Conv(1, 3, 8, (1, 1, 2300), (1, 1, 9), (0, 0, 4), (1, 1, 2)),
    "3d": Conv(2, 3, 4, (5, 6, 7), (3, 3, 3), (1, 1, 1)),
    "3d_strided": Conv(1, 2, 6, (7, 6, 8), (2, 3, 3), (1, 0, 1), (2, 1, 2), (1, 2, 1)),
    "large_plane": conv2d(1, 9, 7, 120, 130, 3, 1),
    "many_input_channels": conv2d(1, 300, 5, 30, 30, 3, 1),
    "kernel_is_input": conv2d(2, 6, 4, 9, 9, 9),
    "pointwise_7x7": conv2d(3, 9, 13, 7, 7, 1),
    "pointwise_long_rest": conv2d(2, 3, 5, 5, 205, 1),
    "pointwise_2x1": conv2d(5, 6, 7, 2, 1, 1),
    "pointwise_stride2_7x7": conv2d(5, 40, 17, 13, 14, 1, s=2),
    "pointwise_stride2_whole_strips": conv2d(2, 7, 9, 16, 16, 1, s=2),
    "pointwise_stride2_wide": conv2d(1, 20, 9, 33, 39, 1, s=2),
    "pointwise_stride2_pad": conv2d(2, 3, 5, 8, 9, 1, 1, s=2),
    "pointwise_stride2_unused_end": Conv(2, 5, 6, (1, 12, 14), (1, 1, 1), stride=(1, 2, 2), pad_end=(0, -3, -4)),
    "pointwise_stride2_one_row": Conv(2, 5, 6, (1, 1, 13), (1, 1, 1), stride=(1, 2, 2)),
    "pointwise_stride2_groups": conv2d(2, 6, 10, 9, 12, 1, s=2, g=2),
    "pointwise_stride2_deep": conv2d(1, 2000, 3, 3, 260, 1, s=2),
    "pointwise_stride2_to_many": conv2d(1, 3, 2000, 3, 260, 1, s=2),
    "pointwise_stride2_long_rows": conv2d(1, 2, 3, 3, 2100, 1, s=2),
    "pointwise_stride3": conv2d(2, 6, 9, 10, 14, 1, s=3),
    "pointwise_stride2x1": Conv(2, 5, 6, (1, 9, 10), (1, 1, 1), stride=(1, 2, 1)),
    "pointwise_stride2_3d": Conv(2, 5, 6, (3, 5, 6), (1, 1, 1), stride=(2, 2, 2)),
    "pointwise_groups": conv2d(2, 8, 12, 6, 6, 1, g=4),
    "pointwise_groups_rest": conv2d(2, 8, 12, 5, 5, 1, g=4),
    "pointwise_groups_long": conv2d(1, 4, 4, 41, 40, 1, g=2),
    "2x2_stride2": conv2d(2, 3, 7, 8, 8, 2, s=2),
    "2x2_stride2_rest": conv2d(2, 3, 7, 10, 14, 2, s=2),
    "2x2_stride3": conv2d(2, 3, 5, 11, 10, 2, s=3),
    "5x5_many_channels": conv2d(1, 35, 5, 6, 7, 5, 2),
    "5x5_many_channels_stride2": conv2d(1, 34, 10, 7, 6, 5, 2, s=2, g=2),
    "5x5_small_planes": conv2d(7, 5, 11, 3, 5, 5, 2),
    "5x5_short_rows": conv2d(3, 5, 13, 9, 11, 5, 2),
    "5x5_long_rows": conv2d(2, 3, 7, 6, 40, 5, 2),
    "5x5_longer_rows": conv2d(1, 2, 7, 3, 1026, 5, 2),
    "3x3_groups_of_images": conv2d(5, 3, 17, 31, 32, 3, 1),
    "28x28_stride3": conv2d(1, 20, 1, 46, 46, 28, s=3),
    "no_images": conv2d(0, 3, 4, 5, 5, 3, 1),
}


def taps(conv: Conv, x: np.ndarray) -> Iterator[tuple[Triple, np.ndarray]]:
    """Each tap of the kernel with the view of the padded x that it meets, (n, c, *out)."""
    room = [(0, 0), (0, 0)]
    for size, k, p, s, d, o in zip(conv.size, conv.kernel, conv.pad, conv.stride, conv.dilation, conv.out, strict=True):
        room.append((p, max(0, (o - 1) * s + (k - 1) * d + 1 - p - size)))
    padded = np.pad(x, room)
    for tap in product(*map(range, conv.kernel)):
        box = [
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, s, o in zip(tap, conv.dilation, conv.stride, conv.out, strict=True)
        ]
        yield tap, padded[(slice(None), slice(None), *box)]


def forward(conv: Conv, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    g = conv.groups
    y = np.zeros((conv.n, g, conv.m // g, *conv.out))
    w = w.reshape(g, conv.m // g, conv.c // g, *conv.kernel)
    for tap, view in taps(conv, x.astype(np.float64)):
        view = view.reshape(conv.n, g, conv.c // g, *conv.out)
        y += np.einsum("ngczyx,gmc->ngmzyx", view, w[(slice(None),) * 3 + tap])
    return y.reshape(conv.y_shape)


def data_gradient(conv: Conv, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Scatters dy * w back through the same views."""
    g = conv.groups
    room = [
        (o - 1) * s + (k - 1) * d + 1
        for k, s, d, o in zip(conv.kernel, conv.stride, conv.dilation, conv.out, strict=True)
    ]
    room = [max(r, p + size) for r, p, size in zip(room, conv.pad, conv.size, strict=True)]
    dx = np.zeros((conv.n, conv.c, *room))
    w = w.reshape(g, conv.m // g, conv.c // g, *conv.kernel).astype(np.float64)
    dy = dy.reshape(conv.n, g, conv.m // g, *conv.out)
    for tap in product(*map(range, conv.kernel)):
        box = [
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, s, o in zip(tap, conv.dilation, conv.stride, conv.out, strict=True)
        ]
        part = np.einsum("ngmzyx,gmc->ngczyx", dy, w[(slice(None),) * 3 + tap])
        dx[(slice(None), slice(None), *box)] += part.reshape(conv.n, conv.c, *conv.out)
    inside = [slice(p, p + size) for p, size in zip(conv.pad, conv.size, strict=True)]
    return dx[(slice(None), slice(None), *inside)]


def weight_gradient(conv: Conv, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    g = conv.groups
    dw = np.zeros((g, conv.m // g, conv.c // g, *conv.kernel))
    dy = dy.reshape(conv.n, g, conv.m // g, *conv.out).astype(np.float64)
    for tap, view in taps(conv, x.astype(np.float64)):
        view = view.reshape(conv.n, g, conv.c // g, *conv.out)
        dw[(slice(None),) * 3 + tap] = np.einsum("ngmzyx,ngczyx->gmc", dy, view)
    return dw.reshape(conv.w_shape)


def operands(conv: Conv) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return random(*conv.x_shape, seed=1), random(*conv.w_shape, seed=2), random(*conv.y_shape, seed=3)


def assert_close(conv: Conv, got: np.ndarray, want: np.ndarray, magnitude: np.ndarray, terms: int) -> None:
    """Outputs of one 4x4 tile of Winograd's method share their rounding errors, doubled or tripled by transforms."""
    if conv.kernel == (1, 3, 3) and conv.groups == 1 and magnitude.size:
        magnitude = np.broadcast_to(magnitude.max((-2, -1), keepdims=True), magnitude.shape)
        assert_close_sum(got, want, magnitude, terms, factor=4)
    else:
        assert_close_sum(got, want, magnitude, terms)


def per_channel(bias: np.ndarray) -> np.ndarray:
    return bias.reshape(1, -1, 1, 1, 1)


def tiled(conv: Conv, *, flipped: bool) -> dict[str, Any] | None:
    """Arguments of winograd_conv_f32, where it takes the convolution."""
    if conv.groups > 1 or conv.kernel != (1, 3, 3) or conv.size[0] * conv.stride[0] > 1 or set(conv.dilation) != {1}:
        return None
    (c, m), (size, out) = (conv.c, conv.m), (conv.size[1:], conv.out[1:])
    if flipped:
        (c, m), (size, out) = (m, c), (out, size)
    numbers = {
        "n": conv.n,
        "c": c,
        "m": m,
        "size": list(size),
        "out": list(out),
        "stride": conv.stride[1],
        "pad": list(conv.pad[1:]),
        "flipped": int(flipped),
        "accumulate": 0,
        "activation": 0,
    }
    takes = kernels_of(get_engine())["winograd_conv_f32"].holds(numbers)
    return numbers if takes and conv.stride[1] == conv.stride[2] else None


@cache
def exact(reference: Callable[..., np.ndarray], conv: Conv) -> tuple[np.ndarray, np.ndarray]:
    """The result of the operands of `reference`, and its magnitude: the same for all builds and methods."""
    x, w, y = operands(conv)
    a, b = {forward: (x, w), data_gradient: (y, w), weight_gradient: (x, y)}[reference]
    return reference(conv, a, b), reference(conv, abs(a), abs(b))


WINDOWS, TILES, COLUMNS = ("windows", "tiles", "columns")


def methods(*, flipped: bool) -> list[tuple[str, str]]:
    """Each case with each method that takes it; columns but for many positions, where nothing asks for them."""
    found = [(name, WINDOWS) for name in CASES]
    found += [(name, TILES) for name, conv in CASES.items() if tiled(conv, flipped=flipped)]
    few = [name for name, conv in CASES.items() if conv.groups == 1 and conv.n * np.prod(conv.out) <= 600]
    return found + [(name, COLUMNS) for name in few]


def transformed(build: str, w: np.ndarray, numbers: dict[str, Any]) -> np.ndarray:
    flags = {name: numbers[name] for name in ("m", "c", "stride", "flipped")}
    size = 36 * (-(-flags["m"] // 4) * -(-flags["c"] // 4) * 16 + 16)
    args = {"w": w, "u": np.full(size, np.nan, np.float32), **flags}
    first = runner(build).run("winograd_weights_f32", args, last="w")["u"]
    assert runner(build).run("winograd_weights_f32", args, last="u")["u"].tobytes() == first.tobytes()
    return first


def ungrouped(conv: Conv, method: str) -> dict[str, Any]:
    """The integer arguments; calls of columns have no groups."""
    return {name: value for name, value in conv.words.items() if name != "groups" or method != COLUMNS}


def run_forward(build: str, conv: Conv, args: dict[str, Any], last: str, method: str) -> np.ndarray:
    if method != TILES:
        words = {**args, **ungrouped(conv, method)}
        return runner(build).run("columns_conv_f32" if method == COLUMNS else "conv_f32", words, last=last)["y"]
    numbers = tiled(conv, flipped=False) or {}
    u = transformed(build, args["w"], numbers)
    args = {**numbers, **{name: value for name, value in args.items() if name != "w"}, "u": u}
    return runner(build).run("winograd_conv_f32", args, last={"w": "u"}.get(last, last))["y"]


def run_data_gradient(build: str, conv: Conv, args: dict[str, Any], last: str, method: str) -> np.ndarray:
    if method != TILES:
        kernel = "columns_data_gradient_f32" if method == COLUMNS else "conv_data_gradient_f32"
        return runner(build).run(kernel, {**args, **ungrouped(conv, method)}, last=last)["dx"]
    numbers = tiled(conv, flipped=True) or {}
    u = transformed(build, args["w"], numbers)
    flags = {name: args[name] for name in ("bias", "accumulate", "activation")}
    operands = {"x": args["dy"], "u": u, "y": args["dx"]}
    names = {"dy": "x", "w": "u", "dx": "y"}
    return runner(build).run("winograd_conv_f32", {**numbers, **flags, **operands}, last=names.get(last, last))["y"]


def check_forward(build: str, conv: Conv, accumulate: int, activation: int, last: str, method: str = WINDOWS) -> bytes:
    x, w, y0 = operands(conv)
    bias = random(conv.m, seed=4)
    start = y0 if accumulate else np.full_like(y0, np.nan)
    args = {"x": x, "w": w, "bias": bias, "y": start, "accumulate": accumulate, "activation": activation}
    got = run_forward(build, conv, args, last, method)
    product, magnitude = exact(forward, conv)
    want, magnitude = product + per_channel(bias), magnitude + abs(per_channel(bias))
    if accumulate:
        want, magnitude = want + y0, magnitude + abs(y0)
    if activation:
        want = np.maximum(want, 0)
    assert_close(conv, got, want, magnitude, w[0].size + 2)
    return got.tobytes()


@pytest.mark.parametrize("build", BUILDS)
@over("name, method", methods(flipped=False))
def test_forward(build: str, name: str, method: str) -> None:
    check = partial(check_forward, build, CASES[name], method=method)
    first = check(0, 0, "x")
    assert check(0, 0, "w") == first
    assert check(0, 0, "y") == first
    check(0, 1, "bias")
    check(1, 1, "")


def check_data_gradient(
    build: str, conv: Conv, accumulate: int, bias: np.ndarray | None, last: str, method: str = WINDOWS
) -> bytes:
    x0, w, dy = operands(conv)
    start = x0 if accumulate else np.full_like(x0, np.nan)
    args = {"dy": dy, "w": w, "bias": bias, "dx": start, "accumulate": accumulate, "activation": int(bias is not None)}
    got = run_data_gradient(build, conv, args, last, method)
    want, magnitude = exact(data_gradient, conv)
    if accumulate:
        want, magnitude = want + x0, magnitude + abs(x0)
    if bias is not None:
        want, magnitude = np.maximum(want + per_channel(bias), 0), magnitude + abs(per_channel(bias))
    assert_close(conv, got, want, magnitude, w[:, 0].size + 2)
    return got.tobytes()


@pytest.mark.parametrize("build", BUILDS)
@over("name, method", methods(flipped=True))
def test_data_gradient(build: str, name: str, method: str) -> None:
    check = partial(check_data_gradient, build, CASES[name], method=method)
    first = check(0, None, "dy")
    assert check(0, None, "w") == first
    assert check(0, None, "dx") == first
    check(1, None, "")
    check(0, random(CASES[name].c, seed=5), "bias")


WEIGHT_GRADIENTS = {
    WINDOWS: "conv_weight_gradient_f32",
    TILES: "winograd_weight_gradient_f32",
    COLUMNS: "columns_weight_gradient_f32",
}


def check_weight_gradient(
    build: str, conv: Conv, accumulate: int, with_bias: bool, last: str, method: str = WINDOWS
) -> bytes:
    x, w0, dy = operands(conv)
    b0 = random(conv.m, seed=4)
    nothing = np.full_like(w0, np.nan)
    args = {
        "x": x,
        "dy": dy,
        "dw": w0 if accumulate else nothing,
        "db": (b0 if accumulate else np.full_like(b0, np.nan)) if with_bias else None,
    }
    numbers = tiled(conv, flipped=False) if method == TILES else ungrouped(conv, method)
    kernel = WEIGHT_GRADIENTS[method]
    numbers = {name: value for name, value in (numbers or {}).items() if name not in ("flipped", "activation")}
    got = runner(build).run(kernel, {**numbers, **args, "accumulate": accumulate}, last=last)
    terms = conv.n * int(np.prod(conv.out))
    want, magnitude = exact(weight_gradient, conv)
    assert_close(conv, got["dw"], want + accumulate * w0, magnitude + accumulate * abs(w0), terms + 1)
    if with_bias:
        axes = (0, 2, 3, 4)
        want_bias = dy.sum(axes, dtype=np.float64) + accumulate * b0
        assert_close_sum(got["db"], want_bias, abs(dy).sum(axes) + abs(b0), terms + 1)
    return got["dw"].tobytes()


@pytest.mark.parametrize("build", BUILDS)
@over("name, method", methods(flipped=False))
def test_weight_gradient(build: str, name: str, method: str) -> None:
    check = partial(check_weight_gradient, build, CASES[name], method=method)
    first = check(0, True, "x")
    assert check(0, True, "dy") == first
    assert check(0, False, "dw") == first
    check(1, True, "db")


@pytest.mark.parametrize("build", BUILDS)
def test_an_infinity_stays_in_the_tiles_that_read_it(build: str) -> None:
    conv = conv2d(2, 5, 6, 16, 16, 3, 1)
    x, w, y = operands(conv)
    x[0, 2, 0, 4, 6] = np.inf
    args = {"x": x, "w": w, "bias": None, "y": y, "accumulate": 0, "activation": 0}
    bad = ~np.isfinite(run_forward(build, conv, args, "", TILES))
    assert bad[0, :, 0, 3:6, 5:8].all()
    bad[0, :, 0, 0:8, 4:8] = False
    assert not bad.any()


@pytest.mark.parametrize("build", BUILDS)
def test_a_window_that_no_workspace_holds(build: str) -> None:
    conv = Conv(1, 1, 1, (1, 2, 3), (1, 2, 140_000), (0, 1, 139_998), pad_end=(0, 0, 0))
    x, w, dy = operands(conv)
    y, dx, dw = np.zeros(conv.y_shape), np.zeros(conv.x_shape), np.zeros(conv.w_shape)
    for oy, ox in np.ndindex(*conv.out[1:]):
        for iy, ix in np.ndindex(*conv.size[1:]):
            ty, tx = iy + conv.pad[1] - oy, ix + conv.pad[2] - ox
            if 0 <= ty < conv.kernel[1] and 0 <= tx < conv.kernel[2]:
                y[..., oy, ox] += x[..., iy, ix] * w[0, 0, 0, ty, tx]
                dx[..., iy, ix] += dy[..., oy, ox] * w[0, 0, 0, ty, tx]
                dw[..., ty, tx] += (dy[..., oy, ox] * x[..., iy, ix]).item()
    words = {**conv.words, "accumulate": 0}
    run = runner(build).run
    got = run("conv_f32", {"x": x, "w": w, "bias": None, "y": dy, "activation": 0, **words}, last="x")
    np.testing.assert_allclose(got["y"], y, rtol=1e-5, atol=1e-5)
    got = run("conv_data_gradient_f32", {"dy": dy, "w": w, "bias": None, "dx": x, "activation": 0, **words}, last="w")
    np.testing.assert_allclose(got["dx"], dx, rtol=1e-5, atol=1e-5)
    got = run("conv_weight_gradient_f32", {"x": x, "dy": dy, "dw": w, "db": None, **words}, last="dy")
    np.testing.assert_allclose(got["dw"], dw, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"stride": (1, 0, 1)},
        {"dilation": (1, 1, 0)},
        {"groups": 2},
        {"groups": 3},
        {"kernel": (0, 3, 3)},
        {"stride": (1, 1 << 30, 1)},
        {"pad": (0, 1 << 30, 1)},
    ],
)
def test_conditions(change: dict[str, Any]) -> None:
    conv = conv2d(1, 3, 4, 5, 5, 3, 1)
    x, w, y = operands(conv)
    words = {**conv.words, "accumulate": 0, **change}
    calls = {
        "conv_f32": {"x": x, "w": w, "bias": None, "y": y, "activation": 0},
        "conv_data_gradient_f32": {"dy": y, "w": w, "bias": None, "dx": x, "activation": 0},
        "conv_weight_gradient_f32": {"x": x, "dy": y, "dw": w, "db": None},
    }
    if "groups" not in change:
        calls |= {name.replace("conv_" if "gradient" in name else "", "columns_", 1): a for name, a in calls.items()}
    for name, args in calls.items():
        given = {**args, **words}
        if name.startswith("columns"):
            del given["groups"]
        with pytest.raises(PlanFailed, match="TW_BAD_CONDITION"):
            runner("kernels").run(name, given)
