"""Milliseconds of every instruction of a training step: runs natively and in Pyodide; needs trainweb alone."""

from __future__ import annotations

import struct
from typing import Any


def measure(files: dict[str, bytes], manifest: dict[str, Any], runs: int) -> dict[str, Any]:
    """Profile the train and the optimizer plan.

    Parameters
    ----------
    files
        training_model, optimizer_model, checkpoint, data.bin of one benchmark model.

    Returns
    -------
    dict
        "train" and "optimizer": lists of (disassembly, node, ms); "in_use": bytes of kernel memory; "total": wall ms
        of a step; "build" of the kernels.
    """
    import time

    from trainweb.ir.shapes import TensorType
    from trainweb.model.graph import Tensor
    from trainweb.model.reader import read_model
    from trainweb.training.core import SessionCore
    from trainweb.training.state import CheckpointState
    from trainweb.training.step_kind import TRAIN

    graphs = [read_model(files[n]) for n in ("training_model", "optimizer_model")]
    core = SessionCore(CheckpointState.load_checkpoint(files["checkpoint"]), graphs[0], None, graphs[1])
    try:
        feeds = {t.name: t for t in _feeds(core, files["data"], manifest, Tensor)}
        times = []
        for _ in range(runs + 3):
            begin = time.perf_counter()
            core.step(TRAIN, feeds)
            core.optimizer_step()
            core.lazy_reset_grad()
            times.append(1e3 * (time.perf_counter() - begin))
        plans = {
            "train": core.plan(TRAIN, {n: TensorType(t.dtype, t.shape) for n, t in feeds.items()}),
            "optimizer": core.optimizer_plan(),
        }
        found: dict[str, Any] = {}
        for kind, plan in plans.items():
            times_each = fastest(core, plan, feeds if kind == "train" else {}, runs)
            found[kind] = list(zip(plan.plan.text, plan.plan.nodes, times_each, strict=True))
        return {**found, "in_use": core.engine.bytes_in_use(), "total": min(times), "build": core.engine.build}
    finally:
        core.release()


def fastest(core: Any, plan: Any, feeds: dict[str, Any], runs: int) -> list[float]:
    """The fastest of `runs` runs, for every instruction."""
    nbytes = 8 * len(plan.plan.nodes)
    rows = []
    for _ in range(runs):
        times = core.engine.alloc(nbytes, zeroed=True)
        try:
            rows.append(core.host.profile(plan, feeds, 1, times))
        finally:
            core.engine.free(times)
    return [min(column) for column in zip(*rows, strict=True)]


def _feeds(core: Any, data: bytes, manifest: dict[str, Any], tensor: Any) -> list[Any]:
    x_name, y_name = core.inputs["train"]
    nb, xsize, ysize = manifest["nb"], manifest["xsize"], manifest["ysize"]
    x, y = data[: 4 * xsize], data[4 * nb * xsize :][: 4 * ysize]
    x_dtype = "float32"
    if manifest["xdtype"] == "int32":
        x, x_dtype = _widen(x), "int64"
    return [
        tensor(x_name, x_dtype, tuple(manifest["xshape"]), x),
        tensor(y_name, "int64", (ysize,), _widen(y)),
    ]


def _widen(data: bytes) -> bytes:
    values = struct.unpack(f"<{len(data) // 4}i", data)
    return struct.pack(f"<{len(values)}q", *values)
