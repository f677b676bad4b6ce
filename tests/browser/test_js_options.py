"""No call of a page takes a misspelt name among its options in silence: of every call that TypeDoc finds."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser

from .js_session import JsPage, open_js_page
from .option_objects import Description
from .server import Site

CALLS = {
    "CheckpointState.load(sessionOptions)": "CheckpointState.load(files.checkpointState, o)",
    "CheckpointState.parameterNames(options)": "state.parameterNames(o)",
    "CheckpointState.save(options)": "state.save(o)",
    "CheckpointStore.constructor(options)": "new CheckpointStore('a', o)",
    "Dataset.batch(options)": "Dataset.of(data).batch(2, o)",
    "Dataset.bucket(options)": "Dataset.of(data).bucket(() => 1, [2], 2, o)",
    "Dataset.oneHot(names)": "Dataset.of(data).oneHot(o)",
    "Dataset.shuffle(options)": "Dataset.of(data).shuffle(o)",
    "Dataset.split(options)": "Dataset.of(data).split(0.5, o)",
    "Engine.create(options)": "(await import('/dist/engine.js')).Engine.create(o)",
    "FederatedClient.round(options)": "session.federated().round(new Float32Array(432).fill(0.1), data, o)",
    "GradientGraphBuilder.build(sessionOptions)": "new GradientGraphBuilder(model, ['logits'], ['x']).build(o)",
    "InferenceSession.create(options)": "InferenceSession.create(model, o)",
    "InferenceSession.generate(options)": "inference.generate([1], o).next()",
    "InferenceSession.run(options)": "inference.run({ x: data.x }, o)",
    "SecureMember.mask(options)": "(await SecureMember.create('a', 'r')).mask(new Float32Array(2), {}, o)",
    "quantize(options)": "quantize(model, 4, o)",
    "TrainingSession.create(sessionOptions)": "TrainingSession.create(files, o)",
    "TrainingSession.create(trainingOptions)": "TrainingSession.create(o)",
    "TrainingSession.createFromModel(config)": "TrainingSession.createFromModel(model, o)",
    "TrainingSession.createFromModel(sessionOptions)": "TrainingSession.createFromModel(model, config, o)",
    "TrainingSession.createFromPretrained(config)": "TrainingSession.createFromPretrained(folder, o)",
    "TrainingSession.createFromPretrained(sessionOptions)": "TrainingSession.createFromPretrained(folder, {}, o)",
    "TrainingSession.evaluate(options)": "session.evaluate(data, o)",
    "TrainingSession.explain(options)": "session.explain(data, o)",
    "TrainingSession.export(options)": "session.export(o)",
    "TrainingSession.exportModelForInferencing(options)": "session.exportModelForInferencing(['logits'], o)",
    "TrainingSession.exportWeights(options)": "session.exportWeights('npz', o)",
    "TrainingSession.federated(options)": "session.federated(o)",
    "TrainingSession.findLearningRate(options)": "session.findLearningRate(data, o)",
    "TrainingSession.fit(options)": "session.fit(data, o)",
    "TrainingSession.artifacts(options)": "session.artifacts(o)",
    "TrainingSession.generate(options)": "session.generate([1], o).next()",
    "TrainingSession.getContiguousParameters(options)": "session.getContiguousParameters(true, o)",
    "TrainingSession.getContiguousParameters(trainableOnly)": "session.getContiguousParameters(o)",
    "TrainingSession.getParametersSize(trainableOnly)": "session.getParametersSize(o)",
    "TrainingSession.inputMetadata(options)": "session.inputMetadata(o)",
    "TrainingSession.loadAdapter(adapter)": "session.loadAdapter(o)",
    "TrainingSession.loadParametersBuffer(trainableOnly)": "session.loadParametersBuffer(new Float32Array(432), o)",
    "TrainingSession.loadWeights(strict)": "session.loadWeights(new Uint8Array(1), o)",
    "TrainingSession.mergeAdapter(options)": "session.mergeAdapter(o)",
    "TrainingSession.outputMetadata(options)": "session.outputMetadata(o)",
    "TrainingSession.parameterNames(options)": "session.parameterNames(o)",
    "TrainingSession.predict(options)": "session.predict(data, o)",
    "TrainingSession.profile(options)": "session.profile(data, o)",
    "TrainingSession.runEvalStep(options)": "session.runEvalStep(data, o)",
    "TrainingSession.runOptimizerStep(options)": "session.runOptimizerStep(o)",
    "TrainingSession.runTrainStep(options)": "session.runTrainStep(data, o)",
    "TrainingSession.save(options)": "session.save(o)",
    "TrainingSession.saveCheckpoint(options)": "session.saveCheckpoint(o)",
    "addNoise(options)": "addNoise(new Float32Array(2), 1, o)",
    "buildArtifacts(config)": "buildArtifacts(model, o)",
    "buildArtifacts(options)": "buildArtifacts(model, config, o)",
    "inspectModel(config)": "inspectModel(model, o)",
    "inspectModel(sessionOptions)": "inspectModel(model, config, o)",
    "joinFlower(options)": "joinFlower('ws://127.0.0.1:9', session, o)",
    "listFolder(options)": "listFolder([], o)",
    "Dataset.fromCsv(options)": "Dataset.fromCsv('x\\n1', { x: 'x' }, o)",
    "Dataset.fromPreferences(options)": "Dataset.fromPreferences([], { encode: () => [1] }, o)",
    "Dataset.fromText(options)": "Dataset.fromText(['abc'], { encode: () => [1, 2, 3] }, o)",
    "readCsv(options)": "readCsv('x\\n1', { x: 'x' }, o)",
    "readImage(options)": "readImage(new ImageData(2, 2), o)",
    "readImages(options)": "readImages([new ImageData(2, 2)], o)",
    "readObjectStore(source)": "readObjectStore(o).next()",
}
"""How each is called with `o`."""

BASES = {
    "config": "{ loss: 'CrossEntropyLoss', optimizer: 'AdamW' }",
    "trainingOptions": "{ ...files }",
    "adapter": "{ weights: new Uint8Array(1), config: '{}' }",
    "SecureMember.mask(options)": "{ bound: 1 }",
    "joinFlower(options)": "{ train: () => {} }",
    "Dataset.fromPreferences(options)": "{ length: 2, reference: session }",
    "Dataset.fromText(options)": "{ length: 2 }",
    "readImage(options)": "{ width: 2, height: 2 }",
    "readImages(options)": "{ input: 'x', width: 2, height: 2 }",
    "readObjectStore(source)": "{ database: 'a', store: 'b' }",
    "Engine.create(options)": "{ wasm: new Uint8Array(1) }",
}
"""What `o` has besides, by its call, or by the argument's name."""

WITHIN = {
    "accumulate": "{ steps: 2 }",
    "augment": "{ seed: 1 }",
    "checkpoint": "{ store: new CheckpointStore(), name: 'a' }",
    "debug": "{ checkNumerics: true }",
    "earlyStopping": "{ patience: 1 }",
    "ema": "{ decay: 0.9 }",
    "externalData": "[{ path: 'a', data: new Uint8Array(1) }]",
    "groups": "[{ parameters: ['fc1.*'] }]",
    "limits": "{ nodes: 1000 }",
    "head": "{ classes: 3 }",
    "lora": "{ rank: 2 }",
    "loss": "{ type: 'CrossEntropyLoss' }",
    "metrics": "[{ type: 'topK' }]",
    "optimizer": "{ type: 'AdamW' }",
    "sampleWeight": "{ name: 'w' }",
    "schedule": "{ type: 'Cosine', learningRate: 0.1, total: 4 }",
}
"""Options within options, as the misspelt name is added to them."""

KINDS = {
    "TrainingSession.createFromModel(config).loss": ["ignoreIndex"],
    "TrainingSession.createFromModel(config).optimizer": ["weightDecay"],
    "TrainingSession.createFromModel(config).optimizer.groups[]": ["weightDecay"],
    "TrainingSession.fit(options).metrics[]": ["k"],
    "TrainingSession.fit(options).schedule": ["learningRate"],
}
"""Settings whose names depend on a `type`, which TypeDoc does not write out."""

EXEMPT = (
    # Pages set what onnxruntime-web's GPU providers have; all providers come down to the kernels on the CPU.
    r"\.executionProviders\[\]$",
    # What rounds give.
    r"^averageUpdates\(updates\)",
    # Steps that datasets fit; they are checked by field.
    r"^Dataset\.preprocess\(steps\)",
    # A tensor that a tokenizer gives.
    r"^(Training|Inference)Session\.generate\(prompt\)",
    # Events, which fits make.
    r"^Trainweb\w+\.(add|listener)\(_?event\)",
)

SETUP = """
const model = "/golden/mlp/base.onnx", files = golden("mlp");
const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
const data = {
  x: new Tensor("float32", new Float32Array(80), [8, 10]),
  labels: new Tensor("int64", new BigInt64Array(8), [8]),
};
Object.assign(window, {
  model, files, config, data,
  folder: [new File([await (await fetch(model)).arrayBuffer()], "model.onnx")],
  session: await TrainingSession.createFromModel(model, config),
  state: await CheckpointState.load(files.checkpointState),
  inference: await InferenceSession.create(model),
});
"""


def misspelt(path: str, names: list[str]) -> tuple[str, str, str]:
    """An expression that calls with a misspelt name at a path, that name, and the right one."""
    found = re.fullmatch(r"((?:\w+\.)?\w+\((\w+)\))(.*)", path)
    assert found is not None, path
    call, argument, rest = found.groups()
    right = max(names, key=len)
    wrong = right + right[-1]
    base = BASES.get(call, BASES.get(argument, "{}"))
    # Down to where the name goes: .optimizer.groups[] is o.optimizer = {...}, o.optimizer.groups = [...].
    steps, place = [], "o"
    for name, index in re.findall(r"\.(\w+)(\[\])?", rest):
        steps.append(f"{place}.{name} = {WITHIN[name]};")
        place += f".{name}" + ("[0]" if index else "")
    return f"const o = {base}; {' '.join(steps)} {place}.{wrong} = undefined; await {CALLS[call]};", wrong, right


REACTIVE = """
const isPlain = (value) => value === Object(value) && Object.getPrototypeOf(value) === Object.prototype;
const isData = (value) => Array.isArray(value) || isPlain(value);
const get = (...at) => reactive(Reflect.get(...at));
const reactive = (value) => (isData(value) ? new Proxy(value, { get }) : value);
Object.assign(window, { reactive });
"""
"""Arrays and objects as Vue's reactive() gives them: proxies all the way down."""

VALUES = {
    "accumulate": "{ steps: 2, reduction: 'sum' }",
    "additionalOutputNames": "['logits']",
    "augment": "{ seed: 1, flip: true }",
    "callbacks": "[() => {}]",
    "checkpoint": "{ store: new CheckpointStore(), name: `a${Math.random()}` }",
    "classes": "{ x: ['1', '2'] }",
    "listFolder(options) classes": "['a']",
    "Dataset.split(options) stratify": "'labels'",
    "columns": "{ labels: [1] }",
    "debug": "{ checkNumerics: true }",
    "dims": "{ batch: 4 }",
    "dtypes": "{ x: 'float64' }",
    "earlyStopping": "{ patience: 1 }",
    "ema": "{ decay: 0.9 }",
    "executionProviders": "['wasm', { name: 'webgpu' }]",
    "externalData": "[{ path: 'a', data: new Uint8Array(1) }]",
    "extra": "{ a: { b: '1' } }",
    "freeDimensionOverrides": "{ batch: 4 }",
    "frozenParams": "['fc1.bias']",
    "inputs": "{ ids: 'x' }",
    "integrity": "{}",
    "length": "[2, 4]",
    "limits": "{ nodes: 1000 }",
    "head": "{ classes: 3 }",
    "lora": "{ rank: 2, targetModules: ['fc1'] }",
    "loss": "{ type: 'CrossEntropyLoss', weight: [1, 2, 3, 4] }",
    "lossInputNames": "['logits']",
    "mean": "[0.5, 0.5, 0.5]",
    "metrics": "['accuracy', { type: 'topK', k: 1 }]",
    "missing": "{ x: 1 }",
    "optimizer": "{ type: 'AdamW', groups: [{ parameters: ['fc1.*'], weightDecay: 0 }] }",
    "outputs": "['logits']",
    "padded": "['x']",
    "preferredOutputLocation": "{ logits: 'cpu' }",
    "reference": "session",
    "requiresGrad": "['fc1.weight']",
    "sampleWeight": "{ name: 'w', of: 'rows' }",
    "schedule": "{ type: 'Cosine', learningRate: 0.1, total: 4 }",
    "std": "[0.5, 0.5, 0.5]",
    "stop": "['a']",
    "stopGradient": "['logits']",
    "tokenizer": "{ encode: () => [1], decode: () => 'a' }",
    "validationData": "{ x: data.x, labels: [0, 1, 2, 0, 1, 2, 0, 1] }",
    "weights": "new Uint8Array(1)",
}
"""A value of each option that is an array or an object, by its name, or by its call and name."""

POSITIONS = {
    "TrainingSession.prepare(shapes)": "await session.prepare(reactive({ x: [4, 10], labels: [4] }));",
    "exportModelForInferencing": "await session.exportModelForInferencing(reactive(['logits']));",
    "fit(rows)": "await session.fit(reactive([{ x: Array(10).fill(1), labels: 1 }]));",
    "fit(columns)": "await session.fit(reactive({ x: [Array(10).fill(1)], labels: [1] }));",
    "predict": "await session.predict(reactive({ x: [Array(10).fill(1)] }), reactive({ outputs: ['logits'] }));",
    "runTrainStep": "await session.runTrainStep(reactive({ ...data }), reactive([session.trainingOutputNames[0]]));",
    "runTrainSteps": "await session.runTrainSteps(reactive([data, data]));",
    "explain": "await session.explain(reactive({ ...data }));",
    "readCsv": "await readCsv('x,y\\n1,2', reactive({ x: ['x', 'y'] }));",
    "concat": "new Dataset({ a: [1], b: [2] }).concat('x', reactive(['a', 'b']));",
    "preprocess": "const d = new Dataset({ a: [1] }); d.preprocess(reactive(d.standardize('a').preprocessing));",
    "create": "await (await TrainingSession.create(reactive({ ...files }))).release();",
    "runTrainStep's fetches": "await session.runTrainStep({ ...data }, reactive(session.trainingOutputNames));",
    "averageUpdates": "averageUpdates(Float32Array.of(0), reactive([{ delta: Float32Array.of(1), examples: 1 }]));",
}
"""Calls whose arguments are arrays or objects."""


def test_state_of_frameworks_is_taken_as_options(browser: Browser, plain_site: Site) -> None:
    composites = {
        path: {*names, *({"loss", "optimizer"} if path.endswith("(config)") else ())}
        for path, names in Description().composites().items()
        if path in CALLS
    }
    unknown = {name for names in composites.values() for name in names} - VALUES.keys()
    assert not unknown, unknown
    faults = {}
    with open_js_page(browser, plain_site, (r".*",)) as page:
        page.run(SETUP + REACTIVE)
        for path, names in composites.items():
            argument = path[path.index("(") + 1 : -1]
            base = BASES.get(path, BASES.get(argument, "{}"))
            for name in sorted(names):
                value = VALUES.get(f"{path} {name}", VALUES[name])
                outcome = page.run(
                    f"""const told = async (wrap) => {{
                      const o = wrap({{ ...{base}, {name}: {value} }});
                      try {{
                        await (await {CALLS[path]})?.release?.();
                        return null;
                      }} catch (error) {{
                        return `${{error.name}}: ${{error.message}}`.replace(/a0\\.\\d+/g, "");
                      }}
                    }};
                    const found = await told(reactive);
                    return found === null ? null : [found, await told((value) => value)];"""
                )
                if outcome is not None and outcome[0] != outcome[1]:
                    faults[f"{path}.{name}"] = outcome
        for name, code in POSITIONS.items():
            if (error := page.run(f"return failure(async () => {{ {code} }});")) is not None:
                faults[name] = error
        page.run("await session.release(); await state.release(); await inference.release();")
    assert not faults, faults


@pytest.fixture(scope="module")
def paths() -> dict[str, list[str]]:
    found = Description().options() | KINDS
    return {path: names for path, names in found.items() if not any(re.search(e, path) for e in EXEMPT)}


def test_every_call_with_options_is_swept(paths: dict[str, list[str]]) -> None:
    calls = {path[: path.index(")") + 1] for path in paths}
    assert calls == set(CALLS)


def test_no_misspelt_option_is_ignored(browser: Browser, plain_site: Site, paths: dict[str, list[str]]) -> None:
    with open_js_page(browser, plain_site) as page:
        page.run(SETUP)
        wrong = {path: fault for path, names in paths.items() if (fault := fault_of(page, path, names))}
        page.run("await session.release(); await state.release(); await inference.release();")
    assert not wrong, wrong


def fault_of(page: JsPage, path: str, names: list[str]) -> Any:
    """Null where the error is the right one."""
    body, wrong, right = misspelt(path, names)
    error = page.run(f"return failure(async () => {{ {body} }});")
    if error is None:
        return "accepted"
    is_right = (
        error["name"] in ("TypeError", "ModelError") and f"'{wrong}'" in error["message"] and right in error["message"]
    )
    return None if is_right else [error["name"], error["message"]]


LONGEST = 6000
"""Characters of any message: room for one whose middle is left out."""
HUGE = 30_000


def test_no_message_is_longer_than_can_be_read(browser: Browser, plain_site: Site, paths: dict[str, list[str]]) -> None:
    """A name and a value of tens of thousands of characters in the place of each option of each call."""
    long, seen = [], 0
    # Some are URLs, which the server does not take.
    with open_js_page(browser, plain_site, (r"status of 4",)) as page:
        page.run(SETUP)
        page.run("window.huge = 'a\\n\"\\'\\u{1f600}'.repeat(size);", size=HUGE // 6)
        for path, names in paths.items():
            if not path.endswith(")"):
                continue
            call, argument = path, path[path.index("(") + 1 : -1]
            base = BASES.get(call, BASES.get(argument, "{}"))
            lengths = page.run(
                f"""const messages = [];
                for (const [name, value] of [[huge, 1], ...names.map((name) => [name, huge])]) {{
                  const o = {base};
                  o[name] = value;
                  try {{
                    const made = await {CALLS[call]};
                    await made?.release?.();
                  }} catch (error) {{
                    messages.push([name.slice(0, 40), error.message.length, error.message.slice(0, 200)]);
                  }}
                }}
                return messages;""",
                names=names,
            )
            long += [(path, *one) for one in lengths if one[1] > LONGEST]
            seen += len(lengths)
        page.run("await session.release(); await state.release(); await inference.release();")
    assert not long, long
    assert seen > 2 * len(CALLS)
