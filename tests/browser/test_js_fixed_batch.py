"""Files that fix the rows of a batch, in a page: the numbers and bytes of Python, whose own tests have float64."""

from typing import Any

import numpy as np
import pytest
from tests.python.test_fixed_batch import CLASSES, LABELS, NUMBERS, SCORES, TARGET, N, X, net, opened

from .js_session import JsPage
from .server import Site

START = """
    const x = new Tensor("float32", Float32Array.from(given.x), [31, 3]);
    const target = new Tensor("float32", Float32Array.from(given.target), [31, 3]);
    const labels = new Tensor("int64", BigInt64Array.from(given.labels, BigInt), [31]);
    const of = (tensor, from, to) => new Tensor(tensor.type, tensor.data.slice(from * tensor.data.length / 31,
      to * tensor.data.length / 31), [to - from, ...tensor.dims.slice(1)]);
    const open = (rows, loss = "CrossEntropyLoss") =>
      TrainingSession.createFromModel(`/net${rows}.onnx`, { loss, optimizer: "SGD" }, { reproducible: true });
    const text = (run) => run().then(() => null, (error) => `${error.name}: ${error.message}`);
"""
GIVEN = {"x": X.ravel().tolist(), "target": TARGET.ravel().tolist(), "labels": LABELS.tolist()}
SIZES = [1, 4, 6, 64]


@pytest.fixture(scope="module", autouse=True)
def _files(plain_site: Site) -> None:
    for rows in SIZES:
        plain_site.add(f"/net{rows}.onnx", net(rows).SerializeToString())


@pytest.mark.parametrize("rows", SIZES)
def test_all_rows_are_predicted_and_evaluated_once(js: JsPage, rows: int) -> None:
    classes, numbers, predicted, seen = js.run(
        START
        + """
        const seen = [];
        const own = (predictions, targets) => {
          seen.push([predictions.dims, targets.dims]);
          return predictions.data[0];
        };
        const s = await open(rows);
        const metrics = ["accuracy", "auc", "confusionMatrix", "perplexity", { own }];
        const classes = await s.evaluate({ x, labels }, { metrics });
        const predicted = [];
        for (const data of [x, of(x, 0, 2), Array.from({ length: 31 }, (_, k) => ({ x: of(x, k, k + 1).data }))]) {
          predicted.push([...(await s.predict(data)).y.data]);
        }
        await s.release();
        const t = await open(rows, { type: "MSELoss", reduction: "sum" });
        const numbers = await t.evaluate({ x, target }, { metrics: ["mae", "r2"] });
        await t.release();
        return [classes, numbers, predicted, seen];
        """,
        given=GIVEN,
        rows=rows,
    )
    for scores in predicted:
        np.testing.assert_allclose(np.reshape(scores, (-1, 3)), SCORES[: len(scores) // 3], rtol=1e-5, atol=1e-6)
    assert [len(scores) for scores in predicted] == [3 * N, 6, 3 * N] and seen == [[[N, 3], [N]]]
    metrics: list[Any] = ["accuracy", "auc", "confusionMatrix", "perplexity", {"own": lambda p, _: float(p[0, 0])}]
    with opened(rows) as s:
        assert s.evaluate(CLASSES, metrics=metrics) == classes
    with opened(rows, {"type": "MSELoss", "reduction": "sum"}) as s:
        assert s.evaluate(NUMBERS, metrics=["mae", "r2"]) == numbers


@pytest.mark.parametrize("form", ["arrays", "rows", "batches"])
def test_whole_batches_train(js: JsPage, form: str) -> None:
    said: list[str] = []
    js.page.on("console", lambda message: said.append(message.text))
    found = js.run(
        START
        + """
        const rows = (from, to) => ({ x: of(x, from, to), labels: of(labels, from, to) });
        const row = (k) => ({ x: of(x, k, k + 1).data, labels: labels.data[k] });
        const data = {
          arrays: rows(0, 25),
          rows: () => Array.from({ length: 25 }, (_, k) => row(k)),
          batches: () => Array.from({ length: 7 }, (_, k) => rows(4 * k, Math.min(4 * k + 4, 25))),
        };
        const s = await open(4);
        const options = { epochs: 2, learningRate: 0.1, validationData: rows(25, 31), metrics: "accuracy" };
        const more = form === "arrays" ? { shuffle: true, trainMetrics: true } : {};
        const { losses, epochs } = await s.fit(data[form], { ...options, ...more });
        const weights = [...(await s.getContiguousParameters(true)).data];
        await s.release();
        return [[...losses], weights, ...["validation", "training"].map((name) => epochs.map((epoch) => epoch[name]))];
        """,
        given=GIVEN,
        form=form,
    )
    held = {"x": X[25:], "labels": LABELS[25:]}
    options: dict[str, Any] = {"epochs": 2, "learning_rate": 0.1, "validation_data": held, "metrics": "accuracy"}
    with opened(4) as s:
        options |= {"shuffle": form == "arrays", "train_metrics": form == "arrays", "progress": False}
        history = s.fit({"x": X[:25], "labels": LABELS[:25]}, **options)
        assert found[0] == history.losses and found[1] == s.get_contiguous_parameters().tolist()
    assert found[2] == [epoch.validation for epoch in history.epochs]
    assert found[3] == [epoch.training for epoch in history.epochs]
    notices = {line for line in said if "The file fixes batches of 4 rows" in line}
    assert len(notices) == 1 and "leaves out 1 of its rows" in notices.pop()


def test_refusals(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const s = await open(4);
        const data = { x, labels };
        const bad = { x, labels: new Tensor("int64", labels.data.map((label, k) => (k === 29 ? 7n : label)), [31]) };
        const errors = [];
        for (const call of ["fit", "evaluate", "predict", "findLearningRate"]) {
          errors.push(await text(async () => s[call](data, { batchSize: 8 })));
        }
        errors.push(await text(async () => s.evaluate(bad)));
        await s.fit(data, { batchSize: 4, remainder: "pad" });
        const { losses } = await s.findLearningRate(data, { steps: 20 });
        await s.release();
        return [errors, losses.length];
        """,
        given=GIVEN,
    )
    (*sizes, label), steps = found
    expected = (
        "ModelError: batchSize is 8; it must be 4, which the first axis of the input 'x' fixes in the file: leave it "
        "out ('accumulate' of fit makes larger steps), or export the model with dynamic_shapes."
    )
    assert all(error.startswith(expected) for error in sizes) and steps > 1
    assert "'labels' of row 29 of the data is out of range (batch 8)." in label
