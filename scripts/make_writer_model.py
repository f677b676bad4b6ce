"""Write the language model of the demo that learns to write: a small GPT over characters, with random weights.

    python scripts/make_writer_model.py OUTPUT.onnx

Only the forward pass; the page builds training, eval and optimizer models from it by itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from made_models import checked_model, write_model
from onnx import TensorProto, helper, numpy_helper

SEED = 7
#: The printable characters of ASCII, and the line feed.
VOCABULARY = 96
CONTEXT = 128
WIDTH, HEADS, LAYERS = 128, 4, 4
#: Weights as GPT-2 starts (Radford et al. 2019); products that add to the residual stream start smaller.
DEVIATION = 0.02


class Decoder:
    """Collects the nodes and weights of the model."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, name: str, value: object, dtype: type = np.int64) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op_type: str, inputs: str, output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs.split(), [output], name=output, **attributes))
        return output

    def weight(self, name: str, shape: tuple[int, ...], deviation: float = DEVIATION) -> str:
        return self.constant(name, self.rng.normal(0, deviation, shape), np.float32)

    def linear(self, x: str, name: str, sizes: tuple[int, int], deviation: float = DEVIATION) -> str:
        self.weight(f"{name}.weight", sizes, deviation)
        self.constant(f"{name}.bias", np.zeros(sizes[1]), np.float32)
        self.node("MatMul", f"{x} {name}.weight", f"{name}.product")
        return self.node("Add", f"{name}.product {name}.bias", name)

    def norm(self, x: str, name: str) -> str:
        self.constant(f"{name}.weight", np.ones(WIDTH), np.float32)
        self.constant(f"{name}.bias", np.zeros(WIDTH), np.float32)
        return self.node("LayerNormalization", f"{x} {name}.weight {name}.bias", name, axis=-1)

    def attention(self, x: str, name: str) -> str:
        """Causal attention: [batch, length, WIDTH] -> the same shape."""
        residual = DEVIATION / math.sqrt(2 * LAYERS)
        joined = self.linear(x, f"{name}.qkv", (WIDTH, 3 * WIDTH))
        parts = [f"{name}.{part}" for part in "qkv"]
        self.nodes.append(helper.make_node("Split", [joined, "three"], parts, name=f"{name}.split", axis=-1))
        for part, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
            self.node("Reshape", f"{part} heads", f"{part}.heads")
            self.node("Transpose", f"{part}.heads", f"{part}.turned", perm=order)
        self.node("MatMul", f"{parts[0]}.turned {parts[1]}.turned", f"{name}.raw")
        self.node("Mul", f"{name}.raw scale", f"{name}.scaled")
        self.node("Add", f"{name}.scaled mask", f"{name}.scores")
        self.node("Softmax", f"{name}.scores", f"{name}.shares", axis=-1)
        self.node("MatMul", f"{name}.shares {parts[2]}.turned", f"{name}.mixed")
        self.node("Transpose", f"{name}.mixed", f"{name}.back", perm=[0, 2, 1, 3])
        self.node("Reshape", f"{name}.back joined", f"{name}.flat")
        return self.linear(f"{name}.flat", f"{name}.out", (WIDTH, WIDTH), residual)

    def feed_forward(self, x: str, name: str) -> str:
        hidden = self.linear(x, f"{name}.up", (WIDTH, 4 * WIDTH))
        self.node("Div", f"{hidden} root2", f"{name}.halved")
        self.node("Erf", f"{name}.halved", f"{name}.erf")
        self.node("Add", f"{name}.erf one", f"{name}.shifted")
        self.node("Mul", f"{hidden} {name}.shifted", f"{name}.doubled")
        self.node("Mul", f"{name}.doubled half", f"{name}.gelu")
        return self.linear(f"{name}.gelu", f"{name}.down", (4 * WIDTH, WIDTH), DEVIATION / math.sqrt(2 * LAYERS))

    def positions(self) -> None:
        """``mask`` hides the characters that follow; ``positions`` has an embedding for each place."""
        self.node("Shape", "ids", "length", start=1, end=2)
        self.node("Slice", "position.weight zero length", "positions")
        self.node("Concat", "length length", "square", axis=0)
        self.node("Expand", "hidden square", "hidden.all")
        self.node("Trilu", "hidden.all above", "mask", upper=1)


def build_model() -> onnx.ModelProto:
    """Return the model: ``ids`` (batch, length), at most 128 long -> ``logits`` (batch, length, 96)."""
    g = Decoder()
    g.weight("token.weight", (VOCABULARY, WIDTH))
    g.weight("position.weight", (CONTEXT, WIDTH))
    g.constant("heads", [0, 0, HEADS, WIDTH // HEADS])
    g.constant("joined", [0, 0, WIDTH])
    g.constant("three", [WIDTH] * 3)
    g.constant("zero", [0])
    g.constant("above", 1)
    for name, value in {"one": 1.0, "half": 0.5, "root2": math.sqrt(2)}.items():
        g.constant(name, value, np.float32)
    g.nodes.append(helper.make_node("Constant", [], ["scale"], name="scale", value_float=math.sqrt(HEADS / WIDTH)))
    g.constant("hidden", -1e9, np.float32)
    g.positions()
    g.node("Gather", "token.weight ids", "tokens")
    x = g.node("Add", "tokens positions", "embedded")
    for layer in range(LAYERS):
        for part in (g.attention, g.feed_forward):
            name = f"{layer}.{part.__name__}"
            x = g.node("Add", f"{x} {part(g.norm(x, f'{name}.norm'), name)}", f"{name}.sum")
    g.node("MatMul", f"{g.norm(x, 'norm')} {g.weight('head.weight', (WIDTH, VOCABULARY))}", "logits")
    graph = helper.make_graph(
        g.nodes,
        "writer",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY])],
        g.weights,
    )
    return checked_model(graph, producer_name="trainweb-demo")


if __name__ == "__main__":
    write_model(__doc__, build_model)
