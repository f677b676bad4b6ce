"""The places of a graph where adapters fit: products, convolutions and tables with a weight of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainweb.artifacts.evidence import GENERATED, module_of
from trainweb.errors import ModelError
from trainweb.model.graph import Graph, Node, Tensor

LINEAR, CONV, EMBEDDING = "linear", "conv", "embedding"

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
"""What may stand between a weight and the node that uses it."""
_PATH = re.compile(r"/(.+)/[A-Za-z]+(_\d+)?")
"""Names that torch's script exporter gives to nodes: the path of their module and the operator."""
_ATTRIBUTES = (".weight", ".kernel", "_weight")


@dataclass(slots=True)
class Layer:
    """A weight and the nodes that use it in the same way.

    Attributes
    ----------
    module : str
        Dotted name of the module of the source model.
    kind : str
        LINEAR, CONV or EMBEDDING.
    weight : str
        The initializer.
    rows_first : bool
        A weight of LINEAR is (out, in), as torch has it, and not (in, out).
    shape : tuple of int
        (out, in) of LINEAR, (out, in of a group, *kernel) of CONV, (entries, width) of EMBEDDING.
    group : int
        Groups of CONV.
    sites : list of Node
        The nodes.
    """

    module: str
    kind: str
    weight: str
    rows_first: bool
    shape: tuple[int, ...]
    group: int = 1
    sites: list[Node] = field(default_factory=list)


def find_layers(graph: Graph) -> list[Layer]:
    """All layers of the main graph, in its order."""
    weights = {name: (t, False) for name, t in graph.initializers.items() if t.dtype == "float32"}
    found: dict[tuple[str, str, str, bool], Layer] = {}
    taken: dict[str, tuple[str, str, str, bool]] = {}
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
        for module in (named, _module_of_node(node), f"{named}.{made.kind}"):
            key = (module, made.weight, made.kind, made.rows_first)
            if module and taken.setdefault(module, key) == key:
                made.module = module
                found.setdefault(key, made).sites.append(node)
                break
    return list(found.values())


def default_targets(layers: Sequence[Layer]) -> list[str]:
    """What is adapted if nobody says: attention's projections as PEFT chooses them, else every product but the last."""
    modules = [layer.module for layer in layers if layer.kind == LINEAR]
    tails = {module.rpartition(".")[2] for module in modules}
    for family in DEFAULT_TARGETS:
        if tails.issuperset(family):
            return [module for module in modules if module.rpartition(".")[2] in family]
    if not modules:
        raise ModelError("The model has no product with a weight: name the modules to adapt in 'targets'.")
    return modules[:-1] or modules


def _layer(node: Node, weights: dict[str, tuple[Tensor, bool]]) -> Layer | None:
    """What a node is, without its module."""
    position = {"MatMul": 1, "Gemm": 1, "Conv": 1, "Gather": 0}.get(node.op_type)
    if node.domain or position is None or node.inputs[position] not in weights:
        return None
    tensor, flipped = weights[node.inputs[position]]
    rank = len(tensor.shape)
    if node.op_type == "Conv":
        group = int(node.attrs.get("group", 1))
        return Layer("", CONV, tensor.name, True, tensor.shape, group) if rank > 2 and not flipped else None
    if rank != 2:
        return None
    if node.op_type == "Gather":
        plain = not flipped and node.attrs.get("axis", 0) == 0
        return Layer("", EMBEDDING, tensor.name, False, tensor.shape) if plain else None
    if node.op_type == "Gemm":
        if node.attrs.get("transA", 0) or node.attrs.get("alpha", 1.0) != 1.0:
            return None
        flipped ^= bool(node.attrs.get("transB", 0))
    # A weight (out, in) has to be transposed for the product.
    shape = tensor.shape if flipped else tensor.shape[::-1]
    return Layer("", LINEAR, tensor.name, flipped, shape)


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
