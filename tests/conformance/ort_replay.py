"""Replay recorded traces on ONNX Runtime training itself, with artifacts of ours.

Run by an interpreter that has onnxruntime-training 1.19.2: `python ort_replay.py GOLDEN_CASE
ARTIFACTS ...` (pairs of folders); prints one JSON object per case: how many results were compared,
and the worst deviation in units of the recorded tolerance, or what went wrong. It needs numpy and
onnxruntime only.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import _pybind_state as capi
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer


class OrtReplay:
    """One golden case on ONNX Runtime training."""

    def __init__(self, folder: Path, artifacts: Path, scratch: Path) -> None:
        self.folder, self.artifacts, self.scratch = folder, artifacts, scratch
        self.trace = json.loads((folder / "trace.json").read_text())
        self.inputs = np.load(folder / "inputs.npz")
        self.expected = np.load(folder / "expected.npz")
        self.compared, self.worst = 0, 0.0
        self.buffers: list[np.ndarray] = []

    def run(self) -> dict[str, Any]:
        """Replay every call; raises where a result differs."""
        self.open(self.artifacts / self.trace["start_checkpoint"])
        for position, call in enumerate(self.trace["trace"]):
            results = getattr(self, "do_" + call["op"])(call) or {}
            for name, key in call.get("results", {}).items():
                self.compare(position, key, name.split(".")[0], results[name])
        return {"compared": self.compared, "worst": self.worst}

    def open(self, checkpoint: Path) -> None:
        self.state = CheckpointState.load_checkpoint(str(checkpoint))
        model = {name: str(self.artifacts / f"{name}.onnx") for name in ("training_model", "eval_model")}
        self.module = Module(model["training_model"], self.state, model["eval_model"])
        # Made at first use: ONNX Runtime crashes when one of a nominal state is asked for its rate.
        self.lazy_optimizer: Any = None
        self.scheduler: Any = None

    @property
    def optimizer(self) -> Any:
        if self.lazy_optimizer is None:
            self.lazy_optimizer = Optimizer(str(self.artifacts / "optimizer_model.onnx"), self.module)
        return self.lazy_optimizer

    def compare(self, position: int, key: str, kind: str, got: Any) -> None:
        want = self.expected[key]
        tolerance = self.trace["tolerance"].get(kind, {"rtol": 1e-4, "atol": 5e-6})
        got = np.asarray(got, dtype=np.float64).reshape(want.shape)
        bound = tolerance["atol"] + tolerance["rtol"] * np.abs(want)
        worst = float((np.abs(got - want) / bound).max()) if want.size else 0.0
        self.compared += 1
        self.worst = max(self.worst, worst)
        if not worst <= 1.0:
            raise AssertionError(f"call {position}: {key} is {worst:.2f} times the tolerance off")

    def feed(self, feed: str) -> dict[str, np.ndarray]:
        prefix = feed + "."
        return {k[len(prefix) :]: self.inputs[k] for k in self.inputs.files if k.startswith(prefix)}

    def step(self, call: dict[str, Any], kind: str) -> dict[str, Any]:
        feeds = self.feed(call["feed"])
        results = self.module(*(feeds[name] for name in self.module.input_names()))
        results = results if isinstance(results, (list, tuple)) else [results]
        return {f"out.{n}": r for n, r in zip(self.trace[f"{kind}_output_names"], results, strict=True)}

    def do_train(self, call: dict[str, Any]) -> dict[str, Any]:
        self.module.train()
        out = self.step(call, "training")
        for name, parameter in self.state.parameters:
            if parameter.requires_grad:
                out[f"grad.{name}"] = parameter.grad
        return out

    def do_eval(self, call: dict[str, Any]) -> dict[str, Any]:
        self.module.eval()
        return self.step(call, "eval")

    def parameters(self, trainable_only: bool) -> np.ndarray:
        return self.module.get_contiguous_parameters(trainable_only).numpy()

    def do_optimizer_step(self, call: dict[str, Any]) -> dict[str, Any]:
        self.optimizer.step()
        return {"params_trainable": self.parameters(True)}

    def do_lazy_reset_grad(self, call: dict[str, Any]) -> None:
        self.module.lazy_reset_grad()

    def do_set_lr(self, call: dict[str, Any]) -> dict[str, Any]:
        self.optimizer.set_learning_rate(call["value"])
        return self.do_get_lr(call)

    def do_get_lr(self, call: dict[str, Any]) -> dict[str, Any]:
        return {"lr": self.optimizer.get_learning_rate()}

    def do_register_linear_lr_scheduler(self, call: dict[str, Any]) -> None:
        # This class takes its two counts the wrong way round.
        self.scheduler = LinearLRScheduler(
            self.optimizer, call["total_step_count"], call["warmup_step_count"], call["initial_lr"]
        )

    def do_scheduler_step(self, call: dict[str, Any]) -> dict[str, Any]:
        self.scheduler.step()
        return self.do_get_lr(call)

    def do_get_parameters(self, call: dict[str, Any]) -> dict[str, Any]:
        return {"params_all": self.parameters(False), "params_trainable": self.parameters(True)}

    def do_load_parameters(self, call: dict[str, Any]) -> None:
        device = capi.OrtDevice(capi.OrtDevice.cpu(), capi.OrtDevice.default_memory(), 0)
        # The OrtValue does not keep the array alive.
        self.buffers.append(self.feed(call["feed"])["buffer"])
        buffer = capi.OrtValue.ortvalue_from_numpy(self.buffers[-1], device)
        self.module.copy_buffer_to_parameters(buffer, call["trainable_only"])

    def do_update_parameter(self, call: dict[str, Any]) -> None:
        self.state.parameters[call["name"]] = self.feed(call["feed"])["value"]

    def do_set_property(self, call: dict[str, Any]) -> None:
        self.state.properties[call["name"]] = call["value"]

    def do_get_properties(self, call: dict[str, Any]) -> None:
        got = dict(iter(self.state.properties))
        assert got == call["value"], f"properties {got}, recorded {call['value']}"

    def do_save_checkpoint(self, call: dict[str, Any]) -> None:
        path = self.scratch / call["file"]
        CheckpointState.save_checkpoint(self.state, str(path), call["include_optimizer_state"])

    def do_load_checkpoint(self, call: dict[str, Any]) -> dict[str, Any]:
        self.open(self.scratch / call["file"])
        return {**self.do_get_lr(call), "params_all": self.parameters(False)}

    def do_export(self, call: dict[str, Any]) -> dict[str, Any]:
        path = str(self.scratch / "inference.onnx")
        self.module.export_model_for_inferencing(path, call["outputs"])
        feeds = self.feed(call["feed"])
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        results = session.run(call["outputs"], {i.name: feeds[i.name] for i in session.get_inputs()})
        return {f"out.{n}": r for n, r in zip(call["outputs"], results, strict=True)}


def main(arguments: list[str]) -> None:
    """Replay every (case, artifacts) pair."""
    for case, artifacts in zip(arguments[::2], arguments[1::2], strict=True):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                result = OrtReplay(Path(case), Path(artifacts), Path(scratch)).run()
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"case": Path(case).name, **result}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
