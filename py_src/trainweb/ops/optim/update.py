"""Updates of optimizers as formulas: arithmetic on numbers of the whole step and on elements of parameters.

An optimizer computes with `Term`s as with numbers. A term is either a scalar or an element of a parameter, a gradient
or a moment. Scalars are the same for all elements (the learning rate, 1 - beta ** t). Scalars are computed in float64,
once a step, by a small generated function; elements in float32, by one pass over flat runs (`ElementwiseCall`), which
reads the scalars that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ops.frame.lazy_numpy import np

if TYPE_CHECKING:
    from trainweb.ir.builder import Builder

STEP_BITS = 40
"""Bits of the step that `Scalars.power` looks at: a step a microsecond for twelve days."""


class Term:
    """A scalar in float64 or an element in float32, as an expression of `Formula`."""

    def __init__(self, formula: Formula, expr: Expr) -> None:
        self._formula, self.expr = formula, expr

    @property
    def is_scalar(self) -> bool:
        """Return whether it is the same for all elements."""
        return self.expr.dtype == "float64"

    def _with(self, op: Callable[[Expr, Expr], Expr], other: Term | float, *, swapped: bool = False) -> Term:
        a, b = self._formula.alike(self, other)
        return Term(self._formula, op(b, a) if swapped else op(a, b))

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
        return Term(self._formula, self._formula.emitter.neg(self.expr))

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
        return Term(self._formula, change(self._formula.emitter, self.expr))

    def function(self, name: str) -> Term:
        """A function of the kernels, which is one of float32; of a scalar, too."""
        return self.map(lambda e, x: e.cast(e.math(name, e.cast(x, "float32")), x.dtype))

    def sign(self) -> Term:
        """1, -1 or 0; NaN stays NaN."""

        def chosen(e: Emitter, x: Expr) -> Expr:
            zero = e.like(x, 0)
            positive = e.select(e.compare("gt", x, zero), e.like(x, 1), x)
            return e.select(e.compare("lt", x, zero), e.like(x, -1), positive)

        return self.map(chosen)

    def larger(self, other: Term | float) -> Term:
        """The larger of two; NaN if either is."""
        return self._with(self._formula.emitter.max, other)

    def smaller(self, other: Term | float) -> Term:
        """The smaller of two; NaN if either is."""
        return self._with(self._formula.emitter.min, other)

    def is_more_than(self, other: Term | float) -> Term:
        """1 where it is larger, else 0."""
        e = self._formula.emitter
        return self._with(lambda a, b: e.select(e.compare("gt", a, b), e.like(a, 1), e.like(a, 0)), other)

    def where(self, chosen: Term, other: Term | float) -> Term:
        """`chosen` where this is not 0, else `other`."""
        e = self._formula.emitter
        a, b = self._formula.alike(chosen, other)
        condition = self._formula.alike(self, chosen)[0]
        return Term(self._formula, e.select(e.compare("ne", condition, e.like(condition, 0)), a, b))


def sqrt(x: Any) -> Any:
    """The square root. These functions take arrays, too: `Optimizer.reference` computes updates in NumPy."""
    return x.map(lambda e, x: e.sqrt(x)) if isinstance(x, Term) else np.sqrt(x)


def exp(x: Any) -> Any:
    """e to the power of `x`."""
    return x.function("exp") if isinstance(x, Term) else np.exp(x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return x.function("log") if isinstance(x, Term) else np.log(x)


def floor(x: Any) -> Any:
    """The largest integer that is not larger."""
    return x.map(lambda e, x: e.floor(x)) if isinstance(x, Term) else np.floor(x)


def absolute(x: Any) -> Any:
    """The absolute value."""
    return x.map(lambda e, x: e.abs(x)) if isinstance(x, Term) else np.abs(x)


def sign(x: Any) -> Any:
    """1, -1 or 0; NaN stays NaN."""
    return x.sign() if isinstance(x, Term) else np.sign(x)


def larger(x: Any, y: Any) -> Any:
    """The larger of two, the first of which is no plain number."""
    return x.larger(y) if isinstance(x, Term) else np.maximum(x, y)


def smaller(x: Any, y: Any) -> Any:
    """The smaller of two, the first of which is no plain number."""
    return x.smaller(y) if isinstance(x, Term) else np.minimum(x, y)


def is_more(x: Any, y: Any) -> Any:
    """1 where `x` is larger than `y`, else 0; `x` is no plain number."""
    return x.is_more_than(y) if isinstance(x, Term) else np.where(x > y, 1.0, 0.0)


def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition is not 0, else `y`."""
    return condition.where(x, y) if isinstance(condition, Term) else np.where(condition != 0, x, y)


class Moments:
    """The moments of a parameter by the names that an optimizer gives them; assign to one to change it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A moment."""

        def __setattr__(self, name: str, value: Any) -> None:
            """Change a moment."""


class Formula:
    """The update of an element: made once for an optimizer node, emitted for each flat run."""

    def __init__(self, b: Builder, learning_rate: Buf | None, step: Buf | None) -> None:
        self.emitter: Emitter = b.emitter
        self._builder = b
        e = self.emitter
        self._of_step = [x for x in (learning_rate, step) if x is not None]
        at_step = len(self._of_step) - 1
        self.learning_rate = Term(self, e.cast(e.input(0, "float32"), "float64"))
        self.step_bits = e.add(e.input(at_step, "int64"), e.const(1, "int64"))
        self.step = Term(self, e.cast(self.step_bits, "float64"))
        """The number of the step; 1 at the first."""
        self._scalars: dict[Expr, int] = {}
        """The scalars that elements are computed with, by their number."""
        self._n_tensors = 0

    def elements(self, n: int) -> list[Term]:
        """The elements of `n` tensors."""
        self._n_tensors = n
        return [Term(self, self.emitter.input(k, "float32")) for k in range(n)]

    def alike(self, a: Term | float, b: Term | float) -> tuple[Expr, Expr]:
        """Both as scalars, or both as elements."""
        are_scalars = all(x.is_scalar for x in (a, b) if isinstance(x, Term))
        dtype = "float64" if are_scalars else "float32"
        return self._as(a, dtype), self._as(b, dtype)

    def _as(self, x: Term | float, dtype: str) -> Expr:
        if not isinstance(x, Term):
            return self.emitter.const(x, dtype)
        if x.expr.dtype == dtype:
            return x.expr
        number = self._scalars.setdefault(x.expr, len(self._scalars))
        return self.emitter.input(self._n_tensors + number, "float32")

    def emit(self, results: Mapping[int, Term], runs: Sequence[tuple[Buf, ...]]) -> None:
        """Compute results, by the numbers of their tensors in each run, in place."""
        b = self._builder
        roots = tuple(self._as(x, "float32") for x in results.values())
        scalars = [b.temp("float32", (1,)) for _ in self._scalars]
        if scalars:
            once = tuple(self.emitter.cast(x, "float32") for x in self._scalars)
            b.elementwise(scalars, self._of_step, lambda *_: once)
        for run in runs:
            b.elementwise([run[k] for k in results], [*run, *scalars], lambda *_: roots)
