"""Metrics of a page that are functions, against the built-in ones, numpy in float64 and CPython."""

from typing import Any

import numpy as np
import pytest

import trainweb

from .js_session import JsPage
from .server import Site
from .test_js_predict import GIVEN, LABELS, MODEL, START, X

FUNCTIONS = """
    const right = (predictions, targets) => {
      const [rows, classes] = predictions.dims;
      const scores = (k) => Array.from(predictions.data.subarray(k * classes, (k + 1) * classes));
      const hits = Array.from({ length: rows }, (_, k) => {
        const own = scores(k);
        return own.indexOf(Math.max(...own)) === Number(targets.data[k]);
      });
      return hits.filter(Boolean).length / rows;
    };
    const kinds = [];
    const spread = (predictions, targets) => {
      kinds.push([predictions.type, predictions.dims, targets.type, targets.dims]);
      return Math.max(...predictions.data) - Math.min(...predictions.data);
    };
    const metrics = [{ right, spread }, "accuracy"];
"""


@pytest.fixture(scope="module", autouse=True)
def _files(plain_site: Site) -> None:
    plain_site.add("/model.onnx", MODEL.SerializeToString())


def own_right(predictions: np.ndarray, targets: np.ndarray) -> float:
    return float(np.mean(predictions.argmax(1) == targets))


def own_spread(predictions: np.ndarray, targets: np.ndarray) -> float:
    return float(predictions.max()) - float(predictions.min())


def test_values_are_those_of_numpy_and_python(js: JsPage) -> None:
    found = js.run(
        START
        + FUNCTIONS
        + """
        const row = (k) => ({ x: x.data.slice(k * 5, k * 5 + 5), labels: labels.data[k] });
        const stream = () => Array.from({ length: 75 }, (_, k) => row(k));
        const values = [];
        for (const validationData of [{ x, labels }, stream]) {
          const history = await s.fit({ x, labels }, { batchSize: 8, epochs: 2, metrics, validationData });
          values.push(...history.epochs.map(({ validation }) => validation));
        }
        const last = await s.evaluate({ x, labels }, { metrics, batchSize: 8 });
        const [w, b] = [await s.getParameter("w"), await s.getParameter("b")];
        await s.release();
        return { values, last, kinds, w: Array.from(w.data), b: Array.from(b.data) };
        """,
        given=GIVEN,
    )
    settings: dict[str, Any] = {
        "optimizer": {"type": "AdamW", "learning_rate": 0.05},
        "options": {"reproducible": True},
    }
    data = {"x": X, "labels": LABELS}
    metrics: list[Any] = [{"right": own_right, "spread": own_spread}, "accuracy"]
    with trainweb.TrainingSession.from_model(MODEL, loss="CrossEntropyLoss", **settings) as s:
        native = []
        for _ in range(2):
            history = s.fit(data, batch_size=8, epochs=2, metrics=metrics, validation_data=data, progress=False)
            native += [epoch.validation for epoch in history.epochs]
        assert found["values"] == native
        assert found["last"] == s.evaluate(data, metrics=metrics, batch_size=8) == native[-1]
    logits = X.astype(np.float64) @ np.reshape(found["w"], (5, 3)) + found["b"]
    assert found["last"]["right"] == found["last"]["accuracy"] == np.mean(logits.argmax(1) == LABELS)
    assert found["last"]["spread"] == pytest.approx(np.ptp(logits), rel=1e-5)
    assert all(kind == ["float32", [75, 3], "int64", [75]] for kind in found["kinds"])


def test_early_stopping_goes_by_a_function(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const data = { x, labels };
        const ended = async (mode) => {
          const values = [1, 3, 2, 2, 9];
          const earlyStopping = { patience: 2, metric: "own", ...(mode === null ? {} : { mode }) };
          const metrics = { own: () => values.shift() };
          const history = await s.fit(data, { epochs: 5, validationData: data, metrics, earlyStopping });
          return [history.ended, history.bestEpoch, history.epochs.map(({ validation }) => validation.own)];
        };
        const found = await errors(() => ended("max"), () => ended("min"), () => ended(null), () => ended("more"));
        await s.release();
        return found;
        """,
        given=GIVEN,
    )
    assert found == [
        ["early", 2, [1, 3, 2, 2]],
        ["early", 1, [1, 3, 2]],
        "ModelError: earlyStopping needs the setting 'mode': min or max.",
        "ModelError: earlyStopping.mode is 'more'; it must be min or max.",
    ]


def test_a_function_that_gives_no_number_is_named(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const data = { x, labels };
        const tried = (mine) => [
          () => s.evaluate(data, { metrics: { mine } }),
          () => s.fit(data, { validationData: data, metrics: [{ mine }] }),
        ];
        const said = await errors(
          ...tried(() => { throw new RangeError("too far"); }), ...tried(() => "much"), ...tried(() => NaN),
          ...tried(async () => 1), () => s.evaluate(data, { metrics: { loss: () => 1 } }),
          () => s.evaluate(data, { metrics: ["accuracy", { accuracy: () => 1 }] }),
          () => s.evaluate(data, { metrics: { mine: 3 } }), () => s.evaluate(data, { metrics: "rows" }),
          () => s.fit(data, { metrics: { mine: () => 1 } }),
        );
        const { loss } = await s.evaluate(data);
        await s.release();
        return [said, loss];
        """,
        given=GIVEN,
    )
    said, loss = found
    rest = "it must return one number that is not NaN."
    expected = [
        *["ModelError: The metric 'mine' failed: RangeError: too far"] * 2,
        *[f"ModelError: The metric 'mine' returned a value of type string; {rest}"] * 2,
        *[f"ModelError: The metric 'mine' returned NaN; {rest}"] * 2,
        *[f"ModelError: The metric 'mine' returned a value of type Promise; {rest}"] * 2,
        "ModelError: the name of a metric is 'loss'; it must be a text other than 'loss'.",
        "ModelError: The metric 'accuracy' is given twice: ",
        "ModelError: metric needs the setting 'type'",
        "TypeError: There is no metric 'rows'",
        "ModelError: Metrics need validation data",
    ]
    assert len(said) == len(expected) and np.isfinite(loss)
    for text, start in zip(said, expected, strict=True):
        assert text.startswith(start), text


def test_metrics_of_the_training_data(js: JsPage) -> None:
    found = js.run(
        START
        + FUNCTIONS
        + """
        const part = (first, rows) => ({
          x: new Tensor("float32", x.data.slice(first * 5, (first + rows) * 5), [rows, 5]),
          labels: new Tensor("int64", labels.data.slice(first, first + rows), [rows]),
        });
        const options = { batchSize: 8, epochs: 2, metrics, trainMetrics: true, remainder: "drop" };
        const store = new CheckpointStore("train-metrics");
        const checkpoint = { store, name: "run" };
        const both = await s.fit(part(0, 60), { ...options, validationData: part(60, 15), checkpoint });
        const again = await s.fit(part(0, 60), { ...options, validationData: part(60, 15), checkpoint });
        const byHand = await s.evaluate(part(0, 60), { metrics, batchSize: 8 });
        const alone = await s.fit(part(0, 60), options);
        const stream = () => Array.from({ length: 8 }, (_, k) => ({ x: x.data.slice(0, 5), labels: labels.data[k] }));
        const said = await errors(() => s.fit(stream, { trainMetrics: true }));
        await s.release();
        const values = ({ epochs }) => epochs.map(({ training, validation }) => [training, validation]);
        return { both: values(both), again: values(again), byHand, alone: values(alone), said };
        """,
        given=GIVEN,
    )
    settings: dict[str, Any] = {
        "optimizer": {"type": "AdamW", "learning_rate": 0.05},
        "options": {"reproducible": True},
    }
    train, other = ({"x": X[part], "labels": LABELS[part]} for part in (slice(0, 60), slice(60, 75)))
    metrics: list[Any] = [{"right": own_right, "spread": own_spread}, "accuracy"]
    options: dict[str, Any] = {"batch_size": 8, "epochs": 2, "metrics": metrics, "train_metrics": True}
    options |= {"remainder": "drop", "progress": False}
    with trainweb.TrainingSession.from_model(MODEL, loss="CrossEntropyLoss", **settings) as s:
        both = s.fit(train, validation_data=other, **options)
        assert found["byHand"] == s.evaluate(train, metrics=metrics, batch_size=8)
        alone = s.fit(train, **options)
    assert found["both"] == found["again"] == [[e.training, e.validation] for e in both.epochs]
    assert found["byHand"] == found["both"][-1][0] != found["both"][-1][1]
    assert found["alone"] == [[e.training, None] for e in alone.epochs]
    (said,) = found["said"]
    assert said.startswith("ModelError: 'trainMetrics' evaluates the training data again")
