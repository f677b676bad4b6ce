"""Operators on sequences and optionals, carried out on lists of tensors; few nodes remain."""

from __future__ import annotations

from trainweb.control.expansion import Expansion, Scope
from trainweb.control.lists import join_rows
from trainweb.control.loops import reshaped, split, stack
from trainweb.errors import LimitError
from trainweb.ir.dims import static
from trainweb.model.graph import Node
from trainweb.ops.frame.infer import FOLDED_INTEGERS

SPLIT_PARTS = FOLDED_INTEGERS
"""Parts of a tensor in a sequence: their sizes are a constant, which is known up to this length."""


def _sequence(x: Expansion, name: str) -> list[str]:
    if name not in x.sequences:
        raise x.unsupported(f"{name!r} is not a sequence whose length is known")
    return x.sequences[name]


def _position(x: Expansion, name: str, length: int) -> int:
    """An index into a sequence of this length."""
    k = x.value(name)
    if k is None:
        raise x.unsupported("its position is only known at run time")
    if not -length <= k < length:
        raise x.unsupported(f"position {k} is outside a sequence of {length}")
    return int(k) % length


def write_empty(x: Expansion, node: Node, scope: Scope) -> None:
    """An empty sequence."""
    x.sequences[node.outputs[0]] = []


def write_construct(x: Expansion, node: Node, scope: Scope) -> None:
    """A sequence of tensors."""
    x.sequences[node.outputs[0]] = [name for name in node.inputs if name]


def write_insert(x: Expansion, node: Node, scope: Scope) -> None:
    """A sequence with a tensor put in, at its end or before a position."""
    items = _sequence(x, node.inputs[0])
    at = len(items)
    if len(node.inputs) > 2 and node.inputs[2]:
        position = x.value(node.inputs[2])
        at = len(items) if position == len(items) else _position(x, node.inputs[2], len(items))
    x.sequences[node.outputs[0]] = [*items[:at], node.inputs[1], *items[at:]]


def write_erase(x: Expansion, node: Node, scope: Scope) -> None:
    """A sequence without its last tensor, or without one."""
    items = _sequence(x, node.inputs[0])
    position = len(node.inputs) > 1 and node.inputs[1]
    at = _position(x, node.inputs[1], len(items)) if position else len(items) - 1
    x.sequences[node.outputs[0]] = [*items[:at], *items[at + 1 :]]


def write_at(x: Expansion, node: Node, scope: Scope) -> None:
    """A tensor of a sequence."""
    if node.inputs[0] in x.rows:
        x.op("Gather", [x.rows[node.inputs[0]], x.scalar(node.inputs[1])], node.outputs[0], axis=0)
        return
    items = _sequence(x, node.inputs[0])
    x.hand(items[_position(x, node.inputs[1], len(items))], node.outputs[0])


def write_length(x: Expansion, node: Node, scope: Scope) -> None:
    """The length as a number."""
    if node.inputs[0] in x.rows:
        shape = x.op("Shape", [x.rows[node.inputs[0]]])
        x.op("Gather", [shape, x.constant("int64", (), [0])], node.outputs[0], axis=0)
        return
    x.hand(x.constant("int64", (), [len(_sequence(x, node.inputs[0]))]), node.outputs[0])


def write_concat(x: Expansion, node: Node, scope: Scope) -> None:
    """Tensors of a sequence together, along an axis or a new one."""
    axis = x.attribute(node, "axis")
    if node.inputs[0] in x.rows:
        join_rows(x, x.rows[node.inputs[0]], axis, node.outputs[0], bool(node.attrs.get("new_axis", 0)))
        return
    items = _sequence(x, node.inputs[0])
    if not items:
        raise x.unsupported("the sequence is empty")
    if node.attrs.get("new_axis", 0):
        stack(x, items, axis, node.outputs[0])
    else:
        x.op("Concat", items, node.outputs[0], axis=axis)


def write_split(x: Expansion, node: Node, scope: Scope) -> None:
    """A sequence of the parts of a tensor."""
    name, *rest = node.inputs
    t = x.type(name)
    axis = node.attrs.get("axis", 0)
    if not -t.rank <= axis < t.rank:
        raise x.unsupported(f"axis {axis} is outside the {t.rank} dimensions of {name!r}")
    axis %= t.rank
    sizes = rest[0] if rest and rest[0] else ""
    size = t.shape[axis]
    lengths = x.type(sizes).value if sizes else (1,)
    if sizes and static(count := x.type(sizes).size) and count > SPLIT_PARTS:
        raise _too_many(x, count)
    if lengths is None or not static(*lengths):
        raise x.unsupported("the sizes of the parts are only known at run time")
    if not sizes or x.type(sizes).rank == 0:
        if not static(size):
            raise x.unsupported(f"it splits dimension {axis} of {name!r}, {size}, which is not fixed")
        step = lengths[0]
        if step < 1:
            raise x.unsupported(f"its parts would have {step} elements each")
        if size > step * SPLIT_PARTS:
            raise _too_many(x, -(-size // step))
        lengths = tuple(min(step, size - start) for start in range(0, size, step))
    parts = split(x, name, axis, list(lengths))
    if not sizes and not node.attrs.get("keepdims", 1):
        parts = [reshaped(x, "Squeeze", part, axis) for part in parts]
    x.sequences[node.outputs[0]] = parts


def _too_many(x: Expansion, count: int) -> LimitError:
    return LimitError(
        f"{x.node} makes a sequence of {count:,} parts; a sequence has at most {SPLIT_PARTS:,} of them. "
        "Split into larger parts, or work on the whole tensor."
    )


def write_map(x: Expansion, node: Node, scope: Scope) -> None:
    """Write a body for each tensor of a sequence; other sequences advance with it, tensors are shared."""
    body = x.body(node)
    items = _sequence(x, node.inputs[0])
    results: list[list[str]] = [[] for _ in node.outputs]
    for k in range(len(items)):
        since = len(x.graph.nodes)
        actual = [x.sequences[name][k] if name in x.sequences else name for name in node.inputs]
        row = x.inline(body, actual, Scope(scope, x.fresh(f"{node.name or 'SequenceMap'}/{k}/")))
        for result, part in zip(results, row, strict=False):
            result.append(part)
        x.count_unrolled(since)
    x.sequences.update(zip(node.outputs, results, strict=True))


def write_optional(x: Expansion, node: Node, scope: Scope) -> None:
    """An optional, empty without an input."""
    write_construct(x, node, scope)
    x.optionals.add(node.outputs[0])


def write_get_element(x: Expansion, node: Node, scope: Scope) -> None:
    """Write the content of an optional; a tensor or sequence is its own element."""
    (name,) = node.inputs
    if name in x.optionals and not x.sequences[name]:
        raise x.unsupported("the optional is empty")
    x.hand(x.sequences[name][0] if name in x.optionals else name, node.outputs[0])


def write_has_element(x: Expansion, node: Node, scope: Scope) -> None:
    """True where an optional has a value; tensors and sequences have one."""
    name = node.inputs[0] if node.inputs else ""
    held = bool(x.sequences[name]) if name in x.optionals else bool(name)
    x.hand(x.constant("bool", (), [held]), node.outputs[0])


HANDLERS = {
    "ConcatFromSequence": write_concat,
    "Optional": write_optional,
    "OptionalGetElement": write_get_element,
    "OptionalHasElement": write_has_element,
    "SequenceAt": write_at,
    "SequenceConstruct": write_construct,
    "SequenceEmpty": write_empty,
    "SequenceErase": write_erase,
    "SequenceInsert": write_insert,
    "SequenceLength": write_length,
    "SequenceMap": write_map,
    "SplitToSequence": write_split,
}
