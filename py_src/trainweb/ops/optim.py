"""Optimizers over sequences of parameters, as optimizer models contain them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainweb.errors import UnsupportedError
from trainweb.ir import calls
from trainweb.ir.dims import equal_shapes
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value
from trainweb.ops.lazy_numpy import np
from trainweb.ops.literals import bools, f32, i64
from trainweb.ops.op import MS, Bad, Float, Int, Op, Sample, Str, register

if TYPE_CHECKING:
    from trainweb.ir.builder import Builder
    from trainweb.ir.program import Buf, BufSequence


PARAMETERS = f32([1.0, -0.5, 3.0, 0.0, -2.0, 0.25, 1e-3])
GRADIENTS = f32([0.5, -2.0, 0.0, 0.125, 1.5, -1e-3, -0.75])
FIRST_MOMENTS = f32([-0.25, 0.5, 0.01, -1.0, 0.0, 0.75, 0.3])
SECOND_MOMENTS = f32([0.04, 2.25, 0.0, 1e-4, 0.5, 1.0, 0.09])
"""What samples start from, other than at the first step."""


class SequenceOp(Op):
    """An operator on sequences of tensors, which lie in flat runs; it updates them in place.

    In samples each sequence is one tensor. `reference` gives what `state_inputs` are afterwards, in their order.
    """

    domain = MS

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
        b1, b2 = self.alpha, self.beta
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        if self.adam_mode == 0:
            w = w * (1 - lr * self.weight_decay)
            w = w - lr / (1 - b1**step) * m / (np.sqrt(v) / np.sqrt(1 - b2**step) + self.epsilon)
        else:
            rate = lr * np.sqrt(1 - b2**step) / (1 - b1**step) if self.correct_bias else lr
            w = w - rate * m / (np.sqrt(v) + self.epsilon)
            w = w - lr * self.weight_decay * w
        return w, m, v

    samples = (
        Sample([f32([0.1]), i64([1]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS]),
        Sample(
            [f32([0.01]), i64([7]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS],
            {"alpha": 0.8, "beta": 0.95, "adam_mode": 1, "epsilon": 1e-3, "weight_decay": 0.0},
        ),
        Sample(
            [f32([0.1]), i64([1000]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS],
            {"adam_mode": 1, "correct_bias": 0, "weight_decay": 0.1},
        ),
    )
    bad = (
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"adam_mode": 2}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"adam_mode": 0, "correct_bias": 0}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),
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

    samples = (Sample([f32([0.1]), PARAMETERS, GRADIENTS]),)
    bad = (Bad([f32([0.1]), PARAMETERS, GRADIENTS, bools([True])], error=UnsupportedError),)


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

    samples = (Sample([(37,)]), Sample([(37,)], {"max_norm": 100.0}), Sample([f32([0.0, 0.0])]))
    bad = (Bad([(37,)], {"norm_type": "inf"}, error=UnsupportedError),)


@register
class InPlaceAccumulatorV2(Op):
    """buffer = value where the flag is set, else buffer += value (com.microsoft). The output says it was updated."""

    domain = MS
    min_inputs, max_inputs, n_outputs = 2, 3, 2
    state_inputs = (0,)
    accumulates = True

    def infer(self, buffer: TensorType, value: TensorType, flag: TensorType | None) -> tuple[TensorType, TensorType]:
        self.need_float32(buffer, value)
        if not equal_shapes(buffer.shape, value.shape):
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

    def reference(self, buffer: Any, value: Any, flag: Any = None) -> tuple[Any, Any]:
        return np.ones(1, bool), value if flag is not None and flag.all() else buffer + value

    samples = (
        Sample([(3, 4), (3, 4)], outputs=2),
        Sample([(3, 4), (3, 4), bools([True])], outputs=2),
        Sample([(3, 4), (3, 4), bools([False])], outputs=2),
    )
    bad = (Bad([(3, 4), (4, 3)]), Bad([(3,), i64([1, 2, 3])], error=UnsupportedError))


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
        """The rate after `step` optimizer steps; the session keeps what it depends on, not the graph."""
        if step < warmup:
            return initial * step / max(1, warmup)
        return initial * max(0.0, (total - step) / max(1, total - warmup))

    samples = tuple(
        Sample([i64(step), i64(warmup), i64(total), f32(0.1)])
        for step, warmup, total in ((0, 2, 6), (1, 2, 6), (3, 2, 6), (6, 2, 6), (7, 2, 6), (2, 0, 5), (4, 10, 4))
    )


def scheduler_graph() -> Graph:
    """The graph of a scheduler step."""
    node = Node("LinearLearningRate", ["learning_rate"], ["done"], domain="ai.trainweb", name="scheduler")
    return Graph("scheduler", [node], [Value("learning_rate", "float32", (1,))], opsets={"": 17, "ai.trainweb": 1})
