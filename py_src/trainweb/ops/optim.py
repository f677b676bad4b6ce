"""Optimizers over sequences of parameters, as optimizer models contain them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainweb.ir import calls
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value
from trainweb.ops.lazy_numpy import np
from trainweb.ops.op import MS, Float, Int, Op, Sample, Str, register

if TYPE_CHECKING:
    from trainweb.ir.builder import Builder
    from trainweb.ir.program import Buf, BufSequence


class SequenceOp(Op):
    """An operator on sequences of tensors, which lie in flat runs; it updates them in place.

    Samples are the arrays of one step: each sequence is one tensor.
    """

    domain = MS
    takes_sequences = True

    def infer(self, *inputs: TensorType | None) -> TensorType:
        return TensorType("bool", (1,))

    def need_in_place(self, outs: list[Buf | None]) -> None:
        """Updated sequences are not given as outputs."""
        if any(o is not None for o in outs[1:]):
            raise self.unsupported("an optimizer with outputs besides its flag")


@register
class AdamWOptimizer(SequenceOp):
    """AdamW over sequences (com.microsoft). adam_mode 0: torch.optim.AdamW; 1: transformers' AdamW.

    Loshchilov & Hutter, Decoupled Weight Decay Regularization, https://arxiv.org/abs/1711.05101.
    """

    attrs = {
        "alpha": Float(0.9),
        "beta": Float(0.999),
        "epsilon": Float(1e-8),
        "weight_decay": Float(1e-2),
        "correct_bias": Int(1),
        "adam_mode": Int(0),
    }
    min_inputs, max_inputs, n_outputs = 6, 7, 4
    state_inputs = (2, 4, 5)

    alpha: float
    beta: float
    epsilon: float
    weight_decay: float
    correct_bias: int
    adam_mode: int

    def lower(
        self,
        b: Builder,
        outs: list[Buf | None],
        lr: Buf,
        step: Buf,
        params: BufSequence,
        grads: BufSequence,
        m: BufSequence,
        v: BufSequence,
        signal: Buf | None,
    ) -> None:
        self.need_in_place(outs)
        if signal is not None:
            raise self.unsupported("an update signal")
        if self.adam_mode not in (0, 1):
            raise self.error(f"adam_mode is {self.adam_mode}; it must be 0 or 1.")
        if self.adam_mode == 0 and not self.correct_bias:
            raise self.error("adam_mode 0 needs correct_bias 1.")
        for w, g, m1, m2 in zip(params.runs, grads.runs, m.runs, v.runs, strict=True):
            b.emit(
                calls.Adamw(
                    w=w,
                    g=g,
                    m=m1,
                    v=m2,
                    state=b.state,
                    n=w.size,
                    alpha=self.alpha,
                    beta=self.beta,
                    epsilon=self.epsilon,
                    weight_decay=self.weight_decay,
                    correct_bias=self.correct_bias,
                    adam_mode=self.adam_mode,
                )
            )
        b.emit(calls.OptimizerAdvance(state=b.state))

    def reference(self, lr: Any, step: Any, w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
        """(w, m, v) after step number `step` (1 at the first)."""
        t, b1, b2 = float(step), self.alpha, self.beta
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        if self.adam_mode == 0:
            w = w * (1 - lr * self.weight_decay)
            w = w - lr / (1 - b1**t) * m / (np.sqrt(v) / np.sqrt(1 - b2**t) + self.epsilon)
        else:
            rate = lr * np.sqrt(1 - b2**t) / (1 - b1**t) if self.correct_bias else lr
            w = w - rate * m / (np.sqrt(v) + self.epsilon)
            w = w - lr * self.weight_decay * w
        return w, m, v

    samples = (
        Sample([(), (), (37,), (37,), (37,), (37,)]),
        Sample([(), (), (37,), (37,), (37,), (37,)], {"adam_mode": 1, "epsilon": 1e-6, "weight_decay": 0.0}),
        Sample([(), (), (37,), (37,), (37,), (37,)], {"adam_mode": 1, "correct_bias": 0}),
    )


@register
class SGDOptimizerV2(SequenceOp):
    """w -= lr * g over sequences (com.microsoft)."""

    min_inputs, max_inputs, n_outputs = 3, 4, 2
    state_inputs = (1,)

    def lower(
        self, b: Builder, outs: list[Buf | None], lr: Buf, params: BufSequence, grads: BufSequence, signal: Buf | None
    ) -> None:
        self.need_in_place(outs)
        if signal is not None:
            raise self.unsupported("an update signal")
        for w, g in zip(params.runs, grads.runs, strict=True):
            b.emit(calls.Sgd(w=w, g=g, state=b.state, n=w.size))
        b.emit(calls.OptimizerAdvance(state=b.state))

    def reference(self, lr: Any, w: Any, g: Any) -> Any:
        return w - lr * g

    samples = (Sample([(), (37,), (37,)]),)


@register
class InplaceClipGradNorm(SequenceOp):
    """g *= min(1, max_norm / (norm of all gradients + 1e-6)) over a sequence, in place (com.microsoft)."""

    attrs = {"max_norm": Float(1.0), "norm_type": Str("fro")}
    state_inputs = (0,)
    passes_sequence = True

    max_norm: float
    norm_type: str

    def lower(self, b: Builder, outs: list[Buf | None], grads: BufSequence) -> None:
        if self.norm_type != "fro":
            raise self.unsupported(f"norm_type {self.norm_type!r}")
        if not grads.runs:
            return
        # Gradients lie one after the other: the runs are one.
        whole = grads.runs[0].view((sum(run.size for run in grads.runs),))
        whole.storage.nbytes = whole.nbytes
        b.emit(calls.ClipGradNorm(g=whole, n=whole.size, max_norm=self.max_norm))

    def reference(self, g: Any) -> Any:
        return g * min(1.0, self.max_norm / (np.sqrt((g * g).sum()) + 1e-6))

    samples = (Sample([(37,)]), Sample([(37,)], {"max_norm": 100.0}))


@register
class InPlaceAccumulatorV2(Op):
    """buffer = value where the flag is set, else buffer += value (com.microsoft). The output says it was updated."""

    domain = MS
    min_inputs, max_inputs, n_outputs = 2, 3, 2
    state_inputs = (0,)
    accumulates = True

    def infer(self, buffer: TensorType, value: TensorType, flag: TensorType | None) -> tuple[TensorType, TensorType]:
        self.need_float32(buffer, value)
        if buffer.shape != value.shape:
            raise self.error(f"the buffer has shape {list(buffer.shape)} and the value {list(value.shape)}.")
        return TensorType("bool", (1,)), buffer

    def lower(self, b: Builder, outs: list[Buf | None], buffer: Buf, value: Buf, flag: Buf | None) -> None:
        overwrite = b.overwrite
        if flag is not None and flag.value is not None:
            overwrite = bool(flag.value[0])
        elif flag is not None:
            raise self.unsupported("a flag that is only known at run time")
        b.accumulate(buffer, value, overwrite)
        b.fill(outs[0], True)
        if outs[1] is not None:
            b.copy(outs[1], buffer)

    def reference(self, buffer: Any, value: Any, flag: Any = None) -> Any:
        return value if flag is not None and flag.all() else buffer + value

    samples = (Sample([(3, 4), (3, 4)]),)


@register
class LinearLearningRate(Op):
    """Set the learning rate of the registered linear schedule (ai.trainweb); the scheduler step is a plan of it."""

    domain = "ai.trainweb"
    state_inputs = (0,)

    def infer(self, lr: TensorType) -> TensorType:
        return TensorType("bool", (1,))

    def lower(self, b: Builder, outs: list[Buf | None], lr: Buf) -> None:
        b.emit(calls.LinearLr(state=b.state))

    def reference(self, step: Any, warmup: Any, total: Any, initial: Any) -> Any:
        """The rate after `step` optimizer steps."""
        if step < warmup:
            return initial * step / max(1, warmup)
        return initial * max(0.0, (total - step) / max(1, total - warmup))

    samples = (Sample([(), (), (), ()]),)


def scheduler_graph() -> Graph:
    """The graph of a scheduler step."""
    node = Node("LinearLearningRate", ["learning_rate"], ["done"], domain="ai.trainweb", name="scheduler")
    return Graph("scheduler", [node], [Value("learning_rate", "float32", (1,))], opsets={"": 17, "ai.trainweb": 1})
