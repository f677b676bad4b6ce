"""Optimizers over sequences of parameters, as optimizer models contain them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainweb.errors import UnsupportedError
from trainweb.ir import calls
from trainweb.ir.dims import equal_shapes
from trainweb.ir.layout import MOMENTUM0, MOMENTUM1
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Value
from trainweb.ops.lazy_numpy import np
from trainweb.ops.literals import bools, f32, i64
from trainweb.ops.op import MS, Bad, Float, Int, Op, Sample, Str, register

if TYPE_CHECKING:
    from trainweb.ir.builder import Builder
    from trainweb.ir.program import Buf, BufSequence


@dataclass(frozen=True, slots=True)
class Moment:
    """What an optimizer keeps of each trainable parameter, beside its value.

    Attributes
    ----------
    input
        Name of the input of optimizer models.
    saved
        Name in checkpoints.
    segment
        Where sessions keep it.
    """

    input: str
    saved: str
    segment: int


MOMENTS = (
    Moment("first_order_moments", "momentum0", MOMENTUM0),
    Moment("second_order_moments", "momentum1", MOMENTUM1),
)
"""All that a session has room for: an optimizer that keeps n of them keeps the first n."""

SCALARS = ("learning_rate", "step")
PARAMS, GRADS = "params", "gradients"
OPTIMIZER_INPUTS = (*SCALARS, PARAMS, GRADS)
"""Inputs that every optimizer model has before its moments, in this order."""

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


class Optimizer(SequenceOp):
    """An operator that updates parameters: what an optimizer model consists of, but for clipping.

    A subclass gives `inputs`, `update`, `reference`, and `check` where not all values of its attributes are legal. In
    the node one more input may follow, a signal not to update, and outputs, what was updated: both are refused.
    """

    inputs: ClassVar[tuple[str, ...]]
    """Which inputs of the optimizer model the node takes: some of OPTIMIZER_INPUTS and of MOMENTS."""

    def __init_subclass__(cls) -> None:
        kept = (PARAMS, *(m.input for m in MOMENTS))
        cls.state_inputs = tuple(k for k, name in enumerate(cls.inputs) if name in kept)
        cls.min_inputs, cls.max_inputs = len(cls.inputs), len(cls.inputs) + 1
        cls.n_outputs = 1 + len(cls.state_inputs)

    def check(self) -> None:
        """Raise unless the kernel computes what the attributes say."""

    def update(self, b: Builder, w: Buf, g: Buf, *moments: Buf) -> None:
        """Emit the kernel that updates `w` by the gradients `g`, and the moments."""
        raise self.unsupported("execution")

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Any) -> None:
        if any(o is not None for o in outs[1:]):
            raise self.unsupported("an optimizer with outputs besides its flag")
        *given, signal = ins
        if signal is not None:
            raise self.unsupported("an update signal")
        self.check()
        sequences = [s for name, s in zip(self.inputs, given, strict=True) if name not in SCALARS]
        for runs in zip(*(s.runs for s in sequences), strict=True):
            self.update(b, *runs)
        b.emit(calls.OptimizerAdvance(state=b.state))


@register
class AdamWOptimizer(Optimizer):
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
    inputs = (*SCALARS, PARAMS, GRADS, "first_order_moments", "second_order_moments")

    alpha: float
    beta: float
    epsilon: float
    weight_decay: float
    correct_bias: int
    adam_mode: int

    def check(self) -> None:
        if self.adam_mode not in (0, 1):
            raise self.error(f"adam_mode is {self.adam_mode}; it must be 0 or 1.")
        if self.adam_mode == 0 and not self.correct_bias:
            raise self.error("adam_mode 0 needs correct_bias 1.")

    def update(self, b: Builder, w: Buf, g: Buf, m: Buf, v: Buf) -> None:
        b.emit(
            calls.Adamw(
                w=w,
                g=g,
                m=m,
                v=v,
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
class SGDOptimizerV2(Optimizer):
    """w -= lr * g over sequences (com.microsoft)."""

    inputs = ("learning_rate", PARAMS, GRADS)

    def update(self, b: Builder, w: Buf, g: Buf) -> None:
        b.emit(calls.Sgd(w=w, g=g, state=b.state, n=w.size))

    def reference(self, lr: Any, w: Any, g: Any) -> Any:
        return w - lr * g

    samples = (Sample([f32([0.1]), PARAMETERS, GRADIENTS]),)
    bad = (Bad([f32([0.1]), PARAMETERS, GRADIENTS, bools([True])], error=UnsupportedError),)


@register
class LionOptimizer(Optimizer):
    """w -= lr * (sign(alpha * m + (1 - alpha) * g) + weight_decay * w), m = beta * m + (1 - beta) * g over sequences.

    Chen et al., Symbolic Discovery of Optimization Algorithms, https://arxiv.org/abs/2302.06675.
    """

    domain = "ai.trainweb"
    attrs = {"alpha": Float(0.9), "beta": Float(0.99), "weight_decay": Float(0.0)}
    inputs = ("learning_rate", PARAMS, GRADS, "first_order_moments")

    alpha: float
    beta: float
    weight_decay: float

    def update(self, b: Builder, w: Buf, g: Buf, m: Buf) -> None:
        b.emit(
            calls.Lion(
                w=w,
                g=g,
                m=m,
                state=b.state,
                n=w.size,
                alpha=self.alpha,
                beta=self.beta,
                weight_decay=self.weight_decay,
            )
        )

    def reference(self, lr: Any, w: Any, g: Any, m: Any) -> tuple[Any, Any]:
        direction = np.sign(self.alpha * m + (1 - self.alpha) * g)
        return w - lr * (direction + self.weight_decay * w), self.beta * m + (1 - self.beta) * g

    samples = (
        Sample([f32([0.1]), PARAMETERS, GRADIENTS, FIRST_MOMENTS]),
        Sample([f32([0.01]), PARAMETERS, GRADIENTS, FIRST_MOMENTS], {"alpha": 0.8, "beta": 0.95, "weight_decay": 0.1}),
    )
    bad = (Bad([f32([0.1]), *[PARAMETERS] * 3, bools([True])], error=UnsupportedError),)


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
