"""The head of a language model and its loss become one kernel that never stores the scores (wasm_kernels/head_loss.c).

The pattern is a product whose result only cross entropy reads. With gradients, it includes the gradient of the cross
entropy, and its products with the weights and with the rows of the head's input. Scores that anything else reads, such
as an output or a metric, stay stored. Weights may be quantized: the kernel then reads them as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainweb.compiler.context import Context
from trainweb.ir.calls import (
    CrossEntropy,
    CrossEntropyGrad,
    Dequantize,
    Gemm,
    GemmQuantized,
    HeadLoss,
    HeadLossQuantized,
    HeadLossWeightGrad,
)
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf, Instruction, KernelCall
from trainweb.ir.layout import HEAD_CLASSES, HEAD_PARTS, HEAD_ROWS, LOSS_EACH
from trainweb.ir.program import HEAD, POSITION, Program, Refusal

SCORES_BYTES = 4 << 20
"""Scores of fewer bytes stay stored: they fit into caches, and other kernels cut them into more tasks."""
TRAINED_SCORES_BYTES = 64 << 20
"""The same where the weights are trained: for their gradient the scores are made once more, a third of the work."""
PACKED = tuple(name for name in Dequantize.ARGUMENTS if name not in ("x", "y", "rows", "cols"))
"""Arguments beside the numbers that say how quantized weights are stored."""

_Product = Gemm | GemmQuantized


@dataclass(frozen=True, slots=True)
class _Head:
    """scores [n, c] = alpha * x w' + bias, of x [n, d] and w [c, d], or [d, c] if `turned`."""

    product: _Product
    loss: CrossEntropy
    turned: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, classes and depth."""
        return self.product.m, self.product.n, self.product.k

    @property
    def operands(self) -> list[Buf]:
        """Buffers that the scores and the loss are made from."""
        g = self.product
        weights = [g.b] if isinstance(g, Gemm) else [g.w, g.scale, g.zero]
        return [b for b in (g.a, g.bias, *weights, *_targets(self.loss)) if b is not None]


@dataclass(frozen=True, slots=True)
class _Gradient:
    """The gradient of the scores, and the products that read it."""

    call: CrossEntropyGrad
    by_x: _Product | None
    by_w: Gemm | None

    @property
    def products(self) -> list[_Product]:
        """The products that are wanted."""
        return [g for g in (self.by_x, self.by_w) if g is not None]


def fuse_head_loss(program: Program, _: Context) -> None:
    """Replace the product of a large head, cross entropy and their gradient by `head_loss_f32`."""
    for i in program:
        head = _find(program, i) if isinstance(i, CrossEntropy) else None
        if head is None:
            continue
        readers: tuple[Instruction, ...] = ()
        if (log_prob := head.loss.log_prob) is not None:
            if not program.is_temporary(log_prob.storage):
                continue
            readers = program.readers(log_prob.storage)
        gradient = _gradient(program, head, readers[0]) if len(readers) == 1 else None
        is_whole = len(readers) == (gradient is not None)
        if is_whole and _is_worth_it(head, gradient) and _may_move(program, head, gradient):
            _replace(program, head, gradient)


def _find(program: Program, loss: CrossEntropy) -> _Head | None:
    """The head whose scores only `loss` reads."""
    scores = loss.scores
    users = program.users(scores.storage)
    g = users[0]
    if len(users) != 2 or users[1] is not loss or not program.is_temporary(scores.storage):
        if isinstance(g, _Product) and 4 * loss.n * loss.c >= TRAINED_SCORES_BYTES:
            reason = "another node reads the scores, or they are an output of the step"
            program.refusals.append(Refusal(HEAD, loss.node, reason))
        return None
    if not isinstance(g, _Product) or loss.inner != 1 or loss.from_log or not _is_whole(g, loss.n, loss.c):
        return None
    if g.activation or g.accumulate or not g.c.same_place(scores):
        return None
    if not g.k or not _is_dense(g.a_row, g.a_col, g.m, g.k):
        return None
    if g.bias is not None and (g.beta, g.bias_row, g.bias_col) != (1, 0, 1):
        return None
    if isinstance(g, GemmQuantized):
        return _Head(g, loss, not g.turned)
    rows_of_w = _is_dense(g.b_col, g.b_row, g.n, g.k)
    if not rows_of_w and not _is_dense(g.b_row, g.b_col, g.k, g.n):
        return None
    return _Head(g, loss, not rows_of_w)


def _gradient(program: Program, head: _Head, call: Instruction) -> _Gradient | None:
    """The gradient by `call` if only products with the operands of the head read it."""
    if not isinstance(call, CrossEntropyGrad) or not _is_alike(call, head.loss):
        return None
    dx = call.dx
    if program.writers(dx.storage) != (call,) or not program.is_temporary(dx.storage):
        return None
    by_x: _Product | None = None
    by_w: Gemm | None = None
    for reader in program.readers(dx.storage):
        if not isinstance(reader, _Product) or reader.bias is not None or reader.activation:
            return None
        if reader.alpha != head.product.alpha:
            return None
        if by_x is None and _is_by_x(head, dx, reader):
            by_x = reader
        elif by_w is None and isinstance(reader, Gemm) and _is_by_w(head, dx, reader):
            by_w = reader
        else:
            return None
    return _Gradient(call, by_x, by_w) if by_x is not None or by_w is not None else None


def _is_alike(call: CrossEntropyGrad, loss: CrossEntropy) -> bool:
    names = ("n", "c", "inner", "label_size", "has_ignore", "ignore_index", "reduction", "from_log")
    if any(getattr(call, name) != getattr(loss, name) for name in names):
        return False
    pairs = zip(_targets(call), _targets(loss), strict=True)
    return all(a is b if a is None or b is None else a.same_place(b) for a, b in pairs)


def _is_by_x(head: _Head, dx: Buf, g: _Product) -> bool:
    """Return whether a product is dx w."""
    n, c, d = head.shape
    operands = g.a.same_place(dx) and _reads_transpose(g, head.product)
    return operands and g.k == c and _is_dense(g.a_row, g.a_col, n, c) and _is_whole(g, n, d)


def _reads_transpose(g: _Product, other: _Product) -> bool:
    """Return whether both products have the same right operand, transposed in one."""
    if isinstance(g, Gemm) and isinstance(other, Gemm):
        return g.b.same_place(other.b) and (g.b_row, g.b_col) == (other.b_col, other.b_row)
    if isinstance(g, GemmQuantized) and isinstance(other, GemmQuantized):
        alike = all(_is_same(getattr(g, name), getattr(other, name)) for name in ("w", *PACKED))
        return alike and g.turned != other.turned
    return False


def _is_same(a: Buf | int | None, b: Buf | int | None) -> bool:
    return a.same_place(b) if isinstance(a, Buf) and isinstance(b, Buf) else a == b


def _is_by_w(head: _Head, dx: Buf, g: Gemm) -> bool:
    """Return whether a product is the gradient by w, which lies as w does."""
    n, c, d = head.shape
    x = head.product.a
    if head.turned:
        left, right = (g.a, g.a_col, g.a_row, d, x), (g.b, g.b_row, g.b_col, c, dx)
    else:
        left, right = (g.a, g.a_col, g.a_row, c, dx), (g.b, g.b_row, g.b_col, d, x)
    operands = all(b.same_place(of) and _is_dense(row, col, n, width) for b, row, col, width, of in (left, right))
    return operands and g.k == n and _is_whole(g, left[3], right[3])


def _is_dense(row: int, col: int, rows: int, cols: int) -> bool:
    """Return whether the elements of a matrix lie one after the other, rows first."""
    return (row == cols or rows == 1) and (col == 1 or cols == 1)


def _is_whole(g: _Product, rows: int, cols: int) -> bool:
    """Return whether the result of a product is one matrix without gaps."""
    single = isinstance(g, GemmQuantized) or g.batch == (1, 1)
    return single and (g.m, g.n) == (rows, cols) and (g.c_row == cols or rows == 1)


def _is_worth_it(head: _Head, gradient: _Gradient | None) -> bool:
    n, c, _ = head.shape
    trained = gradient is not None and gradient.by_w is not None
    return 4 * n * c >= (TRAINED_SCORES_BYTES if trained else SCORES_BYTES)


def _may_move(program: Program, head: _Head, gradient: _Gradient | None) -> bool:
    """Return whether the operands still hold the same where the new instructions read them."""
    products = [] if gradient is None else gradient.products
    last = max((head.loss, *products), key=POSITION)
    read: list[tuple[Buf, Instruction]] = [(b, head.product) for b in head.operands]
    if gradient is not None:
        read.append((gradient.call.dy, gradient.call))
    written = {b.storage for i in (head.loss, *products) for b in i.writes}
    return not any(b.storage in written or program.is_written_between(b.storage, since, last) for b, since in read)


def _call(head: _Head, slope: Buf | None, log_sum: Buf | None) -> HeadLoss | HeadLossQuantized:
    n, c, d = head.shape
    g, loss = head.product, head.loss
    tasks = -(-n // HEAD_ROWS)
    numbers: dict[str, Any] = {
        "x": g.a,
        "bias": g.bias,
        "slope": slope,
        "n": n,
        "c": c,
        "d": d,
        "turned": int(head.turned),
        "alpha": g.alpha,
        "parts": min(-(-HEAD_PARTS // tasks), -(-c // HEAD_CLASSES)),
        "gradient": int(slope is not None),
    }
    if isinstance(g, Gemm):
        return HeadLoss(**loss.shared(HeadLoss) | numbers, w=g.b, log_sum=log_sum)
    packed = {name: getattr(g, name) for name in PACKED}
    return HeadLossQuantized(**loss.shared(HeadLossQuantized) | packed | numbers, w=g.w)


def _replace(program: Program, head: _Head, gradient: _Gradient | None) -> None:
    """Put the kernel where the loss was, and the gradients where their products were."""
    n, _, d = head.shape
    g, loss = head.product, head.loss
    by_x, by_w = (None, None) if gradient is None else (gradient.by_x, gradient.by_w)
    builder = program.build(loss.node)
    slope = None if by_x is None else builder.temp("float32", (n, d))
    log_sum = None if by_w is None else builder.temp("float32", (n,))
    forward = _call(head, slope, log_sum)
    builder.emit(forward)
    program.remove(g)
    program.replace(loss, *builder.instructions)
    if gradient is None:
        return
    if by_x is not None and slope is not None:
        _scale(program, gradient.call, by_x, slope)
    if by_w is not None:
        _weight_gradient(program, forward, gradient.call, by_w)
    program.remove(gradient.call)


def _scale(program: Program, call: CrossEntropyGrad, by_x: _Product, slope: Buf) -> None:
    """dx for upstream gradient 1, scaled by dloss."""
    builder = program.build(by_x.node)
    dy = call.dy.view((call.n, 1) if call.reduction == LOSS_EACH else ())
    dx = by_x.c.view(slope.shape)

    def compute(e: Emitter, x: Expr, factor: Expr, before: Expr | None = None) -> Expr:
        return e.mul(x, factor) if before is None else e.add(before, e.mul(x, factor))

    builder.elementwise([dx], [slope, dy, *([dx] if by_x.accumulate else [])], compute)
    program.replace(by_x, *builder.instructions)


def _weight_gradient(program: Program, forward: KernelCall, call: CrossEntropyGrad, by_w: Gemm) -> None:
    builder = program.build(call.node)
    shared = forward.shared(HeadLossWeightGrad) | call.shared(HeadLossWeightGrad)
    builder.emit(HeadLossWeightGrad(**shared | {"dw": by_w.c, "accumulate": by_w.accumulate}))
    program.replace(by_w, *builder.instructions)


def _targets(call: CrossEntropy | CrossEntropyGrad) -> tuple[Buf, Buf | None]:
    return call.labels, call.weights
