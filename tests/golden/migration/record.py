"""Record what onnxruntime and onnxruntime-training 1.19.2 give where rows of docs/migration.toml say `recorded`.

python tests/golden/migration/record.py, with the Python of onnxruntime-training, from the root of the project.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

MLP = Path("tests/golden/mlp")
X, Y = np.sin(np.arange(80, dtype=np.float32)).reshape(8, 10), np.arange(8) % 3


class Run:
    """A session of the real package, with the calls that rows make."""

    def __init__(self) -> None:
        self.state = CheckpointState.load_checkpoint(str(MLP / "checkpoint"))
        self.module = Module(str(MLP / "training_model.onnx"), self.state, str(MLP / "eval_model.onnx"))
        self.optimizer = Optimizer(str(MLP / "optimizer_model.onnx"), self.module)

    def train(self) -> list[float]:
        return [float(self.module.train()(X, Y))]

    def eval(self) -> list[float]:
        loss = [float(self.module.eval()(X, Y))]
        self.module.train()
        return loss

    def buffer(self) -> list[float]:
        return self.module.get_contiguous_parameters(trainable_only=False).numpy().tolist()

    def parameter(self, name: str) -> list[float]:
        return self.state.parameters[name].data.ravel().tolist()

    def rate(self) -> list[float]:
        return [self.optimizer.get_learning_rate()]


def web() -> dict[str, Any]:
    run, found = Run(), {}
    found["web: inputs"] = run.module.input_names()
    found["web: outputs"] = run.module.output_names()
    found["web: train"], found["web: train again"] = run.train(), run.train()
    found["web: eval"] = run.eval()
    run.optimizer.step()
    run.module.lazy_reset_grad()
    found["web: size"] = [run.module.get_parameters_size()]
    found["web: buffer"] = run.buffer()
    inference = onnxruntime.InferenceSession(str(MLP / "base.onnx"))
    found["web: inference"] = inference.run(None, {"x": X})[0].ravel().tolist()
    return found


def c() -> dict[str, Any]:
    run, found = Run(), {}
    found["C: train"], _ = run.train(), run.train()
    found["C: eval"] = run.eval()
    run.module.lazy_reset_grad()
    run.optimizer.set_learning_rate(0.5)
    found["C: rate"] = run.rate()
    # Its arguments are swapped on their way to C: these are 2 steps of warm-up of 6.
    scheduler = LinearLRScheduler(run.optimizer, 6, 2, 1.0)
    run.optimizer.set_learning_rate(1.0)
    run.optimizer.step()
    scheduler.step()
    found["C: scheduled rate"] = run.rate()
    found["C: size"] = [run.module.get_parameters_size(trainable_only=False)]
    found["C: buffer"] = run.buffer()
    found["C: parameter"] = run.parameter("fc1.bias")
    return found


def c_sharp() -> dict[str, Any]:
    run, found = Run(), {}
    found["C#: train"], found["C#: train again"] = run.train(), run.train()
    found["C#: eval"] = run.eval()
    run.optimizer.step()
    run.module.lazy_reset_grad()
    run.optimizer.set_learning_rate(0.25)
    found["C#: rate"] = run.rate()
    scheduler = LinearLRScheduler(run.optimizer, 4, 2, 0.1)
    run.optimizer.set_learning_rate(0.1)
    scheduler.step()
    found["C#: scheduled rate"] = run.rate()
    found["C#: buffer"] = run.buffer()
    found["C#: parameter"] = run.parameter("fc2.bias")
    return found


def main() -> None:
    found = {**web(), **c(), **c_sharp()}
    text = json.dumps(found, indent=0)
    Path(__file__).with_name("recorded.json").write_text(text + "\n")
    for name, values in found.items():
        print(name, values[:3], len(values))


main()
