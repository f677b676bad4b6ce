"""Record small PyTorch modules as both exporters write them, with five steps of PyTorch's own training.

    ./build.sh record-exports [NAME ...]

Runs in a separate environment with torch (`environments.py`); the tests replay the files without it. Each module
becomes `NAME.EXPORTER.onnx`. `NAME.npz` holds the truth: the feeds, `named_parameters()` before training, and for SGD
and AdamW the losses and the final parameters.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from recording import EXPORTERS, export
from torch import nn
from torch.nn import functional as F  # noqa: N812

TARGET = Path(__file__).parents[1] / "tests" / "conformance" / "exports"
STEPS = 5
RATE = 0.01


class CausalAttention(nn.Module):
    """A causal mask of -inf, a buffer, is added to the scores; merged heads make transposed weights."""

    def __init__(self, width: int = 8, length: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, 11)
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1]) + self.mask
        return self.out(scores.softmax(-1) @ self.v(x))


class FiniteMaskAttention(nn.Module):
    """The mask is torch.finfo's least number, and not an attribute at all."""

    def __init__(self, width: int = 8, length: int = 6) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 3 * width)
        self.out = nn.Linear(width, 3)
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.full((self.length, self.length), torch.finfo(torch.float32).min).triu(1)
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5 + mask
        return self.out((scores.softmax(-1) @ v).mean(1))


class RotaryAttention(nn.Module):
    """Rotary position tables, computed in forward and so folded by exporters."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, 3)
        self.register_buffer("inv_freq", 1.0 / 100 ** (torch.arange(0, width, 2) / width))

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[1])[:, None] * self.inv_freq
        angles = torch.cat([angles, angles], -1)
        q, k = (self.rotate(p(x), angles.cos(), angles.sin()) for p in (self.q, self.k))
        return self.out(((q @ k.transpose(1, 2)).softmax(-1) @ self.v(x)).mean(1))


class TiedLanguageModel(nn.Module):
    """The head's weight is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 13, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.embed(ids))))


class BatchNormNet(nn.Module):
    """Running statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(F.relu(self.bn2(self.conv2(x))).flatten(2).mean(2))


class EqualNorms(nn.Module):
    """Norms begin as equal ones and zeros, which exporters make one tensor."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.out = nn.Linear(width, 3)
        for layer in self.inner:
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for inner, norm in zip(self.inner, self.norms, strict=True):
            x = x + torch.tanh(inner(norm(x)))
        return self.out(x)


class LearnedTemperature(nn.Module):
    """Scalars that are learned: a gate and CLIP's logit scale; 0.5 is none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 3)
        self.gate = nn.Parameter(torch.tensor(0.3))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = x + torch.tanh(self.gate) * torch.sin(x) * 0.5
        return self.b(F.normalize(x, dim=-1)) * self.logit_scale.exp()


class MelFrontEnd(nn.Module):
    """A fixed matrix of a product, as mel filters are, before a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mel", torch.rand(9, 6))
        self.register_buffer("mean", torch.rand(6))
        self.fc = nn.Linear(6, 3)

    def forward(self, power: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.log(power.abs() @ self.mel + 1e-3) - self.mean)


class SplineLayer(nn.Module):
    """Radial basis functions on fixed knots with trained coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2, 2, 7))
        self.coefficients = nn.Parameter(torch.randn(7 * 5, 3) * 0.2)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        basis = torch.exp(-(((x * self.scale).unsqueeze(-1) - self.knots) ** 2))
        return basis.flatten(1) @ self.coefficients


class WeightNorm(nn.Module):
    """The weight is computed from a direction and a length."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(5, 6))
        self.out = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.fc(x)))


class PositionAndClassToken(nn.Module):
    """Parameters that are added or joined, not multiplied; layer scale; frozen features."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv1d(3, 6, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 6) * 0.1)
        self.position = nn.Parameter(torch.randn(1, 5, 6) * 0.1)
        self.gamma = nn.Parameter(torch.full((6,), 0.1))
        self.norm, self.mlp, self.head = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        x = x + self.gamma * F.gelu(self.mlp(self.norm(x)))
        return self.head(x[:, 0])


class SinusoidalPositions(nn.Module):
    """A table added to activations as a learned one is, but a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        angles = torch.arange(5)[:, None] / 10 ** (torch.arange(0, 6, 2) / 6)
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], 1))
        self.head = nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids) + self.table)


def cases() -> Iterator[tuple[str, nn.Module, torch.Tensor, torch.Tensor]]:
    """Name, module, input, labels."""
    torch.manual_seed(3)
    for name, make, feed, labels in (
        ("causal_attention", CausalAttention, torch.randint(0, 11, (4, 6)), torch.randint(0, 11, (4, 6))),
        ("finite_mask", FiniteMaskAttention, torch.randn(4, 6, 4), torch.randint(0, 3, (4,))),
        ("rotary", RotaryAttention, torch.randn(4, 6, 4), torch.randint(0, 3, (4,))),
        ("tied", TiedLanguageModel, torch.randint(0, 13, (4, 5)), torch.randint(0, 13, (4, 5))),
        ("batch_norm", BatchNormNet, torch.randn(6, 2, 7, 7), torch.randint(0, 3, (6,))),
        ("equal_norms", EqualNorms, torch.randn(5, 6), torch.randint(0, 3, (5,))),
        ("temperature", LearnedTemperature, torch.randn(5, 5), torch.randint(0, 3, (5,))),
        ("mel", MelFrontEnd, torch.randn(5, 9), torch.randint(0, 3, (5,))),
        ("spline", SplineLayer, torch.randn(6, 5), torch.randint(0, 3, (6,))),
        ("weight_norm", WeightNorm, torch.randn(6, 5), torch.randint(0, 3, (6,))),
        ("tokens", PositionAndClassToken, torch.randn(4, 3, 8), torch.randint(0, 3, (4,))),
        ("sinusoidal", SinusoidalPositions, torch.randint(0, 9, (4, 5)), torch.randint(0, 3, (4, 5))),
    ):
        torch.manual_seed(7)
        yield name, make(), feed, labels


def train(module: nn.Module, x: torch.Tensor, labels: torch.Tensor, kind: str) -> tuple[list[float], nn.Module]:
    """Losses of `STEPS` steps, and the module after them."""
    make = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}[kind]
    optimizer = make(module.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        y = module(x)
        loss = F.cross_entropy(y.reshape(-1, y.shape[-1]), labels.reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, module


def main() -> None:
    """Record all cases, or those named."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, module, x, labels in cases():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        module.train()
        before = {k: v.detach().clone() for k, v in module.state_dict().items()}
        truth = {"x": x.numpy(), "labels": labels.numpy()}
        truth |= {f"before/{k}": p.detach().numpy().copy() for k, p in module.named_parameters()}
        for exporter in EXPORTERS:
            module.load_state_dict(before)
            export(module, {"x": x}, ["y"], TARGET / f"{name}.{exporter}.onnx", exporter)
        for kind in ("SGD", "AdamW"):
            module.load_state_dict(before)
            losses, _ = train(module, x, labels, kind)
            truth[f"{kind}/losses"] = np.array(losses, np.float32)
            truth |= {f"{kind}/after/{k}": p.detach().numpy().copy() for k, p in module.named_parameters()}
        np.savez_compressed(TARGET / f"{name}.npz", **truth)
        print(name, *(f"{f.name} {f.stat().st_size}" for f in sorted(TARGET.glob(f"{name}.*"))))


if __name__ == "__main__":
    main()
