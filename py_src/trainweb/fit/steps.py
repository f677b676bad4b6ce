"""The steps of a fit as the kernels count them (`wasm_kernels/session/fit.c`); in a page `web/src/worker/fit/steps.ts`."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from trainweb import messages
from trainweb.ir.layout import (
    FIT_TYPES,
    FIT_WORDS,
    GRADIENTS,
    MOMENTUM0,
    MOMENTUM1,
    MOST_RESTORES,
    NEXT_END,
    NEXT_FAIL,
    NEXT_UNDO,
    NEXT_UPDATE,
    PARAMETERS,
)

if TYPE_CHECKING:
    from trainweb.errors import NumericsError
    from trainweb.training.host import PlanHost

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


class FitState(NamedTuple):
    """The position of a fit: `layout fit` of `kernels.def`."""

    next: int
    fault: int
    has_begun: int
    waiting: int
    epoch: int
    step: int
    kept: int
    optimizer_steps: int
    loss_sum: float
    rows: float

    @property
    def loss(self) -> float:
        """Of the epoch so far."""
        return self.loss_sum / self.rows if self.rows else 0.0


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

    def __init__(self, host: PlanHost, accumulate: int, on_nan: str | None, proximal: float, *, is_sum: bool) -> None:
        self._host, self.on_nan = host, on_nan
        self.call("start", accumulate, ACTIONS.index(on_nan), is_sum, float(proximal))

    def call(self, name: str, *args: float) -> None:
        """Call a function of `fit.c` that a position follows."""
        self._host.check()
        self._host.demand(f"tw_fit_{name}", *args)
        self.at = FitState(*WORDS.unpack(self._host.engine.read(self._host.call("tw_fit_at"), 4 * FIT_WORDS)))

    def trained(self, loss: float, weight: float) -> bool:
        """Note a train step and what its loss was divided by; True if the optimizer step is due.

        Raises
        ------
        NumericsError
            The loss, a gradient, a parameter or a moment is NaN or infinite. Parameters and moments may have as many
            such elements as at first.
        TrainwebError
            The loss is, and no `on_nan` says what to do.
        """
        self.call("trained", loss, weight)
        if self.at.next == NEXT_FAIL:
            raise messages.NON_FINITE_LOSS(value=loss, step=self.at.step + 1, epoch=self.at.epoch + 1)
        self._check(self.at.step + 1)
        return self.at.next == NEXT_UPDATE

    def rest(self) -> bool:
        """Whether gradients are left over for an optimizer step, which begins then."""
        self.call("rest")
        return self.at.next == NEXT_UPDATE

    def updated(self, step: int) -> None:
        """Note an optimizer step; raises as `trained`."""
        self.call("updated")
        self._check(step)

    def _check(self, step: int) -> None:
        if self.at.next == NEXT_UNDO:
            raise messages.NOT_A_NUMBER_IN_FIT(what=FAULTS[self.at.fault], step=step, epoch=self.at.epoch + 1)

    def undo(self, error: NumericsError) -> bool:
        """Have the session as before the batch, or as it was when it was good last; True if the fit ends.

        Raises
        ------
        NumericsError
            It went back too often, or no `on_nan` says what to do.
        """
        if self.on_nan is None:
            raise error
        step = self.at.step + 1
        self.call("undo")
        if self.at.next == NEXT_FAIL:
            epoch = self.at.epoch + 1
            raise messages.RESTORED_TOO_OFTEN(most=MOST_RESTORES, step=step, epoch=epoch, reason=error)
        return self.at.next == NEXT_END

    def end(self) -> None:
        """The fit ends; a session that it did not change is as before."""
        if not self._host.released:
            self._host.demand("tw_fit_end")
