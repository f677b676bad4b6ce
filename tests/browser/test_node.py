"""The package in Node: the README's scripts, files, threads, and what a process needs to end."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from .conftest import require_built
from .server import ROOT
from .test_readme import FIRST_MODEL, check_log, check_ten_lines, code_block

TIMEOUT_S = 120

TRAIN = """
import { env, Tensor, TrainingSession } from "trainweb";
env.wasm.numThreads = THREADS;
env.pyodide.snapshot = SNAPSHOT;
const session = await TrainingSession.createFromModel("docs/first.onnx",
  { loss: "CrossEntropyLoss", optimizer: "AdamW" }, { reproducible: true });
const values = Float32Array.from({ length: 128 }, (_, i) => ((37 * i) % 101) / 101 - 0.5);
const points = new Tensor("float32", values, [64, 2]);
const labels = new Tensor("int64", BigInt64Array.from({ length: 64 }, (_, i) => BigInt(i % 2)), [64]);
for (let step = 0; step < 5; step++) {
  await session.runTrainStep({ points, labels });
  await session.runOptimizerStep();
  await session.lazyResetGrad();
}
const { data } = await session.getContiguousParameters();
console.log(JSON.stringify(Array.from(new Uint32Array(data.buffer, data.byteOffset, data.length))));
"""


def node(code: str, cwd: Path = ROOT) -> str:
    """The output of a module; the process must end by itself, whatever sessions are open."""
    require_built(ROOT / "dist" / "npm" / "node.js")
    done = subprocess.run(
        ["node", "--input-type=module", "-e", code],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def trained(*, threads: int = 1, snapshot: bool = True) -> list[int]:
    """The bits of the parameters after five steps."""
    code = TRAIN.replace("THREADS", str(threads)).replace("SNAPSHOT", json.dumps(snapshot))
    bits: list[int] = json.loads(node(code))
    return bits


def trained_in_python() -> list[int]:
    """The same five steps in CPython, on the kernels in wasmtime."""
    import trainweb
    from trainweb.artifacts import LossType, OptimType, build_artifacts

    files = build_artifacts(FIRST_MODEL, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    session = trainweb.TrainingSession(**files, options={"reproducible": True})
    points = (37 * np.arange(128) % 101 / 101 - 0.5).astype(np.float32).reshape(64, 2)
    labels = np.arange(64) % 2
    for _ in range(5):
        session.train_step({"points": points, "labels": labels.astype(np.int64)})
        session.optimizer_step()
        session.lazy_reset_grad()
    bits: list[int] = session.get_contiguous_parameters().view(np.uint32).tolist()
    session.release()
    return bits


def test_a_store_without_a_folder_says_so() -> None:
    found = node(
        """import { CheckpointStore } from "trainweb";
        const store = new CheckpointStore();
        const errors = [];
        for (const call of [() => store.list(), () => store.delete("x")]) {
          await call().catch(({ name, message }) => errors.push(`${name} ${message}`));
        }
        console.log(JSON.stringify([errors, await store.quota(), await store.persist()]));"""
    )
    errors, quota, persists = json.loads(found)
    assert len(errors) == 2 and quota == {"usage": None, "quota": None, "isPersistent": False} and not persists
    for error in errors:
        assert error.startswith("StorageError Outside of browsers name a folder: new Check")


@pytest.mark.parametrize(("backend", "reason"), [("opfs", "private file system (OPFS)"), ("indexedDB", "IndexedDB")])
def test_a_backend_that_is_not_there_says_so(backend: str, reason: str) -> None:
    found = node(
        f"""import {{ CheckpointStore }} from "trainweb";
        const store = new CheckpointStore("mine", {{ backend: "{backend}" }});
        const errors = [];
        for (const call of [() => store.list(), () => store.read("x"), () => store.write("x", new Uint8Array(1))]) {{
          await call().catch(({{ name, message }}) => errors.push(`${{name}} ${{message}}`));
        }}
        console.log(JSON.stringify(errors));"""
    )
    errors = json.loads(found)
    message = f"There is no storage for checkpoints of backend '{backend}' here (it has no {reason})."
    assert len(errors) == 3 and all(error.startswith(f"StorageError {message}") for error in errors)


def test_a_large_file_that_is_no_model_is_refused_without_a_warning_about_the_cache(tmp_path: Path) -> None:
    (tmp_path / "zeros.onnx").write_bytes(bytes(40 << 20))
    file = json.dumps(str(tmp_path / "zeros.onnx"))
    code = f"""import {{ TrainingSession }} from "trainweb";
        const said = [];
        console.warn = (...texts) => said.push(texts.join(" "));
        const config = {{ loss: "CrossEntropyLoss", optimizer: "AdamW" }};
        for (const cache of [false, true]) {{
          const session = TrainingSession.createFromModel({file}, config, {{ cache }});
          await session.catch(({{ name, message }}) => said.push(`${{name}}: ${{message}}`));
        }}
        console.log(JSON.stringify(said));"""
    said = json.loads(node(code))
    assert len(said) == 2 and all(text.startswith("ModelError: the model is not valid ONNX") for text in said), said


def test_the_first_page_s_script_trains() -> None:
    """The first page of docs/sessions.md: the script alone, with the package by its name and its log on the console."""
    html = code_block("html")
    script = re.search(r"<script type=\"module\">(.*?)</script>", html, re.DOTALL)
    assert script is not None
    code = script[1]
    for old, new in (
        ('"./trainweb/index.js"', '"trainweb"'),
        ('document.querySelector("#log").append(`\\n${line}`)', "console.log(line)"),
    ):
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    text = node(code)
    check_log(text)
    assert "done:" in text


@pytest.mark.parametrize(("threads", "snapshot"), [(1, True), (2, False)], ids=["one thread", "two, plain start"])
def test_the_same_bytes_as_in_python(threads: int, snapshot: bool) -> None:
    assert trained(threads=threads, snapshot=snapshot) == trained_in_python()


def test_kernels_run_in_threads() -> None:
    text = node(
        """import { env, TrainingSession } from "trainweb";
        env.logLevel = "info";
        env.wasm.numThreads = 2;
        console.info = console.warn = console.log;
        const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
        await (await TrainingSession.createFromModel("docs/first.onnx", config)).release();"""
    )
    assert re.search(r"kernels\S*\.threads, 2 threads", text), text


def test_what_goes_wrong_is_told_by_its_class() -> None:
    code = """
    import { env, TrainingSession } from "trainweb";
    const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
    const tell = (promise) => promise.catch((error) => console.log(`${error.name}: ${error.message}`));
    await tell(TrainingSession.createFromModel("docs/nowhere.onnx", config));
    await tell(TrainingSession.createFromModel("README.md", config));
    env.baseURL = "nowhere/";
    await tell(TrainingSession.createFromModel("docs/first.onnx", config));
    """
    missing, strange, nowhere = node(code).splitlines()
    assert missing.startswith("ModelError: model: docs/nowhere.onnx could not be fetched: ENOENT")
    assert strange.startswith("ModelError: ")
    assert nowhere.startswith("EngineError: the worker is lost: ")
    assert "nowhere/worker.js" in nowhere


def test_the_gpu_that_is_not_there_is_told_with_the_package_that_has_it() -> None:
    said = node(
        "import { TrainingSession } from 'trainweb';"
        "const config = { loss: 'CrossEntropyLoss', optimizer: 'SGD' };"
        "await TrainingSession.createFromModel('docs/first.onnx', config, { device: 'webgpu' })"
        ".then((s) => s.release(), (error) => console.log(String(error)))"
    )
    assert said.startswith("DeviceError: There is no WebGPU here.") and "webgpu has it: set env.webgpu.gpu" in said


def test_a_csv_file_is_read_from_its_path(tmp_path: Path) -> None:
    (tmp_path / "a table.csv").write_text("a,b\n1,2\n3,\n", encoding="utf-8")
    package = (ROOT / "dist" / "npm" / "node.js").as_uri()
    code = f"""
    import {{ Dataset, readCsv }} from "{package}";
    const {{ columns }} = await readCsv("a table.csv", {{ x: ["a", "b"] }}, {{ missing: {{ b: 7 }} }});
    const read = await Dataset.fromCsv(`file://${{process.cwd()}}/a%20table.csv`, {{ x: "a" }});
    console.log(JSON.stringify([Array.from(columns.get("x").data), Array.from(read.columns.get("x").data)]));
    await readCsv("no.csv", {{ x: "a" }}).catch((error) => console.log(`${{error.name}}: ${{error.message}}`));
    """
    values, failure = node(code, tmp_path).splitlines()
    assert json.loads(values) == [[1, 2, 3, 7], [1, 3]]
    assert failure.startswith("FeedError: 'source', 'no.csv', could not be read: ENOENT")


def test_a_readable_stream_is_read_to_its_end() -> None:
    told = node("""
    import { Dataset, example, TrainingSession } from "trainweb";
    const losses = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
    const session = await TrainingSession.createFromModel(example("first.onnx"), losses);
    const stream = () => {
      let k = 0;
      return new ReadableStream({
        pull: (to) => (k === 20 ? to.close() : to.enqueue({ points: [Math.sin(k), 0], labels: k++ % 2 })),
      });
    };
    const piped = stream().pipeThrough(new TransformStream());
    const options = { batchSize: 10, validationData: piped };
    const { epochs, losses: steps } = await session.fit(stream(), options);
    const evaluated = await session.evaluate(new Dataset(stream()).take(20), { batchSize: 10 });
    const { logits } = await session.predict(stream());
    console.log(steps.length, epochs[0].validation.loss === evaluated.loss, logits.dims);
    await session.release();
    """)
    assert told == "2 true [ 20, 2 ]\n"


REACTIVE = """
    // As Vue's reactive() wraps what it reaches (getTargetType in packages/reactivity/src/reactive.ts).
    const kinds = ["Object", "Array", "Map", "Set", "WeakMap", "WeakSet"];
    const isOpen = (value) => value.__v_skip !== true && Object.isExtensible(value);
    const isWrapped = (value) =>
      value === Object(value) && isOpen(value) && kinds.includes(Object.prototype.toString.call(value).slice(8, -1));
    const get = (...at) => reactive(Reflect.get(...at));
    const reactive = (value) => (isWrapped(value) ? new Proxy(value, { get }) : value);
"""


def test_objects_with_private_fields_are_not_made_reactive() -> None:
    told = node(
        f"""import * as trainweb from "trainweb";
        import {{ Engine }} from "trainweb/engine";
        {REACTIVE}
        const {{ CheckpointStore, Dataset, example, InferenceSession, TrainingSession }} = trainweb;
        const classes = [...Object.values(trainweb), trainweb.env.constructor, Engine].filter(
          (one) => /^class\\b/.test(String(one)) && /\\bthis\\.#/.test(one),
        );
        console.log(classes.filter(({{ prototype }}) => isWrapped(Object.create(prototype))).map(({{ name }}) => name));
        const session = await TrainingSession.createFromModel(
          example("first.onnx"), {{ loss: "CrossEntropyLoss", optimizer: "SGD" }},
        );
        const points = [[0, 0], [1, 1]];
        const data = new Dataset({{ points, labels: [0, 1] }});
        const state = reactive({{ session, data, store: new CheckpointStore() }});
        const fit = reactive({{ run: state.session.fit(state.data, {{ epochs: 2 }}) }});
        const {{ losses }} = await fit.run;
        fit.run.stop();
        const exported = reactive({{ model: await InferenceSession.create(await state.session.export()) }});
        const given = {{ points: new trainweb.Tensor("float32", [0, 0, 1, 1], [2, 2]) }};
        const {{ logits }} = await exported.model.run(given);
        const feeds = {{ ...given, labels: BigInt64Array.of(0n, 1n) }};
        const profile = reactive({{ of: await state.session.profile(feeds) }});
        const kernels = Object.keys(profile.of.byKernel()).length > 0;
        console.log(losses.length, logits.dims, kernels, state.session.trainingInputNames, classes.length > 8);
        console.log(JSON.stringify(session).includes("__v_skip"));
        await state.session.release();"""
    )
    assert told.splitlines() == ["[]", "2 [ 2, 2 ] true [ 'points', 'labels' ] true", "false"]


def test_an_import_needs_nothing_of_a_browser() -> None:
    """jest has the globals of jsdom, which lacks the encoders, fetch, streams and workers."""
    package = (ROOT / "dist" / "npm" / "index.js").as_uri()
    told = node(f"""
    const lacking = ["TextEncoder", "TextDecoder", "fetch", "structuredClone", "ReadableStream", "Response", "Request",
      "Worker", "MessageChannel", "Blob", "crypto", "WebAssembly", "AbortController", "CompressionStream"];
    lacking.forEach((name) => delete globalThis[name]);
    console.log(typeof (await import("{package}")).TrainingSession, typeof TextEncoder);""")
    assert told == "function undefined\n"


def test_bytes_and_addresses_of_another_realm_are_taken(tmp_path: Path) -> None:
    told = node("""
    import { readFileSync } from "node:fs";
    import { pathToFileURL } from "node:url";
    import { runInNewContext } from "node:vm";
    import { InferenceSession, inspectModel, TrainingSession } from "trainweb";
    const settings = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
    const file = readFileSync("docs/first.onnx");
    const bytes = runInNewContext("new Uint8Array(n)", { n: file.length });
    bytes.set(file);
    const { href } = pathToFileURL("docs/first.onnx");
    const address = { href, toString: () => href };
    for (const model of [bytes, bytes.buffer, address, file]) {
      const session = await TrainingSession.createFromModel(model, settings);
      const inference = await InferenceSession.create(model);
      console.log(bytes instanceof Uint8Array, inference.inputNames, (await inspectModel(model)).inputs?.length > 0);
      const parameters = await session.getContiguousParameters(false);
      const given = runInNewContext("new Uint8Array(n)", { n: parameters.data.byteLength });
      await session.loadParametersBuffer(given, false);
      await session.release();
    }
    for (const model of [{}, 3, Float32Array.of(1), null]) {
      await TrainingSession.createFromModel(model, settings).catch(({ message }) => console.log(message.slice(0, 22)));
    }
    """)
    assert told.splitlines() == ["false [ 'points' ] true"] * 4 + ["'model' must be a URL,"] * 4


def test_a_download_that_does_not_end_well_is_given_up() -> None:
    """As in pages, where `test_downloads.py` has more of it; afterwards nothing keeps the process."""
    code = """
    import { createServer } from "node:http";
    import { env, InferenceSession } from "trainweb";
    env.timeouts.stall = 2000;
    const answers = {
      "/silent": () => {},
      "/stalls": (response) => response.write(Buffer.alloc(100)),
      "/endless": (response) => {
        const more = () => { while (response.write(Buffer.alloc(2 ** 16))); };
        response.on("drain", more);
        more();
      },
    };
    const server = createServer((request, response) => answers[request.url](response));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const base = `http://127.0.0.1:${server.address().port}`;
    const tell = (url, options) => InferenceSession.create(url, options).then(() => "opened", String);
    const own = new AbortController();
    setTimeout(() => own.abort("mine"), 500);
    const limits = { fileBytes: 2 ** 20 };
    const found = await Promise.all([
      ...Object.keys(answers).map((path) => tell(base + path, { limits })),
      tell(`${base}/silent`, { signal: own.signal }), tell("docs/first.onnx", { signal: AbortSignal.abort("before") }),
    ]);
    found.forEach((text) => console.log(text.replace(base, "")));
    server.close();
    server.closeAllConnections();
    """
    assert node(code).splitlines() == [
        "ModelError: model: /silent stalls: nothing came for 2 s after 0 bytes (env.timeouts.stall).",
        "ModelError: model: /stalls stalls: nothing came for 2 s after 100 bytes (env.timeouts.stall).",
        "LimitError: model: /endless has more than 1048576 bytes, the limit (limits.fileBytes).",
        "mine",
        "before",
    ]


def test_the_engine_reads_files() -> None:
    """And starts threads."""
    code = """
    import { Engine } from "trainweb/engine";
    const engine = await Engine.create({ wasm: new URL("dist/npm/", `file://${process.cwd()}/`), threads: 2 });
    const at = engine.alloc(8);
    engine.write(at, new Uint8Array([1, 2, 3, 4, 5, 6, 7, 8]));
    console.log(engine.build, engine.threads, engine.read(at, 8).join());
    """
    build, threads, data = node(code).split()
    assert re.fullmatch(r"kernels(\.relaxed)?\.threads", build)
    assert (threads, data) == ("2", "1,2,3,4,5,6,7,8")


def test_the_ten_lines_train() -> None:
    """As they stand, with nothing beside them."""
    check_ten_lines(node(code_block("js")).splitlines())


def test_examples_come_with_the_package() -> None:
    code = """
    import { example } from "trainweb";
    console.log(Buffer.from(example("first.onnx")).toString("hex"));
    try { example("last.onnx"); } catch (error) { console.log(String(error)); }
    """
    model, error = node(code).splitlines()
    assert bytes.fromhex(model) == FIRST_MODEL.read_bytes()
    assert error == "TypeError: There is no example named 'last.onnx'. The package has: first.onnx."


def test_the_example_is_a_file_of_the_package_too() -> None:
    """For bundlers and people who want the file itself."""
    code = "import { readFileSync } from 'node:fs'; import { fileURLToPath } from 'node:url';"
    code += "console.log(readFileSync(fileURLToPath(import.meta.resolve('trainweb/first.onnx'))).toString('hex'));"
    assert bytes.fromhex(node(code).strip()) == FIRST_MODEL.read_bytes()


def test_console_log_says_what_sessions_and_datasets_are() -> None:
    code = """
    import { Dataset, InferenceSession, Tensor, TrainingSession } from "trainweb";
    const config = { loss: "CrossEntropyLoss", optimizer: "SGD", frozenParams: ["hidden.*"] };
    const session = await TrainingSession.createFromModel("docs/first.onnx", config);
    console.log(session);
    console.log(`${await TrainingSession.create({ ...await session.artifacts(), optimizerModel: undefined })}`);
    console.log(await InferenceSession.create("docs/first.onnx"));
    const x = new Tensor("float32", new Float32Array(4800), [1200, 4]);
    const data = Dataset.of({ x, y: new Array(1200).fill(1) });
    console.log(data);
    console.log(String(new Dataset([{ x: 1 }])));
    console.log(String(data.map((row) => row)));
    console.log({ of: data.batch(8) });
    """
    assert node(code).splitlines() == [
        "<TrainingSession: 82 parameters, 34 trainable, SGD>",
        "<TrainingSession: 82 parameters, 34 trainable, no optimizer>",
        "<InferenceSession: points float32[batch, 2] to logits float32[batch, 2]>",
        "<Dataset: 1,200 rows of x float32[4], y float32[]>",
        "<Dataset: list of rows>",
        "<Dataset: stream of rows>",
        "{ of: <Dataset: stream of batches> }",
    ]


def test_an_adapter_session_goes_on_in_another_process_from_a_file(tmp_path: Path) -> None:
    """A file of `save` does without a store."""
    code = f"""import {{ TrainingSession }} from "trainweb";
        import {{ rejects }} from "node:assert/strict";
        import {{ writeFile }} from "node:fs/promises";
        const lora = {{ targets: "all-linear", rank: 2 }};
        const config = {{ loss: "CrossEntropyLoss", optimizer: "AdamW", lora }};
        const s = await TrainingSession.createFromModel("docs/first.onnx", config);
        const points = Array.from({{ length: 16 }}, (_, k) => [Math.sin(k), Math.cos(3 * k)]);
        const data = {{ points, labels: points.map(([x]) => Number(x > 0)) }};
        const file = {json.dumps(str(tmp_path / "run"))};
        if (STARTS) {{
          await s.fit(data, {{ epochs: 2 }});
          await writeFile(file, await s.save());
        }} else {{
          const scaled = {{ ...config, lora: {{ ...lora, alpha: 6 }} }};
          const other = await TrainingSession.createFromModel("docs/first.onnx", scaled);
          await rejects(other.loadCheckpoint(file), /the scaling '1', and this session's adapters have '3'/);
          await other.release();
          await s.loadCheckpoint(file);
        }}
        const {{ losses }} = await s.fit(data, {{ epochs: 3 }});
        const {{ weights }} = await s.adapter();
        console.log(JSON.stringify([Array.from(losses), Array.from(weights), (await s.mergeAdapter()).length]));"""
    undisturbed, resumed = (node(code.replace("STARTS", starts)) for starts in ("true", "false"))
    assert undisturbed == resumed and len(json.loads(resumed)[0]) == 3


def test_a_connection_that_fails_rejects_where_errors_need_a_listener() -> None:
    """Sockets of the package ws are event emitters of Node, which throw an error that nothing hears."""
    code = """import { EventEmitter } from "node:events";
        import { joinFlower, TrainingSession } from "trainweb";
        globalThis.WebSocket = class extends EventEmitter {
          constructor() {
            super();
            setTimeout(() => this.emit("error", new Error("ECONNREFUSED")));
            setTimeout(() => this.onclose({ code: 1006, reason: "" }));
          }
          set onerror(listener) { this.on("error", listener); }
        };
        const s = await TrainingSession.createFromModel("docs/first.onnx", { loss: "CrossEntropyLoss" });
        await joinFlower("ws://localhost:1", s, { train() {} }).catch((e) => console.log(e.name, e.message));"""
    assert "ws://localhost:1" in node(code)


def test_a_client_of_flower_without_websocket_says_so() -> None:
    """As in Node 20; later versions have it."""
    code = """import { joinFlower, TrainingSession } from "trainweb";
        delete globalThis.WebSocket;
        const s = await TrainingSession.createFromModel("docs/first.onnx", { loss: "CrossEntropyLoss" });
        await joinFlower("ws://localhost:1", s, { train() {} }).catch((e) => console.log(e.name, e.message));"""
    assert node(code).startswith("SessionError No WebSocket is here: set globalThis.WebSocket, in Node 20")


def test_a_picture_says_that_it_needs_a_browser() -> None:
    code = """import { readImage, readImages } from "trainweb";
        const size = { width: 4, height: 4 };
        const files = [new Blob([new Uint8Array(9)]), "docs/images/demo.png"];
        const calls = files.map((file) => () => readImage(file, size));
        calls.push(async () => { for await (const row of readImages([new Blob()], { input: "x", ...size })); });
        const said = [];
        for (const call of calls) await call().catch(({ name, message }) => said.push(`${name} ${message}`));
        console.log(JSON.stringify(said));"""
    text = "UnsupportedError Reading a picture needs a browser, which decodes it. In Node, Deno and Bun give its pixels"
    assert [message[: len(text)] for message in json.loads(node(code))] == [text] * 3


def test_a_call_of_another_session_comes_between_two_steps_of_a_fit() -> None:
    """Ports of Node hand out messages to themselves before those of others: a call waited for the end of the epoch."""
    code = """import { Tensor, TrainingSession } from "trainweb";
        const [rows, batchSize] = [2_000_000, 20_000];
        const config = { loss: "CrossEntropyLoss" };
        const open = () => TrainingSession.createFromModel("docs/first.onnx", config, { threads: 1 });
        const [long, short] = [await open(), await open()];
        const points = new Tensor("float32", [0, 0, 1, 1], [2, 2]);
        await short.predict({ points });
        const all = new Tensor("float32", new Float32Array(2 * rows), [rows, 2]);
        const data = { points: all, labels: new Int32Array(rows) };
        const done = [];
        let steps = 0;
        const listen = ({ type }) => {
          if (type === "progress" && steps++ === 0) short.predict({ points }).then(() => done.push("predict"));
          if (type === "epoch") done.push("epoch");
        };
        await long.fit(data, { epochs: 1, batchSize, shuffle: false, callbacks: [listen] });
        console.log(done.join());"""
    assert node(code) == "predict,epoch\n"
