"""Operators of control flow and of sequences, and searches for them in graphs."""

from __future__ import annotations

from collections.abc import Iterator

from trainweb.errors import UnsupportedError
from trainweb.model.graph import Graph, Node
from trainweb.ops.frame.op import bind

CONTROL_OPERATORS: dict[str, tuple[int, ...]] = {
    "ConcatFromSequence": (),
    "If": (0,),
    "Loop": (0, 1),
    "Optional": (),
    "OptionalGetElement": (),
    "OptionalHasElement": (),
    "Scan": (),
    "SequenceAt": (1,),
    "SequenceConstruct": (),
    "SequenceEmpty": (),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "SequenceLength": (),
    "SequenceMap": (),
    "SplitToSequence": (1,),
}
"""Operators of ai.onnx that are written out as others, with the inputs whose values they need at compile time."""


def is_control(node: Node) -> bool:
    """Return whether `node` is written out."""
    return node.domain in ("", "ai.onnx") and node.op_type in CONTROL_OPERATORS


def has_control_flow(graph: Graph) -> bool:
    """Return whether a graph has operators that are written out."""
    return any(is_control(node) for node in graph.nodes)


def all_nodes(graph: Graph) -> Iterator[Node]:
    """Nodes of a graph and of all bodies and branches in it."""
    for node in graph.nodes:
        yield node
        if node.attrs:
            for inner in node.bodies():
                yield from all_nodes(inner)


def read_names(graph: Graph) -> Iterator[str]:
    """Names that are read in a graph and in all bodies and branches in it, as inputs of nodes or as outputs."""
    yield from (value.name for value in graph.outputs)
    for node in graph.nodes:
        yield from node.inputs
        for inner in node.bodies() if node.attrs else ():
            yield from read_names(inner)


def unsupported_nodes(graph: Graph) -> Iterator[tuple[Node, UnsupportedError]]:
    """Nodes whose operator is not there, in bodies and branches too, each with the error that says so."""
    for node in all_nodes(graph):
        if not is_control(node):
            try:
                bind(node, graph.opsets)
            except UnsupportedError as error:
                yield node, error
