"""Times of a step per instruction, kernel and node, as a table or a Chrome trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any


def event(name: str, category: str, start: float, milliseconds: float, **details: Any) -> dict[str, Any]:
    """One bar of a Chrome trace."""
    times = {"ts": 1e3 * start, "dur": 1e3 * milliseconds}
    return {"name": name, "cat": category, "ph": "X", "pid": 1, "tid": 1, **times, "args": details}


@dataclass(frozen=True, slots=True)
class Entry:
    """One instruction: kernel ("generated" for fused elementwise groups), node, disassembly, mean milliseconds."""

    kernel: str
    node: str
    text: str
    milliseconds: float


class Profile:
    """Times of the instructions of a step, in order.

    Iterating gives (disassembly, milliseconds) pairs; `str` a table by kernel.
    """

    def __init__(self, text: Sequence[str], nodes: Sequence[str], milliseconds: Sequence[float]) -> None:
        self.entries = [
            Entry(line.split("(")[0].split(" ")[0], node, line, ms)
            for line, node, ms in zip(text, nodes, milliseconds, strict=True)
        ]

    @property
    def total(self) -> float:
        """Milliseconds of all instructions."""
        return sum(e.milliseconds for e in self.entries)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return ((e.text, e.milliseconds) for e in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def by_kernel(self) -> dict[str, float]:
        """Milliseconds by kernel, largest first."""
        return self._sums([e.kernel for e in self.entries])

    def by_node(self) -> dict[str, float]:
        """Milliseconds by node of the model (a fused group counts for its last node), largest first."""
        return self._sums([e.node for e in self.entries])

    def _sums(self, keys: Sequence[str]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for key, e in zip(keys, self.entries, strict=True):
            sums[key] = sums.get(key, 0.0) + e.milliseconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def chrome_trace(self) -> str:
        """JSON for chrome://tracing or Perfetto: the instructions one after the other."""
        return json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ms"})

    def events(self, start: float = 0.0) -> list[dict[str, Any]]:
        """The instructions as events of a trace, the first at `start` milliseconds."""
        events, at = [], start
        for k, e in enumerate(self.entries):
            events.append(event(e.kernel, "step", at, e.milliseconds, node=e.node, instruction=k, text=e.text))
            at += e.milliseconds
        return events

    def __str__(self) -> str:
        total = self.total or 1.0
        lines = [f"{'kernel':28} {'ms':>9} {'share':>6}"]
        lines += [f"{name:28} {ms:9.3f} {100 * ms / total:5.1f}%" for name, ms in self.by_kernel().items()]
        return "\n".join([*lines, f"{'all':28} {self.total:9.3f}"])


class Trace:
    """The runs of a session from some time on, each with its instructions."""

    def __init__(self) -> None:
        self.start_ns = time_ns()
        self._start = perf_counter()
        self._events: list[dict[str, Any]] = []
        self._file: str | None = None

    def add(self, profile: Profile, start: float, end: float) -> None:
        """A run that lasted from `start` to `end` of `time.perf_counter`."""
        at = 1e3 * (start - self._start)
        self._events.append(event("model_run", "Session", at, 1e3 * (end - start)))
        self._events += profile.events(at)

    def write(self, prefix: str) -> str:
        """Write the trace to a file of a new name, the first time; its name."""
        if self._file is None:
            self._file = f"{prefix}_{datetime.now():%Y-%m-%d_%H-%M-%S}.json"
            Path(self._file).write_text(json.dumps(self._events))
        return self._file
