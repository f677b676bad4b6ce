"""Slices and margins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from trainweb.ir.builder import Builder
from trainweb.ir.dims import UndecidedError, at_most, equal, maximum, minimum, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType, contiguous_strides
from trainweb.model.graph import MS
from trainweb.ops.copies import gather_axis, strided_copy
from trainweb.ops.frame.arguments import (
    by_unknown_axes,
    checked,
    integers,
    is_decided_later,
    is_known_later,
    type_of,
    unknown,
)
from trainweb.ops.frame.composite import gradient_for_sizes
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Float, Ints, Names, Op, Str
from trainweb.ops.frame.symbolic import Var, constant, when


def slice_bounds(
    op: Op, shape: tuple[int, ...], starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> list[tuple[int, int, int]]:
    """(start, count, step) per dimension; bounds are clamped as ONNX says."""
    axes = range(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise op.error("starts, ends, axes and steps differ in length.")
    result = [(0, dim, 1) for dim in shape]
    seen: set[int] = set()
    for start, end, number, step in zip(starts, ends, axes, steps, strict=True):
        axis = op.axis_of(number, len(shape))
        if step == 0:
            raise op.error(f"the step along axis {axis} is 0.")
        if axis in seen:
            raise op.error(f"axis {axis} is sliced twice.")
        seen.add(axis)
        dim = shape[axis]
        if not static(dim, start, end, step):
            result[axis] = (start, _unknown_count(op, axis, dim, start, end, step), step)
            continue
        low, high = (0, dim) if step > 0 else (-1, dim - 1)
        first = min(max(start + dim if start < 0 else start, 0 if step > 0 else low), high)
        last = min(max(end + dim if end < 0 else end, low), high)
        result[axis] = (first, max(0, -((first - last) // step)), step)
    return result


def _unknown_count(op: Op, axis: int, dim: int, start: int, end: int, step: int) -> int:
    """Elements of a slice by symbolic numbers."""
    try:
        first, last = (n + dim if n < 0 else n for n in (start, end))
        if step > 0:
            lengths = [end - begin for begin in (first, 0) for end in (last, dim)]
        else:
            lengths = [begin - end for begin in (first, dim - 1) for end in (last, -1)]
        # Clamping the bounds gives the smallest of these lengths.
        return maximum(0, minimum(*(-(-length // abs(step)) for length in lengths)))
    except UndecidedError:  # Whether a number is negative: then it counts from the end.
        return unknown(op, axis, dim, start, end, step)


class Slice(Op):
    """Every step-th element from start to before end, along some axes. https://onnx.ai/onnx/operators/onnx__Slice.html"""

    versions: ClassVar[tuple[int, ...]] = (1, 10, 11, 13)
    attrs = {"starts": Ints(), "ends": Ints(), "axes": Ints()}
    max_inputs = 5
    differentiable: ClassVar[Sequence[int]] = (0,)
    static_inputs: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)

    def bounds(self, x: TensorType, *inputs: TensorType | None) -> list[tuple[int, int, int]]:
        """(start, count, step) per dimension."""
        values = [
            None if t is None else integers(self, t, what)
            for t, what in zip(inputs, ("starts", "ends", "axes", "steps"), strict=False)
        ]
        if not any(v is not None for v in values):
            values = [self.starts, self.ends, self.axes, None]
        values += [None] * (4 - len(values))
        if values[0] is None or values[1] is None:
            raise self.error("starts or ends are missing.")
        starts, ends, axes, steps = values[:4]
        return slice_bounds(self, x.shape, starts, ends, axes, steps)

    def infer(self, x: TensorType, *inputs: TensorType | None) -> TensorType:
        if (waits := self.waits_for(inputs)) is not None:
            return TensorType(x.dtype, by_unknown_axes(self, x.rank, waits))
        return TensorType(x.dtype, tuple(n for _, n, _ in self.bounds(x, *inputs)))

    def waits_for(self, inputs: Sequence[TensorType | None]) -> TensorType | None:
        """Return the fed tensor that decides the sliced axes: the axes themselves, or one with a symbolic length."""
        present = [t for t in inputs if t is not None]
        for t in present:
            if not equal(t.size, present[0].size):
                raise self.error("starts, ends, axes and steps differ in length.")
        axes = inputs[2] if len(inputs) > 2 else None
        if axes is not None and is_decided_later(self, axes):
            return axes
        return next((t for t in present if is_known_later(self, t)), None)

    def evaluate(self, x: TensorType, *inputs: TensorType | None) -> tuple[Any, ...] | None:
        index = [0]
        for stride, (start, count, step) in zip(contiguous_strides(x.shape), self.bounds(x, *inputs), strict=True):
            offsets = [(start + k * step) * stride for k in range(count)]
            index = [i + offset for i in index for offset in offsets]
        return tuple(map(x.value.__getitem__, index)) if x.value is not None else None

    def lower(self, b: Builder, outs: list[Buf], x: Buf, *ins: Buf | None) -> None:
        start, strides = self._places(x, ins)
        out = outs[0]
        strided_copy(b, out, x, out.shape, contiguous_strides(out.shape), strides, source_start=start)

    def _places(self, tensor: Buf, ins: Sequence[Buf | None]) -> tuple[int, list[int]]:
        """The first element of the slice in a tensor, and the strides between its elements."""
        parts = self.bounds(TensorType(tensor.dtype, tensor.shape), *map(type_of, ins))
        strides = contiguous_strides(tensor.shape)
        start = sum(start * s for (start, _, _), s in zip(parts, strides, strict=True))
        return start, [step * s for (_, _, step), s in zip(parts, strides, strict=True)]

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        shape = g.op("Shape", [ins[0]])
        if len(ins) == 1:
            values = [self.starts, self.ends, self.axes or range(len(self.starts))]
            inputs = [g.constant("int64", (len(v),), list(v)) for v in values]
        else:
            inputs = ins[1:]
        dy, inputs = self._forwards(g, ins[0], douts[0], inputs)
        return [g.op("SliceGrad", [dy, shape, *inputs], domain=MS)]

    def _forwards(self, g: GradientBuilder, x: str, dy: str, inputs: list[str]) -> tuple[str, list[str]]:
        """The same slice with positive steps, and dY turned round: ONNX Runtime has no backward SliceGrad."""
        known = [g.known(name) if name else None for name in inputs]
        values = [None if t is None else t.value for t in (*known, None, None)[:4]]
        steps = values[3] or ()
        dims = g.shape(x)
        if all(s > 0 for s in steps) or values[0] is None or values[1] is None:
            return dy, inputs
        axes = [a % len(dims) for a in values[2] or range(len(steps))]
        if not static(*(dims[a] for a in axes)):
            return dy, inputs
        bounds = slice_bounds(self, tuple(d if static(d) else 1 for d in dims), values[0], values[1], values[2], steps)
        parts = [bounds[a] for a in axes]
        turned = [a for a, (_, _, step) in zip(axes, parts, strict=True) if step < 0]

        def ints(items: Any) -> str:
            items = list(items)
            return g.constant("int64", (len(items),), items)

        dy = g.op(
            "Slice",
            [
                dy,
                ints(-1 for _ in turned),
                ints(-(2**63) for _ in turned),
                ints(turned),
                ints(-1 for _ in turned),
            ],
        )
        firsts = [p[0] if p[2] > 0 else p[0] + max(p[1] - 1, 0) * p[2] for p in parts]
        lasts = [f + (p[1] - 1) * abs(p[2]) + 1 if p[1] else f for f, p in zip(firsts, parts, strict=True)]
        return dy, [ints(firsts), ints(lasts), ints(axes), ints(abs(p[2]) for p in parts)]


class SliceGrad(Slice):
    """dY written into zeros of a given shape where Slice read: inputs dY, shape, starts, ends, axes, steps."""

    domain = MS
    versions = (1,)
    attrs = {}
    min_inputs, max_inputs = 4, 6
    differentiable = ()
    static_inputs = (1, 2, 3, 4, 5)

    def infer(self, dy: TensorType, shape: TensorType, *inputs: TensorType | None) -> TensorType:
        result = checked(self, dy.dtype, integers(self, shape, "shape"))
        if self.waits_for(inputs) is not None:
            return result
        self.need_shape("dY", dy, [n for _, n, _ in self.bounds(result, *inputs)])
        return result

    def evaluate(self, *inputs: TensorType | None) -> tuple[Any, ...] | None:
        return None

    gradient = Op.gradient  # type: ignore[assignment]

    def lower(self, b: Builder, outs: list[Buf], dy: Buf, shape: Buf, *ins: Buf | None) -> None:
        out = outs[0]
        start, strides = self._places(out, ins)
        b.fill(out, 0)
        strided_copy(b, out, dy, dy.shape, strides, contiguous_strides(dy.shape), out_start=start)


# ---- padding


class Pad(Op):
    """x within a margin; negative pads cut off. https://onnx.ai/onnx/operators/onnx__Pad.html"""

    versions = (2, 11, 13, 18, 19, 21, 23, 24, 25)
    attrs = {
        "mode": Str("constant", among=("constant", "reflect", "edge", "wrap")),
        "pads": Ints(),
        "value": Float(0.0),
    }
    differentiable = (0, 2)
    static_inputs = (1, 3)

    def margins(self, rank: int, pads: TensorType | None, axes: TensorType | None) -> list[tuple[int, int]]:
        """(before, after) per dimension."""
        numbers = self.pads if pads is None else integers(self, pads, "pads")
        if numbers is None:
            raise self.error("pads are missing.")
        where = self._axes(rank, axes)
        if len(numbers) != 2 * len(where):
            raise self.error(f"{len(numbers)} pads for {len(where)} dimensions.")
        margins = [(0, 0)] * rank
        for k, axis in enumerate(where):
            margins[axis] = (numbers[k], numbers[k + len(where)])
        return margins

    def _axes(self, rank: int, axes: TensorType | None) -> list[int]:
        """The axes that pads are for."""
        numbers = range(rank) if axes is None else integers(self, axes, "axes")
        return [self.axis_of(axis, rank) for axis in numbers]

    def infer(
        self,
        x: TensorType,
        pads: TensorType | None = None,
        value: TensorType | None = None,
        axes: TensorType | None = None,
    ) -> TensorType:
        if value is not None and (value.dtype != x.dtype or not equal(value.size, 1)):
            raise self.error(f"the value must be one {x.dtype} number.")
        if axes is not None and is_decided_later(self, axes):
            return TensorType(x.dtype, by_unknown_axes(self, x.rank, axes))
        if pads is not None and is_known_later(self, pads):
            padded = self._axes(x.rank, axes)
            if not equal(pads.size, 2 * len(padded)):
                raise self.error(f"{pads.size} pads for {len(padded)} dimensions.")
            return TensorType(x.dtype, tuple(unknown(self, k) if k in padded else d for k, d in enumerate(x.shape)))
        dims = []
        for dim, (before, after) in zip(x.shape, self.margins(x.rank, pads, axes), strict=True):
            room = {"constant": 2**62, "reflect": dim - 1}.get(self.mode, 2**62 if dim != 0 else 0)
            if not at_most(before, room) or not at_most(after, room):
                raise self.error(f"pads {before}, {after} of a dimension of {dim} in mode {self.mode}.")
            dims.append(dim + before + after)
        return checked(self, x.dtype, dims)

    def lower(self, b: Builder, outs: list[Buf], x: Buf, pads: Buf | None, value: Buf | None, axes: Buf | None) -> None:
        margins = self.margins(len(x.shape), type_of(pads), type_of(axes))
        if self.mode == "constant":
            self._constant(b, outs[0], x, value, margins)
            return
        changed = [k for k, m in enumerate(margins) if m != (0, 0)]
        for axis in changed:
            index = self._index(x.shape[axis], *margins[axis])
            shape = (*x.shape[:axis], len(index), *x.shape[axis + 1 :])
            target = outs[0] if axis == changed[-1] else b.temp(x.dtype, shape)
            gather_axis(b, target, x, b.constant("int64", (len(index),), index), axis)
            x = target
        if not changed:
            b.copy(outs[0], x)

    def _constant(self, b: Builder, out: Buf, x: Buf, value: Buf | None, margins: list[tuple[int, int]]) -> None:
        if value is not None:
            b.elementwise([out], [value.view(())], lambda e, v: v)
        else:
            b.fill(out, self.value if x.dtype.startswith("float") else int(self.value))
        # The part of x that stays, and where it goes.
        rest = [dim + min(low, 0) + min(high, 0) for dim, (low, high) in zip(x.shape, margins, strict=True)]
        if min(rest, default=1) <= 0:
            return
        source, target = contiguous_strides(x.shape), contiguous_strides(out.shape)
        strided_copy(
            b,
            out,
            x,
            rest,
            target,
            source,
            out_start=sum(max(m[0], 0) * s for m, s in zip(margins, target, strict=True)),
            source_start=sum(max(-m[0], 0) * s for m, s in zip(margins, source, strict=True)),
        )

    def _index(self, dim: int, before: int, after: int) -> list[int]:
        """Source positions along one dimension."""
        positions = range(-before, dim + after)
        if self.mode == "edge":
            return [min(max(k, 0), dim - 1) for k in positions]
        if self.mode == "wrap":
            return [k % dim for k in positions]
        return [dim - 1 - abs(dim - 1 - abs(k)) for k in positions]

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        rest: list[str | None] = [None] * (len(ins) - 1)
        dy = douts[0]
        if self.mode != "constant":
            if len(ins) > 3 and ins[3] and g.known(ins[3]) is None:
                return gradient_for_sizes(self, g, ins, [*douts])
            return [self._scatter(g, ins, dy), *rest]
        if len(ins) == 1:
            return [g.op("Pad", [dy], pads=[-p for p in self.pads], mode="constant"), *rest]
        axes = ins[3:4] if len(ins) > 3 and ins[3] else []
        opposite = g.op("Neg", [ins[1]])
        dx = g.op("Pad", [dy, opposite, *([""] if axes else []), *axes], mode="constant")
        if when(g, ins, 2):
            # The gradient of the padding value is the sum of dy outside of x.
            margin = g.op("Sub", [g.reduce_sum(v, None, keepdims=False) for v in (dy, dx)])
            rest[1] = g.reshape_like(margin, ins[2])
        return [dx, *rest]

    def _scatter(self, g: GradientBuilder, ins: list[str], dy: str) -> str:
        """Gradient rows added where the margin's elements came from, one axis after the other."""
        dims = g.shape(ins[0])
        margins = self._margins_of(g, ins)
        for axis in reversed(range(len(dims))):
            before, after = margins[axis]
            if isinstance(before, int) and isinstance(after, int) and before == after == 0:
                continue
            dim = dims[axis]
            if static(dim) and isinstance(before, int) and isinstance(after, int):
                index = self._index(dim, before, after)
                rows = g.constant("int64", (len(index),), index)
            else:
                rows = self._rows(g, g.size_of(ins[0], axis), before, after)
            shape = g.op("Shape", [dy])
            sizes = [g.op("Gather", [shape, g.constant("int64", (1,), [k])]) for k in range(len(dims))]
            sizes[axis] = g.constant("int64", (1,), [dim]) if static(dim) else g.size_of(ins[0], axis)
            shape = g.op("Concat", sizes, axis=0)
            dy = g.op("GatherGrad", [shape, rows, dy], domain=MS, axis=axis)
        return dy

    def _margins_of(self, g: GradientBuilder, ins: list[str]) -> list[tuple[int | Var, int | Var]]:
        """(before, after) per dimension; tensors of one element where they are fed."""
        rank = g.rank(ins[0])
        types = [g.known(name) if name else None for name in (*ins[1:2], *ins[3:4])]
        pads, axes = [*types, None, None][:2]
        if len(ins) < 2 or pads is not None:
            return [*self.margins(rank, pads, axes)]
        where = self._axes(rank, axes)
        margins: list[tuple[int | Var, int | Var]] = [(0, 0)] * rank
        for k, axis in enumerate(where):
            low, high = (g.op("Gather", [ins[1], g.constant("int64", (), [i])]) for i in (k, k + len(where)))
            margins[axis] = Var(g, low, "int64"), Var(g, high, "int64")
        return margins

    def _rows(self, g: GradientBuilder, size: str, before: int | Var, after: int | Var) -> str:
        """Return the result of `_index` as a tensor for a dimension of `size` elements."""
        zero, one = (constant(g, "int64", (), [k]) for k in (0, 1))
        dim = Var(g, g.squeeze(size, [0]), "int64")
        k = Var(g, g.op("Range", [(zero - before).name, (dim + after).name, one.name]), "int64")
        if self.mode == "wrap":
            return k.op("Mod", dim).name
        last = dim - 1
        if self.mode == "reflect":
            return (last - (last - k.op("Abs")).op("Abs")).name
        # Min and Max take integers only in later opsets than this mode is from.
        below = (k < zero).cast("int64")
        above = (k > last).cast("int64")
        return (k * (1 - below) * (1 - above) + last * above).name
