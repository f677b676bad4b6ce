"""`Trainer`: the loop over epochs and batches; in a page `web/src/page/fit/run.ts` and `web/src/worker/fit/loop.ts`."""

from __future__ import annotations

import asyncio
import math
import struct
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from inspect import GEN_RUNNING, getgeneratorstate
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakSet

import numpy as np

from trainweb import messages
from trainweb.arguments import warn
from trainweb.backend.base import StagedBatches
from trainweb.data.dataset import Dataset
from trainweb.data.rows import Batch
from trainweb.data.waiting import BatchThread, Fetch, NumberedBatch
from trainweb.errors import FeedError, NumericsError, TrainwebError
from trainweb.fit.evaluation import EvaluationRun
from trainweb.fit.options import FitOptions
from trainweb.fit.plan import Batches, FitPlan, checked_plan
from trainweb.fit.resume import FitCheckpoint
from trainweb.fit.steps import FitSteps, Position, located
from trainweb.ir.layout import SUMS_GRADIENTS, SUMS_LOSS
from trainweb.ir.shapes import TensorType
from trainweb.schedules import Function
from trainweb.training.arrays import from_numpy, parameter_bytes, to_numpy
from trainweb.training.core import checked_rate
from trainweb.training.history import Epoch, Event, History, Progress, Run
from trainweb.training.ort.options import VERBOSE
from trainweb.training.step_kind import TRAIN
from trainweb.training.steps import run_step

if TYPE_CHECKING:
    from trainweb.backend.engine import Engine
    from trainweb.backend.plan import LoadedPlan
    from trainweb.metrics import Value
    from trainweb.training.core import SessionCore
    from trainweb.training.session_methods import SessionMethods

FRAME_S = 1 / 60
"""Seconds that `fit_async` computes before it lets others run, and between two events of progress at least."""

RUNNING: WeakSet[SessionCore] = WeakSet()
"""Sessions that are being fitted."""

SLICE_S = 4e-3
"""The kernels run for about so many seconds at a time."""

MOST_BYTES, MOST_BATCHES = 1 << 20, 256
"""Limits of a run of several batches: bytes of their inputs, and their number."""


class RowBatches:
    """Batches of arrays, several of which the kernels run at once; in a page `web/src/worker/fit/batches.ts`.

    The first axis of each of `columns` counts rows. `left` has the numbers of the rows of each batch.
    """

    def __init__(
        self, plan: FitPlan, steps: FitSteps, columns: Mapping[str, np.ndarray], left: list[np.ndarray]
    ) -> None:
        self._core, self._steps, self._columns, self.left = plan.core, steps, columns, left
        self._clips = plan.limits != (None, None)
        self._limits = struct.pack("<2f", *(math.inf if limit is None else limit for limit in plan.limits))
        self._loss, self._count, self._schedule = plan.loss, plan.count.output, plan.schedule
        self._most, self._bytes = 1, (4, 4 + 4 * len(plan.count.terms))

    @staticmethod
    def serves(core: SessionCore) -> bool:
        """Return True if sizes of feeds decide on the plans of a session, and nothing watches its steps."""
        is_watched = core.numerics is not None or core.host.observer is not None or core.log.severity <= VERBOSE
        return not is_watched and not core.models.deciding["train"]

    def run(self, accumulate: int, every: int | None) -> tuple[list[float], Exception | None] | None:
        """Run the next batches, as many as take a few milliseconds; the losses up to a batch that fails, and its error.

        There are `accumulate` batches for an optimizer step. The fit stores a checkpoint after `every` optimizer steps.
        None: the plans are not here together, or the loss is not one float32; nothing has happened.
        """
        if not self.left:
            return [], None
        core, at, size = self._core, self._steps.at, len(self.left[0])
        # The user's function is called before each update, so only one is run at a time.
        updates = 1 if isinstance(self._schedule, Function) else every and every - at.optimizer_steps % every
        most = self._most if updates is None else min(self._most, updates * accumulate - at.waiting)
        taken = list(takewhile(lambda rows: len(rows) == size, self.left[:most]))
        core.check_step("train")
        types = {name: TensorType(str(a.dtype), (size, *a.shape[1:])) for name, a in self._columns.items()}
        plans = self._plans(types, adds=accumulate > 1)
        if plans is None:
            return None
        rows = np.concatenate(taken)
        feeds = {name: from_numpy(name, array[rows]) for name, array in self._columns.items()}
        rates = self._rates(-(-(at.waiting + len(taken)) // accumulate))
        train, adding, update, clip = plans
        if len(taken) == 1:
            train = adding = adding if at.waiting else train
        start = perf_counter()
        batches = StagedBatches(train, adding, update, clip, self._limits, self._loss, self._count, size, feeds, rates)
        losses, error = self._steps.run(batches, len(taken))
        self._adapt(len(taken), perf_counter() - start, sum(feed.nbytes for feed in feeds.values()))
        del self.left[: len(losses)]
        return losses, error

    def _plans(
        self, types: Mapping[str, TensorType], *, adds: bool
    ) -> tuple[LoadedPlan, LoadedPlan, LoadedPlan, LoadedPlan | None] | None:
        core = self._core
        update = core.optimizer_plan()
        clip = core.clip_plan() if self._clips else None
        adding = core.train_plan(types, overwrite=False) if adds else None
        train = core.train_plan(types, overwrite=True)
        adding = adding or train
        results = [train.plan.outputs[name] for name in (self._loss, self._count) if name is not None]
        is_number = all(slot.dtype == "float32" and slot.nbytes in self._bytes for slot in results)
        # A session may keep one plan of a step only.
        return (train, adding, update, clip) if is_number and adding in core.host.loaded else None

    def _rates(self, count: int) -> list[float]:
        """The rates of so many optimizer steps; 0 for the first, if it has begun."""
        if self._schedule is None:
            return []
        begun, first = bool(self._steps.at.waiting), self._steps.at.optimizer_steps
        rates = [checked_rate("learning_rate", self._schedule.rate(first + k)) for k in range(begun, count)]
        return [0.0] * begun + rates

    def _adapt(self, batches: int, seconds: float, nbytes: int) -> None:
        """Choose the number of the next batches."""
        if batches == self._most and seconds < SLICE_S / 2:
            self._most = min(2 * self._most, MOST_BATCHES, max(1, MOST_BYTES * batches // max(nbytes, 1)))


class Trainer:
    """Trains a session on data.

    Parameters
    ----------
    session : TrainingSession
        Its optimizer model updates the parameters; the first output of its training model is the loss.
    """

    def __init__(self, session: SessionMethods) -> None:
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
        return fit(self.session._core, data, options)

    async def fit_async(self, data: Any, **options: Unpack[FitOptions]) -> History:
        """Run `fit` while other tasks, and in Pyodide the page, continue; cancel the task to end the fit.

        A thread makes the batches of streams, so that cancelling ends a fit whose data never comes, too.

        Parameters
        ----------
        data, **options
            As `fit`.
        """
        core = self.session._core
        run, events = start(core, data, options)
        last = -math.inf  # so that others run even beside a fit that is over in less than a frame
        with closing(events), closing(BatchThread()) as thread:
            for fetch in alone(core.engine, events):
                if fetch is not None:
                    await thread.make(fetch)
                elif perf_counter() - last > FRAME_S:
                    await asyncio.sleep(0)
                    last = perf_counter()
        return run.history


def fit(core: SessionCore, data: Any, options: Mapping[str, Any]) -> History:
    """Train; see `TrainingSession.fit`."""
    run, events = start(core, data, options)
    with closing(events):
        for fetch in alone(core.engine, events):
            if fetch is not None:
                fetch.make()
    return run.history


def start(core: SessionCore, data: Any, options: Mapping[str, Any]) -> tuple[Run, Generator[Fetch | None, None, None]]:
    """Check a fit; return it and its events."""
    run = Run()
    plan = checked_plan(core, data, options)
    if core in RUNNING:
        raise messages.FIT_RUNNING()
    return run, events(plan, run)


def alone(engine: Engine, events: Iterator[Fetch | None]) -> Iterator[Fetch | None]:
    """The events of a fit: no other thread computes or releases meanwhile, but while the fit waits for data."""
    while True:
        with engine.lock:
            try:
                event = next(events)
            except StopIteration:
                return
        yield event


def events(plan: FitPlan, run: Run) -> Generator[Fetch | None, None, None]:
    """Run a fit; yields after each step, and a batch of a stream that is to be made before it goes on."""
    RUNNING.add(plan.core)
    with ExitStack() as stack:
        stack.callback(RUNNING.discard, plan.core)
        fit = _Fit(plan, run)
        stack.callback(fit.end)
        if plan.checkpoint is not None:
            stack.enter_context(plan.checkpoint.locked())
            fit.resume(plan.checkpoint)
        bar = progress_bar(plan, fit.kernel.at) if plan.progress else None
        if bar is not None:
            stack.callback(bar.close)
        for number in range(fit.kernel.at.epoch, plan.epochs):
            if plan.early and plan.early.is_over:
                break
            yield from fit.epoch(number, bar)
            if run.is_stopping:
                run.history.ended = "stopped" if run.history.ended == "done" else run.history.ended
                break
        if plan.early and plan.early.is_over:
            run.history.ended = "early"
        if plan.checkpoint is not None and fit.trains_nothing:
            warn(str(messages.DONE_FIT(name=plan.checkpoint.name, epochs=len(run.history.epochs))))
        fit.restore()
        trained = plan.batches.size * sum(not math.isnan(loss) for loss in run.history.losses)
        run.history._rows = min(plan.batches.count or 0, trained)


def progress_bar(plan: FitPlan, at: Position) -> Any:
    """A bar of tqdm over the steps of this epoch and later ones, in its form for notebooks there; None without tqdm."""
    try:
        # Without widgets tqdm.auto draws the bar of text as well, and warns in a notebook.
        if find_spec("ipywidgets") is not None:
            from tqdm.auto import tqdm
        else:
            from tqdm import tqdm
    except ImportError:
        return None
    if sys.platform == "emscripten":
        tqdm.monitor_interval = 0  # no threads, of which it would warn
    total = (plan.epochs - at.epoch) * plan.steps if plan.steps else None
    return tqdm(total=total, initial=at.step, unit="step", leave=True)


class _Fit:
    """A fit that runs."""

    def __init__(self, plan: FitPlan, run: Run) -> None:
        self.plan, self.run, self.core = plan, run, plan.core
        sums = SUMS_LOSS * plan.count.is_sum | SUMS_GRADIENTS * plan.sums_gradients
        self.kernel = FitSteps(plan.core.host, plan.accumulate, plan.on_nan, plan.proximal, sums)
        self.opened: dict[str, Generator[NumberedBatch, None, None]] = {}
        """The batches of the epoch so far."""
        self.rows: RowBatches | None = None
        """The rows that are left of it, where several batches run at once."""
        self.best: np.ndarray | None = None
        """The parameters of the best epoch."""
        self.trains_nothing = False
        """The fit of the checkpoint has ended."""

    def end(self) -> None:
        """Let go of the session and of the data."""
        self.kernel.end()
        for batches in self.opened.values():
            # Data that a thread still waits for is left alone.
            if getgeneratorstate(batches) != GEN_RUNNING:
                batches.close()

    def resume(self, checkpoint: FitCheckpoint) -> None:
        """Go on from a checkpoint, if there is one."""
        history = self.run.history
        saved = checkpoint.resume(history, "loss" if self.plan.early is None else self.plan.early.metric)
        if saved is None:
            return
        at, self.best = saved
        steps = at.step - sum(map(math.isnan, history.losses[len(history.losses) - at.step :]))
        self.kernel.call("resume", at.epoch, at.step, steps, at.optimizer_steps, at.loss_sum, at.rows)
        self.kernel.terms = at.terms
        for epoch in history.epochs:
            self._learn_of(epoch)
        is_over = self.plan.early is not None and self.plan.early.is_over
        self.trains_nothing = at.epoch >= self.plan.epochs or is_over

    def _save(self) -> None:
        if self.plan.checkpoint is not None:
            self.kernel.call("keep")
            self.plan.checkpoint.save(self.kernel.at._replace(terms=self.kernel.terms), self.run.history, self.best)

    def _next(self, source: Dataset, batches: Iterator[NumberedBatch]) -> Generator[Fetch, None, NumberedBatch | None]:
        """The next batch; None where there are no more, or the fit has ended while it waited for one."""
        if source.columns is not None:
            return next(batches, None)
        fetch = Fetch(batches, lambda: self.run.is_stopping or self.core.host.released)
        yield fetch
        batch = fetch.result()
        self.core.host.check()  # it may have been released meanwhile
        return batch

    def epoch(self, number: int, bar: Any) -> Generator[Fetch | None, None, None]:
        """Train on all rows once, and evaluate."""
        start = perf_counter()
        kernel = self.kernel
        kernel.call("epoch", number)
        yield from self._train_epoch(bar)
        steps = kernel.at.kept
        if not steps:
            # The fit ended with the first batch, or none was any good.
            if not self.run.is_stopping:
                raise messages.ALL_SKIPPED(epoch=number + 1)
            return
        values = yield from self._evaluate(number, self.plan.validation, "validation data")
        training = yield from self._evaluate(number, self.plan.trained, "the data")
        rate = self.core.get_learning_rate()
        terms = {name: total / kernel.at.rows for name, total in zip(self.plan.count.terms, kernel.terms, strict=False)}
        epoch = Epoch(number + 1, steps, kernel.at.loss, rate, perf_counter() - start, values, training, terms)
        self.run.history.epochs.append(epoch)
        if not self.run.is_stopping:
            if self._learn_of(epoch) and self.plan.early is not None and self.plan.early.restore_best:
                self.best = to_numpy(self.core.get_contiguous_parameters(False, self.plan.ema))
            kernel.call("epoch", number + 1)
            self._save()
        self._tell(epoch)

    def _evaluate(
        self, number: int, data: Batches | None, source: str
    ) -> Generator[Fetch | None, None, dict[str, Value] | None]:
        """The values of data; None where there is none, or the fit ends before."""
        if self.plan.evaluation is None or data is None or self.run.is_stopping:
            return None
        batches = self.opened[source] = data.epoch(number, source=source)
        totals = EvaluationRun(self.plan.evaluation, number, source)
        while (batch := (yield from self._next(data.data, batches))) is not None:
            totals.add(*batch)
            yield None
        return None if self.run.is_stopping else totals.values()

    def _train_epoch(self, bar: Any) -> Generator[Fetch | None, None, None]:
        history, kernel = self.run.history, self.kernel
        every = self.plan.checkpoint.every if self.plan.checkpoint is not None else None
        shown = perf_counter()
        self._open_training(together=RowBatches.serves(self.core))
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
            if bar is not None:
                bar.set_postfix({"loss": f"{at.loss:.4g}"} if at.rows else {}, refresh=False)
                bar.update(len(losses))
            if now - shown > FRAME_S and at.rows:
                shown = now
                self._tell(Progress(at.epoch + 1, at.step, self.plan.steps, at.loss))
            yield None
            if self.run.is_stopping:
                break
        if kernel.at.waiting:
            self._last_update()
        elif self.run.is_stopping:
            self._save()

    def _open_training(self, *, together: bool) -> None:
        """Go to the next batch of the epoch; with `together` several batches of arrays run at once."""
        at, columns = self.kernel.at, self.plan.batches.data.columns
        self.rows = None
        if together and columns is not None:
            left = self.plan.batches.rows(at.epoch)[at.step :]
            self.rows = RowBatches(self.plan, self.kernel, columns, left)
        elif self.plan.batches.per_epoch is None or "training" not in self.opened:
            self.opened["training"] = self.plan.batches.epoch(at.epoch, at.step)

    def _train_next(self, every: int | None) -> Generator[Fetch, None, list[float | None] | None]:
        """Train on the next batches; their losses, None for one that was undone. Without batches: None."""
        if self.rows is not None:
            try:
                result = self.rows.run(self.plan.accumulate, every)
            except FeedError as refused:
                result = [], refused
            if result is not None:
                losses, error = result
                if error is not None:
                    rows = self.rows.left.pop(0)
                    self._fail(error, self.plan.batches.at(rows), rows.tolist())
                    return [*losses, None]
                return [*losses] or None
            self._open_training(together=False)
        if self.kernel.at.step == self.plan.batches.per_epoch:
            return None
        batch = yield from self._next(self.plan.batches.data, self.opened["training"])
        return None if batch is None else [self._step(*batch)]

    def _step(self, feeds: Batch, rows: Sequence[int]) -> float | None:
        """Train on a batch, and update the parameters if due; the loss, or None if `on_nan` has undone the step."""
        kernel = self.kernel
        kernel.call("batch")
        try:
            if not kernel.at.waiting and self.plan.schedule is not None:
                self.core.set_learning_rate(self.plan.schedule.rate(self.run.history.optimizer_steps))
            (loss, *terms), is_due = self._train(feeds, len(rows))
            if is_due:
                self._update()
            kernel.add_terms(terms, len(rows), kernel.at.kept - 1)
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

    def _train(self, feeds: Batch, rows: int) -> tuple[list[float], bool]:
        """The loss and its terms, and whether the optimizer step is due."""
        results = run_step(self.core, TRAIN, feeds, [self.plan.loss, *filter(None, [self.plan.count.output])])
        result = results[self.plan.loss]
        if result.size != 1 + len(self.plan.count.terms):
            self.core.host.fit("trained", math.nan, 0.0)  # the gradients are others now
            raise messages.SCALAR_LOSS(name=self.plan.loss, shape=list(result.shape))
        losses = [float(number) for number in result.reshape(-1)]
        return losses, self.kernel.call("trained", losses[0], self.plan.count.weight(rows, results))

    def _update(self) -> None:
        if self.plan.limits != (None, None):
            self.core.clip_gradients(*self.plan.limits)
        self.core.optimizer_step()
        self.kernel.call("updated")

    def _learn_of(self, epoch: Epoch) -> bool:
        """Tell schedule and early stopping how an epoch was. Return True if it is the best so far."""
        values: dict[str, Any] = {"loss": epoch.loss} if epoch.validation is None else epoch.validation
        if self.plan.schedule is not None:
            self.plan.schedule.observe(values["loss"])
        if self.plan.early is None or not self.plan.early.observe(values[self.plan.early.metric]):
            return False
        self.run.history.best_epoch = epoch.epoch
        return True

    def restore(self) -> None:
        """Give the session the parameters of the best epoch."""
        if self.best is not None:
            self.core.load_parameters_buffer(parameter_bytes(self.best), False)

    def _tell(self, event: Event) -> None:
        # Another thread may release the session while a callback waits for somebody.
        lock = self.core.engine.lock
        for callback in self.plan.callbacks:
            lock.release()
            try:
                callback(event, self.run)
            finally:
                lock.acquire()
