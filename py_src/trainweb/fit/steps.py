"""The steps of a fit, which `wasm_kernels/session/fit.c` counts, and the places of wrong rows in the data.

In a page `web/src/worker/fit/steps.ts` and `web/src/worker/places.ts`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainweb import messages
from trainweb.backend.base import StagedBatches
from trainweb.errors import FeedError, NumericsError
from trainweb.ir.layout import (
    FIT_TYPES,
    GRADIENTS,
    MOMENTUM0,
    MOMENTUM1,
    MOST_RESTORES,
    NEXT_END,
    NEXT_FAIL,
    NEXT_UNDO,
    NEXT_UPDATE,
    PARAMETERS,
    FitCall,
)

if TYPE_CHECKING:
    from trainweb.backend.base import Host


def located(
    error: FeedError | NumericsError, feeds: Mapping[str, Any], rows: Sequence[int], at: Position, data: str = "data"
) -> Exception:
    """The error of the batch after `at`, with epoch, batch and, for a value out of range or NaN, input and row.

    `rows` are the numbers of its rows in `data`. Without a fit, the epoch of `at` is -1.
    """
    error.epoch, error.batch = at.epoch + 1 or None, at.step + 1
    if isinstance(error, NumericsError):
        if said := said_of_gap(error, feeds, rows, data):
            error.args = said.args
        return error
    spot = None if error.value is None else find_value(feeds, error.value, error.position, len(rows))
    if spot is None:
        return error
    name, k = spot
    row = int(rows[k])
    place = f"batch {error.batch}" + (f" of epoch {error.epoch}" if error.epoch else "")
    said = messages.IN_ROW(reason=error, name=name, row=row, data=data, place=place)
    known = {key: value for key, value in vars(error).items() if key in FeedError.__annotations__}
    vars(said).update({**known, "input": name, "row": row})
    return said


def find_value(feeds: Mapping[str, Any], value: int, position: int | None, rows: int) -> tuple[str, int] | None:
    """The input and the row of a batch that have an integer: at this position of its values, or at one place only."""
    arrays = {name: np.asarray(feed) for name, feed in feeds.items()}
    flat = {name: a.reshape(-1) for name, a in arrays.items() if a.dtype.kind in "iu" and a.shape[:1] == (rows,)}
    at = {
        name: [position]
        for name, a in flat.items()
        if position is not None and position < a.size and a[position] == value
    }
    places = at or {name: positions for name, a in flat.items() if (positions := np.flatnonzero(a == value).tolist())}
    if len(places) != 1:
        return None
    ((name, positions),) = places.items()
    found_rows = {k * rows // flat[name].size for k in positions}
    return (name, found_rows.pop()) if len(found_rows) == 1 else None


def said_of_gap(reason: object, feeds: Mapping[str, Any], rows: Sequence[int], data: str) -> Exception | None:
    """The error that names the input, row and value of the first NaN or infinity of a batch; None without one."""
    for name, feed in feeds.items():
        array = np.asarray(feed)
        if array.dtype.kind == "f" and array.shape[:1] == (len(rows),):
            places = np.flatnonzero(~np.isfinite(array))
            if places.size:
                k = int(places[0])
                row, value = int(rows[k * len(rows) // array.size]), float(array.reshape(-1)[k])
                return messages.NAN_IN_ROW(reason=reason, name=name, value=value, row=row, data=data)
    return None


ACTIONS = (None, "stop", "skip", "restore")
"""The option `on_nan` in the order of the kernels' enumeration."""
WORDS = struct.Struct("<" + "".join(FIT_TYPES.values()))
FAULTS = {
    0: "The loss",
    PARAMETERS: "A parameter",
    GRADIENTS: "A gradient",
    MOMENTUM0: "A moment of the optimizer",
    MOMENTUM1: "A moment of the optimizer",
}
"""Names of the loss and of segments in the error for NaN or infinity."""


class Position(NamedTuple):
    """The position of a fit: `layout fit` of `kernels.def`, which says what the fields are."""

    next: int = 0
    fault: int = 0
    is_batch: int = 0
    waiting: int = 0
    epoch: int = 0
    step: int = 0
    kept: int = 0
    optimizer_steps: int = 0
    loss_sum: float = 0.0
    rows: float = 0.0
    terms: Sequence[float] = ()  # sums as `loss_sum`, in checkpoints

    @property
    def loss(self) -> float:
        """Loss of the epoch so far; NaN without a label that counts."""
        return self.loss_sum / self.rows if self.rows else math.nan


class FitSteps:
    """The batches and updates of a fit, which the session's kernels count, check and undo."""

    def __init__(self, host: Host, accumulate: int, on_nan: str | None, proximal: float, sums: int) -> None:
        self._host, self.on_nan = host, on_nan
        self.terms: Sequence[float] = ()
        self.call("start", accumulate, ACTIONS.index(on_nan), sums, float(proximal))

    def call(self, name: FitCall, *args: float) -> bool:
        """Call a function of `fit.c`; True if the optimizer step is due.

        Raise NumericsError if loss, gradients, parameters or moments have more NaN and infinities than at first.
        """
        self.at = Position(*WORDS.unpack(self._host.fit(name, *args)))
        if fault := self._fault(*args):
            raise fault
        return self.at.next == NEXT_UPDATE

    def run(self, batches: StagedBatches, count: int) -> tuple[list[float], Exception | None]:
        """Run so many batches; the losses of those up to one that fails, and its error."""
        before, first = self.at.step, self.at.kept
        position, losses, error = self._host.run_batches(batches, count)
        self.at = Position(*WORDS.unpack(position))
        done, numbers = self.at.step - before, len(losses) // count
        for k in range(done if numbers > 1 else 0):
            self.add_terms(losses[k * numbers + 1 : (k + 1) * numbers], batches.rows, first + k)
        losses = losses[::numbers]
        return losses[:done], error or self._fault(*losses[done:])

    def add_terms(self, terms: Sequence[float], rows: int, before: int) -> None:
        """Add the terms of a batch after `before` others of the epoch; a checkpoint of an older version has no sums."""
        sums = self.terms if before else [0.0] * len(terms)
        self.terms = [total + term * rows for total, term in zip(sums, terms, strict=False)]

    def _fault(self, *values: float) -> Exception | None:
        """The error for NaN or infinity; the first of `values` is the loss of the batch."""
        if self.at.next == NEXT_FAIL and self.on_nan is None:
            return messages.NON_FINITE_LOSS(value=values[0], **self._place)
        if self.at.next == NEXT_UNDO:
            return messages.NOT_A_NUMBER_IN_FIT(what=FAULTS[self.at.fault], **self._place)
        return None

    @property
    def _place(self) -> dict[str, int]:
        return {"step": self.at.step + self.at.is_batch, "epoch": self.at.epoch + 1}

    def undo(self, error: NumericsError) -> bool:
        """Return the session to the start of the batch, or to its last good state; True if the fit ends.

        Raise NumericsError if it went back too often, or without `on_nan`.
        """
        if self.on_nan is None:
            raise error
        place = self._place
        self.call("undo")
        if self.at.next == NEXT_FAIL:
            raise messages.RESTORED_TOO_OFTEN(most=MOST_RESTORES, reason=error, **place)
        return self.at.next == NEXT_END

    def end(self) -> None:
        """The fit ends; a session that it did not change is as before."""
        if not self._host.released:
            self._host.end_fit()
