"""Sessions on a host that answers in later tasks give the same bytes as on the kernels' host, which answers at once."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.conformance import behaviours
from tests.conformance.fits import FITS

from .js_session import JsPage, open_js_page
from .server import ROOT, Site
from .test_behaviours import MLP, PAGE
from .test_js_fit_rows import check

BUILD = """
  import { build } from "esbuild";
  const later = {
    name: "later",
    setup(build) {
      build.onResolve({ filter: /wasm-host/ }, ({ importer }) =>
        importer.endsWith("worker.ts") ? { path: `${process.cwd()}/tests/browser/later-host.ts` } : undefined);
    },
  };
  const { version } = JSON.parse((await import("node:fs")).readFileSync("package.json", "utf8"));
  const { outputFiles: [{ text }] } = await build({
    entryPoints: ["web/src/worker/worker.ts"], bundle: true, format: "esm", keepNames: true, target: "es2022",
    define: { TRAINWEB_VERSION: JSON.stringify(version), TRAINWEB_NAMES_ASSETS: "false" },
    loader: { ".onnx": "base64" }, plugins: [later], write: false,
  });
  process.stdout.write(text);
"""

METHODS = {"claim", "run", "read", "save", "putBack", "goBack", "exchangeAverages", "tellFit", "runBatches"}
"""Methods of the host that sessions of the test use, besides others."""

FITTED = ("all_options", "in_slices limits")

SESSION = """
    const hex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
    const data = (n) => ({
      x: new Tensor("float32", Float32Array.from({ length: 10 * n }, (_, i) => (i * 37 % 101) / 50 - 1), [n, 10]),
      labels: new Tensor("int64", BigInt64Array.from({ length: n }, (_, i) => BigInt((i * 7) % 3)), [n]),
    });
    const config = {
      loss: "CrossEntropyLoss", optimizer: "AdamW", ema: { decay: 0.9 }, additionalOutputNames: ["logits"],
    };
    const s = await TrainingSession.createFromModel("/golden/mlp/base.onnx", config, { reproducible: true });
    const numbers = (tensors) => Object.values(tensors).map(({ data }) => Array.from(data, Number));
    const results = [];
    const note = async (value) => results.push(await value);
    for (let step = 0; step < 3; step++) {
      await note(s.runTrainStep(data(8)).then(numbers));
      await s.runOptimizerStep();
      await s.lazyResetGrad();
    }
    await note(s.runTrainSteps([data(4), data(6)]).then((losses) => Array.from(losses)));
    const controller = new AbortController();
    const post = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function (message, ...others) {
      post.call(this, message, ...others);
      Worker.prototype.postMessage = post;
      // The stop is sent right behind the step: it lies there before the first slice of the step ends.
      queueMicrotask(() => controller.abort());
    };
    await note(s.runTrainStep(data(1_000_000), { signal: controller.signal }).then(() => "ran", ({ name }) => name));
    await s.runTrainStep(data(8));
    await note(s.gradientNorms());
    await note(s.deadUnits([data(8)]));
    const store = new CheckpointStore("later");
    const history = await s.fit(data(50), {
      epochs: 2, batchSize: 8, accumulate: 2, validationData: data(20), metrics: ["accuracy"], clipGradNorm: 1,
      onNaN: "skip", ema: true, earlyStopping: { patience: 3, restoreBest: true },
      checkpoint: { store, name: "fit", every: 2 },
    });
    await note(history.epochs.map(({ loss, validation }) => [loss, validation]));
    await note(s.evaluate(data(20), { batchSize: 8, metrics: ["accuracy"], ema: true }));
    await note(s.predict(data(20), { batchSize: 8 }).then(numbers));
    await note(s.getContiguousParameters(false, { ema: true }).then(({ data }) => Array.from(data)));
    await store.save(s, "whole");
    await s.loadParametersBuffer(new Float32Array(await s.getParametersSize(false)), false);
    await store.load(s, "whole");
    await note(s.findLearningRate(data(50), { steps: 10, batchSize: 8 }).then(({ losses }) => Array.from(losses)));
    await note(s.profile(data(8), { runs: 2 }).then(({ entries }) => entries.length));
    await note(s.saveCheckpoint({ includeOptimizerState: true }).then(hex));
    await s.release();
    return results;
"""


@pytest.fixture(scope="module")
def later(browser: Browser) -> Iterator[JsPage]:
    """A page whose worker has the host of later-host.ts. No session misused it."""
    script = subprocess.run(["node", "--input-type=module", "-e", BUILD], cwd=ROOT, capture_output=True, check=True)
    site = Site()
    site.add("/dist/worker.js", script.stdout.decode())
    site.add(f"/golden/mlp/{behaviours.NOMINAL}", behaviours.nominal((MLP / "checkpoint").read_bytes()))
    with open_js_page(browser, site) as page:
        yield page
        misuses = page.worker.evaluate("misuses")
    site.close()
    assert misuses == []


def test_sessions_have_the_same_bytes(js: JsPage, later: JsPage) -> None:
    found = [page.run(SESSION) for page in (js, later)]
    assert found[0] == found[1]
    assert "AbortError" in found[0]
    calls = later.worker.evaluate("calls")
    assert calls.keys() >= METHODS


@pytest.mark.parametrize("name", FITTED)
def test_fits_are_those_of_python(later: JsPage, name: str) -> None:
    assert name in FITS
    check(later, name)


def test_calls_behave_as_in_python(later: JsPage) -> None:
    tables = {"behaviours": behaviours.BEHAVIOURS, "sessions": behaviours.SESSIONS}
    outcomes: list[list[Any]] = later.run(PAGE, **tables, device="wasm")
    in_python = behaviours.run_python(str(MLP))
    for (_, _, calls), found, expected in zip(behaviours.BEHAVIOURS, outcomes, in_python, strict=True):
        for call, outcome, wanted in zip(calls, found, expected, strict=True):
            assert behaviours.common(outcome) == behaviours.common(wanted), call
