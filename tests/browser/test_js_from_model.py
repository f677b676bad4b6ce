"""`createFromModel`: training artifacts built in the page, of a forward model alone."""

import json
import re
from typing import Any

import numpy as np
import pytest

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.onnxblock.optim import OPTIMIZERS

from .js_session import JsPage
from .server import ROOT

OPEN = """
    const url = "/golden/mlp/base.onnx";
    const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
    const open = (more = {}) => TrainingSession.createFromModel(url, { ...config, ...more });
    const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
    const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
    const feeds = { x, labels };
    const train = async (s, steps) => {
      const losses = [];
      await s.setLearningRate(0.01);
      for (let k = 0; k < steps; k++) {
        losses.push((await s.runTrainStep(feeds))[s.trainingOutputNames[0]].data[0]);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      return losses;
    };
"""


def native_losses(steps: int, **arguments: Any) -> list[float]:
    """The result of `train` of the page, by a session in CPython."""
    built = build_artifacts(ROOT / "tests" / "golden" / "mlp" / "base.onnx", **arguments)
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    feeds = {"x": np.sin(np.arange(80)).astype(np.float32).reshape(8, 10), "labels": np.arange(8) % 3}
    losses = []
    models = built.training_model, built.eval_model, built.optimizer_model
    with trainweb.TrainingSession(state, *models, {"reproducible": True}) as s:
        s.set_learning_rate(0.01)
        for _ in range(steps):
            losses += [float(loss) for loss in s.train_step(feeds).values()]
            s.optimizer_step()
            s.lazy_reset_grad()
    return losses


def test_trains_as_the_recorded_artifacts_do(js: JsPage) -> None:
    built, recorded = js.run(
        f"""{OPEN}
        const s = await open();
        const t = await TrainingSession.create(golden("mlp"));
        const losses = [await train(s, 10), await train(t, 10)];
        await s.release();
        await t.release();
        return losses;"""
    )
    assert built == pytest.approx(recorded, rel=1e-5)
    assert built[-1] < built[0]


def test_lion_takes_the_steps_that_it_takes_natively(js: JsPage) -> None:
    """The first step moves each parameter by the learning rate, up, down or not at all; later ones go as natively."""
    before, after, losses = js.run(
        f"""{OPEN}
        const lion = {{ ...config, optimizer: "Lion" }};
        const s = await TrainingSession.createFromModel(url, lion, {{ reproducible: true }});
        const weights = async () => [...(await s.getContiguousParameters(true)).data];
        const before = await weights();
        const losses = await train(s, 1);
        const after = await weights();
        losses.push(...(await train(s, 9)));
        await s.release();
        return [before, after, losses];"""
    )
    moves = np.array(after) - before
    assert set(np.round(moves / 0.01).tolist()) == {-1.0, 0.0, 1.0} and np.abs(moves).max() < 0.01001
    assert losses == native_losses(10, loss="CrossEntropyLoss", optimizer="Lion")


def test_its_artifacts_make_the_same_session_again(js: JsPage) -> None:
    first, second = js.run(
        f"""{OPEN}
        const s = await open();
        const losses = await train(s, 3);
        const t = await TrainingSession.create(await s.artifacts());
        const again = await train(t, 3);
        await s.release();
        await t.release();
        return [losses, again];"""
    )
    assert first == second


def test_built_artifacts_keep_the_rate(js: JsPage) -> None:
    """Given in either place; and the configuration of a check has the same settings."""
    rates, code = js.run(
        f"""{OPEN}
        const rates = [];
        for (const given of [{{}}, {{ learningRate: 0.25 }}, {{ optimizer: {{ type: "SGD", learningRate: 0.5 }} }}]) {{
            const made = {{ ...config, ...given }};
            const s = await TrainingSession.create(await buildArtifacts(url, made));
            rates.push(await s.getLearningRate());
            await s.release();
        }}
        const checked = {{ ...config, optimizer: {{ type: "SGD", learningRate: 0.5 }} }};
        return [rates, (await inspectModel(url, checked)).code.javascript];"""
    )
    assert rates == [float(np.float32(0.001)), 0.25, 0.5]
    assert "learningRate: 0.5" in code


def test_frozen_parameters_stay(js: JsPage) -> None:
    sizes, moved = js.run(
        f"""{OPEN}
        const s = await open({{ frozenParams: ["fc1.*"] }});
        const sizes = [await s.getParametersSize(true), await s.getParametersSize(false)];
        const before = fromTensor(await s.getParameter("fc1.weight")).data.join();
        const head = fromTensor(await s.getParameter("fc2.weight")).data.join();
        await train(s, 2);
        const moved = [fromTensor(await s.getParameter("fc1.weight")).data.join() !== before,
                       fromTensor(await s.getParameter("fc2.weight")).data.join() !== head];
        await s.release();
        return [sizes, moved];"""
    )
    assert 0 < sizes[0] < sizes[1] == 432
    assert moved == [False, True]


def test_without_an_optimizer(js: JsPage) -> None:
    error = js.failure(f"{OPEN} const s = await open({{ optimizer: null }}); await s.runOptimizerStep();")
    assert error["message"] == "This TrainingSession has no OptimizerModel loaded."


ADAMW = "type: 'AdamW'"
SAVED = "'checkpoint' of fit or of TrainingSession.create, or loadCheckpoint of the session?"


@pytest.mark.parametrize(
    ("call", "name", "texts"),
    [
        ("TrainingSession.createFromModel()", "TypeError", ["'model' must be a URL"]),
        ("TrainingSession.createFromModel(url)", "TypeError", ["'config' must be an object"]),
        ("TrainingSession.createFromModel(url, null)", "TypeError", ["'config' must be an object"]),
        ("TrainingSession.createFromModel(url, [config])", "TypeError", ["'config' must be an object"]),
        ("open({ loss: 'CrossEntropy' })", "TypeError", ["did you mean 'CrossEntropyLoss'?"]),
        ("open({ loss: (p, t) => p })", "ModelError", ["that you compute goes to 'OutputGradient'"]),
        ("open({ loss: 3 })", "ModelError", ["loss is 3; it must be the name of one, or an object with a 'type'"]),
        ("open({ optimizer: 'toString' })", "TypeError", ["There is no optimizer 'toString'", "AdamW", "SGD", "Lion"]),
        (
            "open({ learningRates: 1 })",
            "TypeError",
            ["config has no setting 'learningRates'; did you mean 'learningRate'?"],
        ),
        ("open({ lossWeights: [1, 0.3] })", "TypeError", ["no setting 'lossWeights'; did you mean 'loss'?"]),
        ("open({ metrics: ['accuracy'] })", "TypeError", ["did you mean 'metrics' of fit?"]),
        *(
            (f"open({{ {name}: 'x' }})", "TypeError", [SAVED])
            for name in ("checkpoint", "checkpointState", "loadCheckpoint")
        ),
        ("TrainingSession.createFromModel(url, config, { checkpoint: 'x' })", "TypeError", [SAVED]),
        (
            "open({ device: 'webgpu' })",
            "TypeError",
            ["did you mean 'device' of the session options, the third"],
        ),
        ("open({ threads: 2 })", "TypeError", ["did you mean 'threads' of the session options"]),
        ("open({ cache: true })", "TypeError", ["did you mean 'cache' of the session options"]),
        ("(await open()).fit({}, { frozenParams: [] })", "TypeError", ["'frozenParams' of createFromModel?"]),
        ("(await open()).fit({}, { cache: true })", "TypeError", ["did you mean 'cache' of the session options"]),
        ("(await open()).fit({}, { classWeight: [1] })", "TypeError", ["did you mean 'loss' of createFromModel?"]),
        ("open({ workers: 2 })", "TypeError", ["config has no setting 'workers'; there are loss, optimizer, "]),
        ("open({ loss: undefined })", "ModelError", ["config needs the setting 'loss'"]),
        (f"open({{ optimizer: {{ {ADAMW}, epsilom: 1 }} }})", "TypeError", ["AdamW has no setting 'epsilom'"]),
        (f"open({{ optimizer: {{ {ADAMW}, eps: 1, epsilon: 1 }} }})", "TypeError", ["takes 'eps' and 'epsilon'"]),
        (f"open({{ optimizer: {{ {ADAMW}, group: [] }} }})", "TypeError", ["did you mean 'groups'?"]),
        (
            f"open({{ optimizer: {{ {ADAMW}, epsilon: '1' }} }})",
            "ModelError",
            ["optimizer.epsilon is '1'", "at least 0"],
        ),
        (f"open({{ optimizer: {{ {ADAMW}, weightDecay: -1 }} }})", "ModelError", ["optimizer.weightDecay is -1"]),
        (f"open({{ optimizer: {{ {ADAMW}, betas: [0.9, 1] }} }})", "ModelError", ["optimizer.betas[1] is 1"]),
        (f"open({{ optimizer: {{ {ADAMW}, betas: 0.9 }} }})", "ModelError", ["optimizer.betas is 0.9", "two numbers"]),
        (f"open({{ optimizer: {{ {ADAMW}, biasCorrection: 1 }} }})", "ModelError", ["biasCorrection", "true or false"]),
        (
            f"open({{ optimizer: {{ {ADAMW}, decayBiasesAndNorms: 0 }} }})",
            "ModelError",
            ["optimizer.decayBiasesAndNorms"],
        ),
        (f"open({{ optimizer: {{ {ADAMW}, groups: {{}} }} }})", "ModelError", ["optimizer.groups is Object"]),
        (f"open({{ optimizer: {{ {ADAMW}, groups: [{{}}] }} }})", "ModelError", ["optimizer.groups[0].parameters"]),
        (
            f"open({{ optimizer: {{ {ADAMW}, groups: [{{ parameters: ['a'], learningRateFactor: NaN }}] }} }})",
            "ModelError",
            ["optimizer.groups[0].learningRateFactor is nan"],
        ),
        (
            f"open({{ optimizer: {{ {ADAMW}, groups: [{{ parameters: ['head.*'] }}] }} }})",
            "ModelError",
            ["A group names 'head.*', which is not a trained parameter; they are fc1.weight"],
        ),
        ("open({ optimizer: null, clipGradNorm: 1 })", "ModelError", ["clipGradNorm needs an 'optimizer'"]),
        ("open({ clipGradNorm: 0 })", "ModelError", ["clipGradNorm is 0; it must be a number greater than 0"]),
        ("open({ clipGradValue: '1' })", "ModelError", ["clipGradValue is '1'"]),
        ("open({ batchNorm: 'eval' })", "ModelError", ["batchNorm is 'eval'; it must be train or as_exported"]),
        ("open({ requiresGrad: 'fc1.*' })", "ModelError", ["requiresGrad is 'fc1.*'; it must be a list of names"]),
        ("open({ lossInputNames: ['logits', 'logits'] })", "ModelError", ["takes 1", "choose with lossInputNames"]),
        ("open({ loss: { type: 'CrossEntropyLoss', weights: [1, '2'] } })", "ModelError", ["loss.weights is [1, '2']"]),
        ("open({ loss: { type: 'CrossEntropyLoss', ignoreIndex: 0.5 } })", "ModelError", ["loss.ignoreIndex is 0.5"]),
        ("open({ loss: { reduction: 'sum' } })", "ModelError", ["loss needs the setting 'type': one of MSELoss"]),
        ("open({ loss: { y: () => 1 } })", "ModelError", ["loss.y is", "that you compute goes to 'OutputGradient'"]),
        ("open({ loss: 'mse' })", "TypeError", ["did you mean 'MSELoss'"]),
        ("open({ loss: 'meanAbsoluteError' })", "TypeError", ["did you mean 'L1Loss'"]),
        ("open({ loss: { y: { weight: 2 } } })", "ModelError", ["loss.y needs the setting 'type': one of MSELoss"]),
        ("open({ loss: { y: 'MSELoss', z: [] } })", "ModelError", ["loss.z is []; it must be a loss, or a list"]),
        ("open({ loss: { y: 'MSELoss', z: null } })", "ModelError", ["loss.z is null; it must be the name of one"]),
        ("open({ loss: { y: ['MSELoss', 5] } })", "ModelError", ["loss.y is 5; it must be the name of one"]),
        (
            "open({ loss: { logits: 'CrossEntropyLoss' }, sampleWeight: { logit: 'w' } })",
            "ModelError",
            ["sampleWeight.logit is", "it must be of an output with a loss: logits"],
        ),
        (
            "open({ loss: { logits: 'MSELoss' }, sampleWeight: { logits: { name: 'w', of: 'tokens' } } })",
            "ModelError",
            ["sampleWeight.logits.of is 'tokens'; it must be rows or labels"],
        ),
        (
            "open({ loss: { type: 'MSELoss', reduction: 'max' } })",
            "ModelError",
            ["'max'; it must be mean, sum or none"],
        ),
        ("open({ requiresGrad: ['nowhere'] })", "ModelError", ["nowhere"]),
        ("TrainingSession.createFromModel(new Uint8Array(5), config)", "ModelError", []),
    ],
)
def test_refusals(js: JsPage, call: str, name: str, texts: list[str]) -> None:
    error = js.failure(f"{OPEN} await {call};")
    assert error["name"] == name
    for text in texts:
        assert text in error["message"]
    # Python's own spelling of a setting is no use in a page.
    assert not re.search(r"[a-z]_[a-z]", error["message"].replace("as_exported", ""))


CONFIGURED = [
    (
        {
            "loss": {"type": "CrossEntropyLoss", "weights": [1, 2, 0.5, 3], "ignoreIndex": 2, "classAxis": 1},
            "optimizer": {
                "type": "AdamW",
                "betas": [0.8, 0.95],
                "epsilon": 1e-4,
                "weightDecay": 0.1,
                "adamMode": 0,
                "decayBiasesAndNorms": False,
                "groups": [{"parameters": ["fc2.*"], "learningRateFactor": 0.5, "weightDecay": 0.2}],
            },
            "clipGradNorm": 0.5,
            "clipGradValue": 0.1,
            "frozenParams": ["fc1.bias"],
        },
        {
            "loss": {"type": "CrossEntropyLoss", "weight": [1, 2, 0.5, 3], "ignore_index": 2, "class_axis": 1},
            "optimizer": {
                "type": "AdamW",
                "betas": [0.8, 0.95],
                "eps": 1e-4,
                "weight_decay": 0.1,
                "adam_mode": 0,
                "decay_biases_and_norms": False,
                "groups": [{"parameters": ["fc2.*"], "learning_rate_factor": 0.5, "weight_decay": 0.2}],
            },
            "clip_grad_norm": 0.5,
            "clip_grad_value": 0.1,
            "frozen_params": ["fc1.bias"],
        },
    ),
    (
        {"optimizer": {"type": "RMSProp", "momentum": 0.9, "centered": True, "alpha": 0.9}, "clipGradNorm": None},
        {"optimizer": {"type": "RMSProp", "momentum": 0.9, "centered": True, "alpha": 0.9}},
    ),
    ({"optimizer": "Adafactor"}, {"optimizer": "Adafactor"}),
    (
        {"optimizer": {"type": "Muon", "matchRms": False, "steps": 4}},
        {"optimizer": {"type": "Muon", "match_rms": False, "steps": 4}},
    ),
    (
        {"optimizer": {"type": "SGD", "momentum": 0.9, "nesterov": True}},
        {"optimizer": {"type": "SGD", "momentum": 0.9, "nesterov": True}},
    ),
]


@pytest.mark.parametrize(("config", "arguments"), CONFIGURED)
def test_settings_are_obeyed_as_natively(js: JsPage, config: dict[str, Any], arguments: dict[str, Any]) -> None:
    losses = js.run(
        f"""{OPEN}
        const more = {json.dumps(config)};
        const s = await TrainingSession.createFromModel(url, {{ ...config, ...more }}, {{ reproducible: true }});
        const losses = await train(s, 6);
        await s.release();
        return losses;"""
    )
    assert losses == native_losses(6, **{"loss": "CrossEntropyLoss", **arguments})


def test_every_optimizer_takes_the_steps_that_it_takes_natively(js: JsPage) -> None:
    """By its name alone."""
    found = js.run(
        f"""{OPEN}
        const found = {{}};
        for (const optimizer of {json.dumps(list(OPTIMIZERS))}) {{
          const s = await TrainingSession.createFromModel(url, {{ ...config, optimizer }}, {{ reproducible: true }});
          found[optimizer] = await train(s, 4);
          await s.release();
        }}
        return found;"""
    )
    assert found == {name: native_losses(4, loss="CrossEntropyLoss", optimizer=name) for name in OPTIMIZERS}
    assert len({tuple(losses) for losses in found.values()}) == len(OPTIMIZERS)


def test_weights_may_be_typed_arrays_and_tensors(js: JsPage) -> None:
    first, *others = js.run(
        f"""{OPEN}
        const found = [];
        const list = [1, 2, 3, 4];
        for (const weights of [list, new Float32Array(list), new Tensor("float32", list, [4])]) {{
          const s = await open({{ loss: {{ type: "CrossEntropyLoss", weights }} }});
          found.push(await train(s, 2));
          await s.release();
        }}
        return found;"""
    )
    assert others == [first, first]
