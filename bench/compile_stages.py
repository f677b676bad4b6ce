"""Time of the stages of compilation, natively and in Pyodide; needs trainweb alone.

`measure` takes a forward model from its bytes to a session that is ready for its first step. It runs once cold, filling
modules and caches, then `repeat` times. Stages are the functions below, each without the time of those inside it.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any

STAGES: dict[str, str] = {
    "trainweb.artifacts.builder:read_model": "read",
    "trainweb.artifacts.builder:build_artifacts": "artifacts",
    "trainweb.artifacts.builder:build_training_models": "differentiate",
    "trainweb.training.models:compile_model": "compile",
    "trainweb.compiler.compile:_Compilation.infer": "infer",
    "trainweb.compiler.compile:_Compilation.lower": "lower",
    "trainweb.backend.wasm.compile:place": "place",
    "trainweb.backend.wasm.compile:encode": "encode",
    "trainweb.backend.wasm.host:PlanHost.load": "load",
}
"""Functions, where they are called from, and the stage their own time counts for; each pass is a stage, too."""
BEFORE_PASSES = ("read", "artifacts", "differentiate", "session", "compile", "infer", "lower")
AFTER_PASSES = ("place", "encode", "load")


Feeds = Mapping[str, tuple[str, tuple[int, ...]]]


class Stopwatch:
    """Time by stage; a stage pauses while another runs inside it."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._running: list[str] = []
        self._since = 0.0

    def switch(self, stage: str | None) -> None:
        """Enter a stage (None: leave the innermost)."""
        now = time.perf_counter()
        if self._running:
            name = self._running[-1]
            self.ms[name] = self.ms.get(name, 0.0) + 1e3 * (now - self._since)
        if stage is None:
            self._running.pop()
        else:
            self._running.append(stage)
        self._since = time.perf_counter()

    def timed(self, stage: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, counted for a stage."""

        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.switch(stage)
            try:
                return fn(*args, **kwargs)
            finally:
                self.switch(None)

        return call


def instrument(watch: Stopwatch) -> tuple[list[Callable[[], None]], list[str]]:
    """Time the functions of STAGES and the passes; returns the undo list, and the names that no longer exist."""
    undo: list[Callable[[], None]] = []
    gone = []
    for where, stage in STAGES.items():
        module_name, path = where.split(":")
        owner: Any = importlib.import_module(module_name)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        original = getattr(owner, name, None)
        if original is None:
            gone.append(where)
            continue
        setattr(owner, name, watch.timed(stage, original))
        undo.append(partial(setattr, owner, name, original))
    pipeline: Any = importlib.import_module("trainweb.compiler.pipeline")
    passes = pipeline.PASSES
    pipeline.PASSES = tuple(replace(each, run=watch.timed(each.name, each.run)) for each in passes)
    undo.append(partial(setattr, pipeline, "PASSES", passes))
    return undo, gone


def order() -> list[str]:
    """All stages, as they come."""
    pipeline: Any = importlib.import_module("trainweb.compiler.pipeline")
    return [*BEFORE_PASSES, *(each.name for each in pipeline.PASSES), *AFTER_PASSES]


def open_session(watch: Stopwatch, model: bytes, feeds: Feeds, external: Mapping[str, bytes] | None = None) -> Any:
    """The way from a forward model, with its external data, to the plans of a step; returns the session's core."""
    from trainweb.artifacts import LossType, OptimType, builder
    from trainweb.ir.shapes import TensorType
    from trainweb.training.core import SessionCore
    from trainweb.training.state import CheckpointState
    from trainweb.training.step_kind import TRAIN

    built = builder.build_artifacts(
        model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, external_data=external
    )
    create = watch.timed("session", lambda: SessionCore(CheckpointState(built.contents()), *built.graphs))
    core = create()
    types = {name: TensorType(dtype, tuple(shape)) for name, (dtype, shape) in feeds.items()}
    sizes = {d: size for n, t in types.items() for d, size in zip(core.inputs["train"][n].shape, t.shape, strict=True)}
    missing = {
        n: TensorType(v.dtype, tuple(sizes.get(dim, dim) for dim in v.shape))
        for n, v in core.inputs["train"].items()
        if n not in types
    }
    watch.timed("session", core.plan)(TRAIN, {**types, **missing})
    watch.timed("session", core.optimizer_plan)()
    return core


def check(model: bytes, external: Mapping[str, bytes] | None = None) -> float:
    """Milliseconds of what `trainweb.check` does."""
    from trainweb.artifacts import LossType, OptimType
    from trainweb.backend.wasm.engine import get_engine
    from trainweb.training.debug.check import report_on

    choices = (None, None, LossType.CrossEntropyLoss, OptimType.AdamW)
    begin = time.perf_counter()
    report = report_on(model, choices, {"external_data": external}, ({}, {}), get_engine())
    if report.error:
        raise RuntimeError(report.error)
    return 1e3 * (time.perf_counter() - begin)


def once(model: bytes, feeds: Feeds, external: Mapping[str, bytes] | None = None) -> dict[str, Any]:
    """One compilation: total, stages, and counts of nodes."""
    from trainweb.model.reader import read_model

    watch = Stopwatch()
    undo, gone = instrument(watch)
    begin = time.perf_counter()
    try:
        core = open_session(watch, model, feeds, external)
    finally:
        for restore in undo:
            restore()
    total = 1e3 * (time.perf_counter() - begin)
    nodes = len(read_model(model, external_data=external).nodes)
    training = core.models.graphs["train"]
    assert training is not None
    instructions = sum(len(p.plan.nodes) for p in core.host.loaded)
    core.release()
    return {
        "total": total,
        "stages": watch.ms,
        "nodes": nodes,
        "training_nodes": len(training.nodes),
        "instructions": instructions,
        "gone": gone,
    }


def measure(files: Mapping[str, bytes], feeds: Feeds, repeat: int = 3) -> dict[str, Any]:
    """Cold and (fastest of `repeat`) warm compilation of files["model"], whose external data are the other files."""
    external = {name: data for name, data in files.items() if name != "model"}
    model = files["model"]
    begin = time.perf_counter()
    for module in ("trainweb", "trainweb.training.page.bridge", "trainweb.artifacts", "trainweb.backend.wasm.engine"):
        importlib.import_module(module)
    importing = 1e3 * (time.perf_counter() - begin)
    begin = time.perf_counter()
    importlib.import_module("trainweb.backend.wasm.engine").get_engine()
    engine = 1e3 * (time.perf_counter() - begin)
    cold = once(model, feeds, external)
    warm = min((once(model, feeds, external) for _ in range(repeat)), key=lambda r: r["total"])
    checking = min(check(model, external) for _ in range(repeat))
    return {"import": importing, "engine": engine, "cold": cold, "warm": warm, "per_node": per_node(warm, checking)}


def per_node(found: Mapping[str, Any], checking: float) -> dict[str, float]:
    """Milliseconds for each node of the training model, by what they are spent on.

    "checking" is `trainweb.check`, which builds and plans, too; "building" is from the file to the training, eval and
    optimizer model; "passes" are the passes of the pipeline; "planning" is all other compilation.
    """
    stages, nodes = found["stages"], found["training_nodes"]
    building = sum(stages.get(s, 0.0) for s in BEFORE_PASSES[:3])
    passes = sum(stages.get(s, 0.0) for s in order() if s not in (*BEFORE_PASSES, *AFTER_PASSES))
    times = {
        "checking": checking,
        "building": building,
        "passes": passes,
        "planning": sum(stages.values()) - building - passes,
    }
    return {what: ms / nodes for what, ms in times.items()}
