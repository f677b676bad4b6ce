"""Options of sessions and runs. tests/golden/calls records names, defaults and texts."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.python.sessions import artifacts, batch, session, unchanged, warm

import trainweb
from trainweb.errors import FeedError, ModelError, SessionError, UnsupportedError
from trainweb.training.ort.options import SessionOptions

EXPECTED = json.loads((Path(__file__).parent.parent / "golden" / "calls" / "expected.json").read_text())


@pytest.mark.parametrize("name", ["RunOptions", "SessionOptions"])
def test_options_have_the_attributes_and_defaults_of_onnxruntime(name: str) -> None:
    made = getattr(trainweb, name)()
    for attribute, value in EXPECTED[name].items():
        found = getattr(made, attribute)
        assert callable(found) if value is None else found == value, attribute


STEPS = {
    "train": lambda s, **options: s.train_step(batch(), options=options),
    "eval": lambda s, **options: s.eval_step(batch(), options=options),
    "optimizer": lambda s, **options: s.optimizer_step(options),
}


@pytest.mark.parametrize("kind", STEPS)
def test_terminate_ends_a_step_and_leaves_the_session_as_it_was(kind: str) -> None:
    text = EXPECTED["terminated"].partition("FAIL : ")[2]
    with session() as s:
        warm(s)
        with unchanged(s), pytest.raises(SessionError) as caught:
            STEPS[kind](s, terminate=True, tag="night run")
        assert str(caught.value) == text
        assert "run tag: night run" in caught.value.__notes__
        options = trainweb.RunOptions(terminate=True)
        with pytest.raises(SessionError):
            s.train_step(batch(), options=options)
        options.terminate = False
        s.train_step(batch(), options=options)


def test_a_wrong_feed_goes_before_terminate() -> None:
    with session() as s, pytest.raises(FeedError, match="is missing"):
        s.train_step({}, options={"terminate": True})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"terminat": True}, TypeError, "did you mean 'terminate'"),
        ({"terminate": 1}, TypeError, "terminate must be a bool, got 1"),
        ({"tag": 5}, TypeError, "tag must be a str"),
        ({"log_severity_level": 5}, SessionError, "from -1 to 4, got 5"),
        ({"log_verbosity_level": -1}, SessionError, ">= 0"),
        ({"only_execute_path_to_fetches": True}, UnsupportedError, "only_execute_path_to_fetches"),
        ({"training_mode": False}, UnsupportedError, "run an eval step"),
        ("verbose", TypeError, "must be a dict or RunOptions, got str"),
    ],
)
def test_run_options_that_cannot_be_obeyed(options: Any, error: type[Exception], text: str) -> None:
    with session() as s, unchanged(s), pytest.raises(error, match=text):
        s.train_step(batch(), options=options)


def test_misspelt_attributes_are_refused() -> None:
    with pytest.raises(AttributeError, match="did you mean 'terminate'"):
        trainweb.RunOptions().terminte = True  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="did you mean 'intra_op_num_threads'"):
        trainweb.SessionOptions().intra_op_threads = 2  # type: ignore[attr-defined]


def test_options_of_onnxruntime_itself_are_read() -> None:
    """An object with its attributes: the package need not be there."""
    values = {n: v for n, v in EXPECTED["RunOptions"].items() if v is not None}
    with session() as s:
        s.train_step(batch(), options=SimpleNamespace(**values))
        with pytest.raises(SessionError) as caught:
            s.train_step(batch(), options=SimpleNamespace(**values | {"terminate": True, "logid": "theirs"}))
        assert "run tag: theirs" in caught.value.__notes__


def test_what_is_logged_is_what_was_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("trainweb"), "level", logging.CRITICAL)
    with session(options={"log_severity_level": 1, "logid": "mine"}) as s:
        s.train_step(batch())
        (compiled,) = caplog.messages
        assert compiled.startswith("[mine] compiled a train step of x float32[6, 5], labels int64[6]: ")
        s.train_step(batch(), options={"log_severity_level": 0, "tag": "third"})
        assert len(caplog.messages) == 3 and caplog.messages[-1].startswith("[mine] [third] train step: ")
        assert caplog.records[-1].levelno == logging.DEBUG
        s.optimizer_step({"log_severity_level": 0})
        s.eval_step(batch(), options={"log_severity_level": 2})
        assert len(caplog.messages) == 4 and "optimizer step" in caplog.messages[-1]


def test_without_a_handler_lines_go_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, root.handlers[:] = root.handlers[:], []
    try:
        with session() as s:
            s.optimizer_step({"log_severity_level": 0, "tag": "t"})
    finally:
        root.handlers[:] = handlers
    assert "[t] optimizer step" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"thread": 2}, TypeError, "did you mean 'threads'"),
        ({"device": "webgpu"}, UnsupportedError, "is for pages and Node"),
        ({"device": "gpu"}, TypeError, "must be 'wasm' or 'auto', got 'gpu'"),
        ({"reproducible": 1}, TypeError, "reproducible must be a bool"),
        ({"max_plans": 0}, SessionError, "'max_plans' must be an integer >= 1"),
        ({"intra_op_num_threads": "2"}, TypeError, "must be an integer"),
        ({"execution_mode": 2}, ValueError, "execution_mode is 2; it must be one of 0, 1"),
        ({"graph_optimization_level": "all"}, ValueError, "must be one of 0, 1, 2, 3, 99"),
        ({"enable_mem_pattern": "no"}, ValueError, "enable_mem_pattern is 'no'"),
        ({"optimized_model_filepath": "x.onnx"}, UnsupportedError, "explain"),
        ({"enable_profiling": True}, UnsupportedError, r"session\.profile"),
        ({"free_dimension_overrides": {"bach": 6}}, ModelError, "did you mean 'batch'"),
        ({"free_dimension_overrides": {"batch": -6}}, SessionError, ">= 0"),
        (5, TypeError, "must be a dict or SessionOptions, got int"),
    ],
)
def test_session_options_that_cannot_be_obeyed(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text), session(options=options):
        pass


def test_session_options_that_are_so_anyway() -> None:
    values = {n: v for n, v in EXPECTED["SessionOptions"].items() if v is not None}
    with session() as s, session(options=values | {"intra_op_num_threads": 4, "device": "auto"}) as other:
        for one in (s, other):
            warm(one)
        np.testing.assert_array_equal(s.get_contiguous_parameters(), other.get_contiguous_parameters())


def test_a_free_dimension_has_the_size_it_is_given() -> None:
    options = SessionOptions()
    options.add_free_dimension_override_by_name("batch", 6)
    with session(options=options) as s:  # type: ignore[arg-type]
        s.train_step(batch(n=6))
        with pytest.raises(FeedError, match="index: 0 Got: 7 Expected: 6"):
            s.train_step(batch(n=7))
        with pytest.raises(FeedError, match="index: 0 Got: 7 Expected: 6"):
            s.eval_step(batch(n=7))


@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.add_free_dimension_override_by_denotation("DATA_BATCH", 1),
        lambda o: o.add_session_config_entry("session.disable_prepacking", "0"),
        lambda o: o.add_session_config_entry("session.set_denormal_as_zero", "1"),
        lambda o: o.add_session_config_entry("optimization.enable_gelu_approximation", "1"),
        lambda o: o.add_initializer("w", None),
        lambda o: o.add_external_initializers(["w"], []),
        lambda o: o.register_custom_ops_library("ops.so"),
    ],
)
def test_methods_of_options_that_mean_nothing_here_say_so(call: Any) -> None:
    with pytest.raises(UnsupportedError):
        call(SessionOptions())


OTHERS = {
    "inter_op_num_threads": 4,
    "execution_mode": 1,
    "execution_order": 1,
    "graph_optimization_level": 0,
    "enable_cpu_mem_arena": False,
    "enable_mem_pattern": False,
    "enable_mem_reuse": False,
}


def test_options_that_change_nothing_are_accepted_with_one_warning() -> None:
    options = trainweb.SessionOptions(**OTHERS)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    with pytest.warns(UserWarning, match="have no effect here: ") as caught, session(options=options) as s:
        warm(s)
        with session() as plain:
            warm(plain)
            np.testing.assert_array_equal(s.get_contiguous_parameters(), plain.get_contiguous_parameters())
    (warning,) = caught
    text = str(warning.message)
    assert all(f"{name}={value!r} (" in text for name, value in OTHERS.items())
    assert "session.intra_op.allow_spinning='0' (it is for other backends)" in text and "ONNX" not in text
    assert Path(warning.filename).name == "sessions.py", "it points at the line that makes the session"


def test_a_module_warns_once() -> None:
    made = artifacts("mlp")
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    with pytest.warns(UserWarning) as caught:
        module = trainweb.api.Module(made.training_model, state, None, "cpu", {"enable_mem_pattern": False})
    module.release()
    assert len(caught) == 1


def test_entries_of_runs_are_kept_with_a_warning() -> None:
    options = trainweb.RunOptions()
    with pytest.warns(UserWarning, match="memory.enable_memory_arena_shrinkage='cpu:0'"):
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    with pytest.raises(KeyError, match="was not set"):
        options.get_run_config_entry("x")


def test_the_format_of_models_is_one_of_two() -> None:
    options = SessionOptions()
    for name in ("ONNX", "ORT"):
        options.add_session_config_entry("session.load_model_format", name)
    with pytest.raises(ValueError, match="must be ONNX or ORT, got 'TFLITE'"):
        options.add_session_config_entry("session.load_model_format", "TFLITE")
    assert options.get_session_config_entry("session.load_model_format") == "ORT"


def test_entries_that_are_so_anyway() -> None:
    options = SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    with pytest.raises(KeyError, match="was not set"):
        options.get_session_config_entry("x")
    assert artifacts("mlp").eval_model
