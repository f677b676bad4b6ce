"""`on_nan`: the way a fit goes on after a step that made NaN or infinity; in a page `web/src/worker/fit/on-nan.ts`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.errors import NumericsError
from trainweb.ir.layout import COPY_BATCH, COPY_GOOD, GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS

if TYPE_CHECKING:
    from trainweb.training.session import TrainingSession

MOST_RESTORES = 3
"""How often a fit goes back to its last good state: after three times the same fault would come again."""

WHAT = {
    PARAMETERS: "A parameter",
    GRADIENTS: "A gradient",
    MOMENTUM0: "A moment of the optimizer",
    MOMENTUM1: "A moment of the optimizer",
}
"""Names of segments in the error for NaN or infinity."""


class OnNaN:
    """Watches the batches of a fit, and undoes batches that go wrong.

    Parameters
    ----------
    session
        That is fitted.
    action : {"stop", "skip", "restore"}
        What follows.
    """

    def __init__(self, session: TrainingSession, action: str) -> None:
        self._host, self.action = session.core.host, action
        self._restores = 0
        self._host.demand("tw_session_usual")

    def keep_good(self) -> None:
        """Take note of a state that may be gone back to; the next train step overwrites the gradients."""
        if self.action == "restore":
            self._host.save(COPY_GOOD)

    def begin(self) -> None:
        """A batch begins."""
        self._host.save(COPY_BATCH)

    def check(self, loss: float, step: int, epoch: int) -> None:
        """Raise NumericsError if the loss, a gradient, a parameter or a moment is NaN or infinite.

        Parameters and moments may have as many such elements as at first.
        """
        worse = self._host.call("tw_session_worse")
        if worse or not math.isfinite(loss):
            what = WHAT[worse] if math.isfinite(loss) else "The loss"
            raise messages.NOT_A_NUMBER_IN_FIT(what=what, step=step, epoch=epoch)

    def undo(self, error: NumericsError, step: int, epoch: int) -> None:
        """Have the session as it was before the batch, or as it was when it was good last.

        Raises
        ------
        NumericsError
            It was gone back too often.
        """
        if self.action != "restore":
            self._host.put_back(COPY_BATCH)
            return
        self._host.demand("tw_session_go_back", COPY_GOOD)
        self._restores += 1
        if self._restores > MOST_RESTORES:
            raise messages.RESTORED_TOO_OFTEN(most=MOST_RESTORES, step=step, epoch=epoch, reason=error)

    def end(self) -> None:
        """The fit ends: give back the memory of the copies."""
        if not self._host.released:
            self._host.forget(COPY_BATCH)
            self._host.forget(COPY_GOOD)
