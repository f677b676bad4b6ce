"""The rows of a loss in the tensors of a graph: the axes along which they lie, where nothing else of them is read.

A loss that ignores labels reads its scores by rows, such as the tokens of texts. The walk goes from the loss to the
inputs. The rules of ops/axes.py tell which axis of an operand is which axis of the result, and along which a node mixes
elements. An operand whose rows are mixed is read as a whole, and so is everything before it. A node without a rule
reads its operands as a whole, too.

Attention is the exception: it mixes tokens, but reads only the keys that its mask does not rule out. Its operands have
rows of the next level, and the pass `leave_out_padding` follows the masks from one level to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from math import prod

from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import KEYS, AxisPart, Rows
from trainweb.ir.shapes import TensorType
from trainweb.ops.axes import Axes, Labels, axes_of
from trainweb.ops.frame.op import Elementwise, Op
from trainweb.ops.join import Concat
from trainweb.ops.softmax_loss import (
    NegativeLogLikelihoodLoss,
    NegativeLogLikelihoodLossGrad,
    Softmax,
    SoftmaxCrossEntropyLoss,
    SoftmaxCrossEntropyLossGrad,
)

Parts = tuple[AxisPart, ...]
Layout = tuple[Parts, ...]
"""The parts of each axis of a tensor."""
Reading = tuple[Layout, int] | str
"""The layout of a tensor that is read by rows, and the level of its rows; of others, why they are read as a whole."""

Loss = SoftmaxCrossEntropyLoss | NegativeLogLikelihoodLoss
LossGrad = SoftmaxCrossEntropyLossGrad | NegativeLogLikelihoodLossGrad
PRODUCTS = ("MatMul", "FusedMatMul", "Gemm")
LINEAR = (
    "Cast",
    "CastLike",
    "DivGrad",
    "DropoutGrad",
    "LayerNormalizationGrad",
    "LogSoftmaxGrad",
    "LogSoftmaxGrad_13",
    "Scale",
    "SimplifiedLayerNormalizationGrad",
    "SoftmaxGrad",
    "SoftmaxGrad_13",
)
"""Nodes whose results are zero for a row of zeros in the gradient, the first operand."""


def merged(parts: Iterable[AxisPart]) -> Parts:
    """Join parts that one part describes as well, and leave out parts of one element."""
    result: list[AxisPart] = []
    for size, step in parts:
        if result and step != KEYS and result[-1][1] == size * step:
            result[-1] = (result[-1][0] * size, step)
        elif size != 1:
            result.append((size, step))
    return tuple(result)


def laid_out(parts: Iterable[AxisPart], shape: Sequence[int]) -> Layout | None:
    """The parts of each axis of a view of this shape; None if an axis begins within a part."""
    if 0 in shape:
        return None
    rest, axes = list(merged(parts)), list[Parts]()
    for dim in reversed(shape):
        axis = list[AxisPart]()
        left = dim
        while left > 1:
            size, step = rest.pop()
            inner = min(size, left)
            if size % inner or left % inner:
                return None
            if size > inner:
                rest.append((size // inner, step if step == KEYS else step * inner))
            axis.insert(0, (inner, step))
            left //= inner
        axes.insert(0, tuple(axis))
    return tuple(axes)


def rows_of_loss(
    ops: Sequence[Op], types: Mapping[str, TensorType], outputs: Iterable[str]
) -> tuple[dict[str, Rows], dict[str, str], set[str]]:
    """Return the rows of each tensor that is read only by rows, why others are not, and the gradients of the loss.

    All are empty unless one loss ignores labels. `ops` are the nodes that are computed, in order, `types` the static
    types of all tensors, `outputs` the tensors that are read after a step.
    """
    losses = [op for op in ops if isinstance(op, Loss)]
    if len(losses) != 1 or losses[0].ignore_index is None:
        return {}, {}, set()
    walk = _Walk(ops, types, outputs)
    for op in reversed(ops):
        walk.visit(op)
    return *walk.rows(), walk.gradients


class _Walk:
    """Notes how tensors are read, from the loss to the inputs."""

    def __init__(self, ops: Sequence[Op], types: Mapping[str, TensorType], outputs: Iterable[str]) -> None:
        self.types = types
        self.makers = {name: op for op in ops for name in op.node.outputs if name}
        backward = set[str]()
        for op in ops:
            if isinstance(op, LossGrad) or not backward.isdisjoint(op.node.inputs):
                backward.update(op.node.outputs)
        self.readings: dict[str, Reading] = {
            name: "the gradient of another value is added" if name in backward else f"{name!r} is an output of the step"
            for name in outputs
        }
        """Tensors that are read later on."""
        self.probabilities: list[tuple[str, int]] = []
        """Probabilities of attention, and the level of its operands."""
        self.gradients = set[str]()
        """Tensors that depend on the gradient of the loss, and on no gradient of another value."""
        for op in ops:
            if isinstance(op, LossGrad) or not (self.gradients.isdisjoint(op.node.inputs) or self._adds_value(op)):
                self.gradients.update(filter(None, op.node.outputs))

    def rows(self) -> tuple[dict[str, Rows], dict[str, str]]:
        """Return the rows of tensors, up to the level at which something else reads probabilities, and why not more."""
        readers = ((level, self.readings.get(name, "")) for name, level in self.probabilities)
        limits = [(level, why) for level, why in readers if isinstance(why, str)]
        limit, late = min(limits, default=(len(self.probabilities) + 1, ""))
        rows, whole = dict[str, Rows](), dict[str, str]()
        for name, reading in self.readings.items():
            if isinstance(reading, str) or reading[1] >= limit:
                whole[name] = reading if isinstance(reading, str) else late
            else:
                rows[name] = Rows(merged(part for axis in reading[0] for part in axis), reading[1])
        return rows, whole

    def visit(self, op: Op) -> None:
        """Note the operands of a node, after all nodes that come later."""
        names = op.node.inputs
        if isinstance(op, Loss):
            self._visit_loss(op)
        elif isinstance(op, LossGrad):
            self._read_whole([*names[:1], *names[2:]], "")  # log probabilities do not count where a label is ignored
        elif not self.gradients.isdisjoint(names):
            if not self._is_linear(op):
                values = (name for name in names if name not in self.gradients)
                self._read_whole(values, f"{op.node} reads all rows")
        else:
            self._visit_value(op)

    def _read_whole(self, names: Iterable[str], why: str) -> None:
        self.readings.update(dict.fromkeys(filter(None, names), why))

    def _read(self, op: Op, name: str, reading: Reading) -> None:
        before = self.readings.get(name, reading)
        if isinstance(before, str) or isinstance(reading, str):
            self.readings[name] = before if isinstance(before, str) else reading
        elif before[0] != reading[0]:
            self.readings[name] = f"{op.node} and a later node read rows of {name!r} in two ways"
        else:
            self.readings[name] = (before[0], max(before[1], reading[1]))

    def _visit_loss(self, op: Op) -> None:
        """The loss reads scores by rows, unless something else reads their logarithms."""
        scores, *others = op.node.inputs
        self._read_whole(others, "")
        shape = self.types[scores].shape
        if len(shape) != 2 or 0 in shape or not self.readings.keys().isdisjoint(op.node.outputs[1:]):
            self._read_whole([scores], f"{op.node} reads no matrix of scores, or its logarithms are read")
            return
        self._read(op, scores, ((merged([(shape[0], 1)]), merged([(shape[1], 0)])), 0))

    def _visit_value(self, op: Op) -> None:
        """Note the operands of a node of the forward pass; none if only gradients read its results."""
        readings = [self.readings[name] for name in op.node.outputs if name in self.readings]
        if not readings:
            return
        known = [reading for reading in readings if not isinstance(reading, str)]
        if len(known) < len(readings):
            self._read_whole(op.node.inputs, next(why for why in readings if isinstance(why, str)))
            return
        layouts, level = [layout for layout, _ in known], max(level for _, level in known)
        if op.is_view:
            parts = (part for axis in layouts[0] for part in axis)
            laid = laid_out(parts, self.types[op.node.inputs[0]].shape)
            operands = [f"{op.node} splits rows" if laid is None else laid]
        else:
            operands, level = self._operands(op, layouts, level)
        for k, name in enumerate(op.node.inputs):
            layout = operands[k] if k < len(operands) else ""
            if name:
                self._read(op, name, layout if isinstance(layout, str) else (layout, level))

    def _operands(self, op: Op, layouts: Sequence[Layout], level: int) -> tuple[list[Layout | str], int]:
        """Layouts of operands that a node reads by rows, or why it reads more, and their level."""
        node = op.node
        types = [self.types[name] if name else None for name in node.inputs]
        output = next(name for name in node.outputs if name in self.readings)
        axes = axes_of(op, types, self.types[output])
        parts = None if axes is None else self._labelled(op, axes, layouts)
        if axes is None or parts is None:
            why = f"how {node} reads rows is not known" if axes is None else f"{node} reads all rows"
            return [why] * len(node.inputs), level
        others, later = self._keys(op, axes, parts, level)
        operands = [
            _layout(labels, t, parts | others.get(k, {}))
            for k, (labels, t) in enumerate(zip(axes.inputs, types, strict=False))
        ]
        return operands, later

    def _labelled(self, op: Op, axes: Axes, layouts: Sequence[Layout]) -> dict[Hashable, Parts] | None:
        """The parts of axes with rows or keys, by label; None if the node mixes elements along one of them."""
        parts = dict[Hashable, Parts]()
        for layout in layouts:
            if len(layout) != len(axes.output):
                return None
            for label, axis in zip(axes.output, layout, strict=True):
                if any(step for _, step in axis) and parts.setdefault(label, axis) != axis:
                    return None
        for label in axes.mixed & parts.keys():
            if not isinstance(op, Softmax) or any(step != KEYS for _, step in parts[label]):
                return None
        return parts

    # Attention.

    def _keys(
        self, op: Op, axes: Axes, parts: Mapping[Hashable, Parts], level: int
    ) -> tuple[dict[int, dict[Hashable, Parts]], int]:
        """Parts of the keys' axis of operands, by their number, and the level of the operands.

        Token i of the keys is the token of query i.
        """
        if op.op_type() not in PRODUCTS:
            return {}, level
        first, second = (list(labels or ()) for labels in axes.inputs[:2])
        if len(first) > 1 and first[-1] in axes.mixed and first[-2] in parts:
            makers = self._softmax_before(op.node.inputs[0])
            if makers:
                n = self.types[op.node.inputs[0]].shape[-1]
                self.probabilities += [(name, level + 1) for name in (op.node.inputs[0], *makers)]
                return {0: {first[-1]: ((n, KEYS),)}, 1: {first[-1]: parts[first[-2]]}}, level + 1
        keys = [label for label in second if any(step == KEYS for _, step in parts.get(label, ()))]
        queries = [label for label in first if label in parts and label not in second]
        if len(keys) == len(queries) == 1:
            return {1: {keys[0]: parts[queries[0]]}}, level
        return {}, level

    def _softmax_before(self, name: str) -> list[str]:
        """Results of softmax along the last axis that probabilities are made from, one by one."""
        names, seen = [name], set[str]()
        results = list[str]()
        while names:
            name = names.pop()
            op = self.makers.get(name)
            if op is None or name in seen:
                continue
            seen.add(name)
            rank = self.types[name].rank
            if isinstance(op, Softmax) and op.axis_for(rank) == rank - 1:
                results.append(name)
            elif isinstance(op, Elementwise) or op.op_type() == "Dropout":
                names += [each for each in op.node.inputs if each]
        return results

    # Gradients.

    def _adds_value(self, op: Op) -> bool:
        """Return whether a part of the result is not zero where gradients of the loss are."""
        return isinstance(op, Elementwise | Concat) and not self._is_linear(op)

    def _is_linear(self, op: Op) -> bool:
        """Return whether the result is zero for a row whose gradient is, whatever the other operands are there."""
        names = op.node.inputs
        if op.op_type() in LINEAR:
            return names[0] in self.gradients
        if op.op_type() in PRODUCTS:
            return not self.gradients.isdisjoint(names[:2]) and (len(names) < 3 or not names[2])
        if isinstance(op, Concat):
            return all(map(self._may_be_zero, names))
        if isinstance(op, Elementwise) and type(op).lower is Elementwise.lower:
            e, operands = Emitter(), [name for name in names if name]
            root = op.compute(e, *(e.input(k, self.types[name].dtype) for k, name in enumerate(operands)))
            return _is_zero(root, {k for k, name in enumerate(operands) if self._may_be_zero(name)})
        return False

    def _may_be_zero(self, name: str) -> bool:
        """Return whether a tensor is a gradient, or a constant of zeros."""
        value = self.types[name].value
        return name in self.gradients or (value is not None and not any(value))


def _layout(labels: Labels | None, t: TensorType | None, parts: Mapping[Hashable, Parts]) -> Layout | str:
    """The parts of each axis of an operand; a broadcast axis has none of the result's, and a parameter has no axes."""
    if labels is None or t is None:
        return ""
    axes = [(parts.get(label, ()), dim) for label, dim in zip(labels, t.shape, strict=True)]
    return tuple(axis if prod(n for n, _ in axis) == dim else merged([(dim, 0)]) for axis, dim in axes)


def _is_zero(e: Expr, zeros: Collection[int]) -> bool:
    """Return whether an expression is zero where these inputs are, and no other input is NaN or infinity."""
    match e.op:
        case "input":
            return e.imm in zeros
        case "const":
            return e.imm == 0
        case "mul":
            return any(_is_zero(x, zeros) for x in e.args)
        case "div":
            return _is_zero(e.args[0], zeros)
        case "select":
            return all(_is_zero(x, zeros) for x in e.args[1:])
        case "add" | "sub" | "neg" | "abs":
            return all(_is_zero(x, zeros) for x in e.args)
    return False
