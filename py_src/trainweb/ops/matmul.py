"""Matrix products: MatMul, Gemm, FusedMatMul."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal, equal_shapes, static
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType, broadcast_shapes
from trainweb.model.graph import ITEM_SIZE, MS
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Float, Int, Names, Op

GEMM_WITHOUT_C_SINCE = 11
DTYPES = ("float32", "int32", "int64", "uint32", "uint64")
"""Types of matrices that ONNX multiplies; integers wrap."""


def check_dtypes(op: Op, *types: TensorType | None) -> None:
    """Raise unless all inputs are of one dtype of which there are products."""
    dtypes = [t.dtype for t in types if t is not None]
    op.need_dtype(DTYPES, dtypes[0])
    if len(set(dtypes)) > 1:
        raise op.error(f"the inputs are {', '.join(dtypes)}, not of one dtype.")


def matmul_shape(op: Op, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of `a @ b` by NumPy's rules."""
    if not a or not b:
        raise op.error("a scalar cannot be multiplied as a matrix.")
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    if not equal(left[-1], right[-2]):
        raise op.error(f"shapes {list(a)} and {list(b)} do not fit: {left[-1]} columns, {right[-2]} rows.")
    try:
        batch = broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise op.error(f"batch dimensions of {list(a)} and {list(b)} do not broadcast.") from None
    rows = () if len(a) == 1 else (left[-2],)
    columns = () if len(b) == 1 else (right[-1],)
    return batch + rows + columns


def multiply(
    b: Builder,
    left: Buf,
    right: Buf,
    out: Buf,
    sizes: tuple[int, int, int],
    turned: tuple[object, object] = (False, False),
    *,
    bias: Buf | None = None,
    bias_strides: tuple[int, int] = (0, 0),
    batch: tuple[int, ...] = (1, 1),
    steps: Sequence[tuple[int, ...]] = ((0, 0),) * 3,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> None:
    """out = alpha * left' right' + beta * bias, m x n over k as `sizes` say; transposed where `turned`.

    Integers have neither alpha nor bias.
    `steps` are the elements between matrices of the batch: of left, right and out.
    """
    m, n, k = sizes
    call = calls.Gemm(
        a=left,
        b=right,
        bias=bias,
        c=out,
        m=m,
        n=n,
        k=k,
        a_row=1 if turned[0] else k,
        a_col=m if turned[0] else 1,
        b_row=1 if turned[1] else n,
        b_col=k if turned[1] else 1,
        c_row=n,
        bias_row=bias_strides[0],
        bias_col=bias_strides[1],
        batch=batch,
        a_batch=steps[0],
        b_batch=steps[1],
        c_batch=steps[2],
        bias_batch=(0, 0),
        alpha=float(alpha),
        beta=float(beta),
        accumulate=0,
        activation=0,
        clears=0,
    )
    b.emit(call if out.dtype == "float32" else calls.GemmInt(**call.shared(calls.GemmInt), size=ITEM_SIZE[out.dtype]))


def lower_matmul(
    b: Builder, out: Buf, left: Buf, right: Buf, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0
) -> None:
    """out = alpha * left' @ right', batched and broadcast."""
    a_shape = (1, *left.shape) if len(left.shape) == 1 else left.shape
    b_shape = (*right.shape, 1) if len(right.shape) == 1 else right.shape
    m, k = (a_shape[-1], a_shape[-2]) if trans_a else a_shape[-2:]
    n = b_shape[-2] if trans_b else b_shape[-1]
    a_batch, b_batch = a_shape[:-2], b_shape[:-2]
    if prod(b_batch) == 1 and not trans_a:
        # One right matrix: the left batch is more rows of one product.
        m, a_batch, b_batch = m * prod(a_batch), (), ()
    batch = broadcast_shapes(a_batch, b_batch)
    strides = [_batch_strides(s, batch, size) for s, size in ((a_batch, m * k), (b_batch, k * n), (batch, m * n))]
    outer, dims = batch[:-2], (1, 1, *batch)[-2:]
    inner = [(0, 0, *s)[-2:] for s in strides]
    for index in product(*(range(d) for d in outer)):
        a_at, b_at, c_at = (sum(i * s for i, s in zip(index, row, strict=False)) for row in strides)
        a, w, c = (buf.view((buf.size - at,), at) for buf, at in ((left, a_at), (right, b_at), (out, c_at)))
        multiply(b, a, w, c, (m, n, k), (trans_a, trans_b), batch=dims, steps=inner, alpha=alpha)


def _batch_strides(shape: tuple[int, ...], batch: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Element strides of `shape` along the broadcast `batch` dims, matrices being `size` elements."""
    full = (1,) * (len(batch) - len(shape)) + shape
    strides, step = [], size
    for dim in reversed(full):
        strides.append(step if dim != 1 else 0)
        step *= dim
    return tuple(reversed(strides))


def matrix_product(g: Emission, pair: list[str], trans: tuple[int, int], alpha: float = 1.0) -> str:
    """alpha * A' B' of two matrices: a Gemm without C, which is legal from opset 11 on."""
    attrs: dict[str, Any] = {} if alpha == 1.0 else {"alpha": alpha}
    attrs |= {name: 1 for name, value in zip(("transA", "transB"), trans, strict=True) if value}
    if g.opset >= GEMM_WITHOUT_C_SINCE:
        name: str = g.op("Gemm", pair, beta=0.0, **attrs)
    else:
        name = g.op("FusedMatMul", pair, domain=MS, **attrs)
    return name


def gradient_factors(a: str, b: str, dy: str, ta: int, tb: int) -> list[tuple[list[str], tuple[int, int]]]:
    """The factors of the gradients of A' B' by A and by B, and which of them are transposed."""
    by_a = ([b, dy], (tb, 1)) if ta else ([dy, b], (0, 1 - tb))
    by_b = ([dy, a], (1, ta)) if tb else ([a, dy], (1 - ta, 0))
    return [by_a, by_b]


def matrix_of_rows(g: Emission, x: str) -> str:
    """`x` as a matrix of its rows."""
    columns = g.shape(x)[-1]
    if static(columns):
        return g.op("Reshape", [x, g.constant("int64", (2,), (-1, columns))])
    return g.op("Flatten", [x], axis=g.rank(x) - 1)


class MatMul(Op):
    """Matrix product with batch broadcasting. https://onnx.ai/onnx/operators/onnx__MatMul.html"""

    unit_axis = -1
    versions = (1, 9, 13)
    differentiable = (0, 1)

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        check_dtypes(self, a, b)
        return TensorType(a.dtype, matmul_shape(self, a.shape, b.shape))

    def lower(self, b: Builder, outs: list[Buf], left: Buf, right: Buf) -> None:
        lower_matmul(b, outs[0], left, right)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        a, b = ins
        dy = douts[0]
        ranks = g.rank(a), g.rank(b)
        if 1 in ranks:
            return self._vector_gradient(g, a, b, dy)
        da = db = None
        if ranks == (2, 2):
            if g.wants(a):
                da = matrix_product(g, [dy, b], (0, 1))
            if g.wants(b):
                db = matrix_product(g, [a, dy], (1, 0))
            return [da, db]
        if g.wants(a):
            da = g.op("FusedMatMul", [dy, b], domain=MS, transB=1)
            da = g.reduce_to(da, a, of=da)
        if g.wants(b) and ranks[1] == 2:
            db = matrix_product(g, [matrix_of_rows(g, x) for x in (a, dy)], (1, 0))
        elif g.wants(b):
            db = g.op("FusedMatMul", [a, dy], domain=MS, transA=1)
            db = g.reduce_to(db, b, of=db)
        return [da, db]

    def _vector_gradient(self, g: GradientBuilder, a: str, b: str, dy: str) -> list[str | None]:
        # A vector is a matrix with one row (left) or one column (right); its gradient loses that dim again.
        rank_a, rank_b = g.rank(a), g.rank(b)
        left = g.unsqueeze(a, [0]) if rank_a == 1 else a
        right = g.unsqueeze(b, [1]) if rank_b == 1 else b
        if rank_a == 1:
            dy = g.unsqueeze(dy, [-2 if rank_b > 1 else 0])
        if rank_b == 1:
            dy = g.unsqueeze(dy, [-1])
        da = db = None
        if g.wants(a):
            da = g.op("FusedMatMul", [dy, right], domain=MS, transB=1)
            if rank_a == 1:
                da = g.squeeze(g.reduce_sum(da, range(rank_b - 2), False), [0])
        if g.wants(b):
            db = g.op("FusedMatMul", [left, dy], domain=MS, transA=1)
            if rank_b == 1:
                db = g.squeeze(g.reduce_sum(db, range(rank_a - 2), False), [1])
        return [da, db]


class Gemm(Op):
    """alpha * A' B' + beta * C. https://onnx.ai/onnx/operators/onnx__Gemm.html"""

    unit_axis = -1
    versions = (7, 9, 11, 13)
    attrs = {"alpha": Float(1.0), "beta": Float(1.0), "transA": Int(0), "transB": Int(0)}
    differentiable = (0, 1, 2)

    def infer(self, a: TensorType, b: TensorType, c: TensorType | None = None) -> TensorType:
        check_dtypes(self, a, b, c)
        if a.dtype != "float32" and not (self.alpha.is_integer() and self.beta.is_integer()):
            raise self.unsupported(f"a product of integers times alpha {self.alpha}, with beta {self.beta},")
        if a.rank != 2 or b.rank != 2:
            raise self.error(f"A and B must be matrices, got shapes {list(a.shape)} and {list(b.shape)}.")
        m, k = a.shape[::-1] if self.transA else a.shape
        k2, n = b.shape[::-1] if self.transB else b.shape
        if not equal(k, k2):
            raise self.error(f"A has {k} columns and B has {k2} rows (shapes {list(a.shape)}, {list(b.shape)}).")
        if c is not None:
            try:
                fits = equal_shapes(broadcast_shapes((m, n), c.shape), (m, n))
            except ValueError:
                fits = False
            if not fits:
                raise self.error(f"C of shape {list(c.shape)} does not broadcast to {[m, n]}.")
        return TensorType(a.dtype, (m, n))

    def lower(self, b: Builder, outs: list[Buf], left: Buf, right: Buf, bias: Buf | None) -> None:
        m, n = outs[0].shape
        k = left.shape[0] if self.transA else left.shape[1]
        bias = bias if self.beta else None
        if outs[0].dtype != "float32":
            self._of_integers(b, outs[0], left, right, bias)
            return
        rows, columns = ((1, 1, *bias.shape))[-2:] if bias else (1, 1)
        strides = (columns if rows > 1 else 0, 1 if columns > 1 else 0)
        out, sizes, turned = outs[0], (m, n, k), (self.transA, self.transB)
        multiply(b, left, right, out, sizes, turned, bias=bias, bias_strides=strides, alpha=self.alpha, beta=self.beta)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        a, b = ins[:2]
        c = ins[2] if len(ins) > 2 else ""
        dy = douts[0]
        ta, tb, alpha = self.transA, self.transB, float(self.alpha)
        result: list[str | None] = [None] * len(ins)
        for k, (pair, trans) in enumerate(gradient_factors(a, b, dy, ta, tb)):
            if g.wants(ins[k]):
                result[k] = matrix_product(g, pair, trans, alpha)
        if c and g.wants(c):
            dc = g.reduce_to(dy, c, of=outs[0])
            if self.beta != 1.0:
                dc = g.op("Mul", [dc, g.constant("float32", (1,), (float(self.beta),))])
                # A scalar C must keep its rank.
                dc = g.op("Reshape", [dc, g.constant("int64", (0,), ())]) if g.rank(c) == 0 else dc
            result[2] = dc if dc != dy else g.op("Identity", [dc])
        return result

    def _of_integers(self, b: Builder, out: Buf, left: Buf, right: Buf, bias: Buf | None) -> None:
        factors = int(self.alpha), int(self.beta)
        product = out if factors[0] == 1 and bias is None else b.temp(out.dtype, out.shape)
        lower_matmul(b, product, left, right, trans_a=bool(self.transA), trans_b=bool(self.transB))

        def compute(e: Emitter, *parts: Expr) -> Expr:
            terms = [e.mul(v, e.like(v, n)) if n != 1 else v for v, n in zip(parts, factors, strict=False)]
            return terms[0] if len(terms) == 1 else e.add(*terms)

        if product is not out:
            b.elementwise([out], [product, *([bias] if bias is not None else [])], compute)


class FusedMatMul(Op):
    """alpha * A' @ B' on the last two dims (com.microsoft)."""

    domain = MS
    attrs = {"alpha": Float(1.0), "transA": Int(0), "transB": Int(0), "transBatchA": Int(0), "transBatchB": Int(0)}
    differentiable = (0, 1)

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self.need_float32(a, b)
        if self.transBatchA or self.transBatchB:
            raise self.unsupported("transBatchA / transBatchB")
        left, right = a.shape, b.shape
        if self.transA and a.rank > 1:
            left = (*left[:-2], left[-1], left[-2])
        if self.transB and b.rank > 1:
            right = (*right[:-2], right[-1], right[-2])
        return TensorType(a.dtype, matmul_shape(self, left, right))

    def lower(self, b: Builder, outs: list[Buf], left: Buf, right: Buf) -> None:
        lower_matmul(
            b,
            outs[0],
            left,
            right,
            alpha=self.alpha,
            trans_a=bool(self.transA and len(left.shape) > 1),
            trans_b=bool(self.transB and len(right.shape) > 1),
        )

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        a, b = ins
        dy = douts[0]
        if 1 in (g.rank(a), g.rank(b)):
            raise self.unsupported("the gradient with a vector")
        result: list[str | None] = [None, None]
        for k, (pair, (ta, tb)) in enumerate(gradient_factors(a, b, dy, self.transA, self.transB)):
            if g.wants(ins[k]):
                d = g.op("FusedMatMul", pair, domain=MS, alpha=float(self.alpha), transA=ta, transB=tb)
                result[k] = g.reduce_to(d, ins[k], of=d)
        return result
