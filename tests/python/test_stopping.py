"""A step that is stopped while it is under way leaves the session as before, whichever instruction came last."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.models import mlp
from tests.python.sessions import snapshot
from tests.python.test_resume import feeds, net

import trainweb
from trainweb.artifacts import Artifacts, LossType, build_artifacts
from trainweb.backend.engine import MORE
from trainweb.backend.wasm import host
from trainweb.errors import SessionError
from trainweb.ir.layout import GRADIENTS, MOMENTUM0, PARAMETERS, STATE
from trainweb.onnxblock import optim
from trainweb.training.step_kind import EVAL, TRAIN

FAR = 10_000
"""More instructions than any plan here has."""


class StopAfter:
    """Run options, as another library has them, that end the run after `left` boundaries of instructions."""

    logid, log_severity_level, log_verbosity_level = "", -1, 0
    only_execute_path_to_fetches, training_mode = False, True

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def terminate(self) -> bool:
        self.left -= 1
        return self.left < -1  # it is read once before the run


@pytest.fixture(autouse=True)
def every_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SLICE_MS", 0.0)


@pytest.fixture(scope="module")
def made() -> Artifacts:
    clipped = optim.AdamW(clip_grad=optim.ClipGradNorm(0.1))
    return build_artifacts(net(), loss=LossType.CrossEntropyLoss, optimizer=clipped)


def open_session(made: Artifacts) -> trainweb.TrainingSession:
    return trainweb.TrainingSession(**made)


CALLS: dict[str, Callable[[trainweb.TrainingSession, Any], Any]] = {
    "train": lambda s, options: s.train_step(feeds(2), options=options),
    "optimizer": lambda s, options: s.optimizer_step(options),
    "eval": lambda s, options: s.eval_step(feeds(3), options=options),
}


@pytest.mark.parametrize("reset", [False, True], ids=["adding", "overwriting"])
@pytest.mark.parametrize("call", list(CALLS))
def test_stopped_after_any_instruction(made: Artifacts, call: str, reset: bool) -> None:
    with open_session(made) as session, open_session(made) as other:
        for s in (session, other):
            s.train_step(feeds(1))
            if reset:
                s.lazy_reset_grad()
        before, stops = snapshot(session), 0
        for stops in range(FAR):
            options = StopAfter(stops)
            try:
                CALLS[call](session, options)
                break
            except SessionError as e:
                assert "terminate" in str(e)
                assert snapshot(session) == before
        assert stops > 3
        CALLS[call](other, None)
        assert snapshot(session) == snapshot(other) and (call == "eval" or snapshot(session) != before)
        for s in (session, other):
            s.train_step(feeds(4))
        assert snapshot(session) == snapshot(other)


def test_another_thread_stops_a_step(made: Artifacts) -> None:
    with open_session(made) as session:
        engine, options, slices = session._core.engine, trainweb.RunOptions(), []
        original = engine.run_slice

        def watched(plan: int, *, anew: bool, milliseconds: float) -> int:
            slices.append(plan)
            if len(slices) == 3:
                thread = threading.Thread(target=setattr, args=(options, "terminate", True))
                thread.start()
                thread.join()
            return original(plan, anew=anew, milliseconds=milliseconds)

        engine.run_slice = watched  # type: ignore[method-assign]
        try:
            with pytest.raises(SessionError, match="terminate"):
                session.train_step(feeds(1), options=options)
        finally:
            del engine.run_slice
        assert len(slices) == 3
        copy.deepcopy(options)  # what is noted in them can be copied


def test_an_interrupted_step_is_undone(made: Artifacts) -> None:
    class Interrupting(StopAfter):
        @property
        def terminate(self) -> bool:
            if super().terminate:
                raise KeyboardInterrupt
            return False

    with open_session(made) as session:
        before = snapshot(session)
        with pytest.raises(KeyboardInterrupt):
            session.train_step(feeds(1), options=Interrupting(6))
        assert snapshot(session) == before


def test_an_inference_run_stops() -> None:
    session = trainweb.InferenceSession(mlp().SerializeToString())
    x = np.ones((2, 5), np.float32)
    with pytest.raises(SessionError, match="terminate"):
        session.run(None, {"x": x}, StopAfter(0))
    whole = session.run(None, {"x": x}, StopAfter(FAR))
    np.testing.assert_array_equal(whole[0], session.run(None, {"x": x})[0])
    session.release()


def test_what_plans_say_that_they_write(made: Artifacts) -> None:
    with open_session(made) as session:
        session.train_step(feeds(1))
        session.optimizer_step()
        session.eval_step(feeds(1))
        core = session._core
        written = {
            "train": core.engine.written(core.plan(TRAIN, types()).ptr),
            "eval": core.engine.written(core.plan(EVAL, types()).ptr),
            "optimizer": core.engine.written(core.optimizer_plan().ptr),
        }
    lasting = {kind: [s for s in range(PARAMETERS, STATE + 1) if mask >> s & 1] for kind, mask in written.items()}
    assert lasting["train"] == [PARAMETERS, GRADIENTS, STATE]  # running statistics are parameters
    assert lasting["eval"] == []
    assert {PARAMETERS, MOMENTUM0, STATE} <= set(lasting["optimizer"])


def types() -> dict[str, Any]:
    from trainweb.ir.shapes import TensorType

    return {n: TensorType(str(v.dtype), v.shape) for n, v in feeds(1).items()}


def test_only_a_run_that_was_interrupted_goes_on(made: Artifacts) -> None:
    with open_session(made) as session:
        session.eval_step(feeds(1))
        engine, loaded = session._core.engine, session._core.plan(EVAL, types())
        assert engine.run_slice(loaded.ptr, anew=True, milliseconds=0) == MORE
        assert engine.run(loaded.ptr) == 0
        status = engine.run_slice(loaded.ptr, anew=False, milliseconds=0)
        assert engine.description.status_name(status) == "TW_BAD_PLAN"
