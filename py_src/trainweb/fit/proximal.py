"""The proximal term of FedProx: it holds the parameters near their values at the start of a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainweb.training.session import TrainingSession


class ProximalTerm:
    """``mu / 2 * ||w - w0||^2`` as its gradient, which is added to what the loss gives.

    Parameters
    ----------
    session : TrainingSession
        Its trained parameters now are w0.
    mu : float
        The factor.
    """

    def __init__(self, session: TrainingSession, mu: float) -> None:
        self._host, self._mu = session.core.host, float(mu)
        self._host.demand("tw_session_start")

    def add(self) -> None:
        """Add ``mu * (w - w0)`` to the gradients, each sum rounded once."""
        self._host.demand("tw_session_pull", self._mu)
