"""Models whose output is an image or a distribution: segmentation, detection, autoencoders, adversaries, diffusion."""

import math

import torch
import transformers as hf
from tests.zoo.sources.case import Case, classes, model, pixels
from torch import nn
from torch.nn import functional as F
from torchvision.models.segmentation.deeplabv3 import ASPP
from torchvision.models.segmentation.fcn import FCNHead
from torchvision.ops import FeaturePyramidNetwork


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with batch norm."""
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    layers += [nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = double(3, 6), double(6, 12), double(12, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 12, 2, 2), nn.ConvTranspose2d(12, 6, 2, 2)
        self.join2, self.join1 = double(24, 12), double(12, 6)
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        x = self.bottom(F.max_pool2d(b, 2))
        x = self.join2(torch.cat([self.up2(x), b], 1))
        return self.head(self.join1(torch.cat([self.up1(x), a], 1)))


@model("U-Net (transposed convolutions)")
def unet() -> Case:
    return Case(UNet(), {"x": pixels(20)}, "CrossEntropyLoss of axis 1", classes(3, 4, 20, 20))


class DeepLab(nn.Module):
    """DeepLabV3's head on a small trunk, with upsampling to the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU())
        self.aspp = ASPP(12, [2, 3], 8)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.aspp(self.trunk(x)))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


@model("DeepLabV3 head (dilated, bilinear)", "torchvision")
def deeplab() -> Case:
    return Case(DeepLab(), {"x": pixels(16)}, "CrossEntropyLoss of axis 1", classes(3, 4, 16, 16))


class Fcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.ReLU())
        self.head = FCNHead(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(self.head(self.trunk(x)), scale_factor=4.0, mode="bilinear", align_corners=True)


@model("FCN head (bilinear, aligned corners)", "torchvision")
def fcn() -> Case:
    return Case(Fcn(), {"x": pixels(16)}, "CrossEntropyLoss of axis 1", classes(3, 4, 16, 16))


class Detector(nn.Module):
    """A feature pyramid with heads shared by its levels, in the manner of RetinaNet, and its focal loss."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU())
        self.high = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU())
        self.pyramid = FeaturePyramidNetwork([8, 12], 8)
        self.tower = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.classes, self.boxes = nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        low = self.low(x)
        levels = self.pyramid({"low": low, "high": self.high(low)}).values()
        towers = [self.tower(level) for level in levels]
        scores = torch.cat([self.classes(t).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 3) for t in towers], 1)
        boxes = torch.cat([self.boxes(t).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4) for t in towers], 1)
        p = torch.sigmoid(scores)
        chance = p * labels + (1 - p) * (1 - labels)
        entropy = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        focal = (0.25 * (1 - chance) ** 2 * entropy).sum()
        found = labels.amax(-1, keepdim=True)
        return (focal + (found * F.huber_loss(boxes, places, reduction="none")).sum()) / found.sum().clamp(min=1)


@model("Feature pyramid with RetinaNet's heads and losses", "torchvision")
def retinanet() -> Case:
    labels = (torch.rand(4, 40, 3) < 0.1).float()
    return Case(Detector(), {"x": pixels(16), "labels": labels, "places": torch.randn(4, 40, 4)}, "")


class Yolo(nn.Module):
    """YOLO's decoding of boxes: sigmoid of offsets on a grid, exponential of sizes times anchors."""

    def __init__(self, anchors: int = 2, kinds: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.1),
            nn.Conv2d(8, 12, 3, 2, 1),
            nn.SiLU(),
        )
        self.head = nn.Conv2d(12, anchors * (5 + kinds), 1)
        self.register_buffer("anchors", torch.tensor([[1.0, 1.5], [2.0, 1.0]]).view(1, anchors, 2, 1, 1))
        y, x = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
        self.register_buffer("grid", torch.stack([x, y]).view(1, 1, 2, 4, 4).float())
        self.count = anchors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.body(x))
        y = y.view(y.shape[0], self.count, -1, *y.shape[2:])
        centre = torch.sigmoid(y[:, :, :2]) + self.grid
        size = torch.exp(y[:, :, 2:4].clamp(max=4)) * self.anchors
        return torch.cat([centre, size, torch.sigmoid(y[:, :, 4:])], 2).flatten(3).transpose(2, 3)


@model("YOLO head (grid and anchors)")
def yolo() -> Case:
    return Case(Yolo(), {"x": pixels(16)}, "MSELoss", torch.rand(4, 2, 16, 8))


@model("Autoencoder (convolutions, nearest upsampling)")
def autoencoder() -> Case:
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 2, 1), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 3, padding=1), nn.Sigmoid(),
    )  # fmt: skip
    x = torch.rand(3, 1, 12, 12)
    return Case(net, {"x": x}, "MSELoss", x.clone())


class Vae(nn.Module):
    """The noise is fed, and the output is the loss: reconstruction and divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 16), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 20))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        y = self.decoder(mean + noise * torch.exp(0.5 * log_variance))
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(-1)
        return (F.binary_cross_entropy_with_logits(y, x, reduction="none").sum(-1) + divergence).mean()


@model("Variational autoencoder (noise is fed)")
def vae() -> Case:
    return Case(Vae(), {"x": torch.rand(6, 20), "noise": torch.randn(6, 4)}, "")


class VectorQuantizer(nn.Module):
    """The nearest code by argmin, straight-through by the difference to what is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(10, 4), nn.Linear(4, 10)
        self.codes = nn.Embedding(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encoder(x)
        w = self.codes.weight
        distance = z.square().sum(1, keepdim=True) - 2 * z @ w.T + w.square().sum(1)
        return self.decoder(z + self.codes(distance.argmin(1)))


@model("Codebook with the nearest code (argmin)")
def codebook() -> Case:
    return Case(VectorQuantizer(), {"x": torch.randn(8, 10)}, "MSELoss", torch.randn(8, 10))


class Adversaries(nn.Module):
    """The generator's loss through a discriminator that trains along, as a sum: both get their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(6, 48), nn.Unflatten(1, (12, 2, 2)), nn.BatchNorm2d(12), nn.ReLU(),
            nn.ConvTranspose2d(12, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
            nn.Linear(32, 1),
        )  # fmt: skip

    def forward(self, noise: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.discriminator(self.generator(noise)), self.discriminator(real)])


@model("DCGAN (generator and discriminator)")
def gan() -> Case:
    feeds = {"noise": torch.randn(4, 6), "real": torch.randn(4, 1, 8, 8)}
    return Case(Adversaries(), feeds, "BCEWithLogitsLoss", torch.cat([torch.zeros(4, 1), torch.ones(4, 1)]))


class SuperResolution(nn.Module):
    """ESPCN with a residual block: PixelShuffle makes the larger image."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5, padding=2)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.scale = nn.Parameter(torch.tensor(0.2))
        self.up = nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        return self.up(h + self.scale * self.block(h))


@model("Super-resolution (PixelShuffle)")
def super_resolution() -> Case:
    return Case(SuperResolution(), {"x": torch.rand(2, 1, 8, 8)}, "MSELoss", torch.rand(2, 1, 16, 16))


class Style(nn.Module):
    """Adaptive instance normalization, reflection padding, Gram matrices: a style transfer in small."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(3, 8, 5), nn.InstanceNorm2d(8), nn.ReLU())
        self.affine = nn.Linear(4, 16)
        self.decode = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest"), nn.ReflectionPad2d(1), nn.Conv2d(8, 3, 3)
        )

    def forward(self, x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        h = self.encode(x)
        scale, shift = self.affine(style).unsqueeze(-1).unsqueeze(-1).split(8, 1)
        mean, std = h.mean((2, 3), keepdim=True), h.var((2, 3), keepdim=True).add(1e-3).sqrt()
        y = self.decode((h - mean) / std * (1 + scale) + shift).flatten(2)
        return y @ y.transpose(1, 2) / y.shape[-1]


@model("Style transfer (AdaIN, Gram matrices)")
def style_transfer() -> Case:
    return Case(Style(), {"x": pixels(8), "style": torch.randn(4, 4)}, "MSELoss", torch.randn(4, 3, 3))


class Denoiser(nn.Module):
    """A diffusion model's step: sines of the time, scale and shift of features, attention over pixels."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.register_buffer("rates", torch.exp(-math.log(100) * torch.arange(4) / 4))
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 2 * width))
        self.first, self.norm = nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(2, width)
        self.second, self.qkv, self.out = (
            nn.Conv2d(width, width, 3, padding=1),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, 1, 1),
        )

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angles = t[:, None] * self.rates
        scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None].chunk(2, 1)
        h = self.second(F.silu(self.norm(self.first(x)) * (1 + scale) + shift))
        q, k, v = self.qkv(h).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(h.shape)
        return self.out(h)


@model("Diffusion step (time embedding, attention)")
def diffusion() -> Case:
    feeds = {"x": torch.randn(3, 1, 6, 6), "t": torch.rand(3) * 50}
    return Case(Denoiser(), feeds, "MSELoss", torch.randn(3, 1, 6, 6))


class Flow(nn.Module):
    """Affine couplings of halves, and the negative log likelihood as output."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 6)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[:, 0])
        for net in self.nets:
            a, b = x[:, :3], x[:, 3:]
            shift, scale = net(a).split(3, 1)
            scale = torch.tanh(scale)
            x = torch.cat([b * torch.exp(scale) + shift, a], 1)
            total = total + scale.sum(1)
        return (0.5 * x.square().sum(1) - total).mean()


@model("Normalizing flow (affine couplings)")
def flow() -> Case:
    return Case(Flow(), {"x": torch.randn(8, 6)}, "")


class Speech(nn.Module):
    """Sound of the mean of a text's prior, and how long its words are: a flow backwards, transposed convolutions."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        there = torch.ones_like(ids)
        mask = there[:, None].to(self.inner.text_encoder.project.weight.dtype)
        text = self.inner.text_encoder(input_ids=ids, padding_mask=mask.transpose(1, 2), attention_mask=there)
        lengths = self.inner.duration_predictor(text.last_hidden_state.transpose(1, 2), mask)
        sound = self.inner.decoder(self.inner.flow(text.prior_means.transpose(1, 2), mask, None, reverse=True))
        return sound.squeeze(1) + 0.1 * lengths.mean()


@model("VITS (speech, gradients of lengths detached)", "transformers")
def vits() -> Case:
    config = hf.VitsConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=16,
        flow_size=8,
        spectrogram_bins=9,
        use_stochastic_duration_prediction=False,
        duration_predictor_filter_channels=8,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=1,
        upsample_initial_channel=8,
        upsample_rates=[4, 2],
        upsample_kernel_sizes=[8, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        layerdrop=0.0,
    )
    inner = hf.VitsModel(config)
    del inner.posterior_encoder  # of training with recorded speech
    for part in inner.modules():
        for name in ("dropout", "activation_dropout", "dropout_rate"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return Case(Speech(inner), {"ids": torch.randint(1, 20, (2, 6))}, "MSELoss", torch.randn(2, 48))
