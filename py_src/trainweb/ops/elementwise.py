"""Arithmetic, element by element with NumPy broadcasting."""

from __future__ import annotations

from functools import reduce
from math import inf, pi, sqrt
from typing import Any, ClassVar

from trainweb.errors import LimitError
from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.calls import is_bounded_by_numbers
from trainweb.model.graph import MS
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import FLOATS, INTS, MANY, Float, Int, Names
from trainweb.ops.frame.pointwise import Pointwise, Unary, function, reduced
from trainweb.ops.frame.symbolic import Var, names, when
from trainweb.ops.squares import is_of_squares

NUMBERS = (*FLOATS, *INTS)


class Binary(Pointwise, abstract=True):
    """An operator of two tensors of one dtype."""

    dtypes: ClassVar[tuple[str, ...]] = NUMBERS

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if a.dtype != b.dtype:
            raise self.error(f"the inputs are {a.dtype} and {b.dtype}, not of one dtype.")
        return super().infer(a, b)


# ---- arithmetic


class Add(Binary):
    """a + b. https://onnx.ai/onnx/operators/onnx__Add.html"""

    versions = (7, 13, 14)
    differentiable = (0, 1)
    instruction = "add"

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        dy, *_ = Var.of(g, douts[0])
        return reduced(g, ins, outs[0], lambda: dy, lambda: dy)


class Sub(Binary):
    """a - b. https://onnx.ai/onnx/operators/onnx__Sub.html"""

    versions = (7, 13, 14)
    differentiable = (0, 1)
    instruction = "sub"

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        dy, *_ = Var.of(g, douts[0])
        return reduced(g, ins, outs[0], lambda: dy, lambda: -dy)


class Mul(Binary):
    """a * b. https://onnx.ai/onnx/operators/onnx__Mul.html"""

    versions = (7, 13, 14)
    differentiable = (0, 1)
    instruction = "mul"

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        a, b, dy = Var.of(g, *ins, douts[0])
        return reduced(g, ins, outs[0], lambda: dy * b, lambda: dy * a)


class Div(Binary):
    """a / b; integers truncate towards zero. https://onnx.ai/onnx/operators/onnx__Div.html"""

    versions = (7, 13, 14)
    differentiable = (0, 1)
    instruction = "div"

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        a, b, dy = Var.of(g, *ins, douts[0])
        if not g.wants(ins[1]):
            return reduced(g, ins, outs[0], lambda: dy / b)
        da, db = g.ops("DivGrad", [dy.name, a.name, b.name], 2, domain=MS)
        return [da if g.wants(ins[0]) else None, db]


class DivGrad(Pointwise):
    """Gradients dA = dY / B and dB = -dY A / B^2 of Div, each summed to its input's shape."""

    domain = MS
    n_outputs = 2
    dtypes = ("float32",)

    def infer(self, dy: TensorType, a: TensorType, b: TensorType) -> Any:
        self.need_shape("dY", dy, super().infer(a, b).shape)
        return TensorType("float32", a.shape), TensorType("float32", b.shape)

    def evaluate(self, *inputs: TensorType | None) -> None:
        return None

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf | None) -> None:
        from trainweb.ops.reduce import sum_to

        dy, x, y = (buf for buf in ins if buf is not None)
        da, db = [*outs, None][:2]
        full = [o and (o if o.shape == dy.shape else b.temp("float32", dy.shape)) for o in (da, db)]
        if full[0]:
            b.elementwise([full[0]], [dy, y], lambda e, d, v: e.div(d, v))
        if full[1]:
            b.elementwise(
                [full[1]],
                [dy, x, y],
                lambda e, d, u, v: e.neg(e.div(e.mul(d, u), e.mul(v, v))),
            )
        for out, source in zip((da, db), full, strict=True):
            if out is not None and source is not None and source is not out:
                sum_to(b, out, source)


class Pow(Pointwise):
    """a ** b in the dtype of a; at 0 its derivative is like Sqrt's. https://onnx.ai/onnx/operators/onnx__Pow.html"""

    versions = (7, 12, 13, 15)
    differentiable = (0, 1)
    dtypes = NUMBERS

    def compute(self, e: Emitter, a: Expr, b: Expr) -> Expr:
        if a.dtype == "float32" or b.op == "const":
            return e.pow(a, e.cast(b, a.dtype) if b.op != "const" else e.like(a, b.imm or 0))
        # Exact as far as float32 is: integers up to 2^24.
        return e.cast(e.round(e.pow(e.cast(a, "float32"), e.cast(b, "float32"))), a.dtype)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        x, y, dy = Var.of(g, ins[0], outs[0], douts[0])
        constant = g.known(ins[1])
        exponent = Var(g, ins[1], g.dtype(ins[1])).cast(x.dtype)

        def base() -> Var:
            dx = slope()
            return x.equal(0.0).where(dx.lift(0.0), dx) if is_of_squares(g, ins[0]) else dx

        def slope() -> Var:
            if constant is None or constant.value is None or constant.size != 1:
                dx = dy * exponent * x ** (exponent - 1.0)
                return exponent.equal(0.0).where(dx.lift(0.0), dx)
            n = float(constant.value[0])
            simple = {0.0: lambda: dy * 0.0, 1.0: lambda: dy, 2.0: lambda: dy * 2.0 * x}
            return simple[n]() if n in simple else dy * n * x ** (n - 1)

        def power() -> Var:
            logarithm = (x > 0.0).where(x.op("Log"), 0.0)
            return dy * y * logarithm

        return reduced(g, ins, outs[0], base, power)


class Mod(Binary):
    """Remainder with the sign of the divisor, or of the dividend (fmod = 1). https://onnx.ai/onnx/operators/onnx__Mod.html"""

    versions = (10, 13, 28)
    attrs = {"fmod": Int(0)}
    differentiable = (0, 1)

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        result = super().infer(a, b)
        if result.dtype in FLOATS and not self.fmod and self.opset < 28:
            raise self.error("floats need fmod = 1 before opset 28.")
        return result

    def compute(self, e: Emitter, a: Expr, b: Expr) -> Expr:
        rest = self._float(e, a, b) if a.dtype in FLOATS else e.sub(a, e.mul(e.div(a, b), b))
        if self.fmod:
            return rest
        zero = e.like(a, 0)
        differs = e.xor(e.compare("lt", rest, zero), e.compare("lt", b, zero))
        return e.select(e.and_(e.compare("ne", rest, zero), differs), e.add(rest, b), rest)

    def _float(self, e: Emitter, a: Expr, b: Expr) -> Expr:
        # In double precision the product is exact up to quotients of 2^29.
        wide, divisor = e.abs(e.cast(a, "float64")), e.abs(e.cast(b, "float64"))
        rest = e.sub(wide, e.mul(e.floor(e.div(wide, divisor)), divisor))
        zero = e.like(rest, 0)
        rest = e.select(e.compare("lt", rest, zero), e.add(rest, divisor), rest)
        # Of a finite number by an infinite one it is the number itself.
        endless = e.compare("eq", divisor, e.like(divisor, inf))
        rest = e.select(e.and_(endless, e.compare("lt", wide, divisor)), wide, rest)
        rest = e.cast(rest, a.dtype)
        return e.select(e.compare("lt", a, e.like(a, 0)), e.neg(rest), rest)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        a, b, y, dy = Var.of(g, *ins, outs[0], douts[0])
        return reduced(g, ins, outs[0], lambda: dy, lambda: dy * ((y - a) / b))


def absolute(e: Emitter, x: Expr) -> Expr:
    """|x|, which is x where there is no sign."""
    return x if x.dtype.startswith("u") else e.abs(x)


def sign(e: Emitter, x: Expr) -> Expr:
    """-1, 0 or 1; NaN stays."""
    zero = e.like(x, 0)
    rest = x if x.dtype.startswith("u") else e.select(e.compare("lt", x, zero), e.like(x, -1), x)
    return e.select(e.compare("gt", x, zero), e.like(x, 1), rest)


SIGNED = (*FLOATS, "int8", "int16", "int32", "int64")
Neg = function("Neg", (6, 13), "-x", lambda e, x: e.neg(x), lambda x, y, dy: -dy, SIGNED)
Abs = function("Abs", (6, 13), "|x|", absolute, lambda x, y, dy: dy * x.op("Sign"), NUMBERS)
Sign = function("Sign", (9, 13), "-1, 0 or 1; NaN stays", sign, None, NUMBERS)
Floor = function("Floor", (6, 13), "Largest integer not above x", lambda e, x: e.floor(x), None, FLOATS)
Ceil = function("Ceil", (6, 13), "Smallest integer not below x", lambda e, x: e.ceil(x), None, FLOATS)
Round = function("Round", (11, 22), "Nearest integer, halves to even", lambda e, x: e.round(x), None, FLOATS)
Reciprocal = function(
    "Reciprocal", (6, 13), "1 / x", lambda e, x: e.div(e.like(x, 1), x), lambda x, y, dy: -dy * (y * y), FLOATS
)
Exp = function("Exp", (6, 13), "e ** x", lambda e, x: e.exp(x), lambda x, y, dy: dy * y)
Log = function("Log", (6, 13), "Natural logarithm", lambda e, x: e.log(x), lambda x, y, dy: dy / x)
Erf = function(
    "Erf",
    (9, 13),
    "Error function",
    lambda e, x: e.erf(x),
    lambda x, y, dy: dy * (-(x * x)).op("Exp") * (2 / sqrt(pi)),
)


class Sqrt(Unary):
    """Square root. https://onnx.ai/onnx/operators/onnx__Sqrt.html

    Its derivative at 0 is infinite, but 0 where x is a sum of squares, as in a deviation, a norm or a distance.
    """

    versions = (6, 13)
    dtypes = FLOATS
    instruction = "sqrt"

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        y, dy = Var.of(g, outs[0], douts[0])
        dx = dy * 0.5 / y
        return names(y.equal(0.0).where(dx.lift(0.0), dx) if is_of_squares(g, ins[0]) else dx)


# ---- variadic


MOST_TERMS = 256
"""Inputs of one node: they become one expression, whose depth Python walks by calling itself."""


class Variadic(Pointwise, abstract=True):
    """One or more tensors of one dtype."""

    max_inputs = MANY
    differentiable = range(MANY)
    dtypes: ClassVar[tuple[str, ...]] = NUMBERS

    def infer(self, *inputs: TensorType | None) -> TensorType:
        if len(inputs) > MOST_TERMS:
            raise LimitError(f"{self.node} has {len(inputs)} inputs; at most {MOST_TERMS} are supported.")
        if None in inputs or len({t.dtype for t in inputs if t}) > 1:
            raise self.error("the inputs are not of one dtype, or one is absent.")
        return super().infer(*inputs)

    def compute(self, e: Emitter, *xs: Expr) -> Expr:
        return reduce(getattr(e, self.instruction), xs)


class Sum(Variadic):
    """Sum of all inputs. https://onnx.ai/onnx/operators/onnx__Sum.html"""

    versions = (6, 8, 13)
    dtypes = FLOATS
    instruction = "add"

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        dy, *_ = Var.of(g, douts[0])
        return reduced(g, ins, outs[0], *[lambda: dy] * len(ins))


class Mean(Sum):
    """Mean of all inputs. https://onnx.ai/onnx/operators/onnx__Mean.html"""

    def compute(self, e: Emitter, *xs: Expr) -> Expr:
        return e.mul(super().compute(e, *xs), e.like(xs[0], 1 / len(xs)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        dy, *_ = Var.of(g, douts[0])
        share = dy * (1 / len(ins)) if any(map(g.wants, ins)) else dy
        return reduced(g, ins, outs[0], *[lambda: share] * len(ins))


class Extremum(Variadic, abstract=True):
    """Largest or smallest; inputs that tie share the gradient equally."""

    versions = (6, 8, 12, 13)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        if len(ins) == 1:
            return [douts[0]]
        y, dy = Var.of(g, outs[0], douts[0])
        equal = [Var(g, x, y.dtype).equal(y) for x in ins]
        if is_bounded_by_numbers(self.node):
            return reduced(g, ins, outs[0], lambda: equal[1].where(dy.lift(0.0), dy))
        first, *others = (mask.cast(y.dtype) for mask in equal)
        share = dy / first.op("Sum", *others)
        return reduced(g, ins, outs[0], *[lambda mask=mask: mask.where(share, 0.0) for mask in equal])


class Max(Extremum):
    """Largest of all inputs. https://onnx.ai/onnx/operators/onnx__Max.html"""

    instruction = "max"


class Min(Extremum):
    """Smallest of all inputs. https://onnx.ai/onnx/operators/onnx__Min.html"""

    instruction = "min"


class Clip(Pointwise):
    """x within [min, max]; either may be absent. https://onnx.ai/onnx/operators/onnx__Clip.html

    As in PyTorch, the derivative is 0 at a bound that is a constant, and shared equally with one that is computed.
    """

    versions = (6, 11, 12, 13)
    attrs = {"min": Float(), "max": Float()}
    max_inputs = 3
    differentiable = (0, 1, 2)
    dtypes = NUMBERS

    def infer(self, x: TensorType, *bounds: TensorType | None) -> TensorType:
        for bound in bounds:
            if bound is not None and (bound.rank > 1 or bound.dtype != x.dtype or not equal(bound.size, 1)):
                raise self.error(
                    f"a bound has shape {list(bound.shape)} and dtype {bound.dtype}; it must be a {x.dtype} scalar."
                )
        super().infer(x)
        return TensorType(x.dtype, x.shape)

    def is_rectifier(self) -> bool:
        """ReLU6 is one."""
        bound = self.types[self.node.inputs[1]].value if self._has(1) and self.node.inputs[1] in self.types else None
        return tuple(bound or ()) == (0,) or (not self._has(1) and self.min == 0)

    def _has(self, index: int) -> bool:
        return len(self.node.inputs) > index and bool(self.node.inputs[index])

    def compute(self, e: Emitter, x: Expr, *bounds: Expr) -> Expr:
        rest = iter(bounds)
        low = next(rest) if self._has(1) else None if self.min is None else e.like(x, self.min)
        high = next(rest) if self._has(2) else None if self.max is None else e.like(x, self.max)
        x = x if low is None else e.max(x, low)
        return x if high is None else e.min(x, high)

    def lower(self, b: Builder, outs: list[Buf], *ins: Buf | None) -> None:
        x, *bounds = (buf for buf in ins if buf is not None)
        b.elementwise(outs[:1], [x, *(bound.view(()) for bound in bounds)], self.compute)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        x, dy = Var.of(g, ins[0], douts[0])
        low = Var(g, ins[1], x.dtype) if self._has(1) else self.min
        high = Var(g, ins[2], x.dtype) if self._has(2) else self.max
        if low is None and high is None:
            return [douts[0]]
        if not all(_is_constant(g, name) for name in filter(None, ins[1:])):
            return self._shared(g, ins, x, dy, (low, high))
        inside = [x > low] if low is not None else []
        inside += [x < high] if high is not None else []
        mask = inside[0] if len(inside) == 1 else inside[0].and_(inside[1])
        return names(mask.where(dy, 0.0), None, None)[: len(ins)]

    def _shared(
        self, g: GradientBuilder, ins: list[str], x: Var, dy: Var, bounds: tuple[Var | float | None, Var | float | None]
    ) -> Names:
        """Gradients where a bound is computed or learned: half of it goes to a bound that x equals."""
        low, high = (x.lift(bound) if bound is not None else None for bound in bounds)
        crossed = low > high if low is not None and high is not None else None
        shares: list[Var | None] = [None, None]
        for k, (bound, beyond) in enumerate(((low, "Less"), (high, "Greater"))):
            if bound is None:
                continue
            past, at = x.op(beyond, bound, dtype="bool"), x.equal(bound)
            if low is not None and high is not None and crossed is not None:
                # Of bounds that crossed the upper one counts; within equal ones x is itself.
                past = past.or_(crossed) if k else past.and_(crossed.not_())
                at = at.and_(low < high)
            shares[k] = past.cast(x.dtype) + at.cast(x.dtype) * 0.5
        rest = x.lift(1.0)
        gradients: list[str | None] = [None, None, None]
        for k, share in enumerate(shares, 1):
            rest = rest - share if share is not None else rest
            if share is not None and when(g, ins, k):
                total = g.reduce_sum((dy * share).name, None, keepdims=False)
                gradients[k] = g.reshape_like(total, ins[k]) if g.rank(ins[k]) else total
        gradients[0] = (dy * rest).name
        return gradients[: len(ins)]


def _is_constant(g: GradientBuilder, name: str) -> bool:
    """Return whether a tensor is a constant, perhaps of another type."""
    node = g.producer(name)
    if node is not None and node.op_type in ("Cast", "CastLike"):
        return _is_constant(g, node.inputs[0])
    return g.known(name) is not None


class Scale(Pointwise):
    """x * scale, or x / scale; scale is one number of any dtype."""

    domain = MS
    attrs = {"scale_down": Int(0)}
    differentiable = (0,)

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        if not equal(scale.size, 1):
            raise self.error(f"scale has shape {list(scale.shape)}; it must be one number.")
        self.need_float32(x)
        return TensorType(x.dtype, x.shape)

    def compute(self, e: Emitter, x: Expr, scale: Expr) -> Expr:
        factor = e.cast(scale, x.dtype)
        return e.div(x, factor) if self.scale_down else e.mul(x, factor)

    def lower(self, b: Builder, outs: list[Buf], x: Buf, scale: Buf) -> None:
        b.elementwise(outs[:1], [x, scale.view(())], self.compute)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        return [g.op("Scale", [douts[0], ins[1]], domain=MS, scale_down=self.scale_down), None]
