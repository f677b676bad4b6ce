"""Softmax, its gradients, and cross entropy on integer labels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal_shapes
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import LOSS_EACH, LOSS_MEAN, LOSS_SUM
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS, TRAINWEB
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Int, Names, Op, Str


def view_3d(shape: tuple[int, ...], axis: int, flatten: bool) -> tuple[int, int, int]:
    """(outer, n, inner) of a reduction along `axis`, or over all dims from `axis` on where `flatten`."""
    if flatten:
        return prod(shape[:axis]), prod(shape[axis:]), 1
    return prod(shape[:axis]), shape[axis] if shape else 1, prod(shape[axis + 1 :])


class _AlongAxis(Op, abstract=True):
    """Softmax and alike: before opset 13 the input is flattened to 2-D at `axis`, whose default is 1."""

    versions: ClassVar[tuple[int, ...]] = (1, 11, 13)
    attrs = {"axis": Int()}
    differentiable: ClassVar[Sequence[int]] = (0,)

    @property
    def flattens(self) -> bool:
        """Return whether the dims from `axis` on are one: the gradients' names say so."""
        return not self.op_type().endswith("_13") if self.domain == MS else self.opset < 13

    def axis_for(self, rank: int) -> int:
        """The axis in force."""
        axis = self.axis if self.axis is not None else (1 if self.flattens else -1)
        if self.flattens and axis == rank:
            return axis
        return self.axis_of(axis, max(rank, 1))

    def infer(self, *inputs: TensorType | None) -> TensorType:
        t = inputs[0]
        assert t is not None
        self.need_float32(*inputs)
        self.need_shape("the second input", inputs[-1], t.shape)
        self.axis_for(t.rank)
        return TensorType(t.dtype, t.shape)

    def sizes(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Kernel arguments for a tensor of this shape."""
        outer, n, inner = view_3d(shape, self.axis_for(len(shape)), self.flattens)
        return {"outer": outer, "n": n, "inner": inner}


class _Forward(_AlongAxis, abstract=True):
    """A function of one input along an axis, whose gradient is an operator of (dY, Y)."""

    log = 0

    def lower(self, b: Builder, outs: list[Buf], x: Buf) -> None:
        b.emit(calls.Softmax(x=x, y=outs[0], log=self.log, **self.sizes(x.shape)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        suffix = "Grad" if self.flattens else "Grad_13"
        axis = self.axis if self.axis is not None else (1 if self.flattens else -1)
        return [g.op(self.op_type() + suffix, [douts[0], outs[0]], domain=MS, axis=axis)]


class Softmax(_Forward):
    """exp(x) / sum(exp(x)) along an axis. https://onnx.ai/onnx/operators/onnx__Softmax.html"""


class LogSoftmax(_Forward):
    """log of softmax. https://onnx.ai/onnx/operators/onnx__LogSoftmax.html"""

    log = 1


class _Backward(_AlongAxis, abstract=True):
    """Gradient of an input from (dY, Y)."""

    domain = MS
    versions = (1,)
    differentiable = ()
    log = 0

    def lower(self, b: Builder, outs: list[Buf], dy: Buf, y: Buf) -> None:
        b.emit(calls.SoftmaxGrad(dy=dy, y=y, dx=outs[0], log=self.log, **self.sizes(y.shape)))


class SoftmaxGrad_13(_Backward):
    """Y * (dY - sum(Y * dY)) along an axis (com.microsoft)."""


class LogSoftmaxGrad_13(_Backward):
    """dY - exp(Y) * sum(dY) along an axis (com.microsoft)."""

    log = 1


class SoftmaxGrad(_Backward):
    """As SoftmaxGrad_13 for opset < 13, with the dims from `axis` on taken as one (com.microsoft)."""


class LogSoftmaxGrad(LogSoftmaxGrad_13):
    """As LogSoftmaxGrad_13 for opset < 13, with the dims from `axis` on taken as one (com.microsoft)."""


REDUCTIONS = {"none": LOSS_EACH, "mean": LOSS_MEAN, "sum": LOSS_SUM}


LABEL_BYTES = {"int32": 4, "int64": 8}


class _CrossEntropy(Op, abstract=True):
    """Common base of cross entropy and its gradient: scores (N, C, d1, ...), labels (N, d1, ...)."""

    attrs = {"reduction": Str("mean", among=REDUCTIONS), "ignore_index": Int()}
    from_log: ClassVar[int] = 0
    """1: the scores are logarithms of probabilities already."""

    def check(self, scores: TensorType, labels: TensorType, weights: TensorType | None) -> None:
        """Raise unless the types fit."""
        if scores.dtype != "float32" or labels.dtype not in LABEL_BYTES:
            raise self.unsupported(f"{scores.dtype} scores with {labels.dtype} labels")
        expected = (*scores.shape[:1], *scores.shape[2:])
        if scores.rank < 2 or not equal_shapes(labels.shape, expected):
            raise self.error(
                f"The shape of logit and label does not match: scores {list(scores.shape)} need labels "
                f"{list(expected)}, got {list(labels.shape)}."
            )
        if weights is not None and (weights.dtype != "float32" or not equal_shapes(weights.shape, scores.shape[1:2])):
            raise self.error(f"weights must be float32 of shape {[scores.shape[1]]}, got {list(weights.shape)}.")

    def sizes(self, scores: tuple[int, ...], labels: Buf) -> dict[str, Any]:
        """Kernel arguments."""
        return {
            "n": scores[0],
            "c": scores[1],
            "inner": prod(scores[2:]),
            "label_size": LABEL_BYTES[labels.dtype],
            "has_ignore": int(self.ignore_index is not None),
            "ignore_index": self.ignore_index or 0,
            "from_log": self.from_log,
            "reduction": REDUCTIONS[self.reduction],
        }

    def loss_attrs(self) -> dict[str, Any]:
        """Attributes of the gradient."""
        ignored = {} if self.ignore_index is None else {"ignore_index": self.ignore_index}
        return {"reduction": self.reduction, **ignored}


class _Loss(_CrossEntropy, abstract=True):
    """The loss of each position, or their sum or mean, and the logarithms of probabilities where there is an output."""

    differentiable = (0,)

    def loss(self, scores: TensorType, labels: TensorType, weights: TensorType | None) -> TensorType:
        """Type of the loss."""
        self.check(scores, labels, weights)
        return TensorType("float32", labels.shape if self.reduction == "none" else ())

    def lower(self, b: Builder, outs: list[Buf | None], scores: Buf, labels: Buf, weights: Buf | None = None) -> None:
        b.check_labels(labels, scores.shape[1], self.ignore_index)
        call = calls.CrossEntropy(
            scores=scores,
            labels=labels,
            weights=weights,
            loss=outs[0] or b.temp("float32", labels.shape if self.reduction == "none" else ()),
            log_prob=outs[1] if len(outs) > 1 else None,
            **self.sizes(scores.shape, labels),
        )
        b.emit(call)


class SoftmaxCrossEntropyLoss(_Loss):
    """Cross entropy of scores (N, C, ...) and labels. https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html

    If every label is ignored the mean is 0, as in ONNX Runtime.
    """

    versions = (12, 13)
    n_outputs = 2

    def infer(
        self, scores: TensorType, labels: TensorType, weights: TensorType | None = None
    ) -> tuple[TensorType, TensorType]:
        return self.loss(scores, labels, weights), TensorType("float32", scores.shape)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        log_prob = g.extra_output(1, "_log_prob")
        parts = []
        if douts[0]:
            inputs = [douts[0], log_prob, *ins[1:]]
            parts.append(g.op("SoftmaxCrossEntropyLossGrad", inputs, domain=MS, **self.loss_attrs()))
        if len(douts) > 1 and douts[1]:
            parts.append(g.op("LogSoftmaxGrad_13", [douts[1], log_prob], domain=MS, axis=1))
        dx = parts[0] if len(parts) == 1 else g.op("Add", parts)
        return [dx, *[None] * (len(ins) - 1)]


class _CrossEntropyGrad(_CrossEntropy, abstract=True):
    min_inputs = 3

    def infer(
        self, dy: TensorType, log_prob: TensorType, labels: TensorType, weights: TensorType | None, *bias: Any
    ) -> TensorType:
        self.check(log_prob, labels, weights)
        if any(t is not None for t in bias):
            raise self.unsupported("a bias input")
        return TensorType("float32", log_prob.shape)

    def lower(
        self, b: Builder, outs: list[Buf], dy: Buf, log_prob: Buf, labels: Buf, weights: Buf | None, *_: None
    ) -> None:
        b.check_labels(labels, log_prob.shape[1], self.ignore_index)
        call = calls.CrossEntropyGrad(
            dy=dy,
            log_prob=None if self.from_log else log_prob,
            labels=labels,
            weights=weights,
            dx=outs[0],
            **self.sizes(log_prob.shape, labels),
        )
        b.emit(call)


class SoftmaxCrossEntropyLossGrad(_CrossEntropyGrad):
    """(exp(log_prob) - onehot(label)) * weight * dY / D (com.microsoft); D is the sum of weights for "mean", else 1."""

    domain = MS
    max_inputs = 5


class NegativeLogLikelihoodLoss(_Loss):
    """-log_prob[label] of (N, C, ...). https://onnx.ai/onnx/operators/onnx__NegativeLogLikelihoodLoss.html

    If every label is ignored the mean is 0, as for SoftmaxCrossEntropyLoss.
    """

    versions = (12, 13, 22)
    from_log = 1

    def infer(self, log_prob: TensorType, labels: TensorType, weights: TensorType | None = None) -> TensorType:
        return self.loss(log_prob, labels, weights)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: list[str]) -> Names:
        inputs = [douts[0], *ins]
        dx = g.op("NegativeLogLikelihoodLossGrad", inputs, domain=TRAINWEB, **self.loss_attrs())
        return [dx, *[None] * (len(ins) - 1)]


class NegativeLogLikelihoodLossGrad(_CrossEntropyGrad):
    """-onehot(label) * weight * dY / D from (dY, log_prob, labels, weights) (ai.trainweb); D as in cross entropy."""

    domain = TRAINWEB
    max_inputs = 4
    from_log = 1
