"""LoRA of rank 8 against training all of model E: time of a step and memory, natively on one thread, in turns.

.venv/bin/python bench/lora.py [--rounds 30]
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np
from networks import MODELS, batches

import trainweb
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.lora import inject

BARS = {"time": 0.75, "memory": 0.5}
"""Shares of a full step that one with adapters takes at most."""
SETTINGS: dict[str, Any] = {"loss": "CrossEntropyLoss", "optimizer": "AdamW"}


def session_of(made: Artifacts) -> trainweb.TrainingSession:
    """A session that trains."""
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    return trainweb.TrainingSession(state, made.training_model, None, made.optimizer_model)


def step(session: trainweb.TrainingSession, feeds: dict[str, np.ndarray], fetch: list[str]) -> float:
    """Milliseconds of a step."""
    start = perf_counter()
    session.train_step(feeds, fetch)
    session.optimizer_step()
    session.lazy_reset_grad()
    return 1e3 * (perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    net = MODELS["E"]()
    model = net.model().SerializeToString()
    x, y = batches(net, 1, 5)
    adapted = inject(model, rank=8)
    trainable = [p.name for p in net.parameters if p.trainable]
    sessions = {
        "full": session_of(build_artifacts(model, requires_grad=trainable, **SETTINGS)),
        "lora": session_of(adapted.build_artifacts(**SETTINGS)),
    }
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(rounds):
        for name, session in sessions.items():
            feeds: dict[str, Any] = dict(
                zip(session.input_names(), (x[0].astype(np.int64), y[0].astype(np.int64)), strict=True)
            )
            times[name].append(step(session, feeds, session.output_names()[:1]))
    print(f"adapted: {', '.join(layer.module for layer in adapted.layers)}")
    memory, whole = {}, {}
    for name, session in sessions.items():
        m = session.memory()
        # The base's parameters exist with and without adapters.
        memory[name] = m.gradients + m.moments + m.arena + m.prepared
        whole[name] = memory[name] + m.parameters
        print(
            f"{name}: {min(times[name]):.2f} ms; arena {m.arena}, gradients {m.gradients}, moments {m.moments}, "
            f"prepared {m.prepared}, parameters {m.parameters} bytes"
        )
    shares = {"time": min(times["lora"]) / min(times["full"]), "memory": memory["lora"] / memory["full"]}
    for what, share in shares.items():
        print(f"{what}: {share:.3f} of a full step; the bar is {BARS[what]}")
    print(f"memory with the parameters: {whole['lora'] / whole['full']:.3f} of a full step")


if __name__ == "__main__":
    main()
