"""Inputs of a graph whose values decide shapes, axes, counts and branches.

Plans are compiled for such values: they belong to the signature of a step as shapes do.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainweb.control.operators import CONTROL_OPERATORS, all_nodes, is_control
from trainweb.model.graph import Graph, Node
from trainweb.ops.frame.op import find
from trainweb.ops.view import Inquiry

MOVING = frozenset(
    ("Cast", "Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
)
"""Operators that compute nothing: numbers that pass them are the fed ones."""


def deciding_inputs(graph: Graph, names: Iterable[str]) -> frozenset[str]:
    """Inputs whose values belong to the signature.

    Integers and bools that decide; floats only where they do so themselves. If data that a condition is computed from
    decided, each value would have its own plan.
    """
    dtypes = {v.name: v.dtype for v in graph.inputs}
    deciding = deciding_names(graph).intersection(names)
    floats = {n for n in deciding if dtypes[n].startswith("float")}
    return frozenset(deciding - floats | (floats & deciding_names(graph, moved_only=True) if floats else set()))


def deciding_names(graph: Graph, *, moved_only: bool = False) -> set[str]:
    """Names of all tensors, inputs and initializers among them, whose values must be known at compile time.

    Names in bodies and branches count as names of the graph around them. With `moved_only` they decide themselves, as
    scales do, and not by results computed from them. Conditions of control flow are then not among them: it can do
    without knowing these.
    """
    makers: dict[str, list[Node]] = {}
    outer: dict[str, list[str]] = {}
    pending: list[str] = []
    facts: dict[tuple[str, str], tuple[Iterable[int], bool]] = {}
    for node in all_nodes(graph):
        key = node.domain, node.op_type
        known = facts.get(key)
        if known is None:
            known = facts[key] = _facts(node, moved_only)
        static_inputs, moves = known
        if static_inputs:
            pending += [node.inputs[k] for k in static_inputs if k < len(node.inputs)]
        if moves:
            for name in node.outputs:
                makers.setdefault(name, []).append(node)
            if node.attrs:
                _note_bodies(node, outer)
    names: set[str] = set()
    while pending:
        name = pending.pop()
        if name and name not in names:
            names.add(name)
            pending += outer.get(name, ())
            for node in makers.get(name, ()):
                pending += node.inputs
                pending += [value.name for body in node.bodies() for value in body.outputs]
    return names


def _facts(node: Node, moved_only: bool) -> tuple[Iterable[int], bool]:
    """The deciding inputs of an operator, and whether its inputs decide where its results do."""
    if is_control(node):
        return () if moved_only else CONTROL_OPERATORS[node.op_type], True
    cls = find(node.domain, node.op_type)
    asks_for_shapes = cls is not None and issubclass(cls, Inquiry)
    moves = not asks_for_shapes and (not moved_only or node.op_type in MOVING)
    return cls.static_inputs if cls else (), moves


def _forward_inputs(node: Node) -> list[str]:
    """Return the inputs of a node. For a gradient these are the inputs of its forward node, which are the first."""
    n = node.attrs.get("inputs")
    return node.inputs[: n + (node.op_type == "RepeatGradient")] if isinstance(n, int) else node.inputs


def _note_bodies(node: Node, outer: dict[str, list[str]]) -> None:
    """Note the tensors outside that the inputs of bodies are."""
    for body in node.bodies():
        # The last inputs of Loop and Scan are the inputs of the body.
        formal, actual = (names[::-1] for names in ([v.name for v in body.inputs], _forward_inputs(node)))
        for name, edge in zip(formal, actual, strict=False):
            outer.setdefault(name, []).append(edge)
