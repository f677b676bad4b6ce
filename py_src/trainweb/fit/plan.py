"""A fit after the checks of its options: its data, its learning rates, and what each epoch evaluates.

In a page `web/src/page/split.ts` and `web/src/page/fit/rates.ts`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb import messages
from trainweb.arguments import check_settings, flag, warn
from trainweb.data.dataset import Dataset, epoch_batches, labels_of
from trainweb.data.for_model import Look, ModelInputs
from trainweb.data.random import Draw, permutation
from trainweb.data.rows import Batch, numbers_of
from trainweb.data.waiting import NumberedBatch
from trainweb.fit.evaluation import Evaluation
from trainweb.fit.options import FIT, OTHERS, EarlyStopping, checked_accumulate, checked_options, make_early_stopping
from trainweb.fit.resume import FitCheckpoint
from trainweb.message import Message
from trainweb.metrics import metrics_of
from trainweb.schedules import SCHEDULES, Constant, Schedule, make_schedule
from trainweb.settings import fields_of
from trainweb.spelling import input_name
from trainweb.training.history import Event, Run

if TYPE_CHECKING:
    from trainweb.loss_counts import LossCount
    from trainweb.training.core import SessionCore
    from trainweb.training.outputs import ModelOutputs

Callback = Callable[[Event, Run], object]


class Batches:
    """The batches of a dataset, epoch by epoch."""

    def __init__(
        self,
        inputs: ModelInputs,
        data: Dataset,
        options: Mapping[str, Any],
        *,
        shuffle: bool,
        ignores_size: bool = False,
        look: Look | None = None,
    ) -> None:
        self.data, self.options, self.shuffle, self.trains = data, options, shuffle, look is not None
        size, self.remainder, batched = options["batch_size"], options["remainder"], options["batched"]
        self.per_epoch: int | None = options["steps_per_epoch"] if self.trains else None
        """Batches of an epoch of a stream, which goes on in the next epoch; None: an epoch is one iteration."""
        self._known = data._count if inputs.rows is None else None
        self.size, self.count = inputs.size(size), None if data._known is None else len(data)
        """Rows of a batch and of the data; None for a stream that does not know them."""
        drops = inputs.rows is not None and self.remainder == "keep" and self.trains
        if data.columns is None:
            ignores = {"ignores_size": ignores_size, "drops": drops}
            self.data = inputs.batches(data, size, self.remainder, batched, look=look, **ignores)
            return
        if look is not None:
            look(data.columns)
        if batched:
            raise messages.BATCHED_ARRAYS()
        if drops:
            self.remainder = "drop"
            if count := len(data) % self.size:
                inputs.warn(messages.DROPPED_ROWS(count=count, rows=self.size))

    @property
    def steps(self) -> int | None:
        """The number of steps in an epoch; None for a stream that each epoch reads to its end."""
        return self.per_epoch if self.data.columns is None else len(self._rows(np.arange(len(self.data))))

    @property
    def counted(self) -> int | None:
        """The number of steps in an epoch, also of a stream that knows it."""
        return self._known if self.steps is None else self.steps

    def _rows(self, order: np.ndarray) -> list[np.ndarray]:
        return epoch_batches(len(order), self.size, self.remainder, order)

    def rows(self, number: int) -> list[np.ndarray]:
        """The numbers of the rows of each batch of an epoch; the data has columns."""
        size = len(self.data)
        return self._rows(permutation(size, self.options["seed"], number) if self.shuffle else np.arange(size))

    def epoch(self, number: int, start: int = 0, source: str = "data") -> Generator[NumberedBatch, None, None]:
        """Batches with the numbers of their rows, without the first batches; with `per_epoch` also of later epochs."""
        if self.data.columns is None:
            yield from self._streamed(number, start, source)
            return
        for indices in self.rows(number)[start:]:
            yield self.at(indices), indices.tolist()

    def _streamed(self, number: int, start: int, source: str) -> Generator[NumberedBatch, None, None]:
        left = start if self.per_epoch is None else number * self.per_epoch + start
        total = 0
        for iteration in itertools.count():
            count = done = 0
            # Only what trains is shuffled and augmented.
            epoch = number if self.per_epoch is None else iteration
            for batch in self.data._rows(Draw(epoch, self.options["seed"], self.shuffle) if self.trains else None):
                rows = range(done, done + rows_of(batch, count))
                count, done, total = count + 1, rows.stop, total + 1
                if total > left:
                    yield batch, numbers_of(batch, rows)
            if not count:
                ended = number if self.per_epoch is None else total // self.per_epoch
                raise messages.ENDED_DATASET(source=source, epoch=ended + 1)
            if self.per_epoch is None:
                return

    def at(self, indices: np.ndarray) -> Batch:
        """The batch of some rows: of rows in order no copy is made."""
        assert self.data.columns is not None
        in_order = not self.shuffle and self.remainder != "pad"
        rows = slice(indices[0], indices[-1] + 1) if in_order else indices
        return {name: array[rows] for name, array in self.data.columns.items()}


def rows_of(batch: Any, number: int) -> int:
    """Rows of the batch of this number, by the first axis. Raise FeedError for what is no batch."""
    if not isinstance(batch, Mapping) or not batch:
        raise messages.NOT_A_BATCH(position=number, actual=type(batch).__name__)
    first = np.asarray(next(iter(batch.values())))
    return first.shape[0] if first.ndim else 1


@dataclass(frozen=True, slots=True)
class FitPlan:
    """A fit after the checks of its options.

    `steps` counts the batches of an epoch (None for a stream). The output `loss` is divided by `count`. `limits` are
    for single gradients and for their joint norm. Each epoch makes the `evaluation` of `validation` and `trained`
    data.
    """

    core: SessionCore
    batches: Batches
    steps: int | None
    loss: str
    count: LossCount
    epochs: int
    accumulate: int
    sums_gradients: bool
    limits: tuple[float | None, float | None]
    ema: bool
    on_nan: str | None
    proximal: float
    evaluation: Evaluation | None
    validation: Batches | None
    trained: Batches | None
    schedule: Schedule | None
    early: EarlyStopping | None
    callbacks: Sequence[Callback]
    progress: bool
    checkpoint: FitCheckpoint | None


def checked_plan(core: SessionCore, data: Any, settings: Mapping[str, Any]) -> FitPlan:
    """Check the options of a fit, with the errors of `TrainingSession.fit`."""
    core.get_learning_rate()  # which needs an optimizer model
    check_settings("fit", [name for name in settings if name not in OTHERS], [*FIT, *OTHERS])
    options = checked_options({name: value for name, value in settings.items() if name not in OTHERS})
    weights = core.models.own.weights
    inputs = ModelInputs(core.inputs["train"], notices=core.notices, weights=weights)
    share, stratify = options["validation_split"], options["stratify"]
    labels = [name for name in inputs.values if name not in weights][-1:]
    train, validation = split_data(inputs, data, settings.get("validation_data"), share, labels, stratify=stratify)
    inputs.require(train, "data")
    if validation is not None:
        ModelInputs(core.inputs["eval"], weights=weights).require(validation, "validation data")
        warn_of_steps(inputs, train.preprocessing, validation, "validation rows")
    core.preprocessing = train.preprocessing
    is_drawn = train._is_drawn or inputs.lists_rows(train, options["batched"])
    check_generators(train, validation, options, is_kept=settings.get("checkpoint") is not None, is_drawn=is_drawn)
    if options["ema"] and not core.layout.has_averages:
        raise messages.NO_AVERAGES()
    shuffle = options["shuffle"] is not False
    look = partial(warn_of_labels, inputs, core.models.own)
    batches = Batches(inputs, train, options, shuffle=shuffle, look=look)
    evaluation, evaluated, trained = _evaluations(core, inputs, train, validation, options, settings)
    better: Mapping[str, str | None] = {"loss": "min"} if evaluation is None or evaluated is None else evaluation.better
    steps, epochs, accumulate = batches.steps, options["epochs"], checked_accumulate(settings.get("accumulate", 1))
    updates = None if batches.counted is None else epochs * -(-batches.counted // accumulate["steps"])
    if accumulate["steps"] > 1 and accumulate["reduction"] != "sum":
        if not core.models.weighs_batches:
            raise messages.UNWEIGHED_BATCHES()
        if core.models.uneven:
            raise messages.UNEVEN_TERMS(names=", ".join(core.models.uneven))
    schedule = schedule_of(settings.get("schedule"), options["learning_rate"], updates)
    early, checkpoint = settings.get("early_stopping"), settings.get("checkpoint")
    early = None if early is None else make_early_stopping(early, better)
    callbacks, progress = as_callbacks(settings.get("callbacks")), flag("progress", settings.get("progress", True))
    if options["proximal"] and checkpoint is not None:
        raise messages.PROXIMAL_CHECKPOINT()
    if checkpoint is not None:
        fixed = kept_options(inputs, options | {"accumulate": accumulate}, train, validation, is_drawn=is_drawn)
        checkpoint = FitCheckpoint(core, checkpoint, fixed)
    return FitPlan(
        core=core,
        batches=batches,
        steps=steps,
        loss=core.models.counts["train"].losses or core.outputs["train"][0],
        count=core.models.counts["train"],
        epochs=epochs,
        accumulate=accumulate["steps"],
        sums_gradients=accumulate["reduction"] == "sum",
        limits=(options["clip_grad_value"], options["clip_grad_norm"]),
        ema=options["ema"],
        on_nan=options["on_nan"],
        proximal=options["proximal"],
        evaluation=evaluation,
        validation=evaluated,
        trained=trained,
        schedule=schedule,
        early=early,
        callbacks=callbacks,
        progress=progress,
        checkpoint=checkpoint,
    )


def check_generators(
    train: Dataset, validation: Dataset | None, options: Mapping[str, Any], *, is_kept: bool, is_drawn: bool
) -> None:
    """Raise an error for options that such data does not take, and an iterator that was read or is read again."""
    if train.is_batched and options["batch_size"] is not None:
        raise messages.BATCH_OF_BATCHES(name="batch_size")
    if train.columns is None and options["shuffle"] and not is_drawn:
        raise messages.SHUFFLED_STREAM()
    if train.columns is not None and options["steps_per_epoch"] is not None:
        raise messages.STEPS_OF_ARRAYS()
    again = is_kept or options["epochs"] > 1
    trains_again = is_kept or (again and options["steps_per_epoch"] is None)
    for source, data, is_again in (("data", train, trains_again), ("validation data", validation, again)):
        generator = None if data is None else data.generator
        if generator is None:
            continue
        if is_again:
            raise messages.READ_AGAIN(source=source, kind=f"{type(generator).__name__.removeprefix('async_')} object")
        if getattr(generator, "gi_frame", generator) is None or getattr(generator, "ag_frame", generator) is None:
            raise messages.ENDED_DATASET(source=source, epoch=1)


def _evaluations(
    core: SessionCore,
    inputs: ModelInputs,
    train: Dataset,
    validation: Dataset | None,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> tuple[Evaluation | None, Batches | None, Batches | None]:
    """Return the evaluation of each epoch, and the batches of validation and training data that it evaluates."""
    metrics, evaluates_training = metrics_of(settings.get("metrics") or []), options["train_metrics"]
    if validation is None and not evaluates_training:
        if metrics:
            raise messages.METRICS_WITHOUT_DATA()
        return None, None, None
    units = inputs.units(train if validation is None else validation)
    pair = settings.get("predictions"), settings.get("targets")
    evaluation = Evaluation(core, metrics, *pair, units, ema=options["ema"])
    if evaluates_training and train.columns is None:
        raise messages.TRAIN_METRICS_STREAM()

    def whole(data: Dataset) -> Batches:
        if data.is_padded:
            raise messages.PADDED_VALIDATION()
        of_batches = {**options, "remainder": "keep", "batched": None}
        return Batches(inputs, data, of_batches, shuffle=False, ignores_size=True)

    evaluated = None if validation is None else whole(validation)
    return evaluation, evaluated, whole(train) if evaluates_training else None


def kept_options(
    inputs: ModelInputs, options: Mapping[str, Any], train: Dataset, validation: Dataset | None, *, is_drawn: bool
) -> dict[str, Any]:
    """Return the options that determine the batches and their order, by their names in the page."""
    shuffle = options["shuffle"] is not False
    # The items of a stream may be batches of any size.
    is_open = train.columns is None and options["batch_size"] is None and options["batched"] is not False
    has_size = not train.is_batched and not is_open
    return {
        "batchSize": inputs.size(options["batch_size"]) if has_size else None,
        "remainder": options["remainder"] if has_size else None,
        "seed": (options["seed"] or None) if train.columns is None else options["seed"] if shuffle else None,
        "shuffle": shuffle if is_drawn else None,
        "accumulate": options["accumulate"]["steps"],
        "reduction": options["accumulate"]["reduction"] if options["accumulate"]["steps"] > 1 else None,
        "clipGradNorm": options["clip_grad_norm"],
        "clipGradValue": options["clip_grad_value"],
        "ema": options["ema"] or None,
        "stratify": options["stratify"] or None,
        "stepsPerEpoch": options["steps_per_epoch"],
        "rows": None if train.columns is None else len(train),
        "validationRows": None if validation is None or validation.columns is None else len(validation),
    }


def as_callbacks(functions: Any) -> Sequence[Callback]:
    """Functions."""
    if functions is None:
        return []
    callbacks = list(functions) if isinstance(functions, Iterable) and not callable(functions) else [functions]
    for callback in callbacks:
        if not callable(callback) or iscoroutinefunction(callback):
            expected = "a function of an event and the run that is not async, or a list of them"
            raise messages.BAD_SETTING(name="callbacks", value=callback, expected=expected)
    return callbacks


def schedule_of(schedule: Any, learning_rate: float | None, steps: int | None) -> Schedule | None:
    """The schedule of a fit by its options `schedule` and `learning_rate`; None keeps the rate.

    `steps` are the optimizer steps of the fit, None if unknown. Raise ModelError for a wrong setting, or two rates.
    """
    if schedule is None:
        return None if learning_rate is None else Constant(learning_rate)
    if isinstance(schedule, Schedule) or callable(schedule):
        if learning_rate is not None:
            raise messages.RATE_AND_SCHEDULE()
        return schedule if isinstance(schedule, Schedule) else make_schedule(schedule)
    settings = {"type": schedule} if isinstance(schedule, str) else schedule
    if isinstance(settings, Mapping):
        settings = dict(settings)
        rate = settings.get("learning_rate")
        if learning_rate is not None and rate is not None and rate != learning_rate:
            raise messages.TWO_RATES(first=learning_rate, where="schedule", second=rate)
        if learning_rate is not None:
            settings["learning_rate"] = learning_rate
        kind = SCHEDULES.get(settings.get("type", ""))
        if kind is not None and "total" in fields_of(kind) and settings.setdefault("total", steps) is None:
            raise messages.TOTAL_OF_STREAM(name=settings["type"])
    return make_schedule(settings)


NAMED_CLASSES = 10
"""Largest number of classes that a warning names."""
COMPARED_LABELS = 4096
"""Labels of tokens that are compared with the tokens."""


def split_data(
    inputs: ModelInputs, data: Any, validation: Any, share: float | None, names: Sequence[str], *, stratify: bool | str
) -> tuple[Dataset, Dataset | None]:
    """Return the training data and the validation data; the input of `names` may hold classes."""
    train = inputs.dataset(data)
    if share is None:
        if stratify is not False:
            raise messages.STRATIFIED_NOTHING()
        if validation is not None:
            validation = inputs.dataset(validation)
            warn_of_missing(messages.ABSENT_CLASSES, names, train, validation)
        return train, validation
    if validation is not None:
        raise messages.TWO_VALIDATIONS()
    (name,) = names
    if stratify is not False:
        return train.split(share, stratify=input_name(stratify, inputs.values) if isinstance(stratify, str) else name)
    parts = train.split(share)
    warn_of_missing(messages.MISSING_CLASSES, names, *parts)
    return parts


def warn_of_steps(inputs: ModelInputs, done: Sequence[Mapping[str, Any]], data: Dataset, source: str) -> None:
    """Warn of steps that only the training rows have. Raise FeedError for a label that is another class in these."""
    fitted = {(step["type"], step["input"]): step for step in data.preprocessing if step["input"] not in inputs.unread}
    for step in done:
        pair = step, fitted.get((step["type"], step["input"]), step)
        first_column = zip(*(one.get("categories", [[]])[0] for one in pair), strict=False)
        for place, (expected, actual) in enumerate(first_column):
            if actual != expected:
                found = {"name": step["input"], "actual": actual, "expected": expected}
                raise messages.OTHER_CLASSES(place=place, source=source, **found)
    lacking = [step for step in done if step not in data.preprocessing]
    if any("dtype" in step and step["input"] in (data.columns or {}) for step in lacking):  # not those of folders
        steps = ", ".join(f"{step['type']} of {step['input']!r}" for step in lacking)
        inputs.warn(messages.UNPREPARED_VALIDATION(source=source, steps=steps))


def warn_of_labels(inputs: ModelInputs, own: ModelOutputs, fed: Batch) -> None:
    """Warn of labels that are the tokens of another input, for losses do not shift them, or no probabilities."""
    _warn_of_scores(inputs, own, fed)
    columns = {name: array for name, array in fed.items() if array.dtype.kind == "i" and array.ndim == 2}
    for name in (name for _, name in own.pairs if name in columns):
        labels = columns[name].reshape(-1)[:COMPARED_LABELS]
        learned = labels >= 0
        for other, tokens in columns.items():
            is_other = other != name and tokens.shape == columns[name].shape and learned.any()
            is_same = is_other and (tokens.reshape(-1)[:COMPARED_LABELS] == labels)[learned].all()
            if is_same and np.ptp(labels[learned]) > 1:
                inputs.warn(messages.COPIED_LABELS(name=name, other=other))


def _warn_of_scores(inputs: ModelInputs, own: ModelOutputs, fed: Batch) -> None:
    """Warn of labels of a mean cross entropy that should be probabilities: whose mean over no axis is that of such."""
    for name in [name for output, name in own.pairs if {"", output} & own.entropies.keys()]:
        array = fed.get(name, np.zeros(0))
        first = array[: -(-COMPARED_LABELS // max(array[:1].size, 1))]
        means = first.mean(tuple(range(1, first.ndim)))
        is_shared = any(np.allclose(means * size, 1, atol=1e-3) for size in first.shape[1:]) and (first >= 0).all()
        if array.dtype.kind == "f" and first.ndim > 1 and not is_shared:
            inputs.warn(messages.NO_PROBABILITIES(name=name))


def warn_of_missing(message: Message, names: Sequence[str], train: Dataset, validation: Dataset) -> None:
    """Warn of classes that only one of two parts has, if there are few classes."""
    for name in names:
        parts = {"training": labels_of(train._column(name)), "validation": labels_of(validation._column(name))}
        present = {part: set(labels.tolist()) for part, labels in parts.items() if labels is not None}
        classes = set().union(*present.values())
        for part, of_part in present.items():
            missing = sorted(map(int, classes - of_part))
            # Of many classes some are rare.
            if missing and len(present) == 2 and len(classes) <= NAMED_CLASSES:
                warn(str(message(part=part, name=name, classes=", ".join(map(str, missing)))))
