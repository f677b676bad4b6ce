"""Cases of trainweb.ops.activation."""

from math import pi, sqrt
from typing import Any

import numpy as np
from tests.ops.cases import CASES, REFERENCES, Bad, Cases, Sample, cases_of, reference
from tests.ops.cases.elementwise import erf64
from tests.ops.literals import f32, i64, literal

from trainweb.errors import UnsupportedError
from trainweb.ops import activation
from trainweb.ops.frame.pointwise import GradientOp, Unary

KINK = (Sample([(3, 4)], away_from=(0.0,)), Sample([(2, 3, 5)], away_from=(0.0,)))
"""Samples of functions whose slope jumps at 0."""

CASES[activation.Relu] = Cases(
    samples=(
        *KINK,
        Sample([i64([3, 0, -4])]),
        Sample([literal("int8", [3, 0, -128])]),
        Sample([literal("int16", [-7, 300])]),
    ),
    bad=(Bad([(2,), (2,)]),),
)

CASES[activation.ReluGrad] = Cases(samples=(*cases_of(GradientOp).samples, Sample([(3,), f32([1.0, 0.0, -2.0])])))

CASES[activation.LeakyRelu] = Cases(
    samples=(*KINK, Sample([(3, 4)], {"alpha": 0.3}, away_from=(0.0,))),
    bad=(Bad([(3,)], {"alpha": "steep"}),),
)

CASES[activation.LeakyReluGrad] = Cases(
    samples=(*cases_of(GradientOp).samples, Sample([(3,), f32([1.0, 0.0, -2.0])], {"alpha": 0.3}))
)

CASES[activation.Gelu] = Cases(
    samples=(*cases_of(Unary).samples, Sample([(3, 4)], {"approximate": "tanh"})),
    bad=(Bad([(3,)], {"approximate": "sin"}),),
)

CASES[activation.MicrosoftGelu] = Cases(
    samples=cases_of(Unary).samples,
    bad=(),
)

CASES[activation.BiasGelu] = Cases(
    samples=(Sample([(3, 4), (4,)]), Sample([(2, 3, 5), (5,)])),
    bad=(Bad([(3, 4), (3,)]), Bad([(3, 4)])),
)

CASES[activation.FastGelu] = Cases(
    samples=(Sample([(3, 4)]), Sample([(3, 4), (4,)]), Sample([(2, 3, 5), (5,)])),
    bad=(Bad([(3, 4), (3,)]),),
)

CASES[activation.BiasGeluGrad_dX] = CASES[activation.BiasFastGeluGrad_dX] = Cases(
    samples=(Sample([(3, 4), (3, 4), (4,)]),),
    bad=(Bad([(3, 4), (3, 4), (3,)]),),
)

CASES[activation.QuickGelu] = Cases(samples=(*cases_of(Unary).samples, Sample([(3, 4)], {"alpha": 0.5})))

CASES[activation.Elu] = Cases(
    samples=(*cases_of(Unary).samples[:1], Sample([(3, 4)], {"alpha": 0.4}, away_from=(0.0,)))
)

CASES[activation.Selu] = Cases(samples=(*KINK, Sample([(3, 4)], {"alpha": 0.4, "gamma": 2.0}, away_from=(0.0,))))

CASES[activation.Celu] = Cases(
    samples=(*cases_of(Unary).samples[:1], Sample([(3, 4)], {"alpha": 2.0})),
    bad=(Bad([(3, 4)], {"alpha": 0.0}),),
)

CASES[activation.HardSigmoid] = Cases(
    samples=(*cases_of(Unary).samples[:1], Sample([(3, 4)], {"alpha": 0.6, "beta": 0.3}, away_from=(-0.5, 0.7 / 0.6)))
)

CASES[activation.HardSwish] = Cases(
    samples=(Sample([(3, 4)], away_from=(-3.0, 3.0)), Sample([f32([-4.0, -2.0, 2.5, 3.5])]))
)

CASES[activation.ThresholdedRelu] = Cases(
    samples=(Sample([(3, 4)], away_from=(1.0,)), Sample([(3, 4)], {"alpha": 0.2}, away_from=(0.2,)))
)

CASES[activation.Shrink] = Cases(
    samples=(
        Sample([(3, 4)], away_from=(-0.5, 0.5)),
        Sample([(3, 4)], {"lambd": 0.3, "bias": 0.2}, away_from=(-0.3, 0.3)),
    ),
)

CASES[activation.PRelu] = Cases(
    samples=(
        Sample([(3, 4), (4,)], away_from=(0.0,)),
        Sample([(2, 3, 4, 4), (3, 1, 1)], away_from=(0.0,)),
        Sample([(3, 4), ()], away_from=(0.0,)),
        Sample([(3, 4), (3, 4)], away_from=(0.0,)),
    ),
    bad=(Bad([(3, 4), (3,)]), Bad([(4,), (3, 4)]), Bad([i64([1]), i64([1])], error=UnsupportedError)),
)


def sigmoid64(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gelu64(x: Any) -> Any:
    return 0.5 * x * (1 + erf64(x / sqrt(2)))


def gelu_slope64(x: Any) -> Any:
    """Derivative of Gelu in float64."""
    return 0.5 * (1 + erf64(x / sqrt(2))) + x * np.exp(-x * x / 2) / sqrt(2 * pi)


def fast_gelu64(x: Any) -> Any:
    """The tanh approximation of Gelu in float64."""
    return 0.5 * x * (1 + np.tanh(activation.SQRT_2_OVER_PI * (x + activation.CUBIC * x**3)))


def fast_gelu_slope64(x: Any) -> Any:
    """Its derivative in float64."""
    t = np.tanh(activation.SQRT_2_OVER_PI * (x + activation.CUBIC * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * activation.SQRT_2_OVER_PI * (1 + 3 * activation.CUBIC * x * x)


REFERENCES.update(
    {
        activation.ReluGrad: lambda op, dy, x: np.where(x > 0, dy, 0),
        activation.LeakyReluGrad: lambda op, dy, y: np.where(y > 0, dy, op.alpha * dy),
        activation.SigmoidGrad: lambda op, dy, y: dy * y * (1 - y),
        activation.TanhGrad: lambda op, dy, y: dy * (1 - y * y),
        activation.Gelu: lambda op, x: gelu64(x) if op.approximate == "none" else fast_gelu64(x),
        activation.GeluGrad: lambda op, dy, x: dy * gelu_slope64(x),
        activation.BiasGelu: lambda op, x, bias: gelu64(x + bias),
        activation.FastGelu: lambda op, x, bias=0: fast_gelu64(x + bias),
        activation.FastGeluGrad: lambda op, dy, x: dy * fast_gelu_slope64(x),
        activation.BiasGeluGrad_dX: lambda op, dy, x, b: dy * gelu_slope64(x + b),
        activation.BiasFastGeluGrad_dX: lambda op, dy, x, b: dy * fast_gelu_slope64(x + b),
        activation.QuickGelu: lambda op, x: x * sigmoid64(op.alpha * x),
    }
)


@reference(activation.QuickGeluGrad)
def quick_gelu_grad(op: activation.QuickGeluGrad, dy: Any, x: Any) -> Any:
    s = sigmoid64(op.alpha * x)
    return dy * (s + op.alpha * x * s * (1 - s))
