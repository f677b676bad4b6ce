"""Lists to which a loop adds a tensor in each iteration: the tensors are stacked instead."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainweb.control.expansion import Expansion
from trainweb.control.operators import read_names
from trainweb.model.graph import Graph, Node, Value

FIRST_CARRIED = 2
"""Number of inputs of a Loop and of its body before the carried ones."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A Loop that stacks tensors in the place of lists; `lists` maps each list to its stacked tensor."""

    node: Node
    lists: dict[str, str]


def with_rows(x: Expansion, node: Node) -> Rows | None:
    """The loop with stacked tensors in the place of the lists it fills; None where there are none, or others.

    A list starts empty, and all that an iteration does with it is to add one tensor at its end.
    """
    body = x.body(node)
    carried = node.inputs[FIRST_CARRIED:]
    additions = {k: _added(body, k) for k, name in enumerate(carried) if name in x.sequences}
    if not additions or None in additions.values() or any(x.sequences[carried[k]] for k in additions):
        return None
    inner = body.copy()
    gone = {added.outputs[0] for added in additions.values() if added is not None}
    inner.nodes = [n for n in body.nodes if gone.isdisjoint(n.outputs)]
    inner.inputs = [v for k, v in enumerate(body.inputs, -FIRST_CARRIED) if k not in additions]
    inner.outputs = [v for k, v in enumerate(body.outputs, -1) if k not in additions]
    outputs = [name for k, name in enumerate(node.outputs) if k not in additions]
    outputs += [""] * (len(inner.outputs) - 1 - len(outputs))
    lists = {}
    for k, added in additions.items():
        assert added is not None
        row = f"{added.outputs[0]}.row"
        inner.nodes.append(Node("Identity", [added.inputs[1]], [row], {}, "", row))
        inner.outputs.append(Value(row, "", None))
        target = node.outputs[k] if k < len(node.outputs) else ""
        outputs.append(x.fresh(f"{target}.rows") if target else "")
        if target:
            lists[target] = outputs[-1]
    inputs = [*node.inputs[:FIRST_CARRIED], *(name for k, name in enumerate(carried) if k not in additions)]
    return Rows(replace(node, inputs=inputs, outputs=outputs, attrs={**node.attrs, "body": inner}), lists)


def _added(body: Graph, k: int) -> Node | None:
    """The node that adds to the list which is carried in place `k`, if it is all that an iteration does with it."""
    formal = body.inputs[k + FIRST_CARRIED].name
    readers = [n for n in body.nodes if formal in n.inputs]
    result = body.outputs[k + 1].name
    inner = (name for n in body.nodes for graph in n.bodies() for name in read_names(graph))
    if len(readers) != 1 or formal in inner:
        return None
    (added,) = readers
    at_end = added.op_type == "SequenceInsert" and len([name for name in added.inputs if name]) == 2
    read = [n for n in body.nodes if result in n.inputs]
    alone = [v.name for v in body.outputs].count(result) == 1 and not read and formal != added.inputs[1]
    return added if at_end and alone and added.outputs[0] == result else None


def join_rows(x: Expansion, rows: str, axis: int, target: str, new_axis: bool) -> None:
    """Join the rows of a tensor along one of their axes, or along a new one."""
    rank = x.type(rows).rank
    at = axis % (rank if new_axis else rank - 1)
    order = [*range(1, at + 1), 0, *range(at + 1, rank)]
    moved = x.op("Transpose", [rows], "" if not new_axis else target, perm=order)
    if not new_axis:
        shape = [0] * at + [-1]
        sizes = [x.constant("int64", (len(shape),), shape)]
        if at + 2 < rank:
            every = x.op("Shape", [moved])
            sizes.append(x.op("Gather", [every, x.constant("int64", (rank - at - 2,), range(at + 2, rank))], axis=0))
        x.op("Reshape", [moved, x.op("Concat", sizes, axis=0)], target)
