"""Models that are trained to be quantized. Scales are powers of two: torch multiplies by 1 / scale, ONNX divides."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.zoo.sources.case import Case, classifier, model, pixels
from torch import nn
from torch.ao import quantization as ao
from torch.nn import functional as F


class FakeQuantized(nn.Module):
    """Weights per channel and per tensor, activations with and without a zero point; some of all are clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 8)
        self.mix = nn.Parameter(torch.randn(8, 5) / 3)
        self.register_buffer("scales", 2.0 ** torch.tensor([-10.0, -9.0, -8.0, -7.0, -6.0, -5.0]))
        self.register_buffer("zeros", torch.tensor([0, 3, 0, -5, 0, 1], dtype=torch.int32))
        self.scales: torch.Tensor
        self.zeros: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 2.0**-6, 100, 0, 255)
        scales = self.scales.float()
        weight = torch.fake_quantize_per_channel_affine(self.conv.weight, scales, self.zeros, 0, -128, 127)
        h = F.relu(F.conv2d(x, weight, self.conv.bias)).mean((2, 3))
        h = torch.fake_quantize_per_tensor_affine(h, 2.0**-7, 0, 0, 127)
        h = self.fc(h) @ torch.fake_quantize_per_tensor_affine(self.mix, 2.0**-9, 0, -128, 127)
        return torch.fake_quantize_per_tensor_affine(h, 2.0**-8, 0, -128, 127)


@model("Fake quantization, per tensor and per channel")
def fake_quantized() -> Case:
    return classifier(FakeQuantized(), pixels(8))


class Stubs(nn.Module):
    """The argument of prepare_qat: convolutions with batch norms, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU()
        self.conv2, self.fc, self.quantize = nn.Conv2d(6, 6, 3), nn.Linear(96, 5), ao.QuantStub()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv2(self.relu(self.norm(self.conv(self.quantize(x)))))
        return self.fc(h.flatten(1))


class FakeQuantize(ao.FakeQuantize):
    """torch's, whose scale stays float32 in a module of float64."""

    def _apply(self, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> FakeQuantize:
        super()._apply(function, recurse)
        self.scale = self.scale.float()
        return self


@model("Quantization-aware training (torch.ao, `FakeQuantize`)")
def quantization_aware() -> Case:
    activation = FakeQuantize.with_args(observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
    weight = FakeQuantize.with_args(
        observer=ao.MovingAveragePerChannelMinMaxObserver,
        quant_min=-128,
        quant_max=127,
        dtype=torch.qint8,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
    )
    module = Stubs().train()
    # Of a new norm's ones and zeros, one weight would have a gradient of rounding alone.
    nn.init.uniform_(module.norm.weight, 0.5, 1.5)
    nn.init.normal_(module.norm.bias)
    module.qconfig = ao.QConfig(activation=activation, weight=weight)
    module = ao.prepare_qat(ao.fuse_modules_qat(module, [["conv", "norm", "relu"]]))
    x = pixels(8)
    module(x)
    module.apply(ao.disable_observer)
    for part in module.modules():
        if isinstance(part, FakeQuantize):
            part.scale.copy_(2.0 ** part.scale.log2().floor())
    return classifier(module, x)
