"""Operators that pick or put elements by index."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from trainweb.ir import calls, layout
from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, equal_shapes, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType, contiguous_strides
from trainweb.model.calls import is_scaled_by_frequency, padding_word
from trainweb.model.graph import ITEM_SIZE, MS
from trainweb.ops.copies import gather_axis, padded
from trainweb.ops.extrema import as_int64, from_int64
from trainweb.ops.frame.arguments import checked, integers, is_known_later, scalar, unknown
from trainweb.ops.frame.evaluate import INT_BITS
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Int, Names, Op, Str
from trainweb.ops.frame.symbolic import Var, names

REDUCTIONS = {
    "none": layout.SCATTER_SET,
    "add": layout.SCATTER_ADD,
    "mul": layout.SCATTER_MUL,
    "max": layout.SCATTER_MAX,
    "min": layout.SCATTER_MIN,
}
"""Reductions by name, in the order of the kernels' numbers."""

SCATTER_TYPES = {"float32": layout.SCATTER_F32, "int32": layout.SCATTER_I32, "int64": layout.SCATTER_I64}
"""Dtypes that kernels reduce."""


def check_types(op: Op, indices: TensorType) -> None:
    """Indices are int32 or int64."""
    if indices.dtype not in ("int64", "int32"):
        raise op.error(f"indices are {indices.dtype}; they must be int64 or int32.")


def check_range(op: Op, indices: TensorType, dim: int) -> None:
    """Refuse constant indices outside [-dim, dim); the kernels check the others."""
    check_types(op, indices)
    _check_indices(op, indices, dim, 0, 1)
    if dim == 0 and indices.size != 0:
        raise op.error("a dimension of 0 has no elements to pick.")


def _check_indices(op: Op, indices: TensorType, dim: int, first: int, step: int) -> None:
    """Refuse every `step`-th index that is known and outside [-dim, dim)."""
    values = (indices.value or ())[first::step]
    if not values or (static(dim, *values) and -dim <= min(values) and max(values) < dim):
        return
    for k, index in enumerate(values):
        if not at_most(-dim, index) or not at_most(index + 1, dim):
            raise op.error(f"index {index} at position {first + k * step} is outside [{-dim}, {dim - 1}].")


def zeros_like(g: GradientBuilder, name: str) -> str:
    """Zeros of the shape of a tensor."""
    return g.op("ConstantOfShape", [g.op("Shape", [name])])


class Gather(Op):
    """Slices of data along an axis, picked by indices. https://onnx.ai/onnx/operators/onnx__Gather.html"""

    versions = (1, 11, 13)
    attrs = {"axis": Int(0)}
    differentiable = (0,)

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        axis = self.axis_of(self.axis, data.rank)
        check_range(self, indices, data.shape[axis])
        return checked(self, data.dtype, data.shape[:axis] + indices.shape + data.shape[axis + 1 :])

    def evaluate(self, data: TensorType, indices: TensorType) -> tuple[Any, ...] | None:
        axis = self.axis_of(self.axis, data.rank)
        dim, inner = data.shape[axis], prod(data.shape[axis + 1 :])
        value = data.value or ()
        return tuple(
            value[(o * dim + index % dim) * inner + i]
            for o in range(prod(data.shape[:axis]))
            for index in indices.value or ()
            for i in range(inner)
        )

    def lower(self, b: Builder, outs: list[Buf], data: Buf, indices: Buf) -> None:
        axis = self.axis % len(data.shape)
        b.check_index(indices, data.shape[axis])
        gather_axis(b, outs[0], data, indices, axis)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        if is_scaled_by_frequency(self.node):
            raise self.unsupported("scale_grad_by_freq=True of an embedding (export it without)")
        shape, dy, word = g.op("Shape", [ins[0]]), douts[0], padding_word(self.node)
        if word is not None and self.axis == 0:
            is_padding = g.op("Equal", [ins[1], g.constant(g.dtype(ins[1]), (), [word])])
            rank = g.rank(ins[1])
            rows = g.unsqueeze(is_padding, range(rank, rank + g.rank(ins[0]) - 1))
            dy = g.op("Where", [rows, g.constant(g.dtype(dy), (), [0.0]), dy])
        return [g.op("GatherGrad", [shape, ins[1], dy], domain=MS, axis=self.axis), None]


class GatherGrad(Op):
    """Zeros of a given shape with rows of dY added where Gather took them: inputs shape, indices, dY."""

    domain = MS
    attrs = {"axis": Int(0)}
    static_inputs = (0,)

    def infer(self, shape: TensorType, indices: TensorType, dy: TensorType) -> TensorType:
        self.need_float32(dy)
        result = checked(self, dy.dtype, integers(self, shape, "shape"))
        axis = self.axis_of(self.axis, result.rank)
        check_range(self, indices, result.shape[axis])
        self.need_shape("dY", dy, result.shape[:axis] + indices.shape + result.shape[axis + 1 :])
        return result

    def lower(self, b: Builder, outs: list[Buf], _: Buf, indices: Buf, dy: Buf) -> None:
        shape = outs[0].shape
        axis = self.axis % len(shape)
        b.check_index(indices, shape[axis])
        call = calls.GatherGrad(
            dy=dy,
            indices=indices,
            dx=outs[0],
            outer=prod(shape[:axis]),
            dim=shape[axis],
            n=indices.size,
            inner=prod(shape[axis + 1 :]),
            index_size=ITEM_SIZE[indices.dtype],
        )
        b.emit(call)


# ---- one index per element


class IndexedOp(Op, abstract=True):
    """Shared by the operators that take elements or slices by index, or put them."""

    call: ClassVar[type[calls.ScatterElements | calls.ScatterNd]]
    """The call that puts them."""

    def arguments(self, b: Builder, data: Buf, indices: Buf) -> dict[str, Any]:
        """Return the common arguments of the calls that take and that put."""
        raise NotImplementedError

    def scatter(self, b: Builder, out: Buf, indices: Buf, updates: Buf, reduction: str) -> None:
        """Put `updates` into `out`."""
        if updates.size:
            b.emit(
                self.call(
                    updates=updates,
                    y=out,
                    reduction=REDUCTIONS[reduction],
                    type=SCATTER_TYPES.get(out.dtype, layout.SCATTER_F32),
                    **self.arguments(b, out, indices),
                )
            )


class ScatterOp(IndexedOp, abstract=True):
    """data with updates put in: shared by ScatterElements and ScatterND."""

    differentiable: ClassVar[Sequence[int]] = (0, 2)
    picks: ClassVar[str]
    """The operator that takes what this one puts."""

    def updates_shape(self, data: TensorType, indices: TensorType) -> tuple[int, ...]:
        """Return the shape of the updates, after a check of the indices' shape."""
        raise NotImplementedError

    def where(self) -> dict[str, Any]:
        """The attributes that say where."""
        return {}

    def infer(self, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        expected = self.updates_shape(data, indices)
        if updates.dtype != data.dtype or not equal_shapes(updates.shape, expected):
            raise self.error(
                f"updates are {updates.dtype}{list(updates.shape)}; {data.dtype}{list(expected)} is needed."
            )
        check_reduction(self, self.reduction, data.dtype)
        return TensorType(data.dtype, data.shape)

    def lower(self, b: Builder, outs: list[Buf], data: Buf, indices: Buf, updates: Buf) -> None:
        if self.reduction == "none" or data.dtype in SCATTER_TYPES:
            b.copy(outs[0], data)
            self.scatter(b, outs[0], indices, updates, self.reduction)
            return
        # Other integers: as int64, in their order, or where sums and products wrap to the same bits.
        ordered = self.reduction in ("max", "min")
        wide, more = (as_int64(b, x, ordered=ordered) for x in (data, updates))
        self.scatter(b, wide, indices, more, self.reduction)
        from_int64(b, outs[0], wide, ordered=ordered)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        _, indices, updates = ins
        dy = douts[0]
        data_grad: str | None = dy
        if self.reduction == "mul":
            return self._product_gradients(g, ins, dy)
        if self.reduction in ("max", "min"):
            return self._extremum_gradients(g, ins, outs[0], dy)
        if self.reduction == "none" and g.wants(ins[0]):
            data_grad = g.op(self.op_type(), [dy, indices, zeros_like(g, updates)], **self.where())
        update_grad = g.op(self.picks, [dy, indices], **self.where()) if g.wants(updates) else None
        return [data_grad, None, update_grad]

    def _put(self, x: Var, indices: str, updates: Var, reduction: str) -> Var:
        inputs = [x.name, indices, updates.name]
        return Var(x.g, x.g.op(self.op_type(), inputs, reduction=reduction, **self.where()), x.dtype)

    def _pick(self, x: Var, indices: str) -> Var:
        return Var(x.g, x.g.op(self.picks, [x.name, indices], **self.where()), x.dtype)

    def _extremum_gradients(self, g: GradientBuilder, ins: list[str], out: str, dy: str) -> Names:
        """Elements that equal the result share its gradient, as for ReduceMax."""
        data, updates, y, gradient = Var.of(g, ins[0], ins[2], out, dy)
        is_data = data.equal(y).cast(data.dtype)
        taken = updates.equal(self._pick(y, ins[1])).cast(data.dtype)
        share = gradient / self._put(is_data, ins[1], taken, "add")
        update_grad = taken * self._pick(share, ins[1]) if g.wants(ins[2]) else None
        return [*names(is_data * share), None, *names(update_grad)]

    def _product_gradients(self, g: GradientBuilder, ins: list[str], dy: str) -> Names:
        """Return the gradients of products: dy times the other factors, without a division by zero factors."""
        data, updates, gradient = Var.of(g, ins[0], ins[2], dy)
        zeros = Var(g, zeros_like(g, ins[0]), data.dtype)
        data_grad = gradient * self._put(zeros + 1.0, ins[1], updates, "mul") if g.wants(ins[0]) else None
        if not g.wants(ins[2]):
            return [*names(data_grad), None, None]
        is_zero = updates.equal(0.0)
        factor = is_zero.where(updates.lift(1.0), updates)
        others = self._pick(gradient * self._put(data, ins[1], factor, "mul"), ins[1]) / factor
        zero = is_zero.cast(data.dtype)
        left = self._pick(self._put(zeros, ins[1], zero, "add"), ins[1]) - zero
        return [*names(data_grad), None, *names(left.equal(0.0).where(others, 0.0))]


class ElementsOp(IndexedOp, abstract=True):
    """Shared by the operators whose indices have one entry per element taken or put."""

    call = calls.ScatterElements

    def check_elements(self, data: TensorType, indices: TensorType) -> int:
        """The axis, after the shapes have been checked."""
        axis = self.axis_of(self.axis, data.rank)
        fits = indices.rank == data.rank and all(
            k == axis or at_most(i, d) for k, (i, d) in enumerate(zip(indices.shape, data.shape, strict=True))
        )
        if not fits:
            raise self.error(f"indices of shape {list(indices.shape)} do not fit data of shape {list(data.shape)}.")
        check_range(self, indices, data.shape[axis])
        return axis

    def arguments(self, b: Builder, data: Buf, indices: Buf) -> dict[str, Any]:
        axis = self.axis % len(data.shape)
        strides = list(contiguous_strides(data.shape))
        axis_stride, strides[axis] = strides[axis], 0
        b.check_index(indices, data.shape[axis])
        return {
            "indices": indices,
            "dims": padded(indices.shape, 1, b),
            "strides": padded(strides, 0, b),
            "axis_dim": data.shape[axis],
            "axis_stride": axis_stride,
            "size": ITEM_SIZE[data.dtype],
            "index_size": ITEM_SIZE[indices.dtype],
        }


class GatherElements(ElementsOp):
    """Elements of data, picked by an index along one axis. https://onnx.ai/onnx/operators/onnx__GatherElements.html"""

    versions: ClassVar[tuple[int, ...]] = (11, 13)
    attrs = {"axis": Int(0)}
    differentiable: ClassVar[Sequence[int]] = (0,)

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        self.check_elements(data, indices)
        return TensorType(data.dtype, indices.shape)

    def lower(self, b: Builder, outs: list[Buf], data: Buf, indices: Buf) -> None:
        if indices.size:
            b.emit(calls.GatherElements(data=data, y=outs[0], **self.arguments(b, data, indices)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        shape = g.op("Shape", [ins[0]])
        return [g.op("GatherElementsGrad", [douts[0], shape, ins[1]], domain=MS, axis=self.axis), None]


class GatherElementsGrad(ElementsOp):
    """Zeros with dY added where GatherElements took: inputs dY, shape, indices."""

    domain = MS
    attrs = {"axis": Int(0)}
    static_inputs = (1,)

    def infer(self, dy: TensorType, shape: TensorType, indices: TensorType) -> TensorType:
        self.need_float32(dy)
        result = checked(self, dy.dtype, integers(self, shape, "shape"))
        self.check_elements(result, indices)
        self.need_shape("dY", dy, indices.shape)
        return result

    def lower(self, b: Builder, outs: list[Buf], dy: Buf, _: Buf, indices: Buf) -> None:
        b.fill(outs[0], 0)
        self.scatter(b, outs[0], indices, dy, "add")


class ScatterElements(ElementsOp, ScatterOp):
    """data with updates put in. https://onnx.ai/onnx/operators/onnx__ScatterElements.html"""

    versions: ClassVar[tuple[int, ...]] = (11, 13, 16, 18)
    attrs = {"axis": Int(0), "reduction": Str("none", among=REDUCTIONS)}
    picks = "GatherElements"

    def updates_shape(self, data: TensorType, indices: TensorType) -> tuple[int, ...]:
        self.check_elements(data, indices)
        return indices.shape

    def where(self) -> dict[str, Any]:
        return {"axis": self.axis}


class Scatter(ScatterElements):
    """The older name of ScatterElements. https://onnx.ai/onnx/operators/onnx__Scatter.html"""

    versions = (9, 11)
    attrs = {"axis": Int(0)}
    reduction = "none"


def check_reduction(op: Op, reduction: str, dtype: str) -> None:
    """Reductions other than none are of numbers."""
    if reduction != "none" and dtype != "float32" and dtype not in INT_BITS:
        raise op.unsupported(f"reduction {reduction!r} of {dtype}")


# ---- index tuples


class TuplesOp(IndexedOp, abstract=True):
    """Shared by the operators whose last dimension of indices is a tuple that picks a slice of data."""

    call = calls.ScatterNd
    batch_dims: int = 0

    def check_tuples(self, data: TensorType, indices: TensorType) -> tuple[int, ...]:
        """Shape of all picked slices."""
        batch = self.batch_dims
        if indices.rank < 1 or data.rank < 1 or not 0 <= batch < min(indices.rank, data.rank):
            raise self.error(f"batch_dims {batch} for data of rank {data.rank} and indices of rank {indices.rank}.")
        k = indices.shape[-1]
        if k > data.rank - batch or not equal_shapes(data.shape[:batch], indices.shape[:batch]):
            raise self.error(f"indices of shape {list(indices.shape)} do not fit data of shape {list(data.shape)}.")
        check_types(self, indices)
        for first, dim in enumerate(data.shape[batch : batch + k]):
            _check_indices(self, indices, dim, first, k)
        return indices.shape[:-1] + data.shape[batch + k :]

    def arguments(self, b: Builder, data: Buf, indices: Buf) -> dict[str, Any]:
        batch, k = self.batch_dims, indices.shape[-1]
        if k > 8:
            raise self.unsupported("an index tuple of more than 8 numbers")
        dims = set(data.shape[batch : batch + k])
        if len(dims) == 1:
            b.check_index(indices, dims.pop())
        return {
            "indices": indices,
            "batch": prod(data.shape[:batch]),
            "n": prod(indices.shape[batch:-1]),
            "k": k,
            "dims": data.shape[batch : batch + k] + (1,) * (8 - k),
            "slice": prod(data.shape[batch + k :]) * ITEM_SIZE[data.dtype],
            "index_size": ITEM_SIZE[indices.dtype],
        }


class GatherND(TuplesOp):
    """Slices of data at index tuples. https://onnx.ai/onnx/operators/onnx__GatherND.html"""

    versions = (11, 12, 13)
    attrs = {"batch_dims": Int(0)}
    differentiable = (0,)

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        return checked(self, data.dtype, self.check_tuples(data, indices))

    def lower(self, b: Builder, outs: list[Buf], data: Buf, indices: Buf) -> None:
        b.emit(calls.GatherNd(data=data, y=outs[0], **self.arguments(b, data, indices)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        shape = g.op("Shape", [ins[0]])
        inputs = [shape, ins[1], douts[0]]
        return [g.op("GatherNDGrad", inputs, domain=MS, batch_dims=self.batch_dims), None]


class GatherNDGrad(TuplesOp):
    """Zeros with slices of dY added where GatherND took them: inputs shape, indices, dY."""

    domain = MS
    attrs = {"batch_dims": Int(0)}
    static_inputs = (0,)

    def infer(self, shape: TensorType, indices: TensorType, dy: TensorType) -> TensorType:
        self.need_float32(dy)
        result = checked(self, dy.dtype, integers(self, shape, "shape"))
        self.need_shape("dY", dy, self.check_tuples(result, indices))
        return result

    def lower(self, b: Builder, outs: list[Buf], _: Buf, indices: Buf, dy: Buf) -> None:
        b.fill(outs[0], 0)
        self.scatter(b, outs[0], indices, dy, "add")


class ScatterND(TuplesOp, ScatterOp):
    """data with slices put at index tuples. https://onnx.ai/onnx/operators/onnx__ScatterND.html"""

    versions = (11, 13, 16, 18)
    attrs = {"reduction": Str("none", among=REDUCTIONS)}
    picks = "GatherND"

    def updates_shape(self, data: TensorType, indices: TensorType) -> tuple[int, ...]:
        return self.check_tuples(data, indices)


class OneHot(Op):
    """values[1] at each index along a new axis, values[0] elsewhere. https://onnx.ai/onnx/operators/onnx__OneHot.html"""

    versions = (9, 11, 28)
    attrs = {"axis": Int(-1)}
    static_inputs = (1,)
    differentiable = (2,)

    def infer(self, indices: TensorType, depth: TensorType, values: TensorType) -> TensorType:
        self.need_shape("values", values, (2,))
        if indices.dtype != "float32" and indices.dtype not in INT_BITS:
            raise self.unsupported(f"indices of dtype {indices.dtype}")
        axis = self.axis_of(self.axis, indices.rank + 1)
        size = unknown(self, axis) if is_known_later(self, depth) else scalar(self, depth, "depth")
        size = int(size) if static(size) else size
        return checked(self, values.dtype, (*indices.shape[:axis], size, *indices.shape[axis:]))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        if g.dtype(ins[2]) != "float32":
            return [None] * 3
        ends = g.constant("float32", (2,), [0.0, 1.0])
        (dy,) = Var.of(g, douts[0])
        hot = dy * Var(g, g.op("OneHot", [ins[0], ins[1], ends], axis=self.axis), dy.dtype)
        on, all_ = (g.unsqueeze(g.reduce_sum(v.name, None, keepdims=False), [0]) for v in (hot, dy))
        return [None, None, g.op("Concat", [g.op("Sub", [all_, on]), on], axis=0)]

    def lower(self, b: Builder, outs: list[Buf], indices: Buf, _: Buf, values: Buf) -> None:
        if indices.dtype not in ("int64", "int32"):
            numbers, indices = indices, b.temp("int64", indices.shape)
            b.elementwise([indices], [numbers], lambda e, x: e.cast(x, "int64"))
        shape = outs[0].shape
        axis = self.axis % len(shape)
        call = calls.OneHot(
            indices=indices,
            values=values,
            y=outs[0],
            outer=prod(shape[:axis]),
            depth=shape[axis],
            inner=prod(shape[axis + 1 :]),
            size=ITEM_SIZE[values.dtype],
            index_size=ITEM_SIZE[indices.dtype],
        )
        b.emit(call)
