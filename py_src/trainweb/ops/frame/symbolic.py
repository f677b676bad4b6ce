"""Gradient formulas in Python's own notation: `dy * (y + alpha)` emits an Add and a Mul."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainweb.model.checks import DTYPE_CODES
from trainweb.ops.frame.emission import Emission

if TYPE_CHECKING:
    from trainweb.ops.frame.gradients import GradientBuilder

WHERE_SINCE = 9
"""The opset that brought Where; older ones blend with a cast mask."""


@dataclass(frozen=True, slots=True)
class Var:
    """A tensor of the gradient graph; arithmetic on it emits ai.onnx nodes. Numbers become constants."""

    g: Emission
    name: str
    dtype: str

    @staticmethod
    def of(g: Emission, *names: str | None) -> list[Var]:
        """Return variables of one dtype, the dtype of the first."""
        dtype = g.dtype(names[0] or "")
        return [Var(g, name or "", dtype) for name in names]

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


def names(*variables: Var | None) -> list[str | None]:
    """Gradient names as `Op.gradient` returns them."""
    return [v.name if v is not None else None for v in variables]


def when(g: GradientBuilder, ins: Sequence[str], index: int) -> bool:
    """Return whether input `index` is present and its gradient wanted."""
    return index < len(ins) and bool(ins[index]) and g.wants(ins[index])
