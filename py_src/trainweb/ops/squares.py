"""Sums of squares, of which norms, distances and deviations are roots."""

from __future__ import annotations

from trainweb.model.graph import Node
from trainweb.model.uses import MOVES_OF_ONE
from trainweb.ops.frame.gradients import GradientBuilder

_SUMS = ("AveragePool", "ReduceMean", "ReduceSum")
_NODES = 32
"""Nodes that are looked at; the deviation that torch's exporters write takes eight."""


def is_of_squares(g: GradientBuilder, name: str) -> bool:
    """Return whether a tensor is a sum of squares times constants, or a product of such sums.

    If it is 0 its derivative is 0, too, and the derivative of its root 0 / 0. PyTorch has 0 there for `std`, `norm` and
    `cdist`, which exporters write as such roots.
    """
    pending = [name]
    for _ in range(_NODES):
        if not pending:
            return True
        node = g.producer(pending.pop())
        if node is None or node.domain:
            return False
        if _adds_squares(g, node):
            continue
        varying = [x for x in node.inputs if g.wants(x)]
        if node.op_type not in ("Mul", "Div", *MOVES_OF_ONE) or (node.op_type == "Div" and node.inputs[1] in varying):
            return False
        pending += varying
    return False


def _adds_squares(g: GradientBuilder, node: Node | None) -> bool:
    """Return whether a node makes squares or sums only squares, so that it is 0 only where all of them are."""
    for _ in range(_NODES):
        if node is None or node.domain:
            return False
        if _is_square(g, node):
            return True
        if node.op_type not in (*_SUMS, *MOVES_OF_ONE):
            return False
        node = g.producer(node.inputs[0])
    return False


def _is_square(g: GradientBuilder, node: Node) -> bool:
    """Return whether a node makes squares, or powers above 1 of magnitudes."""
    if node.op_type != "Pow":
        return node.op_type == "ReduceSumSquare" or (node.op_type == "Mul" and node.inputs[0] == node.inputs[1])
    exponent = g.known(node.inputs[1])
    if exponent is None or exponent.size != 1 or not exponent.value or exponent.value[0] <= 1:
        return False
    maker = g.producer(node.inputs[0])
    return exponent.value[0] % 2 == 0 or (maker is not None and maker.op_type == "Abs")
