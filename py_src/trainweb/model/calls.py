"""The notes of torch's dynamo exporter about calls of torch that became nodes, and about the module."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainweb.errors import UnsupportedError
from trainweb.model.graph import FX_NODE, Node

_EMBEDDING = re.compile(r"target=torch\.ops\.aten\.embedding\.default\]\(args = \(([^()]*)\), kwargs = \{([^{}]*)\}\)")
_CROSS_ENTROPY = re.compile(
    r"target=torch\.ops\.aten\.cross_entropy_loss\.default\]\(args = \((.*)\), kwargs = \{(.*)\}"
)
_BAG = re.compile(r"target=torch\.ops\.aten\._?embedding_bag\w*\.\w+\]\(args = \((.*)\), kwargs = \{([^{}]*)\}\)")


def listed_parameters(notes: Mapping[str, str]) -> list[str]:
    """Names of all parameters of the source module in the notes on its graph; tied ones twice."""
    return re.findall(r": PARAMETER target='([^']+)'", "\n".join(notes.values()))


def padding_word(node: Node) -> int | None:
    """The row of an embedding that gets no gradient (`padding_idx`), None where there is none or the file is silent."""
    text = _argument(_EMBEDDING, node, 2, "padding_idx")
    return int(text) if text is not None and text.isdecimal() else None


def is_scaled_by_frequency(node: Node) -> bool:
    """Return whether gradients of an embedding's rows are divided by counts in the batch (`scale_grad_by_freq`)."""
    return any(_argument(call, node, 3, "scale_grad_by_freq") == "True" for call in (_EMBEDDING, _BAG))


def label_smoothing(node: Node) -> float:
    """The share of a cross entropy's target that goes to all classes alike, which ONNX's operator does not have."""
    text = _argument(_CROSS_ENTROPY, node, 5, "label_smoothing")
    try:
        return float(text or 0)
    except ValueError:
        raise UnsupportedError(
            f"The label_smoothing of the cross entropy {node} is {text!r}, which is not a number. Export it with one."
        ) from None


_CALL = re.compile(r"target=torch\.ops\.aten\.(\w+)[^\]]*\]\((args = .*)\)", re.DOTALL)
_ARGUMENT = re.compile(r"%(\w+)|\bNone\b")


def call_of(node: Node) -> tuple[str, list[str]]:
    """The call of torch that a node was made of, and its arguments that are tensors, in order: empty for None."""
    call = _CALL.search(node.notes.get(FX_NODE, ""))
    return (call[1], [argument[1] or "" for argument in _ARGUMENT.finditer(call[2])]) if call else ("", [])


_FIRST = re.compile(r"target=torch\.ops\.aten\.(max|min)\.dim\]")
_BOUNDED = re.compile(r"target=torch\.ops\.aten\.clamp\.Tensor\]\(args = \(%\w+(, (None|%scalar_tensor\w*))+\)")


def takes_the_first(node: Node) -> bool:
    """Return whether a reduction is `x.max(dim)` or `x.min(dim)`, whose gradient goes to the first equal element."""
    return _FIRST.search(node.notes.get(FX_NODE, "")) is not None


def is_bounded_by_numbers(node: Node) -> bool:
    """Return whether a maximum or minimum is part of `x.clamp(min, max)` with numbers for bounds."""
    return _BOUNDED.search(node.notes.get(FX_NODE, "")) is not None


def _argument(call: re.Pattern[str], node: Node, position: int, name: str) -> str | None:
    """The text of an argument of the call, which stands at `position` or under its name."""
    match = call.search(node.notes.get(FX_NODE, ""))
    if match is None:
        return None
    arguments = match.group(1).split(", ")
    if len(arguments) > position:
        return arguments[position]
    named = re.search(rf"\b{name}: ([^,]+)", match.group(2))
    return named and named.group(1)
