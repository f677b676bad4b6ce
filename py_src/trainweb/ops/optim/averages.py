"""Averages of the parameters over the optimizer's steps, which evaluation and exports can read in their place."""

from __future__ import annotations

from typing import Any

from trainweb.ir.builder import Builder
from trainweb.ir.instructions import Buf, BufSequence, flat_runs
from trainweb.model.graph import TRAINWEB
from trainweb.ops.frame.op import Float
from trainweb.ops.optim.operators import SequenceOp
from trainweb.ops.optim.update import Formula


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
