"""Connectionist temporal classification: the loss of all paths that give a sequence of labels, and its gradient."""

from __future__ import annotations

from typing import Any

from trainweb.errors import LimitError
from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal, equal_shapes
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import CTC_LABELS
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import ITEM_SIZE, TRAINWEB
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import Int, Names, Op


class _Ctc(Op, abstract=True):
    """Common base of the loss and its gradient: (..., log_probs, targets, input_lengths, target_lengths)."""

    domain = TRAINWEB
    attrs = {"blank": Int(0), "zero_infinity": Int(0, among=(0, 1))}

    def check(self, log_probs: TensorType, targets: TensorType, *lengths: TensorType) -> None:
        """Raise unless dtypes, shapes and attributes fit."""
        self.need_float32(log_probs)
        for what, t in zip(("targets", "input_lengths", "target_lengths"), (targets, *lengths), strict=True):
            if t.dtype not in ("int32", "int64"):
                raise self.error(f"{what} are {t.dtype}; they must be int64 or int32.")
        if lengths[0].dtype != lengths[1].dtype:
            raise self.error("input_lengths and target_lengths are of different types.")
        if log_probs.rank != 3 or targets.rank != 2:
            raise self.error(
                f"log_probs have shape {list(log_probs.shape)} and targets {list(targets.shape)}; "
                "they must be (steps, items, classes) and (items, labels)."
            )
        items = log_probs.shape[1]
        if not equal(targets.shape[0], items) or not all(equal_shapes(t.shape, (items,)) for t in lengths):
            shapes = ", ".join(str(list(t.shape)) for t in (targets, *lengths))
            raise self.error(f"targets and lengths have shapes {shapes}; their first dims must be {items}, the items.")
        classes = log_probs.shape[2]
        if self.blank < 0 or (isinstance(classes, int) and self.blank >= classes):
            raise self.error(f"blank is {self.blank}; there are {classes} classes.")

    def words(self, b: Builder, log_probs: Buf, targets: Buf, *lengths: Buf) -> dict[str, Any]:
        """Emit checks of the fed labels and lengths; the operands and sizes of the kernels."""
        steps, batch, classes = log_probs.shape
        labels = targets.shape[1]
        if labels > CTC_LABELS:
            raise LimitError(f"{self.node.name}: targets have {labels} labels; there may be {CTC_LABELS}.")
        # Those behind the length of a target, too: what only the kernel finds is found when state may have changed.
        b.check_labels(targets, classes, None)
        for values, most in zip(lengths, (steps, labels), strict=True):
            b.check_range(values, most + 1)
        return {
            "log_probs": log_probs,
            "targets": targets,
            "input_lengths": lengths[0],
            "target_lengths": lengths[1],
            "steps": steps,
            "batch": batch,
            "classes": classes,
            "labels": labels,
            "label_size": ITEM_SIZE[targets.dtype],
            "length_size": ITEM_SIZE[lengths[0].dtype],
            "blank": self.blank,
            "zero_infinity": self.zero_infinity,
        }


class CTCLoss(_Ctc):
    """-log of the probability that log_probs (steps, items, classes) give to the labels of each item, in any alignment.

    Targets are (items, labels); of each item the first `input_lengths` steps and `target_lengths` labels count. An item
    that no path gives has the loss infinity, or 0 without a gradient where `zero_infinity` is 1. The second result are
    logarithms of sums over paths, which the gradient needs: (items, steps, 2 labels + 1). As torch.nn.CTCLoss without
    reduction; but the gradient is that of log_probs themselves. Graves et al., Connectionist Temporal Classification,
    https://www.cs.toronto.edu/~graves/icml_2006.pdf.
    """

    n_outputs = 2
    differentiable = (0,)

    def infer(
        self, log_probs: TensorType, targets: TensorType, input_lengths: TensorType, target_lengths: TensorType
    ) -> tuple[TensorType, TensorType]:
        self.check(log_probs, targets, input_lengths, target_lengths)
        items = log_probs.shape[1]
        alpha = (items, log_probs.shape[0], 2 * targets.shape[1] + 1)
        return TensorType("float32", (items,)), TensorType("float32", alpha)

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Buf) -> None:
        loss = outs[0] or b.temp("float32", (ins[0].shape[1],))
        b.emit(calls.CtcLoss(loss=loss, alpha=outs[1], **self.words(b, *ins)))

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        if len(douts) > 1 and douts[1]:
            raise self.unsupported("a gradient of the sums over paths")
        inputs = [douts[0] or "", *ins, g.extra_output(1, "_alpha")]
        dx = g.op("CTCLossGrad", inputs, domain=self.domain, blank=self.blank, zero_infinity=self.zero_infinity)
        return [dx, None, None, None]


class CTCLossGrad(_Ctc):
    """Gradient of log_probs from (dloss, log_probs, targets, input_lengths, target_lengths, alpha)."""

    def infer(
        self,
        dloss: TensorType,
        log_probs: TensorType,
        targets: TensorType,
        input_lengths: TensorType,
        target_lengths: TensorType,
        alpha: TensorType,
    ) -> TensorType:
        self.check(log_probs, targets, input_lengths, target_lengths)
        self.need_float32(dloss, alpha)
        items = log_probs.shape[1]
        wanted = (items, log_probs.shape[0], 2 * targets.shape[1] + 1)
        if not equal_shapes(dloss.shape, (items,)) or not equal_shapes(alpha.shape, wanted):
            raise self.error(f"dloss and alpha have shapes {list(dloss.shape)} and {list(alpha.shape)}.")
        return TensorType("float32", log_probs.shape)

    def lower(self, b: Builder, outs: list[Buf], dloss: Buf, *ins: Buf) -> None:
        *operands, alpha = ins
        b.emit(calls.CtcLossGrad(dloss=dloss, alpha=alpha, dx=outs[0], **self.words(b, *operands)))
