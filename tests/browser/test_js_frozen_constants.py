"""A page's session refuses a checkpoint of a model with other constants, as Python's does; each reads the other's."""

import base64
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.python.sessions import take_steps
from tests.python.test_frozen_constants import feeds, net, opened

import trainweb
from trainweb.checkpoint import read_checkpoint

from .js_session import JsPage, open_js_page
from .server import Site


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    for seed in (3, 4):
        plain_site.add(f"/float{seed}.onnx", net(seed))
        plain_site.add(f"/quantized{seed}.onnx", trainweb.quantize(net(seed), 8, only_frozen=False))
    with open_js_page(browser, plain_site) as page:
        yield page


@pytest.mark.parametrize("kind", ["float", "quantized"])
def test_a_checkpoint_of_another_base_is_refused_in_each_form(js: JsPage, kind: str) -> None:
    """A cached session knows its own without Python."""
    with opened(kind, 3) as s:
        take_steps(s, feeds(kind), 1)
        python = base64.b64encode(s.save()).decode()
    errors, taken, made = js.run(
        f"""const asBytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
        const asText = (data) => data.reduce((text, byte) => text + String.fromCharCode(byte), "");
        const config = {{ loss: "MSELoss", optimizer: "AdamW", ...settings }};
        const open = (seed, more) => TrainingSession.createFromModel(`/{kind}${{seed}}.onnx`, config, more);
        const store = new CheckpointStore("constants {kind}");
        const s = await open(3);
        await store.save(s, "kept");
        const files = [await s.save(), await s.saveCheckpoint(), await store.read("kept"), asBytes(python)];
        await s.release();
        await (await open(4, {{ cache: true }})).release();
        const errors = [];
        for (const more of [{{}}, {{ cache: true }}]) {{
          const other = await open(4, more);
          for (const file of files) errors.push(await failure(() => other.loadCheckpoint(file)));
          errors.push(await failure(() => store.load(other, "kept")));
          await other.release();
        }}
        const own = await open(3);
        for (const file of files) await own.loadCheckpoint(file);
        const step = await own.stepCount();
        await own.release();
        return [errors.map(({{ name, message }}) => `${{name}}: ${{message}}`), step, btoa(asText(files[0]))];""",
        python=python,
        settings={"lora": {"targets": ["body"], "rank": 2}}
        if kind == "quantized"
        else {"requiresGrad": ["head.weight"]},
    )
    assert len(errors) == 10 and taken == 1
    digest = read_checkpoint(base64.b64decode(made)).constants
    start = f"CheckpointError: The checkpoint belongs to another model: the digest of its constants is '{digest}', and"
    assert digest and all(error.startswith(start) for error in errors), errors
    with opened(kind, 3) as s:
        s.load_checkpoint(base64.b64decode(made))
