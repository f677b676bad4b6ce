"""Validation data, evaluated with the eval model: the loss and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from trainweb import messages
from trainweb.data.for_model import ModelInputs
from trainweb.errors import FeedError
from trainweb.fit.steps import Position, located
from trainweb.loss_counts import MeanLoss
from trainweb.metrics import Described, Rows, Totals, Value, make_metric, part_of, request_of
from trainweb.training.step_kind import EVAL, StepKind
from trainweb.training.steps import run_step

if TYPE_CHECKING:
    from trainweb.data.dataset import Batch
    from trainweb.training.core import SessionCore


Function = Callable[[np.ndarray, np.ndarray], float]
"""A metric of one's own: a number of the predictions and targets of all rows."""


class Evaluation:
    """Loss and metrics of the validation data: the first output of the eval model is the loss.

    Metrics are names, settings with "type", or functions by their names; they compare `predictions` with `targets`.
    With `ema` averages replace the parameters.
    """

    def __init__(
        self,
        core: SessionCore,
        metrics: Sequence[str | Mapping[str, Any]],
        predictions: str | None,
        targets: str | None,
        *,
        ema: bool = False,
    ) -> None:
        self.core, self.ema = core, ema
        self.given = [m for m in metrics if not has_functions(m)]
        functions = [item for m in metrics if has_functions(m) for item in m.items()]
        self.functions: dict[str, Function] = dict(functions)
        built_in = [make_metric(m) for m in self.given]
        check_names([m.name for m in built_in] + [name for name, _ in functions])
        numbers = {m.name: m.better for m in built_in if m.better}
        self.better: dict[str, str | None] = {"loss": "min"} | numbers | dict.fromkeys(self.functions)
        outputs = core.outputs["eval"]
        if not outputs:
            raise messages.NO_EVAL_MODEL()
        self.loss = outputs[0]
        self.kind, self.described = EVAL, list[Described]()
        if self.functions:
            built_in.append(Rows())
        if any(m.reads_outputs for m in built_in):
            predictions, targets = core.models.own.pair(predictions, targets)
            self.kind = StepKind("eval", request_of(built_in, predictions, targets))
            self.described = core.models.described(self.kind)
            self.names = predictions, targets
        self.count = core.models.counts["eval"]
        self.inputs = ModelInputs(core.inputs["eval"])
        sums = [name for d in self.described for name in (d.sums, d.faults) if name]
        self.fetches = [self.loss, *filter(None, [self.count.output]), *sums]

    def own_values(self, totals: Totals) -> dict[str, Value]:
        """The values of functions."""
        if not self.functions:
            return {}
        predictions, targets = (
            joined(name, list(parts)) for name, parts in zip(self.names, zip(*totals.rows(), strict=True), strict=True)
        )
        return {name: own_value(name, function, predictions, targets) for name, function in self.functions.items()}


class EvaluationRun:
    """An evaluation of data, batch by batch; errors name the epoch and the source."""

    def __init__(self, evaluation: Evaluation, epoch: int, source: str = "validation data") -> None:
        self._of, self._epoch, self._source, self._step = evaluation, epoch, source, 0
        self._metrics = [make_metric(m) for m in evaluation.given]
        self._totals, self._loss = Totals(evaluation.described), MeanLoss(evaluation.count)

    def add(self, feeds: Batch, rows: Sequence[int]) -> None:
        """Evaluate a batch with the numbers of its rows."""
        of = self._of
        batch = {n: feeds[n] for n in of.inputs.values if n in feeds}
        for given, numbers, times in of.inputs.parts(batch, rows):
            try:
                results = run_step(of.core, of.kind, given, of.fetches, {"ema": of.ema})
                results = part_of(results, of.described, times)
                self._totals.add(results)
                self._check_rows(len(numbers) // times)
            except FeedError as error:
                place = Position(epoch=self._epoch, step=self._step)
                raise located(error, given, numbers, place, self._source) from None
            self._loss.add(float(results[of.loss].reshape(())), len(numbers), results, times)
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
        return {"loss": loss, **totals.values(self._metrics, loss), **self._of.own_values(totals)}


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


def joined(name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of all batches of an output."""
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = ", ".join(str(list(shape)) for shape in sorted({part.shape for part in parts}))
        raise messages.UNLIKE_OUTPUTS(name=name, shapes=shapes)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def metrics_of(given: Any) -> list[str | Mapping[str, Any]]:
    """A list of metrics."""
    if isinstance(given, (str, Mapping)):
        return [given]
    if not isinstance(given, Iterable):
        raise messages.BAD_SETTING(name="metrics", value=given, expected="a list of metrics")
    return list(given)
