"""Convolutional networks of torchvision and timm, narrow."""

from functools import partial

import timm.models as timm_models
import torch
import torchvision.models as tv
from tests.zoo.sources.case import Case, classes, classifier, model, pixels
from timm.models._efficientnet_builder import decode_arch_def
from torch import nn
from torch.nn import functional as F
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.efficientnet import MBConvConfig
from torchvision.models.googlenet import Inception
from torchvision.models.mobilenetv3 import InvertedResidualConfig
from torchvision.models.regnet import BlockParams
from torchvision.models.squeezenet import Fire
from torchvision.models.video.resnet import BasicBlock, Conv3DSimple
from torchvision.ops import DeformConv2d, roi_align


@model("ResNet, basic blocks", "timm")
def resnet() -> Case:
    net = timm_models.resnet.ResNet(
        timm_models.resnet.BasicBlock, (1, 1, 1, 1), 5, stem_width=6, channels=(6, 8, 12, 16), output_stride=8
    )
    return classifier(net, pixels(32))


@model("ResNeXt with squeeze and excitation", "timm")
def seresnext() -> Case:
    net = timm_models.resnet.ResNet(
        timm_models.resnet.Bottleneck,
        (1, 1, 1, 1),
        num_classes=5,
        output_stride=8,
        stem_width=8,
        channels=(4, 4, 8, 8),
        cardinality=2,
        base_width=32,
        block_args={"attn_layer": "se"},
    )
    return classifier(net, pixels(16))


@model("VGG with batch normalization", "torchvision")
def vgg() -> Case:
    features = tv.vgg.make_layers([6, "M", 12, "M", 16, 16, "M"], batch_norm=True)
    return classifier(nn.Sequential(features, nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5)), pixels(16))


@model("MobileNetV2", "torchvision")
def mobilenet_v2() -> Case:
    setting = [[1, 8, 1, 1], [4, 12, 2, 2], [4, 16, 1, 2]]
    net = tv.MobileNetV2(5, width_mult=0.5, inverted_residual_setting=setting, round_nearest=4)
    return classifier(net, pixels(48))


@model("MobileNetV3", "torchvision")
def mobilenet_v3() -> Case:
    block = partial(InvertedResidualConfig, dilation=1, width_mult=1.0)
    setting = [
        block(16, 3, 16, 16, True, "RE", 2),
        block(16, 5, 24, 16, True, "HS", 1),
        block(16, 3, 32, 24, False, "HS", 2),
    ]
    return classifier(tv.MobileNetV3(setting, 32, 5), pixels(32))


@model("MobileNetV4 (universal inverted bottlenecks)", "timm")
def mobilenet_v4() -> Case:
    blocks = decode_arch_def([["cn_r1_k3_s2_e1_c8"], ["uir_r1_a3_k5_s2_e2_c16"], ["uir_r1_a0_k3_s1_e2_c16"]])
    net = timm_models.mobilenetv3.MobileNetV3(
        blocks, num_classes=5, stem_size=8, num_features=32, act_layer=nn.ReLU, head_norm=True
    )
    return classifier(net, pixels(32))


@model("EfficientNet", "torchvision")
def efficientnet() -> Case:
    setting = [MBConvConfig(1, 3, 1, 8, 8, 1), MBConvConfig(4, 5, 2, 8, 12, 2), MBConvConfig(4, 3, 1, 12, 12, 1)]
    return classifier(
        tv.EfficientNet(setting, 0.0, stochastic_depth_prob=0.0, num_classes=5, last_channel=32), pixels(32)
    )


@model("ConvNeXt", "torchvision")
def convnext() -> Case:
    setting = [CNBlockConfig(12, 24, 1), CNBlockConfig(24, None, 1)]
    return classifier(tv.ConvNeXt(setting, stochastic_depth_prob=0.0, layer_scale=0.1, num_classes=5), pixels(32))


@model("RegNetY", "torchvision")
def regnet() -> Case:
    params = BlockParams.from_init_params(depth=3, w_0=8, w_a=8.0, w_m=2.0, group_width=4, se_ratio=0.25)
    return classifier(tv.RegNet(params, num_classes=5, stem_width=8), pixels(32))


@model("DenseNet", "torchvision")
def densenet() -> Case:
    return classifier(tv.DenseNet(4, (2, 2), 8, num_classes=5), pixels(32))


@model("ShuffleNetV2", "torchvision")
def shufflenet() -> Case:
    return classifier(tv.ShuffleNetV2([2, 2, 2], [8, 16, 24, 32, 32], num_classes=5), pixels(64))


@model("SqueezeNet (fire modules)", "torchvision")
def squeezenet() -> Case:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(8, 4, 8, 8),
        Fire(16, 4, 8, 8),
        nn.Conv2d(16, 5, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return classifier(net, pixels(32))


@model("GoogLeNet (inception modules)", "torchvision")
def googlenet() -> Case:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        Inception(8, 4, 4, 6, 2, 4, 4),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Inception(18, 4, 4, 6, 2, 4, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(18, 5),
    )
    return classifier(net, pixels(24))


@model("GhostNet", "timm")
def ghostnet() -> Case:
    stages = [[[3, 16, 16, 0, 1]], [[3, 24, 16, 0, 2]], [[5, 32, 24, 0.25, 2]]]
    net = timm_models.ghostnet.GhostNet(stages, num_classes=5, width=0.5, drop_rate=0.0)
    net.conv_head = nn.Conv2d(net.conv_head.in_channels, 24, 1)
    net.classifier = nn.Linear(24, 5)
    return classifier(net, pixels(32))


@model("NFNet (no normalization, standardized weights)", "timm")
def nfnet() -> Case:
    config = timm_models.nfnet.NfCfg(
        depths=(1, 1), channels=(16, 24), stem_type="3x3", stem_chs=8, group_size=4, num_features=32, act_layer="silu"
    )
    return classifier(timm_models.nfnet.NormFreeNet(config, num_classes=5), pixels(16))


@model("RepVGG", "timm")
def repvgg() -> Case:
    byobnet = timm_models.byobnet
    blocks = tuple(byobnet.ByoBlockCfg(type="rep", d=1, c=c, s=2) for c in (8, 16))
    config = byobnet.ByoModelCfg(blocks=blocks, stem_type="rep", stem_chs=8)
    return classifier(byobnet.ByobNet(config, num_classes=5), pixels(32))


class Parallel(nn.Module):
    """HRNet for segmentation: the maps of all resolutions, joined at the largest."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Conv2d(26, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.trunk.forward_features(x)
        size = maps[0].shape[-2:]
        return self.head(torch.cat([F.interpolate(m, size, mode="bilinear") for m in maps], 1))


@model("HRNet, segmentation", "timm")
def hrnet() -> Case:
    stage = {"num_modules": 1, "block_type": "BASIC", "fuse_method": "SUM"}
    config = {
        "stem_width": 8,
        "stage1": {**stage, "num_branches": 1, "num_blocks": (1,), "num_channels": (8,)},
        "stage2": {**stage, "num_branches": 2, "num_blocks": (1, 1), "num_channels": (4, 6)},
        "stage3": {**stage, "num_branches": 3, "num_blocks": (1, 1, 1), "num_channels": (4, 6, 8)},
        "stage4": {**stage, "num_branches": 4, "num_blocks": (1, 1, 1, 1), "num_channels": (4, 6, 8, 8)},
    }
    net = Parallel(timm_models.hrnet.HighResolutionNet(config, num_classes=0, head=""))
    return Case(net, {"x": pixels(64, batch=3)}, "CrossEntropyLoss of axis 1", classes(3, 3, 16, 16))


@model("ConvMixer", "timm")
def convmixer() -> Case:
    net = timm_models.convmixer.ConvMixer(16, 2, kernel_size=5, patch_size=4, num_classes=5)
    return classifier(net, pixels(16))


@model("InceptionNeXt", "timm")
def inception_next() -> Case:
    net = timm_models.inception_next.MetaNeXt(num_classes=5, depths=(1, 1), dims=(16, 24))
    return classifier(net, pixels(32))


@model("StarNet", "timm")
def starnet() -> Case:
    return classifier(timm_models.starnet.StarNet(base_dim=6, depths=[1, 1], num_classes=5), pixels(32))


@model("Res2Net", "timm")
def res2net() -> Case:
    net = timm_models.resnet.ResNet(
        timm_models.res2net.Bottle2neck,
        (2, 1, 1, 1),
        num_classes=5,
        output_stride=8,
        stem_width=8,
        channels=(4, 4, 8, 8),
        cardinality=1,
        base_width=64,
        block_args={"scale": 4},
    )
    return classifier(net, pixels(16))


@model("Hourglass of transposed convolutions and group norm")
def hourglass() -> Case:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.InstanceNorm2d(16, affine=True),
        nn.PReLU(16),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.GroupNorm(4, 8),
        nn.Mish(),
        nn.ConvTranspose2d(8, 3, 2, 2),
    )
    return Case(net, {"x": pixels(16)}, "MSELoss", torch.rand(4, 3, 16, 16))


@model("VoVNet (pooling with sizes rounded up)", "timm")
def vovnet() -> Case:
    return classifier(
        timm_models.vovnet.VovNet(
            {
                "stem_chs": (8, 8, 8),
                "stage_conv_chs": (8, 8, 8, 8),
                "stage_out_chs": (8, 12, 16, 24),
                "layer_per_block": 2,
                "block_per_stage": (1, 1, 1, 1),
                "residual": False,
                "depthwise": False,
                "attn": "ese",
            },
            num_classes=5,
        ),
        pixels(32, batch=16),
    )


class Video(nn.Module):
    """Two blocks of torchvision's R3D on clips (N, 3, frames, height, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 8, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False), nn.BatchNorm3d(8), nn.ReLU()
        )
        shrink = nn.Sequential(nn.Conv3d(8, 12, 1, 2, bias=False), nn.BatchNorm3d(12))
        self.blocks = nn.Sequential(BasicBlock(8, 8, Conv3DSimple), BasicBlock(8, 12, Conv3DSimple, 2, shrink))
        self.fc = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3, 4)))


@model("R3D (video, Conv3d without a bias)", "torchvision")
def r3d() -> Case:
    return classifier(Video(), torch.randn(4, 3, 6, 16, 16))


class Deformable(nn.Module):
    """A modulated deformable convolution, and regions of what it sees with a sample for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.mask = nn.Conv2d(3, 18, 3, padding=1), nn.Conv2d(3, 9, 3, padding=1)
        self.conv, self.fc = DeformConv2d(3, 8, 3, padding=1), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
        seen = self.conv(x, self.offset(x), self.mask(x).sigmoid()).relu()
        return self.fc(roi_align(seen, regions, (2, 2), 0.5, -1, True).flatten(1))


@model("Deformable convolution, RoiAlign", "torchvision")
def deformable() -> Case:
    regions = torch.tensor([[0, 1.0, 2.0, 20.0, 17.0], [1, 3.0, 4.0, 18.0, 23.0], [0, 0.0, 0.0, 23.0, 23.0]])
    return Case(Deformable(), {"x": pixels(12, batch=2), "regions": regions}, "CrossEntropyLoss", classes(5, 3))
