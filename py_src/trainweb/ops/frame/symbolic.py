"""Formulas of tensors in Python's own notation: `dy * (y + alpha)` emits an Add and a Mul."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainweb.ir.shapes import TensorType
from trainweb.model.checks import DTYPE_CODES
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.gradients import GradientBuilder

WHERE_SINCE = 9
"""The opset that brought Where; older ones blend with a cast mask."""


@dataclass(frozen=True, slots=True)
class Var:
    """A tensor of a graph; arithmetic on it emits ai.onnx nodes. Numbers become constants."""

    g: Emission
    name: str
    dtype: str

    @staticmethod
    def of(g: Emission, *names: str | None) -> list[Var]:
        """Return variables of one dtype, the dtype of the first."""
        dtype = g.dtype(names[0] or "")
        return [Var(g, name or "", dtype) for name in names]

    @property
    def type(self) -> TensorType:
        """Dtype and shape, with the elements where they are known."""
        return self.g.type(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims; one that is not known is a `SymbolicDim`."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size

    def op(self, op_type: str, *others: Var | float, dtype: str | None = None, **attrs: Any) -> Var:
        """`op_type` applied to this variable and others."""
        names = [self.name, *(self.lift(o).name for o in others)]
        return Var(self.g, self.g.op(op_type, names, **attrs), dtype or self.dtype)

    def lift(self, other: Var | float) -> Var:
        """`other` as a variable of this one's dtype."""
        if isinstance(other, Var):
            return other
        value = float(other) if self.dtype.startswith("float") else int(other)
        return Var(self.g, self.g.constant(self.dtype, (), [value]), self.dtype)

    def __add__(self, other: Var | float) -> Var:
        return self.op("Add", other)

    def __sub__(self, other: Var | float) -> Var:
        return self.op("Sub", other)

    def __rsub__(self, other: float) -> Var:
        return self.lift(other) - self

    def __mul__(self, other: Var | float) -> Var:
        return self.op("Mul", other)

    def __truediv__(self, other: Var | float) -> Var:
        return self.op("Div", other)

    def __neg__(self) -> Var:
        return self.op("Neg")

    def __pow__(self, other: Var | float) -> Var:
        return self.op("Pow", other)

    def __gt__(self, other: Var | float) -> Var:
        return self.op("Greater", other, dtype="bool")

    def __lt__(self, other: Var | float) -> Var:
        return self.op("Less", other, dtype="bool")

    def equal(self, other: Var | float) -> Var:
        """Elementwise comparison."""
        return self.op("Equal", other, dtype="bool")

    def not_(self) -> Var:
        """Logical negation."""
        return self.op("Not")

    def and_(self, other: Var) -> Var:
        """Logical conjunction."""
        return self.op("And", other)

    def or_(self, other: Var) -> Var:
        """Logical disjunction."""
        return self.op("Or", other)

    def cast(self, dtype: str) -> Var:
        """Conversion."""
        return self if dtype == self.dtype else self.op("Cast", dtype=dtype, to=DTYPE_CODES[dtype])

    def where(self, a: Var, b: Var | float) -> Var:
        """`a` where this bool holds, else `b`."""
        if self.g.opset >= WHERE_SINCE:
            picked = self.g.op("Where", [self.name, a.name, a.lift(b).name])
            return Var(self.g, picked, a.dtype)
        mask = self.cast(a.dtype)
        return a * mask + a.lift(b) * (1 - mask)

    # Shapes.

    def reshape(self, *shape: int) -> Var:
        """The elements in another shape; 0 keeps a dim, -1 is the rest."""
        return self.op("Reshape", integers(self.g, shape))

    def reshape_like(self, other: Var) -> Var:
        """The elements in the shape of `other`."""
        return Var(self.g, self.g.reshape_like(self.name, other.name), self.dtype)

    def unsqueeze(self, *axes: int) -> Var:
        """The tensor with dims of size 1 put in."""
        return Var(self.g, self.g.unsqueeze(self.name, axes), self.dtype)

    def squeeze(self, *axes: int) -> Var:
        """The tensor without its dims of size 1 at `axes`."""
        return Var(self.g, self.g.squeeze(self.name, axes), self.dtype)

    def part(self, axis: int, start: int, end: int) -> Var:
        """Elements `start` to `end` along an axis."""
        return Var(self.g, self.g.slice(self.name, axis, start, end), self.dtype)

    def sum(self, axes: Sequence[int], *, keepdims: bool) -> Var:
        """The sum over `axes`."""
        return Var(self.g, self.g.reduce_sum(self.name, axes, keepdims), self.dtype)

    def mean(self, axes: Sequence[int], *, keepdims: bool) -> Var:
        """The mean over `axes`."""
        return Var(self.g, self.g.reduce_mean(self.name, axes, keepdims), self.dtype)

    def sizes(self) -> Var:
        """The dims as an int64 tensor."""
        return Var(self.g, self.g.shape_of(self.name), "int64")

    def extent(self, axis: int) -> Var:
        """Size of a dim as an int64 scalar."""
        size = self.shape[axis]
        if isinstance(size, int):
            return constant(self.g, "int64", (), [size])
        return self.sizes().part(0, axis, axis + 1).squeeze(0)

    def places(self, axis: int) -> Var:
        """0 to the size of a dim less 1."""
        size = self.shape[axis]
        if isinstance(size, int):
            return integers(self.g, range(size))
        n = self.extent(axis)
        return n.lift(0).op("Range", n, n.lift(1))


def constant(g: Emission, dtype: str, shape: Sequence[int], values: Iterable[Any]) -> Var:
    """A constant as a variable."""
    return Var(g, g.constant(dtype, shape, values), dtype)


def integers(g: Emission, values: Sequence[int]) -> Var:
    """A 1-D int64 constant."""
    return constant(g, "int64", (len(values),), values)


def names(*variables: Var | None) -> list[str | None]:
    """Gradient names as `Op.gradient` returns them."""
    return [v.name if v is not None else None for v in variables]


def when(g: GradientBuilder, ins: Sequence[str], index: int) -> bool:
    """Return whether input `index` is present and its gradient wanted."""
    return index < len(ins) and bool(ins[index]) and g.wants(ins[index])
