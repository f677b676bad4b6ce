"""Training as a call: `Trainer(session).fit(data, epochs=3)`."""

from __future__ import annotations

from trainweb.fit.trainer import Trainer
from trainweb.training.history import Epoch, History, Progress, Run

__all__ = ["Epoch", "History", "Progress", "Run", "Trainer"]
__dir__ = __all__.copy
