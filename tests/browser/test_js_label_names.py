"""Names of labels, further columns, and weights of rows and labels in a page: the same as in CPython."""

from typing import Any

import numpy as np
import pytest

import trainweb

from .js_session import JsPage
from .server import Site
from .test_js_predict import GIVEN, MODEL, START, X

TARGET = np.cos(np.arange(75 * 3)).astype(np.float32).reshape(75, 3)
PRESENT = (np.arange(75 * 3) % 4 != 0).astype(np.float32).reshape(75, 3)
OPTIONS: dict[str, Any] = {"optimizer": {"type": "AdamW", "learning_rate": 0.05}, "options": {"reproducible": True}}


@pytest.fixture(scope="module", autouse=True)
def _files(plain_site: Site) -> None:
    plain_site.add("/model.onnx", MODEL.SerializeToString())


def test_labels_have_one_name_and_further_columns_are_left_out(js: JsPage) -> None:
    found = js.run(
        START
        + """
        await s.release();
        const target = new Tensor("float32", Float32Array.from(given.target), [75, 3]);
        const squared = { ...config, loss: "MSELoss" };
        const own = await TrainingSession.createFromModel("/model.onnx", squared, { reproducible: true });
        const id = new Tensor("float32", new Float32Array(75), [75]);
        const steps = [];
        for (const feeds of [{ x, labels: target }, { x, target }]) {
          steps.push((await own.runEvalStep(feeds))[own.evalOutputNames[0]].data[0]);
        }
        await own.prepare({ x: [75, 5], target: [75, 3] });
        const values = [];
        const sources = [[{ x, labels: target }, "labels"], [{ x, target }, "target"], [{ x, labels: target, id }]];
        for (const [data, targets] of sources) {
          values.push(await own.evaluate(data, { metrics: "mae", ...(targets && { targets }) }));
        }
        const rows = () => Array.from({ length: 75 }, (_, k) => ({ x: x.data.slice(k * 5, k * 5 + 5), id: k }));
        const predicted = [];
        for (const data of [{ x }, { x, id }, rows]) {
          predicted.push(Array.from((await own.predict(data)).y.data));
        }
        const twice = { x, labels: target, target };
        const refused = await errors(() => own.runEvalStep(twice), () => own.predict({ y: x, id }));
        await own.release();
        return { steps, values, predicted, refused };
        """,
        given=GIVEN | {"target": TARGET.ravel().tolist()},
    )
    with trainweb.TrainingSession.from_model(MODEL, loss="MSELoss", **OPTIONS) as s:
        values = s.evaluate({"x": X, "labels": TARGET}, metrics="mae")
    assert found["values"] == [values] * 3
    assert found["steps"][0] == found["steps"][1]
    first, *others = found["predicted"]
    assert others == [first, first]
    first, second = found["refused"]
    assert "invalid input 'target'" in first and "The data has no 'x'" in second


def test_weights_are_those_of_python(js: JsPage) -> None:
    found = js.run(
        START
        + """
        await s.release();
        const tensor = (values) => new Tensor("float32", Float32Array.from(values, (v) => v ?? NaN), [75, 3]);
        const data = { x, labels: tensor(given.target), present: tensor(given.present) };
        const own = { ...config, loss: "MSELoss", sampleWeight: { name: "present", of: "labels" } };
        const made = await TrainingSession.createFromModel("/model.onnx", own, { reproducible: true });
        const options = { batchSize: 20, epochs: 2, accumulate: 2, validationData: data, metrics: ["mae", "r2"] };
        const history = await made.fit(data, options);
        const refused = await errors(
          () => made.evaluate(data, { metrics: { mine: () => 0 } }),
          () => TrainingSession.createFromModel("/model.onnx", { ...own, sampleWeight: { name: "a", of: "b" } }),
        );
        const weights = Array.from((await made.getContiguousParameters(false)).data);
        await made.release();
        const values = history.epochs.map(({ validation }) => validation);
        return { losses: [...history.losses], values, refused, weights };
        """,
        given=GIVEN
        | {
            "target": [None if p == 0 else float(t) for t, p in zip(TARGET.ravel(), PRESENT.ravel(), strict=True)],
            "present": PRESENT.ravel().tolist(),
        },
    )
    data = {"x": X, "labels": np.where(PRESENT == 0, np.float32(np.nan), TARGET), "present": PRESENT}
    weight = {"name": "present", "of": "labels"}
    with trainweb.TrainingSession.from_model(MODEL, loss="MSELoss", sample_weight=weight, **OPTIONS) as s:
        history = s.fit(
            data, batch_size=20, epochs=2, accumulate=2, validation_data=data, metrics=["mae", "r2"], progress=False
        )
        assert found["losses"] == history.losses
        assert found["values"] == [epoch.validation for epoch in history.epochs]
        assert found["weights"] == s.get_contiguous_parameters(False).tolist()
    assert "a function is not computed with weights" in found["refused"][0].replace("'", "")
    assert "sampleWeight.of is 'b'; it must be rows or labels" in found["refused"][1]
