"""Optimizers over sequences of parameters, as optimizer models contain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import TYPE_CHECKING, Any, ClassVar

from trainweb.errors import UnsupportedError
from trainweb.ir import calls
from trainweb.ir.dims import equal_shapes
from trainweb.ir.instructions import Buf, BufSequence, flat_runs
from trainweb.ir.layout import (
    MOMENTUM0,
    MOMENTUM1,
    STATE,
    STATE_LEARNING_RATE,
    STATE_WORDS,
)
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS, Graph, Node, Value
from trainweb.model.graph import Sequence as SequenceValue
from trainweb.ops.lazy_numpy import np
from trainweb.ops.literals import bools, f32, i64
from trainweb.ops.op import Bad, Float, Int, Ints, Op, Sample, Str, register

if TYPE_CHECKING:
    from trainweb.ir.builder import Builder


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
        Where sessions keep it, behind those before it.
    """

    input: str
    saved: str
    segment: int


MOMENTS = (
    Moment("first_order_moments", "momentum0", MOMENTUM0),
    Moment("second_order_moments", "momentum1", MOMENTUM1),
    Moment("third_order_moments", "momentum2", MOMENTUM1),
    Moment("fourth_order_moments", "momentum3", MOMENTUM1),
)
"""An optimizer that keeps n of them keeps the first n. ONNX Runtime knows two; all others lie behind the second."""

TRAINWEB = "ai.trainweb"

SCALARS = ("learning_rate", "step")
PARAMS, GRADS = "params", "gradients"
OPTIMIZER_INPUTS = (*SCALARS, PARAMS, GRADS)
"""Inputs that every optimizer model has before its moments, in this order."""

PARAMETERS = f32([1.0, -0.5, 3.0, 0.0, -2.0, 0.25, 1e-3])
GRADIENTS = f32([0.5, -2.0, 0.0, 0.125, 1.5, -1e-3, -0.75])
FIRST_MOMENTS = f32([-0.25, 0.5, 0.01, -1.0, 0.0, 0.75, 0.3])
SECOND_MOMENTS = f32([0.04, 2.25, 0.0, 1e-4, 0.5, 1.0, 0.09])
THIRD_MOMENTS = f32([0.1, -0.5, 0.0, 0.005, 0.2, -0.9, 0.25])
UPDATES = f32([0.02, 1.0, 0.0, 2e-4, 0.3, 0.1, 0.05])
"""What samples start from, other than at the first step."""


class SequenceOp(Op):
    """An operator on sequences of tensors, which lie in flat runs; it updates them in place.

    In samples each sequence is one tensor. `reference` gives what `state_inputs` are afterwards, in their order.
    """

    domain = MS

    def infer(self, *inputs: TensorType | None) -> TensorType:
        return TensorType("bool", (1,))


class Optimizer(SequenceOp):
    """An operator that updates parameters: what an optimizer model consists of, but for clipping and groups.

    A subclass gives `inputs`, `update`, `reference`, and `check` where not all values of its attributes are legal. In
    the node one more input may follow, a signal not to update, and outputs, what was updated: both are refused.
    """

    inputs: ClassVar[tuple[str, ...]]
    """Which inputs of the optimizer model the node takes: some of OPTIMIZER_INPUTS and of MOMENTS."""
    optional_moments: ClassVar[int] = 0
    """How many of the last inputs a node may leave out; `moments` says how many it must have."""
    per_parameter: ClassVar[bool] = False
    """Whether the update of an element depends on the whole parameter, so that parameters are updated one by one."""

    def __init_subclass__(cls) -> None:
        kept = (PARAMS, *(m.input for m in MOMENTS))
        cls.state_inputs = tuple(k for k, name in enumerate(cls.inputs) if name in kept)
        cls.min_inputs, cls.max_inputs = len(cls.inputs) - cls.optional_moments, len(cls.inputs) + 1
        cls.n_outputs = 1 + len(cls.state_inputs)

    @classmethod
    def most_moments(cls) -> int:
        """How many moments it keeps of each parameter at most."""
        return sum(m.input in cls.inputs for m in MOMENTS)

    @property
    def moments(self) -> int:
        """How many moments it keeps of each parameter, as its attributes are."""
        return self.most_moments()

    @classmethod
    def moment_shape(cls, moment: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a parameter's moment, counted from 0; that of the parameter unless `per_parameter`."""
        return shape

    def check(self) -> None:
        """Raise unless the kernel computes what the attributes say."""

    kernel: ClassVar[Any]
    """The call that `update` emits, of the operands w, g, moments and state, of `n`, and of the attributes."""

    def update(self, b: Builder, state: Buf, w: Buf, g: Buf, *moments: Buf) -> None:
        """Emit the kernel that updates `w` by the gradients `g`, and the moments; `state` is the session's."""
        operands = dict(zip(self.kernel.OPERANDS[2:], moments, strict=False))
        settings = {name: getattr(self, name) for name in self.attrs}
        b.emit(self.kernel(w=w, g=g, **operands, state=state, n=w.size, **settings))

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Any) -> None:
        if any(o is not None for o in outs[1:]):
            raise self.unsupported("an optimizer with outputs besides its flag")
        *given, signal = ins
        if signal is not None:
            raise self.unsupported("an update signal")
        self.check()
        named = list(zip(self.inputs, given, strict=True))
        sequences = [s for name, s in named if name not in SCALARS and s is not None]
        if len(sequences) != 2 + self.moments:
            raise self.error(f"{len(sequences) - 2} moments are given; with these attributes there are {self.moments}.")
        state = _state_of(b, given[self.inputs.index("learning_rate")])
        for run in zip(*(s.items for s in sequences), strict=True) if self.per_parameter else flat_runs(*sequences):
            if run[0].size:
                self.update(b, state, *run)
        b.takes_step = True


def _state_of(b: Builder, rate: Buf) -> Buf:
    """The session's state; with another learning rate where `rate` is not the session's own."""
    if (rate.storage.segment, rate.storage.offset) == (STATE, 4 * STATE_LEARNING_RATE):
        return b.state
    changed = b.temp("int32", (STATE_WORDS,))
    b.emit(calls.StateWithRate(state=b.state, rate=rate, changed=changed))
    return changed


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
    kernel = calls.Adamw

    alpha: float
    beta: float
    epsilon: float
    weight_decay: float
    correct_bias: int
    adam_mode: int

    def check(self) -> None:
        self._check_mode()
        if self.adam_mode == 0 and not self.correct_bias:
            raise self.error("adam_mode 0 needs correct_bias 1.")

    def _check_mode(self) -> None:
        if self.adam_mode not in (0, 1):
            raise self.error(f"adam_mode is {self.adam_mode}; it must be 0 or 1.")

    def reference(self, lr: Any, step: Any, w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
        """(w, m, v) after step number `step` (1 at the first)."""
        b1, b2 = self.alpha, self.beta
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        if self.adam_mode == 0:
            w = w * (1 - lr * self.weight_decay)
            first, second = (1 - b1**step, 1 - b2**step) if self.correct_bias else (1, 1)
            w = w - lr / first * m / (np.sqrt(v) / np.sqrt(second) + self.epsilon)
        else:
            rate = lr * np.sqrt(1 - b2**step) / (1 - b1**step) if self.correct_bias else lr
            w = w - rate * m / (np.sqrt(v) + self.epsilon)
            w = w - lr * self.weight_decay * w
        return w, m, v

    samples: ClassVar[Sequence[Sample]] = (
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
    bad: ClassVar[Sequence[Bad]] = (
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"adam_mode": 2}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"adam_mode": 0, "correct_bias": 0}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),
    )


@register
class OlderAdamOptimizer(AdamWOptimizer):
    """AdamW over sequences that need not correct its moments with adam_mode 0 either.

    So are both modes of weight decay of AdamOptimizer (com.microsoft), of ONNX Runtime's older interface.
    """

    domain = TRAINWEB

    def check(self) -> None:
        self._check_mode()

    samples = (
        *AdamWOptimizer.samples,
        Sample(
            [f32([0.1]), i64([3]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS],
            {"adam_mode": 0, "correct_bias": 0, "weight_decay": 0.3},
        ),
    )
    bad = (Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"adam_mode": 2}),)


@register
class SGDOptimizerV2(Optimizer):
    """w -= lr * g over sequences (com.microsoft)."""

    inputs = ("learning_rate", PARAMS, GRADS)
    kernel = calls.Sgd

    def reference(self, lr: Any, w: Any, g: Any) -> Any:
        return w - lr * g

    samples = (Sample([f32([0.1]), PARAMETERS, GRADIENTS]),)
    bad = (Bad([f32([0.1]), PARAMETERS, GRADIENTS, bools([True])], error=UnsupportedError),)


@register
class LionOptimizer(Optimizer):
    """w -= lr * (sign(alpha * m + (1 - alpha) * g) + weight_decay * w), m = beta * m + (1 - beta) * g over sequences.

    Chen et al., Symbolic Discovery of Optimization Algorithms, https://arxiv.org/abs/2302.06675.
    """

    domain = TRAINWEB
    attrs = {"alpha": Float(0.9), "beta": Float(0.99), "weight_decay": Float(0.0)}
    inputs = ("learning_rate", PARAMS, GRADS, "first_order_moments")
    kernel = calls.Lion

    alpha: float
    beta: float
    weight_decay: float

    def reference(self, lr: Any, w: Any, g: Any, m: Any) -> tuple[Any, Any]:
        direction = np.sign(self.alpha * m + (1 - self.alpha) * g)
        return w - lr * (direction + self.weight_decay * w), self.beta * m + (1 - self.beta) * g

    samples = (
        Sample([f32([0.1]), PARAMETERS, GRADIENTS, FIRST_MOMENTS]),
        Sample([f32([0.01]), PARAMETERS, GRADIENTS, FIRST_MOMENTS], {"alpha": 0.8, "beta": 0.95, "weight_decay": 0.1}),
    )
    bad = (Bad([f32([0.1]), *[PARAMETERS] * 3, bools([True])], error=UnsupportedError),)


@register
class AdamOptimizer(Optimizer):
    """Adam over sequences, as torch.optim.Adam: weight_decay * w is added to the gradient (L2 regularisation).

    Kingma & Ba, Adam: A Method for Stochastic Optimization, https://arxiv.org/abs/1412.6980.
    """

    domain = TRAINWEB
    attrs = {"alpha": Float(0.9), "beta": Float(0.999), "epsilon": Float(1e-8), "weight_decay": Float(0.0)}
    inputs = (*SCALARS, PARAMS, GRADS, "first_order_moments", "second_order_moments")
    kernel = calls.Adam

    alpha: float
    beta: float
    epsilon: float
    weight_decay: float

    def reference(self, lr: Any, step: Any, w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
        g = g + self.weight_decay * w
        m, v = self.alpha * m + (1 - self.alpha) * g, self.beta * v + (1 - self.beta) * g * g
        unbiased = np.sqrt(v / (1 - self.beta**step))
        return w - lr * m / (1 - self.alpha**step) / (unbiased + self.epsilon), m, v

    samples = (
        Sample([f32([0.1]), i64([1]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS]),
        Sample(
            [f32([0.01]), i64([7]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS],
            {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-3, "weight_decay": 0.2},
        ),
    )
    bad = (Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),)


@register
class MomentumOptimizer(Optimizer):
    """m = momentum * m + (1 - dampening) * g, w -= lr * m over sequences; with nesterov w -= lr * (g + momentum * m).

    As torch.optim.SGD: weight_decay * w is added to the gradient, and the first step takes m = g. See Sutskever et al.,
    On the importance of initialization and momentum in deep learning, https://proceedings.mlr.press/v28/sutskever13.html.
    """

    domain = TRAINWEB
    attrs = {"momentum": Float(0.9), "dampening": Float(0.0), "weight_decay": Float(0.0), "nesterov": Int(0)}
    inputs = (*SCALARS, PARAMS, GRADS, "first_order_moments")
    kernel = calls.Momentum

    momentum: float
    dampening: float
    weight_decay: float
    nesterov: int

    def check(self) -> None:
        if self.nesterov not in (0, 1):
            raise self.error(f"nesterov is {self.nesterov}; it must be 0 or 1.")

    def reference(self, lr: Any, step: Any, w: Any, g: Any, m: Any) -> tuple[Any, Any]:
        g = g + self.weight_decay * w
        m = self.momentum * m + (1 - self.dampening) * g if step > 1 else g
        return w - lr * (g + self.momentum * m if self.nesterov else m), m

    samples = (
        Sample([f32([0.1]), i64([1]), PARAMETERS, GRADIENTS, FIRST_MOMENTS], {"dampening": 0.5}),
        Sample(
            [f32([0.01]), i64([7]), PARAMETERS, GRADIENTS, FIRST_MOMENTS],
            {"momentum": 0.8, "dampening": 0.25, "weight_decay": 0.1},
        ),
        Sample([f32([0.01]), i64([7]), PARAMETERS, GRADIENTS, FIRST_MOMENTS], {"nesterov": 1}),
    )
    bad = (
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 3], {"nesterov": 2}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 3, bools([True])], error=UnsupportedError),
    )


@register
class RMSPropOptimizer(Optimizer):
    """w -= lr * g / (sqrt(s) + epsilon), s = alpha * s + (1 - alpha) * g * g over sequences, as torch.optim.RMSprop.

    Where `momentum` is not 0, it keeps a velocity as the next moment; where `centered` is 1, the mean of the gradients
    as the last, whose square is taken from s. weight_decay * w is added to the gradient.
    Graves, Generating Sequences With Recurrent Neural Networks, https://arxiv.org/abs/1308.0850.
    """

    domain = TRAINWEB
    attrs = {
        "alpha": Float(0.99),
        "epsilon": Float(1e-8),
        "momentum": Float(0.0),
        "weight_decay": Float(0.0),
        "centered": Int(0),
    }
    inputs = ("learning_rate", PARAMS, GRADS, *(m.input for m in MOMENTS[:3]))
    optional_moments = 2

    alpha: float
    epsilon: float
    momentum: float
    weight_decay: float
    centered: int

    @property
    def moments(self) -> int:
        return 1 + bool(self.momentum) + self.centered

    def check(self) -> None:
        if self.centered not in (0, 1):
            raise self.error(f"centered is {self.centered}; it must be 0 or 1.")

    def update(self, b: Builder, state: Buf, w: Buf, g: Buf, s: Buf, *others: Buf) -> None:
        b.emit(
            calls.Rmsprop(
                w=w,
                g=g,
                s=s,
                velocity=others[0] if self.momentum else None,
                mean=others[-1] if self.centered else None,
                state=state,
                n=w.size,
                alpha=self.alpha,
                epsilon=self.epsilon,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
            )
        )

    def reference(self, lr: Any, w: Any, g: Any, s: Any, *others: Any) -> tuple[Any, ...]:
        g, kept = g + self.weight_decay * w, list(others)
        s = self.alpha * s + (1 - self.alpha) * g * g
        variance = s
        if self.centered:
            kept[-1] = self.alpha * kept[-1] + (1 - self.alpha) * g
            variance = s - kept[-1] ** 2
        direction = g / (np.sqrt(variance) + self.epsilon)
        if self.momentum:
            direction = kept[0] = self.momentum * kept[0] + direction
        return w - lr * direction, s, *kept

    samples = (
        Sample([f32([0.1]), PARAMETERS, GRADIENTS, SECOND_MOMENTS]),
        Sample([f32([0.01]), PARAMETERS, GRADIENTS, SECOND_MOMENTS, FIRST_MOMENTS], {"momentum": 0.8, "alpha": 0.9}),
        Sample(
            [f32([0.01]), PARAMETERS, GRADIENTS, SECOND_MOMENTS, THIRD_MOMENTS],
            {"centered": 1, "weight_decay": 0.1, "epsilon": 1e-2},
        ),
        Sample(
            [f32([0.01]), PARAMETERS, GRADIENTS, SECOND_MOMENTS, FIRST_MOMENTS, THIRD_MOMENTS],
            {"momentum": 0.9, "centered": 1, "epsilon": 1e-2},
        ),
    )
    bad = (
        Bad([f32([0.1]), *[PARAMETERS] * 3], {"centered": 2}),
        Bad([f32([0.1]), *[PARAMETERS] * 3], {"momentum": 0.9}),
        Bad([f32([0.1]), *[PARAMETERS] * 5, bools([True])], {"momentum": 0.9, "centered": 1}, error=UnsupportedError),
    )


@register
class AdagradOptimizer(Optimizer):
    """s += g * g, w -= lr / (1 + (step - 1) * rate_decay) * g / (sqrt(s) + epsilon), as torch.optim.Adagrad.

    `initial` is s before the first step; weight_decay * w is added to the gradient. Duchi et al., Adaptive Subgradient
    Methods for Online Learning and Stochastic Optimization, https://jmlr.org/papers/v12/duchi11a.html.
    """

    domain = TRAINWEB
    attrs = {"rate_decay": Float(0.0), "initial": Float(0.0), "epsilon": Float(1e-10), "weight_decay": Float(0.0)}
    inputs = (*SCALARS, PARAMS, GRADS, "first_order_moments")
    kernel = calls.Adagrad

    rate_decay: float
    initial: float
    epsilon: float
    weight_decay: float

    def reference(self, lr: Any, step: Any, w: Any, g: Any, s: Any) -> tuple[Any, Any]:
        g = g + self.weight_decay * w
        s = s + g * g + (self.initial if step == 1 else 0)
        return w - lr / (1 + (step - 1) * self.rate_decay) * g / (np.sqrt(s) + self.epsilon), s

    samples = (
        Sample([f32([0.1]), i64([1]), PARAMETERS, GRADIENTS, SECOND_MOMENTS], {"initial": 0.5, "weight_decay": 0.1}),
        Sample(
            [f32([0.1]), i64([7]), PARAMETERS, GRADIENTS, SECOND_MOMENTS],
            {"initial": 0.5, "rate_decay": 0.1, "epsilon": 0.01},
        ),
    )
    bad = (Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 3, bools([True])], error=UnsupportedError),)


@register
class AdadeltaOptimizer(Optimizer):
    """w -= lr * u, u = sqrt(d + epsilon) / sqrt(s + epsilon) * g over sequences, as torch.optim.Adadelta.

    s and d are averages of g * g and u * u, by rho; weight_decay * w is added to the gradient.
    Zeiler, ADADELTA: An Adaptive Learning Rate Method, https://arxiv.org/abs/1212.5701.
    """

    domain = TRAINWEB
    attrs = {"rho": Float(0.9), "epsilon": Float(1e-6), "weight_decay": Float(0.0)}
    inputs = ("learning_rate", PARAMS, GRADS, "first_order_moments", "second_order_moments")
    kernel = calls.Adadelta

    rho: float
    epsilon: float
    weight_decay: float

    def reference(self, lr: Any, w: Any, g: Any, s: Any, d: Any) -> tuple[Any, Any, Any]:
        g = g + self.weight_decay * w
        s = self.rho * s + (1 - self.rho) * g * g
        u = np.sqrt(d + self.epsilon) / np.sqrt(s + self.epsilon) * g
        return w - lr * u, s, self.rho * d + (1 - self.rho) * u * u

    samples = (
        Sample([f32([1.0]), PARAMETERS, GRADIENTS, SECOND_MOMENTS, UPDATES]),
        Sample(
            [f32([0.1]), PARAMETERS, GRADIENTS, SECOND_MOMENTS, UPDATES],
            {"rho": 0.7, "epsilon": 1e-3, "weight_decay": 0.1},
        ),
    )
    bad = (Bad([f32([0.1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),)


@register
class LambOptimizer(Optimizer):
    """LAMB over sequences: Adam's step plus weight_decay * w, made as long as the parameter is, for each by itself.

    w -= lr * min(max(|w| / |r|, ratio_min), ratio_max) * r, or lr * r where |w| or |r| is 0. You et al., Large Batch
    Optimization for Deep Learning, https://arxiv.org/abs/1904.00962.
    """

    domain = TRAINWEB
    attrs = {
        "alpha": Float(0.9),
        "beta": Float(0.999),
        "epsilon": Float(1e-6),
        "weight_decay": Float(0.0),
        "ratio_min": Float(-inf),
        "ratio_max": Float(inf),
        "correct_bias": Int(1),
    }
    inputs = (*SCALARS, PARAMS, GRADS, "first_order_moments", "second_order_moments")
    kernel = calls.Lamb
    per_parameter = True

    alpha: float
    beta: float
    epsilon: float
    weight_decay: float
    ratio_min: float
    ratio_max: float
    correct_bias: int

    def check(self) -> None:
        if not self.ratio_min <= self.ratio_max:
            raise self.error(f"ratio_min is {self.ratio_min:g}, which is more than ratio_max, {self.ratio_max:g}.")

    def reference(self, lr: Any, step: Any, w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
        m, v = self.alpha * m + (1 - self.alpha) * g, self.beta * v + (1 - self.beta) * g * g
        first, second = (1 - self.alpha**step, 1 - self.beta**step) if self.correct_bias else (1, 1)
        r = m / first / (np.sqrt(v / second) + self.epsilon) + self.weight_decay * w
        norms = np.linalg.norm(w), np.linalg.norm(r)
        ratio = min(max(norms[0] / norms[1], self.ratio_min), self.ratio_max) if min(norms) > 0 else 1
        return w - lr * ratio * r, m, v

    samples = (
        Sample([f32([0.1]), i64([1]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS]),
        Sample(
            [f32([0.01]), i64([7]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS],
            {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-3, "weight_decay": 0.2},
        ),
        Sample([f32([0.1]), i64([1]), *[f32([0.0, 0.0]), f32([0.5, -1.0])], *[f32([0.0, 0.0])] * 2]),
        *(
            Sample([f32([0.1]), i64([7]), PARAMETERS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS], attrs)
            for attrs in (
                {"ratio_max": 0.125, "correct_bias": 0},
                {"ratio_min": 8.0},
                {"ratio_min": 0.25, "ratio_max": 0.25, "weight_decay": 0.1},
            )
        ),
    )
    bad = (
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"ratio_min": 2.0, "ratio_max": 1.0}),
    )


@register
class Subsequence(SequenceOp):
    """The items of a sequence at these places: a group of parameters, their gradients or moments, for an optimizer."""

    domain = TRAINWEB
    attrs = {"indices": Ints(required=True)}

    indices: tuple[int, ...]

    def derive_sequence(self, given: BufSequence) -> BufSequence:
        """The items themselves, not copies."""
        for k in self.indices:
            if not 0 <= k < len(given.items):
                raise self.error(f"indices has {k}; the sequence has {len(given.items)} items.")
        return BufSequence([given.items[k] for k in self.indices], given.dtype)

    def lower(self, b: Builder, outs: list[Buf | None], given: BufSequence) -> None:
        """Nothing is computed."""

    def reference(self, given: Any) -> tuple[Any, ...]:
        return ()

    samples = (Sample([(37,)], {"indices": [1]}),)
    bad = (Bad([(37,)]),)


def _one_run(op: Op, sequence: BufSequence) -> Buf | None:
    """All of a sequence that lies one after the other; None where it has no elements."""
    runs = flat_runs(sequence)
    if len(runs) > 1:
        raise op.unsupported("a sequence with gaps")
    return runs[0][0] if runs else None


@register
class InplaceClipGradValue(SequenceOp):
    """g = min(max(g, -max_value), max_value) over a sequence, in place."""

    domain = TRAINWEB
    attrs = {"max_value": Float(1.0)}
    state_inputs = (0,)

    max_value: float

    def derive_sequence(self, grads: BufSequence) -> BufSequence:
        """The same, in place."""
        return grads

    def lower(self, b: Builder, outs: list[Buf | None], grads: BufSequence) -> None:
        if whole := _one_run(self, grads):
            low, high = -self.max_value, self.max_value
            b.elementwise([whole], [whole], lambda e, g: e.min(e.max(g, e.const(low, g.dtype)), e.const(high, g.dtype)))

    def reference(self, g: Any) -> Any:
        return np.clip(g, -self.max_value, self.max_value)

    samples = (Sample([(37,)], {"max_value": 0.5}), Sample([f32([0.0, inf, -inf, nan])]))
    bad = ()


@register
class InplaceClipGradNorm(SequenceOp):
    """g *= min(1, max_norm / (norm of all gradients + 1e-6)) over a sequence, in place (com.microsoft)."""

    attrs = {"max_norm": Float(1.0), "norm_type": Str("fro")}
    state_inputs = (0,)

    max_norm: float
    norm_type: str

    def lower(self, b: Builder, outs: list[Buf | None], grads: BufSequence) -> None:
        if self.norm_type != "fro":
            raise self.unsupported(f"norm_type {self.norm_type!r}")
        if whole := _one_run(self, grads):
            b.emit(calls.ClipGradNorm(g=whole, n=whole.size, max_norm=self.max_norm))

    def derive_sequence(self, grads: BufSequence) -> BufSequence:
        """The same, in place."""
        return grads

    def reference(self, g: Any) -> Any:
        return g * min(1.0, self.max_norm / (np.sqrt((g * g).sum()) + 1e-6))

    samples = (Sample([(37,)]), Sample([(37,)], {"max_norm": 100.0}), Sample([f32([0.0, 0.0])]))
    bad = (Bad([(37,)], {"norm_type": "inf"}, error=UnsupportedError),)


@register
class ClipGradients(SequenceOp):
    """Clip a sequence in place by value, then by norm, to limits that are fed: [value, norm]; infinity is none.

    As InplaceClipGradValue and InplaceClipGradNorm, to the last bit. The plan of a fit's own limits is made of it.
    """

    domain = TRAINWEB
    min_inputs = max_inputs = 2
    state_inputs = (1,)

    def lower(self, b: Builder, outs: list[Buf | None], limits: Buf, grads: BufSequence) -> None:
        if whole := _one_run(self, grads):
            b.emit(calls.ClipGrads(g=whole, limits=limits, n=whole.size))

    def reference(self, limits: Any, g: Any) -> Any:
        clipped = np.clip(g, -limits[0], limits[0])
        return clipped * min(1.0, limits[1] / (np.sqrt((clipped * clipped).sum()) + 1e-6))

    tested_through = "InplaceClipGradNorm"


LIMITS = "limits"
"""The feed of `clip_graph`."""


def clip_graph() -> Graph:
    """The graph of a step that clips the gradients."""
    node = Node("ClipGradients", [LIMITS, GRADS], ["clipped"], domain=TRAINWEB, name="clip")
    inputs: list[Value | SequenceValue] = [Value(LIMITS, "float32", (2,)), SequenceValue(GRADS, "float32")]
    return Graph("clip", [node], inputs, opsets={"": 17, TRAINWEB: 1})


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
class Assign(Op):
    """buffer = value, when all that reads the buffer has done so (ai.trainweb). The output is the value."""

    domain = TRAINWEB
    min_inputs = max_inputs = 2
    state_inputs = (0,)

    def infer(self, buffer: TensorType, value: TensorType) -> TensorType:
        self.need_float32(buffer, value)
        if not equal_shapes(buffer.shape, value.shape):
            raise self.error(f"the buffer has shape {list(buffer.shape)} and the value {list(value.shape)}.")
        return buffer

    def lower(self, b: Builder, outs: list[Buf | None], buffer: Buf, value: Buf) -> None:
        b.copy(buffer, value)
        if outs[0] is not None:
            b.copy(outs[0], value)

    def reference(self, buffer: Any, value: Any) -> Any:
        return value

    samples = (Sample([(3, 4), (3, 4)]), Sample([(5,), (5,)]))
    bad = (Bad([(3, 4), (4, 3)]), Bad([(3,), i64([1, 2, 3])], error=UnsupportedError))


@register
class LinearLearningRate(Op):
    """Set the learning rate of the registered linear schedule (ai.trainweb); the scheduler step is a plan of it."""

    domain = TRAINWEB
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
