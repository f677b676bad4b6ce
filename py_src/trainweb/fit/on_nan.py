"""`on_nan`: the way a fit goes on after a step that made NaN or infinity; in a page `web/src/worker/on-nan.ts`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.errors import NumericsError
from trainweb.ir.layout import COPY_BATCH, GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS
from trainweb.training.host import ALL
from trainweb.training.snapshot import Snapshot, restore_snapshot, take_snapshot

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
        self.session, self.action = session, action
        self._host = session.core.host
        self._restores = 0
        self._good: Snapshot | None = None
        # A mask of minus infinity, say, is infinite on purpose.
        self._usual = {s: count for s, count in self._counts().items() if s != GRADIENTS}

    def keep_good(self) -> None:
        """Take note of a state that may be gone back to; the next train step overwrites the gradients."""
        if self.action == "restore":
            self._good = take_snapshot(self.session.core)

    def begin(self) -> None:
        """A batch begins."""
        self._host.demand("tw_session_save", COPY_BATCH, ALL)

    def check(self, loss: float, step: int, epoch: int) -> None:
        """Raise NumericsError if the loss, a gradient, a parameter or a moment is NaN or infinite.

        Parameters and moments may have as many such elements as at first.
        """
        worse = [WHAT[s] for s, count in self._counts().items() if count > self._usual.get(s, 0)]
        what = worse[0] if math.isfinite(loss) and worse else "The loss"
        if worse or not math.isfinite(loss):
            raise messages.NOT_A_NUMBER_IN_FIT(what=what, step=step, epoch=epoch)

    def undo(self, error: NumericsError, step: int, epoch: int) -> None:
        """Have the session as it was before the batch, or as it was when it was good last.

        Raises
        ------
        NumericsError
            It was gone back too often.
        """
        if self.action != "restore" or self._good is None:
            self._host.put_back(COPY_BATCH)
            return
        restore_snapshot(self.session.core, self._good)
        self._restores += 1
        if self._restores > MOST_RESTORES:
            raise messages.RESTORED_TOO_OFTEN(most=MOST_RESTORES, step=step, epoch=epoch, reason=error)

    def _counts(self) -> dict[int, int]:
        """Count the NaN or infinite elements of each segment."""
        return {segment: self._host.call("tw_session_not_finite", segment) for segment in WHAT}

    def end(self) -> None:
        """The fit ends."""
        if not self._host.released:
            self._host.demand("tw_session_forget", COPY_BATCH)
