"""Averages of the parameters, which optimizer models keep beside the moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainweb import messages
from trainweb._names import public_names
from trainweb.arguments import check_settings
from trainweb.model.graph import Sequence, Value
from trainweb.onnxblock import context
from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.context import add_node, generate_name
from trainweb.ops.optim import averages
from trainweb.ops.optim.operators import AVERAGES
from trainweb.settings import Fraction, Positive, YesNo, checked, fields_of


class ExponentialMovingAverage(Block):
    """Exponential moving average of the trainable parameters, after each optimizer step; it begins as they are then.

    Evaluation and exports read it on request. As timm's ModelEmaV3 and torch.optim.swa_utils.AveragedModel. ONNX
    Runtime lacks it.

    Parameters
    ----------
    decay : float
        Share of the average that is kept from step to step, in [0, 1).
    warmup : bool
        True if the decay grows: after t steps it is at most 1 - (1 + t / warmup_gamma) ** -warmup_power.
    warmup_power : float
        Exponent of the warm-up. timm suggests 2/3 for 1e6 steps and more, 3/4 for fewer.
    warmup_gamma : float
        Divisor of the steps: larger values slow the warm-up.
    """

    @checked
    def __init__(
        self,
        decay: Fraction = 0.999,
        warmup: YesNo = False,
        warmup_power: Positive = 2 / 3,
        warmup_gamma: Positive = 1.0,
    ) -> None:
        self._attributes = {"decay": float(decay)}
        if warmup:
            self._attributes |= {"warmup_power": float(warmup_power), "warmup_gamma": float(warmup_gamma)}

    def build(self, parameters: str) -> str:
        """Name of the flag that says whether the averages were updated.

        Parameters
        ----------
        parameters : str
            Name of the sequence of the parameters.
        """
        accessor, operator = context.current(), averages.ExponentialMovingAverage
        name = accessor.add_input(Sequence(AVERAGES.input, "float32"))
        output = generate_name("ema_updated_flag")
        add_node(operator.op_type(), ["step", parameters, name], [output], domain=operator.domain, **self._attributes)
        accessor.graph.value_info[output] = Value(output, "bool", (1,))
        return output


EMA = fields_of(ExponentialMovingAverage)
"""The settings, by name."""


def make_average(settings: Any) -> ExponentialMovingAverage:
    """The block of its settings.

    Parameters
    ----------
    settings : dict
        The arguments of `ExponentialMovingAverage`.

    Raises
    ------
    ModelError
        It has no such setting, or not with such a value.
    """
    if not isinstance(settings, Mapping):
        raise messages.BAD_SETTING(name="ema", value=settings, expected="a mapping of its settings, such as 'decay'")
    check_settings("ema", settings, EMA)
    for name, value in settings.items():
        EMA[name].check(f"ema.{name}", value)
    return ExponentialMovingAverage(**settings)


def __dir__() -> list[str]:
    return public_names(globals())
