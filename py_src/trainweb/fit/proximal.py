"""The proximal term of FedProx: it holds the parameters near their values at the start of a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainweb.ir.layout import GRADIENTS, PARAMETERS

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
        self._parameters, self._mu = session.core.parameters, mu
        self._host = session.core.parameters.host
        self._start = {s.name: self._read(PARAMETERS, s.offset, s.size) for s in self._parameters.layout.trained()}

    def _read(self, segment: int, offset: int, size: int) -> np.ndarray:
        # In float64: the sum is rounded once, in a page as well.
        return np.frombuffer(self._host.read_segment(segment, 4 * offset, 4 * size), "<f4").astype(np.float64)

    def add(self) -> None:
        """Add ``mu * (w - w0)`` to the gradients."""
        for slot in self._parameters.layout.trained():
            way = self._read(PARAMETERS, slot.offset, slot.size) - self._start[slot.name]
            gradient = self._read(GRADIENTS, slot.trainable_offset, slot.size)
            total = (gradient + self._mu * way).astype("<f4")
            self._host.write_segment(GRADIENTS, 4 * slot.trainable_offset, total.tobytes())
