"""Replay a recorded trace of ONNX Runtime training call by call and compare every result.

The same code runs under pytest (wasmtime) and inside Pyodide in a browser; it needs numpy and trainweb only.
The format of a case is described in tests/golden/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import trainweb

CASES = (
    "mlp",
    "mlp_sgd_mse",
    "cnn",
    "transfer",
    "bce",
    "l1",
    "transformer",
    "nominal",
    "scheduler_accumulation",
    "custom_block",
)


class Mismatch(AssertionError):
    """A result differs from the recorded one."""


class Replay:
    """One case, replayed.

    Parameters
    ----------
    folder
        The golden case.
    artifacts
        Models and checkpoint to train instead of the recorded ones; None for the recorded ones.
    """

    def __init__(self, folder: Path, artifacts: Any = None) -> None:
        self.folder = Path(folder)
        self.trace = json.loads((self.folder / "trace.json").read_text())
        self.inputs = np.load(self.folder / "inputs.npz")
        self.expected = np.load(self.folder / "expected.npz")
        self.artifacts = artifacts
        self.saved: dict[str, bytes] = {}
        self.compared = 0
        self.worst: dict[str, float] = {}
        self.session: trainweb.TrainingSession | None = None

    # Set-up.

    def model(self, name: str) -> bytes:
        if self.artifacts is not None:
            return getattr(self.artifacts, name)
        return (self.folder / f"{name}.onnx").read_bytes()

    def checkpoint(self, file: str) -> bytes:
        """Bytes of a checkpoint: one saved in this replay, an own artifact, or a recorded one."""
        if file in self.saved:
            return self.saved[file]
        if self.artifacts is not None and file in ("checkpoint", "nominal_checkpoint"):
            return getattr(self.artifacts, file)
        return (self.folder / file).read_bytes()

    def open(self, checkpoint: bytes) -> None:
        """A new session on `checkpoint`."""
        if self.session is not None:
            self.session.release()
        state = trainweb.CheckpointState.load_checkpoint(checkpoint)
        self.state = state
        self.session = trainweb.TrainingSession(
            state, self.model("training_model"), self.model("eval_model"), self.model("optimizer_model")
        )
        if self.artifacts is None:
            t = self.trace
            for got, want in (
                (self.session.input_names(), t["training_input_names"]),
                (self.session.output_names(), t["training_output_names"]),
                (self.session.input_names(False), t["eval_input_names"]),
                (self.session.output_names(False), t["eval_output_names"]),
            ):
                if got != want:
                    raise Mismatch(f"names {got}, recorded {want}")

    def feeds(self, feed: str) -> dict[str, np.ndarray]:
        """Arrays of a feed by input name."""
        prefix = feed + "."
        return {k[len(prefix) :]: self.inputs[k] for k in self.inputs.files if k.startswith(prefix)}

    # Comparison.

    def compare(self, key: str, kind: str, got: Any) -> None:
        """Raise unless `got` is within the case's tolerance of the recorded result."""
        want = self.expected[key]
        tolerance = self.trace["tolerance"].get(kind, {"rtol": 1e-4, "atol": 5e-6})
        got = np.asarray(got)
        if got.size != want.size:
            raise Mismatch(f"{key}: {got.size} elements, recorded {want.size}")
        got = got.reshape(want.shape)
        bound = tolerance["atol"] + tolerance["rtol"] * np.abs(want)
        excess = np.abs(got.astype(np.float64) - want) / bound
        worst = float(excess.max()) if excess.size else 0.0
        self.compared += 1
        self.worst[kind] = max(self.worst.get(kind, 0.0), worst)
        if not worst <= 1.0:
            at = np.unravel_index(int(np.nanargmax(excess)), want.shape)
            raise Mismatch(f"{key}: {got[at]} at {at}, recorded {want[at]}: {worst:.2f} times the tolerance")

    # Calls.

    def run(self) -> Replay:
        self.open(self.checkpoint(self.trace["start_checkpoint"]))
        if self.artifacts is None:
            self._check_layout()
        for position, call in enumerate(self.trace["trace"]):
            handler: Callable[..., dict[str, Any] | None] = getattr(self, "do_" + call["op"])
            try:
                results = handler(call) or {}
            except Exception as e:
                raise Mismatch(f"call {position} ({call['op']}): {type(e).__name__}: {e}") from e
            for name, key in call.get("results", {}).items():
                if name in results:
                    self.compare(key, name.split(".")[0], results[name])
                else:
                    raise Mismatch(f"call {position} ({call['op']}) gave no {name}")
        assert self.session is not None
        self.session.release()
        return self

    def _check_layout(self) -> None:
        core = self.session._core  # type: ignore[union-attr]
        for p in self.trace["parameters"]:
            slot = core.layout.slots[p["name"]]
            if slot.offset != p["offset_all"] or list(slot.shape) != p["shape"]:
                raise Mismatch(f"parameter {p['name']} lies at {slot.offset}, recorded {p['offset_all']}")
        sizes = self.trace["parameters_size"]
        if (core.layout.size, core.layout.trainable_size) != (sizes["all"], sizes["trainable"]):
            raise Mismatch(f"sizes {core.layout.size}, {core.layout.trainable_size}, recorded {sizes}")

    def _outputs(self, kind: str, results: dict[str, np.ndarray]) -> dict[str, Any]:
        # Own artifacts may name the loss otherwise: outputs correspond by position.
        names = self.trace[f"{kind}_output_names"]
        return {f"out.{name}": value for name, value in zip(names, results.values(), strict=True)}

    def do_train(self, call: dict[str, Any]) -> dict[str, Any]:
        out = self._outputs("training", self.session.train_step(self.feeds(call["feed"])))
        for name, parameter in self.state.parameters.items():
            if parameter.requires_grad:
                out[f"grad.{name}"] = parameter.grad
        return out

    def do_eval(self, call: dict[str, Any]) -> dict[str, Any]:
        return self._outputs("eval", self.session.eval_step(self.feeds(call["feed"])))

    def do_optimizer_step(self, call: dict[str, Any]) -> dict[str, Any]:
        self.session.optimizer_step()
        return {"params_trainable": self.session.get_contiguous_parameters(True)}

    def do_lazy_reset_grad(self, call: dict[str, Any]) -> None:
        self.session.lazy_reset_grad()

    def do_set_lr(self, call: dict[str, Any]) -> dict[str, Any]:
        self.session.set_learning_rate(call["value"])
        return {"lr": self.session.get_learning_rate()}

    def do_get_lr(self, call: dict[str, Any]) -> dict[str, Any]:
        return {"lr": self.session.get_learning_rate()}

    def do_register_linear_lr_scheduler(self, call: dict[str, Any]) -> None:
        self.session.register_linear_lr_scheduler(
            call["warmup_step_count"], call["total_step_count"], call["initial_lr"]
        )

    def do_scheduler_step(self, call: dict[str, Any]) -> dict[str, Any]:
        self.session.scheduler_step()
        return {"lr": self.session.get_learning_rate()}

    def do_get_parameters(self, call: dict[str, Any]) -> dict[str, Any]:
        return {
            "params_all": self.session.get_contiguous_parameters(False),
            "params_trainable": self.session.get_contiguous_parameters(True),
        }

    def do_load_parameters(self, call: dict[str, Any]) -> None:
        self.session.load_parameters_buffer(self.feeds(call["feed"])["buffer"], call["trainable_only"])

    def do_update_parameter(self, call: dict[str, Any]) -> None:
        self.session.update_parameter(call["name"], self.feeds(call["feed"])["value"])

    def do_set_property(self, call: dict[str, Any]) -> None:
        self.state.properties[call["name"]] = call["value"]

    def do_get_properties(self, call: dict[str, Any]) -> None:
        got = dict(self.state.properties.items())
        if got != call["value"]:
            raise Mismatch(f"properties {got}, recorded {call['value']}")

    def do_save_checkpoint(self, call: dict[str, Any]) -> None:
        data = trainweb.CheckpointState.save_checkpoint(
            self.state, include_optimizer_state=call["include_optimizer_state"]
        )
        self.saved[call["file"]] = data
        recorded = self.folder / call["file"]
        if recorded.exists():
            self._compare_checkpoints(data, recorded.read_bytes())

    def _compare_checkpoints(self, ours: bytes, recorded: bytes) -> None:
        from trainweb.checkpoint import read_checkpoint
        from trainweb.training.arrays import to_numpy

        a, b = read_checkpoint(ours), read_checkpoint(recorded)
        tolerance = self.trace["tolerance"]["params_all"]
        for mine, theirs in ((a.trained, b.trained), (a.frozen, b.frozen)):
            if [t.name for t in mine] != [t.name for t in theirs]:
                raise Mismatch(f"checkpoint parameters {[t.name for t in mine]}, recorded {[t.name for t in theirs]}")
            for x, y in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(to_numpy(x), to_numpy(y), **tolerance, err_msg=x.name)
        if a.properties != b.properties or a.has_optimizer != b.has_optimizer:
            raise Mismatch(f"properties {a.properties} or groups differ from the recorded {b.properties}")
        if a.step != b.step or sorted(a.moments) != sorted(b.moments):
            raise Mismatch(f"step {a.step}, recorded {b.step}, or other moments")
        for parameter, moments in b.moments.items():
            for name, tensor in moments.items():
                own, recorded_moment = to_numpy(a.moments[parameter][name]), to_numpy(tensor)
                np.testing.assert_allclose(own, recorded_moment, rtol=1e-3, atol=1e-5, err_msg=f"{parameter} {name}")

    def do_load_checkpoint(self, call: dict[str, Any]) -> dict[str, Any]:
        rate = self.session.get_learning_rate()
        checkpoint = self.checkpoint(call["file"])
        self.open(checkpoint)
        if trainweb.checkpoint.read_checkpoint(checkpoint).is_exact:
            # Ours holds the rate as well; the recorded library's does not, and goes on with its default.
            if self.session.get_learning_rate() != rate:
                raise Mismatch(f"the rate was {rate}, and is {self.session.get_learning_rate()}")
            self.session.set_learning_rate(0.001)
        return {
            "lr": self.session.get_learning_rate(),
            "params_all": self.session.get_contiguous_parameters(False),
        }

    def do_export(self, call: dict[str, Any]) -> dict[str, Any]:
        model = self.session.export_model_for_inferencing(graph_output_names=call["outputs"])
        inference = trainweb.InferenceSession(model)
        feeds = self.feeds(call["feed"])
        if inference.input_names != call["model_inputs"]:
            raise Mismatch(f"exported inputs {inference.input_names}, recorded {call['model_inputs']}")
        results = inference.run(call["outputs"], {n: feeds[n] for n in call["model_inputs"]})
        inference.release()
        return {f"out.{n}": r for n, r in zip(call["outputs"], results, strict=True)}


def replay(folder: str | Path, artifacts: Any = None) -> dict[str, Any]:
    """Replay a case; how many results were compared, and the worst deviation per kind in units of its tolerance."""
    r = Replay(Path(folder), artifacts).run()
    return {"compared": r.compared, "worst": r.worst}
