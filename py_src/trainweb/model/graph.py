"""The typed graph that every stage works on: no protobuf, no numpy.

Edges are names, as in ONNX. A stage takes a `Graph` and returns a `Graph`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

Dim = int | str | None
"""A static size, a symbol, or unknown."""

STRUCT_FORMAT = {
    "float32": "f",
    "uint8": "B",
    "int8": "b",
    "uint16": "H",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "bool": "?",
    "float16": "e",
    "float64": "d",
    "uint32": "I",
    "uint64": "Q",
}
"""`struct` format characters of the dtypes Python can read."""

ITEM_SIZE = {name: struct.calcsize(f"<{code}") for name, code in STRUCT_FORMAT.items()} | {"bfloat16": 2}
"""Bytes per element of each dtype."""

NIBBLES = ("int4", "uint4")
"""Dtypes of constants alone, two elements a byte: the first in its lower half."""


def data_bytes(dtype: str, count: int) -> int:
    """Bytes of so many elements one after the other."""
    return (count + 1) // 2 if dtype in NIBBLES else count * ITEM_SIZE[dtype]


def as_float32(value: float) -> float:
    """`value` rounded to float32; beyond its range, infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


LOOP_ITERATIONS = 1024
"""Iterations of a loop whose end is only known at run time, unless a limit says otherwise."""

DECLARED_TYPE = "trainweb.declared_type"
"""Key of the note on a float32 tensor of what type of float it was before it was converted."""

FX_NODE = "pkg.torch.onnx.fx_node"
"""The call of torch that a node was made of, with its arguments; kept of the calls that `model/calls.py` reads and
where a result of `detach` is among them."""
SCOPES = "pkg.torch.onnx.name_scopes"
"""Names of the modules whose forward made a node, from the outermost, and that of torch's operator."""
SMOOTHING = "trainweb.label_smoothing"
"""Key of the note on a loss that its label smoothing was put back as the file was read: the smoothing."""
OWN_OUTPUTS = "trainweb.own_outputs"
"""Key of an eval model's metadata: the outputs of the base model, as a JSON list of names."""
SAMPLE_WEIGHT = "trainweb.sample_weight"
"""Key of an eval model's metadata: the input of weights of rows, as a JSON text."""
LOSS_TERMS = "trainweb.loss_terms"
"""Key of an eval model's metadata: the terms of its loss where there are several, as a JSON list of outputs."""
OF_OUTPUT = "trainweb.gradient_of_output"
"""Key of the notes on an input that has the gradient of an output: it holds no labels."""
EXPORTER_NOTES = frozenset(
    {
        DECLARED_TYPE,
        OF_OUTPUT,
        "pkg.onnxscript.optimizer.folded_from",
        "pkg.torch.export.ExportedProgram.graph_signature",
        "pkg.torch.export.graph_signature.InputSpec.kind",
        SCOPES,
        FX_NODE,
    }
)
"""Keys of ONNX's metadata_props that are kept: by most an exporter tells parameters from constants.

Others, such as a stack trace per node, would make artifacts several times as large and are dropped.
"""


@dataclass(slots=True)
class Tensor:
    """A constant: `data` holds the elements little-endian in row-major order, `notes` the `EXPORTER_NOTES` on it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview
    notes: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return data_bytes(self.dtype, self.size)

    def values(self) -> tuple[Any, ...]:
        """All elements, flat, as Python numbers."""
        return struct.unpack(f"<{self.size}{STRUCT_FORMAT[self.dtype]}", self.data)

    def renamed(self, name: str) -> Tensor:
        """The same under another name; the data is shared."""
        return Tensor(name, self.dtype, self.shape, self.data, self.notes)

    @staticmethod
    def of(name: str, dtype: str, shape: Iterable[int], values: Iterable[Any]) -> Tensor:
        """A tensor from Python numbers."""
        flat = tuple(values)
        return Tensor(name, dtype, tuple(shape), struct.pack(f"<{len(flat)}{STRUCT_FORMAT[dtype]}", *flat))


@dataclass(slots=True)
class Value:
    """Name, dtype and shape of an edge; `shape` is None when even the rank is unknown."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    notes: dict[str, str] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class Sequence:
    """Type of a sequence of tensors, as the inputs of an optimizer model have it."""

    name: str
    dtype: str


@dataclass(slots=True)
class Node:
    """One operator application. An empty name in `inputs` or `outputs` is an absent optional.

    Attribute values are int, float, str, bytes, `Tensor`, `Graph`, or lists of these.
    """

    op_type: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    notes: dict[str, str] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        op = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return f"{op} node {self.name!r}" if self.name else f"{op} node making {self.outputs[0]!r}"

    def bodies(self) -> list[Graph]:
        """Bodies and branches: the graphs among the attributes."""
        graphs: list[Graph] = []
        for value in self.attrs.values():
            if isinstance(value, Graph):
                graphs.append(value)
            elif isinstance(value, list) and value and isinstance(value[0], Graph):
                graphs += value
        return graphs


@dataclass(slots=True)
class Graph:
    """A model's main graph with its opset imports."""

    name: str = ""
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value | Sequence] = field(default_factory=list)
    outputs: list[Value | Sequence] = field(default_factory=list)
    initializers: dict[str, Tensor] = field(default_factory=dict)
    value_info: dict[str, Value] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=dict)
    ir_version: int = 10
    producer: str = "trainweb"
    metadata: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict, compare=False)
    loop_iterations: int = field(default=LOOP_ITERATIONS, compare=False)
    """Iterations of a loop whose end is only known at run time: one of the limits that the model was read with."""
    external_files: tuple[str, ...] = field(default=(), compare=False)
    """Locations of the files beside the model that its weights were read from."""
    unnamed: dict[str, list[str]] = field(default_factory=dict, compare=False)
    """Places in inputs, as "x[0]", of dims with a placeholder for a name in the file, as "unk__5": by that name."""
    about: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The file's metadata, as onnxruntime's ModelMetadata calls it; empty for a graph that was made here."""

    def copy(self) -> Graph:
        """A copy whose lists, dicts and nodes may be changed freely (tensor data is shared)."""
        result = self.with_nodes(self.nodes)
        result.nodes = [
            Node(n.op_type, list(n.inputs), list(n.outputs), dict(n.attrs), n.domain, n.name, n.notes)
            for n in self.nodes
        ]
        return result

    def with_nodes(self, nodes: Iterable[Node]) -> Graph:
        """A copy whose lists and dicts may be changed freely, with these nodes, which are not copied."""
        return Graph(
            self.name,
            list(nodes),
            list(self.inputs),
            list(self.outputs),
            dict(self.initializers),
            dict(self.value_info),
            dict(self.opsets),
            self.ir_version,
            self.producer,
            dict(self.metadata),
            self.notes,
            self.loop_iterations,
            self.external_files,
            self.unnamed,
            self.about,
        )

    def placed(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes by the names that dims have here, from sizes by the names that other tools show."""
        return {place: size for name, size in sizes.items() for place in self.unnamed.get(name, [name])}

    def producers(self) -> dict[str, Node]:
        """The node that makes each edge."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each edge, once per use."""
        uses: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    uses.setdefault(name, []).append(node)
        return uses

    def behind(self, names: Iterable[str]) -> set[str]:
        """Edges, and all edges that they are made of."""
        found = set(names)
        for node in reversed(self.nodes):
            if not found.isdisjoint(node.outputs):
                found.update(name for name in node.inputs if name)
        return found

    def names(self) -> Iterator[str]:
        """Every edge name in use."""
        yield from (value.name for value in self.inputs)
        yield from self.initializers
        for node in self.nodes:
            yield from (name for name in node.outputs if name)

    def tensors(self) -> Iterator[Tensor]:
        """Every constant: initializers, and tensors among the attributes, also of subgraphs."""
        yield from self.initializers.values()
        for node in self.nodes:
            for value in node.attrs.values():
                for item in value if isinstance(value, list) else [value]:
                    if isinstance(item, Tensor):
                        yield item
                    elif isinstance(item, Graph):
                        yield from item.tensors()

    def opset(self, domain: str) -> int:
        """The opset version in force for `domain` (1 where the model does not say)."""
        return self.opsets.get(domain, 1)


def take_name(name: str, used: set[str]) -> str:
    """`name`, or a variation of it that is not `used`, which it is from now on."""
    unique, k = name, 0
    while unique in used:
        k += 1
        unique = f"{name}_{k}"
    used.add(unique)
    return unique


TORCH = "pytorch"
"""Producer name of both exporters of torch."""
TRAINWEB = "ai.trainweb"
"""The domain of operators that ONNX Runtime does not have."""
ML = "ai.onnx.ml"
"""The domain of ONNX's operators for what is no network."""
MS = "com.microsoft"
"""The domain of ONNX Runtime's own operators, including those of training."""


@dataclass(frozen=True)
class LocalFunction:
    """The definition of an operator of `TRAINWEB` for runtimes that do not have it: its body, in other operators."""

    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: list[str]
    nodes: list[Node]
    opsets: dict[str, int]
