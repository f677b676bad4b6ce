"""Trigonometric and hyperbolic functions and their inverses.

Inverses of the circular functions are the polynomials of Cephes (asinf.c, atanf.c), within 2 units in the last place.
"""

from __future__ import annotations

from math import pi, tan

from trainweb.ir.expr import Emitter, Expr
from trainweb.ops.frame.pointwise import function

ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)


def polynomial(e: Emitter, x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Horner's rule, highest power first."""
    result = e.like(x, coefficients[0])
    for c in coefficients[1:]:
        result = e.add(e.mul(result, x), e.like(x, c))
    return result


def with_sign(e: Emitter, magnitude: Expr, x: Expr) -> Expr:
    """`magnitude` with the sign of x."""
    return e.select(e.compare("lt", x, e.like(x, 0)), e.neg(magnitude), magnitude)


def arcsine(e: Emitter, x: Expr) -> Expr:
    """asin(x): a polynomial up to 1/2, above it pi/2 - 2 asin(sqrt((1 - x) / 2))."""
    a, half = e.abs(x), e.like(x, 0.5)
    outer = e.compare("gt", a, half)
    z = e.select(outer, e.mul(half, e.sub(e.like(x, 1), a)), e.mul(a, a))
    root = e.select(outer, e.sqrt(z), a)
    value = e.add(e.mul(e.mul(polynomial(e, z, ASIN), z), root), root)
    return with_sign(e, e.select(outer, e.sub(e.like(x, pi / 2), e.add(value, value)), value), x)


def arccosine(e: Emitter, x: Expr) -> Expr:
    """acos(x). Near 1 the difference pi/2 - asin(x) would cancel: 2 asin(sqrt((1 - x) / 2)) does not."""
    half = e.like(x, 0.5)
    near = arcsine(e, e.sqrt(e.mul(half, e.sub(e.like(x, 1), x))))
    return e.select(e.compare("gt", x, half), e.add(near, near), e.sub(e.like(x, pi / 2), arcsine(e, x)))


def arctangent(e: Emitter, x: Expr) -> Expr:
    """atan(a) = pi/4 + atan((a-1)/(a+1)) = pi/2 - atan(1/a)."""
    a, one = e.abs(x), e.like(x, 1)
    large = e.compare("gt", a, e.like(x, tan(3 * pi / 8)))
    middle = e.compare("gt", a, e.like(x, tan(pi / 8)))
    inner = e.select(middle, e.div(e.sub(a, one), e.add(a, one)), a)
    inner = e.select(large, e.neg(e.div(one, a)), inner)
    base = e.select(middle, e.like(x, pi / 4), e.like(x, 0))
    base = e.select(large, e.like(x, pi / 2), base)
    z = e.mul(inner, inner)
    rest = e.add(e.mul(e.mul(polynomial(e, z, ATAN), z), inner), inner)
    return with_sign(e, e.add(base, rest), x)


def hyperbolic_sine(e: Emitter, x: Expr) -> Expr:
    """sinh(x), from exp(|x|) - 1."""
    m = e.math("expm1", e.abs(x))
    half = e.mul(e.like(x, 0.5), e.add(m, e.div(m, e.add(m, e.like(x, 1)))))
    return with_sign(e, half, x)


def hyperbolic_arcsine(e: Emitter, x: Expr) -> Expr:
    """log(a + sqrt(a^2 + 1)) with the sign of x, without cancellation near 0."""
    a, one = e.abs(x), e.like(x, 1)
    square = e.mul(a, a)
    return with_sign(e, e.math("log1p", e.add(a, e.div(square, e.add(one, e.sqrt(e.add(square, one)))))), x)


def hyperbolic_arccosine(e: Emitter, x: Expr) -> Expr:
    """log(x + sqrt(x^2 - 1)), without cancellation near 1."""
    t = e.sub(x, e.like(x, 1))
    return e.math("log1p", e.add(t, e.sqrt(e.mul(t, e.add(t, e.like(x, 2))))))


def hyperbolic_arctangent(e: Emitter, x: Expr) -> Expr:
    """log((1 + a) / (1 - a)) / 2 with the sign of x."""
    a, one = e.abs(x), e.like(x, 1)
    return with_sign(e, e.mul(e.like(x, 0.5), e.math("log1p", e.div(e.add(a, a), e.sub(one, a)))), x)


Sin = function("Sin", (7, 22), "Sine", lambda e, x: e.math("sin", x), lambda x, y, dy: dy * x.op("Cos"))
Cos = function("Cos", (7, 22), "Cosine", lambda e, x: e.math("cos", x), lambda x, y, dy: -(dy * x.op("Sin")))
Tan = function(
    "Tan",
    (7, 22),
    "Tangent",
    lambda e, x: e.div(e.math("sin", x), e.math("cos", x)),
    lambda x, y, dy: dy * (y * y + 1.0),
)
Asin = function("Asin", (7, 22), "Inverse sine", arcsine, lambda x, y, dy: dy / (1 - x * x).op("Sqrt"))
Acos = function("Acos", (7, 22), "Inverse cosine", arccosine, lambda x, y, dy: -(dy / (1 - x * x).op("Sqrt")))
Atan = function("Atan", (7, 22), "Inverse tangent", arctangent, lambda x, y, dy: dy / (x * x + 1.0))
Sinh = function("Sinh", (9, 22), "Hyperbolic sine", hyperbolic_sine, lambda x, y, dy: dy * x.op("Cosh"))
Cosh = function(
    "Cosh",
    (9, 22),
    "Hyperbolic cosine",
    lambda e, x: e.mul(e.like(x, 0.5), e.add(e.exp(x), e.exp(e.neg(x)))),
    lambda x, y, dy: dy * x.op("Sinh"),
)
Asinh = function(
    "Asinh",
    (9, 22),
    "Inverse hyperbolic sine",
    hyperbolic_arcsine,
    lambda x, y, dy: dy / (x * x + 1.0).op("Sqrt"),
)
Acosh = function(
    "Acosh",
    (9, 22),
    "Inverse hyperbolic cosine",
    hyperbolic_arccosine,
    lambda x, y, dy: dy / (x * x - 1.0).op("Sqrt"),
)
Atanh = function(
    "Atanh", (9, 22), "Inverse hyperbolic tangent", hyperbolic_arctangent, lambda x, y, dy: dy / (1 - x * x)
)
