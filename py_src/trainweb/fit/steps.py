"""The steps of a fit, which `wasm_kernels/session/fit.c` counts; in a page `web/src/worker/fit/steps.ts`."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

from trainweb import messages
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
    from trainweb.backend.base import Host, StagedBatches
    from trainweb.errors import NumericsError

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

    @property
    def loss(self) -> float:
        """Of the epoch so far; NaN without a label that counts."""
        return self.loss_sum / self.rows if self.rows else math.nan


class FitSteps:
    """The batches and updates of a fit, which the session's kernels count, check and undo.

    Parameters
    ----------
    host
        Of the session that is fitted.
    on_nan : {"stop", "skip", "restore"}, optional
        Reaction to NaN or infinity.
    is_sum
        Whether the loss is a sum.
    """

    def __init__(self, host: Host, accumulate: int, on_nan: str | None, proximal: float, *, is_sum: bool) -> None:
        self._host, self.on_nan = host, on_nan
        self.call("start", accumulate, ACTIONS.index(on_nan), is_sum, float(proximal))

    def call(self, name: FitCall, *args: float) -> bool:
        """Call a function of `fit.c`; True if the optimizer step is due.

        Raises
        ------
        NumericsError
            The loss, a gradient, a parameter or a moment is NaN or infinite. Parameters and moments may have as many
            such elements as at first.
        """
        self.at = Position(*WORDS.unpack(self._host.fit(name, *args)))
        if fault := self._fault(*args):
            raise fault
        return self.at.next == NEXT_UPDATE

    def run(self, batches: StagedBatches, count: int) -> tuple[list[float], Exception | None]:
        """Run so many batches; the losses of those up to one that fails, and its error."""
        before = self.at.step
        position, losses, error = self._host.run_batches(batches, count)
        self.at = Position(*WORDS.unpack(position))
        done = self.at.step - before
        return losses[:done], error or self._fault(*losses[done:])

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
        """Have the session as before the batch, or as it was when it was good last; True if the fit ends.

        Raises
        ------
        NumericsError
            It went back too often, or no `on_nan` says what to do.
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
