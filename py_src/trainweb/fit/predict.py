"""Predictions and values of a session on data; in a page `web/src/page/predict.ts` and `web/src/worker/predict.ts`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb import messages
from trainweb.arguments import texts
from trainweb.data.for_model import ModelInputs
from trainweb.data.rows import Bucketed
from trainweb.data.table import in_units
from trainweb.errors import FeedError, NumericsError
from trainweb.fit.evaluation import Evaluation, EvaluationRun, joined
from trainweb.fit.options import FIT
from trainweb.fit.plan import Batches, warn_of_steps
from trainweb.fit.steps import Position, located, said_of_gap
from trainweb.metrics import metrics_of
from trainweb.training.step_kind import PREDICT, StepKind
from trainweb.training.steps import run_step

if TYPE_CHECKING:
    from trainweb.data.dataset import Dataset
    from trainweb.data.waiting import NumberedBatch
    from trainweb.metrics import Value
    from trainweb.training.core import SessionCore


def predict(
    core: SessionCore,
    data: Any,
    outputs: Sequence[str] | str | None,
    options: Mapping[str, Any],
    *,
    ema: bool,
) -> dict[str, np.ndarray]:
    """See `TrainingSession.predict`; `options` are "batch_size" and "batched"."""
    core.check_step("eval")
    models = core.models
    names = models.own_outputs() if outputs is None else [outputs] if isinstance(outputs, str) else outputs
    if not names:
        raise messages.BAD_SETTING(name="outputs", value=names, expected="a list of tensors of the eval model")
    kind = StepKind(PREDICT, texts("outputs", names))
    unread = models.inputs["eval"].keys() - models.inputs_of(kind).keys()
    inputs, dataset = _checked(core, data, options, unread, ema=ema)
    parts: list[dict[str, np.ndarray]] = []
    numbers: list[int] = []
    size = 0
    gap = None
    for number, (batch, rows) in enumerate(_batches(inputs, dataset, options)):
        count = len(rows)
        size = size or inputs.rows or count
        pads = isinstance(batch, Bucketed)
        numbers += rows
        try:
            # The last rows go with the plan of the others.
            results = run_step(core, kind, _filled(batch, count, size), None, {"ema": ema})
        except (FeedError, NumericsError) as error:
            raise located(error, batch, rows, Position(epoch=-1, step=number)) from None
        parts.append({name: array[:count] if count < size else array for name, array in results.items()})
        lost = next((n for n, a in parts[-1].items() if a.dtype.kind == "f" and np.isnan(a).any()), None)
        if lost is not None and gap is None:
            gap = said_of_gap(f"Output {lost!r} has NaN.", batch, rows, "given rows")
            inputs.warn(gap)
        for name, array in parts[-1].items():
            if number and array.shape[:1] != (count,):
                raise messages.NO_ROWS_IN_OUTPUT(name=name, shape=list(array.shape), rows=count)
    units = inputs.units(dataset)
    pairs = models.own.pairs or [(models.own.compared or "", name) for name in models.own.inputs[-1:]]
    of_outputs = {output: units[targets] for output, targets in reversed(pairs) if targets in units}
    found = {name: joined(name, [part[name] for part in parts], pads=pads) for name in names}
    if numbers != sorted(numbers):
        found = {name: array[np.argsort(numbers)] for name, array in found.items()}
    return {name: in_units(name, array, of_outputs.get(name)) for name, array in found.items()}


def evaluate(
    core: SessionCore,
    data: Any,
    metrics: Any,
    options: Mapping[str, Any],
    names: tuple[str | None, str | None],
    *,
    ema: bool,
) -> dict[str, Value]:
    """See `TrainingSession.evaluate`; `names` are the names of predictions and targets."""
    inputs, dataset = _checked(core, data, options, ema=ema)
    evaluation = Evaluation(core, metrics_of(metrics), *names, inputs.units(dataset), ema=ema)
    run = EvaluationRun(evaluation, -1, "data")
    for batch in _batches(inputs, dataset, options):
        run.add(*batch)
    return run.values()


def _checked(
    core: SessionCore, data: Any, options: Mapping[str, Any], unread: Container[str] = (), *, ema: bool
) -> tuple[ModelInputs, Dataset]:
    FIT["ema"].check("ema", ema)
    for name, value in options.items():
        FIT[name].check(name, value)
    core.check_step("eval")
    if ema and not core.layout.has_averages:
        raise messages.NO_AVERAGES()
    inputs = ModelInputs(core.inputs["eval"], unread, core.notices, core.models.own.weights)
    dataset = inputs.dataset(data)
    inputs.require(dataset, "data")
    warn_of_steps(inputs, core.preprocessing, dataset, "given rows")
    if dataset.is_batched and options["batch_size"] is not None:
        raise messages.BATCH_OF_BATCHES(name="batch_size")
    if dataset.is_padded:
        raise messages.PADDED_VALIDATION()
    return inputs, dataset


def _batches(inputs: ModelInputs, dataset: Dataset, options: Mapping[str, Any]) -> Iterator[NumberedBatch]:
    return Batches(inputs, dataset, {"remainder": "keep", **options}, shuffle=False).epoch(0)


def _filled(feeds: Mapping[str, Any], count: int, rows: int) -> Mapping[str, Any]:
    """A batch of `count` rows with as many as the first has: its own come again."""
    if count >= rows:
        return feeds
    order = np.arange(rows) % count
    return {name: np.asarray(value)[order] for name, value in feeds.items()}
