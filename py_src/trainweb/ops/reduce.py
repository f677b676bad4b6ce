"""Reductions along axes, running sums, and what gradients of broadcasting need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from itertools import groupby
from math import prod
from typing import Any, ClassVar

from trainweb.ir import calls, layout
from trainweb.ir.builder import Builder
from trainweb.ir.dims import static, table_of
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType, broadcast_shapes, contiguous_strides
from trainweb.model.calls import takes_the_first
from trainweb.model.graph import ITEM_SIZE, MS
from trainweb.ops.copies import strided_copy
from trainweb.ops.extrema import as_int64, extreme, from_int64
from trainweb.ops.frame.arguments import by_unknown_axes, integers, is_fed, scalar, type_of, unknown
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import FLOATS, INTS, MANY, Int, Ints, Names, Op, find
from trainweb.ops.frame.symbolic import Var, constant, names

Over = Callable[[str, Var], Var]
"""(ONNX reduction, x) -> that reduction of x along the node's axes, kept as ones."""


def reduce(b: Builder, out: Buf, x: Buf, axes: Sequence[int], op: int) -> None:
    """out = `op` of x over `axes`; `out` may have them as ones or not at all."""
    if x.dtype != "float32" and not (x.dtype in ("int32", "int64") and op in _FOLDS):
        _reduce_as_int64(b, out, x, axes, op)
        return
    # Neighbouring axes of one kind are one axis; a kernel call reduces one of them.
    flags = [(k in axes, dim) for k, dim in enumerate(x.shape) if dim != 1]
    groups = [(kind, prod(d for _, d in run)) for kind, run in groupby(flags, lambda flag: flag[0])]
    sizes = [size for _, size in groups] or [1]
    todo = [k for k, (reduced, _) in enumerate(groups) if reduced]
    if not todo and op in (*_FOLDS, layout.REDUCE_MEAN):
        b.elementwise([out.view(x.shape)], [x], lambda e, v: v)
        return
    if not todo:
        sizes, todo = [1, *sizes], [0]
    for k in reversed(todo):
        outer, n, inner = prod(sizes[:k]), sizes[k], prod(sizes[k + 1 :])
        sizes[k] = 1
        target = out if k == todo[0] else b.temp(x.dtype, (outer * inner,))
        step = (
            layout.REDUCE_SUM
            if (op == layout.REDUCE_SUM_SQUARES and k != todo[-1]) or (op == layout.REDUCE_LOG_SUM and k != todo[0])
            else op
        )
        if x.dtype == "float32":
            b.emit(calls.Reduce(x=x, y=target, outer=outer, n=n, inner=inner, op=step))
        else:
            size = ITEM_SIZE[x.dtype]
            b.emit(calls.ReduceInt(x=x, y=target, outer=outer, n=n, inner=inner, size=size, op=step))
        x = target


def _reduce_as_int64(b: Builder, out: Buf, x: Buf, axes: Sequence[int], op: int) -> None:
    """Integers that no kernel reduces: as int64, where sums and products wrap to the same bits."""
    if not x.size and op in (layout.REDUCE_MAX, layout.REDUCE_MIN):
        if out.size:
            b.fill(out, extreme(x.dtype, largest=op == layout.REDUCE_MIN))
        return
    ordered = op in (layout.REDUCE_MAX, layout.REDUCE_MIN)
    wide = as_int64(b, x, ordered=ordered)
    if op in (layout.REDUCE_SUM_ABS, layout.REDUCE_SUM_SQUARES):
        terms = b.temp("int64", x.shape)
        b.elementwise([terms], [wide], lambda e, v: e.mul(v, v) if op == layout.REDUCE_SUM_SQUARES else e.abs(v))
        wide = terms
    total = b.temp("int64", out.shape)
    reduce(b, total, wide, axes, op if op in _FOLDS else layout.REDUCE_SUM)
    if op == layout.REDUCE_MEAN and total.size:
        count = x.size // total.size
        b.elementwise([out], [total], lambda e, v: e.cast(e.div(v, e.like(v, count)), out.dtype))
    else:
        from_int64(b, out, total, ordered=ordered)


def sum_to(b: Builder, out: Buf, source: Buf) -> None:
    """Sum `source` over the axes along which the shape of `out` was broadcast."""
    shape = (1,) * (len(source.shape) - len(out.shape)) + out.shape
    axes = [k for k, (s, t) in enumerate(zip(source.shape, shape, strict=True)) if s != t]
    reduce(b, out, source, axes, layout.REDUCE_SUM)


class Reduction(Op, abstract=True):
    """A reduction over axes given as attribute or, since opset `axes_since`, as input."""

    versions: ClassVar[tuple[int, ...]] = (1, 11, 13, 18)
    axes_since = 18
    attrs = {"axes": Ints(), "keepdims": Int(1), "noop_with_empty_axes": Int(0)}
    differentiable = (0,)
    static_inputs = (1,)
    dtypes: tuple[str, ...] = ("float32",)
    kernel: int

    def reduced_axes(self, axes: TensorType | None, rank: int) -> list[int]:
        numbers = self.axes if axes is None else integers(self, axes, "axes")
        if not numbers:
            return [] if self.noop_with_empty_axes else list(range(rank))
        gone = [self.axis_of(axis, rank) for axis in numbers]
        if len(set(gone)) < len(gone):
            raise self.error(f"axes {list(numbers)} name a dimension twice.")
        return sorted(gone)

    def infer(self, x: TensorType, axes: TensorType | None = None) -> TensorType:
        self.need_dtype(self.dtypes, x.dtype)
        if axes is not None and axes.value is None and self.keepdims and not static(axes.size):
            # The axes depend on symbols, as those do along which a gradient is summed.
            return TensorType(x.dtype, tuple(unknown(self, k, axes.size) for k in range(x.rank)))
        if axes is not None and is_fed(axes):
            return TensorType(x.dtype, by_unknown_axes(self, x.rank if self.keepdims else x.rank - axes.size, axes))
        gone = self.reduced_axes(axes, x.rank)
        if self.keepdims:
            return TensorType(x.dtype, tuple(1 if k in gone else d for k, d in enumerate(x.shape)))
        return TensorType(x.dtype, tuple(d for k, d in enumerate(x.shape) if k not in gone))

    def lower(self, b: Builder, outs: list[Buf], x: Buf, axes: Buf | None) -> None:
        reduce(b, outs[0], x, self.reduced_axes(type_of(axes), len(x.shape)), self.kernel)

    # Gradients.

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        """dX from X and from Y and dY with dims of 1 where X was reduced; `over` reduces along the same axes."""
        raise self.unsupported("differentiation")

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        x, y, dy = Var.of(g, ins[0], outs[0], douts[0])
        axes, axes_name = self._constant_axes(g, ins)

        def kept(v: Var) -> Var:
            if self.keepdims or axes == []:
                return v
            if axes is None:
                return v.op("Unsqueeze", Var(g, axes_name, "int64"))
            return v.unsqueeze(*axes)

        def over(op_type: str, v: Var) -> Var:
            if axes == []:
                return v
            since = find("", op_type).axes_since  # type: ignore[union-attr]
            if axes is None:
                return v.op(op_type, Var(g, axes_name, "int64"), keepdims=1)
            if g.opset >= since:
                return v.op(op_type, constant(g, "int64", (len(axes),), axes), keepdims=1)
            return v.op(op_type, axes=axes, keepdims=1)

        return names(self.backward(g, x, kept(y), kept(dy), over), *[None] * (len(ins) - 1))

    def _constant_axes(self, g: GradientBuilder, ins: list[str]) -> tuple[list[int] | None, str]:
        """The axes, or the name of the tensor that has them."""
        name = ins[1] if len(ins) > 1 else ""
        if not name:
            return self.reduced_axes(None, g.rank(ins[0])), ""
        axes = g.known(name)
        return (None if axes is None else self.reduced_axes(axes, g.rank(ins[0]))), name


def spread_like(g: GradientBuilder, v: Var, x: Var) -> Var:
    """`v` expanded to the shape of x."""
    if g.opset < 8:  # Expand came with 8
        return x * 0.0 + v
    return Var(g, g.op("Expand", [v.name, g.op("Shape", [x.name])]), v.dtype)


_FOLDS: dict[int, Any] = {
    layout.REDUCE_SUM: lambda a, b: a + b,
    layout.REDUCE_PROD: lambda a, b: a * b,
    layout.REDUCE_MAX: max,
    layout.REDUCE_MIN: min,
}


NUMBERS = ("float32", "int32", "int64", "uint32", "uint64")
"""Types that the standard reduces, after types of floats became float32."""


class NumberReduction(Reduction, abstract=True):
    """A reduction that integers have too; small ones are computed in Python."""

    dtypes: tuple[str, ...] = NUMBERS

    def evaluate(self, x: TensorType, axes: TensorType | None = None) -> tuple[Any, ...] | None:
        if self.kernel not in _FOLDS or x.size == 0:
            return None
        gone = self.reduced_axes(axes, x.rank)
        dims = [1 if k in gone else d for k, d in enumerate(x.shape)]
        steps = [0 if k in gone else s for k, s in enumerate(contiguous_strides(dims))]
        rows: list[list[Any]] = [[] for _ in range(prod(dims))]
        for i, value in enumerate(x.value or ()):
            position = 0
            for stride, dim, step in zip(contiguous_strides(x.shape), x.shape, steps, strict=True):
                position += i // stride % dim * step
            rows[position].append(value)
        return tuple(fold(_FOLDS[self.kernel], row) for row in rows)


class ReduceSum(NumberReduction):
    """Sum. https://onnx.ai/onnx/operators/onnx__ReduceSum.html"""

    versions: ClassVar[tuple[int, ...]] = (1, 11, 13)
    axes_since = 13
    kernel = layout.REDUCE_SUM

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        return spread_like(g, dy, x)


class ReduceSumTraining(ReduceSum):
    """Sum over axes given as input."""

    domain = MS
    versions = (1,)
    attrs = {"keepdims": Int(1), "noop_with_empty_axes": Int(0)}
    axes = None
    min_inputs = 2


class ReduceMean(Reduction):
    """Mean. https://onnx.ai/onnx/operators/onnx__ReduceMean.html"""

    kernel = layout.REDUCE_MEAN
    dtypes = NUMBERS

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        count = Var(g, g.op("Div", [g.op("Size", [x.name]), g.op("Size", [y.name])]), "int64")
        return spread_like(g, dy.op("Scale", count, domain=MS, scale_down=1), x)


class ReduceExtremum(NumberReduction, abstract=True):
    """Largest or smallest; equal ones share the gradient, or the first has it where torch's `max(dim)` says so."""

    chosen: ClassVar[str]

    versions = (1, 11, 12, 13, 18, 20)
    dtypes = ("float32", *INTS, "bool")

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        mask = x.equal(y).cast(x.dtype)
        return mask * (dy / over("ReduceSum", mask))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        axes, _ = self._constant_axes(g, ins)
        if not takes_the_first(self.node) or axes is None or len(axes) != 1:
            return super().gradient(g, ins, outs, douts)
        chosen = g.op(self.chosen, [ins[0]], axis=axes[0], keepdims=1)
        dy = douts[0] if self.keepdims else g.unsqueeze(douts[0], axes)
        shape = g.op("Shape", [ins[0]])
        dx = g.op("GatherElementsGrad", [dy, shape, chosen], domain=MS, axis=axes[0])
        return [dx, *[None] * (len(ins) - 1)]


class ReduceMax(ReduceExtremum):
    """Largest. https://onnx.ai/onnx/operators/onnx__ReduceMax.html"""

    kernel, chosen = layout.REDUCE_MAX, "ArgMax"


class ReduceMin(ReduceExtremum):
    """Smallest. https://onnx.ai/onnx/operators/onnx__ReduceMin.html"""

    kernel, chosen = layout.REDUCE_MIN, "ArgMin"


class ReduceProd(NumberReduction):
    """Product. https://onnx.ai/onnx/operators/onnx__ReduceProd.html"""

    kernel = layout.REDUCE_PROD

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        # The product of the others: of all nonzero ones without x, unless another one is zero.
        zero = x.equal(0.0).cast(x.dtype)
        filled = x + zero
        alone = over("ReduceSum", zero).equal(zero).cast(x.dtype)
        return dy * over("ReduceProd", filled) / filled * alone


class ReduceL1(Reduction):
    """Sum of absolute values. https://onnx.ai/onnx/operators/onnx__ReduceL1.html"""

    kernel = layout.REDUCE_SUM_ABS
    dtypes = NUMBERS

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        return x.op("Sign") * dy


class ReduceL2(Reduction):
    """Euclidean norm. https://onnx.ai/onnx/operators/onnx__ReduceL2.html"""

    kernel = layout.REDUCE_NORM

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        zero = y.equal(0.0)
        return x * zero.where(dy.lift(0.0), dy / y)


class ReduceSumSquare(Reduction):
    """Sum of squares. https://onnx.ai/onnx/operators/onnx__ReduceSumSquare.html"""

    kernel = layout.REDUCE_SUM_SQUARES
    dtypes = NUMBERS

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        return x * (dy * 2.0)


class ReduceLogSum(Reduction):
    """Logarithm of the sum. https://onnx.ai/onnx/operators/onnx__ReduceLogSum.html"""

    versions = (1, 11, 13, 18, 28)
    kernel = layout.REDUCE_LOG_SUM

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        return spread_like(g, dy / over("ReduceSum", x), x)


class ReduceLogSumExp(Reduction):
    """Logarithm of the sum of exponentials. https://onnx.ai/onnx/operators/onnx__ReduceLogSumExp.html"""

    versions = (1, 11, 13, 18, 28)
    kernel = layout.REDUCE_LOG_SUM_EXP

    def backward(self, g: GradientBuilder, x: Var, y: Var, dy: Var, over: Over) -> Var:
        return (x - y).op("Exp") * dy


class ReduceAllL2(Op):
    """Euclidean norm of all inputs together."""

    domain = MS
    max_inputs = MANY

    def infer(self, *inputs: TensorType | None) -> TensorType:
        for t in inputs:
            if t is None or t.dtype != "float32":
                raise self.unsupported("an input that is not float32")
        return TensorType("float32", ())

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf | None) -> None:
        norms = b.temp("float32", (len(ins),))
        for k, x in enumerate(ins):
            if x is not None:
                reduce(b, norms.view((), k), x, range(len(x.shape)), layout.REDUCE_NORM)
        reduce(b, outs[0], norms, (0,), layout.REDUCE_NORM)


class CumSum(Op):
    """Running sum along an axis. https://onnx.ai/onnx/operators/onnx__CumSum.html"""

    versions = (11, 14)
    attrs = {"exclusive": Int(0), "reverse": Int(0)}
    differentiable = (0,)
    static_inputs = (1,)

    def infer(self, x: TensorType, axis: TensorType) -> TensorType:
        self.need_dtype((*FLOATS, *INTS), x.dtype)
        number = scalar(self, axis, "axis")
        if not is_fed(axis):
            self.axis_of(number, x.rank)
        return TensorType(x.dtype, x.shape)

    def evaluate(self, x: TensorType, axis: TensorType) -> tuple[Any, ...] | None:
        if x.dtype in FLOATS:
            return None
        k = scalar(self, axis, "axis") % x.rank
        sums, n, inner = list(x.value or ()), x.shape[k], prod(x.shape[k + 1 :])
        step, first = (-inner, n - 1) if self.reverse else (inner, 0)
        for i in range(len(sums))[:: -1 if self.reverse else 1]:
            if i // inner % n != first:
                sums[i] += sums[i - step]
        return tuple(s - v for s, v in zip(sums, x.value or (), strict=True)) if self.exclusive else tuple(sums)

    def lower(self, b: Builder, outs: list[Buf], x: Buf, axis: Buf) -> None:
        assert axis.value is not None  # a static input
        k = axis.value[0] % len(x.shape)
        if x.dtype != "float32":
            self._double(b, outs[0], x, k)
            return
        call = calls.Cumsum(
            x=x,
            y=outs[0],
            outer=prod(x.shape[:k]),
            n=x.shape[k],
            inner=prod(x.shape[k + 1 :]),
            exclusive=int(bool(self.exclusive)),
            reverse=int(bool(self.reverse)),
        )
        b.emit(call)

    def _double(self, b: Builder, out: Buf, x: Buf, axis: int) -> None:
        """Sums of 1, 2, 4, ... elements: in integers the order does not matter, and float64 is not for training."""
        dims = (prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))
        steps, n = contiguous_strides(dims), dims[1]

        def moved(source: Buf, by: int) -> Buf:
            target = b.temp(x.dtype, dims)
            b.fill(target, 0)
            sizes, start = (dims[0], n - by, dims[2]), by * steps[1]
            places = {"source_start": start} if self.reverse else {"out_start": start}
            strided_copy(b, target, source, sizes, steps, steps, **places)
            return target

        if not x.size:
            return
        total, by = x.view(dims), 1
        if self.exclusive:
            total = moved(total, 1)
        while by < n:
            longer = b.temp(x.dtype, dims)
            b.elementwise([longer], [total, moved(total, by)], lambda e, u, v: e.add(u, v))
            total, by = longer, 2 * by
        b.elementwise([out.view(dims)], [total], lambda e, v: v)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [g.op("CumSum", [douts[0], ins[1]], exclusive=self.exclusive, reverse=1 - self.reverse), None]


# ---- broadcasting


class BroadcastGradientArgs(Op):
    """Axes, from last to first, along which each of two shapes was broadcast."""

    domain = MS
    n_outputs = 2
    static_inputs = (0, 1)

    def _axes(self, a: Sequence[int], b: Sequence[int]) -> list[list[int]]:
        try:
            rank = len(broadcast_shapes(tuple(a), tuple(b)))
        except ValueError:
            raise self.error(f"shapes {list(a)} and {list(b)} do not broadcast.") from None
        full = [[1] * (rank - len(s)) + list(s) for s in (a, b)]
        # A dim that was not there at all is always summed over, a dim of 1 where the other is larger.
        return [
            [k for k in reversed(range(rank)) if mine[k] == 1 and other[k] != 1] for mine, other in (full, full[::-1])
        ]

    def infer(self, a: TensorType, b: TensorType) -> Any:
        if not static(*(a.value or ()), *(b.value or ())):
            # Which axes these are depends on the symbols, and so does their number.
            table = table_of((*(a.value or ()), *(b.value or ())))
            assert table is not None
            names = [f"number of axes {name!r}" for name in self.node.outputs]
            return tuple(TensorType("int64", (table.symbol(n, n, low=0, named=False),)) for n in names)
        both = self._axes(integers(self, a, "a_shape"), integers(self, b, "b_shape"))
        return tuple(TensorType("int64", (len(axes),), tuple(axes)) for axes in both)

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf | None) -> None:
        a, c = (x.value for x in ins if x is not None)
        assert a is not None
        assert c is not None
        for out, axes in zip(outs, self._axes(a, c), strict=True):
            if out is not None:
                b.copy(out, b.constant("int64", (len(axes),), axes))
