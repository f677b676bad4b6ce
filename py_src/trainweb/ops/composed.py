"""Composites of a few operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import cos, pi, prod
from typing import Any

from trainweb.ir.dims import UndecidedError, equal_shapes, static
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import DTYPE_CODES
from trainweb.model.graph import Node
from trainweb.ops.elementwise import NUMBERS
from trainweb.ops.frame.arguments import checked, integers, is_fed, scalar
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Int, Ints, bind
from trainweb.ops.frame.symbolic import Var, constant
from trainweb.ops.pool import AveragePool, _Pool


class GlobalLpPool(Composite):
    """The p-norm of each channel of each image. https://onnx.ai/onnx/operators/onnx__GlobalLpPool.html"""

    versions = (2, 22)
    attrs = {"p": Int(2)}
    differentiable = (0,)

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        if x.rank < 3 or self.p < 1:
            raise self.error(f"X has shape {list(x.shape)} and p is {self.p}; images and at least 1 are needed.")
        return TensorType(x.dtype, (*x.shape[:2], *[1] * (x.rank - 2)))

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        return [(x.op("Abs") ** float(self.p)).sum(range(2, x.rank), keepdims=True) ** (1 / self.p)]


class Hardmax(Composite):
    """1 at the first largest element along an axis, else 0. https://onnx.ai/onnx/operators/onnx__Hardmax.html

    Before opset 13 over all dims from the axis on, which then is 1 by default.
    """

    versions = (1, 11, 13)
    attrs = {"axis": Int()}

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        self._axis(x.rank)
        return x

    def _axis(self, rank: int) -> int:
        axis = self.axis if self.axis is not None else -1 if self.opset >= 13 else 1
        return self.axis_of(axis, rank)

    def expand(self, g: Emission, source: Var) -> Sequence[Var | None]:
        x = source
        axis = self._axis(x.rank)
        if self.opset < 13:
            x, axis = x.op("Flatten", axis=axis), 1
        rank = x.rank
        where = x.op("ArgMax", dtype="int64", axis=axis, keepdims=1)
        at = x.places(axis)
        y = where.equal(at.unsqueeze(*range(1, rank - axis)) if axis < rank - 1 else at).cast(x.dtype)
        return [y.reshape_like(source) if self.opset < 13 else y]


class ReverseSequence(Composite):
    """The first elements of each sequence turned round. https://onnx.ai/onnx/operators/onnx__ReverseSequence.html"""

    versions = (10, 28)
    attrs = {"batch_axis": Int(1), "time_axis": Int(0)}
    differentiable = (0,)

    def infer(self, x: TensorType, lengths: TensorType) -> TensorType:
        if sorted((self.batch_axis, self.time_axis)) != [0, 1] or x.rank < 2:
            raise self.error(
                f"batch_axis {self.batch_axis} and time_axis {self.time_axis} must be 0 and 1, X at least 2-D."
            )
        if lengths.dtype != "int64" or lengths.rank != 1:
            raise self.error("sequence_lens must be a vector of int64.")
        return TensorType(x.dtype, x.shape)

    def expand(self, g: Emission, x: Var, lengths: Var) -> Sequence[Var | None]:
        at = x.places(self.time_axis).unsqueeze(self.batch_axis)
        length = lengths.unsqueeze(self.time_axis)
        source = (at < length).where(length - at - 1, at)
        # An index for each element: GatherElements moves along time.
        rank = x.rank
        source = source.unsqueeze(*range(2, rank)) if rank > 2 else source
        full = source.op("Expand", x.sizes())
        return [x.op("GatherElements", full, axis=self.time_axis)]


class LpPool(Composite):
    """The p-norm of each window. https://onnx.ai/onnx/operators/onnx__LpPool.html"""

    versions = (2, 11, 18, 22)
    attrs = {**_Pool.attrs, "p": Int(2)}
    differentiable = (0,)

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        if self.p < 1:
            raise self.error(f"p is {self.p}; it must be at least 1.")
        result = self._mean().infer(x)
        assert isinstance(result, TensorType)
        return result

    def _mean(self) -> AveragePool:
        """The mean of each window, padding counted."""
        attrs = {**{k: v for k, v in self.node.attrs.items() if k != "p"}, "count_include_pad": 1}
        mean = bind(Node("AveragePool", ["x"], ["y"], attrs, "", self.node.name), {"": self.opset})
        assert isinstance(mean, AveragePool)
        return mean

    def _window(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Attributes of a mean of equally many numbers everywhere: padding and elements beyond it count as 0."""
        mean = self._mean()
        attrs = dict(mean.node.attrs)
        if not self.ceil_mode or self.auto_pad.startswith("SAME"):
            return attrs
        if not static(*shape[2:]):
            raise UndecidedError("the sizes that windows go over")
        w = mean.window_of(shape)
        ends = [
            max(0, (out - 1) * stride + (kernel - 1) * dilation + 1 - size - pad)
            for out, stride, kernel, dilation, size, pad in zip(
                w.out, w.stride, w.kernel, w.dilation, w.size, w.pad, strict=True
            )
        ]
        return {**attrs, "auto_pad": "NOTSET", "ceil_mode": 0, "pads": [*w.pad, *ends]}

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        mean = (x.op("Abs") ** float(self.p)).op("AveragePool", **self._window(x.shape))
        return [(mean * float(prod(self.kernel_shape))) ** (1 / self.p)]


class CumProd(Composite):
    """Running product along an axis. https://onnx.ai/onnx/operators/onnx__CumProd.html"""

    versions = (26,)
    attrs = {"exclusive": Int(0), "reverse": Int(0)}
    differentiable = (0,)
    static_inputs = (1,)

    def infer(self, x: TensorType, axis: TensorType) -> TensorType:
        self.need_dtype(NUMBERS, x.dtype)
        number = scalar(self, axis, "axis")
        if not is_fed(axis):
            self.axis_of(number, x.rank)
        return x

    def expand(self, g: Emission, x: Var, at: Var) -> Sequence[Var | None]:
        if is_fed(at.type):
            raise UndecidedError("the axis")
        (axis,) = at.type.value or ()
        shape = x.shape
        axis %= len(shape)
        size = shape[axis]
        if not isinstance(size, int):
            raise UndecidedError("the size of the axis")

        def moved(v: Var, by: int) -> Var:
            """Elements `by` places before (reverse: after), 1 where there are none."""
            rest = v.part(axis, by, size) if self.reverse else v.part(axis, 0, size - by)
            ends = v.part(axis, size - by, size) if self.reverse else v.part(axis, 0, by)
            ones = ends.op("Equal", ends, dtype="bool").cast(v.dtype)
            return rest.op("Concat", ones, axis=axis) if self.reverse else ones.op("Concat", rest, axis=axis)

        y = moved(x, 1) if self.exclusive and size else x
        by = 1
        while by < size:  # each element is the product of `by` of them
            y, by = y * moved(y, by), 2 * by
        return [y]


class _Window(Composite, abstract=True):
    """A window of cosines; the size must be known."""

    versions = (17,)
    attrs = {"output_datatype": Int(1), "periodic": Int(1)}
    static_inputs = (0,)
    weights: tuple[float, ...]
    """Weights of the cosines of 0, 1, ... turns along the window."""

    def infer(self, size: TensorType) -> TensorType:
        if self.output_datatype != DTYPE_CODES["float32"]:
            raise self.unsupported(f"output_datatype {self.output_datatype}")
        return checked(self, "float32", (scalar(self, size, "size"),))

    def expand(self, g: Emission, size: Var) -> Sequence[Var | None]:
        (n,) = size.type.value or ()
        turn = 2 * pi / max(n if self.periodic else n - 1, 1)
        values = [sum(w * cos(turn * i * k) for i, w in enumerate(self.weights)) for k in range(n)]
        return [constant(g, "float32", (n,), values)]


class HannWindow(_Window):
    """sin^2. https://onnx.ai/onnx/operators/onnx__HannWindow.html"""

    weights = (0.5, -0.5)


class HammingWindow(_Window):
    """25/46 less 21/46 of a cosine. https://onnx.ai/onnx/operators/onnx__HammingWindow.html"""

    weights = (25 / 46, -21 / 46)


class BlackmanWindow(_Window):
    """Three cosines. https://onnx.ai/onnx/operators/onnx__BlackmanWindow.html"""

    weights = (0.42, -0.5, 0.08)


class CenterCropPad(Composite):
    """The middle of x, or x in the middle of zeros. https://onnx.ai/onnx/operators/onnx__CenterCropPad.html"""

    versions = (18,)
    attrs = {"axes": Ints()}
    differentiable = (0,)
    static_inputs = (1,)

    def _sizes(self, x: TensorType, shape: TensorType) -> dict[int, int]:
        axes = [self.axis_of(axis, x.rank) for axis in (range(x.rank) if self.axes is None else self.axes)]
        wanted = integers(self, shape, "shape")
        if len(wanted) != len(axes):
            raise self.error(f"shape has {len(wanted)} numbers for {len(axes)} axes.")
        return dict(zip(axes, wanted, strict=True))

    def infer(self, x: TensorType, shape: TensorType) -> TensorType:
        sizes = self._sizes(x, shape)
        return checked(self, x.dtype, tuple(sizes.get(k, d) for k, d in enumerate(x.shape)))

    def expand(self, g: Emission, x: Var, shape: Var) -> Sequence[Var | None]:
        before, after = [0] * x.rank, [0] * x.rank
        for axis, wanted in self._sizes(x.type, shape.type).items():
            size = x.shape[axis]
            if not isinstance(size, int) or not isinstance(wanted, int):
                raise UndecidedError("a size")
            if wanted < size:
                start = (size - wanted) // 2
                x = x.part(axis, start, start + wanted)
            else:
                before[axis] = (wanted - size) // 2
                after[axis] = wanted - size - before[axis]
        if any(before + after):
            pads = constant(g, "int64", (2 * len(before),), before + after)
            x = x.op("Pad", pads)
        return [x]


class AffineGrid(Composite):
    """Places that GridSample reads after an affine map of the pixels. https://onnx.ai/onnx/operators/onnx__AffineGrid.html

    theta is (batch, n, n + 1) for images of n = 2 or 3 dims; the grid has their sizes and n coordinates, x first.
    """

    versions = (20,)
    attrs = {"align_corners": Int(0)}
    differentiable = (0,)
    static_inputs = (1,)

    def infer(self, theta: TensorType, size: TensorType) -> TensorType:
        self.need_float32(theta)
        batch, _, *image = integers(self, size, "size") if size.size in (4, 5) else (0, 0)
        if not image or not equal_shapes(theta.shape, (batch, len(image), len(image) + 1)):
            raise self.error(f"theta has shape {list(theta.shape)} for images of size {list(size.value or ())}.")
        return checked(self, "float32", (batch, *image, len(image)))

    def _coordinates(self, n: int) -> list[float]:
        if self.align_corners:
            return [2 * k / (n - 1) - 1 for k in range(n)] if n > 1 else [-1.0]
        return [(2 * k + 1) / n - 1 for k in range(n)]

    def expand(self, g: Emission, theta: Var, size: Var) -> Sequence[Var | None]:
        image = (size.type.value or ())[2:]
        if not all(isinstance(n, int) for n in image):
            raise UndecidedError("a size")
        # Homogeneous coordinates of each pixel: x, y, (z,) 1.
        points = [(*reversed(at), 1.0) for at in product(*map(self._coordinates, image))]
        flat = constant(g, "float32", (len(points), len(image) + 1), [v for point in points for v in point])
        grid = flat.op("MatMul", theta.op("Transpose", perm=[0, 2, 1]))
        return [grid.reshape(0, *image, len(image))]
