"""Operators on the bits of integers."""

from __future__ import annotations

from trainweb.ir.builder import Builder
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import ONNX_DTYPES
from trainweb.model.graph import ITEM_SIZE
from trainweb.ops.elementwise import Binary
from trainweb.ops.frame.op import FLOATS, INTS, Int, Op, Str
from trainweb.ops.frame.pointwise import Pointwise, declare


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
