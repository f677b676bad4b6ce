"""The architecture of SmolLM2 in several sizes with random weights: a graph and its weights, without torch.

The nodes are those that PyTorch's exporter writes for `LlamaForCausalLM`: composed RMSNorm, rotary positions, grouped
attention by Expand, tied embedding, weights as [out, in] behind a Transpose. Initializers have Hugging Face's names.

.venv/bin/python bench/smol.py DIRECTORY [--size 135M] [--layers 30] [--weights data|safetensors]
"""

from __future__ import annotations

import argparse
import json
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

THETA, EPSILON = 1e5, 1e-5
CODES = {"float32": "F32", "float16": "F16"}
DATA, EXTERNAL, SAFETENSORS = "model.onnx_data", "model.onnx.data", "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
"""The exporter's name for the tied table."""
FOLDED = "pkg.onnxscript.optimizer.folded_from"
SCOPES = "pkg.torch.onnx.name_scopes"
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FX_NODE = "pkg.torch.onnx.fx_node"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
INSIDE = 256
"""Bytes up to which data lies in the graph."""
OPSET = 18


@dataclass(frozen=True, slots=True)
class Size:
    """Widths and counts of a model."""

    layers: int = 30
    width: int = 576
    heads: int = 9
    key_heads: int = 3
    hidden: int = 1536
    vocabulary: int = 49_152

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads


SIZES = {
    "4M": Size(layers=6, width=192, heads=3, hidden=512, vocabulary=8192),
    "25M": Size(layers=12, width=384, heads=6, key_heads=2, hidden=1024, vocabulary=16_384),
    "135M": Size(),
    "360M": Size(layers=32, width=960, heads=15, key_heads=5, hidden=2560),
}
SMOLLM2_135M = SIZES["135M"]


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
        """A small initializer, which is there once. Its name tells that it is no parameter, as the exporter's do."""
        array: np.ndarray = np.asarray(value, dtype)
        key = f"{array.dtype} {array.tolist()}"
        return self.small.setdefault(key, numpy_helper.from_array(array, f"val_{len(self.small)}")).name


def shapes(size: Size = SMOLLM2_135M) -> dict[str, tuple[int, ...]]:
    """The weights by their names in the repository of the model; the head is the embedding."""
    width, key, hidden = size.width, size.head * size.key_heads, size.hidden
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (size.vocabulary, width)}
    for layer in range(size.layers):
        at = f"model.layers.{layer}."
        found[at + "input_layernorm.weight"] = (width,)
        for name, out in (("q", width), ("k", key), ("v", key), ("o", width)):
            found[f"{at}self_attn.{name}_proj.weight"] = (out, width)
        found[at + "post_attention_layernorm.weight"] = (width,)
        for name, shape in (("gate", (hidden, width)), ("up", (hidden, width)), ("down", (width, hidden))):
            found[f"{at}mlp.{name}_proj.weight"] = shape
    return found | {"model.norm.weight": (width,)}


def graph_of(size: Size = SMOLLM2_135M) -> onnx.ModelProto:
    """The model; its weights are named and shaped, but have no data."""
    g = Writer()
    ids = "input_ids"
    hidden = g("Gather", EMBEDDING, ids)
    cos, sin, mask = _positions(g, ids, size)
    for layer in range(size.layers):
        at = f"model.layers.{layer}."
        normed = _norm(g, hidden, at + "input_layernorm.weight")
        hidden = g("Add", hidden, _attention(g, size, at, normed, cos, sin, mask))
        normed = _norm(g, hidden, at + "post_attention_layernorm.weight")
        gate = _linear(g, normed, at + "mlp.gate_proj.weight")
        up = g("Mul", g("Mul", gate, g("Sigmoid", gate)), _linear(g, normed, at + "mlp.up_proj.weight"))
        hidden = g("Add", hidden, _linear(g, up, at + "mlp.down_proj.weight"))
    logits = _linear(g, _norm(g, hidden, "model.norm.weight"), EMBEDDING)
    g.nodes[-1].output[0] = "logits"
    assert logits == g.nodes[-1].name
    dims = ["batch", "sequence"]
    weights = [TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape) for name, shape in shapes(size).items()]
    graph = helper.make_graph(
        g.nodes,
        "main_graph",
        [helper.make_tensor_value_info(ids, TensorProto.INT64, dims)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*dims, size.vocabulary])],
        [*weights, *g.small.values()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, producer_name="pytorch", opset_imports=opsets, ir_version=10)


def _positions(g: Writer, ids: str, size: Size) -> tuple[str, str, str]:
    """Cosines and sines of the rotary positions, and the causal mask."""
    length = g("Shape", ids, start=1, end=2)
    count = g("Squeeze", length, g.constant([0]))
    index = g("Range", g.constant(0), count, g.constant(1))
    half = size.head // 2
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


def _rotated(g: Writer, x: str, half: int, cos: str, sin: str) -> str:
    axis, end = g.constant([3]), g.constant([np.iinfo(np.int64).max])
    first = g("Slice", x, g.constant([0]), g.constant([half]), axis, g.constant([1]))
    second = g("Slice", x, g.constant([half]), end, axis, g.constant([1]))
    return g("Add", g("Mul", x, cos), g("Mul", g("Concat", g("Neg", second), first, axis=-1), sin))


def _attention(g: Writer, size: Size, at: str, x: str, cos: str, sin: str, mask: str) -> str:
    def heads(name: str, count: int) -> str:
        rows = g("Reshape", _linear(g, x, f"{at}self_attn.{name}_proj.weight"), g.constant([0, 0, count, size.head]))
        return g("Transpose", rows, perm=[0, 2, 1, 3])

    def repeated(keys: str) -> str:
        wide = g(
            "Expand", g("Unsqueeze", keys, g.constant([2])), g.constant([1, 1, size.heads // size.key_heads, 1, 1])
        )
        flat = g("Concat", g("Shape", x, start=0, end=1), g.constant([size.heads]), g.constant([-1, size.head]), axis=0)
        return g("Reshape", wide, flat)

    query = _rotated(g, heads("q", size.heads), size.head // 2, cos, sin)
    key = repeated(_rotated(g, heads("k", size.key_heads), size.head // 2, cos, sin))
    scores = g("MatMul", query, g("Transpose", key, perm=[0, 1, 3, 2]))
    scores = g("Add", g("Mul", scores, g.constant(size.head**-0.5, np.float32)), mask)
    mixed = g("MatMul", g("Softmax", scores, axis=-1), repeated(heads("v", size.key_heads)))
    rows = g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([0, 0, size.width]))
    return _linear(g, rows, f"{at}self_attn.o_proj.weight")


def values_of(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random weights as transformers initializes them; the same for a name and seed."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    random = np.random.default_rng([seed, *name.encode()])
    return (0.02 * random.standard_normal(shape, np.float32)).astype(np.float32)


Values = Callable[[str, tuple[int, ...]], np.ndarray]


def write_safetensors(
    path: Path, weights: Mapping[str, tuple[int, ...]], values: Values = values_of, dtype: str = "float32"
) -> None:
    """Write a file of float32 or float16 weights, one after the other."""
    header, at = {}, 0
    for name, shape in weights.items():
        end = at + np.dtype(dtype).itemsize * int(np.prod(shape))
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in weights.items():
            file.write(values(name, shape).astype(dtype).tobytes())


def as_halves(model: onnx.ModelProto, weights: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Declare weights as float16, which Cast nodes make float32 of."""
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.data_type = TensorProto.FLOAT16
    wide = {name: f"{name}.float32" for name in weights}
    nodes = [helper.make_node("Cast", [name], [wide[name]], f"{name}/cast", to=TensorProto.FLOAT) for name in weights]
    for node in model.graph.node:
        node.input[:] = [wide.get(name, name) for name in node.input]
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


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


def write(directory: Path, size: Size = SMOLLM2_135M, weights: str = "data") -> Path:
    """Write the model and its weights; the path of the model."""
    model = graph_of(size)
    directory.mkdir(parents=True, exist_ok=True)
    if weights == "data":
        refer(model)
        with (directory / DATA).open("wb") as file:
            for name, shape in shapes(size).items():
                file.write(values_of(name, shape).tobytes())
    else:
        write_safetensors(directory / SAFETENSORS, shapes(size))
    path = directory / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


Makers = dict[str, Callable[[], np.ndarray]]


def write_optimized(directory: Path, size: Size = SMOLLM2_135M, length: int = 128) -> dict[str, Path]:
    """Write the model and its data as the default of PyTorch's dynamo exporter does, for one length of text.

    The exporter's optimizer computes what depends on constants alone: transposed weights, the mask, and for each layer
    the tables of rotary positions. It merges equal norms. Notes tell what it folded, the module of a node, and its
    call of torch where that names a norm.

    Returns
    -------
    dict of str to Path
        `model` and `data`.
    """
    model, weights = graph_of(size), shapes(size)
    graph = model.graph
    values, sources = _fold(graph, weights, length)
    lines = [f"p_{k}: PARAMETER target={name!r}" for k, name in enumerate((*weights, HEAD))]
    graph.metadata_props.append(_note(SIGNATURE, "\n# inputs\n" + "\n".join(lines)))
    small = [tensor for tensor in graph.initializer if tensor.raw_data]
    del graph.initializer[:]
    graph.initializer.extend(small)
    directory.mkdir(parents=True, exist_ok=True)
    paths = {"model": directory / "model.onnx", "data": directory / EXTERNAL}
    with paths["data"].open("wb") as file:
        for name, make in values.items():
            array = np.ascontiguousarray(make())
            tensor = numpy_helper.from_array(array, name)
            if name not in sources and not name.startswith("node_"):
                tensor.metadata_props.append(_note(KIND, "PARAMETER"))
            if name in sources:
                tensor.metadata_props.append(_note(FOLDED, f"[{sources[name]!r}]"))
            if array.nbytes > INSIDE:
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                place = {"location": EXTERNAL, "offset": file.tell(), "length": array.nbytes}
                tensor.external_data.extend(_note(key, str(value)) for key, value in place.items())
                file.write(array.tobytes())
            graph.initializer.append(tensor)
    paths["model"].write_bytes(model.SerializeToString())
    return paths


def _note(key: str, value: str) -> onnx.StringStringEntryProto:
    return onnx.StringStringEntryProto(key=key, value=value)


def _fold(graph: Any, weights: dict[str, tuple[int, ...]], length: int) -> tuple[Makers, dict[str, str]]:
    """Replace nodes on constants by their results; values by name, and of which weight each transposed one is."""
    norms = [name for name, shape in weights.items() if len(shape) == 1]
    names, order = {EMBEDDING: HEAD} | dict.fromkeys(norms, norms[0]), {name: k for k, name in enumerate(weights)}
    tables, past = _tables(graph, length)
    values: Makers = {HEAD: partial(values_of, EMBEDDING, weights[EMBEDDING])}
    sources: dict[str, str] = {}
    folded: dict[str, str] = {}
    uses: Counter[str] = Counter()
    nodes = []
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in weights and node.input[0] != EMBEDDING:
            folded[node.output[0]] = name = f"val_{len(graph.initializer) + len(folded)}"
            sources[name] = node.input[0]
            values[name] = partial(_turned, node.input[0], weights[node.input[0]])
            continue
        if node.output[0] in past:
            continue
        for k, name in enumerate(node.input):
            source = name if name in weights else sources.get(folded.get(name, ""), "")
            if source:
                module = source.rpartition(".")[0]
                node.metadata_props.append(_note(SCOPES, f"['', {module!r}, {node.output[0]!r}]"))
            if name in norms:
                call = f"call_function[target=torch.ops.aten.mul.Tensor](args = (%p_{order[name]}, %x), kwargs = {{}})"
                node.metadata_props.append(_note(FX_NODE, f"%{node.output[0]} = {call}"))
                values.setdefault(norms[0], partial(values_of, norms[0], weights[norms[0]]))
            if name in tables:
                # A layer has a table for its queries and keys; the mask is one.
                folded[name] = name if "Where" in name else f"{name}_{uses[name] // 2}"
                uses[name] += 1
                values[folded[name]] = partial(np.asarray, tables[name])
            node.input[k] = folded.get(name, names.get(name, name))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return values, sources


def _turned(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return values_of(name, shape).T


def _tables(graph: Any, length: int) -> tuple[dict[str, np.ndarray], set[str]]:
    """Cosines, sines and the mask, and the results of all nodes that lead to them."""
    makers = {node.output[0]: node for node in graph.node}
    ends = [name for name, node in makers.items() if node.op_type in ("Cos", "Sin", "Where")]
    past, queue = set(ends), list(ends)
    for name in queue:
        queue += [read for read in makers[name].input if read in makers and read not in past]
        past.update(queue)
    nodes = [node for node in graph.node if node.output[0] in past]
    inputs = list(graph.input)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ends]
    small = [tensor for tensor in graph.initializer if tensor.raw_data]
    part = helper.make_graph(nodes, "tables", inputs, outputs, small)
    model = helper.make_model(part, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    results = ReferenceEvaluator(model).run(None, {inputs[0].name: np.zeros((1, length), np.int64)})
    for dim, number in zip(graph.input[0].type.tensor_type.shape.dim, (1, length), strict=True):
        dim.dim_value = number
    return dict(zip(ends, results, strict=True)), past


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size", choices=SIZES, default="135M")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--weights", choices=("data", "safetensors"), default="data")
    given = parser.parse_args()
    size = SIZES[given.size]
    print(write(given.directory, replace(size, layers=given.layers or size.layers), given.weights))


if __name__ == "__main__":
    main()
