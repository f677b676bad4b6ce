"""Activation functions, and the gradient operators ONNX Runtime training has for some of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import pi, sqrt
from typing import Any

from trainweb.ir.dims import equal_shapes
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS, Node
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Float, Names, Str
from trainweb.ops.frame.pointwise import GradientOp, Pointwise, Unary, declare, function, reduced
from trainweb.ops.frame.symbolic import Var

SQRT_2_OVER_PI = sqrt(2 / pi)
CUBIC = 0.044715
"""Factor of x^3 in the tanh approximation of Gelu (Hendrycks and Gimpel 2016)."""


class Relu(Unary):
    """max(x, 0). https://onnx.ai/onnx/operators/onnx__Relu.html"""

    versions = (6, 13, 14)
    dtypes = ("float32", "float64", "int8", "int16", "int32", "int64")

    def is_rectifier(self) -> bool:
        return True

    def compute(self, e: Emitter, x: Expr) -> Expr:
        return e.pmax(x, e.like(x, 0))

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        return dy.op("ReluGrad", y, domain=MS)


class ReluGrad(GradientOp):
    """dY where the second input (X or Y) is positive, else 0."""

    def rewire(self, consumers: Mapping[str, list[Node]], known: Mapping[str, Any]) -> list[str]:
        # The gradient needs only the sign of X, which Y has, too: X need not be kept.
        dy, x = self.node.inputs
        for other in consumers.get(x, ()):
            if other.op_type == "Relu" and other.outputs[0] in known:
                return [dy, other.outputs[0]]
        return [dy, x]

    def compute(self, e: Emitter, dy: Expr, x: Expr) -> Expr:
        return e.select(e.compare("gt", x, e.like(x, 0)), dy, e.like(x, 0))


class LeakyRelu(Unary):
    """x where positive, else alpha x. https://onnx.ai/onnx/operators/onnx__LeakyRelu.html"""

    versions = (6, 16)
    attrs = {"alpha": Float(0.01)}

    def compute(self, e: Emitter, x: Expr) -> Expr:
        return e.select(e.compare("lt", x, e.like(x, 0)), e.mul(x, e.like(x, self.alpha)), x)

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        if self.alpha < 0:  # the sign of Y does not determine that of X
            return (x > 0.0).where(dy, dy * self.alpha)
        return dy.op("LeakyReluGrad", y, domain=MS, alpha=self.alpha)


class LeakyReluGrad(GradientOp):
    """dY where Y is positive, else alpha dY."""

    attrs = {"alpha": Float(0.01)}

    def compute(self, e: Emitter, dy: Expr, y: Expr) -> Expr:
        return e.select(e.compare("gt", y, e.like(y, 0)), dy, e.mul(dy, e.like(y, self.alpha)))


Sigmoid = function(
    "Sigmoid",
    (6, 13),
    "1 / (1 + exp(-x))",
    lambda e, x: e.sigmoid(x),
    lambda x, y, dy: dy.op("SigmoidGrad", y, domain=MS),
)
Tanh = function(
    "Tanh", (6, 13), "Hyperbolic tangent", lambda e, x: e.tanh(x), lambda x, y, dy: dy.op("TanhGrad", y, domain=MS)
)


SigmoidGrad = declare(
    GradientOp, "SigmoidGrad", (1,), "dY Y (1 - Y)", lambda e, dy, y: e.mul(dy, e.mul(y, e.sub(e.like(y, 1), y)))
)
TanhGrad = declare(
    GradientOp, "TanhGrad", (1,), "dY (1 - Y^2)", lambda e, dy, y: e.mul(dy, e.sub(e.like(y, 1), e.mul(y, y)))
)


# ---- Gelu and its approximations


def gelu_slope(e: Emitter, x: Expr) -> Expr:
    """cdf(x) + x pdf(x) of the normal distribution: the derivative of Gelu."""
    one, half = e.like(x, 1), e.like(x, 0.5)
    cdf = e.mul(half, e.add(one, e.erf(e.mul(x, e.like(x, sqrt(0.5))))))
    density = e.exp(e.mul(e.mul(x, x), e.like(x, -0.5)))
    return e.add(cdf, e.mul(e.mul(x, e.like(x, 1 / sqrt(2 * pi))), density))


def fast_gelu_sigmoid(e: Emitter, x: Expr) -> Expr:
    """(1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), which is sigmoid(2u)."""
    cube = e.mul(e.mul(x, x), e.mul(x, e.like(x, 2 * SQRT_2_OVER_PI * CUBIC)))
    return e.sigmoid(e.add(e.mul(x, e.like(x, 2 * SQRT_2_OVER_PI)), cube))


def fast_gelu_slope(e: Emitter, x: Expr) -> Expr:
    """Derivative of the tanh approximation: s + x s (1 - s) 2u'."""
    s = fast_gelu_sigmoid(e, x)
    inner = e.add(e.like(x, 2 * SQRT_2_OVER_PI), e.mul(e.mul(x, x), e.like(x, 6 * SQRT_2_OVER_PI * CUBIC)))
    return e.add(s, e.mul(e.mul(x, inner), e.mul(s, e.sub(e.like(x, 1), s))))


class Gelu(Unary):
    """x cdf(x), or its tanh approximation. https://onnx.ai/onnx/operators/onnx__Gelu.html"""

    versions = (20,)
    attrs = {"approximate": Str("none", among=("none", "tanh"))}

    def compute(self, e: Emitter, x: Expr) -> Expr:
        return e.gelu(x) if self.approximate == "none" else e.mul(x, fast_gelu_sigmoid(e, x))

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        return dy.op("GeluGrad" if self.approximate == "none" else "FastGeluGrad", x, domain=MS)


class MicrosoftGelu(Gelu):
    """x cdf(x), before it came into ai.onnx."""

    name = "Gelu"
    domain = MS
    versions = (1,)
    attrs = {}
    approximate = "none"


class GeluGrad(GradientOp):
    """dY times the derivative of Gelu at X."""

    def compute(self, e: Emitter, dy: Expr, x: Expr) -> Expr:
        return e.mul(dy, gelu_slope(e, x))


class BiasActivation(Pointwise, abstract=True):
    """A function of x + bias, the bias along the last axis; it may be absent where `max_inputs` allows."""

    domain = MS
    max_inputs = 2
    dtypes = ("float32",)
    differentiable = (0, 1)
    gradient_of_sum: str
    gradient_with_bias: str

    def infer(self, *inputs: TensorType | None) -> TensorType:
        x, *bias = (t for t in inputs if t is not None)
        for t in bias:
            self.need_shape("the bias", t, x.shape[-1:])
        return super().infer(*inputs)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        biased = len(ins) > 1 and bool(ins[1])
        inputs = [douts[0], ins[0], *([ins[1]] if biased else [])]
        dx = g.op(self.gradient_with_bias if biased else self.gradient_of_sum, inputs, domain=MS)
        spread = Var(g, dx, g.dtype(ins[0]))
        return reduced(g, ins, outs[0], lambda: spread, lambda: spread)


class BiasGelu(BiasActivation):
    """Gelu of x + bias."""

    min_inputs = 2
    gradient_with_bias = gradient_of_sum = "BiasGeluGrad_dX"

    def compute(self, e: Emitter, x: Expr, *bias: Expr) -> Expr:
        return e.gelu(e.add(x, bias[0]))


class FastGelu(BiasActivation):
    """Tanh approximation of Gelu of x + bias; the bias may be absent."""

    gradient_with_bias, gradient_of_sum = "BiasFastGeluGrad_dX", "FastGeluGrad"

    def compute(self, e: Emitter, x: Expr, *bias: Expr) -> Expr:
        x = e.add(x, bias[0]) if bias else x
        return e.mul(x, fast_gelu_sigmoid(e, x))


class FastGeluGrad(GradientOp):
    """dY times the derivative of FastGelu at X."""

    def compute(self, e: Emitter, dy: Expr, x: Expr) -> Expr:
        return e.mul(dy, fast_gelu_slope(e, x))


class BiasGeluGrad_dX(GeluGrad):
    """dY times the derivative of Gelu at X + B."""

    def compute(self, e: Emitter, dy: Expr, x: Expr, b: Expr) -> Expr:
        return super().compute(e, dy, e.add(x, b))


class BiasFastGeluGrad_dX(FastGeluGrad):
    """dY times the derivative of FastGelu at X + B."""

    def compute(self, e: Emitter, dy: Expr, x: Expr, b: Expr) -> Expr:
        return super().compute(e, dy, e.add(x, b))


class QuickGelu(Unary):
    """x sigmoid(alpha x)."""

    domain = MS
    attrs = {"alpha": Float(1.702)}

    def compute(self, e: Emitter, x: Expr) -> Expr:
        return e.mul(x, e.sigmoid(e.mul(x, e.like(x, self.alpha))))

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        return dy.op("QuickGeluGrad", x, domain=MS, alpha=self.alpha)


class QuickGeluGrad(GradientOp):
    """dY (s + alpha X s (1 - s)) with s = sigmoid(alpha X)."""

    attrs = {"alpha": Float(1.702)}

    def compute(self, e: Emitter, dy: Expr, x: Expr) -> Expr:
        scaled = e.mul(x, e.like(x, self.alpha))
        s = e.sigmoid(scaled)
        return e.mul(dy, e.add(s, e.mul(scaled, e.mul(s, e.sub(e.like(x, 1), s)))))


# ---- activations without an operator for their gradient: it is composed of ai.onnx operators


class Swish(QuickGelu):
    """x sigmoid(alpha x). https://onnx.ai/onnx/operators/onnx__Swish.html"""

    domain = ""
    versions = (24,)
    attrs = {"alpha": Float(1.0)}


class Elu(Unary):
    """x where positive, else alpha (exp(x) - 1). https://onnx.ai/onnx/operators/onnx__Elu.html"""

    versions = (6, 22)
    attrs = {"alpha": Float(1.0)}

    def compute(self, e: Emitter, x: Expr) -> Expr:
        bent = e.mul(e.math("expm1", x), e.like(x, self.alpha))
        return e.select(e.compare("gt", x, e.like(x, 0)), x, bent)

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        return (x > 0.0).where(dy, dy * (y + self.alpha))


class Selu(Unary):
    """gamma (x where positive, else alpha (exp(x) - 1)). https://onnx.ai/onnx/operators/onnx__Selu.html"""

    versions = (6, 22)
    attrs = {"alpha": Float(1.67326319217681884765625), "gamma": Float(1.05070102214813232421875)}

    def compute(self, e: Emitter, x: Expr) -> Expr:
        bent = e.mul(e.math("expm1", x), e.like(x, self.alpha))
        return e.mul(e.like(x, self.gamma), e.select(e.compare("gt", x, e.like(x, 0)), x, bent))

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        return (x > 0.0).where(dy * self.gamma, dy * (y + self.alpha * self.gamma))


class Celu(Unary):
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)). https://onnx.ai/onnx/operators/onnx__Celu.html"""

    versions = (12, 28)
    attrs = {"alpha": Float(1.0)}

    def infer(self, *inputs: TensorType | None) -> TensorType:
        if self.alpha == 0:
            raise self.error("alpha is 0, by which x is divided.")
        return super().infer(*inputs)

    def compute(self, e: Emitter, x: Expr) -> Expr:
        bent = e.mul(e.math("expm1", e.mul(x, e.like(x, 1 / self.alpha))), e.like(x, self.alpha))
        return e.select(e.compare("gt", x, e.like(x, 0)), x, bent)

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        return (x > 0.0).where(dy, dy * (y * (1 / self.alpha) + 1.0))


def softplus(e: Emitter, x: Expr) -> Expr:
    """log(1 + exp(x)), without overflow."""
    return e.add(e.pmax(x, e.like(x, 0)), e.math("log1p", e.exp(e.neg(e.abs(x)))))


def softsign_gradient(x: Var, y: Var, dy: Var) -> Var:
    """dy / (1 + |x|)^2."""
    scale = x.op("Abs") + 1.0
    return dy / (scale * scale)


def mish_gradient(x: Var, y: Var, dy: Var) -> Var:
    """dy (t + x sigmoid(x) (1 - t^2)) with t = tanh(softplus(x))."""
    t = x.op("Softplus").op("Tanh")
    return dy * (t + x * x.op("Sigmoid") * (1 - t * t))


Softplus = function("Softplus", (1, 22), "log(1 + exp(x))", softplus, lambda x, y, dy: dy * x.op("Sigmoid"))
Softsign = function(
    "Softsign", (1, 22), "x / (1 + |x|)", lambda e, x: e.div(x, e.add(e.like(x, 1), e.abs(x))), softsign_gradient
)
Mish = function("Mish", (18, 22), "x tanh(softplus(x))", lambda e, x: e.mul(x, e.tanh(softplus(e, x))), mish_gradient)


class HardSigmoid(Unary):
    """max(0, min(1, alpha x + beta)). https://onnx.ai/onnx/operators/onnx__HardSigmoid.html"""

    versions = (6, 22)
    attrs = {"alpha": Float(0.2), "beta": Float(0.5)}

    def compute(self, e: Emitter, x: Expr) -> Expr:
        line = e.add(e.mul(x, e.like(x, self.alpha)), e.like(x, self.beta))
        return e.max(e.like(x, 0), e.min(e.like(x, 1), line))

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        inside = (y > 0.0).and_(y < 1.0)
        return inside.where(dy * self.alpha, 0.0)


class HardSwish(Unary):
    """x max(0, min(1, x / 6 + 1/2)). https://onnx.ai/onnx/operators/onnx__HardSwish.html"""

    versions = (14, 22)

    def compute(self, e: Emitter, x: Expr) -> Expr:
        line = e.add(e.mul(x, e.like(x, 1 / 6)), e.like(x, 0.5))
        return e.mul(x, e.max(e.like(x, 0), e.min(e.like(x, 1), line)))

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        inside = (x < 3.0).where(dy * (x * (1 / 3) + 0.5), dy)
        return (x > -3.0).where(inside, 0.0)


class ThresholdedRelu(Unary):
    """x where above alpha, else 0. https://onnx.ai/onnx/operators/onnx__ThresholdedRelu.html"""

    versions = (10, 22)
    attrs = {"alpha": Float(1.0)}

    def is_rectifier(self) -> bool:
        return True

    def compute(self, e: Emitter, x: Expr) -> Expr:
        return e.select(e.compare("gt", x, e.like(x, self.alpha)), x, e.like(x, 0))

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        return (x > float(self.alpha)).where(dy, 0.0)


class Shrink(Unary):
    """x moved towards 0 by bias beyond lambd, 0 within. https://onnx.ai/onnx/operators/onnx__Shrink.html"""

    versions = (9,)
    attrs = {"lambd": Float(0.5), "bias": Float(0.0)}

    def compute(self, e: Emitter, x: Expr) -> Expr:
        above = e.select(e.compare("gt", x, e.like(x, self.lambd)), e.sub(x, e.like(x, self.bias)), e.like(x, 0))
        below = e.compare("lt", x, e.like(x, -self.lambd))
        return e.select(below, e.add(x, e.like(x, self.bias)), above)

    def backward(self, x: Var, y: Var, dy: Var) -> Var:
        return (x > float(self.lambd)).or_(x < -float(self.lambd)).where(dy, 0.0)


class PRelu(Pointwise):
    """x where not negative, else slope x; its derivative at 0 is the slope. https://onnx.ai/onnx/operators/onnx__PRelu.html"""

    versions = (7, 9, 16)
    differentiable = (0, 1)
    dtypes = ("float32",)

    def infer(self, x: TensorType, slope: TensorType) -> TensorType:
        result = super().infer(x, slope)
        if not equal_shapes(result.shape, x.shape):
            raise self.error(f"the slope does not broadcast to x of shape {list(x.shape)}.")
        return result

    def compute(self, e: Emitter, x: Expr, slope: Expr) -> Expr:
        return e.select(e.compare("lt", x, e.like(x, 0)), e.mul(x, slope), x)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        x, slope, dy = Var.of(g, *ins, douts[0])
        positive = x > 0.0
        return reduced(
            g,
            ins,
            outs[0],
            lambda: positive.where(dy, dy * slope),
            lambda: (x < 0.0).where(dy * x, 0.0),
        )
