"""onnxruntime-training on the machine itself: ort_native.py FOLDER THREADS SECONDS [ARTIFACTS]; prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnxruntime
from common import load, measure
from onnxruntime.training.api import CheckpointState, Module, Optimizer


def main() -> int:
    """Train the model of FOLDER, with the artifacts there or in ARTIFACTS."""
    folder, threads, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    artifacts = Path(sys.argv[4]) if len(sys.argv) > 4 else folder
    onnxruntime.set_default_logger_severity(3)
    described, x, y, _ = load(folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    state = CheckpointState.load_checkpoint(str(artifacts / "checkpoint"))
    own = described["ort"] if artifacts is folder else ""
    module = Module(str(artifacts / own / "training_model.onnx"), state, device="cpu", session_options=options)
    optimizer = Optimizer(str(artifacts / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(described["adamw"]["lr"])
    module.train()
    nb = described["nb"]

    def step(k: int) -> float:
        loss = module(x[k % nb], y[k % nb])
        optimizer.step()
        module.lazy_reset_grad()
        return float(loss)

    print(json.dumps(measure(step, seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
