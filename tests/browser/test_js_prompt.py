"""Trained prompts in a page: PEFT's own losses, vectors and tokens (tests/lora/prompt), and files both ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser
from tests.lora.test_lora import RATE, arrays
from tests.lora.test_prompt import MODELS, NAME, RECORDED, feeds_of, recorded

from trainweb.lora import Adapter, inject_prompt
from trainweb.lora.adapter import CONFIG_FILE, WEIGHTS_FILE

from .js_session import JsPage, from_json, open_js_page, to_json
from .server import Site

OPEN = f"""
    const optimizer = {{ type: "AdamW", epsilon: 1e-8, weightDecay: 0.01, adamMode: 0 }};
    const open = async (promptTuning, more = {{}}) => {{
      const loss = {{ type: "CrossEntropyLoss", ignoreIndex: -100 }};
      const s = await TrainingSession.createFromModel(model, {{ loss, optimizer, promptTuning, ...more }});
      await s.setLearningRate({RATE});
      return s;
    }};
    const all = async (tokens) => {{
      const found = [];
      for await (const {{ token }} of tokens) found.push(token);
      return found;
    }};
    const asText = (data) => data.reduce((text, byte) => text + String.fromCharCode(byte), "");
"""


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    for path in [*RECORDED.rglob("*.start/*"), *MODELS.glob("*.onnx")]:
        plain_site.add(f"/prompt/{path.parent.name}/{path.name}", path.read_bytes())
    with open_js_page(browser, plain_site) as page:
        yield page


def given(name: str, **more: Any) -> dict[str, Any]:
    feeds = {key: to_json(a) for key, a in feeds_of(name).items()}
    return {"name": name, "model": f"/prompt/{MODELS.name}/{name}.onnx", "feeds": feeds, **more}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_trains_saves_and_generates_as_peft(js: JsPage, name: str) -> None:
    data = recorded(name)
    losses, weights, config, names, logits, tokens, base, exported = js.run(
        f"""{OPEN}
        const file = async (path) => (await fetch(`/prompt/${{name}}.start/${{path}}`)).arrayBuffer();
        const config = new TextDecoder().decode(await file("{CONFIG_FILE}"));
        const weights = new Uint8Array(await file("{WEIGHTS_FILE}"));
        const s = await open({{ adapterConfig: config }});
        await s.loadAdapter({{ weights, config }});
        const inputs = Object.fromEntries(Object.entries(feeds).map(([name, value]) => [name, toTensor(value)]));
        const losses = [];
        for (let k = 0; k < count; k++) losses.push(...await s.runTrainSteps([inputs]));
        const adapter = await s.adapter();
        const tokens = await all(s.generate(prompt, {{ maxTokens }}));
        const base = await all(s.generate(prompt, {{ maxTokens, adapter: false }}));
        const inference = await InferenceSession.create(await s.mergeAdapter());
        const exported = await all(inference.generate(prompt, {{ maxTokens }}));
        const {{ labels, ...others }} = inputs;
        const {{ logits }} = await inference.run(others);
        const names = await s.parameterNames({{ trainableOnly: true }});
        await inference.release();
        await s.release();
        return [losses, asText(adapter.weights), adapter.config, names, fromTensor(logits), tokens, base, exported];""",
        **given(name, count=len(data["losses"]), prompt=data["prompt"].tolist(), maxTokens=len(data["tokens"])),
    )
    np.testing.assert_allclose(losses, data["losses"], rtol=1e-5)
    assert names == [NAME]
    adapter = Adapter.from_bytes(weights.encode("latin-1"), config)
    np.testing.assert_allclose(arrays(adapter)[NAME], arrays(Adapter.load(RECORDED / f"{name}.end"))[NAME], rtol=1e-3)
    np.testing.assert_allclose(from_json(logits), data["logits"], rtol=1e-3, atol=1e-4)
    assert tokens == exported == data["tokens"].tolist() != base
    assert {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 5}.items() <= json.loads(config).items()


def test_settings_make_the_vectors_that_python_makes(js: JsPage) -> None:
    weights, drawn = js.run(
        f"""{OPEN}
        const found = [];
        for (const settings of [{{ tokens: 3, init: [5, 6] }}, {{ tokens: 3, seed: 9 }}]) {{
          const s = await open(settings);
          found.push(asText((await s.adapter()).weights));
          await s.release();
        }}
        return found;""",
        **given("gemma3"),
    )
    model = MODELS / "gemma3.onnx"
    assert weights.encode("latin-1") == inject_prompt(model, 3, [5, 6]).adapter().weights
    assert drawn.encode("latin-1") == inject_prompt(model, 3, seed=9).adapter().weights


@pytest.mark.parametrize(
    ("settings", "name", "text"),
    [
        ("{ token: 3 }", "TypeError", "promptTuning has no setting 'token'; did you mean 'tokens'?"),
        ("{ tokens: 0 }", "ModelError", "promptTuning.tokens is 0; it must be an integer >= 1"),
        ("{ init: ['a'] }", "ModelError", "promptTuning.init is ['a']; it must be a list of token ids"),
        ("{ init: [] }", "ModelError", "promptTuning.init is []; it must be a list of token ids"),
        ("{ init: [61] }", "ModelError", "'init' has an id without an embedding"),
        ("3", "ModelError", "promptTuning is 3; it must be an object"),
        ("{ adapterConfig: '{}', tokens: 3 }", "ModelError", "promptTuning.tokens is 3; it must be the text of"),
        ('{ adapterConfig: \'{"peft_type": "IA3"}\' }', "ModelError", "LORA and PROMPT_TUNING are supported"),
        ("{}, { lora: { rank: 2 } }", "ModelError", "it must be left out with 'lora'"),
        ("{}, { requiresGrad: ['a'] }", "ModelError", "it must be left out with 'promptTuning'"),
    ],
)
def test_settings_are_checked(js: JsPage, settings: str, name: str, text: str) -> None:
    found = js.run(f"{OPEN} return failure(() => open({settings}));", **given("llama"))
    assert found["name"] == name
    assert text in found["message"]
