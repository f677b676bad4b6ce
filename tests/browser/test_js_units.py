"""Predictions and errors of a page in the units of standardized targets, by numpy's formulas in float64."""

import numpy as np
import pytest
from tests.python.test_units import MEAN, PRICES, STD, X, model

from .js_session import JsPage

RUN = """
    const rows = (values) => Array.from({ length: 50 }, (_, k) => values.slice(k * 3, k * 3 + 3));
    const x = new Tensor("float32", Float32Array.from(given.x), [50, 3]);
    const labels = new Tensor("float64", Float64Array.from(given.prices), [50, 3]);
    const data = new trainweb.Dataset({ x, labels }).standardize("labels");
    const part = (k) => new Tensor("float32", Float32Array.from(rows(given.prices).flatMap((row) =>
      k === 0 ? row.slice(0, 1) : row.slice(1))), [50, k === 0 ? 1 : 2]);
    const joined = new trainweb.Dataset({ x, labels: part(0), b: part(1) })
      .standardize("b", "labels").concat("labels", ["labels", "b"]);
    const twice = data.rows([0, 1, 2, 3, 4, 5, 6, 7, 8]).standardize("labels");
    const s = await TrainingSession.createFromModel("/units.onnx", { loss: "MSELoss", optimizer: "SGD" });
    const asked = new trainweb.Dataset({ x }).preprocess(JSON.parse(JSON.stringify(data.preprocessing)));
    const predicted = [];
    for (const one of [{ x }, data, data.batch(7), asked, joined, twice]) {
      predicted.push(Array.from((await s.predict(one)).y.data));
    }
    const worst = (predictions, targets) =>
      predictions.data.reduce((most, value, k) => Math.max(most, Math.abs(value - targets.data[k])), 0);
    const metrics = ["mae", { worst }];
    const values = [await s.evaluate(data, { metrics }), await s.evaluate(joined, { metrics })];
    const options = { batchSize: 8, learningRate: 0, metrics, trainMetrics: true };
    const { epochs } = await s.fit(data, { ...options, validationData: data });
    values.push(epochs[0].validation, epochs[0].training);
    const first = data.map((row) => ({ x: row.x, labels: row.labels }));
    values.push(await s.evaluate(first, { metrics }));
    await s.release();
    return { predicted, values };
"""


def test_predictions_and_errors_are_in_units(js: JsPage) -> None:
    js.site.add("/units.onnx", model().SerializeToString())
    found = js.run(RUN, given={"x": X.ravel().tolist(), "prices": PRICES.ravel().astype(float).tolist()})
    plain, *predicted, twice = (np.array(values).reshape(-1, 3) for values in found["predicted"])
    units = plain * STD + MEAN
    for values in predicted:
        np.testing.assert_allclose(values, units, rtol=1e-5, atol=1e-4)
    few = PRICES[:9].astype(float)
    np.testing.assert_allclose(twice, plain[:9] * few.std(0) + few.mean(0), rtol=1e-5, atol=1e-4)
    errors = np.abs(units - PRICES)
    for values in found["values"]:
        assert values["mae"] == pytest.approx(errors.mean(), rel=1e-5)
        assert values["worst"] == pytest.approx(errors.max(), rel=1e-5)
        assert values["loss"] == pytest.approx((((units - PRICES) / STD) ** 2).mean(), rel=1e-5)


def test_a_row_of_another_width_is_an_error(js: JsPage) -> None:
    js.site.add("/unit.onnx", model(1).SerializeToString())
    texts = js.run(
        """const s = await TrainingSession.createFromModel("/unit.onnx", { loss: "MSELoss", optimizer: "SGD" });
        const x = [[1, 2, 3], [4, 5, 6]];
        const data = new trainweb.Dataset({ x, labels: [[1, 2, 3], [4, 6, 9]] }).standardize("labels");
        const first = data.map((row) => ({ x: row.x, labels: row.labels.data.slice(0, 1) }));
        const texts = [];
        for (const call of [() => s.predict(first), () => s.evaluate(first, { metrics: "mae" })]) {
          await call().then(() => texts.push(""), (error) => texts.push(error.message));
        }
        await s.release();
        return texts;"""
    )
    assert all("has 1 values in a row; the preprocessing was fitted on 3" in text for text in texts)
