"""Composite normalizations."""

from __future__ import annotations

from collections.abc import Sequence

from trainweb.ir.dims import equal, equal_shapes
from trainweb.ir.shapes import TensorType, broadcast_shapes
from trainweb.model.graph import MS
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Float, Int, Ints
from trainweb.ops.frame.symbolic import Var


class RMSNormalization(Composite):
    """x / sqrt(mean(x^2) + epsilon) * scale. https://onnx.ai/onnx/operators/onnx__RMSNormalization.html"""

    versions = (23,)
    attrs = {"axis": Int(-1), "epsilon": Float(1e-5), "stash_type": Int(1)}
    differentiable = (0, 1)

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        self.need_float32(x, scale)
        axis = self.axis_of(self.axis, x.rank)
        try:
            fits = equal_shapes(broadcast_shapes(x.shape, scale.shape), x.shape)
        except ValueError:
            fits = False
        if not fits:
            raise self.error(f"a scale of shape {list(scale.shape)} does not broadcast to {list(x.shape[axis:])}.")
        return x

    def expand(self, g: Emission, x: Var, scale: Var) -> Sequence[Var | None]:
        axis, rank = self.axis_of(self.axis, x.rank), x.rank
        if equal_shapes(scale.shape, x.shape[axis:]):
            return [x.op("SimplifiedLayerNormalization", scale, axis=self.axis, epsilon=self.epsilon)]
        # torch's exporter gives a norm without weights ones of the shape of x.
        square = (x * x).mean(range(axis, rank), keepdims=True)
        return [x / (square + self.epsilon).op("Sqrt") * scale]


class _SkipNorm(Composite, abstract=True):
    """The norm of X + skip (+ bias), and that sum as output 3."""

    domain = MS
    attrs = {"epsilon": Float(1e-5)}
    n_outputs = 4
    norm: str
    """The operator of the norm. Its inputs but the first are between the skip and the bias."""

    def infer(self, x: TensorType, skip: TensorType, *vectors: TensorType | None) -> tuple[TensorType, ...]:
        self.need_float32(x, skip, *vectors)
        if not equal_shapes(x.shape, skip.shape) and not equal_shapes(x.shape[1:], skip.shape[-2:]):
            raise self.error(f"skip has shape {list(skip.shape)}, X {list(x.shape)}.")
        for t in vectors:
            if t is not None and (t.rank != 1 or not equal(t.shape[0], x.shape[-1])):
                raise self.error(f"a vector has shape {list(t.shape)}; it must have {x.shape[-1]} numbers.")
        statistics = TensorType("float32", (*x.shape[:-1], 1))
        return x, statistics, statistics, x

    def expand(self, g: Emission, x: Var, skip: Var, *vectors: Var | None) -> Sequence[Var | None]:
        if self.wants_output(1) or self.wants_output(2):
            raise self.unsupported("an output of the statistics")
        *parameters, bias = vectors
        total = x + skip
        total = total if bias is None else total + bias
        y = total.op(self.norm, *(v for v in parameters if v is not None), axis=-1, epsilon=self.epsilon)
        return [y, None, None, total]


class SkipLayerNormalization(_SkipNorm):
    """LayerNormalization of X + skip (+ bias)."""

    min_inputs, max_inputs = 3, 5
    differentiable = (0, 1, 2, 3, 4)
    norm = "LayerNormalization"


class SkipSimplifiedLayerNormalization(_SkipNorm):
    """SimplifiedLayerNormalization (RMS norm) of X + skip (+ bias)."""

    min_inputs, max_inputs = 3, 4
    differentiable = (0, 1, 2, 3)
    norm = "SimplifiedLayerNormalization"


class LpNormalization(Composite):
    """x / norm(x) along an axis; 0 where the norm is 0. https://onnx.ai/onnx/operators/onnx__LpNormalization.html"""

    versions = (1, 22)
    attrs = {"axis": Int(-1), "p": Int(2)}
    differentiable = (0,)

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        self.axis_of(self.axis, x.rank)
        if self.p not in (1, 2):
            raise self.error(f"p is {self.p}, not 1 or 2.")
        return x

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        size = x.op("Abs") if self.p == 1 else x * x
        norm = size.sum([self.axis_of(self.axis, x.rank)], keepdims=True)
        zero = norm.equal(0.0)
        # Before the root, whose slope at 0 is infinite.
        norm = zero.where(norm.lift(1.0), norm)
        return [x / (norm if self.p == 1 else norm.op("Sqrt"))]


class MeanVarianceNormalization(Composite):
    """(x - mean) / (sqrt(var) + 1e-9). https://onnx.ai/onnx/operators/onnx__MeanVarianceNormalization.html"""

    versions = (9, 13)
    attrs = {"axes": Ints([0, 2, 3])}
    differentiable = (0,)

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        for axis in self.axes:
            self.axis_of(axis, x.rank)
        return x

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        axes = sorted(self.axis_of(axis, x.rank) for axis in self.axes)
        centred = x - x.mean(axes, keepdims=True)
        variance = (centred * centred).mean(axes, keepdims=True)
        return [centred / (variance.op("Sqrt") + 1e-9)]


class LRN(Composite):
    """x / (bias + alpha / size * sum of squares of near channels) ^ beta. https://onnx.ai/onnx/operators/onnx__LRN.html"""

    versions = (1, 13)
    attrs = {"alpha": Float(0.0001), "beta": Float(0.75), "bias": Float(1.0), "size": Int(required=True)}
    differentiable = (0,)

    def infer(self, x: TensorType) -> TensorType:
        self.need_float32(x)
        if x.rank < 3 or self.size < 1:
            raise self.error(f"X has shape {list(x.shape)} and size is {self.size}; images and at least 1 are needed.")
        return x

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        # The mean over a window of channels, zeros beyond, as pooling of rank 2: (batch, 1, channels, pixels).
        before, after = (self.size - 1) // 2, self.size // 2
        flat = g.op("Reshape", [(x * x).name, g.constant("int64", (4,), [0, 1, x.shape[1], -1])])
        pooled = g.op(
            "AveragePool",
            [flat],
            kernel_shape=[self.size, 1],
            strides=[1, 1],
            pads=[before, 0, after, 0],
            count_include_pad=1,
        )
        mean = Var(g, g.reshape_like(pooled, x.name), x.dtype)
        return [x / (mean * self.alpha + self.bias) ** self.beta]
