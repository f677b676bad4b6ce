"""Validation data, evaluated with the eval model: the loss and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.fit.metrics import Metric, Value, make_metric

if TYPE_CHECKING:
    from trainweb.data.dataset import Batch
    from trainweb.training.session import TrainingSession


class Evaluation:
    """What is computed of the validation data.

    Parameters
    ----------
    session
        Its eval model's first output is the loss.
    metrics
        Names, or settings with "type".
    predictions, targets
        The output and the input of the eval model that metrics compare.
    ema
        Whether averages of the parameters stand for them.
    """

    def __init__(
        self,
        session: TrainingSession,
        metrics: Sequence[str | Mapping[str, Any]],
        predictions: str | None,
        targets: str | None,
        *,
        ema: bool = False,
    ) -> None:
        self.session, self.given, self.ema = session, metrics, ema
        made = [make_metric(m) for m in metrics]
        names = [m.name for m in made]
        for name in names:
            if names.count(name) > 1:
                raise messages.METRIC_TWICE(name=name)
        self.better = {"loss": "min"} | {m.name: m.better for m in made if m.better}
        self.inputs, outputs = session.input_names(False), session.output_names(False)
        if not outputs:
            raise messages.NO_EVAL_MODEL()
        self.loss, *others = outputs
        self.predictions: str | None = None
        self.targets: str | None = None
        if any(m.reads_outputs for m in made):
            self.predictions = predictions if predictions is not None else others[0] if len(others) == 1 else None
            self.targets = targets if targets is not None else self.inputs[-1]
            if self.predictions not in outputs:
                raise messages.NO_PREDICTIONS(names=", ".join(outputs))
            if self.targets not in self.inputs:
                raise messages.BAD_SETTING(name="targets", value=targets, expected=f"one of {', '.join(self.inputs)}")

    def run(self, batches: Iterator[tuple[Batch, int]]) -> Iterator[dict[str, Value] | None]:
        """Evaluate batches, which come with their numbers of rows; yields None after each, at the end the values."""
        metrics: list[Metric] = [make_metric(m) for m in self.given]
        total, rows = 0.0, 0
        fetches = [self.loss] + ([self.predictions] if self.predictions else [])
        for feeds, count in batches:
            given = {n: feeds[n] for n in self.inputs if n in feeds}
            results = self.session.eval_step(given, fetches, {"ema": self.ema})
            total += float(results[self.loss].reshape(())) * count
            rows += count
            if self.predictions and self.targets:
                for metric in metrics:
                    if metric.reads_outputs:
                        metric.update(results[self.predictions], feeds[self.targets])
            yield None
        loss = total / rows
        values: dict[str, Value] = {m.name: m.result(loss) for m in metrics}
        yield {"loss": loss, **values}
