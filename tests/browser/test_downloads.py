"""Files of the user that never come, never end or are given up: no call waits for them, and nothing is left."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser

from .js_session import JsPage, open_js_page
from .server import Reply, Site
from .test_faults_workers import assert_workers
from .test_js_large import CLASSES, large_model

LIMIT = 2**20
"""`limits.fileBytes` and `limits.arenaBytes` of these tests."""
POLLS = 200
STALL_S = {"stalls": 2}
"""`env.timeouts.stall` by fault, where it is not the default of 8 s."""
LARGE_ROWS = 10 * 2**10 + 3
"""40 MiB of weights with `CLASSES`: the page keeps the file as a Blob."""

CALLS = """
    const config = { loss: "CrossEntropyLoss" };
    const base = "/golden/mlp/base.onnx";
    const calls = {
      model: (url, options) => TrainingSession.createFromModel(url, config, options),
      inference: (url, options) => InferenceSession.create(url, options),
      inspect: (url, options) => inspectModel(url, config, options),
      build: (url, options) => buildArtifacts(url, config, options),
      gradients: (url, options) => new GradientGraphBuilder(url, ["logits"], ["fc1.weight"]).build(options),
      externalData: (url, options) =>
        TrainingSession.createFromModel(base, config, { ...options, externalData: [{ path: "w", data: url }] }),
      trainModel: (url, options) => TrainingSession.create(golden("mlp", { trainModel: url }), options),
      evalModel: (url, options) => TrainingSession.create(golden("mlp", { evalModel: url }), options),
      optimizerModel: (url, options) => TrainingSession.create(golden("mlp", { optimizerModel: url }), options),
      checkpointState: (url, options) => TrainingSession.create(golden("mlp", { checkpointState: url }), options),
      state: (url, options) => CheckpointState.load(url, options),
      bundle: (url, options) => TrainingSession.create({ bundle: url }, options),
    };
    const outcome = (opening) => opening.then(() => "opened", (error) => String(error));
"""
NAMES = (
    "model", "inference", "inspect", "build", "gradients", "externalData",
    "trainModel", "evalModel", "optimizerModel", "checkpointState", "state", "bundle",
)  # fmt: skip
CALLED = {"inference": "model", "inspect": "model", "build": "model", "gradients": "model", "state": "checkpointState"}
FAULTS = {
    "silent": Reply(b"", delay_s=60),
    "stalls": Reply(bytes(4000), sent=100, hangs=True),
    "endless": Reply(bytes(2**16), endless=True),
    "refused": Reply(bytes(2**16), status=404, endless=True),
    "long": Reply(bytes(LIMIT + 1), sent=100, hangs=True),
}


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site, (r"status of 404",)) as page:
        yield page


def expected(name: str, fault: str, url: str) -> str:
    """The error's text."""
    called = "externalData of 'w'" if name == "externalData" else CALLED.get(name, name)
    if fault in ("endless", "long"):
        limit = "limits.arenaBytes" if name == "externalData" else "limits.fileBytes"
        return f"LimitError: {called}: {url} has more than {LIMIT} bytes, the limit ({limit})."
    error = "CheckpointError" if called == "checkpointState" else "ModelError"
    if fault == "refused":
        return f"{error}: {called}: {url} answered with HTTP status 404 Not Found."
    received = 100 if fault == "stalls" else 0
    seconds = STALL_S.get(fault, 8)
    return f"{error}: {called}: {url} stalls: nothing came for {seconds} s after {received} bytes (env.timeouts.stall)."


@pytest.mark.parametrize("fault", FAULTS)
def test_a_download_that_does_not_end_well(js: JsPage, make_site: Callable[..., Site], fault: str) -> None:
    """Sites of their own: a browser keeps six connections to one, and would let the others wait."""
    sites = [make_site(), make_site(), make_site()]
    answer = FAULTS[fault]
    urls = {n: site.add_dynamic(f"/{n}", lambda: answer) for n, site in zip(NAMES, 4 * sites, strict=True)}
    found = js.run(
        f"""{CALLS}
        const options = {{ limits: {{ fileBytes: {LIMIT}, arenaBytes: {LIMIT} }} }};
        const {{ stall }} = env.timeouts;
        env.timeouts.stall = limit ?? stall;
        const found = Object.entries(urls).map(async ([name, url]) => [name, await outcome(calls[name](url, options))]);
        return Object.fromEntries(await Promise.all(found).finally(() => {{ env.timeouts.stall = stall; }}));""",
        urls=urls,
        limit=1000 * STALL_S[fault] if fault in STALL_S else None,
    )
    assert found == {name: expected(name, fault, url) for name, url in urls.items()}
    if fault != "silent":  # a server that waits before its answer does not see who goes
        for site in sites:
            wait_for(lambda site=site: len(site.given_up) == 4)


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(POLLS):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not come to that")


def test_a_file_of_just_the_limit_is_read(js: JsPage, make_site: Callable[..., Site]) -> None:
    model = js.run("return (await (await fetch('/golden/mlp/base.onnx')).arrayBuffer()).byteLength;")
    text = """
        const opening = InferenceSession.create("/golden/mlp/base.onnx", { limits: { fileBytes: size } });
        return opening.then((s) => s.release()).then(() => "opened", (error) => String(error));"""
    assert js.run(text, size=model) == "opened"
    assert f"has more than {model - 1} bytes" in js.run(text, size=model - 1)


@pytest.mark.parametrize("reader", ["byob", "default"])
def test_a_large_file_is_read_whole(js: JsPage, make_site: Callable[..., Site], reader: str) -> None:
    """Browsers without a reader into given buffers have another path. The last part is not full."""
    head, tail = large_model(LARGE_ROWS)
    weights = np.random.default_rng(3).standard_normal(LARGE_ROWS * CLASSES, "f4").astype("<f4").tobytes()
    url = make_site().add_dynamic("/large.onnx", lambda: Reply(head + weights + tail))
    found = js.run(
        """
        const own = ReadableStream.prototype.getReader;
        if (reader === "default") {
          ReadableStream.prototype.getReader = function (options) {
            if (options?.mode === "byob") throw new TypeError("no byte streams here");
            return own.call(this, options);
          };
        }
        try {
          const s = await TrainingSession.createFromModel(url, { loss: "CrossEntropyLoss" });
          const { data } = await s.getContiguousParameters();
          await s.release();
          return hash(data);
        } finally {
          ReadableStream.prototype.getReader = own;
        }""",
        url=url,
        reader=reader,
    )
    assert found == hashlib.sha256(weights).hexdigest()


def test_a_file_that_comes_slowly_is_read(js: JsPage, make_site: Callable[..., Site]) -> None:
    """Only nothing at all for so long is a stall: the whole may take longer."""
    found = js.run(
        """
        const model = new Uint8Array(await (await fetch("/golden/mlp/base.onnx")).arrayBuffer());
        const own = globalThis.fetch;
        const { stall } = env.timeouts;
        env.timeouts.stall = 3000;
        globalThis.fetch = async () => {
          let k = 0;
          const pull = async (controller) => {
            await new Promise((resolve) => setTimeout(resolve, 900));
            controller.enqueue(model.slice(k, k += Math.ceil(model.length / 4)));
            if (k >= model.length) controller.close();
          };
          return new Response(new ReadableStream({ pull }, { highWaterMark: 0 }));
        };
        try {
          const s = await InferenceSession.create("/slow.onnx");
          await s.release();
          return "opened";
        } catch (error) {
          return String(error);
        } finally {
          globalThis.fetch = own;
          env.timeouts.stall = stall;
        }"""
    )
    assert found == "opened"


def test_what_is_aborted_before_asks_for_nothing(browser: Browser, make_site: Callable[..., Site]) -> None:
    site = make_site()
    with open_js_page(browser, site) as page:
        site.clear_log()
        found = page.run(
            f"""{CALLS}
            const signal = AbortSignal.abort("mine");
            const found = Object.values(calls).map((call) => outcome(call(base, {{ signal }})));
            return Promise.all(found);"""
        )
        assert set(found) == {"mine"} and len(found) == len(NAMES)
        assert site.requests() == [] and page.page.workers == []
        error = page.failure(f"{CALLS} await calls.model(base, {{ signal: 1 }});")
        assert (error["name"], error["message"]) == ("TypeError", "'signal' must be an AbortSignal.")


def test_what_is_aborted_while_it_loads_leaves_nothing(browser: Browser, make_site: Callable[..., Site]) -> None:
    """The downloads end, at the server too, and so does the worker, in whatever it is."""
    sites = [make_site(), make_site(), make_site()]
    urls = {}
    for name, site in zip(NAMES, 4 * sites, strict=True):
        urls[name] = site.add_dynamic(f"/{name}", lambda: FAULTS["stalls"])
    with open_js_page(browser, make_site()) as page:
        found = page.run(
            f"""{CALLS}
            env.timeouts.idle = 1e9;
            const own = new AbortController();
            const options = {{ signal: own.signal }};
            const found = Object.entries(urls).map(([name, url]) => outcome(calls[name](url, options)));
            setTimeout(() => own.abort("mine"), 1500);
            return Promise.all(found);""",
            urls=urls,
        )
        assert found == ["mine"] * len(NAMES)
        assert_workers(page, 0)
        for site in sites:
            wait_for(lambda site=site: len(site.given_up) == len(site.requests()))
        # And the next one starts as ever.
        assert page.run("const s = await TrainingSession.create(golden('mlp')); await s.release(); return true;")


IN_USE = """
    const memory = (worker) => new Promise((resolve) => {
      worker.addEventListener("message", function receive({ data }) {
        if (data.id === -1) { worker.removeEventListener("message", receive); resolve(data.result.ok.inUse); }
      });
      worker.postMessage([{ id: -1, method: "memory", args: [] }]);
    });
"""


def test_what_is_aborted_beside_a_session_is_freed(browser: Browser, make_site: Callable[..., Site]) -> None:
    """The worker goes on, and what it opens nevertheless is released."""
    with open_js_page(browser, make_site()) as page:
        found = page.run(
            f"""{CALLS} {IN_USE}
            // The collector frees nothing here: it would hide that nobody releases.
            FinalizationRegistry.prototype.register = () => {{}};
            const workers = [];
            let left = Infinity;
            let own = new AbortController();
            globalThis.Worker = class extends Worker {{
              constructor(...args) {{ super(...args); workers.push(this); }}
              postMessage(...args) {{
                super.postMessage(...args);
                if (--left === 0) own.abort("mine");
              }}
            }};
            const kept = await TrainingSession.create(golden("mlp"));
            const before = await memory(workers[0]);
            const found = [];
            // Aborted after the first message to the worker, the second, and so on; the last one opens the session.
            for (const open of [(options) => TrainingSession.create(golden("mlp"), options),
              (options) => calls.model(base, options), (options) => calls.inference(base, options)]) {{
              for (let messages = 1; found.at(-1) !== "opened"; messages++) {{
                own = new AbortController();
                left = messages;
                const opening = open({{ signal: own.signal }});
                found.push(await opening.then(async (s) => {{ await s.release(); return "opened"; }}, String));
              }}
              found.push("all");
            }}
            left = Infinity;
            await new Promise((resolve) => setTimeout(resolve, 500));
            // Calls come one after the other: by now all are answered, and so are the releases.
            let after = 0;
            for (let k = 0; k < 50; k++) {{
              after = await memory(workers[0]);
              if (after === before) break;
              await new Promise((resolve) => setTimeout(resolve, 200));
            }}
            const size = (await kept.getContiguousParameters(true)).data.length;
            await kept.release();
            return {{ found, before, after, size, workers: workers.length }};"""
        )
        assert re.fullmatch("((mine )+opened all){3}", " ".join(found["found"]).replace("all ", "all")), found
        assert found["after"] == found["before"] > 0 and found["workers"] == 1 and found["size"] > 0, found


def test_an_abort_after_the_call_changes_nothing(js: JsPage) -> None:
    """Nor does it for a state that is opened anew by itself, once a session gave it back."""
    assert js.run(
        f"""{CALLS}
        const own = new AbortController();
        const {{ signal }} = own;
        const checkpointState = await CheckpointState.load("/golden/mlp/checkpoint", {{ signal }});
        const first = (await checkpointState.parameterNames())[0];
        const s = await TrainingSession.create(golden("mlp", {{ checkpointState }}), {{ signal }});
        own.abort("mine");
        const rate = await s.getLearningRate();
        await s.release();
        const {{ data }} = await checkpointState.getParameter(first);
        await checkpointState.release();
        return data.length > 0 && rate > 0;"""
    )
