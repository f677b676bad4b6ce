"""The network of tests/federated/task.py in PyTorch, and what is measured of it."""

from pathlib import Path

import numpy as np
import torch
from torch import nn


class Network(nn.Module):
    """``image`` (batch, 1, 28, 28) -> scores (batch, 10); parameters have the names of the ONNX file."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 5, stride=2)
        self.out = nn.Linear(8 * 6 * 6, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.max_pool2d(torch.relu(self.conv(image)), 2)
        scores: torch.Tensor = self.out(hidden.flatten(1))
        return scores


def load(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path) as file:
        return torch.from_numpy(file["image"]), torch.from_numpy(file["labels"])


def measure(network: Network, image: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy."""
    with torch.no_grad():
        scores = network(image)
        loss = nn.functional.cross_entropy(scores, labels)
        return float(loss), float((scores.argmax(1) == labels).float().mean())
