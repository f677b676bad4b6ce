"""Sessions from bundles: training without Python, Python once it is needed, bundles that are damaged."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser
from tests.python import test_hoist as hoist

from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Tensor
from trainweb.model.reader import read_model
from trainweb.page.bundle import make_bundle
from trainweb.training.core import SessionCore
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import StepKind

from .bundles import PYTHON_CALLS, SESSION, compile_bundle, mlp_bundle, open_core, open_page, python_requests
from .js_session import JsPage
from .server import Site
from .test_js_golden import GOLDEN, Replay


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
    """Checkpoints, export and properties on the way: the results still equal the recorded ones."""
    with open_page(browser, plain_site) as js:
        assert BundleReplay(js, case).run() > 10
        assert python_requests(plain_site)


def test_two_threads(browser: Browser, isolated_site: Site) -> None:
    with open_page(browser, isolated_site) as js:
        js.run("env.wasm.numThreads = 2;")
        assert BundleReplay(js, "cnn").run_without_python() > 5
        assert python_requests(isolated_site) == []
        assert [p for p in isolated_site.requests("/dist/") if p.endswith(".threads.wasm.gz")]


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
        return text(core.step(StepKind("train"), feeds)[core.outputs["train"][0]])

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
    seen.append(text(core.step(StepKind("eval"), feeds)[core.outputs["eval"][0]]))
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
              await failure(() => s.artifacts()),
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
              failure(() => s.artifacts()),
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
      const store = new CheckpointStore("prepared");
      await store.save(s, "start");
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
      await store.load(s, "start");
      const restored = text(Object.values(await s.runEvalStep(input))[0].data) === seen[0];
      const { prepared } = await s.memory();
      await s.release();
      return { seen, restored, prepared };
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
    plain_site.add("/m/bundle", make_bundle(core.models, core.state._lent(), [feeds], models))
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
            assert again == {"seen": found["seen"], "restored": True, "prepared": prepared}
    assert found["prepared"] > 0 and found["restored"]
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
            errors.push(await failure(() => s.explain(small)));
            await step(s);
            return errors;"""
        )
        assert python_requests(mlp_site) == []
    assert [error["name"] for error in errors] == ["SessionError"] * 3
    assert "explain" in errors[2]["message"] and "Make the bundle with `trainweb compile`" in errors[2]["message"]
    assert "float32[3, 10]" in errors[0]["message"] and "models" in errors[0]["message"]


def test_a_bundle_with_models_starts_python_to_explain(browser: Browser, mlp_site: Site) -> None:
    body = "const found = []; for (const training of [true, false]) found.push(await s.explain(small, { training }));"
    with open_page(browser, mlp_site) as js:
        before = js.run(f"{SESSION} const s = await fromBundle(); await step(s); await s.release(); return 1;")
        assert before == 1 and python_requests(mlp_site) == []
        found = js.run(f"{SESSION} const s = await fromBundle(); {body} return found;")
        assert python_requests(mlp_site) != []
        assert found == js.run(f"{SESSION} const s = await fromModels(); {body} return found;")
    assert all(text.startswith("lowered: ") and "\nfuse_epilogues: " in text for text in found)


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
