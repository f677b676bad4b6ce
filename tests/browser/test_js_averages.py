"""Averages of the parameters, limits of gradients and CTC in a page: the same bytes as natively."""

import numpy as np
from onnx import helper
from tests.browser.test_js_fit import OPEN
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import build_artifacts

from .js_session import JsPage

IN_PAGE = """
    const ema = { decay: 0.7, warmup: true, warmupGamma: 3 };
    const numbers = (tensor) => [...tensor.data];
    const averaged = async (s) => numbers(await s.getContiguousParameters(true, { ema: true }));
"""


def test_a_run_that_goes_on_keeps_them(js: JsPage) -> None:
    """Through a checkpoint file, and in a session of a bundle, which has no Python."""
    whole, halves = js.run(
        f"""{OPEN}{IN_PAGE}
        const step = async (s, k) => {{
          await s.runTrainStep(data(8 + k));
          await s.runOptimizerStep();
          await s.lazyResetGrad();
        }};
        const s = await open({{ ema }});
        for (let k = 0; k < 4; k++) await step(s, k);
        const whole = await averaged(s);
        await s.release();
        const first = await open({{ ema }});
        for (let k = 0; k < 2; k++) await step(first, k);
        const artifacts = await first.artifacts();
        const checkpoint = await first.saveCheckpoint({{ includeOptimizerState: true }});
        await first.release();
        const second = await TrainingSession.create({{ ...artifacts, checkpoint }}, {{ reproducible: true }});
        for (let k = 2; k < 4; k++) await step(second, k);
        const halves = await averaged(second);
        await second.release();
        return [whole, halves];"""
    )
    assert whole == halves


def test_what_cannot_be_is_named(js: JsPage) -> None:
    errors = js.run(
        f"""{OPEN}{IN_PAGE}
        const s = await open();
        const kept = await open({{ ema }});
        const errors = [
          await failure(() => s.getContiguousParameters(true, {{ ema: true }})),
          await failure(() => s.runEvalStep(data(8), {{ ema: true }})),
          await failure(() => s.exportModelForInferencing(["logits"], {{ ema: true }})),
          await failure(() => kept.runTrainStep(data(8), {{ ema: true }})),
          await failure(() => kept.runOptimizerStep({{ ema: true }})),
          await failure(() => kept.runEvalStep(data(8), {{ ema: 1 }})),
          await failure(() => open({{ ema: {{ decay: 2 }} }})),
          await failure(() => open({{ ema: 0.9 }})),
          await failure(() => open({{ ema, optimizer: null }})),
        ];
        await s.release();
        await kept.release();
        return errors.map(({{ name, message }}) => `${{name}}: ${{message}}`);"""
    )
    expected = (
        *["SessionError: The session keeps no averages of its parameters"] * 3,
        *["SessionError: Only eval steps of a training session"] * 2,
        "TypeError: 'options.ema' must be a boolean",
        "ModelError: ema.decay is 2; it must be a number at least 0 and less than 1",
        "ModelError: ema is 0.9; it must be an object of its settings",
        "ModelError: ema needs an 'optimizer'",
    )
    for error, text in zip(errors, expected, strict=True):
        assert error.startswith(text), (error, text)


def test_ctc_in_a_page(js: JsPage) -> None:
    scores = np.random.default_rng(0).standard_normal((6, 2, 4)).astype(np.float32)
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"], "add")], {"x": [6, 2, 4]}, {"y": [6, 2, 4]}, {"w": scores}
    ).SerializeToString()
    loss, gradient = js.run(
        """const loss = { type: "CTCLoss", blank: 3, zeroInfinity: true };
        const config = { loss, optimizer: "SGD" };
        const s = await TrainingSession.createFromModel(new Uint8Array(model), config, { reproducible: true });
        const feeds = {
          x: new Tensor("float32", new Float32Array(48), [6, 2, 4]),
          targets: new Tensor("int64", BigInt64Array.of(0n, 1n, 1n, 2n, 0n, 0n), [2, 3]),
          input_lengths: new Tensor("int64", BigInt64Array.of(6n, 4n), [2]),
          target_lengths: new Tensor("int64", BigInt64Array.of(3n, 1n), [2]),
        };
        const [name] = s.trainingOutputNames;
        const value = (await s.runTrainStep(feeds))[name].data[0];
        const gradient = [...(await s.getGradient("w")).data];
        await s.release();
        return [value, gradient];""",
        model=list(model),
    )
    built = build_artifacts(model, loss={"type": "CTCLoss", "blank": 3, "zero_infinity": True}, optimizer="SGD")
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    models = built.training_model, built.eval_model, built.optimizer_model
    with trainweb.TrainingSession(state, *models, {"reproducible": True}) as s:
        feeds = {"x": np.zeros((6, 2, 4), np.float32), "targets": [[0, 1, 1], [2, 0, 0]]}
        (expected,) = s.train_step(feeds | {"input_lengths": [6, 4], "target_lengths": [3, 1]}).values()
        assert loss == float(expected)
        assert gradient == s.get_gradient("w").ravel().tolist()
