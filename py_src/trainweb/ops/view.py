"""Views: the same bytes under another shape. And what only asks for the shape."""

from __future__ import annotations

from math import prod
from typing import Any

from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, equal, is_size, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.arguments import by_unknown_axes, integers, is_fed, unknown
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Int, Ints, Names, Op


class View(Op, abstract=True):
    """Output 0 is input 0 under another shape."""

    is_view = True
    differentiable = (0,)

    def evaluate(self, *inputs: TensorType | None) -> tuple[Any, ...] | None:
        return inputs[0].value if inputs[0] else None

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [g.reshape_like(douts[0], ins[0])]


class Identity(View):
    """x. https://onnx.ai/onnx/operators/onnx__Identity.html"""

    versions = (1, 13, 14, 16, 19, 21, 23, 24, 25)

    def infer(self, x: TensorType) -> TensorType:
        return x

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [douts[0]]


class Reshape(View):
    """Elements of x in another shape; -1 is inferred and 0 copied. https://onnx.ai/onnx/operators/onnx__Reshape.html"""

    versions = (5, 13, 14, 19, 21, 23, 24, 25)
    attrs = {"allowzero": Int(0)}
    static_inputs = (1,)

    def infer(self, x: TensorType, shape: TensorType) -> TensorType:
        dims = list(integers(self, shape, "shape"))
        for axis, dim in enumerate(dims):
            if not static(dim):
                dims[axis] = dim if is_size(dim) else unknown(self, axis, dim)
                continue
            if dim == 0 and not self.allowzero:
                if axis >= x.rank:
                    raise self.error(f"shape {dims} copies dimension {axis} of a {x.rank}-D tensor.")
                dims[axis] = x.shape[axis]
            elif dim < -1:
                raise self.error(f"shape {dims} has a negative dimension.")
        if dims.count(-1) == 1:
            rest = prod(d for d in dims if d != -1)
            if rest == 0 or (static(rest) and not equal(x.size % rest, 0)):
                raise self.error(f"{x.size} elements of shape {list(x.shape)} do not fit shape {dims}.")
            dims[dims.index(-1)] = x.size // rest
        if dims.count(-1) > 1 or not equal(prod(dims), x.size):
            raise self.error(f"{x.size} elements of shape {list(x.shape)} do not fit shape {dims}.")
        return TensorType(x.dtype, tuple(dims))


class Flatten(View):
    """A matrix: the dims before `axis` by those from it on. https://onnx.ai/onnx/operators/onnx__Flatten.html"""

    versions = (1, 9, 11, 13, 21, 23, 24, 25)
    attrs = {"axis": Int(1)}

    def infer(self, x: TensorType) -> TensorType:
        if not -x.rank <= self.axis <= x.rank:
            raise self.error(f"axis {self.axis} is outside [{-x.rank}, {x.rank}].")
        axis = self.axis + x.rank if self.axis < 0 else self.axis
        return TensorType(x.dtype, (prod(x.shape[:axis]), prod(x.shape[axis:])))


class AxesView(View, abstract=True):
    """A view given by axes: an attribute before opset 13, an input since."""

    max_inputs = 2
    attrs = {"axes": Ints()}
    static_inputs = (1,)

    def _axes(self, axes: TensorType | None, rank: int) -> list[int] | None:
        numbers = self.axes if axes is None else integers(self, axes, "axes")
        if numbers is None:
            return None
        positions = [self.axis_of(axis, rank) for axis in numbers]
        if len(set(positions)) < len(positions):
            raise self.error(f"axes {list(numbers)} name a dimension twice.")
        return positions

    def _constant_axes(self, g: GradientBuilder, ins: list[str]) -> list[int] | None:
        if len(ins) < 2 or not ins[1]:
            return list(self.axes) if self.axes is not None else None
        axes = g.known(ins[1])
        return list(axes.value or ()) if axes is not None else None


class Squeeze(AxesView):
    """x without dims of size 1. https://onnx.ai/onnx/operators/onnx__Squeeze.html"""

    versions = (1, 11, 13, 21, 23, 24, 25)

    def infer(self, x: TensorType, axes: TensorType | None = None) -> TensorType:
        if axes is not None and is_fed(axes):
            return TensorType(x.dtype, by_unknown_axes(self, x.rank - axes.size, axes))
        gone = self._axes(axes, x.rank)
        if gone is None:
            # A size that is not known is taken to be larger than 1: the rank cannot depend on it.
            gone = [k for k, dim in enumerate(x.shape) if dim == 1 or (not static(dim) and not at_most(2, dim))]
        for axis in gone:
            if not equal(x.shape[axis], 1):
                raise self.error(f"dimension {axis} of shape {list(x.shape)} is not 1.")
        return TensorType(x.dtype, tuple(dim for k, dim in enumerate(x.shape) if k not in gone))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        axes = self._constant_axes(g, ins)
        if axes is None:
            return super().gradient(g, ins, outs, douts)
        return [g.unsqueeze(douts[0], axes)]


class Unsqueeze(AxesView):
    """x with dims of size 1 put in. https://onnx.ai/onnx/operators/onnx__Unsqueeze.html"""

    versions = (1, 11, 13, 21, 23, 24, 25)

    def infer(self, x: TensorType, axes: TensorType | None = None) -> TensorType:
        count = len(self.axes or ()) if axes is None else axes.size
        if axes is not None and is_fed(axes):
            return TensorType(x.dtype, by_unknown_axes(self, x.rank + axes.size, axes))
        new = self._axes(axes, x.rank + count)
        if new is None:
            raise self.error("axes are missing.")
        rest = iter(x.shape)
        return TensorType(x.dtype, tuple(1 if k in new else next(rest) for k in range(x.rank + count)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        axes = self._constant_axes(g, ins)
        if axes is None:
            return super().gradient(g, ins, outs, douts)
        return [g.squeeze(douts[0], axes)]


class Inquiry(Op, abstract=True):
    """A value known from the shape alone."""

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf | None) -> None:
        out = outs[0]
        t = self.infer(*(TensorType(x.dtype, x.shape) for x in ins if x is not None))
        b.copy(out, b.constant(t.dtype, t.shape, t.value or ()))

    def infer(self, *inputs: TensorType | None) -> TensorType:
        raise NotImplementedError


class Shape(Inquiry):
    """Dims of x, or those from `start` to before `end`. https://onnx.ai/onnx/operators/onnx__Shape.html"""

    versions = (1, 13, 15, 19, 21, 23, 24, 25)
    attrs = {"start": Int(0), "end": Int()}

    def infer(self, x: TensorType) -> TensorType:
        dims = x.shape[self.start : self.end]
        return TensorType("int64", (len(dims),), dims)


class Size(Inquiry):
    """Number of elements. https://onnx.ai/onnx/operators/onnx__Size.html"""

    versions = (1, 13, 19, 21, 23, 24, 25)

    def infer(self, x: TensorType) -> TensorType:
        return TensorType("int64", (), (x.size,))
