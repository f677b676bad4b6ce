"""A step that runs in the worker is stopped by a signal, and the session is as before.

tests/python/test_stopping.py stops at every boundary of instructions.
"""

from .js_session import JsPage

ROWS = 1_000_000
"""A step of so many takes several slices of 10 ms on any machine."""

START = f"""
const sent = [];
const post = Worker.prototype.postMessage;
let onceSent = () => undefined;
Worker.prototype.postMessage = function (message, ...others) {{
  const calls = Array.isArray(message) ? message.map((call) => call.method) : [];
  sent.push(...calls);
  const result = post.call(this, message, ...others);
  if (calls.includes("step")) queueMicrotask(onceSent);
  return result;
}};
const files = golden("mlp");
const s = await TrainingSession.create(files);
const inference = await InferenceSession.create("/golden/mlp/base.onnx");
const x = new Tensor("float32", Float32Array.from({{ length: {ROWS} * 10 }}, (_, i) => Math.sin(i)), [{ROWS}, 10]);
const labels = new Tensor("int64", BigInt64Array.from({{ length: {ROWS} }}, (_, i) => BigInt(i % 3)), [{ROWS}]);
const [out] = s.trainingOutputNames;
const sum = (bytes) => bytes.reduce((a, b, i) => (a * 31 + b + i) >>> 0, 7);
const remembered = async () => [sum(await s.saveCheckpoint({{ includeOptimizerState: true }}))];
const stopped = async (run) => {{
  const controller = new AbortController();
  const from = sent.length;
  // The stop is sent right behind the step: it lies there before the first slice of the step ends.
  onceSent = () => controller.abort();
  const outcome = await run(controller.signal).then(() => "ran", (error) => error.name);
  onceSent = () => undefined;
  return [outcome, ...sent.slice(from)];
}};
"""


def test_a_signal_stops_a_step_that_runs(either: JsPage) -> None:
    found = either.run(
        START
        + """
        await s.runTrainStep({ x, labels });
        const before = await remembered();
        const train = await stopped((signal) => s.runTrainStep({ x, labels }, { signal }));
        const evaluation = await stopped((signal) => s.runEvalStep({ x, labels }, { signal }));
        const run = await stopped((signal) => inference.run({ x }, { signal }));
        const after = await remembered();
        const whole = await s.runTrainStep({ x, labels }, { signal: new AbortController().signal });
        await s.runOptimizerStep({ signal: new AbortController().signal });
        const end = await remembered();
        const other = await TrainingSession.create(files);
        await other.runTrainStep({ x, labels });
        const plain = await other.runTrainStep({ x, labels });
        await other.runOptimizerStep();
        const otherEnd = [sum(await other.saveCheckpoint({ includeOptimizerState: true }))];
        await Promise.all([s.release(), other.release(), inference.release()]);
        const losses = [whole[out].data[0], plain[out].data[0]];
        return { train, evaluation, run, before, after, end, otherEnd, losses };
        """
    )
    assert found["train"] == ["AbortError", "step", "stop"]
    assert found["evaluation"] == ["AbortError", "step", "stop"]
    assert found["run"] == ["AbortError", "step", "stop"]
    assert found["before"] == found["after"]
    assert found["losses"][0] == found["losses"][1]
    assert found["end"] == found["otherEnd"] != found["before"]


def test_calls_behind_a_step_in_slices_wait_for_it(either: JsPage) -> None:
    found = either.run(
        START
        + """
        const { signal } = new AbortController();
        const step = s.runTrainStep({ x, labels }, { signal });
        const calls = [step, s.runOptimizerStep(), s.lazyResetGrad(), s.stepCount()];
        const done = [];
        await Promise.all(calls.map((call, k) => call.then(() => done.push(k))));
        const failing = labels.data.slice();
        failing[5] = 9n;
        const wrong = new Tensor("int64", failing, labels.dims);
        const error = await failure(() => s.runTrainStep({ x, labels: wrong }, { signal }));
        const steps = await s.stepCount();
        await Promise.all([s.release(), inference.release()]);
        return { first: done.filter((k) => k !== 2)[0], error: error.name, steps };
        """
    )
    assert found == {"first": 0, "error": "FeedError", "steps": 1}


def test_a_call_of_another_session_comes_between_two_steps_of_a_fit(js: JsPage) -> None:
    """Sessions of other options have a worker of their own, and wait for no step."""
    order = js.run(
        f"""{START}
        const other = await InferenceSession.create("/golden/mlp/base.onnx", {{ reproducible: true }});
        const one = {{ x: new Tensor("float32", new Float32Array(10), [1, 10]) }};
        for (const session of [inference, other]) await session.run(one);
        const done = [];
        let isFirst = true;
        const ask = async (name, session) => {{
          await session.run(one);
          done.push(name);
        }};
        const asked = [];
        const listen = ({{ type }}) => {{
          if (type === "progress" && isFirst) {{
            isFirst = false;
            asked.push(ask("shared", inference), ask("own", other));
          }}
          if (type === "epoch") done.push("epoch");
        }};
        await s.fit({{ x, labels }}, {{ epochs: 1, batchSize: {ROWS // 25}, callbacks: [listen] }});
        await Promise.all([...asked, s.release(), inference.release(), other.release()]);
        return done;"""
    )
    assert sorted(order[:2]) == ["own", "shared"] and order[2] == "epoch"
