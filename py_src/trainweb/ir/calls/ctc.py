"""Calls of ctc. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from trainweb.ir.instructions import Buf, KernelCall


class CtcLoss(KernelCall):
    """A call of `ctc_loss_f32`.

    loss = -log of the probability of all paths that give the target; alpha[batch, steps, states]: the logarithm of that
    of the paths up to a step and a state. Labels outside [0, classes) within a target's length fail with TW_BAD_LABEL,
    lengths beyond `steps` and `labels` with TW_BAD_INDEX.
    """

    __slots__ = (
        "log_probs",
        "targets",
        "input_lengths",
        "target_lengths",
        "loss",
        "alpha",
        "steps",
        "batch",
        "classes",
        "labels",
        "label_size",
        "length_size",
        "blank",
        "zero_infinity",
    )
    KERNEL = "ctc_loss_f32"
    OPCODE = 15
    WORDS = 14
    ARGUMENTS = __slots__
    OPERANDS = ("log_probs", "targets", "input_lengths", "target_lengths", "loss", "alpha")
    OPTIONAL_RESULTS = ("alpha",)
    FAILS = ("targets", "input_lengths", "target_lengths")

    def __init__(
        self,
        *,
        log_probs: Buf,
        targets: Buf,
        input_lengths: Buf,
        target_lengths: Buf,
        loss: Buf,
        alpha: Buf | None = None,
        steps: int,
        batch: int,
        classes: int,
        labels: int,
        label_size: int,
        length_size: int,
        blank: int,
        zero_infinity: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.log_probs = log_probs
        self.targets = targets
        self.input_lengths = input_lengths
        self.target_lengths = target_lengths
        self.loss = loss
        self.alpha = alpha
        self.steps = steps
        self.batch = batch
        self.classes = classes
        self.labels = labels
        self.label_size = label_size
        self.length_size = length_size
        self.blank = blank
        self.zero_infinity = zero_infinity

    @property
    def reads(self) -> list[Buf]:
        return [self.log_probs, self.targets, self.input_lengths, self.target_lengths]

    @property
    def writes(self) -> list[Buf]:
        found = [self.loss]
        if self.alpha is not None:
            found.append(self.alpha)
        return found


class CtcLossGrad(KernelCall):
    """A call of `ctc_loss_grad_f32`.

    The gradient of log_probs, each being an input of its own.
    """

    __slots__ = (
        "dloss",
        "log_probs",
        "targets",
        "input_lengths",
        "target_lengths",
        "alpha",
        "dx",
        "steps",
        "batch",
        "classes",
        "labels",
        "label_size",
        "length_size",
        "blank",
        "zero_infinity",
    )
    KERNEL = "ctc_loss_grad_f32"
    OPCODE = 16
    WORDS = 15
    ARGUMENTS = __slots__
    OPERANDS = ("dloss", "log_probs", "targets", "input_lengths", "target_lengths", "alpha", "dx")
    FAILS = ("targets", "input_lengths", "target_lengths")

    def __init__(
        self,
        *,
        dloss: Buf,
        log_probs: Buf,
        targets: Buf,
        input_lengths: Buf,
        target_lengths: Buf,
        alpha: Buf,
        dx: Buf,
        steps: int,
        batch: int,
        classes: int,
        labels: int,
        label_size: int,
        length_size: int,
        blank: int,
        zero_infinity: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.dloss = dloss
        self.log_probs = log_probs
        self.targets = targets
        self.input_lengths = input_lengths
        self.target_lengths = target_lengths
        self.alpha = alpha
        self.dx = dx
        self.steps = steps
        self.batch = batch
        self.classes = classes
        self.labels = labels
        self.label_size = label_size
        self.length_size = length_size
        self.blank = blank
        self.zero_infinity = zero_infinity

    @property
    def reads(self) -> list[Buf]:
        return [self.dloss, self.log_probs, self.targets, self.input_lengths, self.target_lengths, self.alpha]

    @property
    def writes(self) -> list[Buf]:
        return [self.dx]
