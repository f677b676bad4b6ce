"""Joining tensors along an axis and cutting them up."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, equal, maximum, minimum, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS
from trainweb.ops.copies import copy_axis
from trainweb.ops.frame.arguments import checked, integers, type_of
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import MANY, Int, Ints, Names, Op


class Concat(Op):
    """Inputs one after the other along an axis. https://onnx.ai/onnx/operators/onnx__Concat.html"""

    versions: ClassVar[tuple[int, ...]] = (4, 11, 13)
    attrs = {"axis": Int(required=True)}
    max_inputs = MANY
    differentiable = range(MANY)

    def infer(self, *inputs: TensorType | None) -> TensorType:
        types = [t for t in inputs if t is not None]
        first = types[0]
        axis = self.axis_of(self.axis, first.rank)
        for t in types:
            fits = t.rank == first.rank and all(
                k == axis or equal(a, b) for k, (a, b) in enumerate(zip(t.shape, first.shape, strict=True))
            )
            if not fits or t.dtype != first.dtype:
                raise self.error(
                    f"{t.dtype}{list(t.shape)} and {first.dtype}{list(first.shape)} cannot be joined along axis {axis}."
                )
        dims = list(first.shape)
        dims[axis] = sum(t.shape[axis] for t in types)
        return checked(self, first.dtype, dims)

    def evaluate(self, *inputs: TensorType | None) -> tuple[Any, ...]:
        types = [t for t in inputs if t is not None]
        axis = self.axis % types[0].rank
        rows = prod(types[0].shape[:axis])
        widths = [prod(t.shape[axis:]) for t in types]
        return tuple(
            v
            for r in range(rows)
            for t, w in zip(types, widths, strict=True)
            for v in (t.value or ())[r * w : (r + 1) * w]
        )

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf | None) -> None:
        out, start = outs[0], 0
        for x in ins:
            if out is not None and x is not None:
                axis = self.axis % len(out.shape)
                copy_axis(b, out, x, axis, x.shape[axis], out_start=start)
                start += x.shape[axis]

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        if len(ins) == 1:
            return [douts[0]]
        axis = self.axis % g.rank(ins[0])
        sizes = [g.shape(name)[axis] for name in ins]
        if static(*sizes):
            lengths = g.constant("int64", (len(sizes),), sizes)
        else:
            at = g.constant("int64", (1,), [axis])
            lengths = g.op("Concat", [g.op("Gather", [g.op("Shape", [x]), at]) for x in ins], axis=0)
        return [*g.ops("SplitTraining", [douts[0], lengths], len(ins), domain=MS, axis=axis)]


class ConcatTraining(Concat):
    """Concat that also gives the inputs' sizes along the axis."""

    domain = MS
    versions = (1,)
    n_outputs = 2

    def infer(self, *inputs: TensorType | None) -> Any:
        joined = super().infer(*inputs)
        axis = self.axis % joined.rank
        lengths = tuple(t.shape[axis] for t in inputs if t is not None)
        return joined, TensorType("int64", (len(lengths),), lengths)

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf | None) -> None:
        super().lower(b, outs[:1], *ins)
        if outs[1] is not None:
            lengths = [x.shape[self.axis] for x in ins if x is not None]
            b.copy(outs[1], b.constant("int64", (len(lengths),), lengths))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        if len(ins) == 1:
            return [douts[0]]
        lengths = g.extra_output(1, "_lengths")
        return [*g.ops("SplitTraining", [douts[0], lengths], len(ins), domain=MS, axis=self.axis)]


class Splitting(Op, abstract=True):
    """Parts of x along an axis."""

    differentiable = (0,)
    static_inputs = (1,)

    def lengths(self, x: TensorType, split: TensorType | None) -> list[int]:
        """Sizes of the parts along the axis."""
        return list(integers(self, split, "split")) if split is not None else []

    def infer(self, x: TensorType, split: TensorType | None = None) -> Any:
        axis = self.axis_of(self.axis, x.rank)
        sizes = self.lengths(x, split)
        if not all(at_most(0, s) for s in sizes) or not equal(sum(sizes), x.shape[axis]):
            raise self.error(f"sizes {sizes} do not add up to dimension {axis} of shape {list(x.shape)}.")
        if len(sizes) != len(self.node.outputs):
            raise self.error(f"it has {len(self.node.outputs)} outputs and {len(sizes)} parts.")
        return tuple(TensorType(x.dtype, (*x.shape[:axis], s, *x.shape[axis + 1 :])) for s in sizes)

    def lower(self, b: Builder, outs: list[Buf | None], x: Buf, split: Buf | None) -> None:
        axis, start = self.axis % len(x.shape), 0
        sizes = self.lengths(TensorType(x.dtype, x.shape), type_of(split))
        for out, size in zip(outs, sizes, strict=True):
            if out is not None:
                copy_axis(b, out, x, axis, size, source_start=start)
            start += size

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        parts = []
        for k, (name, dy) in enumerate(zip(outs, douts, strict=True)):
            # The gradient of an unused output is zeros.
            part = name or g.extra_output(k, f"_part_{k}")
            parts.append(dy or g.op("ConstantOfShape", [g.op("Shape", [part])]))
        return [g.op("Concat", parts, axis=self.axis) if len(parts) > 1 else parts[0]]


class Split(Splitting):
    """Parts of given or equal size along an axis. https://onnx.ai/onnx/operators/onnx__Split.html"""

    versions = (2, 11, 13, 18)
    attrs = {"axis": Int(0), "split": Ints(), "num_outputs": Int()}

    def lengths(self, x: TensorType, split: TensorType | None) -> list[int]:
        if split is not None:
            return super().lengths(x, split)
        if self.split is not None:
            return list(self.split)
        count = len(self.node.outputs)
        if self.num_outputs not in (None, count):
            raise self.error(f"num_outputs is {self.num_outputs} and it has {count} outputs.")
        total = x.shape[self.axis_of(self.axis, x.rank)]
        if self.num_outputs is None and not equal(total % count, 0):
            raise self.error(f"{total} elements do not split into {count} equal parts.")
        size = -(-total // count)
        return [maximum(0, minimum(size, total - k * size)) for k in range(count)]


class SplitTraining(Splitting):
    """Parts of given sizes along an axis."""

    domain = MS
    attrs = {"axis": Int(0)}
    min_inputs = 2
