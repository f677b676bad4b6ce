"""The plans of a session, and plans that run once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from trainweb import messages
from trainweb.backend.base import N_SEGMENTS
from trainweb.backend.chosen import RUNTIME

if TYPE_CHECKING:
    from trainweb.backend.base import Host
    from trainweb.backend.engine import Engine
    from trainweb.backend.plan import LoadedPlan, Plan
    from trainweb.model.graph import Tensor

KERNEL_MEMORY = 2**32
"""Bytes that 32-bit addresses reach."""
DEFAULT_MAX_PLANS = 16
"""Plans of steps that a session keeps: for eight sizes of batch, with those that overwrite and those that add."""


def evaluate(engine: Engine, plan: Plan) -> dict[str, Tensor]:
    """Outputs of a plan that has no inputs, run once."""
    host = RUNTIME.open_host(engine, [0] * N_SEGMENTS)
    try:
        loaded = host.load(plan)
        host.run(loaded)
        return host.read_outputs(loaded, plan.outputs)
    finally:
        host.release()


def check_segments(segment_bytes: Iterable[int]) -> None:
    """Raise LimitError when kernel memory can never hold segments of these sizes."""
    nbytes = sum(segment_bytes)
    if nbytes >= KERNEL_MEMORY:
        raise messages.SESSION_TOO_LARGE(nbytes=nbytes, limit=KERNEL_MEMORY)


class PlanCache:
    """At most `max_plans` plans of steps by their keys; the least recently used one goes first."""

    def __init__(self, host: Host, max_plans: int = DEFAULT_MAX_PLANS) -> None:
        self._host, self._max = host, max_plans
        self._plans: dict[Hashable, LoadedPlan] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._plans)

    def step(self, key: Hashable, make: Callable[[Mapping[str, tuple[int, int]]], Plan]) -> LoadedPlan:
        """The plan of a step, made where it is not there: `make` is given what the other plans keep."""
        if key not in self._plans:
            while oldest := self._host.excess(self._max):
                self._host.unload(self._plans.pop(next(k for k, one in self._plans.items() if one is oldest)))
            self._plans[key] = self._host.load(make(self.in_use()))
        return self._plans[key]

    def other(self, key: Hashable, make: Callable[[], Plan]) -> LoadedPlan:
        """A plan that no feeds decide on, which stays."""
        if key not in self._plans:
            self._plans[key] = self._host.load(make(), is_step=False)
        return self._plans[key]

    def in_use(self) -> dict[str, tuple[int, int]]:
        """Return the places of the values that the plans keep in the segment of prepared values, by name."""
        return {name: place for loaded in self._host.loaded for name, place in loaded.plan.kept.items()}
