"""Adapters in a page: PEFT's own losses and numbers (tests/lora), files both ways, switching and merging."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser
from tests.lora.test_lora import RATE, RECORDED, arrays, base_of, truth
from tests.lora.test_refusals import quantized

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.lora import Adapter, inject
from trainweb.lora.adapter import CONFIG_FILE, WEIGHTS_FILE
from trainweb.model.safetensors import read_safetensors

from .js_session import JsPage, from_json, open_js_page, to_json
from .server import Site

OPEN = f"""
    const optimizer = {{ type: "AdamW", epsilon: 1e-8, weightDecay: 0.01, adamMode: 0 }};
    const open = async (lora, more = {{}}) => {{
      const config = {{ loss: "CrossEntropyLoss", optimizer, lora, additionalOutputNames: ["y"] }};
      const s = await TrainingSession.createFromModel(model, config, more);
      await s.setLearningRate({RATE});
      return s;
    }};
    const asBytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const asText = (data) => data.reduce((text, byte) => text + String.fromCharCode(byte), "");
"""


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    for path in RECORDED.rglob("*"):
        if path.is_file():
            plain_site.add(f"/lora/{path.relative_to(RECORDED)}", path.read_bytes())
    with open_js_page(browser, plain_site) as page:
        yield page


def given(name: str, **more: Any) -> dict[str, Any]:
    data = truth(name)
    feeds = {"x": to_json(data["x"]), "labels": to_json(data["labels"])}
    return {"name": name, "model": f"/lora/{base_of(name, 'dynamo').name}", "feeds": feeds, **more}


PLAIN = ["attention", "embedding", "dora", "head", "transposed", "classifier"]
BY_RULES = ["ends", "head-halves", "head-patterns", "tied", "tied-still", "tied-adapted", "tied-expression"]
"""Files of PEFT that are read by its rules for types, names and tied tables."""


@pytest.mark.parametrize("name", PLAIN + BY_RULES)
def test_trains_saves_and_merges_as_peft(js: JsPage, name: str) -> None:
    data = truth(name)
    found = js.run(
        f"""{OPEN}
        const file = async (path) => (await fetch(`/lora/${{name}}.start/${{path}}`)).arrayBuffer();
        const config = new TextDecoder().decode(await file("{CONFIG_FILE}"));
        const weights = new Uint8Array(await file("{WEIGHTS_FILE}"));
        const s = await open({{ adapterConfig: config }}, {{ cache: true }});
        await s.loadAdapter({{ weights, config }});
        const inputs = {{ x: toTensor(feeds.x), labels: toTensor(feeds.labels) }};
        const losses = [];
        for (let k = 0; k < count; k++) losses.push(...await s.runTrainSteps([inputs]));
        const adapter = await s.adapter();
        const merged = await InferenceSession.create(await s.mergeAdapter());
        const {{ y }} = await merged.run({{ x: inputs.x }});
        const names = await s.parameterNames({{ trainableOnly: true }});
        await merged.release();
        await s.release();
        return [losses, asText(adapter.weights), adapter.config, fromTensor(y), names];""",
        **given(name, count=len(data["losses"])),
    )
    losses, weights, config, y, names = found
    np.testing.assert_allclose(losses, data["losses"], rtol=2e-5)
    np.testing.assert_allclose(from_json(y), data["merged"], rtol=1e-3, atol=1e-4)
    # Read by the other language, which tests compare with peft.
    adapter = Adapter.from_bytes(weights.encode("latin-1"), config)
    end = Adapter.load(RECORDED / f"{name}.end")
    expected = {n: a for n, a in arrays(end).items() if not n.endswith(".base_layer.weight")}
    tied = {"lm_head.weight"} if name == "tied-still" else set()
    assert set(arrays(adapter)) == set(expected) == {*names, *tied}
    for key, value in expected.items():
        np.testing.assert_allclose(arrays(adapter)[key], value, rtol=1e-3, atol=2e-5, err_msg=key)
    own, peft = adapter.config.to_peft(), end.config.to_peft()
    assert all(own[key] == peft[key] or sorted(own[key]) == sorted(peft[key]) for key in peft)


def test_settings_make_the_adapter_that_python_makes(js: JsPage) -> None:
    weights, config, frozen = js.run(
        f"""{OPEN}
        const settings = {{ targets: ["q_proj"], rank: 3, alpha: 6, init: "gaussian", useRslora: true, seed: 9 }};
        const s = await open(settings);
        const {{ weights, config }} = await s.adapter();
        const error = await failure(() => s.getGradient("q_proj.weight"));
        await s.release();
        return [asText(weights), config, error.message];""",
        **given("attention"),
    )
    model = RECORDED / "attention.dynamo.onnx"
    expected = inject(model, ["q_proj"], rank=3, alpha=6, init="gaussian", use_rslora=True, seed=9).adapter()
    got = read_safetensors(weights.encode("latin-1"))
    assert {n: t.data for n, t in got.items()} == {n: t.data for n, t in read_safetensors(expected.weights).items()}
    assert config == expected.config_json and "frozen" in frozen


def test_a_page_adapts_all_products_but_the_head(js: JsPage) -> None:
    config, other = js.run(
        f"""{OPEN}
        const configs = [];
        for (const targets of ["all-linear", ["all-linear"]]) {{
          const s = await open({{ targets, rank: 2 }});
          configs.push((await s.adapter()).config);
          await s.release();
        }}
        return configs;""",
        **given("head"),
    )
    assert config == other == inject(base_of("head", "dynamo"), "all-linear", rank=2).adapter().config_json
    assert '"fc2"' in config and '"head"' not in config


def test_adapters_are_switched_without_compiling_again(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const read = async (when) => ({{
          weights: new Uint8Array(await (await fetch(`/lora/attention.${{when}}/{WEIGHTS_FILE}`)).arrayBuffer()),
          config: await (await fetch(`/lora/attention.${{when}}/{CONFIG_FILE}`)).text(),
        }});
        const adapters = [await read("start"), await read("end")];
        const s = await open({{ adapterConfig: adapters[0].config }});
        const inputs = {{ x: toTensor(feeds.x), labels: toTensor(feeds.labels) }};
        const seen = [];
        for (const k of [0, 1, 0]) {{
          await s.loadAdapter(adapters[k]);
          const loss = (await s.runEvalStep(inputs))[s.evalOutputNames[0]].data[0];
          seen.push([loss, (await s.memory()).plans]);
        }}
        await s.release();
        return seen;""",
        **given("attention"),
    )
    assert found[0] == found[2] and found[0][0] != found[1][0] and found[0][1] == found[1][1] > 0
    np.testing.assert_allclose(found[0][0], truth("attention")["losses"][0], rtol=1e-5)


WITH_NAN = """await s.adapter().then((adapter) => {
    const view = new DataView(adapter.weights.buffer, adapter.weights.byteOffset);
    view.setUint32(adapter.weights.length - 4, 0x7fc00000, true);
    return adapter;
  })"""
HEADER = """asBytes(btoa("\\x38\\0\\0\\0\\0\\0\\0\\0" +
    '{"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}}' + "abcd"))"""
WRONG = [
    ("open({ targets: ['q_proj'], rank: 0 })", "ModelError", "lora.rank is 0; it must be an integer >= 1"),
    ("open({ ranks: 2 })", "TypeError", "lora has no setting 'ranks'; did you mean 'rank'?"),
    ("open({ loraAlpha: 16 })", "TypeError", "did you mean 'alpha'?"),
    ("open({ targetModules: ['q_proj'] })", "TypeError", "did you mean 'targets'?"),
    ("open({ targets: ['nobody'] })", "ModelError", "'nobody' is not a module that can be adapted"),
    ("open({ targets: '' })", "ModelError", "'' is not a module that can be adapted"),
    ("open({ targets: 3 })", "ModelError", "lora.targets is 3; it must be a name or regular expression, or a list"),
    ("open({ targets: ['q_proj'] }).then(async (s) => s.loadAdapter(await (await open({})).adapter()))",
     "CheckpointError", "text of its adapter_config.json as 'adapterConfig'"),
    ("open({ adapterConfig: '{}' })", "ModelError", "'peft_type' is None"),
    ("open({ adapterConfig: JSON.stringify({ peft_type: 'PROMPT_TUNING', num_virtual_tokens: 5 }) })", "ModelError",
     "'peft_type' is 'PROMPT_TUNING'; only LORA is supported"),
    ("open({ adapterConfig: '{' })", "CheckpointError", "adapter_config.json is not JSON"),
    ("open({ adapterConfig: '{}', rank: 2 })", "ModelError", "lora.rank is 2; it must be the text of"),
    ("open([])", "ModelError", "lora is []; it must be an object"),
    ("open(null).then((s) => s.adapter())", "SessionError", "This session has no adapters: artifacts have"),
    ("open({}).then((s) => s.loadAdapter({}))", "TypeError", "'adapter' must be an object with 'weights'"),
    ("open({}).then(async (s) => s.loadAdapter({ ...await s.adapter(), weights: new Uint8Array(9) }))",
     "CheckpointError", "safetensors"),
    ("open({ targets: ['q_proj'], alpha: 1e308, rank: 1 })", "ModelError", "float32 must hold alpha / rank"),
    ("open({ targets: ['q'.repeat(100000)] })", "ModelError", "qqq... is not a module that can be adapted"),
    ("open({ adapterConfig: JSON.stringify({ peft_type: 'LORA', r: 2, lora_alpha: 2, init_lora_weights: 'olora' }) })",
     "ModelError", "init_lora_weights = 'olora' is not supported"),
    (f"open({{ targets: ['q_proj'] }}).then((s) => s.loadWeights({HEADER}))", "CheckpointError", "has dtype ['F32']"),
    (f"open({{ targets: ['q_proj'] }}).then(async (s) => s.loadAdapter({WITH_NAN}))",
     "CheckpointError", "'q_proj.lora_B.weight' of the adapter has nan at position 63 of 64"),
]  # fmt: skip


def test_what_is_wrong_is_told(js: JsPage) -> None:
    for body, name, text in WRONG:
        error = js.failure(f"{OPEN} await {body};", **given("attention"))
        assert (error["name"], text in error["message"]) == (name, True), (body, error)
        assert len(error["message"]) < 2500


def test_adapters_of_quantized_weights_and_diverged_ones_are_not_merged(js: JsPage, plain_site: Site) -> None:
    plain_site.add("/lora/quantized.onnx", quantized("nbits", ("m.head",)))
    error = js.failure(
        """const s = await TrainingSession.createFromModel(model, { loss: "MSELoss", lora: { rank: 2 } });
        try { await s.mergeAdapter(); } finally { await s.release(); }""",
        **given("attention") | {"model": "/lora/quantized.onnx"},
    )
    assert error["name"] == "UnsupportedError"
    assert ": m.q_proj (4 bits, MatMulNBits), m.v_proj (4 bits, MatMulNBits). Merge it" in error["message"]
    error = js.failure(
        f"""{OPEN}
        const s = await open({{ targets: ["q_proj"] }});
        await s.updateParameter("q_proj.lora_B.weight", new Tensor("float32", new Float32Array(64).fill(NaN), [8, 8]));
        try {{ await s.mergeAdapter(); }} finally {{ await s.release(); }}""",
        **given("attention"),
    )
    assert error["name"] == "CheckpointError"
    assert "'q_proj.lora_B.weight' of the session has nan at position 0 of 64" in error["message"]


def test_weights_are_the_files_that_python_writes(js: JsPage) -> None:
    files, is_back, errors = js.run(
        f"""{OPEN}
        const s = await open(null);
        const before = (await s.getContiguousParameters(false)).data.join();
        const files = [await s.exportWeights(), await s.exportWeights("npz")];
        const back = [];
        for (const file of files) {{
          await s.loadParametersBuffer(new Float32Array(await s.getParametersSize(false)), false);
          await s.loadWeights(file);
          back.push((await s.getContiguousParameters(false)).data.join() === before);
        }}
        const errors = [];
        for (const action of [
          () => s.exportWeights("h5"), () => s.loadWeights(3), () => s.loadWeights(new Uint8Array(20)),
          () => s.loadWeights(files[0], {{ strict: 3 }}),
        ]) errors.push((await failure(action)).name);
        await s.release();
        return [files.map(asText), back, errors];""",
        **given("attention"),
    )
    built = build_artifacts(RECORDED / "attention.dynamo.onnx", loss="CrossEntropyLoss", optimizer="AdamW")
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    with trainweb.TrainingSession(state, built.training_model) as s:
        assert [f.encode("latin-1") for f in files] == [s.export_weights(), s.export_weights("npz")]
    assert is_back == [True, True] and errors == ["ModelError", "TypeError", "CheckpointError", "TypeError"]


def test_a_session_goes_on_from_each_form_of_its_checkpoint(js: JsPage) -> None:
    """Exactly as one that was not interrupted: losses, adapter and properties."""
    undisturbed, *resumed, lost, errors = js.run(
        f"""{OPEN}
        const inputs = {{ x: toTensor(feeds.x), labels: toTensor(feeds.labels) }};
        const steps = async (s, n) => [...await s.runTrainSteps(Array(n).fill(inputs))];
        const ends = async (s) => {{
          const {{ weights, config }} = await s.adapter();
          const losses = await steps(s, 2);
          return [losses, asText((await s.adapter()).weights), asText(weights), config, await s.getProperty("epoch")];
        }};
        const lora = {{ targets: ["q_proj"], rank: 3, dropout: 0.2 }};
        const s = await open(lora);
        await steps(s, 2);
        await s.addProperty("epoch", 3);
        const store = new CheckpointStore("lora");
        await store.save(s, "run");
        const [file, parameters] = [await s.save(), await s.saveCheckpoint()];
        const found = [await ends(s)];
        for (const checkpoint of [file, new Blob([file]), await store.read("run")]) {{
          const other = await open(lora);
          await steps(other, 1);
          await other.addProperty("mine", 1);
          await other.loadCheckpoint(checkpoint);
          found.push([...await ends(other), (await other.propertyNames()).length]);
          await other.release();
        }}
        await s.loadCheckpoint(parameters);
        const moments = Object.values(await s.getMoments("q_proj.lora_A.weight"));
        found.push([await s.stepCount(), moments.flatMap(({{ data }}) => [...data]).every((number) => number === 0)]);
        const plain = await open(null);
        const errors = [];
        const wrong = [[plain, file], [s, file.slice(0, 900)], [s, new Uint8Array(20)], [s, 3]];
        for (const [session, checkpoint] of wrong) {{
          errors.push(await failure(() => session.loadCheckpoint(checkpoint)));
        }}
        const run = s.fit([inputs], {{ epochs: 50 }});
        errors.push(await failure(() => s.loadCheckpoint(file)));
        run.stop();
        await run;
        await plain.release();
        await s.release();
        return [...found, errors.map(({{ name, message }}) => `${{name}}: ${{message}}`)];""",
        **given("attention"),
    )
    assert resumed == [[*undisturbed, 1]] * 3 and len(set(undisturbed[0])) == 2
    assert undisturbed[1] != undisturbed[2] and lost == [0, True]
    assert errors[0].startswith("CheckpointError: The checkpoint belongs to a session with other parameters")
    assert all(error.startswith("CheckpointError: ") for error in errors[1:3])
    assert errors[3].startswith("TypeError: 'checkpoint' must be") and errors[4].startswith("SessionError: ")


def test_a_checkpoint_of_another_scaling_is_refused_in_each_form(js: JsPage) -> None:
    """The scaling is 8 / 4 there and 4 / 4 here. A cached session knows its own without Python."""
    errors, same, count = js.run(
        f"""{OPEN}
        const inputs = {{ x: toTensor(feeds.x), labels: toTensor(feeds.labels) }};
        const fitted = (s, store) => s.fit([inputs], {{ epochs: 1, checkpoint: {{ store, name: "fit" }} }});
        const lora = (alpha) => ({{ targets: ["q_proj"], rank: 4, alpha }});
        const store = new CheckpointStore("scaling");
        const s = await open(lora(8));
        await s.runTrainSteps([inputs]);
        await store.save(s, "kept");
        const files = [await s.save(), await s.saveCheckpoint(), await store.read("kept")];
        await fitted(s, store);
        await s.release();
        await (await open(lora(4), {{ cache: true }})).release();
        const errors = [];
        let same = true;
        for (const more of [{{}}, {{ cache: true }}]) {{
          const own = await open(lora(4), more);
          await own.runTrainSteps([inputs]);
          const before = asText(await own.save());
          for (const file of files) errors.push(await failure(() => own.loadCheckpoint(file)));
          errors.push(await failure(() => store.load(own, "kept")), await failure(() => fitted(own, store)));
          same &&= asText(await own.save()) === before;
          await own.release();
        }}
        const config = {{ loss: "CrossEntropyLoss", optimizer, lora: lora(4) }};
        const artifacts = await buildArtifacts(model, config);
        const create = (files, checkpointState) =>
          TrainingSession.create({{ ...files, checkpoint: undefined, checkpointState }});
        for (const file of [files[0], files[1], await CheckpointState.load(files[0])]) {{
          errors.push(await failure(() => create(artifacts, file)));
        }}
        const first = await CheckpointState.load(artifacts.checkpoint);
        const shared = await create(artifacts, first);
        const other = await buildArtifacts(model, {{ ...config, lora: lora(8) }});
        errors.push(await failure(() => create(other, first)));
        const {{ length }} = await shared.runTrainSteps([inputs]);
        return [errors.map(({{ name, message }}) => `${{name}}: ${{message}}`), same, length];""",
        **given("attention"),
    )
    text = (
        "CheckpointError: The checkpoint's adapters have the scaling '{}', and this session's adapters have '{}'. "
        "Make the session with the same 'lora': alpha, rank and useRslora."
    )
    assert errors == [text.format(2, 1)] * 13 + [text.format(1, 2)]
    assert same and count == 1


def test_artifacts_have_no_adapters_and_say_who_has(js: JsPage) -> None:
    errors = js.run(
        f"""{OPEN}
        const config = {{ loss: "CrossEntropyLoss", optimizer, lora: {{ targets: ["q_proj"] }} }};
        const s = await TrainingSession.create(await buildArtifacts(model, config));
        const errors = [await failure(() => s.adapter()), await failure(() => s.mergeAdapter())];
        await s.release();
        return errors.map(({{ message }}) => message);""",
        **given("attention"),
    )
    assert len(errors) == 2 and all("with 'lora', then call loadCheckpoint." in e for e in errors)
