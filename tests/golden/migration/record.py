"""Record what onnxruntime and onnxruntime-training 1.19.2 give where rows of docs/migration.toml say `recorded`.

python tests/golden/migration/record.py, with the Python of onnxruntime-training, from the root of the project.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.capi._pybind_state import GradientGraphBuilder
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

sys.path.insert(0, str(Path(__file__).parents[1] / "calls"))
from scenarios import X, Y, loss_model

MLP = Path("tests/golden/mlp").resolve()


def logits(model: str | bytes) -> list[float]:
    return onnxruntime.InferenceSession(model).run(None, {"x": X})[0].ravel().tolist()


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

    def gradient(self, name: str) -> list[float]:
        """After a train step that starts anew."""
        self.module.lazy_reset_grad()
        self.train()
        return self.state.parameters[name].grad.ravel().tolist()

    def exported(self) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/inference.onnx"
            self.module.export_model_for_inferencing(path, ["logits"])
            return logits(path)

    def saved(self, name: str) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            CheckpointState.save_checkpoint(self.state, f"{folder}/saved", include_optimizer_state=True)
            return CheckpointState.load_checkpoint(f"{folder}/saved").parameters[name].data.ravel().tolist()

    def rate(self) -> list[float]:
        return [self.optimizer.get_learning_rate()]


def web() -> dict[str, Any]:
    run, found = Run(), {}
    found["web: inputs"] = run.module.input_names()
    found["web: outputs"] = run.module.output_names()
    found["web: train"], found["web: train again"] = run.train(), run.train()
    found["web: eval"] = run.eval()
    run.optimizer.step()
    found["web: gradient"] = run.gradient("fc1.bias")
    found["web: size"] = [run.module.get_parameters_size()]
    found["web: buffer"] = run.buffer()
    inference = onnxruntime.InferenceSession(str(MLP / "base.onnx"))
    found["web: inference names"] = [v.name for v in (*inference.get_inputs(), *inference.get_outputs())]
    found["web: inference"] = logits(str(MLP / "base.onnx"))
    return found


def c() -> dict[str, Any]:
    run, found = Run(), {}
    found["C: train"], _ = run.train(), run.train()
    found["C: eval"] = run.eval()
    found["C: gradient"] = run.gradient("fc1.bias")
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
    found["C: shape"] = list(run.state.parameters["fc1.bias"].data.shape)
    run.state.properties["epoch"] = 3
    found["C: property"] = [run.state.properties["epoch"]]
    found["C: saved"], found["C: exported"] = run.saved("fc1.bias"), run.exported()
    return found


def c_sharp() -> dict[str, Any]:
    run, found = Run(), {}
    found["C#: train"], found["C#: train again"] = run.train(), run.train()
    found["C#: eval"] = run.eval()
    run.optimizer.step()
    found["C#: gradient"] = run.gradient("fc1.bias")
    run.optimizer.set_learning_rate(0.25)
    found["C#: rate"] = run.rate()
    scheduler = LinearLRScheduler(run.optimizer, 4, 2, 0.1)
    run.optimizer.set_learning_rate(0.1)
    scheduler.step()
    found["C#: scheduled rate"] = run.rate()
    found["C#: buffer"] = run.buffer()
    found["C#: parameter"] = run.parameter("fc2.bias")
    for name, value in (("steps", 7), ("best", 0.5), ("who", "me")):
        run.state.properties[name] = value
        found[f"C#: {name}"] = [run.state.properties[name]]
    run.state.parameters["fc2.bias"] = run.state.parameters["fc2.bias"].data + 1
    found["C#: updated"], found["C#: saved"] = run.parameter("fc2.bias"), run.saved("fc2.bias")
    found["C#: exported"] = run.exported()
    return found


def built(loss: Any, **arguments: Any) -> tuple[CheckpointState, Module]:
    """A module of artifacts that the real package makes."""
    with tempfile.TemporaryDirectory() as folder:
        model = onnx.load(str(MLP / "base.onnx"))
        names = [t.name for t in model.graph.initializer]
        arguments = {"requires_grad": names, "artifact_directory": folder} | arguments
        artifacts.generate_artifacts(model, loss=loss, optimizer=artifacts.OptimType.AdamW, **arguments)
        state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        return state, Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")


def api() -> dict[str, Any]:
    """Rows of onnxruntime.training.api, artifacts and onnxblock."""
    found: dict[str, Any] = {}
    state, module = built(artifacts.LossType.CrossEntropyLoss)
    loss = float(module(X, Y))
    found["api: built"] = [loss, *state.parameters["fc2.weight"].grad.ravel().tolist()]
    _, module = built(artifacts.LossType.CrossEntropyLoss, additional_output_names=["logits"])
    found["api: outputs"] = np.concatenate([np.ravel(a) for a in module.eval()(X, Y)]).tolist()
    _, module = built(onnxblock.loss.CrossEntropyLoss())
    found["api: block"] = [float(module(X, Y))]

    run = Run()
    found["api: train"] = run.train()
    found["api: names"] = [*run.module.input_names(), *run.module.output_names()]
    found["api: eval"] = run.eval()
    run.optimizer.step()
    found["api: buffer"] = run.buffer()
    found["api: gradient"] = run.gradient("fc1.bias")
    run.optimizer.set_learning_rate(0.5)
    found["api: rate"] = run.rate()
    found["api: size"] = [run.module.get_parameters_size()]
    found["api: parameters"] = sorted(name for name, _ in run.state.parameters)
    run.state.parameters["fc1.bias"] = np.zeros(16, np.float32)
    found["api: changed"] = run.buffer()
    found["api: exported"] = run.exported()
    other = Module(str(MLP / "training_model.onnx"), run.state)
    found["api: second module"] = [float(other(X, Y))]
    return found


def older() -> dict[str, Any]:
    """Gradient graphs, which are all that 1.19.2 has of the interface before onnxblock."""
    small = loss_model().SerializeToString()

    def gradient(model: bytes, y: str, x: str, loss: str, feeds: dict[str, Any]) -> list[float]:
        builder = GradientGraphBuilder(model, {y}, {x}, loss)
        builder.build()
        built = onnx.load_from_string(builder.get_model())
        if not loss:
            # Theirs does not declare it.
            built.graph.input.append(helper.make_tensor_value_info(f"{y}_grad", TensorProto.FLOAT, None))
        session = onnxruntime.InferenceSession(built.SerializeToString())
        return session.run([f"{x}_grad"], feeds)[0].ravel().tolist()

    base = (MLP / "base.onnx").read_bytes()
    feeds = {"x": X, "logits_grad": np.ones((8, 4), np.float32)}
    return {
        "older: gradient": gradient(small, "loss", "w", "loss", {"x": np.ones(4, np.float32)}),
        "older: gradient of logits": gradient(base, "logits", "fc1.weight", "", feeds),
    }


def main() -> None:
    found = {**web(), **c(), **c_sharp(), **api(), **older()}
    text = json.dumps(found, indent=0)
    Path(__file__).with_name("recorded.json").write_text(text + "\n")
    for name, values in found.items():
        print(name, values[:3], len(values))


main()
