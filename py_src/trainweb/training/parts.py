"""The view of a session that its parts are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from trainweb.backend.base import Host
from trainweb.backend.plan import LoadedPlan
from trainweb.ir.shapes import TensorType
from trainweb.training.memory_store import MemoryStore
from trainweb.training.models import SessionModels
from trainweb.training.parameters import Layout
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import StepKind


class SessionParts(Protocol):
    """A `SessionCore` as its parts see it (`training/core.py`)."""

    models: SessionModels
    layout: Layout
    host: Host
    parameters: MemoryStore
    state: CheckpointState
    outputs: dict[str, list[str]]

    def _check(self) -> None: ...

    def check_step(self, base: str) -> None: ...

    def inspected_plan(self, kind: StepKind, types: Mapping[str, TensorType], overwrite: bool) -> LoadedPlan: ...
