"""Sessions in the page: results, order, copies, loading, release, and workers that die."""

import gzip
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Route

from trainweb.model.graph import Graph, Node, Value
from trainweb.model.writer import write_model

from .bundles import open_page
from .js_session import JsPage, open_js_page
from .server import ROOT, Site

OPEN = """
    const open = (options) => TrainingSession.create(golden("mlp"), options);
    const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
    const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
    const feeds = { x, labels };
    const loss = async (s) => (await s.runTrainStep(feeds))[s.trainingOutputNames[0]].data[0];
    const parameters = async (s) => fromTensor(await s.getContiguousParameters()).data;
"""
BUNDLED = OPEN.replace('golden("mlp")', '{ bundle: "/bundles/mlp" }')
"""The same without Python, which takes a fourth of the time."""


PATIENT = "env.timeouts.stall = 1e9;"
"""For a clock that leaps, which would call the files of the session stalled."""


def test_a_scalar_loss_has_no_dims_and_one_element(js: JsPage) -> None:
    assert js.run(
        f"""{OPEN}
        const s = await open();
        const results = await s.runTrainStep(feeds);
        const value = Object.values(results)[0];
        await s.release();
        return [value.type, value.dims, value.data.length, value.location, value instanceof Tensor,
                Object.keys(results).join() === s.trainingOutputNames.join()];"""
    ) == ["float32", [], 1, "cpu", True, True]


def test_feeds_match_by_name_in_any_order(js: JsPage) -> None:
    first, second = js.run(
        f"""{OPEN}
        const s = await open();
        const name = s.evalOutputNames[0];
        const first = (await s.runEvalStep({{ x, labels }}))[name].data[0];
        const second = (await s.runEvalStep({{ labels, x }}))[name].data[0];
        await s.release();
        return [first, second];"""
    )
    assert first == second > 0


def test_preallocated_fetches_are_written_in_place(js: JsPage) -> None:
    assert js.run(
        f"""{OPEN}
        const s = await open();
        const name = s.trainingOutputNames[0];
        const want = (await s.runEvalStep(feeds))[name].data[0];
        const around = new Float32Array([7, 0, 9]);
        const target = new Tensor("float32", around.subarray(1, 2), []);
        const results = await s.runTrainStep(feeds, {{ [name]: target }});
        const plain = await s.runEvalStep(feeds, {{ [name]: null }});
        await s.release();
        const left = around[0] === 7 && around[2] === 9;
        return [results[name] === target, target.data[0] === want, left, plain[name].data[0] === want];"""
    ) == [True, True, True, True]


@pytest.mark.parametrize(
    "target",
    ["new Tensor('float32', [0, 0], [2])", "new Tensor('float64', [0], [])", "new Tensor('float32', [0], [1])"],
)
def test_a_preallocated_fetch_that_does_not_fit_leaves_the_session_alone(js: JsPage, target: str) -> None:
    outcome = js.run(
        f"""{OPEN}
        const s = await open();
        const name = s.trainingOutputNames[0];
        const error = await failure(() => s.runTrainStep(feeds, {{ [name]: {target} }}));
        await s.runOptimizerStep();
        const unchanged = await parameters(s);
        const fresh = await open();
        const initial = await parameters(fresh);
        await s.release();
        await fresh.release();
        return {{ error, same: unchanged.join() === initial.join() }};"""
    )
    assert outcome["error"]["name"] == "FeedError"
    assert "result is float32 of dims []" in outcome["error"]["message"]
    assert outcome["same"]  # no gradient was accumulated


def test_calls_run_in_the_order_they_were_made(js: JsPage) -> None:
    """Not awaited one by one, with and without feeds that take time to arrive."""
    outcome = js.run(
        f"""{OPEN}
        const train = async (s, pipelined, slow) => {{
          const late = {{ ...feeds, x: slow ? Object.assign(Object.create(x), {{}}) : x }};
          if (slow) {{
            Object.defineProperty(late.x, "location", {{ value: "gpu-buffer" }});
            late.x.getData = async () => {{ await new Promise((r) => setTimeout(r, 5)); return x.data; }};
          }}
          const pending = [];
          for (let k = 0; k < 5; k++) {{
            for (const call of [() => s.runTrainStep(k % 2 ? feeds : late), () => s.runOptimizerStep(),
                                () => s.lazyResetGrad()]) {{
              if (pipelined) pending.push(call());
              else await call();
            }}
          }}
          const result = parameters(s);
          await Promise.all(pending);
          const values = await result;
          await s.release();
          return values.join();
        }};
        const one = await train(await open(), false, false);
        return [one === await train(await open(), true, false), one === await train(await open(), true, true)];"""
    )
    assert outcome == [True, True]


def test_feeds_are_copied_at_the_time_of_the_call(js: JsPage) -> None:
    assert js.run(
        f"""{OPEN}
        const s = await open();
        const name = s.evalOutputNames[0];
        const want = (await s.runEvalStep(feeds))[name].data[0];
        const mutable = new Tensor("float32", x.data.slice(), [8, 10]);
        const pending = s.runEvalStep({{ x: mutable, labels }});
        mutable.data.fill(99);
        const got = (await pending)[name].data[0];
        const intact = mutable.data.length;
        await s.release();
        return [want === got, intact];"""
    ) == [True, 80]


def test_transferred_feeds_lose_their_buffers(js: JsPage) -> None:
    assert js.run(
        f"""{OPEN}
        const s = await open();
        const name = s.evalOutputNames[0];
        const want = (await s.runEvalStep(feeds))[name].data[0];
        const whole = new Tensor("float32", x.data.slice(), [8, 10]);
        const backing = new Float32Array(100);
        backing.set(x.data, 7);
        const part = new Tensor("float32", backing.subarray(7, 87), [8, 10]);
        const got = [];
        for (const tensor of [whole, part])
          got.push((await s.runEvalStep({{ x: tensor, labels: toTensor(fromTensor(labels)) }},
                                        {{ transfer: true }}))[name].data[0]);
        await s.release();
        return [got[0] === want, got[1] === want, whole.data.buffer.byteLength, backing.length];"""
    ) == [True, True, 0, 100]


def test_feeds_from_views_and_foreign_tensor_classes(js: JsPage) -> None:
    """A view at an odd offset, and the Tensor of another copy of onnxruntime-common."""
    assert js.run(
        f"""{OPEN}
        const s = await open();
        const name = s.evalOutputNames[0];
        const want = (await s.runEvalStep(feeds))[name].data[0];
        const shifted = new Float32Array(new ArrayBuffer(4 * 83), 12, 80);
        shifted.set(x.data);
        class Other {{
          constructor(type, data, dims) {{ Object.assign(this, {{ type, data, dims, location: "cpu" }}); }}
          async getData() {{ return this.data; }}
        }}
        const got = [
          await s.runEvalStep({{ x: new Tensor("float32", shifted, [8, 10]), labels }}),
          await s.runEvalStep({{ x: new Other("float32", x.data, [8, 10]), labels }}),
        ];
        await s.release();
        return got.map((results) => results[name].data[0] === want);"""
    ) == [True, True]


def test_many_batch_sizes(js: JsPage) -> None:
    """Each has a separate plan; growing the arena voids the addresses of all earlier ones."""
    assert js.run(
        f"""{OPEN}
        const s = await open();
        const name = s.evalOutputNames[0];
        const make = (n) => ({{
          x: new Tensor("float32", Float32Array.from({{ length: 10 * n }}, (_, i) => Math.sin(i % 10)), [n, 10]),
          labels: new Tensor("int64", BigInt64Array.from({{ length: n }}, () => 1n), [n]),
        }});
        const losses = [];
        for (const n of [1, 300, 2, 1, 5000, 300, 7, 1])
          losses.push((await s.runEvalStep(make(n)))[name].data[0]);
        await s.release();
        return losses.every((value) => Math.abs(value - losses[0]) < 1e-5);"""
    )


def test_sessions_do_not_disturb_each_other(js: JsPage) -> None:
    assert js.run(
        f"""{OPEN}
        const [a, b] = await Promise.all([open(), open()]);
        const start = await parameters(b);
        await loss(a);
        await a.runOptimizerStep();
        const changed = await parameters(a);
        await a.release();
        const kept = await parameters(b);
        const value = await loss(b);
        await b.release();
        return [start.join() === kept.join(), start.join() !== changed.join(), value > 0];"""
    ) == [True, True, True]


def test_parameters_and_checkpoints_round_trip(js: JsPage) -> None:
    outcome = js.run(
        f"""{OPEN}
        const s = await open();
        await loss(s);
        await s.runOptimizerStep();
        await s.addProperty("epoch", 7);
        await s.addProperty("big", 2n ** 53n);
        await s.addProperty("rate", 0.5);
        await s.addProperty("tag", 'quote " and é');
        const values = await parameters(s);
        const checkpoint = await s.saveCheckpoint({{ includeOptimizerState: true }});
        const t = await TrainingSession.create(
          golden("mlp", {{ checkpointState: new Blob([checkpoint]) }}));
        const same = (await parameters(t)).join() === values.join();
        const properties = [];
        for (const name of ["epoch", "big", "rate", "tag"]) properties.push(await t.getProperty(name));
        const next = [];
        for (const session of [s, t]) {{
          await session.lazyResetGrad();
          await loss(session);
          await session.runOptimizerStep();
          next.push((await parameters(session)).join());
        }}
        const floats = Float32Array.from(values);
        await t.loadParametersBuffer(new Uint8Array(floats.buffer));
        const loaded = (await parameters(t)).join() === values.join();
        await t.loadParametersBuffer(floats);
        await s.release();
        await t.release();
        return {{ same, properties: properties.map(String), resumed: next[0] === next[1], loaded }};"""
    )
    assert outcome == {
        "same": True,
        "properties": ["7", "9007199254740992", "0.5", 'quote " and é'],
        "resumed": True,
        "loaded": True,
    }


def test_a_call_that_was_made_before_the_release_is_answered(js: JsPage) -> None:
    """The table of behaviours has what later calls say."""
    outcome = js.run(
        f"""{OPEN}
        const s = await open();
        const pending = loss(s);
        await s.release();
        return [await pending > 0, s.trainingInputNames, (await failure(() => s.artifacts())).name];"""
    )
    assert outcome == [True, ["x", "labels"], "ReleasedError"]


def test_async_disposal(js: JsPage) -> None:
    assert (
        js.run(
            f"""{OPEN}
        const s = await open();
        await s[Symbol.asyncDispose]();
        return (await failure(() => loss(s))).name;"""
        )
        == "ReleasedError"
    )


def test_seed_is_taken_from_env(js: JsPage) -> None:
    assert js.run(
        f"""{OPEN}
        env.seed = 12345678901234567890n;
        const s = await open();
        env.seed = undefined;
        const value = await loss(s);
        await s.release();
        return value > 0;"""
    )


@pytest.mark.parametrize(
    "make",
    [
        "bytes",
        "bytes.buffer",
        "new Blob([bytes])",
        "new URL(url)",
        "url",
        "url.slice(url.indexOf('/golden'))",
        "shifted",
    ],
)
def test_files_come_from_urls_bytes_and_blobs(js: JsPage, make: str) -> None:
    size = js.run(
        f"""{OPEN}
        const url = new URL("/golden/mlp/training_model.onnx", location.href).href;
        const bytes = new Uint8Array(await (await fetch(url)).arrayBuffer());
        const shifted = new Uint8Array(bytes.length + 3).subarray(3);
        shifted.set(bytes);
        const s = await TrainingSession.create(golden("mlp", {{ trainModel: {make} }}));
        const size = await s.getParametersSize();
        await s.release();
        return [size, bytes.length];"""
    )
    assert size == [432, (ROOT / "tests/golden/mlp/training_model.onnx").stat().st_size]


def test_inference_of_a_part_of_a_buffer(js: JsPage) -> None:
    assert js.run(
        """const bytes = new Uint8Array(await (await fetch("/golden/mlp/inference.onnx")).arrayBuffer());
        const padded = new Uint8Array(bytes.length + 10);
        padded.set(bytes, 4);
        const s = await InferenceSession.create(padded.buffer, 4, bytes.length);
        const x = new Tensor("float32", new Float32Array(30), [3, 10]);
        const results = await s.run({ x });
        const names = [s.inputNames, s.outputNames, Object.keys(results)];
        const dims = Object.values(results)[0].dims;
        await s.release();
        return [names, dims, (await failure(() => s.run({ x }))).name];"""
    ) == [[["x"], ["logits"], ["logits"]], [3, 4], "ReleasedError"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("trainModel", "ModelError"),
        ("evalModel", "ModelError"),
        ("optimizerModel", "ModelError"),
        ("checkpointState", "CheckpointError"),
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        "new Uint8Array(0)",
        "new TextEncoder().encode('<!doctype html><title>404</title>')",
        "crypto.getRandomValues(new Uint8Array(500))",
        "bytes.subarray(0, bytes.length >> 1)",
    ],
)
def test_broken_files_are_typed_errors(js: JsPage, file: str, name: str, content: str) -> None:
    error = js.failure(
        f"""const url = golden("mlp").{file};
        const bytes = new Uint8Array(await (await fetch(url)).arrayBuffer());
        await TrainingSession.create(golden("mlp", {{ {file}: {content} }}));"""
    )
    assert (error["name"], error["base"]) == (name, "TrainwebError")
    assert len(error["message"]) > 10


class TestLoading:
    """Files and scripts that cannot be had. Each in a separate page: their workers differ."""

    def test_http_status_and_url_are_named(self, browser: Browser, plain_site: Site) -> None:
        with open_js_page(browser, plain_site, ("404", "500", "ERR_")) as js:
            plain_site.add("/broken.onnx", "sorry", status=500)
            for file, url, status, name in (
                ("trainModel", "/golden/mlp/nowhere.onnx", "404", "ModelError"),
                ("evalModel", "/broken.onnx", "500", "ModelError"),
                ("checkpointState", "/golden/nowhere", "404", "CheckpointError"),
            ):
                error = js.failure(f"await TrainingSession.create(golden('mlp', {{ {file}: '{url}' }}));")
                assert error["name"] == name
                assert url in error["message"] and status in error["message"]
                assert error["message"].startswith(file)
            error = js.failure("await TrainingSession.create(golden('mlp', { trainModel: 'http://127.0.0.1:9/x' }));")
            assert error["name"] == "ModelError"
            assert "http://127.0.0.1:9/x" in error["message"]

    def test_missing_pyodide_is_named_and_a_later_try_works(self, browser: Browser, plain_site: Site) -> None:
        with open_js_page(browser, plain_site, ("404",)) as js:
            js.run("env.pyodide.indexURL = '/nowhere/';")
            error = js.failure("await TrainingSession.create(golden('mlp'));")
            assert error["name"] == "EngineError"
            assert "/nowhere/pyodide.mjs" in error["message"]
            assert "env.pyodide.indexURL" in error["message"]
            js.run("env.pyodide.indexURL = '/pyodide';")
            assert js.run("const s = await TrainingSession.create(golden('mlp')); return s.getParametersSize();") == 432

    def test_kernels_that_are_not_there_are_warned_of_once(self, browser: Browser, plain_site: Site) -> None:
        """As pages set it for files of another package: they train with the kernels of this one."""
        with open_page(browser, plain_site, ("404",)) as js:
            warnings = js.run(
                """const warnings = [];
                console.warn = (...parts) => warnings.push(parts.join(" "));
                env.wasm.wasmPaths = "/node_modules/onnxruntime-common/dist/";
                for (const reproducible of [false, true]) {
                    const s = await TrainingSession.create({ bundle: "/bundles/mlp" }, { reproducible });
                    if ((await s.getParametersSize()) !== 432) throw new Error("no session");
                    await s.release();
                }
                return warnings;"""
            )
        assert len(warnings) == 1
        assert all(
            part in warnings[0] for part in ("env.wasm.wasmPaths", "onnxruntime-common/dist/kernels", "404", "Delete")
        )

    def test_kernels_from_another_folder(self, browser: Browser, plain_site: Site) -> None:
        kernels = gzip.decompress((ROOT / "dist" / "npm" / "kernels.wasm.gz").read_bytes())
        plain_site.add("/elsewhere/kernels.wasm", kernels)
        plain_site.clear_log()
        with open_page(browser, plain_site) as js:
            js.run("env.wasm.wasmPaths = '/elsewhere/';")
            js.run(BUNDLED + "await open({ reproducible: true });")
        assert plain_site.requests("/elsewhere/") == ["/elsewhere/kernels.wasm"]
        assert not [path for path in plain_site.requests("/") if "kernels" in path and "/elsewhere/" not in path]


SPY = """
    const Native = Worker;
    window.workers = [];
    window.Worker = class extends Native {
      constructor(...args) { super(...args); workers.push(this); }
    };
"""

# Counts the feeds that are sent as places in the kernels' memory.
PLACED = """
    const Native = Worker;
    window.placed = 0;
    window.Worker = class extends Native {
      postMessage(message, ...rest) {
        placed += JSON.stringify(message).split('"ptr"').length - 1;
        super.postMessage(message, ...rest);
      }
    };
"""

WATCHED = """
    // A worker is watched from when it holds its lock: the page then waits for it.
    const isWatched = async () =>
      (await navigator.locks.query()).pending.some((lock) => lock.name.startsWith("trainweb-worker-"));
    while (!(await isWatched())) await new Promise((resolve) => queueMicrotask(resolve));
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_feeds_in_shared_memory_train_as_those_that_travel(browser: Browser, isolated_site: Site, threads: int) -> None:
    """Feeds that change after the call, several calls under way, accumulation, memory that grows, failures."""
    with open_js_page(browser, isolated_site) as js:
        placed, travelled, n_placed, n_travelled = js.run(
            f"""{PLACED}{OPEN}
            const make = (n, seed) => ({{
              x: new Tensor("float32", Float32Array.from({{ length: 10 * n }}, (_, i) => Math.sin(i + seed)), [n, 10]),
              labels: new Tensor("int64", BigInt64Array.from({{ length: n }}, (_, i) => BigInt((i + seed) % 4)), [n]),
            }});
            const run = async (transfer) => {{
              const s = await open({{ threads, reproducible: true }});
              const seen = [];
              let seed = 0;
              const call = (method, n) => {{
                const feeds = make(n, seed++);
                const pending = s[method](feeds, {{ transfer }});
                if (!transfer) {{
                  feeds.x.data.fill(NaN);
                  feeds.labels.data.fill(99n);
                }}
                return pending.then((results) => Object.values(results)[0].data[0]);
              }};
              for (const n of [8, 8, 8, 3, 8, 300, 8, 60000, 3, 8, 300]) {{
                seen.push(await call("runTrainStep", n));
                if (n !== 3) await s.runOptimizerStep();
                if (n === 300) {{
                  const bad = make(8, 0);
                  bad.labels.data[2] = -5n;
                  seen.push((await failure(() => s.runTrainStep(bad, {{ transfer }}))).name);
                  const calls = ["runTrainStep", "runEvalStep", "runTrainStep"].map((method) => call(method, 8));
                  seen.push(...await Promise.all(calls));
                  await s.updateParameter("fc1.bias", await s.getParameter("fc1.bias"));
                }}
                if (n % 2 === 0) await s.lazyResetGrad();
                seen.push(await call("runEvalStep", 8));
              }}
              seen.push(...(await parameters(s)));
              await s.release();
              const sent = placed;
              placed = 0;
              return [seen, sent];
            }};
            const [first, n] = await run(false);
            const [second, m] = await run(true);
            return [first, second, n, m];""",
            threads=threads,
        )
        assert placed == travelled
        assert n_placed > 10
        assert n_travelled == 0


def test_feeds_of_calls_under_way_are_not_overwritten(browser: Browser, isolated_site: Site) -> None:
    """Many steps of one shape are asked for at once, when the page knows where feeds of that shape lie."""
    with open_js_page(browser, isolated_site) as js:
        apart, at_once, n_placed = js.run(
            f"""{PLACED}{OPEN}
            const s = await open({{ reproducible: true }});
            const of = (k) => ({{ labels, x: new Tensor("float32", x.data.map((v) => v * k), [8, 10]) }});
            const evaluate = async (k) => Object.values(await s.runEvalStep(of(k)))[0].data[0];
            const factors = Array.from({{ length: 30 }}, (_, k) => 1 + k / 10);
            const apart = [];
            for (const k of factors) apart.push(await evaluate(k));
            const sent = placed;
            const atOnce = await Promise.all(factors.map(evaluate));
            await s.release();
            return [apart, atOnce, sent];"""
        )
    assert len(set(apart)) == 30 and n_placed > 0
    assert at_once == apart


def test_feeds_of_all_types_in_shared_memory(browser: Browser, isolated_site: Site) -> None:
    """An inference session that reads bool, uint8 and int64; no bytes at all where the batch is empty."""
    graph = Graph(
        "mix",
        [
            Node("Cast", ["bytes"], ["b"], {"to": 1}),
            Node("Cast", ["ids"], ["i"], {"to": 1}),
            Node("Where", ["mask", "b", "i"], ["y"]),
        ],
        [Value("mask", "bool", ("n",)), Value("bytes", "uint8", ("n",)), Value("ids", "int64", ("n",))],
        [Value("y", "float32", ("n",))],
        opsets={"": 17},
    )
    with open_js_page(browser, isolated_site) as js:
        outcome = js.run(
            f"""{PLACED}
            const s = await InferenceSession.create(Uint8Array.from(model));
            const run = async (mask, bytes, ids) => Array.from((await s.run({{
              mask: new Tensor("bool", Uint8Array.from(mask), [mask.length]),
              bytes: new Tensor("uint8", Uint8Array.from(bytes), [bytes.length]),
              ids: new Tensor("int64", BigInt64Array.from(ids, BigInt), [ids.length]),
            }})).y.data);
            return [await run([1, 0, 1], [7, 8, 255], [-1, -2, -3]), await run([0, 0, 1], [1, 2, 3], [-4, -5, -6]),
                    await run([1, 1, 0], [4, 5, 6], [9, 9, -9]), await run([], [], []), placed];""",
            model=list(write_model(graph)),
        )
    assert outcome[:4] == [[7, -2, 255], [-4, -5, 3], [4, 5, -9], []]
    assert outcome[4] in (3, 6), "the third step may be asked for without a message"


def test_a_feed_that_no_node_reads_lies_nowhere(browser: Browser, isolated_site: Site) -> None:
    """As the sampling rate of a model for one rate, which its files still take."""
    values = [Value("rate", "int64", ()), Value("x", "float32", ("n",))]
    graph = Graph("g", [Node("Neg", ["x"], ["y"])], values, [Value("y", "float32", ("n",))], opsets={"": 17})
    with open_js_page(browser, isolated_site) as js:
        outcome = js.run(
            f"""{PLACED}
            const s = await InferenceSession.create(Uint8Array.from(model));
            const rate = new Tensor("int64", [16000n], []);
            const run = async (k) => (await s.run({{ rate, x: new Tensor("float32", [k], [1]) }})).y.data[0];
            const found = [await run(1), await run(2), await run(3)];
            return [found, placed > 0];""",
            model=list(write_model(graph)),
        )
    assert outcome == [[-1, -2, -3], True]


class TestWorkerDeath:
    @pytest.mark.parametrize(
        "kill",
        ["workers[0].terminate();", "workers[0].dispatchEvent(new ErrorEvent('error', { message: 'gone' }));"],
    )
    def test_pending_calls_are_rejected_and_a_new_worker_starts(
        self, browser: Browser, plain_site: Site, kill: str
    ) -> None:
        with open_page(browser, plain_site) as js:
            outcome = js.run(
                f"""{SPY}{BUNDLED}
                const s = await open();
                const calls = [failure(() => loss(s)), failure(() => s.getParametersSize())];
                {kill}
                const errors = await Promise.all(calls);
                const later = await failure(() => loss(s));
                await s.release();
                const t = await open();
                const value = await loss(t);
                return {{ errors, later, value, started: workers.length }};"""
            )
            for error in [*outcome["errors"], outcome["later"]]:
                assert error["name"] == "EngineError"
                assert "worker is lost" in error["message"]
            assert outcome["value"] > 0
            assert outcome["started"] == 2

    def test_an_optimizer_step_after_death_fails_at_the_latest_with_the_next_call(
        self, browser: Browser, plain_site: Site
    ) -> None:
        with open_page(browser, plain_site) as js:
            outcome = js.run(
                f"""{SPY}{BUNDLED}
                const s = await open();
                await loss(s);
                await s.runOptimizerStep();
                const before = await s.getContiguousParameters();
                // Those that are not waited for arrive before what reads.
                for (let i = 0; i < 3; i++) await s.runOptimizerStep();
                const after = await s.getContiguousParameters();
                const updates = [s.runOptimizerStep(), s.runOptimizerStep()].map((p) => p.catch(() => null));
                workers[0].terminate();
                await Promise.all(updates);
                const changed = after.data.some((value, i) => value !== before.data[i]);
                return {{ changed, error: await failure(() => s.runOptimizerStep()) }};"""
            )
            assert outcome["changed"]
            assert outcome["error"]["name"] == "EngineError"

    def test_death_during_start(self, browser: Browser, plain_site: Site) -> None:
        with open_page(browser, plain_site) as js:
            outcome = js.run(
                f"""{SPY}{BUNDLED}
                const opening = failure(() => open());
                {WATCHED}
                workers[0].terminate();
                const error = await opening;
                const t = await open();
                return {{ error, value: await loss(t) }};"""
            )
            assert outcome["error"]["name"] == "EngineError"
            assert outcome["value"] > 0

    def test_death_before_the_first_sign_of_life(self, browser: Browser, plain_site: Site) -> None:
        """Only time reveals it; other sessions that wait for the same worker fail with the first."""
        with open_page(browser, plain_site) as js:
            js.page.clock.install()
            js.run(
                f"""{PATIENT}{SPY}{BUNDLED}
                window.openings = [open(), open({{ cache: true }})].map((opening) => failure(() => opening));
                workers[0].terminate();"""
            )
            js.page.clock.run_for(61_000)
            outcome = js.run(
                f"""{BUNDLED}
                const errors = await Promise.all(openings);
                const t = await open();
                return {{ errors, value: await loss(t), started: workers.length }};"""
            )
            for error in outcome["errors"]:
                assert error["name"] == "EngineError"
                assert "did not start within 60 s" in error["message"]
            assert outcome["value"] > 0
            assert outcome["started"] == 2

    def test_a_slow_start_is_no_death(self, browser: Browser, make_site: Callable[..., Site]) -> None:
        """The script takes its time, and so does Pyodide, long after the worker's first message."""
        site = make_site()
        site.add("/dist/worker.js", (ROOT / "dist/npm/worker.js").read_bytes(), delay_s=2)
        with open_js_page(browser, site) as js:
            js.page.clock.install()
            js.run(f"{PATIENT}{OPEN} window.opening = open();")
            js.page.clock.fast_forward(30_000)
            js.run(WATCHED)
            js.page.clock.fast_forward(600_000)
            assert js.run(f"{OPEN} return loss(await opening);") > 0

    def test_a_worker_outlives_a_look_that_stalls(self, browser: Browser, make_site: Callable[..., Site]) -> None:
        """The script is asked for again because it is late; it comes, and the second answer never does."""
        site = make_site()
        site.add("/dist/worker.js", (ROOT / "dist/npm/worker.js").read_bytes(), delay_s=2)
        looks: list[Route] = []

        def route(found: Route) -> None:
            if found.request.resource_type == "fetch":
                looks.append(found)  # and never answered
            else:
                found.continue_()

        with open_page(browser, site) as js:
            js.page.route("**/dist/worker.js", route)
            js.page.clock.install()
            js.run(f"{BUNDLED} window.opening = open();")
            js.page.clock.fast_forward(4_000)
            js.run(WATCHED)
            js.page.clock.fast_forward(600_000)
            assert js.run(f"{BUNDLED} return loss(await opening);") > 0
            assert len(looks) == 1


def test_nothing_leaks_over_sessions_and_failures(browser: Browser, plain_site: Site) -> None:
    """The kernels' memory comes back, also after steps and sessions that failed."""
    with open_js_page(browser, plain_site) as js:
        outcome = js.run(
            f"""{SPY}{OPEN}
            const memory = () => new Promise((resolve) => {{
              const id = `memory ${{Math.random()}}`;
              const listen = ({{ data }}) => {{ if (data.id === id) resolve(data.result.ok); }};
              workers[0].addEventListener("message", listen);
              workers[0].postMessage([{{ id, method: "memory", args: [] }}]);
            }});
            const cycle = async () => {{
              const s = await open();
              const before = (await memory()).inUse;
              await loss(s);
              await s.runOptimizerStep();
              const step = await failure(() => s.runTrainStep({{ x, labels: x }}));
              const created = await failure(() =>
                TrainingSession.create(golden("mlp", {{ evalModel: new Uint8Array(9) }})));
              await s.release();
              return [step.name, created.name, before > 0].join();
            }};
            const outcomes = new Set([await cycle()]);
            const start = await memory();
            for (let k = 0; k < 10; k++) outcomes.add(await cycle());
            const end = await memory();
            return {{ outcomes: [...outcomes], start, end }};"""
        )
        assert outcome["outcomes"] == ["FeedError,ModelError,true"]
        assert outcome["end"] == outcome["start"]


def test_one_worker_for_all_sessions_of_a_kind(browser: Browser, plain_site: Site) -> None:
    with open_page(browser, plain_site) as js:
        assert js.run(
            f"""{SPY}{BUNDLED}
            await Promise.all([open(), open()]);
            const first = workers.length;
            await open();
            const second = workers.length;
            await open({{ reproducible: true }});
            return [first, second, workers.length];"""
        ) == [1, 1, 2]
