"""Checkpoints of a fit: how far it is, beside what its session is made of, so that it goes on where it was ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb import messages
from trainweb.fit.history import Epoch
from trainweb.fit.options import CHECKPOINT
from trainweb.model.graph import Tensor
from trainweb.settings import camel_case
from trainweb.training.snapshot import Snapshot, parsed, restore_snapshot, take_snapshot
from trainweb.training.store import CheckpointStore

if TYPE_CHECKING:
    from trainweb.fit.history import History
    from trainweb.training.session import TrainingSession

NAMES = {math.inf: "inf", -math.inf: "-inf"}
"""JSON has no such numbers."""


@dataclass(slots=True)
class Position:
    """How far a fit is.

    Attributes
    ----------
    epoch : int
        The epoch that is under way, from 0.
    step : int
        Batches of it that are done.
    loss_sum, rows : float
        The losses of its rows added up, and what their mean is divided by (`trainweb.loss_counts`).
    optimizer_steps : int
        Of the whole fit.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    rows: float = 0
    optimizer_steps: int = 0


class FitCheckpoint:
    """The checkpoint of a fit.

    Parameters
    ----------
    session
        That is fitted.
    given : mapping
        "store" (a CheckpointStore, or its folder), "name", and "every".
    options : mapping
        What must be as it was for the fit to go on: batches and their order follow from it.
    """

    def __init__(self, session: TrainingSession, given: Any, options: Mapping[str, Any]) -> None:
        expected = "a mapping with 'store' and 'name'"
        if not isinstance(given, Mapping):
            raise messages.BAD_SETTING(name="checkpoint", value=given, expected=expected)
        settings = dict(given)
        for name in ("store", "name"):
            if settings.get(name) is None:
                raise messages.MISSING_SETTING(what="checkpoint", name=name, expected=expected)
        store, self.name = settings.pop("store"), settings.pop("name")
        self.store = store if isinstance(store, CheckpointStore) else CheckpointStore(store)
        for name, value in settings.items():
            if name not in CHECKPOINT:
                names = ", ".join(["store", "name", *CHECKPOINT])
                raise messages.UNKNOWN_SETTING(what="checkpoint", name=name, names=names)
            CHECKPOINT[name].check(f"checkpoint.{name}", value)
        self.every: int | None = settings.get("every")
        self.session, self.options = session, dict(options)

    def locked(self) -> AbstractContextManager[None]:
        """Keep others from it."""
        return self.store.files.locked(self.name)

    def save(self, position: Position, history: History, best: np.ndarray | None) -> None:
        """Write it. The next train step must be one that overwrites the gradients."""
        snapshot = take_snapshot(self.session.core)
        told = {"options": self.options, "epochs": [told_epoch(e) for e in history.epochs]}
        snapshot.metadata["history"] = json.dumps(told, allow_nan=False)
        snapshot.metadata["position"] = json.dumps({camel_case(n): v for n, v in asdict(position).items()})
        arrays = {"losses": np.array(history.losses, "<f4")} | ({} if best is None else {"best": best})
        for name, array in arrays.items():
            snapshot.tensors[name] = Tensor(name, "float32", array.shape, array.tobytes())
        self.store.files.write(self.name, snapshot.to_bytes())

    def resume(self, history: History) -> tuple[Position, np.ndarray | None] | None:
        """Have the session and the history as they were when it was written, if it was.

        Returns
        -------
        tuple or None
            How far the fit is, and the parameters of the best epoch so far.

        Raises
        ------
        CheckpointError
            It is damaged, of another session, or was not written by a fit.
        ModelError
            It is of a fit with other options.
        """
        contents = self.store.files.read(self.name)
        if contents is None:
            return None
        snapshot = Snapshot.from_bytes(contents)
        if "history" not in snapshot.metadata:
            raise messages.NO_FIT(name=self.name)
        told, position = parsed(snapshot, "history"), parsed(snapshot, "position")
        for option, value in self.options.items():
            stored = told["options"].get(option)
            if stored != value:
                raise messages.OTHER_FIT(name=self.name, option=option, stored=stored, given=value)
        restore_snapshot(self.session.core, snapshot)
        history.epochs[:] = [heard_epoch(e) for e in told["epochs"]]
        history.losses[:] = np.frombuffer(snapshot.tensors["losses"].data, "<f4").astype(float).tolist()
        best = snapshot.tensors.get("best")
        found = Position(*(position[camel_case(n)] for n in asdict(Position())))
        history.optimizer_steps = found.optimizer_steps
        return found, None if best is None else np.frombuffer(best.data, "<f4")


def told_epoch(epoch: Epoch) -> dict[str, Any]:
    """An epoch as the file has it."""
    fields = {camel_case(n): number(v) for n, v in asdict(epoch).items() if n != "validation"}
    values = epoch.validation
    return {**fields, "validation": values and {n: number(v) for n, v in values.items()}}


def number(value: Any) -> Any:
    """A value as JSON has it."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return NAMES.get(value, "nan")


def heard_epoch(told: Mapping[str, Any]) -> Epoch:
    """An epoch of what the file has."""
    values = told["validation"]
    return Epoch(
        told["epoch"],
        told["steps"],
        float(told["loss"]),
        float(told["learningRate"]),
        float(told["seconds"]),
        values and {n: float(v) if isinstance(v, (int, float, str)) else v for n, v in values.items()},
    )
