"""Weights with their adapters added, computed on the kernels: numpy need not be there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from trainweb.lora.config import LoraConfig
from trainweb.lora.kinds import LINEAR, Layer, names_of
from trainweb.lora.layers import find_layers
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.uses import weight_uses
from trainweb.onnxblock.transforms import prune, prune_constants
from trainweb.training.inference import InferenceCore

OPSET = 17
"""Opset of the small graphs that are run here."""


def merged_weights(base: Graph, layers: Sequence[Layer], config: LoraConfig, held: Mapping[str, Tensor]) -> Graph:
    """The base with merged weights, and with the parameters among `held` that are its own.

    A weight that other nodes read, too, stays as it is, and the layer gets a new weight.
    """
    result = base.copy()
    result.initializers |= {n: t for n, t in held.items() if n in result.initializers}
    copies, uses = dict(zip(map(id, base.nodes), result.nodes, strict=True)), list(weight_uses(base))
    for layer in layers:
        tensor = _merged(result.initializers[layer.weight], layer, config.of(layer.module), held)
        sites = {id(site) for site in layer.sites}
        if all(id(use.node) in sites for use in uses if use.tensor.name == layer.weight):
            result.initializers[layer.weight] = tensor
            continue
        give_weight(result, layer, [copies[id(site)] for site in layer.sites], tensor, "merged_weight")
    return prune_constants(prune(result))


def give_weight(graph: Graph, layer: Layer, sites: Sequence[Node], tensor: Tensor, attribute: str) -> None:
    """Let the sites of a layer, nodes of `graph`, read a tensor of their own."""
    weight = tensor.renamed(f"{layer.module}.{attribute}")
    graph.initializers[weight.name] = weight
    turned = f"{weight.name}.turned"
    for node in sites:
        is_turned = layer.kind is LINEAR and layer.rows_first != bool(node.attrs.get("transB", 0))
        node.inputs[layer.kind.weight_at] = turned if is_turned else weight.name
    if any(turned in node.inputs for node in sites):
        graph.nodes.insert(0, Node("Transpose", [weight.name], [turned], {"perm": [1, 0]}, "", turned))


def column_norms(base: Graph, layers: Sequence[Layer], config: LoraConfig) -> dict[str, Tensor]:
    """The magnitudes that training starts from: the norms of the weights' columns."""
    norms = {}
    for layer in layers:
        name = names_of(layer, config.of(layer.module))
        magnitude = list(name)[2]
        axis = 1 if layer.rows_first else 0
        node = Node("ReduceL2", ["W"], ["norm"], {"axes": [axis], "keepdims": 0})
        output = Value("norm", "float32", name[magnitude])
        norms[magnitude] = run_nodes([node], {"W": base.initializers[layer.weight]}, [output])["norm"].renamed(
            magnitude
        )
    return norms


def _merged(weight: Tensor, layer: Layer, config: LoraConfig, held: Mapping[str, Tensor]) -> Tensor:
    first, second, *magnitude = names_of(layer, config)
    a, b, turned = layer.kind.merge(layer, held[first], held[second])
    shape = (b.shape[0], a.shape[1])
    tensors = {
        "W": Tensor("W", "float32", shape[::-1] if turned else shape, weight.data),
        "A": a,
        "B": b,
        "scaling": Tensor.of("scaling", "float32", (), [config.scaling]),
    }
    nodes = [Node("MatMul", ["B", "A"], ["product"])]
    if turned:
        nodes.append(Node("Transpose", ["product"], ["turned"], {"perm": [1, 0]}))
    nodes.append(Node("Mul", ["turned" if turned else "product", "scaling"], ["delta"]))
    nodes.append(Node("Add", ["W", "delta"], ["merged"]))
    result = "merged"
    if magnitude:
        axis = 1 if layer.rows_first else 0
        tensors["m"] = held[magnitude[0]]
        tensors["place"] = Tensor.of("place", "int64", (1,), [axis])
        nodes.append(Node("ReduceL2", ["merged"], ["norm"], {"axes": [axis], "keepdims": 0}))
        nodes.append(Node("Div", ["m", "norm"], ["factor"]))
        nodes.append(Node("Unsqueeze", ["factor", "place"], ["columns"]))
        nodes.append(Node("Mul", ["merged", "columns"], ["adapted"]))
        result = "adapted"
    data = run_nodes(nodes, tensors, [Value(result, "float32", tensors["W"].shape)])[result].data
    return Tensor(weight.name, weight.dtype, weight.shape, data)


def run_nodes(nodes: list[Node], tensors: Mapping[str, Tensor], outputs: Sequence[Value]) -> dict[str, Tensor]:
    """Run a small graph on the kernels; its constants are the tensors that nodes read, by name."""
    names = {name for node in nodes for name in node.inputs}
    constants = {n: t.renamed(n) for n, t in tensors.items() if n in names}
    core = InferenceCore(Graph("weights", nodes, [], list(outputs), constants, opsets={"": OPSET}))
    try:
        return core.run({})
    finally:
        core.host.release()


def lies_in(module: str, others: Collection[str]) -> bool:
    """True for one of some modules, and for a part of one."""
    return any(f"{module}.".startswith(f"{other}.") for other in others)


def tied_layers(layers: Sequence[Layer], weight: str) -> list[Layer]:
    """The layers that share a weight."""
    return [layer for layer in layers if layer.weight == weight]


def untied(graph: Graph, modules: Collection[str]) -> Graph:
    """A graph in which layers of `modules` share no weight with others: each has a copy by its own name."""
    if not modules:
        return graph
    result = graph.copy()
    layers = find_layers(result)
    for weight in {layer.weight for layer in layers if lies_in(layer.module, modules)}:
        for layer in tied_layers(layers, weight):
            name = f"{layer.module}.weight"
            if len(tied_layers(layers, weight)) > 1 and name != weight and name not in graph.initializers:
                give_weight(result, layer, layer.sites, result.initializers[weight], "weight")
                if weight in result.value_info:
                    result.value_info[name] = replace(result.value_info[weight], name=name)
    return result
