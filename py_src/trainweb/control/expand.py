"""The entry: a graph in, a graph of plain nodes out."""

from __future__ import annotations

from collections.abc import Mapping

from trainweb.control import loops, sequences
from trainweb.control.expansion import Expansion
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Value

DECIDING = ("bool", "int32", "int64")
"""Dtypes of feeds whose values may decide branches and counts."""

HANDLERS = {**loops.HANDLERS, **sequences.HANDLERS}


def expand_control_flow(
    graph: Graph, types: Mapping[str, TensorType] | None = None, *, differentiable: bool = False
) -> Graph:
    """`graph` with control flow and sequences written out as plain nodes; the graph itself is not changed.

    `types` of inputs have values where these are known; other inputs are as declared. `differentiable`: gradients are
    to go through it. Raise UnsupportedError if the choice of operators depends on run time in a way that cannot be
    written out. Raise LimitError if loops become too many nodes.
    """
    source = graph
    if types:
        source = graph.copy()
        source.inputs = [
            Value(v.name, types[v.name].dtype, types[v.name].shape) if v.name in types else v for v in graph.inputs
        ]
    # If no types are known yet, compilation will know them, with the values of the feeds that decide.
    decided = set() if types else {v.name for v in graph.inputs if isinstance(v, Value) and v.dtype in DECIDING}
    return Expansion(source, types or {}, HANDLERS, differentiable=differentiable, decided=decided).run()
