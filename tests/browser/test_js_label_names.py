"""Names of labels, further columns, and weights of rows and labels in a page: the same as in CPython."""

from typing import Any

import numpy as np
import pytest
from tests.python.test_loss_terms import ARRAYS, SHARES
from tests.python.test_loss_terms import model as outputs

import trainweb

from .js_session import JsPage
from .server import Site
from .test_js_predict import GIVEN, MODEL, START, X

TARGET = np.cos(np.arange(75 * 3)).astype(np.float32).reshape(75, 3)
OUTPUT = MODEL.graph.output[0].name
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
          () => made.evaluate({ ...data, present: new Tensor("float32", new Float32Array(75), [75]) }),
          () => made.evaluate({ ...data, present: tensor(given.present).reshape([75, 3, 1]) }),
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
    own, of, *shapes = found["refused"]
    assert "A metric of your own (mine) gets no weights of rows" in own
    assert "sampleWeight.of is 'b'; it must be rows or labels" in of
    for shape, what in zip(shapes, ("rows", "labels"), strict=True):
        assert f"For weights of {what}, make the session with 'of': '{what}' in sampleWeight." in shape


def test_notices_of_losses_are_those_of_python(js: JsPage, plain_site: Site) -> None:
    """Of labels that are no probabilities; errors of terms that `accumulate` does not weigh; and losses in a list."""
    for names in (("kind", "age"), ("kind",)):
        plain_site.add(f"/{len(names)}.onnx", outputs(*names))
    found = js.run(
        """
        const [said, before] = [[], console.warn];
        console.warn = (text) => said.push(text.replace("trainweb: ", ""));
        const fit = async (model, loss, data, options) => {
          said.length = 0;
          const s = await TrainingSession.createFromModel(model, { loss, optimizer: "SGD" });
          for (let k = 0; k < 2; k++) await s.fit(data, { batchSize: 5, learningRate: 1e-6, ...options });
          await s.release();
          return [...said];
        };
        const of = (values, columns) => new Tensor("float32", Float32Array.from(values), [23, columns]);
        const [x, shares, age] = [of(given.x, 6), of(given.shares, 3), of(given.age, 1)];
        const kinds = new Tensor("int64", BigInt64Array.from(given.kind, BigInt), [23]);
        const weighed = { kind: { name: "CrossEntropyLoss", weights: [1, 5, 0.2] }, age: "MSELoss" };
        const both = { x, kind_labels: kinds, age_labels: age };
        const sum = { steps: 2, reduction: "sum" };
        const accumulated = [];
        const uneven = await failure(() => fit("/2.onnx", weighed, both, { accumulate: 2 }));
        for (const accumulate of [1, sum]) accumulated.push(await fit("/2.onnx", weighed, both, { accumulate }));
        const plain = { ...weighed, kind: "CrossEntropyLoss" };
        accumulated.push(await fit("/2.onnx", plain, both, { accumulate: 2 }));
        const soft = { type: "CrossEntropyLoss", probabilities: true };
        const [named, streams] = [[], []];
        for (const change of [(v) => v, (v) => 2 * v, (v) => v - 0.1, (v, k) => v + [2, -2, 0][k % 3]]) {
          const labels = of(given.shares.map(change), 3);
          const rows = Array.from({ length: 23 }, (_, k) => ({
            x: x.data.slice(6 * k, 6 * k + 6), labels: labels.data.slice(3 * k, 3 * k + 3) }));
          named.push(await fit("/1.onnx", soft, { x, labels }));
          for (const fed of [rows, () => rows]) streams.push(await fit("/1.onnx", soft, fed));
        }
        const ofOutput = { kind: soft, age: "MSELoss" };
        named.push(await fit("/2.onnx", ofOutput, { ...both, kind_labels: of(given.shares.map(Math.log), 3) }));
        const list = ["MSELoss", { name: "L1Loss", weight: 0.1 }];
        const s = await TrainingSession.createFromModel("/1.onnx", { loss: list, sampleWeight: "w" });
        const values = await s.evaluate({ x, labels: shares, w: new Float32Array(23).fill(1) });
        await s.release();
        console.warn = before;
        const refused = [];
        for (const [model, loss] of [["/2.onnx", list], ["/1.onnx", []], ["/1.onnx", [{ ...list[1], weight: -1 }]]]) {
          refused.push((await failure(() => TrainingSession.createFromModel(model, { loss }))).message);
        }
        return { uneven: uneven.message, accumulated, named, streams, values, refused };
        """,
        given={name: ARRAYS[f"train.{name}"].ravel().tolist() for name in ("x", "kind", "age")}
        | {"shares": SHARES.ravel().tolist()},
    )
    assert "which do not divide these terms of the loss: kind_loss. Raise 'batchSize'" in found["uneven"]
    assert found["accumulated"] == [[], [], []]
    whole, *named, of_output = found["named"]
    assert (
        whole == [] and all("The first rows of 'labels' are no prob" in said for (said,) in named) and len(named) == 3
    )
    assert found["streams"] == [said for said in found["named"][:4] for _ in range(2)]
    assert "'kind_labels' are no probabilities" in of_output[0] and len(of_output) == 1
    with trainweb.TrainingSession.from_model(
        outputs("kind"), loss=["MSELoss", {"name": "L1Loss", "weight": 0.1}], options={"reproducible": True}
    ) as s:
        values = s.evaluate({"x": ARRAYS["train.x"], "labels": SHARES})
    assert found["values"] == pytest.approx(values, rel=1e-6)
    assert "it must be losses by outputs, such as {'kind': ['MSELoss', ...]}" in found["refused"][0]
    assert "loss is []; it must be losses by outputs" in found["refused"][1]
    assert "loss.weight is -1; it must be a number at least 0" in found["refused"][2]


def test_areas_with_weights_and_metrics_of_distributions_are_those_of_python(js: JsPage) -> None:
    labels, w = np.arange(75) % 3, np.random.default_rng(2).choice([0, 0.5, 1, 2], 75).astype(np.float32)
    shares = np.random.default_rng(3).dirichlet(np.ones(3), 75).astype(np.float32)
    found = js.run(
        START
        + """
        await s.release();
        const open = (own) =>
          TrainingSession.createFromModel("/model.onnx", { ...config, ...own }, { reproducible: true });
        const values = [];
        const weighed = await open({ loss: "CrossEntropyLoss", sampleWeight: { name: "share", of: "labels" } });
        const data = { x, labels: given.labels, share: new Tensor("float32", given.w, [75]) };
        for (const average of ["macro", "none"]) {
          values.push(await weighed.evaluate(data, { metrics: { type: "auc", average }, batchSize: 20 }));
        }
        await weighed.release();
        const term = { name: "CrossEntropyLoss", probabilities: true };
        const terms = await open({ loss: { [given.output]: term } });
        const of = { x, [`${given.output}_labels`]: new Tensor("float32", given.shares, [75, 3]) };
        const metrics = { [given.output]: ["accuracy", "perplexity"] };
        values.push(await terms.evaluate(of, { metrics, batchSize: 20 }));
        const refused = await errors(
          () => terms.evaluate(of, { metrics: "perplexity" }),
          () => terms.evaluate(of, { metrics: [() => 0] }),
        );
        await terms.release();
        return { values, refused };
        """,
        given=GIVEN | {"labels": labels.tolist(), "w": w.tolist(), "shares": shares.ravel().tolist(), "output": OUTPUT},
    )
    weight = {"name": "share", "of": "labels"}
    with trainweb.TrainingSession.from_model(MODEL, loss="CrossEntropyLoss", sample_weight=weight, **OPTIONS) as s:
        for average, values in zip(("macro", "none"), found["values"], strict=False):
            metric = {"type": "auc", "average": average}
            assert s.evaluate({"x": X, "labels": labels, "share": w}, metrics=metric, batch_size=20) == values
    loss = {OUTPUT: {"name": "CrossEntropyLoss", "probabilities": True}}
    with trainweb.TrainingSession.from_model(MODEL, loss=loss, **OPTIONS) as s:
        data = {"x": X, f"{OUTPUT}_labels": shares}
        assert s.evaluate(data, metrics={OUTPUT: ["accuracy", "perplexity"]}, batch_size=20) == found["values"][2]
    assert "the loss is something else. Ask for the perplexity of an output" in found["refused"][0]
    assert "a function needs a name: { name: function }" in found["refused"][1]
