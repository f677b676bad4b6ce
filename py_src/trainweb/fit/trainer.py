"""`Trainer`: the loop over epochs and batches; in a page `web/src/page/fit/run.ts` and `web/src/worker/fit/loop.ts`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from inspect import GEN_RUNNING, getgeneratorstate, iscoroutinefunction
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from trainweb import messages
from trainweb.arguments import check_settings, flag, warn
from trainweb.data.dataset import Batch, Dataset, epoch_batches
from trainweb.data.for_model import ModelInputs
from trainweb.data.random import permutation
from trainweb.errors import FeedError, NumericsError, TrainwebError
from trainweb.fit.bar import Bar, make_bar
from trainweb.fit.evaluation import Evaluation, metrics_of
from trainweb.fit.fetch import BatchThread, Fetch, NumberedBatch
from trainweb.fit.options import FIT, EarlyStopping, checked_options, make_early_stopping
from trainweb.fit.places import located
from trainweb.fit.rates import schedule_of
from trainweb.fit.resume import FitCheckpoint
from trainweb.fit.rows import RowBatches
from trainweb.fit.split import split_data
from trainweb.fit.steps import FitSteps
from trainweb.training.history import Epoch, Event, History, Progress
from trainweb.training.session_tasks import FitOptions

if TYPE_CHECKING:
    from weakref import WeakSet

    from trainweb.backend.engine import Engine
    from trainweb.metrics import Value
    from trainweb.training.session import TrainingSession

Callback = Callable[[Event, "Run"], object]
FRAME_S = 1 / 60
"""How long `fit_async` computes before it lets others run, and the least time between two events of progress."""


class Run:
    """A running fit, which callbacks get.

    Attributes
    ----------
    history : History
        What was done so far.
    """

    def __init__(self) -> None:
        self.history = History()
        self.is_stopping = False

    def stop(self) -> None:
        """End after the steps that run now, without waiting for async rows; the history is that of what was done."""
        self.is_stopping = True


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
        trains: bool = False,
    ) -> None:
        self.data, self.options, self.shuffle = data, options, shuffle
        size, self.remainder, batched = options["batch_size"], options["remainder"], options["batched"]
        drops = inputs.rows is not None and self.remainder == "keep" and trains
        if data.columns is None:
            self.data = inputs.batches(data, size, self.remainder, batched, ignores_size=ignores_size, drops=drops)
            return
        if batched:
            raise messages.BATCHED_ARRAYS()
        self.size = inputs.size(size)
        if drops:
            self.remainder = "drop"
            if count := len(data) % self.size:
                warn(str(messages.DROPPED_ROWS(count=count, rows=self.size)))

    @property
    def steps(self) -> int | None:
        """The number of steps in an epoch; None for a stream."""
        return None if self.data.columns is None else len(self._rows(np.arange(len(self.data))))

    def _rows(self, order: np.ndarray) -> list[np.ndarray]:
        return epoch_batches(len(order), self.size, self.remainder, order)

    def rows(self, number: int) -> list[np.ndarray]:
        """The numbers of the rows of each batch of an epoch; the data has columns."""
        size = len(self.data)
        return self._rows(permutation(size, self.options["seed"], number) if self.shuffle else np.arange(size))

    def epoch(self, number: int, start: int = 0, source: str = "data") -> Generator[NumberedBatch, None, None]:
        """Batches with the numbers of their rows, without the first batches."""
        columns = self.data.columns
        if columns is None:
            count = done = 0
            for batch in self.data:
                rows = range(done, done + rows_of(batch, count))
                count, done = count + 1, rows.stop
                if count > start:
                    yield batch, rows
            if not count:
                raise messages.ENDED_DATASET(source=source, epoch=number + 1)
            return
        for indices in self.rows(number)[start:]:
            yield self.at(indices), indices.tolist()

    def at(self, indices: np.ndarray) -> Batch:
        """The batch of some rows."""
        assert self.data.columns is not None
        return {name: array[indices] for name, array in self.data.columns.items()}


def rows_of(batch: Any, number: int) -> int:
    """Rows of the batch of this number: what the first axes count.

    Raises
    ------
    FeedError
        It is no batch.
    """
    if not isinstance(batch, Mapping) or not batch:
        raise messages.NOT_A_BATCH(position=number, given=type(batch).__name__)
    first = np.asarray(next(iter(batch.values())))
    return first.shape[0] if first.ndim else 1


_running: WeakSet[TrainingSession] | None = None


def running() -> WeakSet[TrainingSession]:
    """Sessions that are being fitted."""
    global _running
    if _running is None:
        from weakref import WeakSet

        _running = WeakSet()
    return _running


class Trainer:
    """Trains a session on data.

    Parameters
    ----------
    session : TrainingSession
        Its optimizer model updates the parameters; the first output of its training model is the loss.
    """

    def __init__(self, session: TrainingSession) -> None:
        self.session = session

    def fit(self, data: Any, **options: Unpack[FitOptions]) -> History:
        """See `TrainingSession.fit`.

        Parameters
        ----------
        data, **options
            As `TrainingSession.fit` takes them.

        Returns
        -------
        History
        """
        run, events = self._start(data, options)
        with closing(events):
            for fetch in alone(self.session.core.engine, events):
                if fetch is not None:
                    fetch.make()
        return run.history

    async def fit_async(self, data: Any, **options: Unpack[FitOptions]) -> History:
        """Run `fit` while other tasks, and in Pyodide the page, continue; cancel the task to end the fit.

        A thread makes the batches of streams, so that cancelling ends a fit whose data never comes, too.

        Parameters
        ----------
        data, **options
            As `fit`.
        """
        run, events = self._start(data, options)
        last = -math.inf  # so that others run even beside a fit that is over in less than a frame
        with closing(events), closing(BatchThread()) as thread:
            for fetch in alone(self.session.core.engine, events):
                if fetch is not None:
                    await thread.make(fetch)
                elif perf_counter() - last > FRAME_S:
                    await asyncio.sleep(0)
                    last = perf_counter()
        return run.history

    def _start(self, data: Any, options: Mapping[str, Any]) -> tuple[Run, Generator[Fetch | None, None, None]]:
        run = Run()
        plan = FitPlan(self.session, data, dict(options), run)
        if self.session in running():
            raise messages.FIT_RUNNING()
        return run, plan.events()


def alone(engine: Engine, events: Iterator[Fetch | None]) -> Iterator[Fetch | None]:
    """The events of a fit: no other thread computes or releases meanwhile, but while the fit waits for data."""
    while True:
        with engine.lock:
            try:
                event = next(events)
            except StopIteration:
                return
        yield event


OPTIONS = tuple(name for name in FitOptions.__annotations__ if name not in FIT)
"""Options that `FIT` does not check."""


class FitPlan:
    """A fit after the checks of its options."""

    def __init__(self, session: TrainingSession, data: Any, given: dict[str, Any], run: Run) -> None:
        self.session, self.run = session, run
        self.opened: dict[str, Generator[NumberedBatch, None, None]] = {}
        """The batches of the epoch so far."""
        session.get_learning_rate()  # which needs an optimizer model
        others = {name: given.pop(name) for name in OPTIONS if name in given}
        check_names(given)
        options = checked_options(given)
        self.inputs = ModelInputs(session.core.models.inputs["train"])
        train, validation = split_data(
            self.inputs,
            data,
            others.get("validation_data"),
            options["validation_split"],
            stratify=options["stratify"],
        )
        if train.is_batched and given.get("batch_size") is not None:
            raise messages.BATCH_OF_BATCHES(name="batch_size")
        if train.columns is None and options["shuffle"]:
            raise messages.SHUFFLED_STREAM()
        self.epochs, self.accumulate = options["epochs"], options["accumulate"]
        self.limits = options["clip_grad_value"], options["clip_grad_norm"]
        self.ema: bool = options["ema"]
        if self.ema and not session.core.layout.has_averages:
            raise messages.NO_AVERAGES()
        shuffle = options["shuffle"] is not False and train.columns is not None
        self.batches = Batches(self.inputs, train, options, shuffle=shuffle, trains=True)
        self.steps = self.batches.steps
        self.loss = session.output_names()[0]
        self.count = session.core.models.counts["train"]
        better = self._evaluations(train, validation, options, others)
        self.on_nan: str | None = options["on_nan"]
        steps = None if self.steps is None else self.epochs * -(-self.steps // self.accumulate)
        self.schedule = schedule_of(others.get("schedule"), options["learning_rate"], steps)
        early = others.get("early_stopping")
        self.early: EarlyStopping | None = None if early is None else make_early_stopping(early, better)
        self.callbacks = as_callbacks(others.get("callbacks"))
        self.progress = flag("progress", others.get("progress", True))
        self.proximal: float = options["proximal"]
        if self.proximal and others.get("checkpoint") is not None:
            raise messages.PROXIMAL_CHECKPOINT()
        self.best: np.ndarray | None = None
        given_checkpoint = others.get("checkpoint")
        self.checkpoint: FitCheckpoint | None = None
        if given_checkpoint is not None:
            kept = self._kept_options(options, train, validation, shuffle=shuffle)
            self.checkpoint = FitCheckpoint(session, given_checkpoint, kept)

    def _evaluations(
        self, train: Dataset, validation: Dataset | None, options: Mapping[str, Any], others: Mapping[str, Any]
    ) -> dict[str, str | None]:
        """Prepare what each epoch evaluates; the values that early stopping may go by, and which are better."""
        metrics = metrics_of(others.get("metrics") or [])
        evaluates_training: bool = options["train_metrics"]
        if metrics and validation is None and not evaluates_training:
            raise messages.METRICS_WITHOUT_DATA()
        self.validation: Batches | None = None
        self.trained: Batches | None = None
        """The training data, where it is evaluated."""
        self.evaluation: Evaluation | None = None
        better: dict[str, str | None] = {"loss": "min"}
        if validation is not None or evaluates_training:
            names = others.get("predictions"), others.get("targets")
            self.evaluation = Evaluation(self.session, metrics, *names, ema=self.ema)
        if validation is not None and self.evaluation is not None:
            self.validation = self._validation(validation, options)
            better = self.evaluation.better
        if evaluates_training:
            if train.columns is None:
                raise messages.TRAIN_METRICS_STREAM()
            self.trained = self._validation(train, options)
        return better

    def _validation(self, data: Dataset, options: Mapping[str, Any]) -> Batches:
        if data.is_padded:
            raise messages.PADDED_VALIDATION()
        kept = {**options, "remainder": "keep", "batched": None}
        return Batches(self.inputs, data, kept, shuffle=False, ignores_size=True)

    def _kept_options(
        self, options: Mapping[str, Any], train: Dataset, validation: Dataset | None, *, shuffle: bool
    ) -> dict[str, Any]:
        """Return the options that determine the batches and their order, by their names in the page."""
        # The items of a stream may be batches of any size.
        is_open = train.columns is None and options["batch_size"] is None and options["batched"] is not False
        has_size = not train.is_batched and not is_open
        return {
            "batchSize": self.inputs.size(options["batch_size"]) if has_size else None,
            "remainder": options["remainder"] if has_size else None,
            "seed": options["seed"] if shuffle else None,
            "accumulate": options["accumulate"],
            "clipGradNorm": options["clip_grad_norm"],
            "clipGradValue": options["clip_grad_value"],
            "ema": options["ema"] or None,
            "stratify": options["stratify"] or None,
            "rows": None if train.columns is None else len(train),
            "validationRows": None if validation is None or validation.columns is None else len(validation),
        }

    def events(self) -> Generator[Fetch | None, None, None]:
        """Run; yields after each step, and a batch of a stream that is to be made before it goes on."""
        running().add(self.session)
        with ExitStack() as stack:
            stack.callback(self._end)
            host, is_sum = self.session.core.host, self.count.is_sum
            self.kernel = FitSteps(host, self.accumulate, self.on_nan, self.proximal, is_sum=is_sum)
            stack.callback(self.kernel.end)
            if self.checkpoint is not None:
                stack.enter_context(self.checkpoint.locked())
                self._resume(self.checkpoint)
            bar = (
                make_bar((self.epochs - self.kernel.at.epoch) * self.steps if self.steps else None)
                if self.progress
                else None
            )
            if bar is not None:
                stack.callback(bar.close)
            for number in range(self.kernel.at.epoch, self.epochs):
                if self.early and self.early.is_over:
                    break
                yield from self._epoch(number, bar)
                if self.run.is_stopping:
                    history = self.run.history
                    history.ended = "stopped" if history.ended == "done" else history.ended
                    break
            if self.early and self.early.is_over:
                self.run.history.ended = "early"
            self._restore()

    def _end(self) -> None:
        running().discard(self.session)
        for batches in self.opened.values():
            # Data that a thread still waits for is left alone.
            if getgeneratorstate(batches) != GEN_RUNNING:
                batches.close()

    def _resume(self, checkpoint: FitCheckpoint) -> None:
        history = self.run.history
        found = checkpoint.resume(history, "loss" if self.early is None else self.early.metric)
        if found is None:
            return
        at, self.best = found
        kept = at.step - sum(map(math.isnan, history.losses[len(history.losses) - at.step :]))
        self.kernel.call("resume", at.epoch, at.step, kept, at.optimizer_steps, at.loss_sum, at.rows)
        for epoch in history.epochs:
            self._learn_of(epoch)
        self.batches.data.skip_rounds(at.epoch)
        if self.validation is not None:
            self.validation.data.skip_rounds(len(history.epochs))

    def _save(self) -> None:
        if self.checkpoint is not None:
            self.kernel.call("keep")
            self.checkpoint.save(self.kernel.at, self.run.history, self.best)

    def _next(self, source: Dataset, batches: Iterator[NumberedBatch]) -> Generator[Fetch, None, NumberedBatch | None]:
        """The next batch; None where there are no more, or the fit has ended while it waited for one."""
        if source.columns is not None:
            return next(batches, None)
        fetch = Fetch(batches, lambda: self.run.is_stopping or self.session._core is None)
        yield fetch
        batch = fetch.result()
        _ = self.session.core  # which a session that was released meanwhile does not have
        return batch

    def _epoch(self, number: int, bar: Bar | None) -> Generator[Fetch | None, None, None]:
        start = perf_counter()
        kernel = self.kernel
        kernel.call("epoch", number)
        yield from self._train_epoch(bar)
        kept = kernel.at.kept
        if not kept:
            # The fit ended with the first batch, or none was any good.
            if not self.run.is_stopping:
                raise messages.ALL_SKIPPED(epoch=number + 1)
            return
        values = yield from self._evaluate(number, self.validation, "validation data")
        training = yield from self._evaluate(number, self.trained, "the data")
        rate = self.session.get_learning_rate()
        epoch = Epoch(number + 1, kept, kernel.at.loss, rate, perf_counter() - start, values, training)
        self.run.history.epochs.append(epoch)
        if not self.run.is_stopping:
            self._observe(epoch)
            kernel.call("epoch", number + 1)
            self._save()
        self._tell(epoch)

    def _evaluate(
        self, number: int, data: Batches | None, source: str
    ) -> Generator[Fetch | None, None, dict[str, Value] | None]:
        """The values of data; None where there is none, or the fit ends before."""
        if self.evaluation is None or data is None or self.run.is_stopping:
            return None
        batches = self.opened[source] = data.epoch(number, source=source)
        taken = list[NumberedBatch | None]()
        evaluated = self.evaluation.run(iter(taken.pop, None), number, source)
        while True:
            taken.append((yield from self._next(data.data, batches)))
            if taken[0] is None and self.run.is_stopping:
                return None
            values = next(evaluated)
            if values is not None:
                return values
            yield None

    def _train_epoch(self, bar: Bar | None) -> Generator[Fetch | None, None, None]:
        history, kernel = self.run.history, self.kernel
        every = self.checkpoint.every if self.checkpoint is not None else None
        shown = perf_counter()
        self._open_training(together=RowBatches.serves(self.session.core))
        while (losses := (yield from self._train_next(every))) is not None:
            if self.run.is_stopping and losses[-1] is None:
                return
            history.losses += [math.nan if loss is None else loss for loss in losses]
            at = kernel.at
            is_updated = at.optimizer_steps > history.optimizer_steps
            history.optimizer_steps = at.optimizer_steps
            if is_updated and every is not None and at.optimizer_steps % every == 0:
                self._save()
            now = perf_counter()
            if bar is not None and at.rows:
                bar.update(loss=at.loss)
            if now - shown > FRAME_S and at.rows:
                shown = now
                self._tell(Progress(at.epoch + 1, at.step, self.steps, at.loss))
            yield None
            if self.run.is_stopping:
                break
        if kernel.at.waiting:
            self._last_update()
        elif self.run.is_stopping:
            self._save()

    def _open_training(self, *, together: bool) -> None:
        """Go to the next batch of the epoch; with `together` several batches of arrays run at once."""
        at, columns = self.kernel.at, self.batches.data.columns
        self.rows: RowBatches | None = None
        if together and columns is not None:
            left = self.batches.rows(at.epoch)[at.step :]
            core, count = self.session.core, self.count.output
            self.rows = RowBatches(core, self.kernel, columns, left, self.limits, self.loss, count, self.schedule)
        else:
            self.opened["training"] = self.batches.epoch(at.epoch, at.step)

    def _train_next(self, every: int | None) -> Generator[Fetch, None, list[float | None] | None]:
        """Train on the next batches; their losses, None for one that was undone. Without batches: None."""
        if self.rows is not None:
            try:
                found = self.rows.run(self.accumulate, every)
            except FeedError as refused:
                found = [], refused
            if found is not None:
                losses, error = found
                if error is not None:
                    rows = self.rows.left.pop(0)
                    self._fail(error, self.batches.at(rows), rows.tolist())
                    return [*losses, None]
                return [*losses] or None
            self._open_training(together=False)
        batch = yield from self._next(self.batches.data, self.opened["training"])
        return None if batch is None else [self._step(*batch)]

    def _step(self, feeds: Batch, rows: Sequence[int]) -> float | None:
        """Train on a batch, and update the parameters if it is time.

        Returns
        -------
        float or None
            The loss; None: the step made NaN or infinity, and `on_nan` has undone it.
        """
        kernel = self.kernel
        kernel.call("batch")
        try:
            if not kernel.at.waiting and self.schedule is not None:
                self.session.set_learning_rate(self.schedule.rate(self.run.history.optimizer_steps))
            loss, is_due = self._train(feeds, len(rows))
            if is_due:
                self._update()
        except TrainwebError as error:
            self._fail(error, feeds, rows)
            return None
        return loss

    def _fail(self, error: Exception, feeds: Batch, rows: Sequence[int]) -> None:
        """Undo a batch that made NaN or infinity; raise other errors."""
        if isinstance(error, FeedError):
            raise located(error, feeds, rows, self.kernel.at) from None
        if not isinstance(error, NumericsError):
            raise error
        located(error, feeds, rows, self.kernel.at)
        self._undo(error)

    def _undo(self, error: NumericsError) -> None:
        if self.kernel.undo(error):
            self.run.stop()
            self.run.history.ended = "nan"

    def _last_update(self) -> None:
        """Use the gradients that are left over at the end of an epoch."""
        try:
            if self.kernel.call("rest"):
                self._update()
        except NumericsError as error:
            self._undo(error)
        self.run.history.optimizer_steps = self.kernel.at.optimizer_steps

    def _train(self, feeds: Batch, rows: int) -> tuple[float, bool]:
        """The loss, and whether the optimizer step is due."""
        results = self.session.train_step(feeds, [self.loss, *filter(None, [self.count.output])])
        result = results[self.loss]
        if result.size != 1:
            self.session.core.host.fit("trained", math.nan, 0.0)  # the gradients are others now
            raise messages.SCALAR_LOSS(name=self.loss, shape=list(result.shape))
        loss = float(result.reshape(()))
        return loss, self.kernel.call("trained", loss, self.count.weight(rows, results))

    def _update(self) -> None:
        if self.limits != (None, None):
            self.session.core.clip_gradients(*self.limits)
        self.session.optimizer_step()
        self.kernel.call("updated")

    def _observe(self, epoch: Epoch) -> None:
        """Tell schedule and early stopping how the epoch was."""
        if self._learn_of(epoch) and self.early is not None and self.early.restore_best:
            self.best = self.session.get_contiguous_parameters(False, ema=self.ema)

    def _learn_of(self, epoch: Epoch) -> bool:
        """Return True if the epoch is the best so far, by early stopping."""
        values: dict[str, Any] = {"loss": epoch.loss} if epoch.validation is None else epoch.validation
        if self.schedule is not None:
            self.schedule.observe(values["loss"])
        if self.early is None or not self.early.observe(values[self.early.metric]):
            return False
        self.run.history.best_epoch = epoch.epoch
        return True

    def _restore(self) -> None:
        if self.best is not None:
            self.session.load_parameters_buffer(self.best, False)

    def _tell(self, event: Event) -> None:
        # Another thread may release the session while a callback waits for somebody.
        lock = self.session.core.engine.lock
        for callback in self.callbacks:
            lock.release()
            try:
                callback(event, self.run)
            finally:
                lock.acquire()


def check_names(given: Mapping[str, Any]) -> None:
    """Raise for an option that fit does not have."""
    from trainweb.fit.options import FIT

    check_settings("fit", given, [*FIT, *OPTIONS])


def as_callbacks(given: Any) -> Sequence[Callback]:
    """Functions."""
    if given is None:
        return []
    found = list(given) if isinstance(given, Iterable) and not callable(given) else [given]
    for callback in found:
        if not callable(callback) or iscoroutinefunction(callback):
            expected = "a function of an event and the run that is not async, or a list of them"
            raise messages.BAD_SETTING(name="callbacks", value=callback, expected=expected)
    return found
