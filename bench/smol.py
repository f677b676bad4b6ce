"""The architecture of SmolLM2-135M with random weights: a graph and its weights, without torch.

The nodes are those that PyTorch's exporter writes for `LlamaForCausalLM`: composed RMSNorm, rotary positions, grouped
attention by Expand, tied embedding, weights as [out, in] behind a Transpose. Initializers have Hugging Face's names.

.venv/bin/python bench/smol.py DIRECTORY [--layers 30] [--weights data|safetensors]
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, HEADS, KEY_HEADS, HIDDEN, LAYERS = 49_152, 576, 9, 3, 1536, 30
THETA, EPSILON = 1e5, 1e-5
DATA, SAFETENSORS = "model.onnx_data", "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"
OPSET = 18


class Writer:
    """Nodes of a graph in the making; each call returns the node's result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.small: dict[str, onnx.TensorProto] = {}

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"node_{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def constant(self, value: object, dtype: type = np.int64) -> str:
        """A small initializer, which is there once."""
        array: np.ndarray = np.asarray(value, dtype)
        name = f"value_{array.dtype}_" + "_".join(str(v) for v in array.shape + tuple(array.ravel().tolist()))
        self.small.setdefault(name, numpy_helper.from_array(array, name))
        return name


def shapes(layers: int = LAYERS) -> dict[str, tuple[int, ...]]:
    """The weights by their names in the repository of the model; the head is the embedding."""
    key = WIDTH // HEADS * KEY_HEADS
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (VOCABULARY, WIDTH)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        found[at + "input_layernorm.weight"] = (WIDTH,)
        for name, out in (("q", WIDTH), ("k", key), ("v", key), ("o", WIDTH)):
            found[f"{at}self_attn.{name}_proj.weight"] = (out, WIDTH)
        found[at + "post_attention_layernorm.weight"] = (WIDTH,)
        for name, shape in (("gate", (HIDDEN, WIDTH)), ("up", (HIDDEN, WIDTH)), ("down", (WIDTH, HIDDEN))):
            found[f"{at}mlp.{name}_proj.weight"] = shape
    return found | {"model.norm.weight": (WIDTH,)}


def graph_of(layers: int = LAYERS) -> onnx.ModelProto:
    """The model; its weights are named and shaped, but have no data."""
    g = Writer()
    ids = "input_ids"
    hidden = g("Gather", EMBEDDING, ids)
    cos, sin, mask = _positions(g, ids)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        hidden = g("Add", hidden, _attention(g, at, _norm(g, hidden, at + "input_layernorm.weight"), cos, sin, mask))
        normed = _norm(g, hidden, at + "post_attention_layernorm.weight")
        gate = _linear(g, normed, at + "mlp.gate_proj.weight")
        up = g("Mul", g("Mul", gate, g("Sigmoid", gate)), _linear(g, normed, at + "mlp.up_proj.weight"))
        hidden = g("Add", hidden, _linear(g, up, at + "mlp.down_proj.weight"))
    logits = _linear(g, _norm(g, hidden, "model.norm.weight"), EMBEDDING)
    g.nodes[-1].output[0] = "logits"
    assert logits == g.nodes[-1].name
    dims = ["batch", "sequence"]
    weights = [
        TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape) for name, shape in shapes(layers).items()
    ]
    graph = helper.make_graph(
        g.nodes,
        "main_graph",
        [helper.make_tensor_value_info(ids, TensorProto.INT64, dims)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*dims, VOCABULARY])],
        [*weights, *g.small.values()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, producer_name="pytorch", opset_imports=opsets, ir_version=10)


def _positions(g: Writer, ids: str) -> tuple[str, str, str]:
    """Cosines and sines of the rotary positions, and the causal mask."""
    length = g("Shape", ids, start=1, end=2)
    size = g("Squeeze", length, g.constant([0]))
    index = g("Range", g.constant(0), size, g.constant(1))
    half = WIDTH // HEADS // 2
    frequencies = g.constant((THETA ** -(np.arange(half) / half)).reshape(1, half), np.float32)
    angles = g("MatMul", g("Unsqueeze", g("Cast", index, to=1), g.constant([1])), frequencies)
    angles = g("Unsqueeze", g("Concat", angles, angles, axis=-1), g.constant([0, 1]))
    rows, columns = g("Unsqueeze", index, g.constant([1])), g("Unsqueeze", index, g.constant([0]))
    allowed = g("LessOrEqual", columns, rows)
    mask = g("Where", allowed, g.constant(0.0, np.float32), g.constant(np.finfo(np.float32).min, np.float32))
    return g("Cos", angles), g("Sin", angles), mask


def _norm(g: Writer, x: str, weight: str) -> str:
    squared = g("Pow", x, g.constant(2.0, np.float32))
    mean = g("Add", g("ReduceMean", squared, g.constant([-1]), keepdims=1), g.constant(EPSILON, np.float32))
    return g("Mul", weight, g("Mul", x, g("Reciprocal", g("Sqrt", mean))))


def _linear(g: Writer, x: str, weight: str) -> str:
    return g("MatMul", x, g("Transpose", weight, perm=[1, 0]))


def _rotated(g: Writer, x: str, cos: str, sin: str) -> str:
    half = WIDTH // HEADS // 2
    axis, end = g.constant([3]), g.constant([np.iinfo(np.int64).max])
    first = g("Slice", x, g.constant([0]), g.constant([half]), axis, g.constant([1]))
    second = g("Slice", x, g.constant([half]), end, axis, g.constant([1]))
    return g("Add", g("Mul", x, cos), g("Mul", g("Concat", g("Neg", second), first, axis=-1), sin))


def _attention(g: Writer, at: str, x: str, cos: str, sin: str, mask: str) -> str:
    size = WIDTH // HEADS

    def heads(name: str, count: int) -> str:
        rows = g("Reshape", _linear(g, x, f"{at}self_attn.{name}_proj.weight"), g.constant([0, 0, count, size]))
        return g("Transpose", rows, perm=[0, 2, 1, 3])

    def repeated(keys: str) -> str:
        wide = g("Expand", g("Unsqueeze", keys, g.constant([2])), g.constant([1, 1, HEADS // KEY_HEADS, 1, 1]))
        flat = g("Concat", g("Shape", x, start=0, end=1), g.constant([HEADS]), g.constant([-1, size]), axis=0)
        return g("Reshape", wide, flat)

    query = _rotated(g, heads("q", HEADS), cos, sin)
    key = repeated(_rotated(g, heads("k", KEY_HEADS), cos, sin))
    scores = g("MatMul", query, g("Transpose", key, perm=[0, 1, 3, 2]))
    scores = g("Add", g("Mul", scores, g.constant(size**-0.5, np.float32)), mask)
    mixed = g("MatMul", g("Softmax", scores, axis=-1), repeated(heads("v", KEY_HEADS)))
    rows = g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([0, 0, WIDTH]))
    return _linear(g, rows, f"{at}self_attn.o_proj.weight")


def values_of(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random weights as transformers initializes them; the same for a name and seed."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    random = np.random.default_rng([seed, *name.encode()])
    return (0.02 * random.standard_normal(shape, np.float32)).astype(np.float32)


Values = Callable[[str, tuple[int, ...]], np.ndarray]


def write_safetensors(path: Path, weights: Mapping[str, tuple[int, ...]], values: Values = values_of) -> None:
    """Write a file of float32 weights, one after the other."""
    header, at = {}, 0
    for name, shape in weights.items():
        end = at + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in weights.items():
            file.write(values(name, shape).tobytes())


def refer(model: onnx.ModelProto) -> None:
    """Make weights without data external, one after the other."""
    at = 0
    for tensor in model.graph.initializer:
        if tensor.raw_data:
            continue
        nbytes = 4 * int(np.prod(tensor.dims))
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": DATA, "offset": str(at), "length": str(nbytes)}
        tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in entries.items())
        at += nbytes


def write(directory: Path, layers: int = LAYERS, weights: str = "data") -> Path:
    """Write the model and its weights; the path of the model."""
    model = graph_of(layers)
    directory.mkdir(parents=True, exist_ok=True)
    if weights == "data":
        refer(model)
        with (directory / DATA).open("wb") as file:
            for name, shape in shapes(layers).items():
                file.write(values_of(name, shape).tobytes())
    else:
        write_safetensors(directory / SAFETENSORS, shapes(layers))
    path = directory / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--weights", choices=("data", "safetensors"), default="data")
    given = parser.parse_args()
    print(write(given.directory, given.layers, given.weights))


if __name__ == "__main__":
    main()
