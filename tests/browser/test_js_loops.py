"""A loop of a thousand steps trains in a page as natively, as a loop in the plan, and profiles show its body."""

from __future__ import annotations

import numpy as np
from playwright.sync_api import Browser
from tests.control.test_control_flow import recurrent

import trainweb
from trainweb.artifacts import OptimType, build_artifacts

from .js_session import from_json, open_js_page, to_json
from .server import Site

STEPS = 1000
X = np.random.default_rng(4).standard_normal((STEPS, 3)).astype(np.float32)
TRAIN = """
    const s = await TrainingSession.createFromModel("/loop.onnx", { requiresGrad: ["w"], optimizer: "SGD" });
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
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    with trainweb.TrainingSession(state, built.training_model, built.eval_model, built.optimizer_model) as session:
        session.set_learning_rate(0.5)
        losses = []
        for _ in range(3):
            losses.append(float(session.train_step({"x": X})["loss"]))
            session.optimizer_step()
            session.lazy_reset_grad()
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
