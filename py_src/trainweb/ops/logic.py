"""Comparison, logic, selection and the bits of integers, element by element with NumPy broadcasting."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from trainweb.ir.builder import Builder
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import ONNX_DTYPES
from trainweb.model.graph import ITEM_SIZE
from trainweb.ops.elementwise import NUMBERS, Binary
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import FLOATS, INTS, Int, Names, Op, Str
from trainweb.ops.frame.pointwise import Pointwise, declare, reduced
from trainweb.ops.frame.symbolic import Var


class Comparison(Binary, abstract=True):
    """A bool from two tensors."""

    def result(self, *dtypes: str) -> str:
        return "bool"


def comparison(
    name: str, versions: tuple[int, ...], meaning: str, how: str, dtypes: tuple[str, ...] = NUMBERS
) -> type[Comparison]:
    """Declare one of ir.expr.COMPARISONS."""
    return declare(Comparison, name, versions, meaning, lambda e, a, b: e.compare(how, a, b), dtypes=dtypes)


Equal = comparison("Equal", (7, 11, 13, 19), "a == b", "eq", (*NUMBERS, "bool"))
Less = comparison("Less", (7, 9, 13), "a < b", "lt")
LessOrEqual = comparison("LessOrEqual", (12, 16), "a <= b", "le")
Greater = comparison("Greater", (7, 9, 13), "a > b", "gt")
GreaterOrEqual = comparison("GreaterOrEqual", (12, 16), "a >= b", "ge")


And = declare(Binary, "And", (7,), "a and b", lambda e, a, b: e.and_(a, b), dtypes=("bool",))
Or = declare(Binary, "Or", (7,), "a or b", lambda e, a, b: e.or_(a, b), dtypes=("bool",))
Xor = declare(Binary, "Xor", (7,), "Either a or b", lambda e, a, b: e.xor(a, b), dtypes=("bool",))
Not = declare(Pointwise, "Not", (1,), "not a", lambda e, a: e.not_(a), dtypes=("bool",))


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
    differentiable = (1, 2)
    instruction = "select"

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
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


def inverted(e: Emitter, a: Expr) -> Expr:
    """Every bit of an integer inverted."""
    ones = 2 ** (8 * ITEM_SIZE[a.dtype]) - 1 if a.dtype.startswith("u") else -1
    return e.xor(a, e.like(a, ones))


BitwiseAnd = declare(Binary, "BitwiseAnd", (18,), "Bits that both have", lambda e, a, b: e.and_(a, b), dtypes=INTS)
BitwiseOr = declare(Binary, "BitwiseOr", (18,), "Bits that one of them has", lambda e, a, b: e.or_(a, b), dtypes=INTS)
BitwiseXor = declare(
    Binary, "BitwiseXor", (18,), "Bits that exactly one of them has", lambda e, a, b: e.xor(a, b), dtypes=INTS
)
BitwiseNot = declare(Pointwise, "BitwiseNot", (18,), "Every bit inverted", inverted, dtypes=INTS)


class BitShift(Binary):
    """Bits of an unsigned integer moved; those beyond its end are lost. https://onnx.ai/onnx/operators/onnx__BitShift.html"""

    versions = (11, 28)
    dtypes = INTS
    attrs = {"direction": Str(required=True, among=("LEFT", "RIGHT"))}

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        result = super().infer(a, b)
        if self.opset < 28 and not result.dtype.startswith("u"):
            raise self.unsupported(f"dtype {result.dtype}")
        return result

    def compute(self, e: Emitter, a: Expr, b: Expr) -> Expr:
        bits = 8 * ITEM_SIZE[a.dtype]
        # Instructions take the distance modulo the size of a word; one outside it leaves nothing but the sign.
        last, left, is_signed = e.like(b, bits - 1), self.direction == "LEFT", not a.dtype.startswith("u")
        outside = e.compare("gt", b, last)
        if is_signed:
            outside = e.or_(outside, e.compare("lt", b, e.like(b, 0)))
        moved = e.shift(a, e.select(outside, last, b), left=left)
        return moved if is_signed and not left else e.select(outside, e.like(a, 0), moved)


class BitCast(Op):
    """The same bytes as another dtype of that size. https://onnx.ai/onnx/operators/onnx__BitCast.html"""

    versions = (26,)
    attrs = {"to": Int(required=True)}

    def infer(self, x: TensorType) -> TensorType:
        target = ONNX_DTYPES.get(self.to)
        if target is None:
            raise self.error(f"there is no data type {self.to}.")
        self.need_dtype((*FLOATS, *INTS, "bool"), x.dtype, target)
        if ITEM_SIZE[target] != ITEM_SIZE[x.dtype]:
            raise self.error(f"elements of {x.dtype} and {target} are not of one size.")
        return TensorType(target, x.shape)

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf) -> None:
        if ins[0].size:
            b.copy(outs[0], ins[0])
