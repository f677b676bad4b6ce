"""Rows, labels, losses and checkpoints of a fit in a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from playwright.sync_api import Browser
from tests.conformance.models import deep_mlp, make_model, normal
from tests.python import test_loss_counts as losses

from trainweb.artifacts import build_artifacts
from trainweb.errors import FeedError

from .js_session import JsPage, open_js_page
from .server import Site
from .test_js_fit import BASE, OPEN, arrays, native


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        yield page


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_of_epochs_do_not_depend_on_the_batch_size(js: JsPage, reduction: str) -> None:
    js.site.add("/padded.onnx", losses.model().SerializeToString())
    found = js.run(
        """const s = await TrainingSession.createFromModel("/padded.onnx", {
          loss: { type: "CrossEntropyLoss", ignoreIndex: -100, reduction }, optimizer: "SGD",
        });
        await s.setLearningRate(0);
        const tensor = (rows) =>
          new Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);
        const data = { tokens: tensor(tokens), labels: tensor(labels) };
        const epochs = [];
        for (const batchSize of [...sizes, null]) {
          const source = batchSize === null ? new Dataset(data).map((row) => row).batch(7) : data;
          const validationData = batchSize === null ? new Dataset(data).batch(9) : data;
          const options = { batchSize, validationData, metrics: ["perplexity"] };
          epochs.push(...(await s.fit(source, options)).epochs);
          // What waits for the worker's events of progress is of the same kind.
          epochs.push(...(await s.fit(source, { ...options, onNaN: "skip" })).epochs);
        }
        await s.release();
        return epochs;""",
        tokens=losses.TOKENS.tolist(),
        labels=losses.LABELS.tolist(),
        sizes=losses.SIZES,
        reduction=reduction,
    )
    count = losses.COUNTED.sum() if reduction == "mean" else losses.ROWS
    expected = losses.entropies().sum() / count
    assert len(found) == 2 * (len(losses.SIZES) + 1)
    for epoch in found:
        assert [epoch["loss"], epoch["validation"]["loss"]] == pytest.approx([expected] * 2, rel=2e-6)
        if reduction == "mean":
            assert round(epoch["validation"]["perplexity"], 3) == losses.TORCH_PERPLEXITY


@pytest.mark.parametrize("weight", [None, losses.WEIGHTS.tolist()], ids=["labels", "weights"])
def test_a_fit_goes_on_within_an_epoch(js: JsPage, weight: list[float] | None) -> None:
    """The checkpoint has the sum of what losses were divided by: labels, or weights that are no integers."""
    js.site.add("/padded.onnx", losses.model().SerializeToString())
    whole, resumed = js.run(
        """const store = new CheckpointStore("weighted");
        await store.delete("fit");
        const tensor = (rows) =>
          new Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);
        const fit = async (given, more) => {
          const s = await TrainingSession.createFromModel("/padded.onnx", {
            loss: { type: "CrossEntropyLoss", ignoreIndex: -100, ...(weight === null ? {} : { weight }) },
            optimizer: "SGD",
          });
          try {
            const data = { tokens: tensor(tokens), labels: tensor(given) };
            const { losses, epochs } = await s.fit(data, { batchSize: 8, shuffle: false, ...more });
            return [losses, epochs[0].loss, [...(await s.getContiguousParameters(false)).data]];
          } finally {
            await s.release();
          }
        };
        const whole = await fit(labels, {});
        // The fit fails at the fifth and last batch.
        const bad = labels.map((row, k) => (k === 39 ? row.map(() => 99) : row));
        const error = await failure(() => fit(bad, { checkpoint: { store, name: "fit", every: 1 } }));
        if (!error.message.includes("99")) throw error;
        return [whole, await fit(labels, { checkpoint: { store, name: "fit" } })];""",
        tokens=losses.TOKENS.tolist(),
        labels=losses.LABELS.tolist(),
        weight=weight,
    )
    assert resumed == whole


IN_SLICES: dict[str, dict[str, Any]] = {
    "plain": {"batchSize": 2},
    "a last batch": {"batchSize": 8},
    "accumulated": {"batchSize": 8, "accumulate": 3},
    "limits": {"batchSize": 2, "accumulate": 2, "clipGradValue": 0.1, "clipGradNorm": 0.05},
    "a schedule": {
        "batchSize": 1,
        "accumulate": 3,
        "schedule": {"type": "Cosine", "learningRate": 0.1, "total": 60, "warmup": 5},
    },
    "near the start": {"batchSize": 2, "proximal": 0.5, "learningRate": 0.05},
    "NaN that is skipped": {"batchSize": 2, "onNaN": "skip", "bad": [7, 40]},
    "NaN after which all is restored": {"batchSize": 2, "accumulate": 2, "onNaN": "restore", "bad": [31]},
    "one plan": {"batchSize": 2, "accumulate": 2, "clipGradNorm": 0.05, "session": {"maxPlans": 1}},
    "batches of more than a run": {"batchSize": 8, "accumulate": 2, "width": 40_000},
}


@pytest.mark.parametrize("given", IN_SLICES.values(), ids=IN_SLICES)
def test_rows_in_slices_are_batches_one_by_one(js: JsPage, given: dict[str, Any]) -> None:
    """A stream of the same batches takes them one by one. The plan that adds gradients has other places."""
    width = given.get("width", 16)
    js.site.add("/deep.onnx", deep_mlp(*((16, 32, 32, 3) if width == 16 else (width, 4, 3))).SerializeToString())
    rows, batches = js.run(
        """const { batchSize, bad = [], session = {}, width = 16, ...options } = given;
        const values = Float32Array.from({ length: width * 50 }, (_, i) => (i * 37 % 101) / 50 - 1);
        bad.forEach((row) => { values[width * row] = NaN; });
        const labels = BigInt64Array.from({ length: 50 }, (_, i) => BigInt(i % 3));
        const x = () => new Tensor("float32", values, [50, width]);
        const data = () => ({ x: x(), labels: new Tensor("int64", labels, [50]) });
        const found = [];
        for (const [source, more] of [[data(), { batchSize }], [new Dataset(data()).batch(batchSize), {}]]) {
          const s = await TrainingSession.createFromModel("/deep.onnx", { loss: "CrossEntropyLoss" }, session);
          const history = await s.fit(source, { epochs: 3, shuffle: false, ...options, ...more });
          const { data: parameters } = await s.getContiguousParameters(false);
          const { losses, optimizerSteps, epochs } = history;
          found.push([parameters.join(), losses.map(String), optimizerSteps, epochs.map(({ loss }) => loss)]);
          await s.release();
        }
        return found;""",
        given=given,
    )
    assert rows == batches
    assert rows[1].count("NaN") == 3 * len(given.get("bad", []))


def test_a_loss_that_is_not_one_number(js: JsPage) -> None:
    """The gradients of its step are not used: the next train step overwrites them."""
    built = build_artifacts(BASE, loss="CrossEntropyLoss", optimizer="AdamW", additional_output_names=["logits"])
    odd = onnx.load_model_from_string(built.training_model)
    loss, logits, *others = odd.graph.output
    del odd.graph.output[:]
    odd.graph.output.extend([logits, loss, *others])
    files = {"train": odd.SerializeToString(), "eval": built.eval_model, "optimizer": built.optimizer_model}
    for name, file in {**files, "checkpoint": built.checkpoint}.items():
        js.site.add(f"/odd/{name}", file)
    found = js.run(
        f"""{OPEN}
        const trained = async (fits, options) => {{
          const s = await TrainingSession.create({{
            trainModel: "/odd/train", evalModel: "/odd/eval", optimizerModel: "/odd/optimizer",
            checkpointState: "/odd/checkpoint",
          }});
          await s.runTrainStep(data(4));
          const error = fits ? await failure(() => s.fit(data(5), options)) : await s.lazyResetGrad();
          await s.runTrainStep(data(8));
          await s.runOptimizerStep();
          const result = [error?.message ?? null, await bytes(s)];
          await s.release();
          return result;
        }};
        return [await trained(false), await trained(true, {{}}), await trained(true, {{ onNaN: "restore" }})];"""
    )
    (_, expected), *refused = found
    for message, parameters in refused:
        assert "fit needs a loss that is one number; 'logits' has shape [5, 4]. Set its reduction." in message
        assert parameters == expected


def test_rows_whose_labels_are_all_ignored_have_no_loss(js: JsPage) -> None:
    """NaN, as in Python, which early stopping does not take for the best, nor a plateau for better."""
    js.site.add("/padded.onnx", losses.model().SerializeToString())
    found = js.run(
        """const s = await TrainingSession.createFromModel("/padded.onnx", {
          loss: { type: "CrossEntropyLoss", ignoreIndex: -100 }, optimizer: "SGD",
        });
        const tensor = (value) => new Tensor("int64", new BigInt64Array(10 * length).fill(value), [10, length]);
        const none = { tokens: tensor(1n), labels: tensor(-100n) };
        const data = { tokens: tensor(1n), labels: tensor(2n) };
        const options = { batchSize: 5, validationData: none };
        const { epochs: [epoch], losses } = await s.fit(none, { ...options, metrics: "perplexity" });
        const store = new CheckpointStore("ignored");
        const ends = [];
        for (const checkpoint of [undefined, { store, name: "fit" }, { store, name: "fit" }]) {
          const more = { ...options, epochs: 9, earlyStopping: { patience: 3 }, ...(checkpoint && { checkpoint }) };
          const { bestEpoch, ended, epochs } = await s.fit(data, more);
          ends.push([bestEpoch, ended, epochs.length, epochs.every(({ validation }) => Number.isNaN(validation.loss))]);
        }
        const schedule = { type: "Plateau", learningRate: 0.5, patience: 1, reduction: 0.5 };
        const { epochs } = await s.fit(data, { ...options, epochs: 5, schedule });
        const { loss } = await s.evaluate(none);
        await s.release();
        return [[...losses], [epoch.loss, epoch.validation.loss, epoch.validation.perplexity, loss].map(Number.isNaN),
          ends, epochs.map(({ learningRate }) => learningRate)];""",
        length=losses.LENGTH,
    )
    assert found == [[0, 0], [True] * 4, [[None, "early", 3, True]] * 3, [0.5, 0.5, 0.25, 0.25, 0.125]]


def test_a_fit_that_is_refused_changes_nothing(js: JsPage) -> None:
    """Gradients that wait for an optimizer step stay, and so does the rate."""
    found = js.run(
        f"""{OPEN}
        const store = new CheckpointStore("refused");
        const checkpoint = {{ store, name: "fit" }};
        const other = await open();
        await other.fit(data(), {{ batchSize: 2, checkpoint }});
        await other.release();
        const bad = {{ ...data(8), labels: new BigInt64Array(8).fill(9n) }};
        const given = {{
          "other options": [data(), {{ batchSize: 4, checkpoint }}],
          "a label": [bad, {{}}],
          "a label of a stream": [new Dataset(bad).batch(4), {{}}],
          "a label, watched": [bad, {{ onNaN: "restore" }}],
          "a missing input": [{{ x: data(8).x }}, {{}}],
          "no rows": [() => [], {{}}],
          "none": null,
        }};
        const found = {{}};
        for (const [name, refused] of Object.entries(given)) {{
          const s = await open();
          await s.setLearningRate(0.5);
          await s.runTrainStep(data(4));
          if (refused !== null) {{
            const error = await failure(() => s.fit(refused[0], {{ schedule: () => 0.25, ...refused[1] }}));
            if (error === null) return name;
          }}
          await s.runTrainStep(data(8));
          await s.runOptimizerStep();
          found[name] = [await bytes(s), await s.getLearningRate()];
          await s.release();
        }}
        return found;"""
    )
    assert [found[name] == found["none"] for name in found] == [True] * 7


def test_a_bad_label_or_row_is_named_with_its_row(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const labelled = (place, label = 9n) => {{
          const made = data(60);
          made.labels.data[place] = label;
          return made;
        }};
        const stream = (place) => new Dataset(labelled(place)).map((row) => row);
        const gone = (place) => {{
          let k = 0;
          return new Dataset(data(60)).map((row) => {{
            if (k++ === place) row.x.dispose();
            return row;
          }});
        }};
        const short = (place) => {{
          let k = 0;
          return new Dataset(data(60)).map((row) => (k++ === place ? {{ ...row, x: new Float32Array(2) }} : row));
        }};
        const given = {{
          "shuffled": [labelled(50), {{ seed: 3 }}],
          "in order": [labelled(50), {{ shuffle: false }}],
          "a stream": [stream(50), {{}}],
          "a stream, accumulated": [stream(50), {{ accumulate: 3 }}],
          "batches": [new Dataset(labelled(50)).batch(7), {{ batchSize: null }}],
          "watched": [labelled(50), {{ seed: 3, onNaN: "skip" }}],
          "validation": [data(), {{ validationData: labelled(13) }}],
          "validation stream": [data(), {{ validationData: stream(13) }}],
          "metric": [data(), {{ validationData: labelled(13, -7n), metrics: ["accuracy"] }}],
          "padding": [labelled(0, -100n), {{ shuffle: false }}],
          "disposed": [gone(37), {{}}],
          "short": [short(37), {{}}],
          "bucket": [gone(37).bucket(() => 1, [1], 8), {{ batchSize: null }}],
          "no batch": [new Dataset(data(8)).batch(4).map(() => 3), {{ batchSize: null }}],
        }};
        const found = {{}};
        for (const [name, [source, options]] of Object.entries(given)) {{
          const s = await open();
          try {{
            await s.fit(source, {{ batchSize: 8, ...options }});
          }} catch (error) {{
            const {{ message, value, position, input, row, epoch, batch }} = error;
            found[name] = {{ name: error.name, message, value, position, input, row, epoch, batch }};
          }}
          await s.release();
        }}
        return found;"""
    )
    assert {error["name"] for error in found.values()} == {"FeedError"} and len(found) == 14
    for name in ("shuffled", "in order", "a stream", "a stream, accumulated", "batches", "watched"):
        error = found[name]
        place = f"It is in 'labels' of row 50 of the data (batch {error['batch']} of epoch 1)."
        assert error["message"].endswith(place), name
        assert [error[n] for n in ("value", "input", "row", "epoch")] == [9, "labels", 50, 1]
        if name not in ("shuffled", "watched"):
            assert [error["batch"], error["position"]] == ([8, 1] if name == "batches" else [7, 2])
    # The order of rows is that of Python.
    data = arrays(60)
    data["labels"][50] = 9
    with pytest.raises(FeedError) as native_error:
        native(data, batch_size=8, seed=3)
    assert found["shuffled"]["batch"] == native_error.value.batch == found["watched"]["batch"]
    for name in ("validation", "validation stream", "metric"):
        assert "'labels' of row 13 of the validation data (batch 2 of epoch 1)." in found[name]["message"], name
    assert "To ignore such labels, give the loss ignoreIndex: -100. It is in" in found["padding"]["message"]
    for name in ("disposed", "bucket"):
        assert "Row 37 of the data has a disposed tensor as 'x'" in found[name]["message"], name
    assert "Row 37 of the data has float32[2] as 'x'" in found["short"]["message"]
    assert "Batch 0 of the data is a number" in found["no batch"]["message"]


def test_a_loss_that_stays_is_not_better(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const s = await open();
        await s.setLearningRate(0);
        const history = await s.fit(data(8), {{ epochs: 9, shuffle: false, earlyStopping: {{ patience: 2 }} }});
        await s.release();
        return [history.ended, history.bestEpoch, history.epochs.length];"""
    )
    assert found == ["early", 1, 3]


def test_all_rows_of_validation_data_are_evaluated_whatever_becomes_of_the_remainder(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const s = await open();
        await s.setLearningRate(0);
        const found = [];
        for (const [batchSize, remainder] of [[12, "keep"], [8, "drop"], [8, "pad"]]) {{
          for (const validationData of [data(12), new Dataset(data(12)).map((row) => row)]) {{
            const options = {{ batchSize, remainder, validationData, metrics: ["accuracy"] }};
            found.push((await s.fit(data(24), options)).epochs[0].validation);
          }}
        }}
        await s.release();
        return found;"""
    )
    first, *others = found
    assert len(others) == 5
    for other in others:
        assert other == {"loss": pytest.approx(first["loss"], rel=1e-6), "accuracy": first["accuracy"]}


@pytest.mark.parametrize("kind", ["stream", "rows"])
def test_a_checkpoint_is_written_after_every_so_many_optimizer_steps(js: JsPage, kind: str) -> None:
    found = js.run(
        f"""{OPEN}
        const store = new CheckpointStore("every");
        const found = [];
        for (const batches of [1, 2, 3, 4, 5, 6, 7]) {{
          const s = await open();
          await store.delete("fit");
          const stream = async function* () {{
            yield* new Dataset(data(2 * batches));
            throw new Error("of label 99");
          }};
          const rows = data(2 * batches + 1);
          rows.labels.data[2 * batches] = 99n;
          const checkpoint = {{ store, name: "fit", every: 2 }};
          const source = kind === "rows" ? rows : stream;
          const error = await failure(() => s.fit(source, {{ batchSize: 2, shuffle: false, checkpoint }}));
          let steps = 0;
          if ((await store.list()).some(({{ name }}) => name === "fit")) {{
            const file = new DataView(await (await store.read("fit")).arrayBuffer());
            const text = new TextDecoder().decode(new Uint8Array(file.buffer, 8, file.getUint32(0, true)));
            steps = JSON.parse(JSON.parse(text).__metadata__.position).optimizerSteps;
          }}
          found.push([error.message.includes("label 99"), steps]);
          await s.release();
        }}
        return found;""",
        kind=kind,
    )
    assert found == [[True, steps] for steps in (0, 2, 2, 4, 4, 6, 6)]


def test_numbers_that_are_infinite_on_purpose_stay_so(js: JsPage) -> None:
    """A mask of minus infinity is a parameter as others are."""
    masked = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "mask"], ["logits"])],
        {"x": ["batch", 10]},
        {"logits": ["batch", 3]},
        {"w": normal(10, 3), "mask": np.array([0, 0, -np.inf], np.float32)},
    )
    js.site.add("/masked.onnx", masked.SerializeToString())
    found = js.run(
        f"""{OPEN}
        const given = data(12);
        given.labels.data.forEach((label, k) => {{ given.labels.data[k] = label % 2n; }});
        const found = [];
        for (const onNaN of ["stop", "skip", "restore"]) {{
          const config = {{ loss: "CrossEntropyLoss", optimizer: "SGD" }};
          const s = await TrainingSession.createFromModel("/masked.onnx", config);
          const {{ ended, losses }} = await s.fit(given, {{ batchSize: 4, onNaN, epochs: 2 }});
          found.push([ended, losses.filter(Number.isFinite).length]);
          await s.release();
        }}
        return found;"""
    )
    assert found == [["done", 6]] * 3
