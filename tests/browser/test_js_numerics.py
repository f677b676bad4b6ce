"""`debug: { checkNumerics: true }` in a page: what tests/python/test_numerics.py asks of Python."""

from typing import Any

import numpy as np
import pytest
from tests.conformance.faults import FAULTS, HARMLESS, Case, W, model, node, row_of

from .js_session import JsPage, to_json

OPEN = """
const config = { loss: "MSELoss", optimizer: "AdamW" };
const s = await TrainingSession.createFromModel(url, config, { debug: { checkNumerics: true } });
const target = s.trainingInputNames.find((name) => !(name in fed));
const tensors = Object.fromEntries(Object.entries(fed).map(([name, value]) => [name, toTensor(value)]));
const feeds = { ...tensors, [target]: new Tensor("float32", new Float32Array(10), [5, 2]) };
const bad = { ...feeds, x: toTensor(x) };
const remembered = async () => String(await s.saveCheckpoint({ includeOptimizerState: true }));
"""

CASES = {
    "log of zero": FAULTS["log of zero"],
    "exp that a division hides": FAULTS["exp that a division hides"],
    "backward": Case((node("Sqrt", "h", "l"),), row_of(0)),
}


def opened(js: JsPage, case: Case, body: str) -> Any:
    js.site.add("/fault.onnx", model(case).SerializeToString())
    good = Case(()).x
    fed = {"x": to_json(good), **{name: to_json(array) for name, array in case.fed.items()}}
    return js.run(OPEN + body, url="/fault.onnx", fed=fed, x=to_json(np.nan_to_num(case.x)))


@pytest.mark.parametrize("what", list(CASES))
def test_the_node_is_named_and_the_session_is_as_before(js: JsPage, what: str) -> None:
    case = CASES[what]
    error, before, after, steps = opened(
        js,
        case,
        """
        await s.runTrainStep(feeds);
        await s.runOptimizerStep();
        await s.runTrainStep(feeds);
        const before = await remembered();
        const error = await s.runTrainStep(bad).then(() => null, (error) => error);
        const after = await remembered();
        await s.runTrainStep(feeds);
        await s.runOptimizerStep();
        const { name, message, op, node, tensor, step, made, inputs } = error;
        const isOurs = error instanceof NumericsError;
        return [{ isOurs, name, message, op, node, tensor, step, made, inputs }, before, after, await s.stepCount()];
        """,
    )
    assert error["isOurs"] and error["name"] == "NumericsError" and error["step"] == 1
    assert before == after and steps == 2
    h = case.x.astype(np.float64) @ W
    if what == "backward":
        assert "grad" in error["tensor"] and error["made"]["nan"] + error["made"]["infinite"] == 4
    else:
        assert (error["node"], error["tensor"], error["op"]) == (case.node, case.tensor, case.node.split()[0])
        assert error["message"].startswith(f"{case.node} makes 4 ")
        first = error["inputs"][0]
        assert first["name"] == "h" and first["shape"] == [5, 4]
        # Of the weights after one step, which are nearly those before.
        assert [first["min"], first["max"]] == pytest.approx([h.min(), h.max()], rel=1e-2)


@pytest.mark.parametrize("what", ["a causal mask", "padding"])
def test_what_is_infinite_on_purpose_is_no_fault(js: JsPage, what: str) -> None:
    loss = opened(
        js,
        HARMLESS[what],
        """
        const { [s.trainingOutputNames[0]]: loss } = await s.runTrainStep(feeds);
        await s.runEvalStep(feeds);
        await s.runOptimizerStep();
        return loss.data[0];
        """,
    )
    assert np.isfinite(loss)


def test_what_goes_wrong_in_the_optimizer_and_in_a_fit(js: JsPage) -> None:
    found = opened(
        js,
        CASES["log of zero"],
        """
        await s.runTrainStep(feeds);
        await s.runOptimizerStep();
        await s.setLearningRate(3e38);
        const before = await remembered();
        const update = await s.runOptimizerStep().then(() => s.runOptimizerStep()).catch((error) => error);
        await s.setLearningRate(0.001);
        const { data } = toTensor(x);
        const all = { x: new Tensor("float32", Float32Array.from([...feeds.x.data, ...data]), [10, 3]) };
        all[target] = new Tensor("float32", new Float32Array(20), [10, 2]);
        const fresh = await TrainingSession.createFromModel(url, config, { debug: { checkNumerics: true } });
        const failed = (promise) => promise.then(() => null, (error) => error);
        const fit = await failed(fresh.fit(all, { batchSize: 5, shuffle: false, epochs: 3 }));
        const steps = await failed(fresh.runTrainSteps([feeds, bad]));
        const { message: inference } = await failed(InferenceSession.create(url, { debug: { checkNumerics: true } }));
        return [
          [update.name, update.op, update.inputs.map(({ name }) => name)],
          [fit.name, fit.node, fit.epoch, fit.batch, fit.step],
          [steps.name, steps.node, steps.step],
          inference,
        ];
        """,
    )
    update, fit, steps, inference = found
    name = update[2][0]
    read = [name, f"{name}_grad", f"{name}.momentum0", f"{name}.momentum1", "learning_rate"]
    assert update == ["NumericsError", "AdamWOptimizer", read]
    assert fit == ["NumericsError", "Log node 'the l'", 1, 2, 1]
    assert steps[:2] == ["NumericsError", "Log node 'the l'"]
    assert inference.startswith("debug.checkNumerics is for steps of a TrainingSession")


@pytest.mark.parametrize(
    ("debug", "text"),
    [
        ("true", "'debug' must be an object with 'checkNumerics'."),
        ("{ checkNumeric: true }", "checkNumerics"),
        ("{ checkNumerics: 1 }", "'debug.checkNumerics' must be a boolean, got a number."),
    ],
    ids=["boolean", "name", "value"],
)
def test_wrong_options_are_refused(js: JsPage, debug: str, text: str) -> None:
    error = js.failure(
        f"""
        const config = {{ loss: "CrossEntropyLoss", optimizer: "AdamW" }};
        await TrainingSession.createFromModel("/golden/mlp/base.onnx", config, {{ debug: {debug} }});
        """
    )
    assert error["name"] == "TypeError" and text in error["message"]
