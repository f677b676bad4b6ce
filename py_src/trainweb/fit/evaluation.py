"""Validation data, evaluated with the eval model: the loss and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from trainweb import messages
from trainweb.data.for_model import ModelInputs
from trainweb.data.table import Unit, in_units
from trainweb.errors import FeedError, NumericsError
from trainweb.fit.steps import Position, located, said_of_gap
from trainweb.loss_counts import MeanLoss
from trainweb.metrics import Asked, Described, OutputMetric, Rows, Totals, Value, part_of, request_of
from trainweb.training.step_kind import EVAL, StepKind
from trainweb.training.steps import run_step

if TYPE_CHECKING:
    from trainweb.data.rows import Batch
    from trainweb.training.core import SessionCore


Function = Callable[[np.ndarray, np.ndarray], float]
"""A metric of one's own: a number of the predictions and targets of all rows."""


class Evaluation:
    """Loss and metrics of the validation data: the first output of the eval model is the loss.

    Metrics are names, settings with "type", or functions by their names; they compare `predictions` with `targets`,
    or an output with its labels. The terms of the loss are among them. With `ema` averages replace the parameters.
    Errors are in `units` of the inputs that have some.
    """

    def __init__(
        self,
        core: SessionCore,
        metrics: Sequence[OutputMetric],
        predictions: str | None,
        targets: str | None,
        units: Mapping[str, Unit],
        *,
        ema: bool = False,
    ) -> None:
        self.core, self.units, self.ema = core, units, ema
        functions = [item for _, m in metrics if has_functions(m) for item in m.items()]
        self.functions: dict[str, Function] = dict(functions)
        outputs = core.outputs["eval"]
        if not outputs:
            raise messages.NO_EVAL_MODEL()
        self.loss = outputs[0]
        self.names = "", ""
        """Predictions and targets of the functions."""
        built_in = [metric for metric in metrics if not has_functions(metric[1])]
        asked = core.models.own.asked(built_in, predictions, targets)
        self.asked = [one.of(units[one.targets][0].tolist()) if one.targets in units else one for one in asked]
        check_names([one.key for one in self.asked] + [name for name, _ in functions])
        numbers = {one.key: one.metric.better for one in self.asked if one.metric.better}
        self.better: dict[str, str | None] = {"loss": "min"} | numbers | dict.fromkeys(self.functions)
        if self.functions:
            if any(output is not None for output, metric in metrics if has_functions(metric)):
                raise messages.FUNCTION_OF_OUTPUT()
            self.names = core.models.own.pair(predictions, targets)
            if not {"", self.names[1]}.isdisjoint(core.models.own.weighed):
                raise messages.UNWEIGHTED_METRIC(name=", ".join(self.functions))
        collected = [Asked(Rows.name, Rows(), *self.names)] if self.functions else []
        request = request_of([*self.asked, *collected])
        self.kind = StepKind("eval", request) if request else EVAL
        self.described: list[Described] = core.models.described(self.kind)
        self.count = core.models.counts["eval"]
        self.inputs = ModelInputs(core.inputs["eval"], notices=core.notices)
        sums = [name for d in self.described for name in (d.sums, d.faults) if name]
        self.fetches = [self.loss, *filter(None, [self.count.output]), *sums]

    def own_values(self, totals: Totals) -> dict[str, Value]:
        """The values of functions."""
        if not self.functions:
            return {}
        unit = self.units.get(self.names[1])
        predictions, targets = (
            in_units(name, joined(name, list(parts)), unit)
            for name, parts in zip(self.names, zip(*totals.rows(), strict=True), strict=True)
        )
        return {name: own_value(name, function, predictions, targets) for name, function in self.functions.items()}


class EvaluationRun:
    """An evaluation of data, batch by batch; errors name the epoch and the source."""

    def __init__(self, evaluation: Evaluation, epoch: int, source: str = "validation data") -> None:
        self._of, self._epoch, self._source, self._step = evaluation, epoch, source, 0
        self._totals, self._loss = Totals(evaluation.described), MeanLoss(evaluation.count)
        self._gap: Exception | None = None

    def add(self, feeds: Batch, rows: Sequence[int]) -> None:
        """Evaluate a batch with the numbers of its rows."""
        of = self._of
        batch = {n: feeds[n] for n in of.inputs.values if n in feeds}
        for feeds, numbers, times in of.inputs.parts(batch, rows):
            try:
                results = run_step(of.core, of.kind, feeds, of.fetches, {"ema": of.ema})
                results = part_of(results, of.described, times)
                self._totals.add(results)
                self._check_rows(len(numbers) // times)
            except (FeedError, NumericsError) as error:
                place = Position(epoch=self._epoch, step=self._step)
                raise located(error, feeds, numbers, place, self._source) from None
            loss = float(results[of.loss].reshape(()))
            if not math.isfinite(loss) and self._gap is None:
                self._gap = said_of_gap(f"The loss is {loss}.", feeds, numbers, self._source)
                of.inputs.warn(self._gap)
            self._loss.add(loss, len(numbers), results, times)
        self._step += 1

    def _check_rows(self, rows: int) -> None:
        """Raise if what is collected for functions cannot be joined by rows."""
        if self._of.functions and self._step:
            for name, output in zip(self._of.names, self._totals.rows()[-1], strict=True):
                if output.shape[:1] != (rows,):
                    raise messages.NO_ROWS_IN_OUTPUT(name=name, shape=list(output.shape), rows=rows)

    def values(self) -> dict[str, Value]:
        """The loss and the metrics of all batches."""
        loss, totals = self._loss.value, self._totals
        values = totals.values(self._of.asked, loss)
        for one in self._of.asked:
            if values[one.key] != values[one.key]:
                self._of.inputs.warn(messages.NAN_METRIC(name=one.key, source=self._source))
        return {**values, **self._of.own_values(totals)}


def has_functions(metric: Any) -> TypeGuard[Mapping[str, Function]]:
    """Return True for a mapping of names to functions."""
    return isinstance(metric, Mapping) and bool(metric) and all(map(callable, metric.values()))


def check_names(names: Sequence[str]) -> None:
    """Raise ModelError for a metric that is given twice, or has the name of the loss."""
    for name in names:
        if names.count(name) > 1:
            raise messages.METRIC_TWICE(name=name)
        if name == "loss" or not isinstance(name, str):
            raise messages.BAD_SETTING(name="the name of a metric", value=name, expected="a text other than 'loss'")


def own_value(name: str, function: Function, predictions: np.ndarray, targets: np.ndarray) -> float:
    """The value of a metric that is a function. Raise TrainwebError if it fails, or returns no number."""
    try:
        value: Any = function(predictions, targets)
    except Exception as error:
        raise messages.METRIC_FAILED(name=name, error=f"{type(error).__name__}: {error}") from error
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise messages.METRIC_VALUE(name=name, found=f"a value of type {type(value).__name__}")
    if math.isnan(value):
        raise messages.METRIC_VALUE(name=name, found="NaN")
    return float(value)


def joined(name: str, parts: Sequence[np.ndarray], *, pads: bool = False) -> np.ndarray:
    """The rows of all batches of an output; if it `pads`, with zeros behind those of shorter buckets."""
    if pads and len({part.ndim for part in parts}) == 1:
        most = np.max([part.shape[1:] for part in parts], axis=0)
        parts = [
            np.pad(part, [(0, 0), *((0, n - size) for n, size in zip(most, part.shape[1:], strict=True))])
            for part in parts
        ]
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = ", ".join(str(list(shape)) for shape in sorted({part.shape for part in parts}))
        raise messages.UNLIKE_OUTPUTS(name=name, shapes=shapes)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
