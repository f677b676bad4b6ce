"""Bundles of quantized language models with adapters: one copy of each weight, in the file and in memory."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser
from tests.python.test_bundle_sizes import compiled
from tests.python.test_large_constants import PROMPT, feeds, large_bytes, model

from trainweb import CheckpointState, TrainingSession

from .bundles import of_version_3, open_page, python_requests, sealed
from .server import Site
from .test_bundle_cache import worker_site

__all__ = ["model"]  # the fixture

LARGE_FILE = 2**25
"""Bytes from which on a page leaves a file with the browser."""

WATCH = """
    globalThis.read = { bytes: 0, largest: 0, slice: 0, sliced: 0 };
    const { slice } = Blob.prototype;
    Blob.prototype.slice = function (...range) {
      const found = slice.apply(this, range);
      read.slice = Math.max(read.slice, found.size);
      read.sliced += found.size;
      return found;
    };
    const { readAsArrayBuffer } = FileReaderSync.prototype;
    FileReaderSync.prototype.readAsArrayBuffer = function (blob) {
      read.bytes += blob.size;
      read.largest = Math.max(read.largest, blob.size);
      return readAsArrayBuffer.call(this, blob);
    };
"""
HELPERS = """
const tensor = (ids) => new Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
const step = async (s, { input_ids, labels }) => {
  const given = { input_ids: tensor(input_ids), labels: tensor(labels) };
  const loss = (await s.runTrainStep(given))[s.trainingOutputNames[0]].data[0];
  await s.runOptimizerStep();
  await s.lazyResetGrad();
  return [loss, (await s.runEvalStep(given))[s.evalOutputNames[0]].data[0]];
};
"""
WITHOUT_PYTHON = """
const bundle = how === "URL" ? url : await (await fetch(url))[how]();
const s = await TrainingSession.create({ bundle }, { reproducible: true });
await s.setLearningRate(0.01);
const losses = [...await step(s, short), ...await step(s, short)];
const { plans } = await s.memory();
Object.assign(window, { s });
return { losses, plans };
"""
WITH_PYTHON = """
const { s } = window;
const losses = [...await step(s, long), ...await step(s, short)];
const tokens = [];
for (const adapter of [true, false]) {
  for await (const { token } of s.generate(prompt, { maxTokens: 4, adapter })) tokens.push(token);
}
const { plans } = await s.memory();
const hash = await crypto.subtle.digest("SHA-256", await s.saveCheckpoint({ includeOptimizerState: true }));
await s.release();
return { losses, tokens, plans, checkpoint: new Uint8Array(hash).toHex() };
"""


@pytest.fixture(scope="module")
def folder(model: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of an adapter, and the bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "model.onnx").write_bytes(model)
    compiled(folder / "model.onnx", "--lora", "2")
    return folder


def natively(folder: Path) -> tuple[list[float], dict[str, Any]]:
    """The same calls, from the artifacts in this process."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    models = [folder / f"{name}_model.onnx" for name in ("training", "eval", "optimizer")]
    with TrainingSession(state, *models, options={"reproducible": True}) as session:
        session.set_learning_rate(0.01)

        def step(given: dict[str, np.ndarray]) -> list[float]:
            losses = [session.train_step(given)["onnx::loss::2"].item()]
            session.optimizer_step()
            session.lazy_reset_grad()
            return [*losses, session.eval_step(given)["onnx::loss::2"].item()]

        without_python = [*step(feeds(8)), *step(feeds(8))]
        with_python = [*step(feeds(300)), *step(feeds(8))]
        texts = [session.generate(PROMPT, max_tokens=4, adapter=adapter) for adapter in (True, False)]
        tokens = [one.token for text in texts for one in text]
        CheckpointState.save_checkpoint(state, folder / "trained", include_optimizer_state=True)
    checkpoint = hashlib.sha256((folder / "trained").read_bytes()).hexdigest()
    return without_python, {"losses": with_python, "tokens": tokens, "checkpoint": checkpoint}


@pytest.mark.parametrize("how", ["URL", "arrayBuffer", "version 3", "large URL", "large blob"])
def test_a_session_of_a_bundle_holds_large_weights_once(
    browser: Browser, make_site: Callable[..., Site], model: bytes, folder: Path, how: str
) -> None:
    """Before and after Python takes over, with the results of the artifacts. A large file is read by parts."""
    site, weights = make_site(), large_bytes(model)
    worker_site(site, WATCH)
    bundle = (folder / "session.bundle").read_bytes()
    is_large, is_old = how.startswith("large "), how == "version 3"
    if is_old:
        how, bundle = "URL", of_version_3(bundle)
    given: dict[str, Any] = {"how": how.removeprefix("large "), "prompt": PROMPT}
    given["url"] = site.add("/session.bundle", sealed(bundle + bytes(LARGE_FILE)) if is_large else bundle)
    for name, length in (("short", 8), ("long", 300)):
        given[name] = {feed: ids[0].tolist() for feed, ids in feeds(length).items()}
    losses, later = natively(folder)
    with open_page(browser, site) as js:
        first = js.run(HELPERS + WITHOUT_PYTHON, **given)
        assert python_requests(site) == []
        read = js.worker.evaluate("() => read")
        second = js.run(HELPERS + WITH_PYTHON, **given)
    assert first["losses"] == losses
    assert {name: second[name] for name in later} == later
    assert weights < first["plans"] < 1.5 * weights
    assert (second["plans"] < 2 * weights) != is_old, "files in one piece have nothing in common"
    assert read["largest"] <= 2**22 and (weights < read["bytes"] < 2 * weights) == is_large
    # Chromium takes room for each slice: those of 135M parameters did not fit beside slices of the whole file.
    assert read["slice"] <= 2**24 and (LARGE_FILE < read["sliced"] < LARGE_FILE + 4 * weights) == is_large
