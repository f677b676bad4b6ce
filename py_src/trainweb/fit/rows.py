"""Batches of arrays, several of which the kernels run at once; in a page `web/src/worker/fit/batches.ts`."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from trainweb.backend.base import StagedBatches
from trainweb.ir.shapes import TensorType
from trainweb.schedules import Function
from trainweb.training.arrays import from_numpy
from trainweb.training.core import checked_rate
from trainweb.training.ort.options import VERBOSE

if TYPE_CHECKING:
    from trainweb.backend.plan import LoadedPlan
    from trainweb.fit.plan import FitPlan
    from trainweb.fit.steps import FitSteps
    from trainweb.training.core import SessionCore

SLICE_S = 4e-3
"""The kernels run for about so many seconds at a time."""
MOST_BYTES, MOST_BATCHES = 1 << 20, 256
"""Limits of a run of several batches: bytes of their inputs, and their number."""


class RowBatches:
    """Runs batches of arrays.

    Parameters
    ----------
    plan, steps
        Of the fit.
    columns
        Arrays whose first axis counts rows.
    left
        The numbers of the rows of each batch.
    """

    def __init__(
        self, plan: FitPlan, steps: FitSteps, columns: Mapping[str, np.ndarray], left: list[np.ndarray]
    ) -> None:
        self._core, self._steps, self._columns, self.left = plan.core, steps, columns, left
        self._clips = plan.limits != (None, None)
        self._limits = struct.pack("<2f", *(math.inf if limit is None else limit for limit in plan.limits))
        self._loss, self._count, self._schedule = plan.loss, plan.count.output, plan.schedule
        self._most = 1

    @staticmethod
    def serves(core: SessionCore) -> bool:
        """Return True if sizes of feeds decide on the plans of a session, and nothing watches its steps."""
        is_watched = core.numerics is not None or core.host.observer is not None or core.log.severity <= VERBOSE
        return not is_watched and not core.models.deciding["train"]

    def run(self, accumulate: int, every: int | None) -> tuple[list[float], Exception | None] | None:
        """Run the next batches, as many as take a few milliseconds.

        Parameters
        ----------
        accumulate
            Batches for an optimizer step.
        every
            Optimizer steps after which the fit stores a checkpoint.

        Returns
        -------
        tuple or None
            The losses up to a batch that fails, and its error. None: the plans are not here together, or the loss is
            not one float32; nothing has happened.
        """
        if not self.left:
            return [], None
        core, at, size = self._core, self._steps.at, len(self.left[0])
        # The user's function is called before each optimizer step.
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
        is_number = all(slot.dtype == "float32" and slot.nbytes == 4 for slot in results)
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
