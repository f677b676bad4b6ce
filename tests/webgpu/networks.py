"""The benchmarks' networks, and the same in sizes that a software adapter trains fast."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import networks

STEPS, BATCHES, RATE = 50, 8, 1e-3

SMALL: dict[str, Callable[[], networks.Network]] = {
    "C": lambda: networks.lenet("C", 4, 3),
    "D": lambda: networks.resnet("D", 4, 4, norm=True, size=16),
    "E": lambda: networks.gpt("E", 5, batch=2, length=16, width=32, heads=2, layers=2, vocabulary=48),
    "R": lambda: networks.recurrent("R", "LSTM", 4, 4, 8, steps=8, features=8, hidden=16),
    "S": lambda: networks.separable("S", 2, 10, size=32),
    "X": lambda: networks.convnext("X", 1, 13, width=24, size=8, blocks=2),
}
"""By the letter of a benchmark."""

__all__ = ["BATCHES", "RATE", "SMALL", "STEPS", "networks"]
