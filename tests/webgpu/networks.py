"""The benchmarks' networks, and the same in sizes that a software adapter trains fast."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import networks

sys.path.pop(0)  # it has a module "generate", as wasm_kernels/ has

STEPS, BATCHES, RATE = 50, 8, 1e-3
RATES = {"S": 3e-5}
"""Learning rates of other networks. At 1e-3 also float64 losses of S move by 1e-2 where weights differ by 2e-7."""


def bert(batch: int, length: int, width: int, heads: int, vocabulary: int) -> networks.Network:
    """Two layers of an encoder: norms behind the sums, keys of token 0 masked, and scores by the table of tokens."""
    net = networks.Network("Q", 23, dict(kind="gpt", batch=batch, S=length, V=vocabulary))
    ids, rng, depth = net.input([batch, length], tokens=True), net.rng, width // heads

    def tensor(*values: float) -> str:
        return net.constant(np.array(values, np.float32 if isinstance(values[0], float) else np.int64))

    def linear(x: str, n_in: int, n_out: int, name: str) -> str:
        product = net.op("MatMul", [x, net.parameter(f"{name}.w", rng.normal(0, 0.2, (n_in, n_out)))])
        return net.op("Add", [product, net.parameter(f"{name}.b", np.zeros(n_out))])

    def norm(x: str, name: str) -> str:
        inputs = [x, net.parameter(f"{name}.g", np.ones(width)), net.parameter(f"{name}.beta", np.zeros(width))]
        return net.op("LayerNormalization", inputs, axis=-1, epsilon=1e-5)

    def by_heads(x: str, perm: list[int]) -> str:
        return net.op("Transpose", [net.op("Reshape", [x, tensor(batch, length, heads, depth)])], perm=perm)

    def gelu(x: str) -> str:
        erf = net.op("Erf", [net.op("Div", [x, tensor(2**0.5)])])
        return net.op("Mul", [net.op("Mul", [x, net.op("Add", [erf, tensor(1.0)])]), tensor(0.5)])

    table = net.parameter("tokens", rng.normal(0, 0.2, (vocabulary, width)))
    places = net.parameter("places", rng.normal(0, 0.2, (length, width)))
    is_padding = net.op("Unsqueeze", [net.op("Equal", [ids, tensor(0)]), tensor(1, 2)])
    mask = net.op("Where", [is_padding, tensor(-1e9), tensor(0.0)])
    x = norm(net.op("Add", [net.op("Gather", [table, ids], axis=0), places]), "embedding")
    for n in range(2):
        q, k, v = (linear(x, width, width, f"{n}.{part}") for part in "qkv")
        scores = net.op("MatMul", [by_heads(q, [0, 2, 1, 3]), by_heads(k, [0, 2, 3, 1])])
        shares = net.op("Softmax", [net.op("Add", [net.op("Div", [scores, tensor(depth**0.5)]), mask])], axis=-1)
        y = net.op("Transpose", [net.op("MatMul", [shares, by_heads(v, [0, 2, 1, 3])])], perm=[0, 2, 1, 3])
        y = linear(net.op("Reshape", [y, tensor(batch, length, width)]), width, width, f"{n}.out")
        x = norm(net.op("Add", [x, y]), f"{n}.norm1")
        y = linear(gelu(linear(x, width, 2 * width, f"{n}.up")), 2 * width, width, f"{n}.down")
        x = norm(net.op("Add", [x, y]), f"{n}.norm2")
    x = norm(gelu(linear(x, width, width, "head")), "head.norm")
    x = net.op("MatMul", [x, net.op("Transpose", [table], perm=[1, 0])])
    net.output(net.op("Reshape", [x, tensor(batch * length, vocabulary)]), batch * length, vocabulary)
    return net


SMALL: dict[str, Callable[[], networks.Network]] = {
    "C": lambda: networks.lenet("C", 4, 3),
    "D": lambda: networks.resnet("D", 4, 4, norm=True, size=16),
    "E": lambda: networks.gpt("E", 5, batch=2, length=16, width=32, heads=2, layers=2, vocabulary=48),
    "Q": lambda: bert(2, 12, 24, 2, 40),
    "R": lambda: networks.recurrent("R", "LSTM", 4, 4, 8, steps=8, features=8, hidden=16),
    "S": lambda: networks.separable("S", 2, 10, size=32),
    "X": lambda: networks.convnext("X", 1, 13, width=24, size=8, blocks=2),
}
"""By the letter of a benchmark; Q is none."""


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

__all__ = ["BATCHES", "RATE", "RATES", "SMALL", "SPECIAL", "STEPS", "networks"]
