"""Which inputs of a graph decide, by their values, about shapes, axes, counts and branches.

Plans are compiled for such values: they belong to the signature of a step as shapes do.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainweb.control.operators import CONTROL_OPERATORS, all_nodes, is_control, subgraphs
from trainweb.model.graph import Graph, Node
from trainweb.ops.op import find
from trainweb.ops.view import Inquiry

MOVING = frozenset(
    ("Cast", "Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
)
"""Operators that compute nothing: numbers that pass them are those that were fed."""


def deciding_names(graph: Graph) -> set[str]:
    """Names of all tensors, inputs and initializers among them, whose values must be known at compile time.

    Names in bodies and branches count as those of the graph around them.
    """
    return _reached(graph, moved_only=False)


def handed_names(graph: Graph) -> set[str]:
    """Those of `deciding_names` that decide themselves, such as scales, and not by what is computed from them.

    Conditions of control flow are not among them: it can do without knowing these.
    """
    return _reached(graph, moved_only=True)


def deciding_inputs(graph: Graph, names: Iterable[str]) -> frozenset[str]:
    """Inputs whose values belong to the signature.

    Integers and bools that decide; floats only where they do so themselves: of data that a condition is computed
    from, each value would be a plan of its own.
    """
    dtypes = {v.name: v.dtype for v in graph.inputs}
    deciding = deciding_names(graph).intersection(names)
    floats = {n for n in deciding if dtypes[n].startswith("float")}
    return frozenset(deciding - floats | (floats & handed_names(graph) if floats else set()))


def _reached(graph: Graph, *, moved_only: bool) -> set[str]:
    made_of: dict[str, list[str]] = {}
    pending: list[str] = []
    facts: dict[tuple[str, str], tuple[Iterable[int], bool]] = {}
    for node in all_nodes(graph):
        if is_control(node):
            if not moved_only:
                pending += _inputs_at(node, CONTROL_OPERATORS[node.op_type])
            _note_sources(node, made_of)
            continue
        key = node.domain, node.op_type
        if key not in facts:
            cls = find(*key)
            facts[key] = (cls.static_inputs, issubclass(cls, Inquiry)) if cls else ((), False)
        static_inputs, asks_for_shapes = facts[key]
        if static_inputs:
            pending += _inputs_at(node, static_inputs)
        if not (asks_for_shapes or (moved_only and node.op_type not in MOVING)):
            _note_sources(node, made_of)
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name and name not in found:
            found.add(name)
            pending += made_of.get(name, ())
    return found


def _note_sources(node: Node, made_of: dict[str, list[str]]) -> None:
    sources = list(node.inputs)
    for body in subgraphs(node) if node.attrs else ():
        sources += [value.name for value in body.outputs]
        # Of Loop and Scan the last inputs are those of the body.
        formal, actual = (names[::-1] for names in ([v.name for v in body.inputs], node.inputs))
        for name, outer in zip(formal, actual, strict=False):
            made_of.setdefault(name, []).append(outer)
    for name in filter(None, node.outputs):
        made_of.setdefault(name, []).extend(sources)


def _inputs_at(node: Node, indices: Iterable[int]) -> list[str]:
    return [node.inputs[k] for k in indices if k < len(node.inputs)]
