"""Data and timing for the native contenders; needs numpy only, for they run in interpreters of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

N_LOSSES = 8


def load(folder: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Manifest, inputs (int64 where they are tokens), int64 labels, initial parameters."""
    described = json.loads((folder / "manifest.json").read_text())
    raw = (folder / "data.bin").read_bytes()
    nb, xsize, ysize = described["nb"], described["xsize"], described["ysize"]
    x = np.frombuffer(raw, described["xdtype"], nb * xsize).reshape([nb, *described["xshape"]]).copy()
    y = np.frombuffer(raw, np.int32, nb * ysize, 4 * nb * xsize).reshape(nb, ysize).astype(np.int64)
    weights = np.fromfile(folder / "init.bin", np.float32)
    parameters = {
        p["name"]: weights[p["offset"] : p["offset"] + p["size"]].reshape(p["shape"]).copy()
        for p in described["params"]
    }
    return described, x.astype(np.int64) if described["xdtype"] == "int32" else x, y, parameters


def measure(step: Callable[[int], float], seconds: float) -> dict[str, Any]:
    """Losses of the first steps, then the fastest and the median step in ms, timed for `seconds` after a warm-up."""
    losses = [step(k) for k in range(N_LOSSES)]
    k = N_LOSSES
    times: list[float] = []
    for timed in (False, True):
        end = time.perf_counter() + (seconds if timed else seconds / 2)
        while time.perf_counter() < end:
            start = time.perf_counter()
            step(k)
            times.append(1e3 * (time.perf_counter() - start))
            k += 1
        if not timed:
            times.clear()
    times.sort()
    return {"losses": losses, "min": times[0], "median": times[len(times) // 2], "n": len(times)}
