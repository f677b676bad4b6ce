"""The definition of a model of the zoo, and the list of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Case:
    """A module with the inputs of its forward, in order, and what its output is compared with."""

    module: nn.Module
    feeds: dict[str, torch.Tensor]
    loss: str
    """A key of LOSSES, or "" where the output is the loss itself."""
    target: torch.Tensor | None = None


@dataclass(frozen=True)
class Source:
    """How a case is made, and what docs/models.md says of it."""

    title: str
    library: str
    make: Callable[[], Case]


def _cross_entropy(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y.reshape(-1, y.shape[-1]), labels.reshape(-1))


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "CrossEntropyLoss": _cross_entropy,
    "CrossEntropyLoss of axis 1": F.cross_entropy,
    "MSELoss": F.mse_loss,
    "BCEWithLogitsLoss": F.binary_cross_entropy_with_logits,
}
"""Losses by the name of the same loss here; classes are the last axis unless the name says otherwise."""

SOURCES: dict[str, Source] = {}


def model(title: str, library: str = "torch") -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Put a function that makes a case into the zoo, under its name."""

    def add(make: Callable[[], Case]) -> Callable[[], Case]:
        name = make.__name__.strip("_")
        if name in SOURCES:
            raise ValueError(f"two models are called {name}")
        SOURCES[name] = Source(title, library, make)
        return make

    return add


def pixels(size: int, channels: int = 3, batch: int = 4) -> torch.Tensor:
    """Random images (batch, channels, size, size)."""
    return torch.randn(batch, channels, size, size)


def classes(count: int, *shape: int) -> torch.Tensor:
    """Random labels below `count`."""
    return torch.randint(0, count, shape)


def classifier(module: nn.Module, x: torch.Tensor, count: int = 5) -> Case:
    """A case whose module gives a score for each class and row of `x`."""
    return Case(module, {"x": x}, "CrossEntropyLoss", classes(count, x.shape[0]))
