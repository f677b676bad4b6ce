"""Weights of 16 bits that stay so in kernel memory, because products and lookups read them there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from trainweb.model.graph import Graph, Node

LEAST_ELEMENTS = 4096
"""Smaller weights become float32 when they are loaded: they take no room worth unpacking."""
MATRIX = 2
"""Rank of weights that kernels read as they are stored."""
PRODUCTS = ("FusedMatMul", "Gemm", "MatMul")


def read_as_stored(
    graphs: Iterable[Graph | None], types: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Return those of `types` whose weights only products and lookups of rows read in all graphs.

    The pass `read_packed` lets these read stored numbers. Any other reader would need a copy in float32.
    """
    large = [name for name in types if name in shapes and len(shapes[name]) == MATRIX]
    found = {name: types[name] for name in large if prod(shapes[name]) >= LEAST_ELEMENTS}
    for graph in graphs:
        if graph is None or not found:
            continue
        consumers, outputs = graph.consumers(), {v.name for v in graph.outputs}
        found = {name: t for name, t in found.items() if _is_read_stored(name, consumers, outputs)}
    return found


def _is_read_stored(name: str, consumers: Mapping[str, list[Node]], outputs: set[str]) -> bool:
    return name not in outputs and all(_reads_stored(n, name, consumers, outputs) for n in consumers.get(name, ()))


def _reads_stored(node: Node, name: str, consumers: Mapping[str, list[Node]], outputs: set[str]) -> bool:
    places = [k for k, read in enumerate(node.inputs) if read == name]
    if node.op_type == "Transpose":
        return _is_read_stored(node.outputs[0], consumers, outputs)
    if node.op_type == "Gather":
        return places == [0] and node.attrs.get("axis", 0) == 0
    return node.op_type in PRODUCTS and places == [1]
