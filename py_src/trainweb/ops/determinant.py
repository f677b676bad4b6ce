"""Determinants."""

from __future__ import annotations

from collections.abc import Sequence

from trainweb.ir.dims import UndecidedError, equal
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.symbolic import Var, integers

MAX_SIZE = 32
"""Most rows: each row and column takes some twenty nodes."""


class Det(Composite):
    """Determinants of square matrices. https://onnx.ai/onnx/operators/onnx__Det.html

    Elimination with complete pivoting: where a pivot is zero, all remaining elements are. So the gradient, the matrix
    of cofactors, is right for matrices without an inverse, too.
    """

    versions = (11, 22)
    differentiable = (0,)

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        if x.rank < 2 or not equal(x.shape[-1], x.shape[-2]):
            raise self.error(f"X of shape {list(x.shape)} has no square matrices.")
        n = x.shape[-1]
        if isinstance(n, int) and not 1 <= n <= MAX_SIZE:
            raise self.unsupported(f"a matrix of {n} rows (1 to {MAX_SIZE})")
        return TensorType("float32", x.shape[:-2])

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        shape = x.shape
        n = shape[-1]
        if not isinstance(n, int):
            raise UndecidedError("the size of the matrices")
        left, product = x.reshape(-1, n, n), None
        for size in range(n, 1, -1):
            factor, left = self._eliminated(left, size)
            product = factor if product is None else product * factor
        last = left.reshape(-1, 1)
        product = last if product is None else product * last
        batch = x.sizes().part(0, 0, len(shape) - 2)
        return [product.op("Reshape", batch)]

    def _eliminated(self, m: Var, n: int) -> tuple[Var, Var]:
        """Return each matrix's largest element with the sign of its cofactor, (batch, 1), and the matrix without it."""
        g = m.g
        flat = m.reshape(-1, n * n)
        at = Var(g, g.op("ArgMax", [flat.op("Abs").name], axis=1, keepdims=1), "int64")
        row = at / n
        column = at - row * n
        pivot = flat.op("GatherElements", at, axis=1)
        odd = row + column
        sign = 1.0 - ((odd - odd / 2 * 2) * 2).cast("float32")
        rows, columns = (self._others(at, n) for at in (row, column))
        wide = integers(g, [0] * n)
        below = m.op("GatherElements", rows.unsqueeze(2) + wide, axis=1)
        beside = m.op("GatherElements", row.unsqueeze(2) + wide, axis=1)
        narrow = integers(g, [0] * (n - 1))
        tall = narrow.reshape(1, -1, 1)
        rest = below.op("GatherElements", columns.unsqueeze(1) + tall, axis=2)
        down = below.op("GatherElements", column.unsqueeze(2) + tall, axis=2)
        right = beside.op("GatherElements", columns.unsqueeze(1), axis=2)
        divisor = pivot.equal(0.0).where(pivot.lift(1.0), pivot)
        return sign * pivot, rest - down * right / divisor.unsqueeze(2)

    @staticmethod
    def _others(index: Var, n: int) -> Var:
        """All indices below n but one: (batch, n - 1)."""
        each = integers(index.g, range(n - 1)).reshape(1, -1)
        return each + (each < index).not_().cast("int64")
