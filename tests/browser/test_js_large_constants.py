"""The plans of a page's session hold large quantized weights once."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser
from tests.python.test_large_constants import PROMPT, feeds, large_bytes, model, opened, run

from .bundles import python_requests
from .js_session import JsPage, open_js_page
from .server import Site
from .test_bundle_cache import worker_site

__all__ = ["model"]  # the fixture

RUN = """
const optimizer = { type: "AdamW", learningRate: 0.01 };
const config = { loss: "CrossEntropyLoss", optimizer, lora: { rank: 2, seed: 3 } };
const s = await TrainingSession.createFromModel(url, config, { reproducible: true, maxPlans });
const tensor = (ids) => new Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
const step = { input_ids: tensor(given.input_ids), labels: tensor(given.labels) };
const found = [];
for (let round = 0; round < 2; round++) {
  found.push((await s.runTrainStep(step))[s.trainingOutputNames[0]].data[0]);
  await s.runOptimizerStep();
  await s.lazyResetGrad();
  found.push((await s.runEvalStep(step))[s.evalOutputNames[0]].data[0]);
  const { logits } = await s.predict({ input_ids: tensor(shorter) });
  found.push(logits.data.indexOf(Math.max(...logits.data)));
  for (const adapter of [true, false]) {
    const tokens = [];
    for await (const { token } of s.generate(prompt, { maxTokens: 4, adapter })) tokens.push(token);
    found.push(tokens);
  }
}
const { plans } = await s.memory();
await s.release();
return { found, plans };
"""


@pytest.mark.parametrize("max_plans", [16, 2])
def test_all_plans_of_a_session_hold_large_weights_once(js: JsPage, model: bytes, max_plans: int) -> None:
    given = {
        "url": js.site.add("/large/quantized.onnx", model),
        "given": {name: ids[0].tolist() for name, ids in feeds(8).items()},
        "shorter": feeds(6)["input_ids"][0].tolist(),
        "prompt": PROMPT,
        "maxPlans": max_plans,
    }
    result = js.run(RUN, **given)
    js.site.remove("/large/quantized.onnx")
    with opened(model) as session:
        assert result["found"] == run(session)
    weights = large_bytes(model)
    assert weights < result["plans"] < 1.5 * weights


COUNT = """
    globalThis.bytesWritten = 0;
    const write = FileSystemSyncAccessHandle.prototype.write;
    FileSystemSyncAccessHandle.prototype.write = function (bytes, ...options) {
      globalThis.bytesWritten += bytes.byteLength;
      return write.call(this, bytes, ...options);
    };
"""
CACHED = """
const names = async () => {
  const found = [];
  try {
    let folder = await navigator.storage.getDirectory();
    for (const name of ["trainweb", "bundles"]) folder = await folder.getDirectoryHandle(name);
    for await (const name of folder.keys()) found.push(name);
  } catch (error) {
    if (error.name !== "NotFoundError") throw error;
  }
  return found.sort().join();
};
// A bundle with more plans has the other of two names; the former goes last.
const written = async (before) => {
  for (let now = before; now === before || now.includes(","); now = await names()) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};
const optimizer = { type: "AdamW", learningRate: 0.01 };
const config = { loss: "CrossEntropyLoss", optimizer, lora: { rank: 2, seed: 3 } };
const s = await TrainingSession.createFromModel(url, config, { reproducible: true, cache: true, maxPlans });
const tensor = (ids) => new Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
const step = { input_ids: tensor(given.input_ids), labels: tensor(given.labels) };
const lossOf = async (run, name) => (await run)[name].data[0];
const found = [];
for (const [run, name] of [["runTrainStep", s.trainingOutputNames[0]], ["runEvalStep", s.evalOutputNames[0]]]) {
  const before = await names();
  found.push(await lossOf(s[run](step), name));
  if (isFirst) await written(before);
}
const { plans } = await s.memory();
if (isFirst) await s.release();
else window.s = s;
return { found, plans };
"""
LATER = """
const tokens = [];
for await (const { token } of s.generate(prompt, { maxTokens: 4 })) tokens.push(token);
const { plans } = await s.memory();
await s.release();
return { tokens, plans };
"""


@pytest.mark.parametrize("max_plans", [16, 1])
def test_the_cache_holds_no_copy_of_large_weights(
    browser: Browser, make_site: Callable[..., Site], model: bytes, max_plans: int
) -> None:
    """The next visit has the file, whose hash names the bundle: plans read their weights of it, without Python."""
    site, weights = make_site(), large_bytes(model)
    worker_site(site, COUNT)
    given = {
        "url": site.add("/large/quantized.onnx", model),
        "given": {name: ids[0].tolist() for name, ids in feeds(8).items()},
        "maxPlans": max_plans,
    }
    with open_js_page(browser, site) as js:
        first = js.run(CACHED, isFirst=True, **given)
        written = js.worker.evaluate("() => bytesWritten")
        site.clear_log()
        again = JsPage(js.page, site)
        second = again.run(CACHED, isFirst=False, **given)
        assert second["found"] == first["found"]
        assert python_requests(site) == []
        later = again.run(LATER, prompt=PROMPT)
    assert 0 < written < weights / 4, "two plans without weights, the first one twice"
    assert weights < second["plans"] < 1.5 * weights
    with opened(model) as session:
        losses = [session.train_step(feeds(8)), session.eval_step(feeds(8))]
        assert first["found"] == [found["onnx::loss::2"].item() for found in losses]
        assert later["tokens"] == [one.token for one in session.generate(PROMPT, max_tokens=4)]
    assert later["plans"] < 1.5 * weights, "plans of Python's share the weights with those of the bundle"
