"""Batches of loaders, tuples and plain arrays in a page: they train to the bytes that tensors train to."""

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model

from .js_session import JsPage
from .test_js_fit import OPEN, arrays, native

MAKE = (
    OPEN
    + """
    const whole = data();
    const xs = Array.from({ length: rows }, (_, k) => [...whole.x.data.subarray(10 * k, 10 * k + 10)]);
    const labels = [...whole.labels.data].map(Number);
    const size = 16;
    const starts = [0, 16, 32, 48];
    const part = (k) => ({
      x: new Tensor("float32", whole.x.data.slice(10 * k, 10 * (k + size)), [Math.min(size, rows - k), 10]),
      labels: new Tensor("int64", whole.labels.data.slice(k, k + size), [Math.min(size, rows - k)]),
    });
    const batches = starts.map(part);
"""
)

SOURCES = {
    "array of batches": ("batches", "{}"),
    "generator of batches": ("function* () { yield* batches; }", "{}"),
    "async pairs": ("async function* () { for (const { x, labels } of batches) yield [x, labels]; }", "{}"),
    "dataset of batches": ("new Dataset(batches).map(({ x, labels }) => ({ x, labels }))", "{ batched: true }"),
    "typed arrays of batches": (
        "batches.map(({ x, labels }) => ({ x: x.data, labels: labels.data }))",
        "{ batched: true }",
    ),
    "batches of plain arrays": (
        "starts.map((k) => [xs.slice(k, k + size), labels.slice(k, k + size)])",
        "{}",
    ),
    "plain columns": ("({ x: xs, labels })", "{ shuffle: false, batchSize: size }"),
    "bigint labels": ("({ x: xs, labels: labels.map(BigInt) })", "{ shuffle: false, batchSize: size }"),
    "flat array": ("({ x: whole.x.data, labels: whole.labels.data })", "{ shuffle: false, batchSize: size }"),
    "pair of tensors": ("[whole.x, whole.labels]", "{ shuffle: false, batchSize: size }"),
    "float64 and int32": (
        "({ x: new Tensor('float64', Float64Array.from(whole.x.data), [rows, 10]), labels: Int32Array.from(labels) })",
        "{ shuffle: false, batchSize: size }",
    ),
    "a tensor and an array": ("[whole.x, labels]", "{ shuffle: false, batchSize: size }"),
    "a column of labels": ("({ x: xs, labels: labels.map((one) => [one]) })", "{ shuffle: false, batchSize: size }"),
    "a map": ("new Map(Object.entries(whole))", "{ shuffle: false, batchSize: size }"),
    "tensors of transformers.js": (
        "({ x: { ort_tensor: whole.x, dims: [rows, 10] }, labels })",
        "{ shuffle: false, batchSize: size }",
    ),
    "rows of plain arrays": ("xs.map((x, k) => ({ x, labels: labels[k] }))", "{ shuffle: false, batchSize: size }"),
    "pairs as rows": ("xs.map((x, k) => [x, labels[k]])", "{ shuffle: false, batchSize: size }"),
}


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return list(native(arrays(), batch_size=16, epochs=2, shuffle=False)[0])


@pytest.mark.parametrize("name", SOURCES)
def test_trains_as_tensors_do(js: JsPage, expected: list[int], name: str) -> None:
    source, options = SOURCES[name]
    found = js.run(
        MAKE
        + f"""
        const s = await open();
        const given = {source};
        await s.fit(given, {{ epochs: 2, ...{options} }});
        const found = await bytes(s);
        await s.release();
        return found;"""
    )
    assert found == expected


def test_values_and_predictions_of_batches(js: JsPage) -> None:
    found = js.run(
        MAKE
        + """
        const s = await open();
        const found = [];
        const sized = { batchSize: size };
        for (const [given, options] of [[batches, {}], [whole, sized], [[whole.x, whole.labels], sized]]) {
          const { logits } = await s.predict(given, options);
          found.push(JSON.stringify([await s.evaluate(given, options), [...logits.data]]));
        }
        await s.release();
        return found;"""
    )
    assert found[0] == found[1] == found[2]


WRONG = [
    ("batches.slice(0, 2)", "{ batched: false }", "'x' has shape [2, 16, 10] in batch 0 of the data."),
    ("whole", "{ batched: true }", "this data is arrays"),
    ("batches", "{ batchSize: 4 }", "leave out 'batchSize'"),
    (
        "({ x: new Tensor('float32', xs[0], [10]), labels })",
        "{}",
        "[10] of one row in the data: reshape it to [1, 10].",
    ),
    (
        "({ x: document.createElement('img'), labels })",
        "{}",
        "'x' is HTMLImageElement: give a tensor, as 'readImage' makes",
    ),
    ("({ train: { x: xs, labels }, test: whole })", "{}", "'train' is a data set of its own: give only one of them"),
    ("({ train: new Dataset(whole) })", "{}", "give only one of them, as data['train']."),
    ("({ x: xs.map((x) => x.slice(1)), labels })", "{}", "so [10] for a row. If these sizes are"),
    ("({ x: xs, labels: labels.map(() => 0.5) })", "{}", "'labels' has 0.5 in the data; the model takes int64"),
    ("[whole.x, whole.labels, whole.x]", "{}", "The data has 3 values, and the model has 2 inputs: x, labels"),
    ("({ x: [[1, 2], [1]], labels: [0, 1] })", "{}", "an array of 1 stands where others have 2 elements"),
    ("({ x: xs, labels: labels.map((k) => k ? k : 0n) })", "{}", "of 'labels' has a number, expected a bigint."),
    ("({ x: xs, labels: labels.map((k) => k ? null : 'a') })", "{}", "of 'labels' has null, expected a string."),
    ("({ x: xs, labels: labels.map((k) => k ? null : 'a') })", "{}", "the text that 'missing' filled in"),
    ("({ x: xs, labels: labels.map(() => 16777217) })", "{}", "'labels' has 16777217, which float32 cannot hold"),
]


@pytest.mark.parametrize(("source", "options", "said"), WRONG)
def test_what_is_wrong_is_named(js: JsPage, source: str, options: str, said: str) -> None:
    found = js.run(
        MAKE
        + f"""
        const s = await open();
        try {{ await s.fit({source}, {options}); return "accepted"; }}
        catch (error) {{ return error.message; }}
        finally {{ await s.release(); }}"""
    )
    assert said in found


def test_validation_rows_need_the_steps_of_the_training_rows(js: JsPage) -> None:
    found = js.run(
        MAKE
        + """
        const warnings = [];
        const before = console.warn;
        console.warn = (...texts) => warnings.push(texts.join(" "));
        const s = await open();
        const [first, validation] = new Dataset({ x: xs, labels }).split(0.5);
        const training = first.standardize("x");
        await s.fit(training, { validationData: validation });
        const other = await open();
        await other.fit(training, { validationData: validation.standardize("x") });
        await other.release();
        const count = warnings.length;
        await s.fit(training, { validationData: validation.preprocess(training.preprocessing) });
        await s.evaluate(validation.preprocess(training.preprocessing));
        const isQuiet = warnings.length === count;
        for (const call of ["evaluate", "predict"]) await s[call](validation);
        await s.release();
        console.warn = before;
        return [isQuiet, warnings];"""
    )
    # Once in each session of validation rows, and once of rows to evaluate or predict on.
    assert found[0] and [text.split("that the ")[1].split(" Give")[0] for text in found[1] if "steps" in text] == [
        f"{rows} lack: standardize of 'x'." for rows in ("validation rows", "validation rows", "given rows")
    ]


def test_an_input_that_counts_time_by_its_first_axis_is_named(js: JsPage) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=0),
        helper.make_node("MatMul", ["mean", "w"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["time", "batch", 3]}, {"y": ["batch", 2]}, {"w": np.ones((3, 2), np.float32)})
    js.site.add("/time.onnx", model.SerializeToString())
    found = js.run(
        OPEN
        + """
        const s = await TrainingSession.createFromModel("/time.onnx", { loss: "CrossEntropyLoss" });
        const x = new Tensor("float32", new Float32Array(8 * 7 * 3), [8, 7, 3]);
        const labels = Array.from({ length: 8 }, () => 1);
        const row = { x: new Tensor("float32", new Float32Array(21), [7, 3]), labels: 1 };
        const texts = [];
        for (const make of [() => s.fit({ x, labels }), () => s.fit([row, row]), () => s.predict({ x })]) {
          texts.push((await failure(async () => await make())).message);
        }
        await s.release();
        return texts;"""
    )
    said = "'x' has the shape ['time', 'batch', 3] in the file, and 'labels' counts rows by 'batch': rows must"
    assert all(said in text for text in found), found
