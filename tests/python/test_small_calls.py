"""Calls that were missing beside the large ones: properties, exports, buffers, outputs without a loss."""

import importlib
import json
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.conformance.models import mlp
from tests.golden.calls.scenarios import WITHOUT_LOSS, two_outputs
from tests.python.sessions import artifacts, batch, session, warm

import trainweb
from trainweb.artifacts import LossType, build_artifacts
from trainweb.errors import BufferSizeError, ModelError

GOLDEN = Path(__file__).parent.parent / "golden"
EXPECTED = json.loads((GOLDEN / "calls" / "expected.json").read_text())


@pytest.mark.parametrize("api", [trainweb.CheckpointState, trainweb.api.CheckpointState])
def test_properties_are_a_mapping_that_can_be_changed(api: Any) -> None:
    state = api.load_checkpoint(artifacts("mlp").checkpoint)
    state.properties["epoch"] = 3
    state.properties["name"] = "a"
    assert list(state.properties.keys()) == ["epoch", "name"] and list(state.properties.values()) == [3, "a"]
    del state.properties["epoch"]
    assert "epoch" not in state.properties and len(state.properties) == 1
    assert state.properties.get("epoch", 7) == 7
    with pytest.raises(KeyError, match="Property epoch not found"):
        del state.properties["epoch"]
    again = api.load_checkpoint(api.save_checkpoint(state))
    assert dict(again.properties.items()) == {"name": "a"}
    if api is trainweb.CheckpointState:
        assert isinstance(state.properties, MutableMapping)
        state.properties.update(epoch=1)
        assert state.properties.pop("epoch") == 1


def test_outputs_to_export_are_given_in_each_way_one_thinks_of(tmp_path: Path) -> None:
    with session() as s:
        warm(s)
        want = s.export_model_for_inferencing(graph_output_names=["logits"])
        assert s.export_model_for_inferencing(["logits"]) == want
        assert s.export_model_for_inferencing(graph_output_names="logits") == want
        assert s.export_model_for_inferencing(str(tmp_path / "m.onnx"), "logits") is None
        assert (tmp_path / "m.onnx").read_bytes() == want
        with pytest.raises(TypeError, match="must be a path"):
            s.export_model_for_inferencing(["logits"], ["logits"])
        with pytest.raises(ModelError, match="'logits' was taken as the file to write"):
            s.export_model_for_inferencing("logits")


def test_parameters_are_copied_into_an_array_of_the_callers() -> None:
    with session() as s:
        warm(s)
        for only in (True, False):
            out = np.full(s.get_parameters_size(only), np.nan, np.float32)
            assert s.get_contiguous_parameters(only, out=out) is out
            np.testing.assert_array_equal(out, s.get_contiguous_parameters(only))
        frozen = np.zeros_like(out)
        frozen.flags.writeable = False
        for wrong in (np.zeros(3, np.float32), out.astype(np.float64), out[None], frozen, out.tolist()):
            with pytest.raises(BufferSizeError, match=r"must be a writable array float32\["):
                s.get_contiguous_parameters(False, out=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", range(len(WITHOUT_LOSS)))
def test_without_a_loss_block_the_outputs_stay(case: int) -> None:
    """As recorded of onnxruntime: the first output is the loss, the others stay."""
    made = build_artifacts(two_outputs(), requires_grad=["w"], **WITHOUT_LOSS[case])
    models = [onnx.load_model_from_string(m) for m in (made.training_model, made.eval_model)]
    found = [[o.name for o in m.graph.output if not o.name.endswith(".out")] for m in models]
    assert found == EXPECTED["outputs_without_loss"][case]
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    with trainweb.TrainingSession(
        trainweb.CheckpointState.load_checkpoint(made.checkpoint), made.training_model, made.eval_model
    ) as s:
        results = s.train_step({"x": x})
        logits = x @ np.arange(6, dtype=np.float32).reshape(3, 2)
        np.testing.assert_allclose(results["loss"], logits.mean(), rtol=1e-5)
        if "logits" in results:
            np.testing.assert_allclose(results["logits"], logits, rtol=1e-5)


def test_a_model_without_a_loss_is_reported_with_its_parameters() -> None:
    report = trainweb.check(mlp())
    with_loss = trainweb.check(mlp(), loss=LossType.CrossEntropyLoss)
    assert not report.ok and report.missing_loss and not report.error
    assert report.trainable == with_loss.trainable and report.frozen == with_loss.frozen
    assert [d.name for d in report.trained] == [d.name for d in with_loss.trained]
    assert "4 trainable parameters with 39 elements" in str(report) and "name one" in str(report)


def trainweb_command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainweb.cli", *arguments], capture_output=True, text=True, check=False, **options
    )


def test_the_command_line_makes_the_folder_of_the_artifacts(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    target = tmp_path / "new" / "folder"
    done = trainweb_command("artifacts", str(tmp_path / "m.onnx"), "--loss", "MSELoss", "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert {p.name for p in target.iterdir()} >= {"training_model.onnx", "checkpoint"}


def test_inspect_ends_quietly_when_its_reader_has_enough() -> None:
    """A pipe that is closed before anything is read, as `head -0` does."""
    model = GOLDEN / "mlp" / "training_model.onnx"
    script = f'"{sys.executable}" -m trainweb.cli inspect "{model}" | exec 0<&- true; echo "status ${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("status 0\n", "")


def test_a_step_gives_what_it_gave_before_the_export() -> None:
    with session() as s:
        first = s.eval_step(batch())
        s.export_model_for_inferencing(["logits"])
        assert {n: a.tobytes() for n, a in s.eval_step(batch()).items()} == {n: a.tobytes() for n, a in first.items()}


def test_looking_inside_a_session() -> None:
    with session() as s:
        assert s.step_count() == 0 and not s.get_gradient("fc1.weight").any()
        warm(s)
        state = s._core.state
        assert s.parameter_names() == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
        assert s.parameter_names(trainable_only=True) == ["fc1.weight", "fc2.weight", "fc2.bias"]
        assert s.step_count() == state._holder.contents().step == 1
        np.testing.assert_array_equal(s.get_gradient("fc2.bias"), state.parameters["fc2.bias"].grad)
        moments = s.get_moments("fc2.bias")
        saved = state._holder.contents().moments["fc2.bias"]
        assert {n: m.tobytes() for n, m in moments.items()} == {n: bytes(t.data) for n, t in saved.items()}
        assert list(moments) == ["momentum0", "momentum1"] and s.get_moments("fc1.bias") == {}
        for name in ("fc1.bias", "nope"):
            with pytest.raises(trainweb.errors.CheckpointError, match=name):
                s.get_gradient(name)
        described = [(v.name, v.type, v.shape) for v in s.input_metadata()]
        assert described == [("x", "tensor(float)", ["batch", 5]), ("labels", "tensor(int64)", ["batch"])]
        assert [v.name for v in s.input_metadata(training=False)] == s.input_names(training=False)
        for training in (True, False):
            outputs = s.output_metadata(training)
            assert [v.name for v in outputs] == s.output_names(training)
            assert (outputs[0].type, outputs[0].shape) == ("tensor(float)", [])
        s._core.add_property("a", 1)
        assert s._core.property_names() == ["a"]
        s._core.delete_property("a")
        with pytest.raises(trainweb.errors.CheckpointError, match="'a' not found"):
            s._core.delete_property("a")


@pytest.mark.parametrize("name", ["", ".api", ".artifacts", ".compat", ".compat.onnxruntime", ".errors", ".onnxblock"])
def test_public_modules_list_public_names_alone(name: str) -> None:
    module = importlib.import_module("trainweb" + name)
    listed = [n for n in dir(module) if n != "__version__"]
    assert sorted(dir(module)) == sorted(module.__all__)
    assert not [n for n in listed if n.startswith("_") or n in ("Any", "annotations", "np", "numpy")]
    for n in listed:
        getattr(module, n)
