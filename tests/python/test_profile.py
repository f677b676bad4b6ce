"""Profiles: every instruction is timed, once, and the trace is one that browsers read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import trainweb

GOLDEN = Path(__file__).parent.parent / "golden" / "mlp"


def test_a_profile_accounts_for_every_instruction() -> None:
    state = trainweb.CheckpointState.load_checkpoint(GOLDEN / "checkpoint")
    with trainweb.TrainingSession(state, GOLDEN / "training_model.onnx") as session:
        feeds = {"x": np.ones((8, 10), np.float32), "labels": np.zeros(8, np.int64)}
        profile = session.profile(feeds, runs=3)
    kernels = profile.by_kernel()
    assert sum(line.startswith("gemm_f32") for line, _ in profile) == 8
    assert "gemm_f32" in kernels and all(ms >= 0 for ms in kernels.values())
    assert profile.total > 0 and abs(profile.total - sum(profile.by_node().values())) < 1e-9
    events = json.loads(profile.chrome_trace())["traceEvents"]
    assert len(events) == len(profile) and events[-1]["ts"] >= events[0]["ts"]
    assert any("Gemm_1" in e["args"]["node"] for e in events)
    assert "gemm_f32" in str(profile)
