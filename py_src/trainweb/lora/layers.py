"""The places of a graph where adapters fit: products, convolutions and tables with a weight of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainweb.artifacts.evidence import GENERATED, folded_from, module_of, notes_of
from trainweb.errors import ModelError
from trainweb.lora.config import listed, shown
from trainweb.lora.kinds import EMBEDDING, KINDS, LINEAR, Layer, LoraKind
from trainweb.model.graph import ITEM_SIZE, Graph, Node, Tensor

DEFAULT_TARGETS = (
    ("q_proj", "v_proj"),
    ("query", "value"),
    ("query_proj", "value_proj"),
    ("q", "v"),
    ("q_lin", "v_lin"),
    ("query_key_value",),
    ("qkv_proj",),
    ("Wqkv",),
    ("c_attn",),
    ("qkv",),
    ("in_proj",),
)
"""Last parts of the names of modules that PEFT adapts by default, by family of transformers; the first found count."""
TURNS = ("Transpose", "Identity")
"""Nodes that may stand between a weight and the node that uses it."""
_PATH = re.compile(r"/(.+)/[A-Za-z]+(_\d+)?")
"""Names that torch's script exporter gives to nodes: the path of their module and the operator."""
_ATTRIBUTES = (".weight", ".kernel", "_weight")
_QUANTIZED_NAME = re.compile(r"(\.MatMul)?(\.weight)?_(Q\d\w*|quantized)$")
"""Ends that ONNX Runtime's quantizers give to names of weights."""
_NBITS = {"MatMulNBits": LINEAR, "GatherBlockQuantized": EMBEDDING}
"""Operators of com.microsoft whose weight is quantized."""
_MAKE_FLOATS = ("Cast", "DequantizeLinear", "QuantizeLinear")
"""Operators that may stand between stored numbers and the weight that a node uses."""


def find_layers(graph: Graph) -> list[Layer]:
    """All layers of the main graph, in its order."""
    weights = {name: (t, False) for name, t in graph.initializers.items() if t.dtype == "float32"}
    found: dict[tuple[str, str, LoraKind, bool], Layer] = {}
    taken: dict[str, tuple[str, str, LoraKind, bool]] = {}
    for node in graph.nodes:
        if node.domain == "" and node.op_type in TURNS and node.inputs[0] in weights:
            tensor, flipped = weights[node.inputs[0]]
            if node.op_type == "Identity":
                weights[node.outputs[0]] = tensor, flipped
            elif len(tensor.shape) == 2 and node.attrs.get("perm", [1, 0]) == [1, 0]:
                weights[node.outputs[0]] = tensor, not flipped
            continue
        made = _layer(node, weights)
        if made is None:
            continue
        named = _module_of_weight(made.weight)
        # A weight may be tied: its other uses are modules of their own.
        for module in (named, _module_of_node(node), f"{named}.{made.kind.name}"):
            key = (module, made.weight, made.kind, made.rows_first)
            if module and taken.setdefault(module, key) == key:
                made.module = module
                found.setdefault(key, made).sites.append(node)
                break
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Quantized:
    """A module without an adapter, as its weight is stored in fewer bits than float32 has.

    Attributes
    ----------
    module : str
    kind : LoraKind
        How its adapter would be put beside it.
    stored : str
        The bits, and the operator that makes numbers of them.
    site : Node
        The node that uses the weight.
    """

    module: str
    kind: LoraKind
    stored: str
    site: Node


def quantized_layers(graph: Graph, layers: Sequence[Layer]) -> list[Quantized]:
    """The modules whose weights are stored in fewer bits than float32 has, in the order of the graph."""
    producers, adapted = graph.producers(), {layer.module for layer in layers}
    found: dict[str, Quantized] = {}
    for node in graph.nodes:
        kind = {"": KINDS, "com.microsoft": _NBITS}.get(node.domain, {}).get(node.op_type)
        if kind is None:
            continue
        weight, behind = node.inputs[kind.weight_at], node.op_type
        if not node.domain:
            weight, behind = _stored(graph, producers, weight)
        tensor = graph.initializers.get(weight)
        if tensor is None or not behind or len(tensor.shape) < 2:
            continue
        bits = node.attrs.get("bits", 4) if node.domain else ITEM_SIZE[tensor.dtype] * 8
        name, path = (_QUANTIZED_NAME.sub("", text) for text in (weight, node.name))
        # A quantizer keeps the value info of the weight that it replaces, with the exporter's notes.
        noted = folded_from(graph.value_info[name].notes) if name in graph.value_info else []
        module = _module_of_weight(noted[0] if noted else name) or _module_of_node(replace(node, name=path))
        module = module or path or name
        if module not in adapted:
            found.setdefault(module, Quantized(module, kind, f"{bits} bits, {behind}", node))
    return list(found.values())


def _stored(graph: Graph, producers: dict[str, Node], name: str) -> tuple[str, str]:
    """The initializer that a weight is made of, and the last operator between that changes its numbers, if any."""
    behind = ""
    while name not in graph.initializers:
        node = producers.get(name)
        if node is None or node.domain or node.op_type not in (*TURNS, *_MAKE_FLOATS):
            return "", ""
        if node.op_type in _MAKE_FLOATS and not behind:
            behind = node.op_type
        name = node.inputs[0]
    return name, behind


def refusal(quantized: Sequence[Quantized]) -> str:
    """Why these modules have no adapter, and what to do."""
    said = listed([f"{q.module} ({q.stored})" for q in quantized])
    return (
        f"Adapters lie beside weights in float32. Weights in fewer bits have none: {said}. Export the model with "
        "weights in float32, and quantize the file that `merge` gives."
    )


def default_targets(graph: Graph, layers: Sequence[Layer], quantized: Sequence[Quantized]) -> list[str]:
    """Choose the modules to adapt: attention's projections as PEFT chooses them, else every product but the last.

    Raises
    ------
    ModelError
        There is no product, or only one.
    """
    order = {id(node): k for k, node in enumerate(graph.nodes)}
    places = {layer.module: order[id(layer.sites[0])] for layer in layers if layer.kind is LINEAR}
    places |= {q.module: order[id(q.site)] for q in quantized if q.kind is LINEAR}
    modules = sorted(places, key=lambda module: places[module])
    tails = {module.rpartition(".")[2] for module in modules}
    for family in DEFAULT_TARGETS:
        if tails.issuperset(family):
            return [module for module in modules if module.rpartition(".")[2] in family]
    if not modules:
        raise ModelError("The model has no product with a weight: name the modules to adapt in 'targets'.")
    if len(modules) == 1:
        raise ModelError(
            f"The model has one product with a weight, {shown(modules[0])}. The last one has no adapter unless it is "
            "named in 'targets'."
        )
    return modules[:-1]


def _layer(node: Node, weights: dict[str, tuple[Tensor, bool]]) -> Layer | None:
    """Make the layer of a node, without its module."""
    kind = None if node.domain else KINDS.get(node.op_type)
    if kind is None or node.inputs[kind.weight_at] not in weights:
        return None
    return kind.find(node, *weights[node.inputs[kind.weight_at]])


def is_stored_by_columns(graph: Graph, layer: Layer) -> bool:
    """True where PyTorch itself stores a product's weight as (in, out), as GPT-2's Conv1D does."""
    tensor = graph.initializers[layer.weight]
    turned = GENERATED.fullmatch(tensor.name) or folded_from(notes_of(graph, tensor))
    return layer.kind is LINEAR and not layer.rows_first and not turned and tensor.name.endswith(".weight")


def _module_of_weight(name: str) -> str:
    if GENERATED.fullmatch(name):
        return ""
    for attribute in _ATTRIBUTES:
        if name.endswith(attribute):
            return name.removesuffix(attribute)
    return name


def _module_of_node(node: Node) -> str:
    path = _PATH.fullmatch(node.name)
    return module_of(node) or (path[1].replace("/", ".") if path else "")
