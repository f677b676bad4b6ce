"""Time of a step without anything around it: runs natively and in Pyodide; needs trainweb alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainweb.backend.plan import LoadedPlan
    from trainweb.ir.shapes import TensorType
    from trainweb.model.graph import Tensor
    from trainweb.training.core import SessionCore

TIMED_S = 0.25
ROUND_MS, MIN_ROUNDS = 2.0, 5


def measure(files: Mapping[str, bytes], points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compile and step each model.

    Parameters
    ----------
    files
        Forward models by name.
    points
        "name" of a model, "feeds": dtype and shape of its inputs but the labels.
    """
    measure_one(files[points[0]["name"]], points[0]["feeds"])  # fills the caches
    return [measure_one(files[p["name"]], p["feeds"]) for p in points]


def measure_one(model: bytes, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Milliseconds to compile and to step (the fastest), and what the plans hold."""
    from trainweb.artifacts import LossType, OptimType, build_artifacts
    from trainweb.ir.shapes import TensorType
    from trainweb.training.core import SessionCore
    from trainweb.training.state import CheckpointState
    from trainweb.training.step_kind import TRAIN

    begin = time.perf_counter()
    built = build_artifacts(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    core = SessionCore(CheckpointState(built.contents()), *built.graphs)
    types = {n: TensorType(dtype, tuple(shape)) for n, (dtype, shape) in feeds.items()}
    for name, value in core.inputs["train"].items():
        shape: Any = value.shape or ()
        types.setdefault(name, TensorType(value.dtype, tuple(shape)))
    plans = [core.plan(TRAIN, types), core.optimizer_plan()]
    compile_ms = 1e3 * (time.perf_counter() - begin)
    zeros = {n: _zeros(n, t) for n, t in types.items()}
    core.step(TRAIN, zeros)
    step_ms = [time_plan(core, plan, zeros) for plan in plans]
    result = {
        "compile": compile_ms,
        "train": step_ms[0],
        "optimizer": step_ms[1],
        "nodes": len(built.graphs[0].nodes),
        "instructions": sum(len(p.plan.nodes) for p in plans),
        "arena": plans[0].plan.arena_bytes,
        "in_use": core.engine.bytes_in_use(),
    }
    core.release()
    return result


def time_plan(core: SessionCore, plan: LoadedPlan, feeds: Mapping[str, Tensor]) -> float:
    """Milliseconds of a run of a plan, without writing its feeds, whose memory it may reuse."""

    def write() -> None:
        core.host.write_feeds(plan, feeds)

    def write_and_run() -> None:
        write()
        core.host.run(plan)

    return max(0.0, fastest(write_and_run) - fastest(write))


def fastest(action: Callable[[], None]) -> float:
    """Milliseconds of an action: the fastest of rounds that are long beside the clock's resolution."""

    def clock(runs: int) -> float:
        begin = time.perf_counter()
        for _ in range(runs):
            action()
        return 1e3 * (time.perf_counter() - begin)

    runs = max(1, round(ROUND_MS / max(min(clock(1) for _ in range(MIN_ROUNDS)), 1e-3)))
    times: list[float] = []
    end = time.perf_counter() + TIMED_S
    while len(times) < MIN_ROUNDS or time.perf_counter() < end:
        times.append(clock(runs) / runs)
    return min(times)


def _zeros(name: str, t: TensorType) -> Tensor:
    from trainweb.model.graph import ITEM_SIZE, Tensor

    return Tensor(name, t.dtype, t.shape, bytes(t.size * ITEM_SIZE[t.dtype]))
