"""Sessions with a loss of one's own in a page: predictions, exports and metrics read the outputs of the base model."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from playwright.sync_api import Browser
from tests.python.own_losses import (
    LABELS,
    SCORES,
    TARGET,
    WEIGHTS,
    TwoHeads,
    X,
    linear,
    two_heads,
    weighted_entropy,
)

import trainweb
from trainweb.artifacts import Artifacts, build_artifacts
from trainweb.ir.shapes import TensorType
from trainweb.page.bundle import make_bundle

from .bundles import header_of, with_header
from .js_session import JsPage, open_js_page
from .server import Site

FILES = {"trainModel": "train_model", "evalModel": "eval_model", "optimizerModel": "optimizer_model"}
START = """
    const x = new Tensor("float32", Float32Array.from(given.x), [20, 4]);
    const labels = new Tensor("int64", BigInt64Array.from(given.labels, BigInt), [20]);
    const weights = new Tensor("float32", Float32Array.from(given.weights), [20]);
    const target = new Tensor("float32", Float32Array.from(given.target), [20, 1]);
    const text = async (run) => run().catch((error) => `${error.name}: ${error.message}`);
    const open = (name) => TrainingSession.create(Object.fromEntries(
      ["trainModel", "evalModel", "optimizerModel", "checkpoint"].map((file) => [file, `/${name}/${file}`])));
"""
GIVEN = {
    "x": X.ravel().tolist(),
    "labels": LABELS.tolist(),
    "weights": WEIGHTS.tolist(),
    "target": TARGET[:, 0].tolist(),
}
ACCURACY = float((SCORES.argmax(1) == LABELS).mean())


def serve(site: Site, name: str, files: Artifacts) -> None:
    for js, python in FILES.items():
        site.add(f"/{name}/{js}", getattr(files, python))
    site.add(f"/{name}/checkpoint", files.checkpoint)


def made(model: Any, own: Any) -> Artifacts:
    return build_artifacts(model, loss=own, optimizer="SGD")


def bundle(files: Artifacts) -> bytes:
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    types = {"x": ("float32", (20, 4)), "labels": ("int64", (20,)), "weights": ("float32", (20,))}
    models = files.train_model, files.eval_model, files.optimizer_model
    with trainweb.TrainingSession(state, *models) as s:
        core = s._core
    signature = {name: TensorType(*kind) for name, kind in types.items()}
    carried = {name: getattr(files, name) for name in FILES.values()}
    return make_bundle(core.models, core.state._lent(), [signature], carried, metrics=["accuracy"])


@pytest.fixture(scope="module")
def page(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    serve(plain_site, "weighted", made(linear(), weighted_entropy()))
    serve(plain_site, "heads", made(two_heads(), TwoHeads()))
    with open_js_page(browser, plain_site) as opened:
        yield opened


def test_a_loss_of_weighted_rows_leaves_the_scores_the_output(page: JsPage) -> None:
    found = page.run(
        START
        + """
        const s = await open("weighted");
        const { scores } = await s.predict({ x });
        const rows = { x, labels, weights };
        const metrics = "accuracy";
        const values = [];
        for (const names of [{}, { targets: "labels" }, { predictions: "scores", targets: "labels" }]) {
          values.push((await s.evaluate(rows, { metrics, ...names })).accuracy);
        }
        const history = await s.fit(rows, { validationData: rows, metrics, learningRate: 0 });
        values.push(history.epochs[0].validation.accuracy);
        const model = Array.from(new Uint8Array(await s.export()));
        await s.release();
        return { scores: Array.from(scores.data), values, model };
        """,
        given=GIVEN,
    )
    np.testing.assert_allclose(np.reshape(found["scores"], (20, 3)), SCORES, rtol=1e-5, atol=1e-6)
    assert found["values"] == [ACCURACY] * 4
    graph = onnx.load_from_string(bytes(found["model"])).graph
    assert ([v.name for v in graph.input], [v.name for v in graph.output]) == (["x"], ["scores"])


def test_a_metric_that_cannot_know_its_pair_says_so(page: JsPage) -> None:
    found = page.run(
        START
        + """
        const s = await open("heads");
        const rows = { x, labels, target };
        const names = Object.keys(await s.predict({ x }));
        const accuracy = async (options) => (await s.evaluate(rows, { metrics: "accuracy", ...options })).accuracy;
        const values = [await accuracy({ targets: "labels" }), await accuracy({ predictions: "scores" })];
        const error = await text(() => accuracy({}));
        await s.release();
        return { names, values, error };
        """,
        given=GIVEN,
    )
    assert found["names"] == ["scores", "size"] and found["values"] == [ACCURACY] * 2
    assert found["error"].startswith("ModelError: Metrics compare one output with one input")
    assert "scores, size) and 'targets' (one of x, labels, target) of each." in found["error"]


def test_bundles_of_before_keep_their_rule(page: JsPage, plain_site: Site) -> None:
    files = made(linear(), weighted_entropy())
    new = bundle(files)
    header = header_of(new)
    assert header["pairs"] == [["scores", "labels"]] and header["ownOutputs"] == ["scores"]
    del header["pairs"], header["defaultPair"], header["moving"]
    for count in header["lossCounts"].values():
        del count["losses"], count["terms"]
    (header["compared"],) = header["ownOutputs"] = ["onnx::loss::2"]  # the loss of each row meets the last input
    plain_site.add("/bundles/new", new)
    plain_site.add("/bundles/before", with_header(new, header))
    found = page.run(
        START
        + """
        const values = [];
        for (const name of ["new", "before"]) {
          const s = await TrainingSession.create({ bundle: `/bundles/${name}` });
          values.push(await text(() => s.evaluate({ x, labels, weights }, { metrics: "accuracy", batchSize: 20 })));
          await s.release();
        }
        return values;
        """,
        given=GIVEN,
    )
    assert found[0]["accuracy"] == ACCURACY
    model = onnx.load_from_string(files.eval_model)
    del model.metadata_props[:]
    state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
    with trainweb.TrainingSession(state, files.train_model, model, files.optimizer_model) as s:
        rows = {"x": X, "labels": LABELS, "weights": WEIGHTS}
        assert found[1]["accuracy"] == s.evaluate(rows, metrics="accuracy")["accuracy"] != ACCURACY
