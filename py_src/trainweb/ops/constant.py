"""Tensors out of attributes and shapes."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from trainweb.errors import LimitError
from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, maximum, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import ONNX_DTYPES
from trainweb.model.graph import STRUCT_FORMAT, Tensor
from trainweb.ops.frame.arguments import checked, integers, is_known_later, scalar, unknown
from trainweb.ops.frame.evaluate import INT_BITS
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Float, Floats, Int, Ints, Names, Op, Str, Strs, TensorAttr
from trainweb.ops.frame.pointwise import MAX_EVALUATED


class Constant(Op):
    """A tensor from an attribute. https://onnx.ai/onnx/operators/onnx__Constant.html"""

    versions = (1, 9, 11, 12, 13, 19, 21, 23, 24, 25)
    attrs = {
        "value": TensorAttr(),
        "value_float": Float(),
        "value_floats": Floats(),
        "value_int": Int(),
        "value_ints": Ints(),
        "value_string": Str(),
        "value_strings": Strs(),
        "sparse_value": TensorAttr(),
    }

    def tensor(self) -> Tensor:
        """The constant."""
        names = [name for name in self.attrs if getattr(self, name) is not None]
        if len(names) != 1:
            raise self.error(f"exactly one of its attributes must be given, not {names}.")
        if names[0] in ("value_string", "value_strings", "sparse_value"):
            raise self.unsupported(names[0])
        value: Any = getattr(self, names[0])
        if isinstance(value, Tensor):
            return value
        dtype = "float32" if "float" in names[0] else "int64"
        if names[0].endswith("s"):
            return Tensor.of("", dtype, (len(value),), value)
        return Tensor.of("", dtype, (), [value])

    def infer(self) -> TensorType:
        tensor = self.tensor()
        return TensorType(tensor.dtype, tensor.shape)

    def evaluate(self) -> tuple[Any, ...] | None:
        tensor = self.tensor()
        return tensor.values() if tensor.dtype in STRUCT_FORMAT else None

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return []

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf | None) -> None:
        b.copy(outs[0], b.constant_tensor(self.tensor()))


class ConstantOfShape(Op):
    """One value in a given shape. https://onnx.ai/onnx/operators/onnx__ConstantOfShape.html"""

    versions = (9, 20, 21, 23, 24, 25)
    attrs = {"value": TensorAttr()}
    static_inputs = (0,)

    def _fill(self) -> tuple[str, Any]:
        if self.value is None:
            return "float32", 0.0
        if self.value.size != 1:
            raise self.error(f"value has {self.value.size} elements, not 1.")
        self.need_dtype(STRUCT_FORMAT, self.value.dtype)
        return self.value.dtype, self.value.values()[0]

    def infer(self, shape: TensorType) -> TensorType:
        return checked(self, self._fill()[0], integers(self, shape, "shape"))

    def evaluate(self, shape: TensorType) -> tuple[Any, ...] | None:
        size = prod(shape.value or ())
        return (self._fill()[1],) * size if size <= MAX_EVALUATED else None

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [None]

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf | None) -> None:
        b.fill(outs[0], self._fill()[1])


class Range(Op):
    """start, start + delta, ... before limit. https://onnx.ai/onnx/operators/onnx__Range.html"""

    versions = (11, 27)
    attrs = {"stash_type": Int(1)}
    static_inputs = (0, 1, 2)

    max_elements = 1 << 24
    """Ranges are computed in Python: as many as float32 counts exactly."""

    def _count(self, start: Any, limit: Any, delta: Any) -> int:
        if delta == 0:
            raise self.error("delta is 0.")
        if not static(start, limit, delta):
            return maximum(0, -((start - limit) // delta))
        if isinstance(delta, int):
            return max(0, -int((start - limit) // delta))
        if not abs(float(limit - start)) < float("inf"):
            raise self.error("a bound is not finite.")
        return max(0, ceil(float(limit - start) / float(delta)))

    def infer(self, start: TensorType, limit: TensorType, delta: TensorType) -> TensorType:
        if not start.dtype == limit.dtype == delta.dtype:
            raise self.error("start, limit and delta are not of one dtype.")
        if any(is_known_later(self, t) for t in (start, limit, delta)):
            return TensorType(start.dtype, (unknown(self, 0),))
        bounds = [scalar(self, t, what) for t, what in ((start, "start"), (limit, "limit"), (delta, "delta"))]
        count = self._count(*bounds)
        if not at_most(count, self.max_elements):
            raise LimitError(f"{self.node}: a range of {count} elements; at most {self.max_elements} are made.")
        return TensorType(start.dtype, (count,))

    def evaluate(self, start: Any, limit: Any, delta: Any) -> tuple[Any, ...]:
        first, last, step = start.value[0], limit.value[0], delta.value[0]
        return tuple(first + k * step for k in range(self._count(first, last, step)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [None] * 3

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf | None) -> None:
        b.copy(outs[0], b.constant(outs[0].dtype, outs[0].shape, self.evaluate(*ins)))


class EyeLike(Op):
    """Ones on diagonal k of a matrix of the shape of x. https://onnx.ai/onnx/operators/onnx__EyeLike.html"""

    versions = (9, 22)
    attrs = {"dtype": Int(), "k": Int(0)}

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 2:
            raise self.error(f"x of shape {list(x.shape)} is not a matrix.")
        dtype = x.dtype if self.dtype is None else ONNX_DTYPES.get(self.dtype, "")
        self.need_dtype(("float32", "float64", "bool", *INT_BITS), dtype)
        return TensorType(dtype, x.shape)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [None]

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf | None) -> None:
        out = outs[0]
        n, m = out.shape
        row = b.constant("int64", (n, 1), range(self.k, n + self.k))
        column = b.constant("int64", (m,), range(m))
        b.elementwise([out], [column, row], lambda e, c, r: e.cast(e.compare("eq", c, r), out.dtype))
