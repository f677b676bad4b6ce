"""Convolutions whose kernels read where offsets say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from trainweb.ir.dims import UndecidedError, equal, equal_shapes, static
from trainweb.ir.shapes import TensorType
from trainweb.ops.conv import window
from trainweb.ops.frame.arguments import checked
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Int, Ints
from trainweb.ops.frame.symbolic import Var, integers


class DeformConv(Composite):
    """A convolution of images whose taps are moved by offsets. https://onnx.ai/onnx/operators/onnx__DeformConv.html

    Zhu et al., Deformable ConvNets v2, https://arxiv.org/abs/1811.11168. X is (N, C, H, W), the offsets (N, groups *
    taps * 2, height, width). Each tap has its distance down, and to the right.
    """

    versions = (19, 22)
    attrs = {
        "dilations": Ints(),
        "group": Int(1),
        "kernel_shape": Ints(),
        "offset_group": Int(1),
        "pads": Ints(),
        "strides": Ints(),
    }
    differentiable = (0, 1, 2, 3, 4)

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        offset: TensorType,
        bias: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> TensorType:
        self.need_float32(x, w, offset, bias, mask)
        if x.rank != 4:
            raise self.unsupported(f"X of shape {list(x.shape)}: other than images (N, C, H, W)")
        if w.rank != 4 or not equal(w.shape[1] * self.group, x.shape[1]) or not equal(w.shape[0] % self.group, 0):
            raise self.error(f"{self.group} groups, X {list(x.shape)} and W {list(w.shape)} do not fit.")
        kernel = w.shape[2:]
        if not equal(x.shape[1] % self.offset_group, 0):
            raise self.error(f"X has shape {list(x.shape)}, and there are {self.offset_group} groups of offsets.")
        if self.kernel_shape is not None and not equal_shapes(self.kernel_shape, kernel):
            raise self.error(f"kernel_shape is {list(self.kernel_shape)}, W has shape {list(w.shape)}.")
        size = self._size(x.shape, kernel)
        taps = self.offset_group * prod(kernel)
        fits = equal_shapes(offset.shape, (x.shape[0], 2 * taps, *size))
        fits = fits and (mask is None or equal_shapes(mask.shape, (x.shape[0], taps, *size)))
        if not fits or (bias is not None and not equal_shapes(bias.shape, w.shape[:1])):
            raise self.error(
                f"offsets {list(offset.shape)}, bias and mask are not for {2 * taps} channels of {list(size)} places."
            )
        return checked(self, "float32", (x.shape[0], w.shape[0], *size))

    def _size(self, x: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
        """Height and width of the result."""
        attributes = {"strides": self.strides, "dilations": self.dilations, "pads": self.pads}
        return window(self, x[2:], kernel, auto_pad="NOTSET", ceil_mode=False, **attributes).out

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        x, w, offset, bias, mask = ins
        assert x is not None and w is not None and offset is not None
        out_channels, width, *kernel = w.shape
        if not static(out_channels, width, *kernel):
            raise UndecidedError("the shape of W")
        groups, taps = self.offset_group, prod(kernel)
        channels = width * self.group // groups
        moved = offset.reshape(0, groups, taps, 2, -1)
        corners = [self._corners(self._places(moved, offset, kernel, axis), x.extent(2 + axis)) for axis in (0, 1)]
        pixels = x.reshape(0, groups, channels, -1).op("Transpose", perm=[0, 1, 3, 2]).reshape(-1, channels)
        item = x.places(0).reshape(-1, 1, 1, 1) * groups + integers(g, range(groups)).reshape(1, -1, 1, 1)
        first = item * (x.extent(2) * x.extent(3))
        total: Var | None = None
        for (row, by_row), (column, by_column) in product(*corners):
            weight = by_row * by_column
            if mask is not None:
                weight = weight * mask.reshape(0, groups, taps, -1)
            read = pixels.op("Gather", first + row * x.extent(3) + column, axis=0) * weight.unsqueeze(4)
            total = read if total is None else total + read
        assert total is not None
        # (N, groups, taps, places, channels of a group) as (N, group, channels and their taps, places).
        patches = total.op("Transpose", perm=[0, 1, 4, 2, 3]).reshape(0, self.group, width * taps, -1)
        weights = w.reshape(self.group, out_channels // self.group, width * taps)
        size = offset.sizes().part(0, 2, 4)
        y = weights.op("MatMul", patches).op("Reshape", integers(g, [0, out_channels]).op("Concat", size, axis=0))
        return [y if bias is None else y + bias.reshape(1, -1, 1, 1)]

    def _places(self, moved: Var, offset: Var, kernel: Sequence[int], axis: int) -> Var:
        """Row (axis 0) or column in X that each tap reads: (N, groups, taps, places)."""
        rows, columns = (offset.places(2 + k) for k in (0, 1))
        at = rows.reshape(-1, 1) + columns * 0 if axis == 0 else rows.reshape(-1, 1) * 0 + columns
        step, spread, pad = (
            values[axis] for values in (self.strides or (1, 1), self.dilations or (1, 1), self.pads or (0, 0))
        )
        taps = [place[axis] * spread - pad for place in product(*map(range, kernel))]
        at = at.reshape(1, -1) * step + integers(moved.g, taps).reshape(-1, 1)
        by = moved.part(3, axis, axis + 1).squeeze(3)
        return at.cast("float32") + by

    @staticmethod
    def _corners(at: Var, size: Var) -> list[tuple[Var, Var]]:
        """The two pixels next to a place along an axis, and their weights, 0 outside of X."""
        low = at.op("Floor")
        share = at - low
        corners = []
        for pixel, weight in ((low, 1.0 - share), (low + 1.0, share)):
            held = pixel.op("Max", 0.0).op("Min", size.cast("float32") - 1.0)
            corners.append((held.cast("int64"), held.equal(pixel).where(weight, 0.0)))
        return corners
