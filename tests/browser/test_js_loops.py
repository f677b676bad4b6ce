"""Loops train in a page as natively, as loops in the plan: of a thousand steps, and until data end them."""

import numpy as np
import pytest
from playwright.sync_api import Browser
from tests.control.test_control_flow import recurrent
from tests.control.test_while import normalized
from tests.python.sessions import take_steps

import trainweb
from trainweb.artifacts import Artifacts, OptimType, build_artifacts
from trainweb.errors import LimitError
from trainweb.ir.shapes import TensorType
from trainweb.page.bundle import make_bundle
from trainweb.training.core import SessionCore
from trainweb.training.state import CheckpointState

from .js_session import from_json, open_js_page, to_json
from .server import Site

STEPS = 1000
X = np.random.default_rng(4).standard_normal((STEPS, 3)).astype(np.float32)
TRAIN = """
    const config = { loss: null, requiresGrad: ["w"], optimizer: "SGD" };
    const s = await TrainingSession.createFromModel("/loop.onnx", config);
    await s.setLearningRate(0.5);
    const losses = [];
    for (let k = 0; k < 3; k++) {
      losses.push((await s.runTrainStep({ x: toTensor(x) }))[s.trainingOutputNames[0]].data[0]);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
    }
    const lines = (await s.profile({ x: toTensor(x) })).entries.map(({ text }) => text);
    const w = fromTensor(await s.getParameter("w"));
    await s.release();
    return [losses, w, lines];
"""


def native(model: bytes) -> tuple[list[float], np.ndarray]:
    built = build_artifacts(model, requires_grad=["w"], optimizer=OptimType.SGD)
    with trainweb.TrainingSession(**built) as session:
        session.set_learning_rate(0.5)
        losses = take_steps(session, {"x": X}, 3)
        return losses, np.array(session.get_parameter("w"))


def test_a_long_loop_trains_in_the_page(browser: Browser, plain_site: Site) -> None:
    model = recurrent(STEPS).SerializeToString()
    plain_site.add("/loop.onnx", model)
    with open_js_page(browser, plain_site) as page:
        losses, w, lines = page.run(TRAIN, x=to_json(X))
    expected, weight = native(model)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(from_json(w), weight, rtol=1e-6)
    # One plan with two loops, not thousands of instructions.
    assert len(lines) < 60
    assert sum(line.startswith("loop_begin") for line in lines) == 2


LIMIT = 4
SHORT, LONG = np.array([2, 2, 2], np.float32), np.array([0.1, 0.2, 0.05], np.float32)
ENDED_BY_DATA = """
    const s = await open();
    await s.setLearningRate(0.01);
    const losses = [], errors = [];
    for (let k = 0; k < 3; k++) {
      losses.push((await s.runTrainStep({ data: toTensor(short) }))[s.trainingOutputNames[0]].data[0]);
      errors.push(await failure(() => s.runTrainStep({ data: toTensor(long) })));
      losses.push((await s.runTrainStep({ data: toTensor(short) }))[s.trainingOutputNames[0]].data[0]);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
    }
    const weights = [];
    for (const name of ["w", "mean", "variance"]) weights.push(fromTensor(await s.getParameter(name)));
    await s.release();
    return [losses, weights, errors];
"""
OPEN = {
    "model": """const config = { loss: null, requiresGrad: ["w"], optimizer: "AdamW" }, limits = { loopIterations: 4 };
        const open = () => TrainingSession.createFromModel("/while.onnx", config, { limits });""",
    "bundle": """const open = () => TrainingSession.create({ bundle: "/while.bundle" });""",
}


def ended_by_data() -> Artifacts:
    limits = {"loop_iterations": LIMIT}
    return build_artifacts(normalized(), requires_grad=["w"], optimizer=OptimType.AdamW, limits=limits)


def natively(built: Artifacts) -> tuple[list[float], list[np.ndarray]]:
    with trainweb.TrainingSession(**built) as session:
        session.set_learning_rate(0.01)
        losses = []
        for _ in range(3):
            losses.append(float(session.train_step({"data": SHORT})["loss"]))
            with pytest.raises(LimitError, match=f"exceeds the limit of {LIMIT} iterations"):
                session.train_step({"data": LONG})
            losses.append(float(session.train_step({"data": SHORT})["loss"]))
            session.optimizer_step()
            session.lazy_reset_grad()
        return losses, [np.array(session.get_parameter(name)) for name in ("w", "mean", "variance")]


@pytest.mark.parametrize("origin", OPEN)
def test_a_loop_that_data_end_trains_in_the_page(browser: Browser, plain_site: Site, origin: str) -> None:
    built = ended_by_data()
    plain_site.add("/while.onnx", normalized().SerializeToString())
    state = CheckpointState.load_checkpoint(built.checkpoint)
    core = SessionCore(state, *built.graphs)
    core.release()
    signature = {"data": TensorType("float32", (3,))}
    plain_site.add("/while.bundle", make_bundle(core.models, state._lent(), [signature]))
    with open_js_page(browser, plain_site) as page:
        losses, weights, errors = page.run(OPEN[origin] + ENDED_BY_DATA, short=to_json(SHORT), long=to_json(LONG))
    for error in errors:
        assert error["name"] == "LimitError"
        assert f"limit of {LIMIT} iterations" in error["message"] and "limits.loopIterations" in error["message"]
    expected, arrays = natively(built)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for found, array in zip(weights, arrays, strict=True):
        np.testing.assert_allclose(from_json(found), array, rtol=1e-6, atol=1e-7)
