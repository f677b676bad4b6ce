"""Layer, batch, group and instance normalization and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from trainweb.arguments import warn
from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, equal, equal_shapes, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType, broadcast_shapes
from trainweb.model.graph import MS, TRAINWEB
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Float, Int, Ints, Names, Op
from trainweb.ops.frame.symbolic import Var
from trainweb.ops.reduce import sum_to

CONSTANT_SEGMENT = 1
"""Statistics that are constants of the model are not updated."""
ONE_VALUE = (
    "A batch normalization in training mode gets one value for each channel: its output is its bias, and its running "
    "variance falls to 0. Train on batches of several rows, or keep the stored statistics, as docs/export.md shows for "
    "files of inference."
)
"""PyTorch raises there."""


class _LayerNorm(Op, abstract=True):
    """Normalisation over the dims from `axis` on."""

    attrs = {"axis": Int(-1), "epsilon": Float(1e-5), "stash_type": Int(1)}

    def split(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(leading dims, normalised dims)."""
        axis = self.axis_of(self.axis, max(len(shape), 1))
        return shape[:axis], shape[axis:]

    def check_parameters(self, x: TensorType, *parameters: TensorType | None) -> None:
        """Scale and bias have the normalised dims."""
        self.need_float32(x, *parameters)
        _, normalised = self.split(x.shape)
        for t in parameters:
            if t is not None and not equal(t.size, prod(normalised)):
                raise self.error(f"scale and bias must have shape {list(normalised)}, got {list(t.shape)}.")

    def sizes(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Kernel arguments."""
        lead, normalised = self.split(shape)
        return {"rows": prod(lead), "n": prod(normalised)}


class _ForwardNorm(_LayerNorm, abstract=True):
    """The outputs after the normalised tensor are the mean, which RMS norm does not have, and the inverse deviation."""

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType | None = None) -> tuple[TensorType, ...]:
        self.check_parameters(x, scale, bias)
        lead, normalised = self.split(x.shape)
        statistics = TensorType("float32", lead + (1,) * len(normalised))
        return TensorType("float32", x.shape), *[statistics] * (self.n_outputs - 1)

    def lower(self, b: Builder, outs: list[Buf | None], x: Buf, scale: Buf, bias: Buf | None = None) -> None:
        y, *mean, inv = outs[: self.n_outputs]
        call = calls.LayerNorm(
            x=x,
            scale=scale,
            bias=bias,
            y=y or b.temp("float32", x.shape),
            mean=mean[0] if mean else None,
            inv_std=inv,
            epsilon=self.epsilon,
            rms=int(not mean),
            **self.sizes(x.shape),
        )
        b.emit(call)


class LayerNormalization(_ForwardNorm):
    """(x - mean) / sqrt(var + epsilon) * scale + bias. https://onnx.ai/onnx/operators/onnx__LayerNormalization.html

    Ba et al., Layer Normalization, https://arxiv.org/abs/1607.06450.
    """

    versions = (1, 17)
    n_outputs = 3
    differentiable = (0, 1, 2)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        mean, inv = g.extra_output(1, "_mean"), g.extra_output(2, "_inv_std")
        gradients: list[str | None] = [None] * len(ins)
        if douts[0]:
            inputs = [douts[0], ins[0], ins[1], mean, inv]
            results = g.ops("LayerNormalizationGrad", inputs, 3, domain=MS, axis=self.axis)
            gradients = [*results[: len(ins)]]
        statistics = self._through_statistics(g, ins[0], mean, inv, douts) if g.wants(ins[0]) else None
        if statistics is not None:
            gradients[0] = statistics if gradients[0] is None else g.op("Add", [gradients[0], statistics])
        return gradients

    def _through_statistics(
        self, g: GradientBuilder, x: str, mean: str, inv: str, douts: list[str | None]
    ) -> str | None:
        """d mean / dx = 1 / n, d inv / dx = -inv^3 (x - mean) / n."""
        by_mean, by_inv = (douts[k] if k < len(douts) else None for k in (1, 2))
        value, m, r = Var.of(g, x, mean, inv)
        total = value * 0.0 + Var(g, by_mean, value.dtype) if by_mean else None
        if by_inv:
            spread = Var(g, by_inv, value.dtype) * r * r * r * (value - m)
            total = -spread if total is None else total - spread
        if total is None:
            return None
        count = Var(g, g.op("Div", [g.op("Size", [x]), g.op("Size", [mean])]), "int64")
        return total.op("Scale", count, domain=MS, scale_down=1).name


class _LayerNormGrad(_LayerNorm, abstract=True):
    """Gradients of a norm from (dY, X, scale, mean, inv_std), of RMS norm without the mean (com.microsoft)."""

    domain = MS

    def infer(
        self, dy: TensorType, x: TensorType, scale: TensorType, *statistics: TensorType
    ) -> tuple[TensorType, ...]:
        self.check_parameters(x, scale)
        rows = self.sizes(x.shape)["rows"]
        if not equal_shapes(dy.shape, x.shape) or not all(equal(t.size, rows) for t in statistics):
            raise self.error("shapes of dY, X and the statistics of its rows do not fit.")
        types = [TensorType("float32", t.shape) for t in (x, scale, scale)]
        return tuple(types[: self.n_outputs])

    def lower(self, b: Builder, outs: list[Buf | None], dy: Buf, x: Buf, scale: Buf, *statistics: Buf) -> None:
        dx, dscale, dbias = [*outs, None][:3]
        *mean, inv = statistics
        call = calls.LayerNormGrad(
            dy=dy,
            x=x,
            scale=scale,
            mean=mean[0] if mean else None,
            inv_std=inv,
            dx=dx,
            dscale=dscale,
            dbias=dbias,
            rms=int(not mean),
            **self.sizes(x.shape),
        )
        b.emit(call)


class LayerNormalizationGrad(_LayerNormGrad):
    """Gradients of LayerNormalization from (dY, X, scale, mean, inv_std) (com.microsoft)."""

    min_inputs = max_inputs = 5
    n_outputs = 3


class SimplifiedLayerNormalization(_ForwardNorm):
    """x / sqrt(mean(x^2) + epsilon) * scale (RMS norm), https://arxiv.org/abs/1910.07467."""

    min_inputs = max_inputs = 2
    n_outputs = 2
    differentiable = (0, 1)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        inv = g.extra_output(1, "_inv_std")
        inputs = [douts[0] or "", *ins, inv]
        return [*g.ops("SimplifiedLayerNormalizationGrad", inputs, 2, domain=MS, axis=self.axis)]


class SimplifiedLayerNormalizationGrad(_LayerNormGrad):
    """Gradients of SimplifiedLayerNormalization from (dY, X, scale, inv_std) (com.microsoft)."""

    min_inputs = max_inputs = 4
    n_outputs = 2


class _ChannelNorm(Op, abstract=True):
    """A normalization of X (N, C, ...) with vectors of a number for each channel."""

    def scales_of(self, shape: tuple[int, ...]) -> int:
        """Elements of each vector."""
        return shape[1]

    def check_channels(self, x: TensorType, *vectors: TensorType) -> None:
        """Raise unless X has channels, and the vectors a number for each."""
        self.need_float32(x, *vectors)
        if x.rank < 2:
            raise self.error(f"X has shape {list(x.shape)}; it needs channels in dim 1.")
        for t in vectors:
            self.need_shape("scale, bias, mean or var", t, (self.scales_of(x.shape),))


class _BatchNorm(_ChannelNorm, abstract=True):
    attrs = {"epsilon": Float(1e-5), "momentum": Float(0.9), "training_mode": Int(0)}

    @staticmethod
    def sizes(shape: tuple[int, ...]) -> dict[str, Any]:
        """Kernel arguments."""
        return {"batch": shape[0], "channels": shape[1], "size": prod(shape[2:])}

    def through_batch(self, g: GradientBuilder, dy: str | None, ins: list[str], mean: str, inv: str) -> Names:
        """Gradients of all inputs, where statistics of the batch normalized."""
        inputs = [dy or "", ins[0], ins[1], mean, inv]
        gradients = g.ops("BatchNormalizationGrad", inputs, 3, domain=MS, epsilon=float(self.epsilon))
        return [*gradients, None, None]

    def emit_training(self, b: Builder, y: Buf | None, x: Buf, scale: Buf, bias: Buf, **outs: Any) -> None:
        """Normalise by batch statistics."""
        if x.size == scale.size:
            warn(ONE_VALUE)
        call = calls.BatchNormTrain(
            x=x,
            scale=scale,
            bias=bias,
            y=y or b.temp("float32", x.shape),
            epsilon=self.epsilon,
            momentum=self.momentum,
            **outs,
            **self.sizes(x.shape),
        )
        b.emit(call)


class BatchNormalization(_BatchNorm):
    """Normalisation per channel, by running or (training_mode) batch statistics.

    https://onnx.ai/onnx/operators/onnx__BatchNormalization.html; Ioffe & Szegedy, https://arxiv.org/abs/1502.03167.
    """

    versions = (7, 9, 14, 15)
    n_outputs = 3
    differentiable = (0, 1, 2, 3, 4)

    def infer(
        self, x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, var: TensorType
    ) -> tuple[TensorType, ...]:
        self.check_channels(x, scale, bias, mean, var)
        statistics = [TensorType("float32", mean.shape), TensorType("float32", var.shape)]
        # Up to opset 13 training had five outputs; exporters leave their names behind.
        return TensorType("float32", x.shape), *statistics, *(statistics if self.opset < 14 else ())

    def lower(self, b: Builder, outs: list[Buf | None], x: Buf, scale: Buf, bias: Buf, mean: Buf, var: Buf) -> None:
        if not self.training_mode and any(outs[1:]):
            raise self.unsupported("an output of statistics without training_mode")
        if self.training_mode:
            for out, old in zip(outs[1:3], (mean, var), strict=True):
                if out is not None:
                    b.copy(out, old)
            self.emit_training(b, outs[0], x, scale, bias, running_mean=outs[1], running_var=outs[2])
        elif outs[0] is not None:
            call = calls.BatchNorm(
                x=x,
                scale=scale,
                bias=bias,
                mean=mean,
                var=var,
                y=outs[0],
                epsilon=self.epsilon,
                **self.sizes(x.shape),
            )
            b.emit(call)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        x, scale, _, mean, var = ins
        dy, rank = douts[0] or "", g.rank(x)
        axes = [0, *range(2, rank)]
        tail = g.constant("int64", (rank - 1,), (-1, *[1] * (rank - 2)))
        epsilon = g.constant("float32", (1,), (float(self.epsilon),))
        if self.training_mode:
            mean = g.reduce_mean(x, axes, False)
            deviation = g.op("Sub", [x, g.op("Reshape", [mean, tail])])
            var = g.reduce_mean(g.op("Mul", [deviation, deviation]), axes, False)
        inv = g.op("Reciprocal", [g.op("Sqrt", [g.op("Add", [var, epsilon])])])
        if self.training_mode:
            return self.through_batch(g, dy, ins, mean, inv)
        dx = dscale = dbias = dmean = dvar = None
        if g.wants(x):
            dx = g.op("Mul", [dy, g.op("Reshape", [g.op("Mul", [scale, inv]), tail])])
        if g.wants(scale) or g.wants(var):
            centred = g.op("Sub", [x, g.op("Reshape", [mean, tail])])
            xh = g.op("Mul", [centred, g.op("Reshape", [inv, tail])])
            dscale = g.reduce_sum(g.op("Mul", [dy, xh]), axes, False)
        if g.wants(ins[2]) or g.wants(mean):
            dbias = g.reduce_sum(dy, axes, False)
        # Statistics may be computed, too: torch exports batch norms without running ones like this.
        if g.wants(mean):
            dmean = g.op("Neg", [g.op("Mul", [dbias or "", g.op("Mul", [scale, inv])])])
        if g.wants(var):
            half = g.constant("float32", (1,), (-0.5,))
            rate = g.op("Mul", [half, g.op("Mul", [scale, g.op("Mul", [inv, inv])])])
            dvar = g.op("Mul", [dscale or "", rate])
        return [dx, dscale, dbias, dmean, dvar]


class BatchNormInternal(_BatchNorm):
    """BatchNormalization by batch statistics, which updates mean and var in place (com.microsoft).

    running = momentum * running + (1 - momentum) * batch, with the biased variance.
    """

    domain = MS
    attrs = {"epsilon": Float(1e-5), "momentum": Float(0.9), "training_mode": Int(1)}
    n_outputs = 5
    differentiable = (0, 1, 2)
    state_inputs = (3, 4)

    def infer(
        self, x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, var: TensorType
    ) -> tuple[TensorType, ...]:
        self.check_channels(x, scale, bias, mean, var)
        vector = TensorType("float32", mean.shape)
        return TensorType("float32", x.shape), vector, vector, vector, vector

    def lower(self, b: Builder, outs: list[Buf | None], x: Buf, scale: Buf, bias: Buf, mean: Buf, var: Buf) -> None:
        stored = [None if t.storage.segment == CONSTANT_SEGMENT else t for t in (mean, var)]
        self.emit_training(
            b, outs[0], x, scale, bias, mean=outs[3], inv_std=outs[4], running_mean=stored[0], running_var=stored[1]
        )
        for out, running in zip(outs[1:3], stored, strict=True):
            if out is not None and running is not None:
                b.copy(out, running)
            elif out is not None:
                raise self.unsupported("reading updated statistics that are constants")

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        mean, inv = g.extra_output(3, "_saved_mean"), g.extra_output(4, "_saved_inv_std")
        return self.through_batch(g, douts[0], ins, mean, inv)


class BatchNormalizationGrad(_BatchNorm):
    """Gradients of BatchNormInternal from (dY, X, scale, mean, inv_std) (com.microsoft)."""

    domain = MS
    n_outputs = 3

    def infer(
        self, dy: TensorType, x: TensorType, scale: TensorType, mean: TensorType, inv: TensorType
    ) -> tuple[TensorType, ...]:
        self.check_channels(x, scale, mean, inv)
        self.need_shape("dY", dy, x.shape)
        vector = TensorType("float32", scale.shape)
        return TensorType("float32", x.shape), vector, vector

    def lower(self, b: Builder, outs: list[Buf | None], dy: Buf, x: Buf, scale: Buf, mean: Buf, inv: Buf) -> None:
        call = calls.BatchNormGrad(
            dy=dy,
            x=x,
            scale=scale,
            mean=mean,
            inv_std=inv,
            dx=outs[0],
            dscale=outs[1],
            dbias=outs[2],
            **self.sizes(x.shape),
        )
        b.emit(call)


class _GroupNorm(_ChannelNorm, abstract=True):
    """Normalisation of each image over its dims after the channels and over the channels of a group."""

    attrs = {"epsilon": Float(1e-5)}
    num_groups: int = 0
    """0: as many as channels."""

    def groups_of(self, shape: tuple[int, ...]) -> int:
        """Number of groups of an input of this shape."""
        return self.num_groups or shape[1]

    def check_channels(self, x: TensorType, *vectors: TensorType) -> None:
        """Raise unless the channels fall into whole groups, too."""
        super().check_channels(x, *vectors)
        groups = self.groups_of(x.shape)
        if x.shape[1] != 0 and (not at_most(1, groups) or not equal(x.shape[1] % groups, 0)):
            raise self.error(f"{x.shape[1]} channels do not fall into {groups} groups.")

    def arguments(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Kernel arguments."""
        return {
            "batch": shape[0],
            "channels": shape[1],
            "size": prod(shape[2:]),
            "groups": max(self.groups_of(shape), 1),
            "epsilon": self.epsilon,
        }

    def per_channel(self, b: Builder, v: Buf, channels: int) -> Buf:
        """Return one number per channel: the given ones, or each of them for a group."""
        if v.size == channels:
            return v
        spread = b.temp("float32", (v.size, channels // v.size))
        b.elementwise([spread], [v.view((v.size, 1))], lambda e, x: x)
        return spread.view((channels,))


class _Forward(_GroupNorm, abstract=True):
    differentiable = (0, 1, 2)

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        self.check_channels(x, scale, bias)
        return TensorType("float32", x.shape)

    def lower(self, b: Builder, outs: list[Buf], x: Buf, scale: Buf, bias: Buf) -> None:
        if x.size:
            scale, bias = (self.per_channel(b, v, x.shape[1]) for v in (scale, bias))
            b.emit(calls.GroupNorm(x=x, scale=scale, bias=bias, y=outs[0], **self.arguments(x.shape)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        attrs: dict[str, Any] = {"epsilon": float(self.epsilon), "num_groups": self.num_groups}
        inputs = [douts[0], ins[0], ins[1]]
        return [*g.ops("GroupNormalizationGrad", inputs, 3, domain=TRAINWEB, **attrs)]


class GroupNormalization(_Forward):
    """(x - mean) / sqrt(var + epsilon) * scale + bias, with the statistics of each group of channels of an image.

    https://onnx.ai/onnx/operators/onnx__GroupNormalization.html; Wu & He, https://arxiv.org/abs/1803.08494.
    Before opset 21 there is one scale and bias per group, from then on per channel.
    """

    versions = (18, 21)
    attrs = {**_Forward.attrs, "num_groups": Int(required=True), "stash_type": Int(1)}

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        if self.num_groups < 1:
            raise self.error(f"num_groups is {self.num_groups}; it must be at least 1.")
        return super().infer(x, scale, bias)

    def scales_of(self, shape: tuple[int, ...]) -> int:
        return shape[1] if self.opset >= 21 else self.num_groups


class InstanceNormalization(_Forward):
    """(x - mean) / sqrt(var + epsilon) * scale + bias, with the statistics of each channel of an image.

    https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html; Ulyanov et al., https://arxiv.org/abs/1607.08022.
    """

    versions = (1, 6, 22)


class GroupNormalizationGrad(_GroupNorm):
    """Gradients of GroupNormalization and InstanceNormalization from (dY, X, scale) (ai.trainweb)."""

    domain = TRAINWEB
    n_outputs = 3
    attrs = {**_GroupNorm.attrs, "num_groups": Int(0)}

    def infer(self, dy: TensorType, x: TensorType, scale: TensorType) -> tuple[TensorType, ...]:
        self.need_float32(dy, x, scale)
        self.need_shape("dY", dy, x.shape)
        sizes = (*scale.shape, x.shape[1], self.groups_of(x.shape))
        if scale.rank != 1 or (static(*sizes) and scale.shape[0] not in sizes[1:]):
            raise self.error(f"scale has shape {list(scale.shape)}; it needs one number per channel or group.")
        return TensorType("float32", x.shape), TensorType("float32", scale.shape), TensorType("float32", scale.shape)

    def lower(self, b: Builder, outs: list[Buf | None], dy: Buf, x: Buf, scale: Buf) -> None:
        channels = x.shape[1]
        dx, *sums = outs
        results = [o if o is None or o.size == channels else b.temp("float32", (channels,)) for o in sums]
        call = calls.GroupNormGrad(
            dy=dy,
            x=x,
            scale=self.per_channel(b, scale, channels),
            dx=dx,
            dscale=results[0],
            dbias=results[1],
            **self.arguments(x.shape),
        )
        b.emit(call)
        for out, result in zip(sums, results, strict=True):
            if out is not None and result is not None and out is not result:
                sum_to(b, out.view((out.size, 1)), result.view((out.size, channels // out.size)))


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
