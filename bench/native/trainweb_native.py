"""trainweb outside the browser (wasmtime): trainweb_native.py FOLDER THREADS SECONDS; prints one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from common import load, measure

from trainweb import CheckpointState, TrainingSession


def main() -> int:
    """Train the model of FOLDER."""
    folder, seconds = Path(sys.argv[1]), float(sys.argv[3])
    described, x, y, _ = load(folder)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    with TrainingSession(
        state, folder / "training_model.onnx", optimizer_model=folder / "optimizer_model.onnx"
    ) as session:
        x_name, y_name = session.input_names()
        (loss_name, *_) = session.output_names()
        session.set_learning_rate(described["adamw"]["lr"])
        nb = described["nb"]

        def step(k: int) -> float:
            loss = session.train_step({x_name: x[k % nb], y_name: y[k % nb]})[loss_name]
            session.optimizer_step()
            session.lazy_reset_grad()
            return float(loss)

        print(json.dumps(measure(step, seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
