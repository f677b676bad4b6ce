"""The interface of onnxruntime.training.api."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.replay import Replay

from trainweb.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from trainweb.errors import FeedError, SessionError, UnsupportedError

GOLDEN = Path(__file__).parent.parent / "golden"
MLP = GOLDEN / "mlp"


class Script:
    """Module, optimizer and data of a golden case, as a script for onnxruntime has them."""

    def __init__(self, case: str = "mlp", eval_model: bool = True) -> None:
        folder = GOLDEN / case
        self.recorded = Replay(folder)
        self.state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        self.module = Module(
            str(folder / "training_model.onnx"),
            self.state,
            str(folder / "eval_model.onnx") if eval_model else None,
        )
        self.optimizer_path = str(folder / "optimizer_model.onnx")

    def batch(self, feed: str = "b0") -> list[np.ndarray]:
        feeds = self.recorded.feeds(feed)
        return [feeds[name] for name in self.module.input_names()]


@pytest.fixture
def script() -> Any:
    s = Script()
    yield s
    s.module.release()


def test_a_training_loop_follows_the_recorded_trajectory(script: Script) -> None:
    optimizer = Optimizer(script.optimizer_path, script.module)
    trace = script.recorded.trace["trace"]
    compared = 0
    for call in trace[: next(i for i, c in enumerate(trace) if c["op"] == "save_checkpoint")]:
        results: dict[str, Any] = {}
        if call["op"] in ("train", "eval"):
            script.module.train(call["op"] == "train")
            kind = "training" if call["op"] == "train" else "eval"
            loss = script.module(*script.batch(call["feed"]))
            results[f"out.{script.recorded.trace[f'{kind}_output_names'][0]}"] = loss
            if call["op"] == "train":
                results |= {f"grad.{n}": p.grad for n, p in script.state.parameters if p.requires_grad}
        elif call["op"] == "optimizer_step":
            optimizer.step()
            results["params_trainable"] = script.module.get_contiguous_parameters(trainable_only=True).numpy()
        elif call["op"] == "lazy_reset_grad":
            script.module.lazy_reset_grad()
        elif call["op"] == "set_lr":
            optimizer.set_learning_rate(call["value"])
            results["lr"] = optimizer.get_learning_rate()
        else:
            continue
        for name, key in call.get("results", {}).items():
            script.recorded.compare(key, name.split(".")[0], results[name])
            compared += 1
    assert compared > 30


def test_one_output_is_returned_bare_and_several_as_a_tuple(script: Script) -> None:
    loss = script.module(*script.batch())
    assert isinstance(loss, np.ndarray) and loss.shape == ()
    several = Script("custom_block")
    results = several.module(*several.batch())
    several.module.release()
    assert isinstance(results, tuple) and [r.ndim for r in results] == [0, 2, 2]


def test_inputs_are_positional_and_counted(script: Script) -> None:
    with pytest.raises(FeedError, match=r"takes 2 inputs \(x, labels\), but 1 were given"):
        script.module(script.batch()[0])


def test_the_mode_decides_the_model(script: Script) -> None:
    assert script.module.eval() is script.module and not script.module.training
    assert script.module.output_names() == script.recorded.trace["eval_output_names"]
    before = script.module.get_contiguous_parameters().copy()
    gradients = {n: p.grad for n, p in script.state.parameters}
    script.module(*script.batch())
    assert all(np.array_equal(gradients[n], p.grad) for n, p in script.state.parameters)
    np.testing.assert_array_equal(script.module.get_contiguous_parameters(), before)
    assert script.module.train().training
    alone = Script(eval_model=False)
    with pytest.raises(SessionError, match="no EvalModel"):
        alone.module.eval()(*script.batch())
    alone.module.release()


def test_an_optimizer_made_after_a_step_finds_the_gradients(script: Script) -> None:
    script.module(*script.batch())
    gradient = {n: p.grad for n, p in script.state.parameters}
    first = Optimizer(script.optimizer_path, script.module)
    assert all(np.array_equal(gradient[n], p.grad) and p.grad.any() for n, p in script.state.parameters)
    script.module(*script.batch())  # not reset: adds
    for n, p in script.state.parameters:
        np.testing.assert_allclose(p.grad, 2 * gradient[n], rtol=1e-5, atol=1e-8)
    second = Optimizer(script.optimizer_path, script.module)
    first.set_learning_rate(0.25)
    assert second.get_learning_rate() == 0.25


def test_optimizer_calls_need_an_optimizer(script: Script) -> None:
    with pytest.raises(SessionError, match="needs an optimizer model"):
        Optimizer(None, script.module)
    with pytest.raises(UnsupportedError, match="'cuda'"):
        Module(b"", script.state, device="cuda")


def test_buffers_go_out_and_in(script: Script) -> None:
    size = script.module.get_parameters_size()
    buffer = script.module.get_contiguous_parameters(trainable_only=True)
    assert buffer.shape == (size,) and type(buffer.numpy()) is np.ndarray
    script.module.copy_buffer_to_parameters(buffer * 2, trainable_only=True)
    np.testing.assert_array_equal(script.module.get_contiguous_parameters(), 2 * buffer)

    class OrtValue:
        def numpy(self) -> np.ndarray:
            return np.asarray(buffer)

    script.module.copy_buffer_to_parameters(OrtValue())
    np.testing.assert_array_equal(script.module.get_contiguous_parameters(), buffer)


def test_parameters_and_properties_iterate_as_pairs(script: Script) -> None:
    parameters = script.state.parameters
    names = parameters.keys()
    assert {n: p.name for n, p in parameters} == dict(zip(names, names, strict=True))
    assert len(parameters) == len(parameters.values()) == len(list(parameters.items())) == 6
    assert "fc1.bias" in parameters and "zz" not in parameters
    parameters["fc1.bias"] = np.full(16, 0.5, np.float32)
    np.testing.assert_array_equal(parameters["fc1.bias"].data, np.full(16, 0.5, np.float32))
    with pytest.raises(KeyError, match="Parameter zz not found"):
        parameters["zz"]
    script.state.properties["epoch"] = 3
    script.state.properties["name"] = "run"
    assert dict(script.state.properties) == {"epoch": 3, "name": "run"}


def test_the_scheduler_sets_the_rate_at_once_and_takes_its_counts_in_order(script: Script) -> None:
    optimizer = Optimizer(script.optimizer_path, script.module)
    scheduler = LinearLRScheduler(optimizer, warmup_step_count=2, total_step_count=6, initial_lr=1.0)
    rates = []
    for _ in range(8):
        rates.append(optimizer.get_learning_rate())
        script.module(*script.batch())
        optimizer.step()
        script.module.lazy_reset_grad()
        scheduler.step()
    assert rates == [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]


def test_checkpoints_and_exports_are_files(script: Script, tmp_path: Path) -> None:
    script.state.properties["epoch"] = 1
    CheckpointState.save_checkpoint(script.state, str(tmp_path / "checkpoint"))
    again = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert dict(again.properties) == {"epoch": 1}
    assert {n for n, _ in again.parameters} == {n for n, _ in script.state.parameters}
    script.module.export_model_for_inferencing(str(tmp_path / "inference.onnx"), ["logits"])
    assert (tmp_path / "inference.onnx").stat().st_size > 1000
