"""Comparison, logic and selection, element by element with NumPy broadcasting."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.shapes import TensorType
from trainweb.ops.elementwise import NUMBERS, Binary
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import FLOATS, Int, Names
from trainweb.ops.frame.pointwise import Pointwise, reduced
from trainweb.ops.frame.symbolic import Var


class Comparison(Binary, abstract=True):
    """A bool from two tensors."""

    relation: ClassVar[str]

    def compute(self, e: Emitter, a: Expr, b: Expr) -> Expr:
        return e.compare(self.relation, a, b)

    def result(self, *dtypes: str) -> str:
        return "bool"


class Equal(Comparison):
    """a == b. https://onnx.ai/onnx/operators/onnx__Equal.html"""

    versions = (7, 11, 13, 19)
    dtypes = (*NUMBERS, "bool")
    relation = "eq"


class Less(Comparison):
    """a < b. https://onnx.ai/onnx/operators/onnx__Less.html"""

    versions = (7, 9, 13)
    relation = "lt"


class LessOrEqual(Comparison):
    """a <= b. https://onnx.ai/onnx/operators/onnx__LessOrEqual.html"""

    versions = (12, 16)
    relation = "le"


class Greater(Comparison):
    """a > b. https://onnx.ai/onnx/operators/onnx__Greater.html"""

    versions = (7, 9, 13)
    relation = "gt"


class GreaterOrEqual(Comparison):
    """a >= b. https://onnx.ai/onnx/operators/onnx__GreaterOrEqual.html"""

    versions = (12, 16)
    relation = "ge"


class Logic(Binary, abstract=True):
    """A bool from two bools."""

    versions = (7,)
    dtypes = ("bool",)


class And(Logic):
    """a and b. https://onnx.ai/onnx/operators/onnx__And.html"""

    instruction = "and_"


class Or(Logic):
    """a or b. https://onnx.ai/onnx/operators/onnx__Or.html"""

    instruction = "or_"


class Xor(Logic):
    """Either a or b. https://onnx.ai/onnx/operators/onnx__Xor.html"""

    instruction = "xor"


class Not(Pointwise):
    """not a. https://onnx.ai/onnx/operators/onnx__Not.html"""

    versions = (1,)
    dtypes = ("bool",)
    instruction = "not_"


class IsNaN(Pointwise):
    """True where x is NaN. https://onnx.ai/onnx/operators/onnx__IsNaN.html"""

    chooses = True
    versions: ClassVar[tuple[int, ...]] = (9, 13, 20)
    dtypes = FLOATS

    def result(self, *dtypes: str) -> str:
        return "bool"

    def compute(self, e: Emitter, x: Expr) -> Expr:
        return e.compare("ne", x, x)


class IsInf(IsNaN):
    """True where x is infinite. https://onnx.ai/onnx/operators/onnx__IsInf.html"""

    versions = (10, 20)
    attrs = {"detect_negative": Int(1), "detect_positive": Int(1)}

    def compute(self, e: Emitter, x: Expr) -> Expr:
        positive = e.compare("eq", x, e.like(x, inf))
        negative = e.compare("eq", x, e.like(x, -inf))
        if self.detect_positive and self.detect_negative:
            return e.or_(positive, negative)
        return positive if self.detect_positive else negative if self.detect_negative else e.const(0, "bool")


class Where(Pointwise):
    """x where the condition holds, else y. https://onnx.ai/onnx/operators/onnx__Where.html"""

    chooses = True
    versions = (9, 16)
    min_inputs = max_inputs = 3
    differentiable = (1, 2)
    instruction = "select"

    def infer(self, *inputs: TensorType | None) -> TensorType:
        condition, x, y = (t for t in inputs if t is not None)
        if condition.dtype != "bool" or x.dtype != y.dtype:
            raise self.error(
                f"inputs are {condition.dtype}, {x.dtype}, {y.dtype}; a bool and two of one dtype are needed."
            )
        return super().infer(condition, x, y)

    def result(self, *dtypes: str) -> str:
        return dtypes[1]

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        (dy,) = Var.of(g, douts[0])
        condition, zero = Var(g, ins[0], "bool"), dy.lift(0.0)
        return reduced(g, ins, outs[0], None, lambda: condition.where(dy, zero), lambda: condition.where(zero, dy))
