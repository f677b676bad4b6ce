"""Group and instance normalization and their gradient."""

from __future__ import annotations

from math import prod
from typing import Any

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import at_most, equal, static
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import TRAINWEB
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Float, Int, Names, Op
from trainweb.ops.reduce import sum_to


class _GroupNorm(Op, abstract=True):
    """Normalisation of each image over its dims after the channels and over the channels of a group."""

    attrs = {"epsilon": Float(1e-5)}
    num_groups: int = 0
    """0: as many as channels."""

    def groups_of(self, shape: tuple[int, ...]) -> int:
        """Number of groups of an input of this shape."""
        return self.num_groups or shape[1]

    def scales_of(self, shape: tuple[int, ...]) -> int:
        """Number of scales and of biases."""
        return shape[1]

    def check_channels(self, x: TensorType, *vectors: TensorType) -> None:
        """Channels fall into whole groups; scale and bias have one number each."""
        self.need_float32(x, *vectors)
        if x.rank < 2:
            raise self.error(f"X has shape {list(x.shape)}; it needs channels in dim 1.")
        groups = self.groups_of(x.shape)
        if x.shape[1] != 0 and (not at_most(1, groups) or not equal(x.shape[1] % groups, 0)):
            raise self.error(f"{x.shape[1]} channels do not fall into {groups} groups.")
        for t in vectors:
            self.need_shape("scale or bias", t, (self.scales_of(x.shape),))

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
        b.emit(
            calls.GroupNormGrad(
                dy=dy,
                x=x,
                scale=self.per_channel(b, scale, channels),
                dx=dx,
                dscale=results[0],
                dbias=results[1],
                **self.arguments(x.shape),
            )
        )
        for out, result in zip(sums, results, strict=True):
            if out is not None and result is not None and out is not result:
                sum_to(b, out.view((out.size, 1)), result.view((out.size, channels // out.size)))
