"""Updates of optimizers as formulas: arithmetic on numbers of the whole step and on elements of parameters.

An optimizer computes with `Term`s as with numbers. A term is either a scalar or an element of a parameter, a gradient
or a moment. Scalars are the same for all elements (the learning rate, 1 - beta ** t, the mean of a parameter). Scalars
are computed in float64 by a small generated function. Elements are computed in float32, by one pass over flat runs
(`ElementwiseCall`), which reads the scalars that it needs.

`mean` and `product` need a whole parameter. They store their operand, unless a pass fuses it with the reduction, and
their result is a new tensor. A term with fewer elements than the result, such as a row, is stored before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.expr import Emitter, Expr, walk
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import REDUCE_SUM, REDUCE_SUM_SQUARES
from trainweb.ir.shapes import broadcast_shapes
from trainweb.ops.matmul import multiply

STEP_BITS = 40
"""Bits of the step that `Scalars.power` looks at: a step a microsecond for twelve days."""


class Term:
    """A scalar in float64 or an element of a tensor in float32, as an expression of `Formula`."""

    def __init__(self, formula: Formula, expr: Expr, shape: tuple[int, ...] = ()) -> None:
        self._formula, self.expr, self.shape = formula, expr, shape

    @property
    def is_scalar(self) -> bool:
        """Return whether it is the same for all elements."""
        return self.expr.dtype == "float64"

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def _with(self, op: Callable[[Expr, Expr], Expr], other: Term | float, *, swapped: bool = False) -> Term:
        a, b, shape = self._formula.alike(self, other)
        return Term(self._formula, op(b, a) if swapped else op(a, b), shape)

    def __add__(self, other: Term | float) -> Term:
        return self._with(self._formula.emitter.add, other)

    def __sub__(self, other: Term | float) -> Term:
        return self._with(self._formula.emitter.sub, other)

    def __mul__(self, other: Term | float) -> Term:
        return self._with(self._formula.emitter.mul, other)

    def __truediv__(self, other: Term | float) -> Term:
        return self._with(self._formula.emitter.div, other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> Term:
        return self._with(self._formula.emitter.sub, other, swapped=True)

    def __rtruediv__(self, other: float) -> Term:
        return self._with(self._formula.emitter.div, other, swapped=True)

    def __neg__(self) -> Term:
        return self.map(lambda e, x: e.neg(x))

    def __pow__(self, exponent: float) -> Term:
        return self.function("pow", exponent)

    def __rpow__(self, base: float) -> Term:
        """`base ** step` of the formula's step, by squaring: the error stays near log2(step) roundings."""
        if self is not self._formula.step:
            raise TypeError("Only a number to the power of the step is known once a step.")
        e, bits = self._formula.emitter, self._formula.step_bits
        result = e.const(1.0, "float64")
        for k in range(STEP_BITS):
            is_set = e.compare("ne", e.and_(bits, e.const(1 << k, "int64")), e.const(0, "int64"))
            result = e.select(is_set, e.mul(result, e.const(base**2.0**k, "float64")), result)
        return Term(self._formula, result)

    def map(self, change: Callable[[Emitter, Expr], Expr]) -> Term:
        """The term of an expression of this one."""
        return Term(self._formula, change(self._formula.emitter, self.expr), self.shape)

    def function(self, name: str, *others: float) -> Term:
        """A function of the kernels, which is one of float32; of a scalar, too."""
        return self.map(lambda e, x: e.cast(e.math(name, e.cast(x, "float32"), *map(e.const, others)), x.dtype))

    def sqrt(self) -> Term:
        """The square root."""
        return self.map(lambda e, x: e.sqrt(x))

    def exp(self) -> Term:
        """e to the power of this."""
        return self.function("exp")

    def log(self) -> Term:
        """The natural logarithm."""
        return self.function("log")

    def floor(self) -> Term:
        """The largest integer that is not larger."""
        return self.map(lambda e, x: e.floor(x))

    def abs(self) -> Term:
        """The absolute value."""
        return self.map(lambda e, x: e.abs(x))

    def sign(self) -> Term:
        """1, -1 or 0; NaN stays NaN."""

        def chosen(e: Emitter, x: Expr) -> Expr:
            zero = e.like(x, 0)
            positive = e.select(e.compare("gt", x, zero), e.like(x, 1), x)
            return e.select(e.compare("lt", x, zero), e.like(x, -1), positive)

        return self.map(chosen)

    def larger(self, other: Term | float) -> Term:
        """The larger of two; NaN if either is."""
        # A number is not NaN, so that one instruction is enough for an element and a number.
        is_bound = not (self.is_scalar or isinstance(other, Term))
        return self._with(self._formula.emitter.pmax if is_bound else self._formula.emitter.max, other)

    def smaller(self, other: Term | float) -> Term:
        """The smaller of two; NaN if either is."""
        return self._with(self._formula.emitter.min, other)

    def is_more(self, other: Term | float) -> Term:
        """1 where it is larger, else 0."""
        e = self._formula.emitter
        return self._with(lambda a, b: e.select(e.compare("gt", a, b), e.like(a, 1), e.like(a, 0)), other)

    def where(self, chosen: Term, other: Term | float) -> Term:
        """`chosen` where this is not 0, else `other`."""
        e = self._formula.emitter
        a, b, shape = self._formula.alike(chosen, other)
        condition = self._formula.alike(self, chosen)[0]
        return Term(self._formula, e.select(e.compare("ne", condition, e.like(condition, 0)), a, b), shape)

    def mean(self, axis: int | None = None) -> Term:
        """The mean along axis -1 or -2, which stays with size 1; without an axis a scalar, the mean of all elements."""
        return self._formula.mean(self, axis, REDUCE_SUM)

    def mean_square(self, axis: int | None = None) -> Term:
        """The mean of the squares, as `mean`."""
        return self._formula.mean(self, axis, REDUCE_SUM_SQUARES)

    def product(self, other: Term, turned: tuple[bool, bool] = (False, False)) -> Term:
        """The product of two matrices, transposed where `turned`."""
        return self._formula.product(self, other, turned)

    def reshape(self, shape: tuple[int, ...]) -> Term:
        """The same elements in another shape."""
        return self if shape == self.shape else self._formula.read(self._formula.tensor(self).view(shape))


class Moments:
    """The moments of a parameter by the names that an optimizer gives them; assign to one to change it.

    `assign` stores a new value in the place of the old one at once, and returns its term.
    """

    __slots__ = ("__dict__", "_assign")

    def __init__(self, values: Mapping[str, Any], assign: Callable[[Any, Any], Any] | None = None) -> None:
        object.__setattr__(self, "_assign", assign)
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        """Change a moment."""
        self.__dict__[name] = self._assign(self.__dict__[name], value) if self._assign else value

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A moment."""


class Formula:
    """The update of elements: made once for the flat runs of an optimizer node, or for each whole parameter."""

    def __init__(self, b: Builder, learning_rate: Buf | None, step: Buf | None) -> None:
        self.emitter: Emitter = b.emitter
        self._builder = b
        self._operands: list[Buf] = []
        """Tensors by the numbers of their inputs."""
        self._overwritten = set[int]()
        """Operands that have changed since they were read."""
        self._scalars: dict[Expr, Expr] = {}
        """The scalars that elements are computed with, and their inputs."""
        self._pending: dict[Expr, Buf] = {}
        """Scalars that are not computed yet."""
        self._first = 0
        """Number of the first operand of a run."""
        e = self.emitter
        self.learning_rate: Any = None
        self.step: Any = None
        """The number of the step; 1 at the first."""
        if learning_rate is not None:
            self.learning_rate = Term(self, e.cast(self._input(learning_rate), "float64"))
        if step is not None:
            self.step_bits = e.add(self._input(step), e.const(1, "int64"))
            self.step = Term(self, e.cast(self.step_bits, "float64"))

    def _input(self, b: Buf) -> Expr:
        self._operands.append(b)
        return self.emitter.input(len(self._operands) - 1, b.dtype)

    def read(self, b: Buf) -> Term:
        """The elements of a tensor."""
        return Term(self, self._input(b), b.shape)

    def elements(self, run: Sequence[Buf]) -> list[Term]:
        """The elements of the tensors of a run; `emit` computes the same for other runs."""
        self._first = len(self._operands)
        return [self.read(b) for b in run]

    def alike(self, a: Term | float, b: Term | float) -> tuple[Expr, Expr, tuple[int, ...]]:
        """Both operands as scalars, or both as elements, and the shape of the result."""
        terms = [x for x in (a, b) if isinstance(x, Term)]
        shape = broadcast_shapes(*(x.shape for x in terms))
        dtype = "float64" if all(x.is_scalar for x in terms) else "float32"
        return self._as(a, dtype, shape), self._as(b, dtype, shape), shape

    def _as(self, x: Term | float, dtype: str, shape: tuple[int, ...]) -> Expr:
        if not isinstance(x, Term):
            return self.emitter.const(x, dtype)
        if x.is_scalar and dtype == "float32":
            return self._scalar(x.expr)
        if x.shape != shape:
            self.tensor(x)
        return x.expr

    def _scalar(self, x: Expr) -> Expr:
        if x not in self._scalars:
            self._pending[x] = self._builder.temp("float32", (1,))
            self._scalars[x] = self._input(self._pending[x])
        return self._scalars[x]

    def tensor(self, x: Term) -> Buf:
        """The tensor of elements, which are computed now unless they lie in one."""
        if x.expr.op == "input":
            self._check([number := int(x.expr.imm or 0)])
            return self._operands[number]
        out = self._builder.temp("float32", x.shape)
        self._compute([out], [x.expr])
        x.expr = self._input(out)
        return out

    def assign(self, old: Term, new: Term) -> Term:
        """Store elements in the place of others, which must not be read any more."""
        number = int(old.expr.imm or 0)
        out = self._operands[number]
        self._compute([out], [self._as(new, "float32", old.shape)])
        self._overwritten.add(number)
        return self.read(out)

    def mean(self, x: Term, axis: int | None, op: int) -> Term:
        """The mean of elements or of their squares, see `Term.mean`; without an axis from the sums of rows."""
        shape, operand = x.shape, self.tensor(x)
        if axis is None:
            n, rows = prod(shape), shape[0]
            sums = self._reduce(operand, (rows, n // rows, 1), (rows,), op)
            total = self._reduce(sums, (1, rows, 1), (1,), REDUCE_SUM)
            return Term(self, self.emitter.cast(self._input(total), "float64")) * (1 / n)
        outer, n, inner = prod(shape[:axis]), shape[axis], prod(shape[axis:][1:])
        sums = self._reduce(operand, (outer, n, inner), (*shape[:axis], 1, *shape[axis:][1:]), op)
        return self.read(sums) * (1 / n)

    def _reduce(self, x: Buf, sizes: tuple[int, int, int], shape: tuple[int, ...], op: int) -> Buf:
        y, (outer, n, inner) = self._builder.temp("float32", shape), sizes
        self._builder.emit(calls.Reduce(x=x, y=y, outer=outer, n=n, inner=inner, op=op))
        return y

    def product(self, x: Term, y: Term, turned: tuple[bool, bool]) -> Term:
        """The product of two matrices: see `Term.product`."""
        m, k, n = x.shape[turned[0]], x.shape[1 - turned[0]], y.shape[1 - turned[1]]
        out = self._builder.temp("float32", (m, n))
        multiply(self._builder, self.tensor(x), self.tensor(y), out, (m, n, k), turned)
        return self.read(out)

    def emit(self, results: Mapping[int, Term], runs: Sequence[tuple[Buf, ...]]) -> None:
        """Compute results, by the numbers of their tensors in each run, in place."""
        roots = [self._as(x, "float32", x.shape) for x in results.values()]
        for run in runs:
            self._operands[self._first : self._first + len(run)] = run
            self._compute([run[k] for k in results], roots)

    def _check(self, numbers: Sequence[int]) -> None:
        if not self._overwritten.isdisjoint(numbers):
            raise ValueError("A formula reads a moment that it has changed.")

    def _compute(self, outs: Sequence[Buf], roots: Sequence[Expr]) -> None:
        """Compute elements, and before them the scalars that are not computed yet."""
        if self._pending:
            scalars, self._pending = self._pending, {}
            self._compute([*scalars.values()], [self.emitter.cast(x, "float32") for x in scalars])
        inputs = sorted((x for x in walk(roots) if x.op == "input"), key=lambda x: x.imm or 0)
        numbers = [int(x.imm or 0) for x in inputs]
        self._check(numbers)

        def computed(e: Emitter, *xs: Expr) -> tuple[Expr, ...]:
            return tuple(e.substitute(roots, dict(zip(inputs, xs, strict=True))))

        self._builder.elementwise(outs, [self._operands[k] for k in numbers], computed)
