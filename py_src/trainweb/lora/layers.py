"""The places of a graph where adapters fit: products, convolutions and tables with a weight of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainweb.artifacts.evidence import folded_from, generated_names, merged, module_of, notes_of
from trainweb.errors import ModelError
from trainweb.lora.config import shown
from trainweb.lora.kinds import EMBEDDING, LINEAR, Layer, LoraKind, layer_of
from trainweb.model.graph import Graph, Node
from trainweb.model.uses import MOVES, weight_uses

DEFAULT_TARGETS = {
    ("q_proj", "v_proj", "fc1", "fc2"): "self_attn.dense",
    ("q_proj", "v_proj"): "",
    ("query", "value"): "",
    ("query_proj", "value_proj"): "",
    ("q", "v"): "",
    ("q_lin", "v_lin"): "",
    ("query_key_value",): "",
    ("qkv_proj",): "",
    ("Wqkv",): "",
    ("c_attn",): "",
    ("qkv",): "",
    ("in_proj",): "",
}
"""Last parts of the names of modules that PEFT adapts by default, by family of transformers; the first found count.

A model of the family also has a module that ends in the value: by it Phi differs from OPT and BART.
"""
_PATH = re.compile(r"/(.+)/[A-Za-z]+(_\d+)?")
"""Names that torch's script exporter gives to nodes: the path of their module and the operator."""
_ATTRIBUTES = (".MatMul.weight", ".weight", ".kernel", "_weight")
_QUANTIZED_NAME = re.compile(r"(\.MatMul)?(\.weight)?(_DQ)?_(Q\d\w*|quantized)$")
"""Ends that ONNX Runtime's quantizers give to names of weights."""


def find_layers(graph: Graph) -> list[Layer]:
    """All layers of the main graph, in its order."""
    generated = generated_names(graph)
    copies = {node.outputs[0] for node, _ in merged(graph)}
    layers: dict[tuple[str, str, LoraKind, bool], Layer] = {}
    taken: dict[str, tuple[str, str, LoraKind, bool]] = {}
    for use in weight_uses(graph):
        layer = layer_of(use)
        if layer is None:
            continue
        name = use.edge if use.edge in copies else layer.weight
        for module in _modules(graph, layer, name, use.node, generated):
            key = (module, layer.weight, layer.kind, layer.rows_first)
            if module and taken.setdefault(module, key) == key:
                layer.module = module
                layers.setdefault(key, layer).sites.append(use.node)
                break
    return list(layers.values())


def _modules(graph: Graph, layer: Layer, name: str, path: Node, generated: re.Pattern[str]) -> list[str]:
    """Names that the module of a node may have, the best one first; `name` is the weight's."""
    if layer.stored:
        name, path = _QUANTIZED_NAME.sub("", name), replace(path, name=_QUANTIZED_NAME.sub("", path.name))
        # A quantizer keeps the value info of the weight that it replaces, with the exporter's notes.
        noted = folded_from(graph.value_info[name].notes) if name in graph.value_info else []
        name = noted[0] if noted else name
    named = _module_of_weight(name, generated)
    # A weight may be tied: its other uses are modules of their own.
    return [named, _rooted(_module_of_node(path), graph), f"{named}.{layer.kind.name}"]


def default_targets(layers: Sequence[Layer], families: Mapping[tuple[str, ...], str] = DEFAULT_TARGETS) -> list[str]:
    """Choose the modules to adapt: as PEFT does, else all products but the last. Raise ModelError without two."""
    modules = [layer.module for layer in layers if layer.kind is LINEAR]
    tails = {module.rpartition(".")[2] for module in modules}
    for family, sign in families.items():
        if tails.issuperset(family) and any(module.endswith(sign) for module in modules):
            return [module for module in modules if module.rpartition(".")[2] in family]
    if not modules:
        raise ModelError("The model has no product with a weight: name the modules to adapt in 'targets'.")
    if len(modules) == 1:
        raise ModelError(
            f"The model has one product with a weight, {shown(modules[0])}. The last one has no adapter unless it is "
            "named in 'targets'."
        )
    return modules[:-1]


def is_stored_by_columns(graph: Graph, layer: Layer) -> bool:
    """True where PyTorch itself stores a product's weight as (in, out), as GPT-2's Conv1D does."""
    tensor = graph.initializers[layer.weight]
    turned = generated_names(graph).fullmatch(tensor.name) or folded_from(notes_of(graph, tensor))
    return layer.kind is LINEAR and not layer.rows_first and not turned and tensor.name.endswith(".weight")


def computes_indices(graph: Graph, layer: Layer) -> bool:
    """True for a table whose module makes the indices itself, as tables of positions do in OPT and BART."""
    producers = graph.producers()
    for site in layer.sites if layer.kind is EMBEDDING else ():
        node = producers.get(site.inputs[1])
        while node is not None and node.op_type in MOVES:
            node = producers.get(node.inputs[0])
        if node is not None and _rooted(_module_of_node(node), graph) == layer.module:
            return True
    return False


def _module_of_weight(name: str, generated: re.Pattern[str]) -> str:
    if generated.fullmatch(name):
        return ""
    for attribute in _ATTRIBUTES:
        if name.endswith(attribute):
            return name.removesuffix(attribute)
    return name


def _module_of_node(node: Node) -> str:
    path = _PATH.fullmatch(node.name)
    return module_of(node) or (path[1].replace("/", ".") if path else "")


def _rooted(module: str, graph: Graph) -> str:
    """The name with modules in front that torch's script exporter leaves out of paths, as it does in OPT."""
    first = ".".join(module.split(".")[:2])
    roots = {name[:k] for name in graph.initializers if (k := f".{name}".find(f".{first}.")) >= 0}
    return f"{roots.pop()}{module}" if "." in module and len(roots) == 1 else module
