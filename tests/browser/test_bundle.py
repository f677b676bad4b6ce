"""Sessions from bundles: training without Python, Python once it is needed, bundles that are damaged."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser
from tests.python import test_hoist as hoist

from trainweb.backend.wasm.engine import get_engine
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Tensor
from trainweb.model.reader import read_model
from trainweb.training.bundle import make_bundle
from trainweb.training.core import SessionCore
from trainweb.training.state import CheckpointState

from .js_session import JsPage, open_js_page
from .server import ROOT, Site
from .test_js_golden import GOLDEN, Replay

MODELS = {
    "train_model": "training_model.onnx",
    "eval_model": "eval_model.onnx",
    "optimizer_model": "optimizer_model.onnx",
}
PYTHON_CALLS = ("save_checkpoint", "export")
PREFIX_BYTES = 64

Signature = dict[str, TensorType]
MLP: Signature = {"x": TensorType("float32", (8, 10)), "labels": TensorType("int64", (8,))}


def open_core(case: str, checkpoint: str = "checkpoint", *, reproducible: bool = False) -> SessionCore:
    """A native session of a golden case."""
    graphs = [read_model((GOLDEN / case / name).read_bytes()) for name in MODELS.values()]
    state = CheckpointState.load_checkpoint((GOLDEN / case / checkpoint).read_bytes())
    return SessionCore(state, *graphs, engine=get_engine(reproducible=reproducible))


def compile_bundle(
    case: str, signatures: Iterable[Signature], checkpoint: str = "checkpoint", *, models: bool = True
) -> bytes:
    """What `trainweb compile` writes, for several signatures at once."""
    core = open_core(case, checkpoint)
    carried = {key: (GOLDEN / case / name).read_bytes() for key, name in MODELS.items()} if models else None
    core.release()
    return make_bundle(core.models, core.state.lent(), core.state.property_values, signatures, carried)


@cache
def mlp_bundle(models: bool = True) -> bytes:
    """The mlp, for a batch of 8."""
    return compile_bundle("mlp", [MLP], models=models)


def header_of(bundle: bytes) -> dict[str, Any]:
    (length,) = struct.unpack_from("<I", bundle, 12)
    header: dict[str, Any] = json.loads(bundle[PREFIX_BYTES : PREFIX_BYTES + length])
    return header


def with_header(bundle: bytes, header: Any) -> bytes:
    """The same blobs under another header."""
    (length,) = struct.unpack_from("<I", bundle, 12)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    changed = bundle[:12] + struct.pack("<I", len(text)) + bundle[16:PREFIX_BYTES]
    return sealed(changed + text + bundle[PREFIX_BYTES + length :])


def sealed(bundle: bytes) -> bytes:
    """The bundle with the hash that its bytes have."""
    digest = hashlib.sha256(bundle[PREFIX_BYTES:]).digest()
    return bundle[:16] + digest + bundle[48:]


def python_requests(site: Site) -> list[str]:
    return site.requests("/dist/python/")


@contextmanager
def open_page(browser: Browser, site: Site, expected: tuple[str, ...] = ()) -> Iterator[JsPage]:
    """A page, with the log of the site starting anew."""
    site.clear_log()
    with open_js_page(browser, site, expected) as js:
        yield js


class BundleReplay(Replay):
    """A recorded trace on a session from a bundle."""

    def __init__(self, js: JsPage, case: str) -> None:
        super().__init__(js, case)
        signatures = []
        for call in self.trace["trace"]:
            if call["op"] in ("train", "eval"):
                feeds = {n: TensorType(v["type"], tuple(v["dims"])) for n, v in self.feeds(call["feed"]).items()}
                if feeds not in signatures:
                    signatures.append(feeds)
        self.bundle = compile_bundle(case, signatures, self.trace["start_checkpoint"])
        js.site.add(f"/bundles/{case}", self.bundle)

    def open(self, checkpoint: str) -> None:
        if checkpoint != self.trace["start_checkpoint"]:
            super().open(checkpoint)
            return
        names = self.js.run(
            """const s = await TrainingSession.create({ bundle: `/bundles/${name}` });
            window.session = s;
            return [s.trainingInputNames, s.trainingOutputNames, s.evalInputNames, s.evalOutputNames,
                    await s.getParametersSize(), await s.getParametersSize(false)];""",
            name=self.case,
        )
        t, size = self.trace, self.trace["parameters_size"]
        kinds = ("training_input", "training_output", "eval_input", "eval_output")
        assert names == [*(t[f"{kind}_names"] for kind in kinds), size["trainable"], size["all"]]

    def run_without_python(self) -> int:
        """Replay up to the first call that needs Python."""
        ops = [call["op"] for call in self.trace["trace"]]
        end = next((k for k, op in enumerate(ops) if op in PYTHON_CALLS), len(ops))
        self.trace["trace"] = self.trace["trace"][:end]
        return self.run()


@pytest.mark.parametrize("case", ["mlp", "cnn", "transformer", "nominal"])
def test_trains_to_the_recorded_trajectory_without_python(browser: Browser, plain_site: Site, case: str) -> None:
    with open_page(browser, plain_site) as js:
        assert BundleReplay(js, case).run_without_python() > 5
        assert python_requests(plain_site) == []
        kernels = [path for path in plain_site.requests("/dist/") if "kernels" in path]
        assert len(kernels) == 1


@pytest.mark.parametrize("case", ["mlp", "scheduler_accumulation", "nominal"])
def test_a_whole_trace_with_python_joining_in(browser: Browser, plain_site: Site, case: str) -> None:
    """Checkpoints, export and properties on the way: the results stay those that were recorded."""
    with open_page(browser, plain_site) as js:
        assert BundleReplay(js, case).run() > 10
        assert python_requests(plain_site)


def test_two_threads(browser: Browser, isolated_site: Site) -> None:
    with open_page(browser, isolated_site) as js:
        js.run("env.wasm.numThreads = 2;")
        assert BundleReplay(js, "cnn").run_without_python() > 5
        assert python_requests(isolated_site) == []
        assert [p for p in isolated_site.requests("/dist/") if p.endswith(".threads.wasm.gz")]


SESSION = """
    const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const text = (data) => btoa(String.fromCharCode(
      ...new Uint8Array(data.buffer, data.byteOffset, data.byteLength)));
    const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
    const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
    const feeds = { x, labels };
    const small = { x: new Tensor("float32", x.data.slice(0, 30), [3, 10]),
                    labels: new Tensor("int64", labels.data.slice(0, 3), [3]) };
    const options = { reproducible: true };
    const fromBundle = (url = "/bundles/mlp") => TrainingSession.create({ bundle: url }, options);
    const fromModels = () => TrainingSession.create(golden("mlp"), options);
    const step = async (s, given = feeds) => {
      const result = await s.runTrainStep(given);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
      return text(Object.values(result)[0].data);
    };
    const parameters = async (s) => text((await s.getContiguousParameters()).data);
"""

TRAIN = """
    const train = async (s) => {
      const seen = [];
      await s.setLearningRate(0.01);
      for (let k = 0; k < 5; k++) seen.push(await step(s));
      await s.runTrainStep(feeds);
      seen.push(text(Object.values(await s.runTrainStep(feeds))[0].data));  // accumulates
      await s.runOptimizerStep();
      seen.push(await parameters(s), text((await s.runEvalStep(feeds))[s.evalOutputNames[0]].data));
      await s.registerLinearLRScheduler(2, 10, 0.02);
      await s.schedulerStep();
      seen.push(await s.getLearningRate());
      return seen;
    };
"""


@pytest.fixture
def mlp_site(plain_site: Site) -> Site:
    """A site with the bundle of the mlp, with and without models."""
    plain_site.add("/bundles/mlp", mlp_bundle())
    plain_site.add("/bundles/bare", mlp_bundle(models=False))
    return plain_site


def natively() -> list[Any]:
    """The same calls as TRAIN, in this process."""
    core = open_core("mlp", reproducible=True)
    x = np.sin(np.arange(80)).astype(np.float32)
    feeds = {
        "x": Tensor("x", "float32", (8, 10), x.tobytes()),
        "labels": Tensor("labels", "int64", (8,), (np.arange(8, dtype=np.int64) % 3).tobytes()),
    }

    def text(tensor: Tensor) -> str:
        return base64.b64encode(tensor.data).decode()

    def train() -> str:
        return text(core.step("train", feeds)[core.outputs["train"][0]])

    seen: list[Any] = []
    core.set_learning_rate(0.01)
    for _ in range(5):
        seen.append(train())
        core.optimizer_step()
        core.lazy_reset_grad()
    train()
    seen.append(train())
    core.optimizer_step()
    seen.append(text(core.get_contiguous_parameters()))
    seen.append(text(core.step("eval", feeds)[core.outputs["eval"][0]]))
    core.register_linear_lr_scheduler(2, 10, 0.02)
    core.scheduler_step()
    seen.append(core.get_learning_rate())
    core.release()
    return seen


def test_results_are_the_bytes_of_a_python_session(browser: Browser, mlp_site: Site) -> None:
    """In the page and natively: who compiles, and where, makes no difference."""
    with open_page(browser, mlp_site) as js:
        found = js.run(f"{SESSION}{TRAIN} return train(await fromBundle());")
        assert python_requests(mlp_site) == []
        assert found == js.run(f"{SESSION}{TRAIN} return train(await fromModels());")
        assert found == natively()


def test_python_takes_over_in_the_middle_of_training(browser: Browser, site: Site) -> None:
    """New shapes, checkpoints and export give the same bytes as if Python had been there from the start."""
    body = """
        const run = async (s) => {
          const seen = await train(s);
          await s.lazyResetGrad();
          // None of these is awaited: the order must hold while Python starts.
          const calls = [step(s), s.runTrainStep(small).then((r) => text(Object.values(r)[0].data)),
                         s.saveCheckpoint({ includeOptimizerState: true }).then(text),
                         s.runOptimizerStep(), s.lazyResetGrad(), step(s), parameters(s)];
          seen.push(...await Promise.all(calls));
          seen.push(await step(s, small), await step(s), await s.getLearningRate());
          await s.schedulerStep();
          await s.addProperty("epoch", 3);
          seen.push(await s.getLearningRate(), await s.getProperty("epoch"), text(await s.saveCheckpoint()));
          seen.push(text(await s.exportModelForInferencing(names)), await parameters(s));
          await s.release();
          return seen;
        };
    """
    names = json.loads((GOLDEN / "mlp" / "trace.json").read_text())["trace"]
    outputs = next(call["outputs"] for call in names if call["op"] == "export")
    site.add("/bundles/mlp", mlp_bundle())
    with open_page(browser, site) as js:
        found = js.run(f"{SESSION}{TRAIN}{body} return run(await fromBundle());", names=outputs)
        assert found == js.run(f"{SESSION}{TRAIN}{body} return run(await fromModels());", names=outputs)


def test_a_checkpoint_right_after_loading_is_the_file_itself(browser: Browser, mlp_site: Site) -> None:
    with open_page(browser, mlp_site) as js:
        body = "const s = await %s; return text(await s.saveCheckpoint({ includeOptimizerState: true }));"
        from_bundle = js.run(SESSION + body % "fromBundle()")
        assert from_bundle == js.run(SESSION + body % "fromModels()")


def test_parameters_are_read_and_written_without_python(browser: Browser, mlp_site: Site) -> None:
    with open_page(browser, mlp_site) as js:
        outcome = js.run(
            f"""{SESSION}
            const s = await fromBundle();
            const all = (await s.getContiguousParameters(false)).data;
            const doubled = all.map((v) => 2 * v);
            await s.loadParametersBuffer(doubled, false);
            const bias = await s.getParameter("fc1.bias");
            const {{ type, dims }} = await s.getParameterTypeAndShape("fc1.bias");
            await s.updateParameter("fc1.bias", new Tensor("float32", bias.data.map(() => 7), bias.dims));
            const after = (await s.getContiguousParameters(false)).data;
            const errors = [
              await failure(() => s.loadParametersBuffer(new Uint8Array(8))),
              await failure(() => s.getParameter("nope")),
              await failure(() => s.updateParameter("fc1.bias", new Tensor("float32", [1], [1]))),
              await failure(() => s.updateParameter("fc1.bias", new Tensor("int64", [1n], [1]))),
              await failure(() => s.schedulerStep()),
              await failure(() => s.getArtifacts()),
            ].map(({{ name, message }}) => [name, message]);
            return {{ changed: after.filter((v, i) => v !== doubled[i]).length, type, dims, size: bias.size,
                      equal: bias.data.every((v, i) => doubled.includes(v)), errors }};"""
        )
        assert python_requests(mlp_site) == []
        same = js.run(
            f"""{SESSION}
            const s = await fromModels();
            return Promise.all([
              failure(() => s.loadParametersBuffer(new Uint8Array(8))),
              failure(() => s.getParameter("nope")),
              failure(() => s.updateParameter("fc1.bias", new Tensor("float32", [1], [1]))),
              failure(() => s.updateParameter("fc1.bias", new Tensor("int64", [1n], [1]))),
              failure(() => s.schedulerStep()),
              failure(() => s.getArtifacts()),
            ].map(async (error) => {{ const {{ name, message }} = await error; return [name, message]; }}));"""
        )
    assert (outcome["type"], outcome["dims"], outcome["size"]) == ("float32", [16], 16)
    assert outcome["equal"] and outcome["changed"] == 16
    assert outcome["errors"] == same
    assert [name for name, _ in same] == [
        "BufferSizeError",
        "CheckpointError",
        "CheckpointError",
        "CheckpointError",
        "SessionError",
        "SessionError",
    ]


PREPARED_CALLS = """
    const input = { x: new Tensor("float32", Float32Array.from({ length: 768 }, (_, i) => Math.sin(i)), [3, 4, 8, 8]),
                    labels: new Tensor("int64", [0n, 2n, 1n], [3]) };
    const filters = new Tensor("float32", Float32Array.from({ length: 180 }, (_, i) => Math.cos(i)), [5, 4, 3, 3]);
    const run = async (s) => {
      const seen = [];
      const look = async () => seen.push(text(Object.values(await s.runEvalStep(input))[0].data));
      const train = async () => seen.push(text(Object.values(await s.runTrainStep(input))[0].data));
      await look();
      await train();
      await look();
      await s.runOptimizerStep();
      await look();
      await s.updateParameter("frozen", filters);
      await look();
      await train();
      const all = (await s.getContiguousParameters(false)).data;
      await s.loadParametersBuffer(all.map((v) => v / 2), false);
      await train();
      await look();
      const { prepared } = await s.memory();
      await s.release();
      return { seen, prepared };
    };
"""


def test_what_is_kept_of_parameters_follows_them(browser: Browser, plain_site: Site) -> None:
    """In a session from a bundle, in one of Python's, and in one that keeps nothing."""
    made = hoist.artifacts()
    models = {
        "train_model": made.training_model,
        "eval_model": made.eval_model or b"",
        "optimizer_model": made.optimizer_model or b"",
    }
    feeds = {"x": TensorType("float32", (3, 4, 8, 8)), "labels": TensorType("int64", (3,))}
    graphs = [read_model(model) for model in models.values()]
    core = SessionCore(CheckpointState.load_checkpoint(made.checkpoint), *graphs)
    core.release()
    plain_site.add("/m/bundle", make_bundle(core.models, core.state.lent(), {}, [feeds], models))
    for name, data in (*models.items(), ("checkpoint", made.checkpoint)):
        plain_site.add(f"/m/{name}", data)
    with open_page(browser, plain_site) as js:
        found = js.run(
            f"""{SESSION}{PREPARED_CALLS}
            return run(await TrainingSession.create({{ bundle: "/m/bundle" }}, options));"""
        )
        assert python_requests(plain_site) == []
        for budget, prepared in (("undefined", found["prepared"]), ("2 ** 30", 0)):
            again = js.run(
                f"""{SESSION}{PREPARED_CALLS}
                const files = {{ trainModel: "/m/train_model", evalModel: "/m/eval_model",
                                 optimizerModel: "/m/optimizer_model", checkpointState: "/m/checkpoint" }};
                return run(await TrainingSession.create(files, {{ ...options, memoryBudget: {budget} }}));"""
            )
            assert again == {"seen": found["seen"], "prepared": prepared}
    assert found["prepared"] > 0
    assert len(set(found["seen"])) == len(found["seen"])


BAD_FEEDS = [
    "{ x: labels, labels }",
    "{ x, labels: new Tensor('int64', labels.data, [2, 4]) }",
    "{ x: new Tensor('float32', x.data.slice(0, 8), [8, 1]), labels }",
    "{ x, labels: small.labels }",
    "{ x: new Tensor('float32', [], [0, 10]), labels: new Tensor('int64', [], [0]) }",
    "{ x }",
    "{ x, labels: new Tensor('int64', labels.data.with(5, 99n), [8]) }",
    "{ x, labels: new Tensor('int64', labels.data.with(2, -3n), [8]) }",
]


def test_bad_feeds_are_the_errors_of_a_python_session(browser: Browser, mlp_site: Site) -> None:
    body = """
        const s = await open();
        const before = await parameters(s);
        const errors = [];
        for (const feeds of [%s]) {
          const { name, message } = await failure(() => s.runTrainStep(feeds));
          errors.push([name, message]);
        }
        errors.push(before === await parameters(s), await step(s));
        return errors;
    """ % ", ".join(BAD_FEEDS)
    with open_page(browser, mlp_site) as js:
        found = js.run(f"{SESSION} const open = fromBundle; {body}")
        assert python_requests(mlp_site) == []
        assert found == js.run(f"{SESSION} const open = fromModels; {body}")
    assert {name for name, _ in found[: len(BAD_FEEDS)]} == {"FeedError"}
    assert "label 99 at position 5" in found[6][1]


def test_without_models_what_is_missing_is_named(browser: Browser, mlp_site: Site) -> None:
    with open_page(browser, mlp_site) as js:
        errors = js.run(
            f"""{SESSION}
            const s = await fromBundle("/bundles/bare");
            const before = await step(s);
            const errors = [await failure(() => s.runTrainStep(small)), await failure(() => s.saveCheckpoint())];
            await step(s);
            return errors;"""
        )
        assert python_requests(mlp_site) == []
    assert [error["name"] for error in errors] == ["SessionError", "SessionError"]
    assert "float32[3, 10]" in errors[0]["message"] and "models" in errors[0]["message"]


@pytest.mark.parametrize("how", ["Uint8Array", "ArrayBuffer", "Blob"])
def test_bundles_come_as_bytes(browser: Browser, mlp_site: Site, how: str) -> None:
    make = {
        "Uint8Array": "new Uint8Array(data)",
        "ArrayBuffer": "data",
        "Blob": "new Blob([data])",
    }[how]
    with open_page(browser, mlp_site) as js:
        assert js.run(
            f"""{SESSION}
            const data = await (await fetch("/bundles/mlp")).arrayBuffer();
            const s = await TrainingSession.create({{ bundle: {make} }}, options);
            const t = await fromBundle();
            return [data.byteLength > 0, await step(s) === await step(t)];"""
        ) == [True, True]


def test_arguments_are_checked(browser: Browser, mlp_site: Site) -> None:
    with open_page(browser, mlp_site, ("404",)) as js:
        both = js.failure("await TrainingSession.create({ bundle: '/bundles/mlp', trainModel: 'x' });")
        none = js.failure("await TrainingSession.create({ bundle: null });")
        missing = js.failure("await TrainingSession.create({ bundle: '/bundles/none' });")
    assert both["name"] == none["name"] == "TypeError"
    assert missing["name"] == "ModelError" and "/bundles/none" in missing["message"]


def test_limits_mean_what_they_mean_to_a_python_session(browser: Browser, mlp_site: Site) -> None:
    body = "const s = await TrainingSession.create(%s, { limits: { arenaBytes: 64 } }); await s.runTrainStep(feeds);"
    with open_page(browser, mlp_site) as js:
        found = js.failure(SESSION + body % "{ bundle: '/bundles/mlp' }")
        assert python_requests(mlp_site) == []
        wanted = js.failure(SESSION + body % "golden('mlp')")
    assert (found["name"], found["message"]) == (wanted["name"], wanted["message"])
    assert found["name"] == "LimitError"


def test_python_that_does_not_start_leaves_the_session_alone(browser: Browser, mlp_site: Site) -> None:
    with open_page(browser, mlp_site, ("404",)) as js:
        errors = js.run(
            f"""{SESSION}
            env.pyodide.indexURL = "/nowhere/";
            const s = await fromBundle();
            const first = await failure(() => s.saveCheckpoint());
            const value = await step(s);
            const second = await failure(() => TrainingSession.create(golden("mlp"), options));
            const third = await step(s);
            return [first, second, value.length === third.length];"""
        )
    for error in errors[:2]:
        assert error["name"] == "EngineError" and "/nowhere/pyodide.mjs" in error["message"]
    assert errors[2] is True


# So many runs that some cross a tick of the clock, which has steps of 100 us outside of isolated pages.
PROFILE = """
    const profile = async (session) => {
      const before = fromTensor(await session.getContiguousParameters()).data.join();
      const found = await session.profile(feeds, { runs: 500 });
      const evaluated = await session.profile(feeds, { runs: 1, training: false });
      const after = fromTensor(await session.getContiguousParameters()).data.join();
      const { traceEvents } = JSON.parse(found.chromeTrace());
      return {
        entries: found.entries, total: found.total, byKernel: found.byKernel(), byNode: found.byNode(),
        text: String(found), events: traceEvents, evaluated: evaluated.entries.length, same: before === after,
      };
    };
"""


def test_profiles_with_and_without_python(browser: Browser, mlp_site: Site) -> None:
    """Both name the same kernels and nodes in the same order, and account for every instruction."""
    with open_page(browser, mlp_site) as js:
        without = js.run(f"{SESSION}{PROFILE} return profile(await fromBundle());")
        assert python_requests(mlp_site) == []
        with_python = js.run(f"{SESSION}{PROFILE} return profile(await fromModels());")
    names = [[(e["kernel"], e["node"]) for e in p["entries"]] for p in (without, with_python)]
    assert names[0] == names[1]
    assert [k for k, _ in names[0]].count("gemm_f32") == 8
    for p in (without, with_python):
        assert p["same"] and p["evaluated"] > 0
        assert p["total"] > 0
        assert sum(p["byKernel"].values()) == pytest.approx(p["total"])
        assert sum(p["byNode"].values()) == pytest.approx(p["total"])
        assert list(p["byKernel"].values()) == sorted(p["byKernel"].values(), reverse=True)
        assert len(p["events"]) == len(p["entries"])
        assert p["events"][-1]["ts"] == pytest.approx(1e3 * p["total"] - p["events"][-1]["dur"])
        assert any("Gemm_1" in e["args"]["node"] and "m=8" in e["args"]["text"] for e in p["events"])
        assert "gemm_f32" in p["text"] and p["text"].startswith("kernel")


def test_memory_comes_back(browser: Browser, mlp_site: Site) -> None:
    """Of sessions with and without Python."""
    with open_page(browser, mlp_site) as js:
        outcome = js.run(
            f"""{SESSION}
            const Native = Worker;
            const workers = [];
            window.Worker = class extends Native {{
              constructor(...args) {{ super(...args); workers.push(this); }}
            }};
            const memory = () => new Promise((resolve) => {{
              const id = `memory ${{Math.random()}}`;
              const listen = ({{ data }}) => {{ if (data.id === id) resolve(data.result.ok); }};
              workers[0].addEventListener("message", listen);
              workers[0].postMessage([{{ id, method: "memory", args: [] }}]);
            }});
            const cycle = async (adopt) => {{
              const s = await fromBundle();
              await step(s);
              await s.runEvalStep(feeds);
              if (adopt) {{
                await s.saveCheckpoint();
                await step(s);
                await step(s, small);
              }}
              await s.release();
              await failure(() => TrainingSession.create({{ bundle: new Uint8Array(9) }}, options));
            }};
            await cycle(true);
            const start = await memory();
            for (let k = 0; k < 6; k++) await cycle(k % 2 === 0);
            return [start, await memory()];"""
        )
        assert outcome[0] == outcome[1]


# --- damaged bundles ---------------------------------------------------------------------------------


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    header = header_of(mlp_bundle())
    change(header)
    return with_header(mlp_bundle(), header)


def _set(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        at: Any = header
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


DAMAGE: dict[str, Callable[[dict[str, Any]], None]] = {
    "other kernels": _set("fingerprint", to=1),
    "fingerprint is text": _set("fingerprint", to="1"),
    "no inputs": _set("inputs", to=None),
    "input of no dtype": _set("inputs", "train", 0, "dtype", to="complex64"),
    "input dim": _set("inputs", "train", 0, "dims", to=[-1]),
    "outputs are numbers": _set("outputs", "train", to=[1]),
    "outputs none": _set("outputs", "train", to=[]),
    "eval outputs none": _set("outputs", "eval", to=[]),
    "an output less": lambda h: h["outputs"]["train"].pop(),
    "plan gives another output": lambda h: h["plans"][0]["outputs"].append(
        {**h["plans"][0]["outputs"][0], "name": "x"}
    ),
    "output unknown": _set("outputs", "train", to=["nope"]),
    "hasEval": _set("hasEval", to=1),
    "parameter dims": _set("parameters", 0, "dims", to=[2**31, 2**31]),
    "parameter offset": _set("parameters", 1, "offset", to=0),
    "parameter behind": _set("parameters", 1, "trainableOffset", to=5),
    "parameter twice": _set("parameters", 1, "name", to="fc1.weight"),
    "size": _set("size", to=1),
    "segment too many": lambda h: h["segments"].append({"bytes": 0, "data": None}),
    "segment too few": lambda h: h["segments"].pop(),
    "segment size": _set("segments", 3, "bytes", to=2**32),
    "segment of another size": _set("segments", 2, "bytes", to=64),
    "moments": _set("segments", 4, "bytes", to=8),
    "state": _set("segments", 6, "bytes", to=0),
    "data outside": _set("segments", 2, "data", to=[64, 2**31]),
    "data at an odd place": _set("segments", 6, "data", to=[1, 64]),
    "data of another length": _set("segments", 2, "data", to=[0, 64]),
    "negative place": _set("segments", 2, "data", to=[-64, 1728]),
    "model outside": _set("models", "trainModel", to=[2**31, 4]),
    "models without checkpoint": lambda h: h["models"].pop("checkpoint"),
    "plan kind": _set("plans", 0, "kind", to="nope"),
    "plan twice": lambda h: h["plans"].append(h["plans"][0]),
    "plan words": _set("plans", 0, "words", to=[0, 3]),
    "plan words of something else": lambda h: h["plans"][0].update(words=h["models"]["trainModel"]),
    "plan words cut": lambda h: h["plans"][0].update(words=[h["plans"][0]["words"][0], 512]),
    "plan arena": _set("plans", 0, "arenaBytes", to=4),
    "plan input elsewhere": _set("plans", 0, "inputs", 0, "segment", to=2),
    "plan input outside": _set("plans", 0, "inputs", 0, "offset", to=2**31),
    "plan input size": _set("plans", 0, "inputs", 0, "nbytes", to=4),
    "plan input dims": _set("plans", 0, "inputs", 0, "dims", to=[4, 20]),
    "plan output outside": _set("plans", 0, "outputs", 0, "offset", to=2**32 - 1),
    "plan output segment": _set("plans", 0, "outputs", 0, "segment", to=7),
    "plan signature": _set("plans", 0, "signature", to=[]),
    "plan nodes": _set("plans", 0, "nodes", to=[None]),
    "no plans": lambda h: h.pop("plans"),
}


@pytest.fixture(scope="module")
def damaged_page(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as js:
        yield js


def open_failure(js: JsPage, bundle: bytes) -> dict[str, Any]:
    return js.failure(
        f"{SESSION} await TrainingSession.create({{ bundle: bytes(data) }}, options);",
        data=base64.b64encode(bundle).decode(),
    )


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_wrong_header_is_a_model_error(damaged_page: JsPage, damage: str) -> None:
    error = open_failure(damaged_page, edited(DAMAGE[damage]))
    assert error["name"] == "ModelError", error
    assert error["message"].startswith("the bundle cannot be used: ")
    if damage == "other kernels":
        assert "compile it again" in error["message"]


def test_truncated_bundles_are_model_errors(damaged_page: JsPage) -> None:
    """At every section: prefix, header, each blob."""
    bundle = mlp_bundle()
    header = header_of(bundle)
    (length,) = struct.unpack_from("<I", bundle, 12)
    blobs = PREFIX_BYTES + length
    ends = {sum(p[key]) for p in header["plans"] for key in ("words", "constants", "code")}
    ends |= {sum(place) for place in header["models"].values()}
    ends |= {sum(s["data"]) for s in header["segments"] if s["data"]}
    cuts = [0, 7, 8, 11, 15, 16, 40, blobs - 1, blobs, *(blobs + end - 1 for end in sorted(ends) if end)]
    for cut in cuts:
        error = open_failure(damaged_page, bundle[:cut])
        assert error["name"] == "ModelError", (cut, error)


@pytest.mark.parametrize("at", [0, 7, 8, 12, 15, 16, 17])
def test_a_wrong_prefix_is_a_model_error(damaged_page: JsPage, at: int) -> None:
    bundle = bytearray(mlp_bundle())
    bundle[at] ^= 0x80
    assert open_failure(damaged_page, bytes(bundle))["name"] == "ModelError"


@pytest.mark.parametrize("where", range(5))
def test_a_damaged_file_is_refused_by_its_hash(damaged_page: JsPage, where: int) -> None:
    """One bit, in the header, parameters, words, code or the hash itself."""
    bundle = bytearray(mlp_bundle())
    header = header_of(bundle)
    places = [blob_of(bundle, header["segments"][2]["data"])]
    places += [blob_of(bundle, header["plans"][0][part]) + 100 for part in ("words", "code")]
    at = [PREFIX_BYTES + 9, *places, 20][where]
    bundle[at] ^= 4
    error = open_failure(damaged_page, bytes(bundle))
    assert error["name"] == "ModelError" and "it is damaged" in error["message"]


def test_format_1_is_refused_with_advice(damaged_page: JsPage) -> None:
    bundle = bytearray(mlp_bundle())
    bundle[8] = 1
    error = open_failure(damaged_page, bytes(bundle))
    assert error["name"] == "ModelError"
    assert "version 1" in error["message"] and "compile it again" in error["message"]


SIZES = """
    const sines = (n) => Float32Array.from({ length: n }, (_, i) => Math.sin(i));
    const classes = (n) => BigInt64Array.from({ length: n }, (_, i) => BigInt(i % 3));
    const batch = (n) => ({ x: new Tensor("float32", sines(10 * n), [n, 10]),
                            labels: new Tensor("int64", classes(n), [n]) });
    const run = async (s, sizes) => {
      const seen = [];
      for (const n of sizes) seen.push(await step(s, batch(n)));
      return [...seen, await parameters(s)];
    };
"""


def test_plans_are_given_back_in_the_page(browser: Browser, mlp_site: Site) -> None:
    """Many batch sizes leave kernel memory flat, and change no result."""
    sizes = [40, *range(1, 40), 3, 39, 3]
    with open_page(browser, mlp_site) as js:
        marks = js.run(
            f"""{SESSION}{SIZES}
            const s = await TrainingSession.create(golden("mlp"), {{ ...options, maxPlans: 2 }});
            const marks = [];
            for (const n of sizes) {{ await step(s, batch(n)); marks.push((await s.memory()).plans); }}
            await s.release();
            return marks;""",
            sizes=sizes,
        )
        assert max(marks[20:]) <= max(marks[2:20]) * 1.05
        few, many = (
            js.run(
                f"""{SESSION}{SIZES}
                const s = await TrainingSession.create(golden("mlp"), {{ ...options, maxPlans }});
                return run(s, sizes);""",
                sizes=[3, 5, 7, 3, 5, 7, 3],
                maxPlans=max_plans,
            )
            for max_plans in (1, 16)
        )
    assert few == many


@pytest.mark.parametrize("n_bytes", [*range(130), 1000, 100_003])
def test_our_own_sha256_is_that_of_hashlib(n_bytes: int) -> None:
    """Where the page is not secure, a bundle's hash is computed in script."""
    data = bytes((7 * k + k // 256) % 256 for k in range(n_bytes))
    assert script_hashes()[n_bytes] == hashlib.sha256(data).hexdigest()


@cache
def script_hashes() -> dict[int, str]:
    source = ROOT / "web" / "src" / "wire" / "sha256.ts"
    code = f"""
        import {{ sha256InScript }} from {json.dumps(source.as_uri())};
        const found = {{}};
        for (const n of [...Array(130).keys(), 1000, 100003]) {{
          const bytes = Uint8Array.from({{ length: n }}, (_, k) => (7 * k + Math.floor(k / 256)) % 256);
          found[n] = Buffer.from(sha256InScript(bytes)).toString("hex");
        }}
        console.log(JSON.stringify(found));
    """
    esbuild = ROOT / "node_modules" / ".bin" / "esbuild"
    bundled = subprocess.run(
        [esbuild, "--bundle", "--format=esm", "--platform=node"],
        input=code.replace(source.as_uri(), str(source)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    done = subprocess.run(["node", "--input-type=module"], input=bundled, capture_output=True, text=True, check=True)
    return {int(n): digest for n, digest in json.loads(done.stdout).items()}


def blob_of(bundle: bytes, place: list[int]) -> int:
    (length,) = struct.unpack_from("<I", bundle, 12)
    return PREFIX_BYTES + length + place[0]


def test_wrong_words_and_code_are_engine_errors_at_the_step(damaged_page: JsPage) -> None:
    """The kernels' verifier sees to the words; a module that is none does not load. The worker goes on."""
    bundle = mlp_bundle()
    plan = header_of(bundle)["plans"][0]
    n_words = plan["words"][1] // 4
    start = blob_of(bundle, plan["words"])
    n_code = struct.unpack_from("<I", bundle, start + 28)[0]
    first = start + 4 * (n_words - 2 * n_code)
    buffers = start + 4 * (20 + 3 * 8)
    damage = [
        (first, struct.pack("<I", 0xFFFF)),  # an opcode that there is none of
        (buffers, struct.pack("<3I", 99, 0, 64)),  # a buffer in no segment
        (buffers, struct.pack("<3I", 2, 0, 2**31)),  # one that reaches out of its segment
        (start + 24, struct.pack("<I", 2**30)),  # the number of buffers
        (blob_of(bundle, plan["code"]), b"nope"),
    ]
    for at, data in damage:
        broken = sealed(bundle[:at] + data + bundle[at + len(data) :])
        error = damaged_page.failure(
            f"""{SESSION}
            const s = await TrainingSession.create({{ bundle: bytes(data) }}, options);
            try {{ await s.runTrainStep(feeds); }} finally {{ await s.release(); }}""",
            data=base64.b64encode(broken).decode(),
        )
        assert error["name"] == "EngineError", (at, error)
    assert damaged_page.run(
        f"""{SESSION}
        const s = await TrainingSession.create({{ bundle: bytes(data) }}, options);
        return (await step(s)).length > 0;""",
        data=base64.b64encode(bundle).decode(),
    )


# --- the cache -----------------------------------------------------------------------------------------

CACHE = """
    const cached = (more) => TrainingSession.create(golden("mlp", more), { reproducible: true, cache: true });
    const files = async () => {
      const found = {};
      try {
        let folder = await navigator.storage.getDirectory();
        for (const name of ["trainweb", "bundles"]) folder = await folder.getDirectoryHandle(name);
        for await (const [name, handle] of folder.entries()) found[name] = handle;
      } catch (error) {
        if (error.name !== "NotFoundError") throw error;
      }
      return found;
    };
    const stored = async () => Promise.all(Object.values(await files()).map(
      async (handle) => text(new Uint8Array(await (await handle.getFile()).arrayBuffer()))));
    const until = async (condition) => {
      for (let k = 0; k < 200; k++) {
        if (await condition()) return true;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      throw new Error("waited in vain");
    };
    const written = (count = 1) => until(async () => Object.keys(await files()).length === count);
"""

FIRST_VISIT = f"""{SESSION}{CACHE}
    const s = await cached();
    const seen = [await step(s), await step(s), await parameters(s)];
    await written();
    await s.release();
    return seen;
"""


def visit(js: JsPage, body: str, **variables: Any) -> Any:
    """Load the page anew and run something in it; the site's log starts anew."""
    js.site.clear_log()
    return JsPage(js.page, js.site).run(body, **variables)


def test_a_second_visit_starts_from_the_cache(browser: Browser, plain_site: Site) -> None:
    """Without Python, from the parameters of the start and not from those trained since."""
    with open_page(browser, plain_site) as js:
        first = js.run(FIRST_VISIT)
        assert python_requests(plain_site)
        second = visit(
            js,
            f"""{SESSION}{CACHE}
            const s = await cached();
            return [await step(s), await step(s), await parameters(s)];""",
        )
        assert python_requests(plain_site) == []
        assert second == first


def test_the_cache_learns_what_is_used_later(browser: Browser, plain_site: Site) -> None:
    with open_page(browser, plain_site) as js:
        js.run(FIRST_VISIT)
        first = visit(
            js,
            f"""{SESSION}{CACHE}
            const before = await stored();
            const s = await cached();
            const seen = [await step(s), await step(s, small), text(await s.saveCheckpoint())];
            await until(async () => Object.keys(await files()).length === 1
                                    && (await stored())[0] !== before[0]);
            return seen;""",
        )
        assert python_requests(plain_site)
        second = visit(js, f"{SESSION}{CACHE} const s = await cached(); return [await step(s), await step(s, small)];")
        assert python_requests(plain_site) == []
        assert second == first[:2]


def test_other_artifacts_are_not_taken_for_the_cached_ones(browser: Browser, plain_site: Site) -> None:
    with open_page(browser, plain_site) as js:
        js.run(FIRST_VISIT)
        different = """checkpointState: await trained()"""
        visit(
            js,
            f"""{SESSION}{CACHE}
            const trained = async () => {{
              const s = await fromModels();
              await s.setLearningRate(0.5);
              await step(s);
              return s.saveCheckpoint();
            }};
            await step(await cached({{ {different} }}));
            await written(2);
            await step(await cached({{ evalModel: undefined }}));
            await written(3);""",
        )
        assert python_requests(plain_site)


def test_models_are_cached_with_their_configuration(browser: Browser, plain_site: Site) -> None:
    """createFromModel: the artifacts can still be had, and are the same."""
    body = f"""{SESSION}{CACHE}
        const s = await TrainingSession.createFromModel(
          "/golden/mlp/base.onnx", {{ loss: "CrossEntropyLoss", optimizer, nominalCheckpoint: nominal }},
          {{ reproducible: true, cache: true }});
        if (nominal) await s.loadParametersBuffer(new Float32Array(432).map((_, i) => Math.cos(i)), false);
        const given = {{ [s.trainingInputNames[0]]: x, [s.trainingInputNames[1]]: labels }};
        const seen = [await step(s, given), await parameters(s)];
        if (wait) await written(wait);
        window.session = s;
        return seen;"""
    artifacts = """
        const a = await session.getArtifacts();
        return Object.values(a).map((data) => Array.from(data).reduce((h, b) => (h * 31 + b) % 4294967291, 7));"""
    with open_page(browser, plain_site) as js:
        for count, nominal in enumerate((False, True), 1):
            first = visit(js, body, optimizer="AdamW", nominal=nominal, wait=count)
            assert python_requests(plain_site)
            made = js.run(artifacts)
            assert visit(js, body, optimizer="AdamW", nominal=nominal, wait=0) == first
            assert python_requests(plain_site) == []
            assert js.run(artifacts) == made
        visit(js, body, optimizer="SGD", nominal=False, wait=3)
        assert python_requests(plain_site)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "header"])
def test_damaged_cache_files_are_ignored_and_written_anew(browser: Browser, plain_site: Site, damage: str) -> None:
    with open_page(browser, plain_site) as js:
        first = js.run(FIRST_VISIT)
        after = visit(
            js,
            f"""{SESSION}{CACHE}
            const handle = Object.values(await files())[0];
            const data = new Uint8Array(await (await handle.getFile()).arrayBuffer());
            if (damage === "flip") data[data.length >> 1] ^= 1;
            if (damage === "header") data[9] ^= 1;
            const kept = {{ cut: data.length - 1, empty: 0 }}[damage] ?? data.length;
            const writable = await handle.createWritable();
            await writable.write(data.subarray(0, kept));
            await writable.close();
            const [damaged] = await stored();
            const s = await cached();
            const seen = [await step(s), await step(s), await parameters(s)];
            await s.release();
            await until(async () => {{
              const [now] = await stored();
              return now !== damaged && atob(now).startsWith("TWBS");  // the header comes last
            }});
            return seen;""",
            damage=damage,
        )
        assert python_requests(plain_site)
        assert after == first
        assert visit(js, f"{SESSION}{CACHE} const s = await cached(); return step(s);") == first[0]
        assert python_requests(plain_site) == []


UNAVAILABLE = {
    "no storage": "Object.defineProperty(navigator, 'storage', { value: undefined });",
    "refused": "navigator.storage.getDirectory = async () => { throw new DOMException('no', 'SecurityError'); };",
    "no sync handles": "delete FileSystemFileHandle.prototype.createSyncAccessHandle;",
    "no hashes": "Object.defineProperty(crypto, 'subtle', { value: undefined });",
    "no locks": "Object.defineProperty(navigator, 'locks', { value: undefined });",
}


def worker_site(site: Site, prefix: str) -> None:
    """Let the worker of the package start with a line of the test's own."""
    site.remove("/dist/worker.js")
    source = (ROOT / "dist" / "npm" / "worker.js").read_text()
    site.add("/dist/worker.js", f"{prefix}\n{source}")


@pytest.fixture
def own_site(make_site: Callable[..., Site]) -> Site:
    return make_site()


@pytest.mark.parametrize("what", UNAVAILABLE)
def test_storage_that_is_not_there_is_no_error(browser: Browser, own_site: Site, what: str) -> None:
    worker_site(own_site, UNAVAILABLE[what])
    body = f"{SESSION}{CACHE} const s = await cached(); const v = await step(s); await s.release(); return v;"
    with open_page(browser, own_site) as js:
        assert js.run(body) == visit(js, body)


FAULT = """
    let operations = 0;
    const fail = (object, name) => {
      const original = object[name];
      object[name] = function (...args) {
        if (operations++ >= %d) throw new DOMException("no room", "QuotaExceededError");
        return original.apply(this, args);
      };
    };
    for (const name of ["truncate", "write", "flush"]) fail(FileSystemSyncAccessHandle.prototype, name);
    fail(FileSystemFileHandle.prototype, "createSyncAccessHandle");
    fail(FileSystemDirectoryHandle.prototype, "removeEntry");
"""
N_OPERATIONS = 7
"""Of writing a file: open, truncate, write and flush the contents, write and flush the header, remove the old one."""


@pytest.mark.parametrize("fault", range(N_OPERATIONS + 1))
def test_an_interrupted_write_leaves_the_old_or_the_new_file(browser: Browser, own_site: Site, fault: int) -> None:
    """Everything from operation `fault` on fails; then the storage is opened again."""
    with open_page(browser, own_site) as js:
        worker_site(own_site, "")
        first = js.run(FIRST_VISIT)
        worker_site(own_site, FAULT % fault)
        more = visit(
            js,
            f"""{SESSION}{CACHE}
            const s = await cached();
            const seen = [await step(s), await step(s, small)];
            await new Promise((resolve) => setTimeout(resolve, 2000));
            return seen;""",
        )
        assert more[0] == first[0]
        worker_site(own_site, "")
        visit(js, f"{SESSION}{CACHE} window.s = await cached(); return step(s);")
        assert python_requests(own_site) == [], "neither the old file nor the new one"
        assert js.run(f"{SESSION} return step(s, small);") == more[1]
        # The header is the fifth operation: with it the new file, which has the other batch, is there.
        assert (python_requests(own_site) == []) == (fault >= 5)


def test_old_files_make_room(browser: Browser, plain_site: Site) -> None:
    with open_page(browser, plain_site) as js:
        count = js.run(
            f"""{SESSION}{CACHE}
            const folder = await (await (await navigator.storage.getDirectory())
              .getDirectoryHandle("trainweb", {{ create: true }})).getDirectoryHandle("bundles", {{ create: true }});
            for (let k = 0; k < 30; k++) {{
              const writable = await (await folder.getFileHandle(`old${{k}}.0`, {{ create: true }})).createWritable();
              await writable.write("old");
              await writable.close();
            }}
            const s = await cached();
            await step(s);
            await until(async () => Object.keys(await files()).length < 30);
            const left = Object.keys(await files());
            return [left.length, left.filter((name) => !name.startsWith("old")).length];"""
        )
        assert count == [16, 1]
