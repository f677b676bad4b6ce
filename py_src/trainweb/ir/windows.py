"""Arguments of the kernels that slide a window over a tensor."""

from __future__ import annotations

from typing import TypedDict


class Axes(TypedDict):
    """Kernel arguments of a window: numbers for depth, height and width."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]


class Ends(TypedDict):
    """Kernel arguments of the tensors: images, input channels of the convolution, and its outputs."""

    n: int
    c: int
    m: int


class Sizes(Ends, Axes):
    """All sizes of a convolution without groups."""
