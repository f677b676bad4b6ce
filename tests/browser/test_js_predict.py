"""`predict`, `evaluate` and learning rates of a page, against numpy in float64 and against CPython."""

import re

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal
from tests.python.test_buckets import LENGTHS, ROWS, SCORES, SUMS
from tests.python.test_session_tasks import tokens

import trainweb

from .js_session import JsPage
from .server import Site

MODEL = make_model(
    [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "head")],
    {"x": ["n", 5]},
    {"y": ["n", 3]},
    {"w": normal(5, 3), "b": normal(3, seed=1)},
)
X = np.sin(np.arange(75 * 5)).astype(np.float32).reshape(75, 5)
LABELS = (np.arange(75) % 3).astype(np.int64)

START = """
    const x = new Tensor("float32", Float32Array.from(given.x), [75, 5]);
    const labels = new Tensor("int64", BigInt64Array.from(given.labels, BigInt), [75]);
    const config = { loss: "CrossEntropyLoss", optimizer: { type: "AdamW", learningRate: 0.05 } };
    const s = await TrainingSession.createFromModel("/model.onnx", config, { reproducible: true });
    const errors = async (...calls) => {
      const found = [];
      for (const call of calls) {
        try { found.push(await call()); } catch (error) { found.push(`${error.name}: ${error.message}`); }
      }
      return found;
    };
"""


@pytest.fixture(scope="module", autouse=True)
def _files(plain_site: Site) -> None:
    plain_site.add("/model.onnx", MODEL.SerializeToString())


GIVEN = {"x": X.ravel().tolist(), "labels": LABELS.tolist()}


def test_predicts_the_output_of_the_model_before_the_loss_reshapes_it(js: JsPage, plain_site: Site) -> None:
    plain_site.add("/tokens.onnx", tokens().SerializeToString())
    found = js.run("""
        const s = await TrainingSession.createFromModel("/tokens.onnx", { loss: "CrossEntropyLoss" });
        const results = await s.predict({ ids: [[0, 1, 2], [3, 4, 5]] });
        await s.release();
        return Object.entries(results).map(([name, { dims, data }]) => [name, dims, Array.from(data)]);
    """)
    ((name, dims, logits),) = found
    assert (name, dims) == ("logits", [2, 3, 7])
    expected = normal(7, 4)[:6].astype(np.float64) @ normal(4, 7, seed=1)
    np.testing.assert_allclose(np.reshape(logits, (6, 7)), expected, rtol=1e-5, atol=1e-6)


def test_predictions_of_buckets_are_in_the_order_of_the_rows(js: JsPage, plain_site: Site) -> None:
    """Against sums of numpy, in every form that batches of buckets take; and the labels of texts."""
    plain_site.add("/sums.onnx", SUMS.SerializeToString())
    plain_site.add("/tokens.onnx", tokens().SerializeToString())
    found, counts, warned, (*wrong, row, batch), texts = js.run(
        """
        const loss = { type: "CrossEntropyLoss", ignoreIndex: -100 };
        const open = (model) => TrainingSession.createFromModel(model, { loss, optimizer: "SGD" });
        const rows = given.map((ids, k) => ({ ids: ids.map(BigInt), labels: BigInt(k % 3) }));
        const inBuckets = (data, options) => data.bucket(({ ids }) => ids.length, [3, 5, 8], 2, options);
        const bucketed = (source, options) => inBuckets(new Dataset(source), options);
        const s = await open("/sums.onnx");
        const cached = bucketed(rows).cache();
        const drawn = inBuckets(new Dataset(rows).shuffle({ seed: 1 })).cache();
        for await (const batch of drawn) void batch;
        const forms = [
          bucketed(rows), bucketed(rows.values()), inBuckets(new Dataset(rows).shuffle()),
          bucketed(rows).map(({ ids }) => ({ ids })), bucketed(rows).prefetch(2), cached, cached,
          drawn, bucketed(rows).take(3),
        ];
        const found = [];
        for (const form of forms) found.push(Array.from((await s.predict(form)).logits.data));
        const bad = rows.map((row, k) => (k === 3 ? { ids: [1n, 99n], labels: 0n } : row));
        const calls = ["predict", "evaluate", "fit"];
        const wrong = [];
        for (const call of calls) wrong.push((await failure(() => s[call](bucketed(bad)))).message);
        await s.release();
        const tagged = rows.map(({ ids }) => ({ ids: ids.map((one) => one % 7n), labels: ids.map((one) => one % 7n) }));
        const [counts, warned, before] = [[], [], console.warn];
        console.warn = (text) => warned.push(text);
        for (const padded of [undefined, ["ids", "labels"], { ids: 0, labels: 0 }, { ids: 0, labels: -100 }]) {
          const s = await open("/tokens.onnx");
          const { confusionMatrix } = await s.evaluate(bucketed(tagged, { padded }), { metrics: ["confusionMatrix"] });
          counts.push(confusionMatrix.flat().reduce((a, b) => a + b));
          await s.release();
        }
        const weighted = { loss: "CrossEntropyLoss", sampleWeight: { name: "weights", of: "labels" } };
        const weighed = await TrainingSession.createFromModel("/tokens.onnx", weighted);
        const withWeights = tagged.map((row) => ({ ...row, weights: Array(row.ids.length).fill(1) }));
        await weighed.evaluate(bucketed(withWeights, {}));
        const padded = { ids: 0, labels: 0 };
        for (const size of [2, 1]) {
          const data = new Dataset(withWeights).bucket(({ ids }) => ids.length, [9], size, { padded });
          wrong.push((await failure(() => weighed.evaluate(data))).message);
        }
        await weighed.evaluate(bucketed(withWeights, { padded: { ...padded, weights: 0 } }));
        await weighed.release();
        const named = tagged.map((row, k) => ({ ...row, name: "a".repeat(k % 3), words: row.ids.map(() => "a") }));
        const s2 = await open("/tokens.onnx");
        const texts = [];
        for (const rows of [tagged, named]) texts.push((await s2.evaluate(bucketed(rows))).loss);
        await s2.release();
        console.warn = before;
        return [found, counts, warned, wrong, texts];""",
        given=[row["ids"].tolist() for row in ROWS],
    )
    for number, scores in enumerate(found):
        expected = SCORES[[0, 1, 2, 3, 4, 6]] if number == len(found) - 1 else SCORES
        np.testing.assert_allclose(np.reshape(scores, (-1, 3)), expected, rtol=1e-5, atol=1e-6)
    places = sum(3 if n <= 3 else 5 if n <= 5 else 8 for n in LENGTHS)
    assert counts == [places, places, places, sum(LENGTHS)]
    notice = "trainweb: 'bucket' pads 'labels' with 0, which counts as a class. Give another number"
    *warned, further = warned
    assert [text[: len(notice)] for text in warned] == [notice] * 4
    assert "These columns of the data are not read: name, words." in further and texts[0] == texts[1]
    assert re.search(r"Row . of .* float32\[\d\] as 'weights'; .* name 'weights' in its 'padded', .*0 of weights", row)
    assert "in 'weights'. If 'bucket' pads the rows, name both in its 'padded'" in batch
    assert all("'ids' of row 3 of the data" in message for message in wrong)


def test_each_token_of_several_buckets_gets_its_prediction(js: JsPage, plain_site: Site) -> None:
    plain_site.add("/tokens.onnx", tokens().SerializeToString())
    rows = [row["ids"] % 7 for row in ROWS]
    dims, logits = js.run(
        """
        const s = await TrainingSession.createFromModel("/tokens.onnx", { loss: "CrossEntropyLoss" });
        const rows = new Dataset(given.map((ids) => ({ ids: ids.map(BigInt) })));
        const { logits } = await s.predict(rows.bucket(({ ids }) => ids.length, [3, 5, 8], 2));
        await s.release();
        return [logits.dims, [...logits.data]];""",
        given=[row.tolist() for row in rows],
    )
    found = np.reshape(logits, dims)
    assert found.shape == (11, 8, 7)
    bounds = [min(bound for bound in (3, 5, 8) if bound >= n) for n in LENGTHS]
    for scores, row, bound in zip(found, rows, bounds, strict=True):
        expected = normal(7, 4)[row].astype(np.float64) @ normal(4, 7, seed=1)
        np.testing.assert_allclose(scores[: len(expected)], expected, rtol=1e-5, atol=1e-6)
        assert not scores[bound:].any()


def test_predicts_and_evaluates_as_numpy_and_python(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const rate = await s.getLearningRate();
        await s.fit({ x, labels }, { epochs: 2 });
        const [w, b] = [await s.getParameter("w"), await s.getParameter("b")];
        const predicted = [];
        for (const batchSize of [undefined, 7, 75]) {
          const { y } = await s.predict({ x }, { batchSize });
          predicted.push([y.dims, Array.from(y.data)]);
        }
        const rows = Array.from({ length: 75 }, (_, k) => given.x.slice(5 * k, 5 * k + 5));
        for (const data of [{ x, labels }, [x], x, rows, { x: rows }]) {
          const { y } = await s.predict(data);
          predicted.push([y.dims, Array.from(y.data)]);
        }
        const strange = rows.map((row, k) => ({ x: row, labels: Array(k).fill("text") }));
        for (const data of [strange, { x, labels: ["text"] }, [{ x, labels: rows }]]) {
          const { y } = await s.predict(data, { outputs: ["y"] });
          predicted.push([y.dims, Array.from(y.data)]);
        }
        const values = await s.evaluate({ x, labels }, { metrics: ["accuracy"], batchSize: 8 });
        await s.release();
        return { rate, w: Array.from(w.data), b: Array.from(b.data), predicted, values };
        """,
        given=GIVEN,
    )
    w, b = np.reshape(found["w"], (5, 3)), np.array(found["b"])
    logits = X.astype(np.float64) @ w + b
    assert found["rate"] == pytest.approx(0.05)
    for dims, y in found["predicted"]:
        assert dims == [75, 3]
        np.testing.assert_allclose(np.reshape(y, (75, 3)), logits, rtol=1e-4, atol=1e-5)
    loss = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(75), LABELS])
    assert found["values"]["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["values"]["accuracy"] == np.mean(logits.argmax(1) == LABELS)
    settings = {"optimizer": {"type": "AdamW", "learning_rate": 0.05}, "options": {"reproducible": True}}
    with trainweb.TrainingSession.from_model(MODEL, loss="CrossEntropyLoss", **settings) as s:
        s.fit({"x": X, "labels": LABELS}, epochs=2, progress=False)
        np.testing.assert_array_equal(s.get_parameter("w").ravel(), np.float32(found["w"]))
        np.testing.assert_array_equal(s.predict({"x": X})["y"].ravel(), np.float32(found["predicted"][0][1]))
        assert s.evaluate({"x": X, "labels": LABELS}, metrics=["accuracy"], batch_size=8) == found["values"]


def test_rates_and_refusals(js: JsPage) -> None:
    line = "{ type: 'Linear', warmup: 2 }"
    found = js.run(
        START
        + f"""
        const open = (config) =>
          TrainingSession.createFromModel("/model.onnx", {{ loss: "CrossEntropyLoss", ...config }});
        const two = {{ optimizer: {{ type: "SGD", learningRate: 0.1 }}, learningRate: 0.2 }};
        const events = [];
        const plain = await open({{ learningRate: 0.25 }});
        events.push(await plain.getLearningRate());
        await plain.release();
        const gone = new Tensor("float32", Float32Array.from(given.x), [75, 5]);
        gone.dispose();
        await s.fit({{ x, labels }}, {{ epochs: 4, batchSize: 75, learningRate: 1, schedule: {line},
          callbacks: (event) => {{ if (event.type === "epoch") events.push(event.learningRate); }} }});
        const said = await errors(
          () => open(two), () => open({{ learningRate: 0.2, optimizer: null }}),
          () => s.fit(x, labels), () => s.evaluate([[1]], [1]),
          () => s.fit({{ x, labels }}, {{ learningRate: 0.5, schedule: {{ type: "Constant", learningRate: 0.25 }} }}),
          () => s.fit({{ x, labels }}, {{ learningRate: 0.5, schedule: () => 0.1 }}),
          () => s.predict({{ x }}, {{ outputs: ["nothing"] }}), () => s.predict({{ x }}, {{ outputs: [] }}),
          () => s.predict({{ x }}, {{ ema: true }}),
          () => s.evaluate({{ x }}), () => s.predict({{ x: gone }}), () => s.evaluate({{ x: gone, labels }}),
          () => s.fit({{ x: gone, labels }}, {{ validationSplit: 0.5 }}),
        );
        await s.release();
        return [events, said];
        """,
        given=GIVEN,
    )
    events, said = found
    assert events == [0.25, 0, 0.5, 1, 0.5]  # AdamW is the default
    expected = [
        "ModelError: The learning rate is 0.2 and, in 'optimizer', 0.1. Give it once.",
        "ModelError: learningRate needs an 'optimizer'",
        "TypeError: 'options' of fit must be an object, not an array. Give several arrays as one: [x, y].",
        "TypeError: 'options' of evaluate must be an object, not an array.",
        "ModelError: The learning rate is 0.5 and, in 'schedule', 0.25. Give it once.",
        "ModelError: Leave out 'learningRate', or the schedule",
        "ModelError: ",
        "ModelError: outputs is ",
        "SessionError: ",
        "FeedError: ",
        *["FeedError: Row 0 of the data has a disposed tensor as 'x'"] * 3,
    ]
    for text, start in zip(said, expected, strict=True):
        assert text.startswith(start), text


def test_a_prediction_of_nan_names_input_and_row_once(js: JsPage) -> None:
    """As a form with an empty date gives it; infinity that the model bounds is no reason."""
    lines: list[str] = []
    js.page.on("console", lambda message: lines.append(message.text))
    js.run(
        f"""{START}
        const holed = Float32Array.from(given.x, (v, k) => (k >= 66 && k % 5 === 1 ? NaN : v));
        const gap = new Tensor("float32", holed, [75, 5]);
        const other = new Tensor("float32", holed.map((v, k) => (k === 41 ? NaN : v)), [75, 5]);
        await s.predict({{ x }});
        for (const data of [gap, gap, other]) await s.predict({{ x: data }}, {{ batchSize: 8 }});
        await s.release();""",
        given=GIVEN,
    )
    said = [line for line in lines if "NaN" in line]
    assert len(said) == 2
    for row, line in zip((13, 8), said, strict=True):
        assert f"Output 'y' has NaN. 'x' has nan in row {row} of the given rows." in line
