"""Profiles: every instruction is timed, once, and the trace is one that browsers read."""

import json
from pathlib import Path

import numpy as np
from tests.control.test_control_flow import recurrent
from tests.python.sessions import take_steps

import trainweb
from trainweb.artifacts import OptimType, build_artifacts

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


def test_a_loop_is_one_call_in_explain_and_its_body_in_profiles() -> None:
    steps = 1000
    built = build_artifacts(recurrent(steps), requires_grad=["w"], optimizer=OptimType.SGD)
    x = np.random.default_rng(4).standard_normal((steps, 3)).astype(np.float32)
    losses = []
    for profiled in (False, True):
        with trainweb.TrainingSession(**built) as session:
            session.set_learning_rate(0.5)
            if profiled:
                profile = session.profile({"x": x}, runs=2)
                text = session.explain({"x": x})
                session.lazy_reset_grad()
            losses += take_steps(session, {"x": x}, 2)
    assert losses[:2] == losses[2:]
    assert text.splitlines()[1].startswith(f"loop(trips={steps}, ") and "unroll/Repeat" in text
    # Forward and backward, each with its body once, however often that runs.
    for kernel, count in (("loop_begin", 2), ("loop_end", 2)):
        assert sum(line.startswith(kernel) for line, _ in profile) == count, kernel
    nodes = profile.by_node()
    assert {"Tanh node making 'next'", "MatMul node making 'm'"} <= set(nodes)
    assert abs(profile.total - sum(nodes.values())) < 1e-6 * profile.total
