"""Weights that several modules share, such as a table and a head: PEFT copies a module that it trains whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from trainweb.lora.kinds import Layer
from trainweb.lora.layers import find_layers
from trainweb.lora.merge import give_weight
from trainweb.model.graph import Graph


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
