"""`InferenceSession` and the classes around it, against what onnxruntime answered (tests/golden/calls)."""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import bytes_in_use
from tests.golden.calls.scenarios import X, Y, describe_inference

import trainweb
from trainweb.api import CheckpointState, Module
from trainweb.compat.onnxruntime import OrtValue
from trainweb.errors import FeedError, SessionError, UnsupportedError
from trainweb.training.core import free_abandoned
from trainweb.training.ort.interface import PROVIDERS

MLP = Path(__file__).parent.parent / "golden" / "mlp"
EXPECTED = json.loads((MLP.parent / "calls" / "expected.json").read_text())


@pytest.fixture
def opened() -> Any:
    sessions: list[trainweb.InferenceSession] = []

    def open_session(*arguments: Any, **more: Any) -> trainweb.InferenceSession:
        sessions.append(trainweb.InferenceSession(MLP / "base.onnx", *arguments, **more))
        return sessions[-1]

    yield open_session
    for s in sessions:
        s.release()


def test_a_session_says_and_gives_what_onnxruntimes_does(opened: Any) -> None:
    found, want = describe_inference(opened(), OrtValue), EXPECTED["inference"]
    runs, expected = found.pop("runs"), dict(want).pop("runs")
    assert found == {k: v for k, v in want.items() if k != "runs"}
    assert runs.keys() == expected.keys()
    for name, arrays in expected.items():
        for (shape, total), (want_shape, want_total) in zip(runs[name], arrays, strict=True):
            assert shape == want_shape, name
            np.testing.assert_allclose(total, want_total, rtol=1e-5, err_msg=name)


def test_the_providers_known_are_those_of_onnxruntime() -> None:
    assert sorted(PROVIDERS) == sorted(EXPECTED["providers"])


@pytest.mark.parametrize(
    ("providers", "options", "error", "text"),
    [
        (["CPUExecutionProvidr"], None, ValueError, "did you mean 'CPUExecutionProvider'"),
        ([("CPUExecutionProvider", {})], [{}], ValueError, "Only string values for 'providers' are supported"),
        ([("CPUExecutionProvider", 5)], None, TypeError, "'provider_options' must be a dict, got int"),
        (["CPUExecutionProvider"], [], ValueError, "same length"),
    ],
)
def test_providers_that_are_not_there(opened: Any, providers: Any, options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        opened(providers=providers, provider_options=options)
    with pytest.raises(error, match=text):
        opened().set_providers(providers, options)


def test_other_providers_are_warned_of(opened: Any) -> None:
    with pytest.warns(UserWarning, match="Specified provider 'CUDAExecutionProvider' is not in available"):
        session = opened(providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="Specified provider 'CUDAExecutionProvider' is not in available"):
        opened(providers=["CUDAExecutionProvider"])
    opened(None, [("CPUExecutionProvider", {})])


@pytest.mark.parametrize("as_pairs", [True, False])
def test_options_of_a_provider_change_nothing(opened: Any, as_pairs: bool) -> None:
    options = {"arena_extend_strategy": "kSameAsRequested"}
    given = ([("CPUExecutionProvider", options)], None) if as_pairs else (["CPUExecutionProvider"], [options])
    with pytest.warns(UserWarning, match="arena_extend_strategy") as caught:
        opened(None, *given)
    assert len(caught) == 1


def test_options_are_obeyed(opened: Any, tmp_path: Path) -> None:
    options = trainweb.SessionOptions(free_dimension_overrides={"batch": 8}, enable_profiling=True)
    options.profile_file_prefix = str(tmp_path / "p")
    session = opened(options)
    assert session.get_session_options() is options
    assert session.get_inputs()[0].shape == [8, 10]
    with pytest.raises(FeedError, match="Got: 7 Expected: 8"):
        session.run(None, {"x": X[:7]})
    with pytest.raises(SessionError, match="terminate"):
        session.run(None, {"x": X}, {"terminate": True})
    session.run(None, {"x": X}, trainweb.RunOptions(tag="t"))
    events = json.loads(Path(session.end_profiling()).read_text())
    assert [e["name"] for e in events].count("model_run") == 1
    with pytest.raises(TypeError, match="did you mean 'max_plans'"):
        opened({"max_plan": 2})


def test_what_a_binding_refuses(opened: Any) -> None:
    session = opened()
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    with pytest.raises(FeedError, match="At least one output"):
        session.run_with_iobinding(binding)
    with pytest.raises(FeedError, match="has no 'y'"):
        binding.bind_cpu_input("y", X)
    with pytest.raises(FeedError, match="has no 'z'"):
        binding.bind_output("z")
    with pytest.raises(UnsupportedError, match="only 'cpu'"):
        binding.bind_output("logits", "cuda")
    with pytest.raises(UnsupportedError, match="only 'cpu'"):
        OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    binding.bind_ortvalue_output("logits", OrtValue.ortvalue_from_shape_and_type([3, 4], np.float32))
    with pytest.raises(FeedError, match=r"of float32\[3, 4\] cannot hold float32\[8, 4\]"):
        session.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    out = np.zeros((8, 4), np.float32)
    binding.bind_output("logits", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out, session.run(None, {"x": X})[0])
    binding.clear_binding_inputs()
    with pytest.raises(FeedError, match="'x' is missing"):
        session.run_with_iobinding(binding)


def test_a_session_that_is_dropped_gives_its_memory_back() -> None:
    before = bytes_in_use()
    session = trainweb.InferenceSession(MLP / "base.onnx")
    session.run(None, {"x": X})
    assert bytes_in_use() > before
    del session
    gc.collect()
    free_abandoned()
    assert bytes_in_use() == before


def test_modules_take_and_give_ort_values() -> None:
    state = CheckpointState.load_checkpoint(MLP / "checkpoint")
    module = Module(MLP / "training_model.onnx", state, MLP / "eval_model.onnx")
    plain = module(X, Y)
    assert isinstance(plain, np.ndarray) and type(plain.numpy()) is np.ndarray
    values = module(OrtValue.ortvalue_from_numpy(X), OrtValue.ortvalue_from_numpy(Y))
    assert isinstance(values, OrtValue) and values.numpy() == plain == plain.numpy()
    with pytest.raises(UnsupportedError, match="only 'cpu'"):
        Module(MLP / "training_model.onnx", state, device="cuda:1")
    with pytest.raises(TypeError, match="SessionOptions, got int"):
        Module(MLP / "training_model.onnx", state, session_options=3)
    module.release()
