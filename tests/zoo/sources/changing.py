"""Modules whose forward changes their buffers, or detaches tensors."""

import torch
from tests.zoo.sources.case import Case, classifier, model, pixels
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm


@model("Discriminator with spectral norm")
def spectral() -> Case:
    layers = spectral_norm(nn.Conv2d(3, 6, 3)), nn.LeakyReLU(0.1), nn.Flatten(), spectral_norm(nn.Linear(216, 5))
    return classifier(nn.Sequential(*layers), pixels(8))


class MovingCodes(nn.Module):
    """The nearest code of a codebook that moves towards what was nearest to it; gradients go straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 5)
        self.register_buffer("codes", torch.randn(8, 4))
        self.codes: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x)
        nearest = (h[:, None] - self.codes).square().sum(-1).argmin(1)
        with torch.no_grad():
            self.codes.mul_(0.9).add_(0.1 * F.one_hot(nearest, 8).to(h.dtype).T @ h.detach())
        return self.head(h + (self.codes[nearest] - h).detach())


@model("Codebook of moving averages, gradients straight through")
def moving_codes() -> Case:
    return classifier(MovingCodes(), torch.randn(6, 4))


class StraightThrough(nn.Module):
    """A codebook that is learned with the two losses of VQ-VAE, each of which stops one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.codes = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x)
        nearest = F.embedding((h[:, None] - self.codes).square().sum(-1).argmin(1), self.codes)
        y = self.head(h + (nearest - h).detach())
        pull = (nearest - h.detach()).square().mean() + 0.25 * (nearest.detach() - h).square().mean()
        return (y - x[:, :3]).square().mean() + pull


@model("VQ-VAE (straight through, two stopped gradients)")
def vq_vae() -> Case:
    return Case(StraightThrough(), {"x": torch.randn(6, 4)}, "")
