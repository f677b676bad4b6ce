"""Losses. Each is a scalar unless `reduction` is "none"."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar

from trainweb.errors import ModelError, UnsupportedError
from trainweb.onnxblock import blocks, context
from trainweb.onnxblock.blocks import Block, add_input_like, array_initializer
from trainweb.onnxblock.context import add_node, generate_name, skip_names
from trainweb.settings import Choice, Weights, Whole, checked

Reduction = Annotated[str, Choice(("mean", "sum", "none"))]
CROSS_ENTROPY_SINCE = 12
"""ai.onnx version that brought SoftmaxCrossEntropyLoss."""


def _reduction(reduction: str) -> Block:
    if reduction == "none":
        return blocks.PassThrough()
    return (blocks.ReduceMean if reduction == "mean" else blocks.ReduceSum)(keepdims=False)


def _target_like(pred: str, name: str) -> str:
    return name if context.current().has(name) else add_input_like(pred, name)


class Loss(Block):
    """A loss that is known by its name. Its settings are the arguments of `__init__`: see `trainweb.settings`."""

    n_inputs: ClassVar[int] = 1
    """How many of the model's outputs it takes."""


LOSSES: dict[str, type[Loss]] = {}
"""Those that `LossType`, the command line, pages and the documentation know, by name."""
T = TypeVar("T", bound="type[Loss]")


def loss(cls: T) -> T:
    """Class decorator that makes a loss known by its name."""
    LOSSES[cls.__name__] = cls
    return cls


@loss
class MSELoss(Loss):
    """Squared error: the mean, the sum or each ("none").

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the elements are combined.
    """

    @checked
    def __init__(self, reduction: Reduction = "mean") -> None:
        self._reduce = _reduction(reduction)
        self._sub, self._square = blocks.Sub(), blocks.Pow(2.0)

    def build(self, pred: str, target_name: str = "target") -> str:
        """Name of the loss of `pred` against input `target_name`, which is added if missing."""
        target = _target_like(pred, target_name)
        loss: str = self._reduce(self._square(self._sub(pred, target)))
        return loss


@loss
class CrossEntropyLoss(Loss):
    """Cross entropy of scores (logits) against class indices.

    Parameters
    ----------
    weight : array of shape (C,), optional
        Factor of each class.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the weights of the rows that count.
    ignore_index : int, optional
        Rows with this label count nothing.
    class_axis : int
        Axis of the scores that holds the classes. The last by default, as for (N, C) and (N, S, V);
        use 1 for (N, C, H, W).
    """

    @checked
    def __init__(
        self,
        weight: Weights | None = None,
        reduction: Reduction = "mean",
        ignore_index: Annotated[int, Whole()] | None = None,
        *,
        class_axis: Annotated[int, Whole()] = -1,
    ) -> None:
        self._weight, self._reduction, self._class_axis = weight, reduction, class_axis
        self._ignore_index = ignore_index

    def build(self, scores: str, labels_name: str = "labels") -> str:
        """Name of the loss of `scores` against input `labels_name`, which is added if missing.

        The labels have the shape of the scores without the class axis.
        """
        weight = generate_name("celoss.weight")
        accessor = context.current()
        opset = accessor.graph.opsets.get("", 1)
        if opset < CROSS_ENTROPY_SINCE:
            raise UnsupportedError(
                f"Cross entropy needs opset {CROSS_ENTROPY_SINCE} or newer; the model has opset {opset}.",
                op="SoftmaxCrossEntropyLoss",
                domain="",
                opset=opset,
            )
        rank = len(accessor.tensor_value(scores).shape or ())
        if rank < 2 or not -rank <= self._class_axis < rank:
            raise ModelError(f"Scores {scores!r} of rank {rank} have no class axis {self._class_axis}.")
        axis = self._class_axis % rank
        labels = labels_name
        if not accessor.has(labels_name):
            labels = add_input_like(scores, labels_name, "int64", drop_axis=axis)
        loss, log_prob = generate_name("loss"), generate_name("log_prob")
        inputs = self._rows(scores, labels, axis, rank)
        if self._weight is not None:
            inputs.append(array_initializer(weight, self._weight))
        attrs: dict[str, Any] = {"reduction": self._reduction}
        if self._ignore_index is not None:
            attrs["ignore_index"] = self._ignore_index
        restore = self._reduction == "none" and inputs[0] != scores
        out = generate_name("loss_rows") if restore else loss
        add_node("SoftmaxCrossEntropyLoss", inputs, [out, log_prob], **attrs)
        if restore:
            add_node("Reshape", [out, self.add_node("Shape", [labels])], [loss])
        return loss

    def _rows(self, scores: str, labels: str, axis: int, rank: int) -> list[str]:
        """Scores and labels as the operator takes them: classes in dim 1."""
        if axis == 1:
            return [scores, labels]
        if axis != rank - 1:
            last = [k for k in range(rank) if k != axis] + [axis]
            scores = self.add_node("Transpose", [scores], perm=last)
        flat = blocks.add_initializer_of("int64", "row_shape", [-1])
        rows = self.add_node("Flatten", [scores], axis=rank - 1)
        return [rows, self.add_node("Reshape", [labels, flat])]


@loss
class BCEWithLogitsLoss(Loss):
    """Binary cross entropy of logits x against targets t in [0, 1].

    softplus(x) - x t, or with pos_weight p: (1 - t) x + (1 + (p - 1) t) softplus(-x). Stable for
    any x, and its gradient is sigmoid(x) - t everywhere, unlike that of forms with max(x, 0) and
    |x|.

    Parameters
    ----------
    weight : array, optional
        Factor of each element's loss; broadcasts.
    reduction : {"mean", "sum", "none"}
        How the elements are combined.
    pos_weight : array, optional
        Factor of the positive targets; broadcasts.
    """

    @checked
    def __init__(
        self, weight: Weights | None = None, reduction: Reduction = "mean", pos_weight: Weights | None = None
    ) -> None:
        self._reduce = _reduction(reduction)
        self._weight, self._pos_weight = weight, pos_weight
        self._softplus, self._neg, self._mul = blocks.Softplus(), blocks.Neg(), blocks.Mul()
        self._sub, self._add = blocks.Sub(), blocks.Add()

    def build(self, logits: str, target_name: str = "target") -> str:
        """Name of the loss of `logits` against input `target_name`, which is added if missing."""
        pos_weight, weight = generate_name("bceloss.pos_weight"), generate_name("bceloss.weight")
        target = _target_like(logits, target_name)
        if self._pos_weight is None:
            # ONNX Runtime's formula makes 20 names here: the loss keeps the name it has there.
            loss: str = self._sub(self._softplus(logits), self._mul(logits, target))
            skip_names(14)
        else:
            loss = self._weighted(logits, target, array_initializer(pos_weight, self._pos_weight))
        if self._weight is not None:
            loss = self._mul(loss, array_initializer(weight, self._weight))
        result: str = self._reduce(loss)
        return result

    def _weighted(self, logits: str, target: str, pos_weight: str) -> str:
        one = blocks.Constant(1.0)()
        factor = self._add(one, self._mul(self._sub(pos_weight, one), target))
        positive = self._mul(factor, self._softplus(self._neg(logits)))
        loss: str = self._add(self._mul(self._sub(one, target), logits), positive)
        return loss


@loss
class L1Loss(Loss):
    """Absolute error: the mean, the sum or each ("none").

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the elements are combined.
    """

    @checked
    def __init__(self, reduction: Reduction = "mean") -> None:
        self._reduce = _reduction(reduction)
        self._sub, self._abs = blocks.Sub(), blocks.Abs()

    def build(self, pred: str, target_name: str = "target") -> str:
        """Name of the loss of `pred` against input `target_name`, which is added if missing."""
        target = _target_like(pred, target_name)
        loss: str = self._reduce(self._abs(self._sub(pred, target)))
        return loss
