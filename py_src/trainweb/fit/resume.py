"""Checkpoints of a fit: how far it is, beside what its session is made of, so that it goes on where it was ended."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb import messages
from trainweb.arguments import check_settings
from trainweb.checkpoint import fields
from trainweb.fit.options import CHECKPOINT
from trainweb.fit.steps import Position
from trainweb.model.graph import Tensor
from trainweb.model.safetensors import TensorFile
from trainweb.spelling import camel_case
from trainweb.training.contents import go_on
from trainweb.training.history import Epoch
from trainweb.training.store import LONGEST_NAME, CheckpointStore, open_snapshot, read_snapshot, take_snapshot

if TYPE_CHECKING:
    from trainweb.metrics import Value
    from trainweb.training.core import SessionCore
    from trainweb.training.history import History

POSITION = ("epoch", "step", "loss_sum", "rows", "optimizer_steps", "terms")
"""Fields of a position that a checkpoint stores."""
NAMES = {math.inf: "inf", -math.inf: "-inf"}
"""JSON has no such numbers."""


class FitCheckpoint:
    """The checkpoint of a fit: `given` has "store" (a CheckpointStore, or its folder), "name", and "every".

    A fit goes on only with the same `options`, which determine batches and their order.
    """

    def __init__(self, core: SessionCore, checkpoint: Any, options: Mapping[str, Any]) -> None:
        expected = "a mapping with 'store' and 'name'"
        if not isinstance(checkpoint, Mapping):
            raise messages.BAD_SETTING(name="checkpoint", value=checkpoint, expected=expected)
        settings = dict(checkpoint)
        for name in ("store", "name"):
            if settings.get(name) is None:
                raise messages.MISSING_SETTING(what="checkpoint", name=name, expected=expected)
        store, self.name = settings.pop("store"), settings.pop("name")
        self.store = store if isinstance(store, CheckpointStore) else CheckpointStore(store)
        check_settings("checkpoint", settings, ["store", "name", *CHECKPOINT])
        for name, value in settings.items():
            CHECKPOINT[name].check(f"checkpoint.{name}", value)
        self.every: int | None = settings.get("every")
        self.core, self.options = core, dict(options)

    def locked(self) -> AbstractContextManager[None]:
        """Keep others from it."""
        return self.store._locked(self.name)

    def save(self, position: Position, history: History, best: np.ndarray | None) -> None:
        """Write it. The next train step must be one that overwrites the gradients."""
        snapshot = take_snapshot(self.core)
        record = {"options": self.options, "epochs": [epoch_to_json(e) for e in history.epochs]}
        snapshot.metadata["history"] = json.dumps(record, allow_nan=False)
        snapshot.metadata["position"] = json.dumps({camel_case(name): getattr(position, name) for name in POSITION})
        arrays = {"losses": np.array(history.losses, "<f4")} | ({} if best is None else {"best": best})
        for name, array in arrays.items():
            snapshot.tensors[name] = Tensor(name, "float32", array.shape, array.tobytes())
        self.store._write(self.name, snapshot.to_bytes())

    def resume(self, history: History, watched: str) -> tuple[Position, np.ndarray | None] | None:
        """Bring session and history to the state of the checkpoint, if there is one.

        Return how far the fit is, and the parameters of the best epoch by the metric `watched`. Raise CheckpointError
        for a checkpoint that is damaged, changed or of another session, and ModelError for other options or metrics.
        After an error nothing has changed.
        """
        contents = self.store._find(self.name)
        if contents is None:
            return None
        snapshot, core = open_snapshot(contents), self.core
        self._check_options(snapshot)
        session = read_snapshot(core, snapshot)
        by_rows = core.models.counts["train"].output is None
        record = read_fit(snapshot, self.options, core.get_parameters_size(False), by_rows=by_rows)
        for epoch in record.epochs:
            self._check_watched(epoch, watched)
        go_on(core.parameters, session)
        history.epochs[:] = record.epochs
        history.losses[:] = record.losses.astype(float).tolist()
        history.optimizer_steps = record.position.optimizer_steps
        return record.position, record.best

    def _check_options(self, snapshot: TensorFile) -> None:
        """Raise unless a fit with the same options wrote the checkpoint."""
        if not {"history", "position"} <= snapshot.metadata.keys() or "losses" not in snapshot.tensors:
            raise messages.NO_FIT(name=self.name)
        record = fields.mapping(fields.parse(snapshot.metadata, "history"), "history")
        options = fields.mapping(record.get("options", fields.MISSING), "history.options")
        for option, value in self.options.items():
            stored = options.get(option)
            if isinstance(stored, (dict, list)) or len(str(stored)) > LONGEST_NAME:
                fields.refuse(stored, f"history.options.{option}", "an option of fit")
            if stored != value or isinstance(stored, bool) != isinstance(value, bool):
                spelt = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", option)
                raise messages.OTHER_FIT(name=self.name, option=spelt, stored=stored, actual=value)

    def _check_watched(self, epoch: Epoch, watched: str) -> None:
        """Raise for an epoch that says nothing to early stopping or the schedule, which look at each again."""
        values = {"loss": epoch.loss} if epoch.validation is None else epoch.validation
        for metric in ("loss", watched):
            if not isinstance(values.get(metric), float):
                raise messages.UNWATCHED_EPOCH(name=self.name, metric=metric, epoch=epoch.epoch)


@dataclass(frozen=True, slots=True)
class FitRecord:
    """The position and results of a fit from a checkpoint, after all checks, with the losses of all batches."""

    position: Position
    epochs: list[Epoch]
    losses: np.ndarray
    best: np.ndarray | None


def read_fit(snapshot: TensorFile, options: Mapping[str, Any], size: int, *, by_rows: bool) -> FitRecord:
    """Check everything that a fit takes of a snapshot which a fit with these options wrote.

    `size` is the number of elements of the parameters; `by_rows`: losses were divided by the number of rows. Raises
    CheckpointError for values that no fit leaves.
    """
    record = fields.parse(snapshot.metadata, "history")
    epochs = fields.array(record.get("epochs", fields.MISSING), "history.epochs")
    done = [read_epoch(epoch, k) for k, epoch in enumerate(epochs)]
    losses = read_floats(snapshot, "losses", None)
    position = read_position(snapshot, options, len(done), len(losses), by_rows=by_rows)
    before = losses[: len(losses) - position.step]
    # Batches that on_nan undid have NaN as loss, and are no steps.
    steps = sum(epoch.steps for epoch in done)
    fields.count(int(np.count_nonzero(~np.isnan(before))), "number of losses of epochs that are done", steps, steps)
    best = read_floats(snapshot, "best", size) if "best" in snapshot.tensors else None
    return FitRecord(position, done, losses, best)


def read_position(
    snapshot: TensorFile, options: Mapping[str, Any], epochs: int, losses: int, *, by_rows: bool
) -> Position:
    """Return the position of the fit, which has this many epochs and losses."""
    record = fields.mapping(fields.parse(snapshot.metadata, "position"), "position")
    rows, size = options["rows"], options["batchSize"]
    batches = losses
    if rows is not None:
        batches = min(batches, rows // size if options["remainder"] == "drop" else -(-rows // size))
    if options["stepsPerEpoch"] is not None:
        batches = min(batches, options["stepsPerEpoch"])

    def count(name: str, least: int = 0, most: int = fields.MOST) -> int:
        return fields.count(record.get(name, fields.MISSING), f"position.{name}", least, most)

    step = count("step", most=batches)
    # Weights of labels may be any numbers.
    trained = fields.number(record.get("rows", fields.MISSING), "position.rows")
    if by_rows or not step:
        count("rows", most=0 if not step else fields.MOST if size is None else step * size)
    field = "position.lossSum"
    loss = fields.number(record.get("lossSum", fields.MISSING), field)
    if not trained and loss:
        fields.refuse(loss, field, "0")
    epoch, updates = count("epoch", epochs, epochs), count("optimizerSteps", most=losses)
    terms = [fields.number(term, "position.terms") for term in fields.array(record.get("terms", []), "position.terms")]
    return Position(epoch=epoch, step=step, loss_sum=loss, rows=trained, optimizer_steps=updates, terms=terms)


def read_floats(snapshot: TensorFile, name: str, size: int | None) -> np.ndarray:
    """A tensor of float32 with one axis, of this size unless it is None."""
    tensor = snapshot.tensors[name]
    if tensor.dtype != "float32" or len(tensor.shape) != 1 or size not in (None, tensor.size):
        fields.refuse(list(tensor.shape), name, "float32 of shape [" + ("n" if size is None else str(size)) + "]")
    return np.frombuffer(tensor.data, "<f4")


def epoch_to_json(epoch: Epoch) -> dict[str, Any]:
    """An epoch as the file has it."""
    groups = {"validation": epoch.validation, "training": epoch.training, "terms": epoch.terms}
    fields = {camel_case(n): number(v) for n, v in asdict(epoch).items() if n not in groups}
    values = {name: group and {n: number(v) for n, v in group.items()} for name, group in groups.items()}
    return {**fields, **values}


def number(value: Any) -> Any:
    """A value as JSON has it."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return NAMES.get(value, "nan")


def read_epoch(epoch: Any, index: int) -> Epoch:
    """An epoch of the file, which is the one after `index` others."""
    field = f"history.epochs[{index}]"
    record = fields.mapping(epoch, field)

    def get(name: str) -> tuple[Any, str]:
        return record.get(name, fields.MISSING), f"{field}.{name}"

    values, training = read_values(*get("validation")), read_values(*get("training"))
    stored = fields.mapping(record.get("terms", {}), f"{field}.terms")
    terms = {name: fields.any_number(term, f"{field}.terms") for name, term in stored.items()}
    number, steps = fields.count(*get("epoch"), index + 1, index + 1), fields.count(*get("steps"))
    loss, rate = fields.any_number(*get("loss")), fields.rate(*get("learningRate"))
    return Epoch(number, steps, loss, rate, fields.rate(*get("seconds")), values, training, terms)


def read_values(entry: Any, field: str) -> dict[str, Value] | None:
    """The loss and metrics of some data, by name; None where it was not evaluated."""
    if entry is None:
        return None
    values = fields.mapping(entry, field)
    fields.any_number(values.get("loss", fields.MISSING), f"{field}.loss")
    return {n: read_metric(v, f"{field}.{n[:LONGEST_NAME]}") for n, v in values.items()}


def read_metric(value: Any, field: str) -> Value:
    """A number, or a matrix of counts."""
    if not isinstance(value, list):
        return fields.any_number(value, field)
    return [[fields.count(n, field) for n in fields.array(row, field)] for row in value]
