"""`CheckpointState`, artifacts and gradient graphs in a page, against the same calls in CPython; exact resumption."""

import json

import numpy as np
from tests.golden.calls.scenarios import X, Y
from tests.python.test_quantize import network
from tests.python.test_resume import feeds, net
from tests.python.test_safetensors_beside import NAME, WEIGHT, file_of, graph_of

import trainweb
from trainweb.artifacts import LossType, OptimType, build_artifacts
from trainweb.checkpoint import SessionContents, read_checkpoint, write_checkpoint
from trainweb.compat.gradient_graph import GradientGraphBuilder
from trainweb.onnxblock import loss, optim
from trainweb.training.arrays import from_numpy

from .js_session import JsPage, from_json, to_json
from .server import ROOT

MLP = ROOT / "tests" / "golden" / "mlp"
CALLS = """
const files = golden("mlp");
const options = { reproducible: true };
const bytes = (file) => Array.from(file);
"""


def test_a_state_apart_from_sessions(isolated: JsPage) -> None:
    found = isolated.run(
        CALLS
        + """
        const state = await CheckpointState.load(files.checkpointState);
        const answer = {
            names: await state.parameterNames(), trained: await state.parameterNames({ trainableOnly: true }),
            type: await state.getParameterTypeAndShape("fc1.weight"),
            value: fromTensor(await state.getParameter("fc1.weight")),
        };
        await state.updateParameter("fc1.bias", new Tensor("float32", new Float32Array(16).fill(3), [16]));
        await state.addProperty("epoch", 7);
        await state.addProperty("rate", 1, "float");
        await state.addProperty("gone", "soon");
        await state.deleteProperty("gone");
        answer.properties = await Promise.all((await state.propertyNames()).map((name) => state.getProperty(name)));
        answer.file = bytes(await state.save());
        const wrong = new Tensor("float32", new Float32Array(2), [2]);
        answer.errors = [
            await failure(() => state.getParameter("fc9.bias")), await failure(() => state.getProperty("gone")),
            await failure(() => state.updateParameter("fc1.bias", wrong)),
            await failure(() => CheckpointState.load(new Uint8Array(9))), await failure(() => CheckpointState.load(7)),
        ].map((error) => error.name);
        await state.release();
        await state.release();
        answer.errors.push((await failure(() => state.save())).name);
        return answer;"""
    )
    state = trainweb.CheckpointState.load_checkpoint(MLP / "checkpoint")
    assert found["names"] == found["trained"] == list(state.parameters)
    assert found["type"] == {"type": "float32", "dims": list(state.parameters["fc1.weight"].data.shape)}
    np.testing.assert_array_equal(from_json(found["value"]), state.parameters["fc1.weight"].data)
    state.parameters["fc1.bias"] = np.full(16, 3, np.float32)
    state.properties.update({"epoch": 7, "rate": 1.0})
    assert bytes(found["file"]) == trainweb.CheckpointState.save_checkpoint(state)
    assert found["properties"] == [7, 1]
    one, two, three = "CheckpointError", "TypeError", "ReleasedError"
    assert found["errors"] == [one, one, one, one, two, three]


def test_a_state_keeps_what_its_sessions_learned(isolated: JsPage) -> None:
    found = isolated.run(
        CALLS
        + """
        const step = async (s) => {
            const results = await s.runTrainStep({ x, labels });
            await s.runOptimizerStep();
            await s.lazyResetGrad();
            return results[s.trainingOutputNames[0]].data[0];
        };
        const [x, labels] = [toTensor(given.x), toTensor(given.labels)];
        const state = await CheckpointState.load(files.checkpointState);
        await state.addProperty("run", "a");
        const first = await TrainingSession.create({ ...files, checkpointState: state }, options);
        const losses = [await step(first), await step(first)];
        await first.addProperty("steps", 2);
        const [mine, its] = [await state.getParameter("fc2.bias"), await first.getParameter("fc2.bias")];
        const same = String(mine.data) === String(its.data);
        await first.release();
        const properties = [await state.getProperty("run"), await state.getProperty("steps")];
        const between = bytes(await state.save({ includeOptimizerState: true }));
        const second = await TrainingSession.create({ ...files, checkpointState: state }, options);
        losses.push(await step(second));
        const third = await TrainingSession.create({ ...files, checkpointState: state }, options);
        losses.push(await step(third));
        await second.release();  // it is no longer the one
        await third.release();
        const end = bytes(await state.save({ includeOptimizerState: true }));
        await state.release();
        return { losses, same, properties, between, end };""",
        given={"x": to_json(X), "labels": to_json(Y)},
    )
    state = trainweb.CheckpointState.load_checkpoint(MLP / "checkpoint")
    files = [MLP / f"{name}_model.onnx" for name in ("training", "eval", "optimizer")]
    losses, saved = [], []
    state.properties.update({"run": "a", "steps": 2})
    with trainweb.TrainingSession(state, *files, {"reproducible": True}) as s:
        for k in range(4):
            losses += [float(v) for v in s.train_step({"x": X, "labels": Y}).values()]
            s.optimizer_step()
            s.lazy_reset_grad()
            if k % 2:
                saved.append(trainweb.CheckpointState.save_checkpoint(state, include_optimizer_state=True))
    assert found["losses"] == losses and found["same"] and found["properties"] == ["a", 2]
    assert [bytes(found["between"]), bytes(found["end"])] == saved


def test_parameters_of_other_dtypes_keep_their_place(isolated: JsPage) -> None:
    content = read_checkpoint(MLP / "checkpoint")
    arrays = {"a.int": np.array([1, 2**40, -3]), "fc1.half": np.float16([1, 2]), "z.int32": np.int32([4])}
    frozen = [from_numpy(name, array) for name, array in arrays.items()]
    isolated.site.add("/resume/mixed", write_checkpoint(SessionContents.of(content.trained, frozen)))
    found = isolated.run(
        CALLS
        + """
        const state = await CheckpointState.load("/resume/mixed");
        const names = await state.parameterNames();
        const types = await Promise.all(names.slice(-3).map((name) => state.getParameterTypeAndShape(name)));
        const value = fromTensor(await state.getParameter("a.int"));
        await state.updateParameter("a.int", new Tensor("int64", [7n, 8n, 9n], [3]));
        const session = await TrainingSession.create({ ...files, checkpointState: state }, options);
        const saved = bytes(await session.saveCheckpoint());
        await session.release();
        const after = bytes(await state.save());
        await state.release();
        return { names, types, value, saved, after };"""
    )
    state = trainweb.CheckpointState.load_checkpoint(write_checkpoint(SessionContents.of(content.trained, frozen)))
    assert found["names"] == list(state.parameters)
    # Half precision is shown as float32, and saved as it was.
    assert [t["type"] for t in found["types"]] == [str(p.data.dtype) for p in list(state.parameters.values())[-3:]]
    assert [t.dtype for t in read_checkpoint(bytes(found["saved"])).frozen] == ["int64", "float16", "int32"]
    np.testing.assert_array_equal(from_json(found["value"]), arrays["a.int"])
    state.parameters["a.int"] = np.array([7, 8, 9])
    assert bytes(found["saved"]) == bytes(found["after"]) == trainweb.CheckpointState.save_checkpoint(state)


CONFIG = """{
    loss: { type: "CrossEntropyLoss", labelSmoothing: 0.1 }, clipGradNorm: 0.5,
    optimizer: { type: "AdamW", weightDecay: 0.02, betas: [0.8, 0.99] }, frozenParams: ["fc1.bias"],
}"""


def test_artifacts_and_gradient_graphs(isolated: JsPage) -> None:
    found = isolated.run(
        f"""
        const model = "/golden/mlp/base.onnx";
        const built = await buildArtifacts(model, {CONFIG});
        const blobs = await buildArtifacts(model, {{ loss: "CrossEntropyLoss" }}, {{ as: "blob" }});
        const builder = new GradientGraphBuilder(model, ["logits"], new Set(["fc1.weight", "fc1.bias"]));
        const early = await failure(() => builder.getModel());
        await builder.build();
        const missing = await failure(() => new GradientGraphBuilder(model, ["nowhere"], ["fc1.bias"]).build());
        const kinds = Object.entries(blobs).map(([name, file]) => [name, file instanceof Blob]);
        return {{
            files: Object.fromEntries(Object.entries(built).map(([name, file]) => [name, Array.from(file)])),
            kinds: Object.fromEntries(kinds), graph: Array.from(builder.getModel()), errors: [early.name, missing.name],
        }};"""
    )
    model = MLP / "base.onnx"
    own = build_artifacts(
        model,
        loss=loss.CrossEntropyLoss(label_smoothing=0.1),
        optimizer=optim.AdamW(weight_decay=0.02, betas=(0.8, 0.99), clip_grad=optim.ClipGradNorm(0.5)),
        frozen_params=["fc1.bias"],
    )
    expected = {
        "trainModel": own.training_model,
        "evalModel": own.eval_model,
        "optimizerModel": own.optimizer_model,
        "checkpoint": own.checkpoint,
        "nominalCheckpoint": own.nominal_checkpoint,
    }
    assert {name: bytes(file) for name, file in found["files"].items()} == expected
    assert found["kinds"] == {name: name != "optimizerModel" for name in expected}
    builder = GradientGraphBuilder(model, ["logits"], {"fc1.weight", "fc1.bias"})
    builder.build()
    assert bytes(found["graph"]) == builder.get_model()
    assert found["errors"] == ["SessionError", "ModelError"]


def test_quantized_files_are_those_of_python(isolated: JsPage) -> None:
    model = network(turned=True, gemm=True)[0].SerializeToString()
    found = isolated.run(
        f"""
        const model = new Uint8Array({json.dumps(list(model))});
        const whole = await quantize(model, 8, {{ onlyFrozen: false, as: "blob" }});
        const graph = new Uint8Array({json.dumps(list(graph_of()))});
        const weights = new Uint8Array({json.dumps(list(file_of({NAME: WEIGHT})))});
        const wrong = [[5], [4, {{ onlyFrozen: 1 }}], [4, {{ all: true }}]];
        return {{
            frozen: Array.from(await quantize(model)), whole: Array.from(new Uint8Array(await whole.arrayBuffer())),
            beside: Array.from(await quantize(graph, 4, {{ onlyFrozen: false, weights }})),
            errors: await Promise.all(wrong.map((args) => failure(() => quantize(model, ...args)))),
        }};"""
    )
    assert bytes(found["frozen"]) == trainweb.quantize(model, 4)
    assert bytes(found["whole"]) == trainweb.quantize(model, 8, only_frozen=False)
    assert found["frozen"] != found["whole"]
    beside = file_of({NAME: WEIGHT})
    assert bytes(found["beside"]) == trainweb.quantize(graph_of(), 4, only_frozen=False, weights=beside)
    assert [(error["name"], error["message"]) for error in found["errors"][:2]] == [
        ("ModelError", "bits is 5; it must be 4 or 8."),
        ("TypeError", "'onlyFrozen' must be a boolean, got a number."),
    ]
    assert found["errors"][2]["name"] == "TypeError" and "all" in found["errors"][2]["message"]


RESUME = """
const f = { trainModel: "/resume/train", evalModel: "/resume/eval", optimizerModel: "/resume/optimizer" };
env.seed = undefined;
const open = (checkpointState) => TrainingSession.create({ ...f, checkpointState }, { reproducible: true });
const given = batches.map(({ x, labels }) => ({ x: toTensor(x), labels: toTensor(labels) }));
const calls = [(s) => s.registerLinearLRScheduler(1, 7, 0.1), (s) => s.addProperty("epoch", 1)];
for (let k = 0; k < 3; k++) {
    calls.push(
        (s) => s.runTrainStep(given[2 * k]), (s) => s.runTrainStep(given[2 * k + 1]), (s) => s.runOptimizerStep(),
        (s) => s.lazyResetGrad(), (s) => s.schedulerStep(), (s) => s.runEvalStep(given[6]));
}
const run = async (s, some, results) => {
    for (const call of some) {
        for (const tensor of Object.values((await call(s)) ?? {})) results.push(tensor.data[0]);
    }
};
const whole = [];
const s = await open("/resume/checkpoint");
await run(s, calls, whole);
const end = await s.saveCheckpoint({ includeOptimizerState: true });
await s.release();
const differ = [];
for (let at = 1; at < calls.length; at++) {
    const results = [];
    const before = await open("/resume/checkpoint");
    await run(before, calls.slice(0, at), results);
    const saved = await before.saveCheckpoint({ includeOptimizerState: true });
    await before.release();
    const after = await open(saved);
    await run(after, calls.slice(at), results);
    const file = await after.saveCheckpoint({ includeOptimizerState: true });
    await after.release();
    const same = String(results) === String(whole) && file.length === end.length && file.every((b, i) => b === end[i]);
    if (!same) differ.push(at);
}
return { whole, differ, count: calls.length, end: Array.from(end) };
"""


def test_a_run_killed_after_any_call_resumes(isolated: JsPage) -> None:
    """Dropout, BatchNormalization, accumulation, a schedule; the file is that of CPython to the byte."""
    made = build_artifacts(net(), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    for name, data in {
        "train": made.training_model,
        "eval": made.eval_model,
        "optimizer": made.optimizer_model,
        "checkpoint": made.checkpoint,
    }.items():
        assert data is not None
        isolated.site.add(f"/resume/{name}", data)
    ids = [*range(6), 99]
    found = isolated.run(RESUME, batches=[{n: to_json(v) for n, v in feeds(k).items()} for k in ids])
    assert found["differ"] == [] and found["count"] == 20
    trainweb.set_seed(0)
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    results: list[float] = []
    models = made.training_model, made.eval_model, made.optimizer_model
    with trainweb.TrainingSession(state, *models, {"reproducible": True}) as s:
        s.register_linear_lr_scheduler(1, 7, 0.1)
        state.properties["epoch"] = 1
        for k in range(3):
            for batch in (2 * k, 2 * k + 1):
                results += [float(v) for v in s.train_step(feeds(batch)).values()]
            s.optimizer_step()
            s.lazy_reset_grad()
            s.scheduler_step()
            results += [float(v) for v in s.eval_step(feeds(99)).values()]
        end = trainweb.CheckpointState.save_checkpoint(state, include_optimizer_state=True)
    assert found["whole"] == results and bytes(found["end"]) == end
