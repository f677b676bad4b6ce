"""The plans of a page's session hold large quantized weights once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.python.test_large_constants import PROMPT, feeds, large_bytes, model, opened, run

from .js_session import JsPage, open_js_page
from .server import Site

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


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        yield page


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
