"""Scalar expressions of elementwise operators, built by `Emitter` and compiled by a back end.

An `Expr` is a node of a directed acyclic graph; equal expressions are one object, so common
subexpressions are computed once.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import sqrt

UNARY_MATH = ("exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "log1p", "expm1")
"""Functions of one float32 that are vector polynomials of the kernels, exported as `v_<name>`."""

BINARY_MATH = ("pow",)
MATH = (*UNARY_MATH, *BINARY_MATH)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """One operation; `imm` is the input number of an "input", the value of a "const".

    An emitter makes equal expressions once, so identity is equality: comparing by structure would take
    exponential time where results are shared.
    """

    op: str
    dtype: str
    args: tuple[Expr, ...] = ()
    imm: float | int | None = None


def _operation(op: str) -> Callable[..., Expr]:
    """The method of `Emitter` that makes an operation with the dtype of its first operand."""

    def make(self: Emitter, *xs: Expr) -> Expr:
        return self.make(op, xs[0].dtype, *xs)

    return make


class Emitter:
    """Makes expressions. All operands of an arithmetic operation have one dtype."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Expr] = {}

    def make(self, op: str, dtype: str, *args: Expr, imm: float | None = None) -> Expr:
        """The unique expression `op(*args)`."""
        # By their bits 0.0 and -0.0 differ, and a NaN equals itself.
        bits = struct.pack("<d", imm) if isinstance(imm, float) else imm
        key = (op, dtype, args, bits)
        expr = self._made.get(key)
        if expr is None:
            expr = self._made[key] = Expr(op, dtype, args, imm)
        return expr

    def input(self, index: int, dtype: str) -> Expr:
        """The element of input `index`."""
        return self.make("input", dtype, imm=index)

    def const(self, value: float, dtype: str = "float32") -> Expr:
        """A constant."""
        return self.make("const", dtype, imm=float(value) if dtype.startswith("float") else int(value))

    def like(self, x: Expr, value: float) -> Expr:
        """A constant of the dtype of `x`."""
        return self.const(value, x.dtype)

    # Operations on numbers of one dtype.
    add, sub, mul, neg = _operation("add"), _operation("sub"), _operation("mul"), _operation("neg")
    abs, sqrt, floor, ceil = _operation("abs"), _operation("sqrt"), _operation("floor"), _operation("ceil")
    div = _operation("div")
    """a / b; integers truncate towards zero, and give 0 where b is 0."""
    max, min = _operation("max"), _operation("min")
    """The larger, the smaller of two; NaN if either is."""
    pmax = _operation("pmax")
    """a < b ? b : a, which is one instruction where `max` is several."""
    round = _operation("nearest")
    """Nearest integer, halves to even."""
    and_, or_, xor = _operation("and"), _operation("or"), _operation("xor")
    """Logic of bools, or of the bits of integers."""
    not_ = _operation("not")
    exp, log, tanh = _operation("exp"), _operation("log"), _operation("tanh")
    erf, sigmoid = _operation("erf"), _operation("sigmoid")

    def math(self, name: str, *xs: Expr) -> Expr:
        """One of UNARY_MATH or BINARY_MATH on float32."""
        return self.make(name, "float32", *xs)

    def pow(self, x: Expr, y: Expr) -> Expr:
        """x ** y; small constant exponents become products."""
        if y.op == "const":
            value = y.imm
            if value == 1:
                return x
            if value == 2:
                return self.mul(x, x)
            if value == 3:
                return self.mul(self.mul(x, x), x)
            if value == 0.5 and x.dtype == "float32":
                return self.sqrt(x)
            if value == 0:
                return self.like(x, 1)
        return self.math("pow", x, y)

    def compare(self, how: str, a: Expr, b: Expr) -> Expr:
        """A bool; `how` is one of COMPARISONS."""
        return self.make(how, "bool", a, b)

    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        """a where the bool `condition` holds, else b."""
        return self.make("select", a.dtype, condition, a, b)

    def shift(self, a: Expr, b: Expr, *, left: bool) -> Expr:
        """Integer a with its bits moved by b, which is from 0 to the bits of its word less 1."""
        return self.make("shl" if left else "shr", a.dtype, a, b)

    def cast(self, x: Expr, dtype: str) -> Expr:
        """Conversion; floats saturate, and anything but 0 is True."""
        return x if x.dtype == dtype else self.make("cast", dtype, x)

    def gelu(self, x: Expr) -> Expr:
        """x/2 * (1 + erf(x/sqrt 2))."""
        half = self.mul(x, self.const(0.5))
        return self.mul(half, self.add(self.erf(self.mul(x, self.const(sqrt(0.5)))), self.const(1)))

    def substitute(self, roots: Sequence[Expr], inputs: Mapping[Expr, Expr]) -> list[Expr]:
        """`roots` with inputs replaced by other expressions; other inputs stay."""
        done = dict(inputs)
        return [done.get(root) or self._substituted(root, done) for root in roots]

    def _substituted(self, x: Expr, done: dict[Expr, Expr]) -> Expr:
        if not x.args:
            return x
        args = tuple([done.get(a) or self._substituted(a, done) for a in x.args])
        new = done[x] = x if args == x.args else self.make(x.op, x.dtype, *args, imm=x.imm)
        return new


def walk(roots: Sequence[Expr], known: Collection[int] = ()) -> Iterator[Expr]:
    """Every expression in `roots` once; expressions whose id is `known` are skipped with their arguments."""
    seen = set(known)
    stack = list(roots)
    while stack:
        x = stack.pop()
        if id(x) not in seen:
            seen.add(id(x))
            yield x
            stack.extend(x.args)


def count_uses(roots: Sequence[Expr]) -> dict[Expr, int]:
    """Count how often each expression is an operand or a result."""
    return Counter(chain(roots, *(x.args for x in walk(roots))))


def inputs_of(roots: Sequence[Expr]) -> list[int]:
    """Numbers of the inputs that `roots` read, sorted."""
    return sorted(int(x.imm or 0) for x in walk(roots) if x.op == "input")


def size_of(roots: Sequence[Expr], known: Collection[int] = ()) -> int:
    """Number of distinct operations; `known` as in `walk`."""
    return sum(x.op not in ("input", "const") for x in walk(roots, known))


def text_of(roots: Sequence[Expr], inputs: Sequence[str] | None = None) -> str:
    """Expressions as text; shared ones get a name. Input k is `inputs[k]`, or xk."""
    uses = count_uses(roots)
    names: dict[Expr, str] = {}
    lines: list[str] = []

    def walk(x: Expr) -> str:
        if x.op == "input":
            return inputs[int(x.imm or 0)] if inputs is not None else f"x{x.imm}"
        if x.op == "const":
            return f"{x.imm:g}"
        if x not in names:
            text = f"{x.op}({', '.join(map(walk, x.args))})"
            if uses[x] == 1:
                return text
            names[x] = f"t{len(names)}"
            lines.append(f"{names[x]} = {text}")
        return names[x]

    results = [walk(r) for r in roots]
    return "; ".join(lines + results)
