"""Optimizer models: one operator over sequences of parameters, gradients and moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainweb.model.graph import Sequence as SequenceValue
from trainweb.model.graph import Value
from trainweb.onnxblock import context
from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.context import add_node, generate_name
from trainweb.onnxblock.training import ForwardBlock

MICROSOFT = "com.microsoft"


class ClipGradNorm(Block):
    """Scales the gradients, in place, so that their joint L2 norm is at most `max_norm`."""

    def __init__(self, max_norm: float) -> None:
        self._max_norm = float(max_norm)

    def build(self, gradients: str) -> str:
        """Name of the sequence of clipped gradients."""
        output = generate_name("clip_grad_norm_output")
        add_node("InplaceClipGradNorm", [gradients], [output], domain=MICROSOFT, max_norm=self._max_norm)
        return output


class AdamWOptimizer(Block):
    """The AdamW node; takes the names of its inputs.

    Parameters
    ----------
    bias_correction : bool
        Whether the moments are corrected for starting from zero.
    betas : pair of float
        Decay of the first and the second moment.
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        Decoupled from the gradient.
    adam_mode : {1, 0}
        1 is the form of Hugging Face's transformers, which ONNX Runtime builds; 0 that of
        torch.optim.AdamW, which puts eps after the bias correction and decays before the update.
    """

    def __init__(
        self,
        bias_correction: bool = True,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam_mode: int = 1,
    ) -> None:
        self._attrs: dict[str, Any] = {
            "adam_mode": int(adam_mode),
            "alpha": float(betas[0]),
            "beta": float(betas[1]),
            "correct_bias": int(bias_correction),
            "epsilon": float(eps),
            "weight_decay": float(weight_decay),
        }

    def build(
        self,
        learning_rate: str,
        step: str,
        params: str,
        gradients: str,
        first_moments: str,
        second_moments: str,
    ) -> str:
        """Name of the flag that says whether the parameters were updated."""
        output = generate_name("adamw.updated_flag")
        inputs = [learning_rate, step, params, gradients, first_moments, second_moments]
        add_node("AdamWOptimizer", inputs, [output], domain=MICROSOFT, **self._attrs)
        return output


class SGDOptimizer(Block):
    """The SGD node; takes the names of its inputs."""

    def build(self, learning_rate: str, params: str, gradients: str) -> str:
        """Name of the flag that says whether the parameters were updated."""
        output = generate_name("update_completed")
        add_node("SGDOptimizerV2", [learning_rate, params, gradients], [output], domain=MICROSOFT)
        return output


class _Optimizer(ForwardBlock):
    """An optimizer model with the inputs that sessions feed."""

    moments: tuple[str, ...] = ()

    def __init__(self, clip_grad: Block | None = None) -> None:
        super().__init__()
        self._clip_grad = clip_grad

    def build(self, parameters: Any = None, frozen: Any = None) -> str:
        """Name of the flag the model returns; called with (trainable, frozen), a pair or two."""
        accessor = context.current()
        accessor.add_input(Value("learning_rate", "float32", (1,)))
        accessor.add_input(Value("step", "int64", (1,)))
        for name in ("params", "gradients", *self.moments):
            accessor.add_input(SequenceValue(name, "float32"))
        gradients = "gradients" if self._clip_grad is None else self._clip_grad("gradients")
        flag = self._update(gradients)
        accessor.graph.value_info[flag] = Value(flag, "bool", (1,))
        return flag

    def _update(self, gradients: str) -> str:
        raise NotImplementedError


class AdamW(_Optimizer):
    """AdamW as ONNX Runtime builds it.

    Parameters
    ----------
    bias_correction, betas, eps, weight_decay, adam_mode
        See `AdamWOptimizer`.
    clip_grad : Block, optional
        For example `ClipGradNorm(1.0)`.
    """

    moments = ("first_order_moments", "second_order_moments")

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
        super().__init__(clip_grad)
        self._adamw = AdamWOptimizer(bias_correction, betas, eps, weight_decay, adam_mode)

    def _update(self, gradients: str) -> str:
        flag: str = self._adamw("learning_rate", "step", "params", gradients, *self.moments)
        return flag


class SGD(_Optimizer):
    """w -= learning_rate * gradient."""

    moments = ("first_order_moments",)

    def __init__(self, clip_grad: Block | None = None) -> None:
        super().__init__(clip_grad)
        self._sgd = SGDOptimizer()

    def _update(self, gradients: str) -> str:
        flag: str = self._sgd("learning_rate", "params", gradients)
        return flag
