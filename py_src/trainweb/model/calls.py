"""What torch's dynamo exporter noted about the call of torch that a node was made of."""

from __future__ import annotations

import re

from trainweb.model.graph import FX_NODE, Node

_EMBEDDING = re.compile(r"target=torch\.ops\.aten\.embedding\.default\]\(args = \(([^()]*)\), kwargs = \{([^{}]*)\}\)")
_BAG = re.compile(r"target=torch\.ops\.aten\._?embedding_bag\w*\.\w+\]\(args = \((.*)\), kwargs = \{([^{}]*)\}\)")


def padding_word(node: Node) -> int | None:
    """The row of an embedding that gets no gradient (`padding_idx`), None where there is none or the file is silent."""
    found = _argument(_EMBEDDING, node, 2, "padding_idx")
    return int(found) if found is not None and found.isdecimal() else None


def is_scaled_by_frequency(node: Node) -> bool:
    """Whether gradients of an embedding's rows are divided by how often the batch has them (`scale_grad_by_freq`)."""
    return any(_argument(call, node, 3, "scale_grad_by_freq") == "True" for call in (_EMBEDDING, _BAG))


def _argument(call: re.Pattern[str], node: Node, position: int, name: str) -> str | None:
    """The text of an argument of the call, which stands at `position` or under its name."""
    found = call.search(node.notes.get(FX_NODE, ""))
    if found is None:
        return None
    given = found.group(1).split(", ")
    if len(given) > position:
        return given[position]
    named = re.search(rf"\b{name}: (\w+)", found.group(2))
    return named and named.group(1)
