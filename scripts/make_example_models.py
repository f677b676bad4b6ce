"""Write the models of the examples: small networks with random weights, forward passes alone.

    python scripts/make_example_models.py [FOLDER]

They are tracked in examples/models; a test holds the files to this script.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from made_models import checked_model
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "models"
SEED = 11
#: Initial spread of embeddings and of the products of transformers (Radford et al. 2019).
SPREAD = 0.02
EPSILON = 1e-5
#: Beyond every score: what is hidden from attention.
HIDDEN = -1e9

Dims = Sequence[str | int]


class Network:
    """A graph that grows node by node; each method returns the name of what it computes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rng = np.random.default_rng(SEED)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int, spread: float | None = None) -> str:
        """A parameter of normal numbers; the default spread is He's, of the last axis."""
        spread = float(np.sqrt(2 / shape[-1])) if spread is None else spread
        return self.parameter(name, self._rng.normal(0, spread, shape).astype(np.float32))

    def parameter(self, name: str, value: np.ndarray) -> str:
        """A parameter that starts with this value."""
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def constant(self, value: np.ndarray) -> str:
        """A tensor that is not a parameter: a node, not an initializer."""
        return self.node("Constant", value=numpy_helper.from_array(value))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def node(self, op_type: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        output = name or f"{op_type.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, list(inputs), [output], name=output, **attributes))
        return output

    def split(self, value: str, parts: int) -> list[str]:
        outputs = [f"{value}.{k}" for k in range(parts)]
        self._nodes.append(helper.make_node("Split", [value], outputs, name=f"{value}.split", axis=-1))
        return outputs

    def linear(
        self, name: str, value: str, sizes: tuple[int, int], output: str = "", spread: float | None = None
    ) -> str:
        """A product of a matrix with a weight [outputs, inputs], as PyTorch keeps it; `sizes` are (inputs, outputs)."""
        inputs, outputs = sizes
        weight = self.weight(f"{name}.weight", outputs, inputs, spread=spread)
        bias = self.parameter(f"{name}.bias", np.zeros(outputs, np.float32))
        return self.node("Gemm", value, weight, bias, name=output or name, transB=1)

    def rows(self, name: str, value: str, inputs: int, outputs: int, output: str = "") -> str:
        """The same of a value with any axes before the last; the weight is [inputs, outputs]."""
        weight = self.weight(f"{name}.weight", inputs, outputs, spread=SPREAD)
        bias = self.parameter(f"{name}.bias", np.zeros(outputs, np.float32))
        return self.node("Add", self.node("MatMul", value, weight), bias, name=output)

    def norm(self, name: str, value: str, width: int) -> str:
        scale = self.parameter(f"{name}.weight", np.ones(width, np.float32))
        bias = self.parameter(f"{name}.bias", np.zeros(width, np.float32))
        return self.node("LayerNormalization", value, scale, bias, axis=-1, epsilon=EPSILON)

    def block(self, name: str, value: str, width: int, heads: int, mask: str) -> str:
        """A transformer's block, norms first: attention and two products, each beside what comes in."""
        normed = self.norm(f"{name}.norm1", value, width)
        parts = self.split(self.rows(f"{name}.attention.qkv", normed, width, 3 * width), 3)
        shape = self.ints(0, 0, heads, width // heads)
        query, key, values = (
            self.node("Transpose", self.node("Reshape", part, shape), perm=perm)
            for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        scale = self.constant(np.array((width // heads) ** -0.5, np.float32))
        scores = self.node("Add", self.node("Mul", self.node("MatMul", query, key), scale), mask)
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), values)
        joined = self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), self.ints(0, 0, width))
        value = self.node("Add", value, self.rows(f"{name}.attention.out", joined, width, width))
        normed = self.norm(f"{name}.norm2", value, width)
        wide = self.node("Relu", self.rows(f"{name}.up", normed, width, 4 * width))
        return self.node("Add", value, self.rows(f"{name}.down", wide, 4 * width, width))

    def model(self, inputs: Mapping[str, tuple[int, Dims]], output: str, dims: Dims) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info(name, kind, list(shape)) for name, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, list(dims))],
            self._weights,
        )
        return checked_model(graph, producer_name="trainweb-examples")


def digits() -> onnx.ModelProto:
    """``image`` (batch, 1, 8, 8) in [0, 1] -> ``logits`` (batch, 10)."""
    net = Network("digits")
    kernel = net.weight("conv.weight", 16, 1, 3, 3, spread=0.4)
    bias = net.parameter("conv.bias", np.zeros(16, np.float32))
    conv = net.node("Relu", net.node("Conv", "image", kernel, bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    flat = net.node("Flatten", net.node("MaxPool", conv, kernel_shape=[2, 2], strides=[2, 2]), axis=1)
    net.linear("output", net.node("Relu", net.linear("hidden", flat, (256, 64))), (64, 10), "logits", spread=0.1)
    return net.model({"image": (TensorProto.FLOAT, ["batch", 1, 8, 8])}, "logits", ["batch", 10])


def wine() -> onnx.ModelProto:
    """``features`` (batch, 13) -> ``logits`` (batch, 3)."""
    net = Network("wine")
    net.linear("output", net.node("Relu", net.linear("hidden", "features", (13, 32))), (32, 3), "logits", spread=0.1)
    return net.model({"features": (TensorProto.FLOAT, ["batch", 13])}, "logits", ["batch", 3])


def series() -> onnx.ModelProto:
    """``window`` (batch, 64, 1), the last values of a series -> ``next`` (batch, 32), those that follow."""
    net, width, window, ahead = Network("series"), 32, 64, 32
    steps = net.node("Transpose", "window", perm=[1, 0, 2])
    weight = net.weight("lstm.weight", 1, 4 * width, 1, spread=0.3)
    recurrent = net.weight("lstm.recurrence", 1, 4 * width, width, spread=0.2)
    bias = net.parameter("lstm.bias", np.zeros((1, 8 * width), np.float32))
    outputs = ["", "lstm.last"]
    net._nodes.append(
        helper.make_node("LSTM", [steps, weight, recurrent, bias], outputs, name="lstm", hidden_size=width)
    )
    net.linear("output", net.node("Squeeze", "lstm.last", net.ints(0)), (width, ahead), "next", spread=0.1)
    return net.model({"window": (TensorProto.FLOAT, ["batch", window, 1])}, "next", ["batch", ahead])


def ratings() -> onnx.ModelProto:
    """``user`` and ``item`` (batch) -> ``rating`` (batch, 1): a product of embeddings, and a bias of each."""
    net, width = Network("ratings"), 8
    rows = {"user": 200, "item": 100}
    taste = [net.node("Gather", net.weight(f"{k}.embedding", n, width, spread=0.3), k) for k, n in rows.items()]
    bias = [net.node("Gather", net.parameter(f"{k}.bias", np.zeros((n, 1), np.float32)), k) for k, n in rows.items()]
    match = net.node("ReduceSum", net.node("Mul", *taste), net.ints(1), keepdims=1)
    mean = net.parameter("mean.bias", np.array([3], np.float32))
    net.node("Add", net.node("Add", match, net.node("Add", *bias)), mean, name="rating")
    ids = {name: (TensorProto.INT64, ["batch"]) for name in rows}
    return net.model(ids, "rating", ["batch", 1])


def sentences() -> onnx.ModelProto:
    """``words`` (batch, length) up to 16, 0 for no word -> ``logits`` (batch, 2): a transformer of two blocks."""
    net, width, heads, vocabulary, length = Network("sentences"), 32, 4, 160, 16
    embedded = net.node("Gather", net.weight("words.embedding", vocabulary, width, spread=SPREAD), "words")
    places = net.weight("places.embedding", 1, length, width, spread=SPREAD)
    count = net.node("Shape", "words", start=1, end=2)
    value = net.node("Add", embedded, net.node("Slice", places, net.ints(0), count, net.ints(1)))
    zero = net.constant(np.array(0, np.int64))
    is_padding = net.node("Cast", net.node("Equal", "words", zero), to=TensorProto.FLOAT)
    hidden = net.node("Mul", is_padding, net.constant(np.array(HIDDEN, np.float32)))
    mask = net.node("Unsqueeze", hidden, net.ints(1, 2))
    for k in range(2):
        value = net.block(f"blocks.{k}", value, width, heads, mask)
    one = net.constant(np.array(1, np.float32))
    weights = net.node("Unsqueeze", net.node("Sub", one, is_padding), net.ints(2))
    total = net.node("ReduceSum", net.node("Mul", net.norm("norm", value, width), weights), net.ints(1), keepdims=0)
    mean = net.node("Div", total, net.node("ReduceSum", weights, net.ints(1), keepdims=0))
    net.linear("output", mean, (width, 2), "logits", spread=SPREAD)
    return net.model({"words": (TensorProto.INT64, ["batch", "length"])}, "logits", ["batch", 2])


def writer() -> onnx.ModelProto:
    """``letters`` (batch, 48) -> ``logits`` (batch, 48, 40): a GPT of two blocks on single letters."""
    net, width, heads, vocabulary, length = Network("writer"), 64, 4, 40, 48
    embedded = net.node("Gather", net.weight("letters.embedding", vocabulary, width, spread=SPREAD), "letters")
    value = net.node("Add", embedded, net.weight("places.embedding", 1, length, width, spread=SPREAD))
    later = np.triu(np.full((1, 1, length, length), HIDDEN, np.float32), 1)
    mask = net.constant(later)
    for k in range(2):
        value = net.block(f"blocks.{k}", value, width, heads, mask)
    net.rows("output", net.norm("norm", value, width), width, vocabulary, "logits")
    letters: tuple[int, Dims] = (TensorProto.INT64, ["batch", length])
    return net.model({"letters": letters}, "logits", ["batch", length, vocabulary])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "digits": digits,
    "wine": wine,
    "series": series,
    "ratings": ratings,
    "sentences": sentences,
    "writer": writer,
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in MODELS.items():
        (folder / f"{name}.onnx").write_bytes(make().SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
