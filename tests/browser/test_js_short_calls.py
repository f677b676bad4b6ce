"""`findLearningRate`, `save`, `export` and flags by name in a page: what Python gives."""

import numpy as np
import pytest
from tests.conformance.fits import BASE

import trainweb
from trainweb.data import Dataset

from .js_session import JsPage
from .test_js_fit import OPEN, arrays


def test_the_finder_is_that_of_python(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const s = await open();
        const before = await bytes(s);
        const options = {{ steps: 60, most: 1e9, batchSize: 16, seed: 3 }};
        const {{ rates, losses, suggestion, plot }} = await s.findLearningRate(data(), options);
        const rate = Math.fround(await s.getLearningRate());
        const same = before.join() === (await bytes(s)).join() && rate === Math.fround(0.001);
        const list = [];
        for await (const row of new Dataset(data())) list.push(row);
        const listed = await s.findLearningRate(list, options);
        const wrong = await failure(() => s.findLearningRate(data(), {{ step: 1 }}));
        const bad = await failure(() => s.findLearningRate(data(), {{ steps: 1 }}));
        await s.release();
        return {{ rates, losses, listed: listed.losses, suggestion, plot: plot(), same, wrong, bad }};"""
    )
    with trainweb.TrainingSession.from_model(
        BASE, loss="CrossEntropyLoss", options={"reproducible": True}, additional_output_names=["logits"]
    ) as s:
        native = s.find_learning_rate(arrays(), steps=60, most=1e9, batch_size=16, seed=3)
        listed = s.find_learning_rate(list(Dataset(arrays())), steps=60, most=1e9, batch_size=16, seed=3)
    assert found["same"] and len(native.rates) < 60
    assert found["losses"] == native.losses != listed.losses == found["listed"]
    np.testing.assert_allclose(found["rates"], native.rates, rtol=1e-14)
    assert found["suggestion"] == pytest.approx(native.suggestion, rel=1e-14)
    assert found["plot"].startswith("<svg") and found["plot"].count(",") == len(native.rates)
    assert found["wrong"]["name"] == "TypeError" and "did you mean 'steps'" in found["wrong"]["message"]
    assert "steps is 1; it must be an integer >= 10" in found["bad"]["message"]


def test_save_and_export_are_short_names(js: JsPage) -> None:
    same = js.run(
        f"""{OPEN}
        const s = await open();
        await s.fit(data());
        const both = [
          [await s.save(), await s.saveCheckpoint({{ includeOptimizerState: true }})],
          [await s.save({{ includeOptimizerState: false }}), await s.saveCheckpoint()],
          [await s.export(), await s.exportModelForInferencing(["logits"])],
          [await s.export({{ outputs: ["logits"], as: "blob" }}).then((blob) => blob.bytes?.() ?? blob.arrayBuffer()),
            await s.exportModelForInferencing(["logits"])],
        ];
        await s.release();
        return both.map(([a, b]) => new Uint8Array(a).join() === b.join());"""
    )
    assert same == [True] * 4


def test_flags_may_be_named(js: JsPage) -> None:
    same, wrong = js.run(
        f"""{OPEN}
        const s = await open({{ frozenParams: ["fc1.*"] }});
        const out = new Float32Array(await s.getParametersSize(false));
        const whole = await s.getContiguousParameters(false);
        const same = [
          await s.getParametersSize({{ trainableOnly: false }}) === await s.getParametersSize(false),
          await s.getParametersSize({{}}) === await s.getParametersSize() && await s.getParametersSize() < out.length,
          (await s.getContiguousParameters({{ trainableOnly: false, out }})).data === out,
          out.join() === whole.data.join(),
        ];
        await s.loadParametersBuffer(out.map((x) => x + 1), {{ trainableOnly: false }});
        same.push((await s.getContiguousParameters(false)).data.every((x, k) => x === Math.fround(out[k] + 1)));
        const wrong = [
          await failure(() => s.getParametersSize({{ trainable: true }})),
          await failure(() => s.getContiguousParameters({{ emma: true }})),
          await failure(() => s.getParametersSize("no")),
        ];
        await s.release();
        return [same, wrong.map(({{ name, message }}) => name + ": " + message)];"""
    )
    assert same == [True] * 5
    assert "TypeError" in wrong[0] and "did you mean 'trainableOnly'" in wrong[0]
    assert "did you mean 'ema'" in wrong[1] and "'trainableOnly' must be a boolean" in wrong[2]
