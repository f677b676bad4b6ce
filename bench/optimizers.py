"""A step of every optimizer on matrices, natively on one thread, in turns: bytes that it must move, and how fast.

.venv/bin/python bench/optimizers.py [--rounds 20] [--size 512] [--count 16]

`bench/kernels/bench_kernels.py memory` times single kernels in Chromium; Adafactor and Muon are made of several. Words
that must move are those of parameters, gradients and moments, read or written once each. SGD's rate stands for what
memory allows.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import trainweb
from trainweb.artifacts import build_artifacts

WORDS = {
    "SGD": 3,
    "Lion": 5,
    "Adagrad": 5,
    "RMSProp": 5,
    "Adam": 7,
    "AdamW": 7,
    "Adadelta": 7,
    "Lamb": 7,
    "Adafactor": 3,
    "Muon": 5,
}
"""Of an element of a matrix; rows and columns, which Adafactor keeps, are next to nothing."""


def model(size: int, count: int) -> Any:
    """x W1 + x W2 + ..., all square: gradients are of one size, none so small that its square is subnormal."""
    names = [f"w{k}" for k in range(count)]
    nodes = [helper.make_node("MatMul", ["x", name], [f"y{k}"]) for k, name in enumerate(names)]
    nodes.append(helper.make_node("Sum", [f"y{k}" for k in range(count)], ["y"]))
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((size, size)).astype(np.float32) / size**0.5 for _ in names]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
        [numpy_helper.from_array(w, name) for w, name in zip(weights, names, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session_of(made: Any, optimizer: Any, **settings: Any) -> trainweb.TrainingSession:
    """A session with gradients."""
    files = build_artifacts(made, loss="MSELoss", optimizer=optimizer, **settings)
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    session = trainweb.TrainingSession(state, files.training_model, None, files.optimizer_model)
    session.train_step({n: np.ones(session.input_metadata()[0].shape, np.float32) for n in session.input_names()}, [])
    return session


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--count", type=int, default=16)
    given = parser.parse_args()
    made = model(given.size, given.count)
    words: dict[str, int] = dict(WORDS)
    sessions = {name: session_of(made, name) for name in WORDS}
    sessions["AdamW, ema"] = session_of(made, "AdamW", ema={"decay": 0.999})
    words["AdamW, ema"] = WORDS["AdamW"] + 2
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(given.rounds):
        for name, session in sessions.items():
            start = perf_counter()
            session.optimizer_step()
            times[name].append(perf_counter() - start)
    elements = given.count * given.size**2
    rates = {name: 4 * words[name] * elements / min(t) / 1e9 for name, t in times.items()}
    for name, rate in rates.items():
        share = f"{rate / rates['SGD']:5.2f} of SGD"
        print(f"{name:12} {1e3 * min(times[name]):8.2f} ms {words[name]} words {rate:5.1f} GB/s {share}")


if __name__ == "__main__":
    main()
