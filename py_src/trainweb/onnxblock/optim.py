"""Optimizer models: one operator over sequences of parameters, gradients and moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from trainweb.errors import ModelError
from trainweb.model.graph import Sequence as SequenceValue
from trainweb.model.graph import Value
from trainweb.onnxblock import context
from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.context import add_node, generate_name
from trainweb.onnxblock.training import ForwardBlock
from trainweb.ops import optim as operators

MICROSOFT = "com.microsoft"
T = TypeVar("T", bound="type[Optimizer]")


class ClipGradNorm(Block):
    """Scales the gradients, in place, so that their joint L2 norm is at most `max_norm`."""

    def __init__(self, max_norm: float) -> None:
        self._max_norm = float(max_norm)

    def build(self, gradients: str) -> str:
        """Name of the sequence of clipped gradients."""
        output = generate_name("clip_grad_norm_output")
        add_node("InplaceClipGradNorm", [gradients], [output], domain=MICROSOFT, max_norm=self._max_norm)
        return output


class Optimizer(ForwardBlock):
    """An optimizer model with the inputs that sessions feed. A subclass is one optimizer.

    Its name, its operator with the kernel, its moments and the arguments of `__init__`, with their defaults and what
    they may be, are all there is to know of an optimizer: see `optimizer` below.
    """

    operator: ClassVar[type[operators.Optimizer]]
    moments: ClassVar[tuple[str, ...]]
    """Inputs of the model for moments, in the order of `ops.optim.MOMENTS`: those of the operator."""
    flag: ClassVar[str]
    """Part of the name of the output that says whether the parameters were updated."""

    def __init_subclass__(cls) -> None:
        cls.moments = cls.__dict__.get("moments") or tuple(
            m.input for m in operators.MOMENTS if m.input in cls.operator.inputs
        )
        cls.flag = cls.__dict__.get("flag") or f"{cls.__name__.lower()}.updated_flag"

    def __init__(self, clip_grad: Block | None = None, **attributes: float) -> None:
        super().__init__()
        self._clip_grad, self._attributes = clip_grad, attributes

    def build(self, parameters: Any = None, frozen: Any = None) -> str:
        """Name of the flag the model returns; called with (trainable, frozen), a pair or two."""
        accessor = context.current()
        accessor.add_input(Value("learning_rate", "float32", (1,)))
        accessor.add_input(Value("step", "int64", (1,)))
        for name in (operators.PARAMS, operators.GRADS, *self.moments):
            accessor.add_input(SequenceValue(name, "float32"))
        gradients = operators.GRADS if self._clip_grad is None else self._clip_grad(operators.GRADS)
        inputs = [gradients if name == operators.GRADS else name for name in self.operator.inputs]
        flag = self.add_update(inputs)
        accessor.graph.value_info[flag] = Value(flag, "bool", (1,))
        return flag

    def add_update(self, inputs: Sequence[str]) -> str:
        """Add the operator alone; `inputs` are in the place of those that it has in an optimizer model."""
        output, operator = generate_name(self.flag), self.operator
        add_node(operator.op_type(), list(inputs), [output], domain=operator.domain, **self._attributes)
        return output


OPTIMIZERS: dict[str, type[Optimizer]] = {}
"""Those that `OptimType`, the command line, pages and the documentation know, by name."""


def optimizer(cls: T) -> T:
    """Class decorator that makes an optimizer known by its name."""
    OPTIMIZERS[cls.__name__] = cls
    return cls


def _decay(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ModelError(f"{name} is {value!r}; a decay must be at least 0 and less than 1.")
    return float(value)


def _not_negative(name: str, value: float) -> float:
    if not value >= 0:
        raise ModelError(f"{name} is {value!r}; it must not be negative.")
    return float(value)


@optimizer
class AdamW(Optimizer):
    """AdamW as ONNX Runtime builds it.

    Parameters
    ----------
    bias_correction : bool
        Whether the moments are corrected for starting from zero.
    betas : pair of float
        Decay of the first and the second moment, each in [0, 1).
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        Decoupled from the gradient.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    adam_mode : {1, 0}
        1 is the form of Hugging Face's transformers, which ONNX Runtime builds; 0 that of
        torch.optim.AdamW, which puts eps after the bias correction and decays before the update.
    """

    operator = operators.AdamWOptimizer

    def __init__(
        self,
        bias_correction: bool = True,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: Block | None = None,
        *,
        adam_mode: int = 1,
    ) -> None:
        super().__init__(
            clip_grad,
            adam_mode=int(adam_mode),
            alpha=_decay("betas[0]", betas[0]),
            beta=_decay("betas[1]", betas[1]),
            correct_bias=int(bias_correction),
            epsilon=_not_negative("eps", eps),
            weight_decay=_not_negative("weight_decay", weight_decay),
        )


@optimizer
class SGD(Optimizer):
    """w -= learning_rate * gradient.

    Parameters
    ----------
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """

    operator = operators.SGDOptimizerV2
    moments = ("first_order_moments",)  # which ONNX Runtime's model has, too, though nothing reads them
    flag = "update_completed"

    def __init__(self, clip_grad: Block | None = None) -> None:
        super().__init__(clip_grad)


@optimizer
class Lion(Optimizer):
    """Lion: the sign of an interpolated gradient, https://arxiv.org/abs/2302.06675. ONNX Runtime does not have it.

    Its learning rate should be 3 to 10 times smaller than AdamW's, its weight decay as many times larger.

    Parameters
    ----------
    betas : pair of float
        Share of the moment in the direction of the update, and decay of the moment, each in [0, 1).
    weight_decay : float
        Decoupled from the gradient.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """

    operator = operators.LionOptimizer

    def __init__(
        self, betas: Sequence[float] = (0.9, 0.99), weight_decay: float = 0.0, clip_grad: Block | None = None
    ) -> None:
        super().__init__(
            clip_grad,
            alpha=_decay("betas[0]", betas[0]),
            beta=_decay("betas[1]", betas[1]),
            weight_decay=_not_negative("weight_decay", weight_decay),
        )


class _Update(Block):
    """The operator of an optimizer on its own, for models that are put together by hand."""

    def __init__(self, model: Optimizer) -> None:
        self._model = model


class AdamWOptimizer(_Update):
    """The AdamW node; takes the names of its inputs. Arguments: see `AdamW`."""

    def __init__(
        self,
        bias_correction: bool = True,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam_mode: int = 1,
    ) -> None:
        super().__init__(AdamW(bias_correction, betas, eps, weight_decay, adam_mode=adam_mode))

    def build(
        self, learning_rate: str, step: str, params: str, gradients: str, first_moments: str, second_moments: str
    ) -> str:
        """Name of the flag that says whether the parameters were updated."""
        return self._model.add_update([learning_rate, step, params, gradients, first_moments, second_moments])


class SGDOptimizer(_Update):
    """The SGD node; takes the names of its inputs."""

    def __init__(self) -> None:
        super().__init__(SGD())

    def build(self, learning_rate: str, params: str, gradients: str) -> str:
        """Name of the flag that says whether the parameters were updated."""
        return self._model.add_update([learning_rate, params, gradients])
