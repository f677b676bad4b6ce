"""Optimizers over sequences of parameters, as optimizer models contain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.instructions import Buf, BufSequence, flat_runs
from trainweb.ir.layout import MOMENTUM0, MOMENTUM1
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS, TRAINWEB, Graph, Node, Value
from trainweb.model.graph import Sequence as SequenceValue
from trainweb.ops.frame.op import Float, Int, Ints, Op, Str
from trainweb.ops.optim.update import Formula, Moments


@dataclass(frozen=True, slots=True)
class Moment:
    """A tensor that an optimizer keeps of each trainable parameter, beside its value."""

    input: str
    """Name of the input of optimizer models."""
    saved: str
    """Name in checkpoints."""
    segment: int
    """Its segment in sessions, behind the tensors before it."""


MOMENTS = (
    Moment("first_order_moments", "momentum0", MOMENTUM0),
    Moment("second_order_moments", "momentum1", MOMENTUM1),
    Moment("third_order_moments", "momentum2", MOMENTUM1),
    Moment("fourth_order_moments", "momentum3", MOMENTUM1),
)
"""An optimizer that keeps n of them keeps the first n. ONNX Runtime knows two; all others lie behind the second."""

AVERAGES = Moment("averaged_params", "ema", MOMENTUM1)
"""The last input of an optimizer model that keeps averages, behind all moments at the end of their segment."""

SCALARS = ("learning_rate", "step")
PARAMS, GRADS = "params", "gradients"
OPTIMIZER_INPUTS = (*SCALARS, PARAMS, GRADS)
"""Inputs that every optimizer model has before its moments, in this order."""


class SequenceOp(Op, abstract=True):
    """An operator on sequences of tensors, which lie in flat runs; it updates them in place."""

    domain = MS

    def infer(self, *inputs: TensorType | None) -> TensorType:
        return TensorType("bool", (1,))


class Optimizer(SequenceOp, abstract=True):
    """An operator that updates parameters. Optimizer models consist of such operators, of clipping and of groups.

    A subclass declares `inputs`, `update`, and `check` where some values of its attributes are illegal. A node may have
    one more input, a signal not to update, and more outputs, the updated tensors: both are refused.
    """

    inputs: ClassVar[tuple[str, ...]] = OPTIMIZER_INPUTS
    """The inputs of the optimizer model that the node takes, some of OPTIMIZER_INPUTS and of MOMENTS."""
    optional_moments: ClassVar[int] = 0
    """Number of the last inputs that a node may leave out; `moments` says how many it must have."""
    per_parameter: ClassVar[bool] = False
    """True if the update of an element depends on the whole parameter, so that parameters are updated one by one."""

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        states = (PARAMS, *(m.input for m in (*MOMENTS, AVERAGES)))
        cls.state_inputs = tuple(k for k, name in enumerate(cls.inputs) if name in states)
        cls.min_inputs, cls.max_inputs = len(cls.inputs) - cls.optional_moments, len(cls.inputs) + 1
        cls.n_outputs = 1 + len(cls.state_inputs)
        super().__init_subclass__(abstract=abstract)

    @classmethod
    def most_moments(cls) -> int:
        """Return the largest number of moments that it keeps of each parameter."""
        return sum(m.input in cls.inputs for m in (*MOMENTS, AVERAGES))

    @property
    def moments(self) -> int:
        """Return the number of moments that it keeps of each parameter with its attributes."""
        return self.most_moments()

    @classmethod
    def moment_shape(cls, moment: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a parameter's moment, counted from 0; it is the parameter's shape unless `per_parameter`."""
        return shape

    def check(self) -> None:
        """Raise unless the kernel supports the attributes."""

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        """The new `w` of an element by its gradient `g`; assign to `s` to change moments. See `ops/optim/update.py`.

        `lr` and `step`, 1 at the first, are the same for all elements.
        """
        raise NotImplementedError

    names: ClassVar[tuple[str, ...]] = ("m", "v")
    """Names of the moments in `update`."""

    def kept(self) -> tuple[str, ...]:
        """Names of the moments that it keeps with its attributes."""
        return self.names[: self.moments]

    def emit(self, b: Builder, inputs: Mapping[str, Any], runs: Sequence[tuple[Buf, ...]]) -> None:
        """Emit the update of runs, each of which is w, g and moments; `inputs` are the other inputs by name."""
        formula = Formula(b, inputs.get("learning_rate"), inputs.get("step"))
        for alike in [[run] for run in runs] if self.per_parameter else [runs] if runs else []:
            w, g, *before = formula.elements(alike[0])
            s = Moments(dict(zip(self.kept(), before, strict=True)), formula.assign if self.per_parameter else None)
            results = {0: self.update(w, g, s, formula.learning_rate, formula.step)}
            after = enumerate(zip(before, vars(s).values(), strict=True), 2)
            changed = {k: new for k, (old, new) in after if new is not old}
            formula.emit(results if self.per_parameter else results | changed, alike)
            for run in alike:
                self.flush(b, [run[k] for k in changed])

    def flush(self, b: Builder, moments: Sequence[Buf]) -> None:
        """Set tiny moments to 0, unless epsilon is 0: then a second moment of 0 would divide by 0."""
        if getattr(self, "epsilon", getattr(self, "eps", 1)) > 0:
            for x in moments:
                b.emit(calls.FlushMoments(x=x, state=b.state, n=x.size))

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Any) -> None:
        if any(o is not None for o in outs[1:]):
            raise self.unsupported("an optimizer with outputs besides its flag")
        *inputs, signal = ins
        if signal is not None:
            raise self.unsupported("an update signal")
        self.check()
        named = list(zip(self.inputs, inputs, strict=True))
        sequences = [s for name, s in named if name not in SCALARS and s is not None]
        if len(sequences) != 2 + self.moments:
            raise self.error(f"{len(sequences) - 2} moments are given; with these attributes there are {self.moments}.")
        # Scalars of a formula have one axis, and elements no fewer.
        parameters = zip(*([b.view(b.shape or (1,)) for b in s.items] for s in sequences), strict=True)
        runs = parameters if self.per_parameter else flat_runs(*sequences)
        self.emit(b, dict(named), [run for run in runs if run[0].size])
        b.takes_step = True


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
        "adam_mode": Int(0, among=(0, 1)),
    }
    inputs = (*SCALARS, PARAMS, GRADS, "first_order_moments", "second_order_moments")

    def check(self) -> None:
        if self.adam_mode == 0 and not self.correct_bias:
            raise self.error("adam_mode 0 needs correct_bias 1.")

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        s.m = self.alpha * s.m + (1 - self.alpha) * g
        s.v = self.beta * s.v + (1 - self.beta) * g * g
        first = 1 - self.alpha**step if self.correct_bias else 1
        second = (1 - self.beta**step).sqrt() if self.correct_bias else 1
        if self.adam_mode == 0:
            return w * (1 - lr * self.weight_decay) - lr / first * s.m / (s.v.sqrt() * (1 / second) + self.epsilon)
        return (w - lr * second / first * s.m / (s.v.sqrt() + self.epsilon)) * (1 - lr * self.weight_decay)


class OlderAdamOptimizer(AdamWOptimizer):
    """AdamW over sequences, where bias correction is optional with adam_mode 0, too.

    So are both modes of weight decay of AdamOptimizer (com.microsoft), of ONNX Runtime's older interface.
    """

    domain = TRAINWEB

    def check(self) -> None:
        """Each mode goes with either choice."""


class SGDOptimizerV2(Optimizer):
    """w -= lr * g over sequences (com.microsoft)."""

    inputs = ("learning_rate", PARAMS, GRADS)

    names = ()

    def update(self, w: Any, g: Any, s: Moments, lr: Any, step: Any) -> Any:
        return w - lr * g


class ExponentialMovingAverage(SequenceOp):
    """average += (1 - d) * (params - average) over sequences, after the optimizer's update; at the first step params.

    d is `decay`. With a `warmup_power` it is the lesser of `decay` and 1 - (1 + t / warmup_gamma) ** -warmup_power,
    where t counts the steps before. See timm's ModelEmaV3 and, without warm-up, torch.optim.swa_utils.AveragedModel.
    """

    domain = TRAINWEB
    attrs = {"decay": Float(0.999), "warmup_power": Float(0.0), "warmup_gamma": Float(1.0)}
    state_inputs = (2,)

    def lower(self, b: Builder, outs: list[Buf | None], step: Buf, params: BufSequence, averages: BufSequence) -> None:
        if not 0 <= self.decay < 1 or self.warmup_power < 0 or not self.warmup_gamma > 0:
            raise self.error("decay must be in [0, 1), warmup_power at least 0 and warmup_gamma greater than 0.")
        formula = Formula(b, None, step)
        if runs := [run for run in flat_runs(params, averages) if run[0].size]:
            w, average = formula.elements(runs[0])
            formula.emit({1: self._average(w, average, formula.step)}, runs)

    def _average(self, w: Any, average: Any, step: Any) -> Any:
        decay: Any = self.decay
        if self.warmup_power:
            grown = 1 - ((1 + (step - 1) / self.warmup_gamma).log() * -self.warmup_power).exp()
            decay = grown.smaller(self.decay)
        return step.is_more(1).where(average + (1 - decay) * (w - average), w)


class Subsequence(SequenceOp):
    """The items of a sequence at `indices`: parameters of a group, their gradients or their moments."""

    domain = TRAINWEB
    attrs = {"indices": Ints(required=True)}

    def derive_sequence(self, sequence: BufSequence) -> BufSequence:
        """The items themselves, not copies."""
        for k in self.indices:
            if not 0 <= k < len(sequence.items):
                raise self.error(f"indices has {k}; the sequence has {len(sequence.items)} items.")
        return BufSequence([sequence.items[k] for k in self.indices], sequence.dtype)

    def lower(self, b: Builder, outs: list[Buf], sequence: BufSequence) -> None:
        """Nothing is computed."""


def _one_run(op: Op, sequence: BufSequence) -> Buf | None:
    """The elements of a sequence without gaps as one buffer; None where there are none."""
    runs = flat_runs(sequence)
    if len(runs) > 1:
        raise op.unsupported("a sequence with gaps")
    return runs[0][0] if runs else None


class InplaceClipGradValue(SequenceOp):
    """g = min(max(g, -max_value), max_value) over a sequence, in place."""

    domain = TRAINWEB
    attrs = {"max_value": Float(1.0)}
    state_inputs = (0,)

    def derive_sequence(self, grads: BufSequence) -> BufSequence:
        """The same, in place."""
        return grads

    def lower(self, b: Builder, outs: list[Buf | None], grads: BufSequence) -> None:
        if run := _one_run(self, grads):
            low, high = -self.max_value, self.max_value
            b.elementwise([run], [run], lambda e, g: e.min(e.max(g, e.const(low, g.dtype)), e.const(high, g.dtype)))


class InplaceClipGradNorm(SequenceOp):
    """g *= min(1, max_norm / (norm of all gradients + 1e-6)) over a sequence, in place (com.microsoft)."""

    attrs = {"max_norm": Float(1.0), "norm_type": Str("fro")}
    state_inputs = (0,)

    def lower(self, b: Builder, outs: list[Buf | None], grads: BufSequence) -> None:
        if self.norm_type != "fro":
            raise self.unsupported(f"norm_type {self.norm_type!r}")
        if run := _one_run(self, grads):
            b.emit(calls.ClipGradNorm(g=run, n=run.size, max_norm=self.max_norm))

    def derive_sequence(self, grads: BufSequence) -> BufSequence:
        """The same, in place."""
        return grads


class ClipGradients(SequenceOp):
    """Clip a sequence in place by value, then by norm, to limits that are fed: [value, norm]; infinity means no limit.

    As InplaceClipGradValue and InplaceClipGradNorm, to the last bit. The plan of a fit's own limits is made of it.
    """

    domain = TRAINWEB
    state_inputs = (1,)

    def lower(self, b: Builder, outs: list[Buf | None], limits: Buf, grads: BufSequence) -> None:
        if run := _one_run(self, grads):
            b.emit(calls.ClipGrads(g=run, limits=limits, n=run.size))


LIMITS = "limits"
"""The feed of `clip_graph`."""


def clip_graph() -> Graph:
    """The graph of a step that clips the gradients."""
    node = Node("ClipGradients", [LIMITS, GRADS], ["clipped"], domain=TRAINWEB, name="clip")
    inputs: list[Value | SequenceValue] = [Value(LIMITS, "float32", (2,)), SequenceValue(GRADS, "float32")]
    return Graph("clip", [node], inputs, opsets={"": 17, TRAINWEB: 1})


class InPlaceAccumulatorV2(Op):
    """buffer = value where the flag is set, else buffer += value (com.microsoft). The output says it was updated."""

    domain = MS
    n_outputs = 2
    state_inputs = (0,)
    accumulates = True

    def infer(
        self, buffer: TensorType, value: TensorType, flag: TensorType | None = None
    ) -> tuple[TensorType, TensorType]:
        self.need_float32(buffer, value)
        self.need_shape("the value", value, buffer.shape)
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


class Assign(Op):
    """buffer = value, after all reads of the buffer (ai.trainweb). The output is the value."""

    domain = TRAINWEB
    state_inputs = (0,)

    def infer(self, buffer: TensorType, value: TensorType) -> TensorType:
        self.need_float32(buffer, value)
        self.need_shape("the value", value, buffer.shape)
        return buffer

    def lower(self, b: Builder, outs: list[Buf | None], buffer: Buf, value: Buf) -> None:
        b.copy(buffer, value)
        if outs[0] is not None:
            b.copy(outs[0], value)


class LinearLearningRate(Op):
    """Set the learning rate of the registered linear schedule (ai.trainweb); the scheduler step is a plan of it."""

    domain = TRAINWEB
    state_inputs = (0,)

    def infer(self, lr: TensorType) -> TensorType:
        return TensorType("bool", (1,))

    def lower(self, b: Builder, outs: list[Buf | None], lr: Buf) -> None:
        b.emit(calls.LinearLr(state=b.state))


def scheduler_graph() -> Graph:
    """The graph of a scheduler step."""
    node = Node("LinearLearningRate", ["learning_rate"], ["done"], domain=TRAINWEB, name="scheduler")
    return Graph("scheduler", [node], [Value("learning_rate", "float32", (1,))], opsets={"": 17, TRAINWEB: 1})
