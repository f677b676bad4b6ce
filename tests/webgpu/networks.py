"""The benchmarks' networks, and the same in sizes that a software adapter trains fast."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import networks

sys.path.pop(0)  # it has a module "generate", as wasm_kernels/ has

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


def dropping() -> networks.Network:
    """A perceptron with dropout between its layers."""
    net = networks.Network("dropping", 21, dict(kind="mlp", batch=8))
    x = net.op("Relu", [net.linear(net.input([8, 12]), 8, 12, 33, "fc1", needs_dx=False)])
    x = net.op("Dropout", [x, net.constant(np.float32(0.4)), net.constant(np.array(True))])
    net.output(net.linear(x, 8, 33, networks.N_CLASSES, "fc2"), 8, networks.N_CLASSES)
    return net


SPECIAL: dict[str, Callable[[], networks.Network]] = {
    "dropout": dropping,
    "head_loss": lambda: networks.gpt("V", 22, batch=2, length=16, width=16, heads=1, layers=1, vocabulary=1100),
}
"""By the template that they need."""

__all__ = ["BATCHES", "RATE", "SMALL", "SPECIAL", "STEPS", "networks"]
