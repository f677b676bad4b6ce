"""Metrics of `fit` in a page and from a bundle without Python, as in CPython (`tests/python/test_metrics.py`)."""

from typing import Any

import numpy as np
import pytest
from onnx import helper
from playwright.sync_api import Browser
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.fit import Trainer
from trainweb.ir.shapes import TensorType
from trainweb.page.bundle import make_bundle

from .bundles import open_page, python_requests
from .js_session import JsPage
from .server import Site

IGNORED = -100
CLASS_METRICS: list[Any] = [
    "accuracy",
    {"type": "topK", "k": 2, "ignore_index": IGNORED},
    {"type": "f1", "average": "weighted", "ignore_index": IGNORED},
    {"type": "precision", "average": "none", "ignore_index": IGNORED},
    {"type": "recall", "ignore_index": IGNORED},
    {"type": "confusionMatrix", "ignore_index": IGNORED},
    {"type": "mIoU", "ignore_index": IGNORED},
    "perplexity",
]
NUMBER_METRICS: list[Any] = ["mae", "rmse", "r2"]
ROWS = 24

FIT = """
    const { scores, targets, metrics } = given;
    const data = (dtype) => ({
      x: new Tensor("float32", Float32Array.from(scores.data), scores.dims),
      [given.target]: new Tensor(dtype, dtype === "int64" ? BigInt64Array.from(targets.data, BigInt)
        : Float32Array.from(targets.data), targets.dims),
    });
    const ofPage = (metric) => typeof metric === "string" ? metric : Object.fromEntries(
      Object.entries(metric).map(([name, value]) => [name === "ignore_index" ? "ignoreIndex" : name, value]));
    const fit = async (session) => {
      const schedule = { type: "Constant", learningRate: 0 };
      const rows = data(given.dtype);
      const options = { batchSize: 8, schedule, metrics: metrics.map(ofPage) };
      const history = await session.fit(rows, { ...options, validationData: rows });
      await session.release();
      return history.epochs[0].validation;
    };
"""


def built(shape: list[Any], loss: Any) -> Artifacts:
    """x -> Mul(1) = y: what is fed are the predictions; y is not an output of the eval model."""
    node = helper.make_node("Mul", ["x", "w"], ["y"], "product")
    return build_artifacts(
        make_model([node], {"x": shape}, {"y": shape}, {"w": np.ones(1, np.float32)}), loss=loss, optimizer="AdamW"
    )


def classes() -> tuple[Artifacts, dict[str, np.ndarray], list[Any]]:
    """Scores of pictures with ties, classes that are never target or never predicted, and ignored targets."""
    rng = np.random.default_rng(5)
    x = rng.integers(-2, 3, (ROWS, 5, 2, 3)).astype(np.float32)
    x[:, 4] = -3  # never predicted
    labels = rng.choice([0, 1, 2, 4, IGNORED], (ROWS, 2, 3))
    loss = {"type": "CrossEntropyLoss", "ignore_index": IGNORED, "class_axis": 1}
    return built(["n", 5, 2, 3], loss), {"x": x, "labels": labels}, CLASS_METRICS


def numbers() -> tuple[Artifacts, dict[str, np.ndarray], list[Any]]:
    """Large numbers that lie close together, and a column of one number."""
    rng = np.random.default_rng(6)
    target = (rng.standard_normal((ROWS, 3)) * [1, 100, 0] + [1e6, -5, 0.1]).astype(np.float32)
    x = (target + rng.standard_normal((ROWS, 3))).astype(np.float32)
    return built(["n", 3], "MSELoss"), {"x": x, "labels": target}, NUMBER_METRICS


def scored() -> tuple[Artifacts, dict[str, np.ndarray], list[Any]]:
    """Scores of rows, with ties."""
    rng = np.random.default_rng(7)
    x = rng.integers(-2, 3, (ROWS, 3)).astype(np.float32) / 4
    return built(["n", 3], "CrossEntropyLoss"), {"x": x, "labels": rng.integers(0, 3, ROWS)}, ["accuracy", "auc"]


CASES = {"classes": classes, "numbers": numbers, "scored": scored}


def natively(files: Artifacts, data: dict[str, np.ndarray], metrics: list[Any]) -> dict[str, Any]:
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    models = files.training_model, files.eval_model, files.optimizer_model
    with trainweb.TrainingSession(state, *models) as session:
        schedule = {"type": "Constant", "learning_rate": 0.0}
        options: dict[str, Any] = {"batch_size": 8, "schedule": schedule, "metrics": metrics, "progress": False}
        found = Trainer(session).fit(data, validation_data=data, **options).epochs[0].validation
        assert found is not None
        return dict(found)


def given(data: dict[str, np.ndarray], metrics: list[Any]) -> dict[str, Any]:
    (_, x), (name, targets) = data.items()
    arrays = [{"data": a.reshape(-1).tolist(), "dims": list(a.shape)} for a in (x, targets)]
    kind = {"target": name, "dtype": str(targets.dtype)}
    return {"scores": arrays[0], "targets": arrays[1], "metrics": metrics, **kind}


def bundle_of(files: Artifacts, data: dict[str, np.ndarray], metrics: list[Any]) -> bytes:
    """A bundle for batches of 8 that cannot start Python."""
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    with trainweb.TrainingSession(state, files.training_model, files.eval_model, files.optimizer_model) as session:
        models = session._core.models
    types = {name: TensorType(str(a.dtype), (8, *a.shape[1:])) for name, a in data.items()}
    return make_bundle(models, state._lent(), [types], None, metrics)


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_python(js: JsPage, browser: Browser, plain_site: Site, case: str) -> None:
    files, data, metrics = CASES[case]()
    models = [files.training_model, files.eval_model, files.optimizer_model, files.checkpoint]
    for name, content in zip(("train", "eval", "optimizer", "checkpoint"), models, strict=True):
        plain_site.add(f"/metrics/{case}/{name}", content)
    plain_site.add(f"/metrics/{case}/bundle", bundle_of(files, data, metrics))
    page = js.run(
        f"""{FIT}
        const at = (name) => "/metrics/{case}/" + name;
        return fit(await TrainingSession.create({{
          trainModel: at("train"), evalModel: at("eval"), optimizerModel: at("optimizer"),
          checkpointState: at("checkpoint"),
        }}));""",
        given=given(data, metrics),
    )
    with open_page(browser, plain_site) as other:
        # Asked for a part of them in another order, the bundle has a plan, too.
        bundled = other.run(
            f"""{FIT} return fit(await TrainingSession.create({{ bundle: "/metrics/{case}/bundle" }}));""",
            given=given(data, metrics[1:][::-1]),
        )
        assert python_requests(plain_site) == []
    native = natively(files, data, metrics)
    np.testing.assert_equal(page, native)
    np.testing.assert_equal(bundled, {name: native[name] for name in bundled})
    assert len(bundled) == len(native) - 1


def test_a_bundle_without_the_metric_says_so(browser: Browser, plain_site: Site) -> None:
    files, data, metrics = classes()
    plain_site.add("/metrics/plain-bundle", bundle_of(files, data, []))
    with open_page(browser, plain_site) as page:
        message = page.run(
            f"""{FIT}
            try {{
              return await fit(await TrainingSession.create({{ bundle: "/metrics/plain-bundle" }}));
            }} catch (error) {{
              return error.name + ": " + error.message;
            }}""",
            given=given(data, metrics),
        )
    assert message.startswith("SessionError: ") and "an eval step with these metrics" in message


def test_a_target_that_is_no_class_is_named(js: JsPage, plain_site: Site) -> None:
    files, data, _ = classes()
    metrics = [{"type": "accuracy", "ignore_index": 0}]
    plain_site.add("/metrics/whole-bundle", bundle_of(files, data, metrics))
    message = js.run(
        f"""{FIT}
        try {{
          return await fit(await TrainingSession.create({{ bundle: "/metrics/whole-bundle" }}));
        }} catch (error) {{
          return error.name + ": " + error.message;
        }}""",
        given=given(data, metrics),
    )
    text = "FeedError: accuracy: the target -100 is not one of the 5 classes; 'ignoreIndex' leaves one out."
    assert message.startswith(text)
