"""`session.fit` in a page: the same bytes as `Trainer.fit` natively, events, and what goes wrong."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.conformance.fits import data, opened
from tests.conformance.models import make_model, normal

from trainweb.fit import History, Trainer

from .js_session import JsPage

ROWS = 50

OPEN = f"""
    const open = (more = {{}}) => TrainingSession.createFromModel("/golden/mlp/base.onnx", {{
      loss: "CrossEntropyLoss", optimizer: "AdamW", additionalOutputNames: ["logits"], ...more,
    }}, {{ reproducible: true }});
    const rows = {ROWS};
    const data = (n = rows) => ({{
      x: new Tensor("float32", Float32Array.from({{ length: 10 * n }}, (_, i) => (i * 37 % 101) / 50 - 1), [n, 10]),
      labels: new Tensor("int64", BigInt64Array.from({{ length: n }}, (_, i) => BigInt((i * 7) % 3)), [n]),
    }});
    const bytes = async (s) => [...new Uint8Array((await s.getContiguousParameters(false)).data.buffer)];
    const schedule = {{ type: "Cosine", learningRate: 0.05, total: 12, warmup: 2 }};
"""


def arrays(n: int = ROWS) -> dict[str, np.ndarray]:
    """The object that `data` of the page makes."""
    columns: dict[str, np.ndarray] = data(n).columns
    return columns


def native(source: Any, **options: Any) -> tuple[bytes, History]:
    """Parameters and history of a fit in CPython."""
    with opened("mlp", {}) as s:
        history = Trainer(s).fit(source, progress=False, **options)
        return s.get_contiguous_parameters(False).tobytes(), history


def test_rows_with_disposed_tensors_are_named(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const gone = (place) => {{
          let k = 0;
          return new Dataset(data(60)).map((row) => {{
            if (k++ === place) row.x.dispose();
            return row;
          }});
        }};
        const s = await open();
        const errors = [await failure(() => s.fit(gone(37), {{ batchSize: 8 }}))];
        errors.push(await failure(() => s.fit(gone(37).bucket(() => 1, [1], 8))));
        await s.release();
        return errors.map(({{ message }}) => message);"""
    )
    assert ["Row 37 of the data has a disposed tensor as 'x'" in message for message in found] == [True, True]


WRONG_IN_PAGES = [
    ("{ x: new Float32Array(0) }", "{}", "FeedError", "The data has no rows"),
    ("[{ x: 1 }, { x: 1n }]", "{ shuffle: false }", "FeedError", "Row 1 of the data has int64[] as 'x'; the first row"),
    ("[{ x: 'text' }]", "{}", "FeedError", "'x' has texts, and the model takes numbers"),
    ("data(8)", "null", "TypeError", "'options' of fit must be an object."),
    ("data(8)", "{ signal: {} }", "ModelError", "signal is Object; it must be an AbortSignal"),
]


def test_what_is_wrong_in_pages_is_named(js: JsPage) -> None:
    cases = ", ".join(f"() => s.fit({data}, {options})" for data, options, _, _ in WRONG_IN_PAGES)
    errors = js.run(
        f"""{OPEN}
        const s = await open();
        const errors = [];
        for (const make of [{cases}]) errors.push(await failure(async () => await make()));
        await s.release();
        return errors;"""
    )
    for (source, options, name, said), error in zip(WRONG_IN_PAGES, errors, strict=True):
        assert error is not None and error["name"] == name and said in error["message"], (source, options, error)


def test_a_fit_is_events_callbacks_and_a_promise(js: JsPage) -> None:
    events, heard, history, isSame = js.run(
        f"""{OPEN}
        const s = await open();
        const heard = [];
        const events = [];
        const callbacks = (event, run) => heard.push([event.type, run === fit]);
        const fit = s.fit(data(3000), {{ epochs: 2, batchSize: 1, callbacks }});
        for await (const event of fit) events.push(event);
        const history = await fit;
        await s.release();
        return [events, heard, history, fit.history === history];"""
    )
    epochs = [e for e in events if e["type"] == "epoch"]
    assert [e["epoch"] for e in epochs] == [1, 2] and epochs == history["epochs"] and events[-1] == epochs[-1]
    progress = [e for e in events if e["type"] == "progress"]
    assert all(e["steps"] == 3000 and 0 < e["step"] <= 3000 for e in progress)
    assert [e["step"] for e in progress if e["epoch"] == 2] == sorted(e["step"] for e in progress if e["epoch"] == 2)
    assert ["epoch", True] in heard and len(heard) >= len(events) and isSame
    assert len(history["losses"]) == 6000 > 10 * len(progress)


@pytest.mark.parametrize("where", ["js", "isolated"])
def test_callbacks_use_the_session(request: pytest.FixtureRequest, where: str) -> None:
    """Calls come between the parts of a fit, also those that wait for all earlier ones."""
    page: JsPage = request.getfixturevalue(where)
    losses, is_same, predictions = page.run(
        f"""{OPEN}
        const results = [];
        const predictions = [];
        for (const isUsed of [false, true]) {{
          const s = await open();
          const losses = [];
          const callbacks = async (event) => {{
            if (!isUsed || event.type !== "epoch") return;
            const {{ signal }} = new AbortController();
            const found = await s.runEvalStep(data(), {{ signal }});
            losses.push([found[s.evalOutputNames[0]].data[0], event.validation.loss]);
            predictions.push(Object.values(await s.predict(data()))[0].data.length);
          }};
          const options = {{ epochs: 3, batchSize: 10, validationData: data(), callbacks }};
          for (const source of [data(), new Dataset(data())]) await s.fit(source, options);
          results.push([losses, await bytes(s)]);
          await s.release();
        }}
        const [[, alone], [losses, used]] = results;
        return [losses, String(alone) === String(used), predictions];"""
    )
    assert len(losses) == len(predictions) == 6 and is_same
    assert min(predictions) == max(predictions) > 0
    np.testing.assert_allclose(*np.transpose(losses), rtol=1e-6)


@pytest.mark.parametrize("where", ["js", "isolated"])
def test_pause_stop_and_abort(request: pytest.FixtureRequest, where: str) -> None:
    page: JsPage = request.getfixturevalue(where)
    found = page.run(
        f"""{OPEN}
        const s = await open();
        const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
        const endless = {{ epochs: 1e6, batchSize: 1 }};
        const progress = async (fit) => {{
          for await (const event of fit) return event;
        }};
        const first = () => {{
          let heard;
          const promise = new Promise((resolve) => {{ heard = resolve; }});
          return [promise, heard];
        }};
        const found = [];
        // Paused, nothing is trained; resumed, it goes on.
        const [started, heard] = first();
        const fit = s.fit(data(), {{ ...endless, callbacks: heard }});
        await started;
        fit.pause();
        let [frozen, quiet] = [-1, 0];
        while (quiet < 5) {{
          await rest(30);
          const now = fit.history.losses.length;
          [frozen, quiet] = now === frozen ? [frozen, quiet + 1] : [now, 0];
        }}
        found.push(fit.history.epochs.length < 1e6);
        fit.resume();
        while (fit.history.losses.length === frozen) await rest(10);
        fit.stop();
        const history = await fit;
        found.push(history.ended, history.epochs.length < 1e6);
        // A signal, aborted before and meanwhile.
        const gone = AbortSignal.abort(new Error("before"));
        found.push((await failure(() => s.fit(data(), {{ signal: gone }}))).message);
        const controller = new AbortController();
        const [again, told] = first();
        const aborted = s.fit(data(), {{ ...endless, signal: controller.signal, callbacks: told }});
        const error = failure(() => aborted);
        await again;
        controller.abort(new Error("meanwhile"));
        found.push((await error).message);
        // Aborted while it pauses.
        const third = s.fit(data(), endless);
        third.pause();
        third.abort();
        found.push((await failure(() => third)).name);
        // To leave the loop stops it.
        const left = s.fit(data(), endless);
        await progress(left);
        found.push((await left).ended);
        // The session goes on.
        found.push((await s.fit(data(), {{ batchSize: 50 }})).ended);
        await s.release();
        return found;"""
    )
    assert found == [True, "stopped", True, "before", "meanwhile", "AbortError", "stopped", "done"]


def test_a_stream_is_stopped_before_the_first_batch_of_an_epoch(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const s = await open();
        const found = [];
        for (const rounds of [1, 2]) {{
          let [round, wanted, give] = [0];
          const asked = new Promise((resolve) => {{ wanted = resolve; }});
          const given = new Promise((resolve) => {{ give = resolve; }});
          const fit = s.fit(async function* () {{
            if (++round === rounds) {{
              wanted();
              await given;
            }}
            yield {{ x: new Float32Array(10), labels: 1n }};
          }}, {{ epochs: 3, batchSize: 1 }});
          await asked;
          fit.stop();
          give();
          const {{ ended, epochs, losses }} = await fit;
          found.push([ended, epochs.length, losses.length]);
        }}
        await s.release();
        return found;"""
    )
    assert found == [["stopped", 0, 0], ["stopped", 1, 1]]


def test_what_can_be_read_once_is_refused_before_training(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const s = await open();
        const row = () => ({{ x: new Float32Array(10), labels: 1n }});
        const generator = function* () {{ for (let k = 0; k < 8; k++) yield row(); }};
        const readable = () => ReadableStream.from?.(generator()) ?? new ReadableStream({{
          start(to) {{ for (let k = 0; k < 8; k++) to.enqueue(row()); to.close(); }},
        }});
        const said = ({{ message }}) => message.split(".")[0];
        const failure = (data, options) => s.fit(data, options).then(() => null, said);
        const found = [];
        for (const source of [generator(), readable(), [...generator()].values()]) {{
          found.push(await failure(source, {{ epochs: 2 }}));
          found.push(await failure(source, {{ epochs: 2, stepsPerEpoch: 2, batchSize: 2 }}));
          const before = await bytes(s);
          found.push(await failure(source, {{}}));
          found.push(await failure(data(), {{ validationData: new Dataset(source).map((row) => row) }}));
          found.push(String(before) === String(await bytes(s)));
        }}
        await s.release();
        return found;"""
    )
    ended = "has no rows in epoch 1: a generator or stream can be read only once"
    later = [None, f"The data {ended}", f"The validation data {ended}", True]
    once = "which can be read only once"
    kinds = ["generator object", "ReadableStream", "Array Iterator"]
    assert found == [text for kind in kinds for text in (f"The data is a {kind}, {once}", *later)]


def test_with_shared_memory_an_order_is_obeyed_after_the_step(isolated: JsPage) -> None:
    found = isolated.run(
        f"""{OPEN}
        const s = await open();
        const found = [];
        for (const order of ["stop", "abort"]) {{
          await s.setLearningRate(0.1);
          const fit = s.fit(data(), {{ epochs: 3, batchSize: 1, schedule: (step) => (step === 0 ? 0.5 : 0.25) }});
          fit[order]();
          found.push(await fit.then(({{ ended }}) => ended, ({{ name }}) => name), fit.history.losses.length);
        }}
        // Paused before the second step, it rests there.
        const paused = s.fit(data(), {{ epochs: 1, batchSize: 1 }});
        paused.pause();
        paused.resume();
        found.push((await paused).losses.length);
        await s.release();
        return found;"""
    )
    assert found == ["stopped", 1, "AbortError", 0, 50]


NEVER = """
    const never = new Promise(() => {});
    const row = () => ({ x: new Float32Array(10), labels: 1n });
    const enough = async function* () {
      for (let i = 0; i < 25; i++) yield row();
      await never;
    };
    let [cancelled, isReached] = [0, false];
    const reach = () => {
      isReached = true;
      return never;
    };
    const iterator = () => {
      let i = 0;
      return {
        [Symbol.asyncIterator]() { return this; },
        next: () => (i++ < 25 ? Promise.resolve({ done: false, value: row() }) : never),
        return: () => { cancelled++; return never; },
      };
    };
    const readable = () => {
      let i = 0;
      return new ReadableStream({
        pull: (to) => (i++ < 25 ? to.enqueue(row()) : never),
        cancel: () => { cancelled++; return never; },
      }, { highWaterMark: 0 });
    };
    const waiting = {
      generator: () => [enough, {}],
      iterator: () => [iterator, {}],
      stream: () => [readable, {}],
      datasets: () => [new Dataset(readable).map(async (r) => r).shuffle({ buffer: 2 }).prefetch(2).batch(5), {}],
      map: () => [new Dataset(data()).map(reach), {}],
      tensor: () => [new Dataset(iterator).batch(5).map((b) => {
        const x = Tensor.fromGpuBuffer({}, { dataType: "float32", dims: [5, 10], download: reach });
        return { ...b, x };
      }), {}],
      validation: () => [data(), { validationData: readable }],
      columns: () => {
        const x = Tensor.fromGpuBuffer({}, { dataType: "float32", dims: [rows, 10], download: reach });
        return [{ ...data(), x }, {}];
      },
      callback: () => [data(), { callbacks: (event) => (event.type === "epoch" ? never : null) }],
    };
    const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    const soon = (promise) => Promise.race([promise, rest(1000).then(() => "never")]);
"""
"""Data and callbacks that never settle, and how often their source was cancelled."""

ENDS = {
    "stop": "stopped",
    "abort": "AbortError",
    "signal": "the signal",
    "release": "ReleasedError",
}
"""What a fit that is ended so gives."""
CANCELLED = {"iterator", "stream", "datasets", "tensor", "validation"}
"""Whose source can be cancelled: a generator that waits cannot."""


@pytest.mark.parametrize(
    "waits", ["generator", "iterator", "stream", "datasets", "map", "tensor", "columns", "validation", "callback"]
)
def test_a_fit_ends_though_its_data_or_callback_never_settles(js: JsPage, waits: str) -> None:
    found = js.run(
        f"""{OPEN}{NEVER}
        const store = new CheckpointStore("never");
        const found = {{}};
        for (const end of ["stop", "abort", "signal", "release"]) {{
          const s = await open();
          await store.delete("fit");
          [cancelled, isReached] = [0, false];
          const [source, more] = waiting[waits]();
          const controller = new AbortController();
          const checkpoint = {{ store, name: "fit" }};
          const batchSize = source.isBatched ? null : 5;
          const fit = s.fit(source, {{ batchSize, checkpoint, signal: controller.signal, ...more }});
          const nameOf = ({{ message, name }}) => (message === "the signal" ? message : name);
          const ended = fit.then(({{ ended }}) => ended, nameOf);
          // It comes to where it waits, and stays there.
          for (let quiet = 0, before = -1; quiet < 5; await rest(20)) {{
            const now = fit.history.losses.length;
            [quiet, before] = now === before && (now > 0 || isReached) ? [quiet + 1, now] : [0, now];
          }}
          if (end === "signal") controller.abort(new Error("the signal"));
          else if (end === "release") s.release();
          else fit[end]();
          found[end] = [await soon(ended), cancelled];
          // The lock is free, and the session can be fitted again.
          if (end === "release") {{
            const other = await open();
            await store.delete("fit");
            found.again = (await other.fit(data(), {{ checkpoint }})).ended;
            await other.release();
          }} else {{
            await store.delete("fit");
            found[end].push((await s.fit(data(), {{ checkpoint }})).ended);
            await s.release();
          }}
        }}
        return found;""",
        waits=waits,
    )
    times = int(waits in CANCELLED)
    assert found.pop("again") == "done"
    assert found.pop("release") == [ENDS["release"], times]
    assert found == {end: [ENDS[end], times, "done"] for end in ("stop", "abort", "signal")}


def test_a_callback_that_stops_and_fails_fails_the_fit(js: JsPage) -> None:
    error = js.failure(
        f"""{OPEN}
        const s = await open();
        try {{
          await s.fit(data(), {{ callbacks: async (event, fit) => {{ fit.stop(); throw new Error("no disk"); }} }});
        }} finally {{
          await s.release();
        }}"""
    )
    assert error["message"] == "no disk"


def test_frames_are_asked_for_where_somebody_listens(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const s = await open();
        const ask = window.requestAnimationFrame;
        let asked = 0;
        window.requestAnimationFrame = (draw) => {{
          asked++;
          return ask.call(window, draw);
        }};
        let told = 0;
        const heard = Object.getOwnPropertyDescriptor(MessagePort.prototype, "onmessage");
        const set = function (listener) {{
          heard.set.call(this, (event) => {{
            if ("step" in event.data) told++;
            listener(event);
          }});
        }};
        Object.defineProperty(MessagePort.prototype, "onmessage", {{ ...heard, set }});
        const fit = s.fit(data(), {{ epochs: 1e6, batchSize: 1 }});
        Object.defineProperty(MessagePort.prototype, "onmessage", heard);
        while (fit.history.epochs.length < 100) await new Promise((resolve) => setTimeout(resolve, 10));
        const alone = [asked, told];
        for await (const event of fit) if (event.type === "progress") break;
        window.requestAnimationFrame = ask;
        await fit;
        await s.release();
        return [alone, asked > 0, told > 0];"""
    )
    assert found == [[0, 0], True, True]


def test_what_goes_wrong_meanwhile(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const s = await open();
        const other = s.fit(data(), {{ epochs: 2 }});
        const errors = [await failure(() => s.fit(data())), await failure(() => s.runTrainSteps([data()]))];
        await other;
        errors.push(await failure(() => s.fit(data(), {{ callbacks: () => {{ throw new RangeError("of mine"); }} }})));
        errors.push(await failure(async () => {{
          for await (const event of s.fit(() => {{ throw new RangeError("of the data"); }})) void event;
        }}));
        const before = await bytes(s);
        const broken = data();
        broken.x.data[10 * 20] = Infinity;
        errors.push(await failure(() => s.fit(broken, {{ batchSize: 50, shuffle: false }})));
        const after = await bytes(s);
        const isSame = before.join() === after.join();
        const end = (await s.fit(data())).ended;
        errors.push(await failure(() => s.fit(data(), {{ metrics: ["mae"], validationSplit: 0.5 }})));
        errors.push(await failure(() => s.fit(data(), {{ epochs: 99, callbacks: () => void s.release() }})));
        errors.push(await failure(() => s.fit(data())));
        return [errors, isSame, end];"""
    )
    errors, is_same, end = found
    assert is_same and end == "done"
    assert [(e["name"], e["message"][:44]) for e in errors] == [
        ("SessionError", "A fit of this session is running: wait until"),
        ("SessionError", "A fit of this session is running: wait until"),
        ("RangeError", "of mine"),
        ("RangeError", "of the data"),
        ("NumericsError", "The loss is nan at step 1 of epoch 1; the pa"),
        ("FeedError", "'mae' cannot compare predictions of shape [2"),
        ("ReleasedError", "This session was released; create a new one."),
        ("ReleasedError", "This session was released; create a new one."),
    ]


def test_a_fit_that_fails_does_not_go_back_to_its_best_epoch(js: JsPage) -> None:
    """The parameters are those of the epoch in which it failed, as natively."""
    best, last, after = js.run(
        f"""{OPEN}
        const s = await open();
        const wrong = data(20);
        wrong.labels.data.forEach((label, k) => {{ wrong.labels.data[k] = 2n - label; }});
        const found = [];
        const fit = s.fit(data(), {{
          epochs: 50, validationData: wrong, schedule: {{ type: "Constant", learningRate: 0.02 }},
          earlyStopping: {{ patience: 20 }},
          callbacks: async (event, run) => {{
            if (run.history.bestEpoch === event.epoch) found[0] = (await bytes(s)).join();
            if (event.epoch === run.history.bestEpoch + 3) {{
              found[1] = (await bytes(s)).join();
              throw new Error("no more");
            }}
          }},
        }});
        await failure(() => fit);
        found[2] = (await bytes(s)).join();
        await s.release();
        return found;"""
    )
    assert best != last == after


@pytest.mark.parametrize("kind", ["alike", "mixed"])
def test_many_steps_in_a_message(js: JsPage, kind: str) -> None:
    losses, expected, same, error, trained, label = js.run(
        f"""{OPEN}
        const [s, t] = [await open(), await open()];
        const few = data(4);
        few.x.data.fill(0.5);
        // Alike, they travel together; of other sizes they do not.
        const batches = kind === "alike"
          ? [data(4), few, {{ labels: data(4).labels, x: few.x }}, data(4)]
          : Array.from({{ length: 5 }}, (_, k) => data(4 + k % 2));
        const losses = [...(await s.runTrainSteps(batches))];
        const expected = [];
        for (const batch of batches) {{
          expected.push((await t.runTrainStep(batch))[t.trainingOutputNames[0]].data[0]);
          await t.runOptimizerStep();
          await t.lazyResetGrad();
        }}
        const same = (await bytes(s)).join() === (await bytes(t)).join();
        const error = await failure(() => s.runTrainSteps([data(4), {{ x: data(4).x }}, data(4)]));
        await t.runTrainSteps([data(4)]);
        const bad = data(4);
        bad.labels.data[1] = 99n;
        const label = await failure(() => s.runTrainSteps([batches[0], batches[1], bad, data(4)]));
        await t.runTrainSteps([batches[0], batches[1]]);
        const trained = (await bytes(s)).join() === (await bytes(t)).join();
        await Promise.all([s.release(), t.release()]);
        return [losses, expected, same, error, trained, label];""",
        kind=kind,
    )
    assert losses == expected and same and trained
    assert error["step"] == 1 and "input 'labels' is missing" in error["message"]
    assert label["step"] == 2 and "the label 99 at position 1" in label["message"]


def test_gradients_that_wait_outlive_steps_whose_first_batch_is_refused(js: JsPage) -> None:
    first, second = js.run(
        f"""{OPEN}
        const [s, t] = [await open(), await open()];
        for (const one of [s, t]) {{
          await one.runTrainStep(data(4));
          if (one === s) await failure(() => s.runTrainSteps([{{ x: data(4).x }}, data(4)]));
          await one.runTrainStep(data(6));
          await one.runOptimizerStep();
        }}
        const found = [await bytes(s), await bytes(t)];
        await Promise.all([s.release(), t.release()]);
        return found;"""
    )
    assert first == second


def test_messages_of_steps_use_buffers_again(js: JsPage) -> None:
    """The second message makes no buffer of the size of its inputs; two that are under way share none."""
    made, same = js.run(
        f"""{OPEN}
        const [s, t] = [await open(), await open()];
        const of = (value) => {{
          const batch = data(4);
          batch.x.data.fill(value);
          return [batch, data(4), batch];
        }};
        const sizes = [];
        const Native = ArrayBuffer;
        globalThis.ArrayBuffer = class extends Native {{
          constructor(nbytes, options) {{
            sizes.push(nbytes);
            super(nbytes, options);
          }}
        }};
        const made = [];
        try {{
          for (const value of [0.5, -0.5]) {{
            await s.runTrainSteps(of(value));
            made.push(sizes.splice(0).filter((size) => size === 3 * 4 * 10 * 4).length);
          }}
        }} finally {{
          globalThis.ArrayBuffer = Native;
        }}
        await Promise.all([1, 2, 3].map((value) => s.runTrainSteps(of(value))));
        for (const value of [0.5, -0.5, 1, 2, 3]) {{
          for (const batch of of(value)) {{
            await t.runTrainStep(batch);
            await t.runOptimizerStep();
            await t.lazyResetGrad();
          }}
        }}
        const same = (await bytes(s)).join() === (await bytes(t)).join();
        await Promise.all([s.release(), t.release()]);
        return [made, same];"""
    )
    assert made == [1, 0] and same


def test_feeds_that_decide_a_shape_take_the_long_way(js: JsPage) -> None:
    """For each value of them there is a plan: 2 x 4 as it is, or 4 x 2, which does not fit the weights."""
    model = make_model(
        [
            helper.make_node("Reshape", ["x", "shape"], ["r"], "reshape"),
            helper.make_node("MatMul", ["r", "w"], ["logits"], "mm"),
        ],
        {"x": ["batch", 4], "shape": [2]},
        {"logits": ["n", 3]},
        {"w": normal(4, 3)},
        types={"shape": TensorProto.INT64},
    )
    js.site.add("/models/decides.onnx", model.SerializeToString())
    same, error = js.run(
        """const config = { loss: "CrossEntropyLoss", optimizer: "SGD" };
        const open = () => TrainingSession.createFromModel("/models/decides.onnx", config);
        const [s, t] = [await open(), await open()];
        const x = Float32Array.from({ length: 24 }, (_, k) => Math.sin(k));
        const big = (...values) => BigInt64Array.from(values, BigInt);
        const labels = [0, 1, 2, 0, 1, 2];
        const data = (shape) => ({
          x: new Tensor("float32", x, [6, 4]), labels: big(...labels), shape: big(...shape, ...shape, ...shape),
        });
        await s.fit(data([2, 4]), { batchSize: 2, shuffle: false });
        for (let k = 0; k < 3; k++) {
          await t.runTrainStep({
            x: new Tensor("float32", x.slice(8 * k, 8 * k + 8), [2, 4]),
            labels: new Tensor("int64", big(...labels.slice(2 * k, 2 * k + 2)), [2]),
            shape: new Tensor("int64", big(2, 4), [2]),
          });
          await t.runOptimizerStep();
          await t.lazyResetGrad();
        }
        const bytes = async (session) => (await session.getContiguousParameters()).data.join();
        const same = (await bytes(s)) === (await bytes(t));
        const error = await failure(() => s.fit(data([4, 2]), { batchSize: 2, shuffle: false }));
        await Promise.all([s.release(), t.release()]);
        return [same, error];"""
    )
    assert same and error["name"] == "ModelError"
