"""Validation data, evaluated with the eval model: the loss and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.errors import FeedError
from trainweb.fit.places import located
from trainweb.fit.resume import Position
from trainweb.loss_counts import MeanLoss
from trainweb.metrics import Described, Totals, Value, make_metric, request_of

if TYPE_CHECKING:
    from trainweb.data.dataset import Batch
    from trainweb.training.session import TrainingSession


class Evaluation:
    """Loss and metrics of the validation data.

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
        self.loss = outputs[0]
        self.kind, self.described = "eval", list[Described]()
        if any(m.reads_outputs for m in made):
            models = session.core.models
            predictions = models.predictions() if predictions is None else predictions
            if targets is None:
                targets = self.inputs[-1]
            if predictions is None or predictions not in (*outputs, models.compared()):
                raise messages.NO_PREDICTIONS(names=", ".join(outputs))
            if targets not in self.inputs:
                raise messages.BAD_SETTING(name="targets", value=targets, expected=f"one of {', '.join(self.inputs)}")
            self.kind = f"eval {request_of(made, predictions, targets)}"
            self.described = models.described(self.kind)
        self.count = session.core.models.counts["eval"]
        sums = [name for d in self.described for name in (d.sums, d.faults) if name]
        self.fetches = [self.loss, *filter(None, [self.count.output]), *sums]

    def run(self, batches: Iterator[tuple[Batch, Sequence[int]]], epoch: int) -> Iterator[dict[str, Value] | None]:
        """Evaluate batches with the numbers of their rows; yields None after each, at the end the values."""
        metrics = [make_metric(m) for m in self.given]
        totals, loss = Totals(self.described), MeanLoss(self.count)
        for step, (feeds, rows) in enumerate(batches):
            given = {n: feeds[n] for n in self.inputs if n in feeds}
            try:
                results = self.session._step(self.kind, given, self.fetches, {"ema": self.ema})
                totals.add(results)
            except FeedError as error:
                raise located(error, given, rows, Position(epoch, step), "validation data") from None
            loss.add(float(results[self.loss].reshape(())), len(rows), results)
            yield None
        yield {"loss": loss.value, **totals.values(metrics, loss.value)}


def metrics_of(given: Any) -> list[str | Mapping[str, Any]]:
    """A list of metrics."""
    if isinstance(given, (str, Mapping)):
        return [given]
    if not isinstance(given, Iterable):
        raise messages.BAD_SETTING(name="metrics", value=given, expected="a list of metrics")
    return list(given)
