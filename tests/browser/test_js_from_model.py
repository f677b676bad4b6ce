"""`createFromModel`: training artifacts built in the page, of a forward model alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser

import trainweb
from trainweb.artifacts import LossType, OptimType, build_artifacts

from .js_session import JsPage, open_js_page
from .server import ROOT, Site

OPEN = """
    const url = "/golden/mlp/base.onnx";
    const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
    const open = (more = {}) => TrainingSession.createFromModel(url, { ...config, ...more });
    const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
    const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
    const feeds = { x, labels };
    const train = async (s, steps) => {
      const losses = [];
      await s.setLearningRate(0.01);
      for (let k = 0; k < steps; k++) {
        losses.push((await s.runTrainStep(feeds))[s.trainingOutputNames[0]].data[0]);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      return losses;
    };
"""


def native_losses(optimizer: OptimType, steps: int) -> list[float]:
    """What `train` of the page returns, by a session in CPython."""
    built = build_artifacts(
        ROOT / "tests" / "golden" / "mlp" / "base.onnx", loss=LossType.CrossEntropyLoss, optimizer=optimizer
    )
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    feeds = {"x": np.sin(np.arange(80)).astype(np.float32).reshape(8, 10), "labels": np.arange(8) % 3}
    losses = []
    models = built.training_model, built.eval_model, built.optimizer_model
    with trainweb.TrainingSession(state, *models, {"reproducible": True}) as s:
        s.set_learning_rate(0.01)
        for _ in range(steps):
            losses += [float(loss) for loss in s.train_step(feeds).values()]
            s.optimizer_step()
            s.lazy_reset_grad()
    return losses


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        yield page


def test_trains_as_the_recorded_artifacts_do(js: JsPage) -> None:
    built, recorded = js.run(
        f"""{OPEN}
        const s = await open();
        const t = await TrainingSession.create(golden("mlp"));
        const losses = [await train(s, 10), await train(t, 10)];
        await s.release();
        await t.release();
        return losses;"""
    )
    assert built == pytest.approx(recorded, rel=1e-5)
    assert built[-1] < built[0]


def test_lion_takes_the_steps_that_it_takes_natively(js: JsPage) -> None:
    """The first step moves each parameter by the learning rate, up, down or not at all; later ones go as natively."""
    before, after, losses = js.run(
        f"""{OPEN}
        const lion = {{ ...config, optimizer: "Lion" }};
        const s = await TrainingSession.createFromModel(url, lion, {{ reproducible: true }});
        const weights = async () => [...(await s.getContiguousParameters(true)).data];
        const before = await weights();
        const losses = await train(s, 1);
        const after = await weights();
        losses.push(...(await train(s, 9)));
        await s.release();
        return [before, after, losses];"""
    )
    moves = np.array(after) - before
    assert set(np.round(moves / 0.01).tolist()) == {-1.0, 0.0, 1.0} and np.abs(moves).max() < 0.01001
    assert losses == native_losses(OptimType.Lion, 10)


def test_its_artifacts_make_the_same_session_again(js: JsPage) -> None:
    first, second = js.run(
        f"""{OPEN}
        const s = await open();
        const losses = await train(s, 3);
        const t = await TrainingSession.create(await s.getArtifacts());
        const again = await train(t, 3);
        await s.release();
        await t.release();
        return [losses, again];"""
    )
    assert first == second


def test_frozen_parameters_stay(js: JsPage) -> None:
    sizes, moved = js.run(
        f"""{OPEN}
        const s = await open({{ frozenParams: ["fc1.*"] }});
        const sizes = [await s.getParametersSize(true), await s.getParametersSize(false)];
        const before = fromTensor(await s.getParameter("fc1.weight")).data.join();
        const head = fromTensor(await s.getParameter("fc2.weight")).data.join();
        await train(s, 2);
        const moved = [fromTensor(await s.getParameter("fc1.weight")).data.join() !== before,
                       fromTensor(await s.getParameter("fc2.weight")).data.join() !== head];
        await s.release();
        return [sizes, moved];"""
    )
    assert 0 < sizes[0] < sizes[1] == 432
    assert moved == [False, True]


def test_without_an_optimizer(js: JsPage) -> None:
    error = js.failure(f"{OPEN} const s = await open({{ optimizer: null }}); await s.runOptimizerStep();")
    assert error["message"] == "This TrainingSession has no OptimizerModel loaded."


@pytest.mark.parametrize(
    ("call", "name", "texts"),
    [
        ("TrainingSession.createFromModel()", "TypeError", ["'model' must be a URL"]),
        ("TrainingSession.createFromModel(url)", "TypeError", ["'config' must be an object"]),
        ("TrainingSession.createFromModel(url, null)", "TypeError", ["'config' must be an object"]),
        ("open({ loss: 'Cosine' })", "SessionError", ["Cosine", "CrossEntropyLoss"]),
        ("open({ optimizer: 'Adagrad' })", "SessionError", ["Adagrad", "AdamW", "SGD", "Lion"]),
        ("open({ learningRate: 1 })", "SessionError", ["learningRate", "requiresGrad"]),
        ("open({ requiresGrad: ['nowhere'] })", "ModelError", ["nowhere"]),
        ("TrainingSession.createFromModel(new Uint8Array(5), config)", "ModelError", []),
    ],
)
def test_refusals(js: JsPage, call: str, name: str, texts: list[str]) -> None:
    error = js.failure(f"{OPEN} await {call};")
    assert error["name"] == name
    for text in texts:
        assert text in error["message"]
