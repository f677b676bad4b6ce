"""`createFromPretrained` of a page and of Node: the folder and tokens of transformers (tests/golden/pretrained)."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from playwright.sync_api import Browser
from tests.python import test_past as PAST
from tests.python.test_pretrained import EXPECTED, FOLDER, with_weights

from .js_session import JsPage, open_js_page
from .server import Site
from .test_node import node

START = """
    const config = { lora: { rank: 2 } };
    const all = async (tokens) => {
      const found = [];
      for await (const { token } of tokens) found.push(token);
      return found;
    };
    const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const entries = Object.entries(given.files);
    const files = entries.map(([name, text]) => new File([bytes(text)], name));
    const only = (...names) => files.filter(({ name }) => names.includes(name));
    const from = async (folder, others = {}) => {
      const session = await TrainingSession.createFromPretrained(folder, { ...config, ...others });
      const found = await all(session.generate(given.ids));
      await session.release();
      return found;
    };
"""
FILES = {path.name: base64.b64encode(path.read_bytes()).decode() for path in FOLDER.iterdir()}
GIVEN: dict[str, Any] = {"ids": EXPECTED["ids"], "files": FILES}


@pytest.fixture(scope="module")
def page(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site, (r"404 \(Not Found\)",)) as js:  # of files that a folder need not have
        yield js


def test_a_folder_at_a_url_as_files_and_as_a_handle(page: JsPage) -> None:
    found = page.run(
        START
        + """
        const root = await navigator.storage.getDirectory();
        const handle = await root.getDirectoryHandle("pretrained", { create: true });
        for (const file of files) {
          const writable = await (await handle.getFileHandle(file.name, { create: true })).createWritable();
          await writable.write(file);
          await writable.close();
        }
        const folders = ["/golden/pretrained/folder", "/golden/pretrained/folder/", files, handle];
        const found = [];
        for (const folder of folders) found.push(await from(folder));
        await root.removeEntry("pretrained", { recursive: true });
        return found;
        """,
        given=GIVEN,
    )
    assert found == [EXPECTED["tokens"]] * 4


def test_external_data_shards_and_another_name(page: JsPage, plain_site: Site, tmp_path: Any) -> None:
    model = with_weights(FOLDER)
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    for name in ("model.onnx", "model.onnx_data"):
        plain_site.add(f"/hub/onnx/{name}", (tmp_path / name).read_bytes())
    for place in ("/hub", "/hub/onnx"):
        plain_site.add(f"{place}/model.safetensors", b"not read")
    plain_site.add("/hub/config.json", (FOLDER / "config.json").read_bytes())
    index = {"weight_map": {"lm_head.weight": "one.safetensors", "model.norm.weight": "one.safetensors"}}
    plain_site.add("/shards/other.onnx", (FOLDER / "model.onnx").read_bytes())
    plain_site.add("/shards/one.safetensors", (FOLDER / "model.safetensors").read_bytes())
    plain_site.add("/shards/model.safetensors.index.json", json.dumps(index))
    plain_site.add("/root/onnx/model.onnx", (FOLDER / "model.onnx").read_bytes())
    plain_site.add("/root/model.safetensors", (FOLDER / "model.safetensors").read_bytes())
    whole = tmp_path / "whole.onnx"
    onnx.save(with_weights(FOLDER), whole)
    plain_site.add("/whole/model.onnx", whole.read_bytes())
    plain_site.add("/whole/model.safetensors", (FOLDER / "model.safetensors").read_bytes())
    found = page.run(
        START
        + """
        const hub = await from("/hub");
        const short = async (folder, others) => {
          const session = await TrainingSession.createFromPretrained(folder, { ...config, ...others });
          const found = await all(session.generate(given.ids, { maxTokens: 9 }));
          await session.release();
          return found;
        };
        const others = [await short("/whole", {}), await short("/root", {})];
        return [hub, await short("/shards", { file: "other.onnx" }), ...others];
        """,
        given=GIVEN,
    )
    assert found == [EXPECTED["tokens"]] * 4


def test_a_folder_of_optimum(page: JsPage, plain_site: Site) -> None:
    """Its graph takes past keys and values, which are no inputs of a session."""
    plain_site.add("/optimum/onnx/model.onnx", (PAST.GOLDEN / "llama.onnx").read_bytes())
    found = page.run(
        """
        const session = await TrainingSession.createFromPretrained("/optimum", { lora: { rank: 2 } });
        const tokens = [];
        for await (const { token } of session.generate(given.prompt, { maxTokens: 24 })) tokens.push(token);
        const inputs = session.trainingInputNames;
        await session.release();
        return [inputs, tokens];
        """,
        given={"prompt": PAST.EXPECTED["llama"]["prompt"]},
    )
    inputs = ["input_ids", "attention_mask", "position_ids", "labels"]
    assert found == [inputs, PAST.EXPECTED["llama"]["tokens"]]


def test_only_files_that_the_graph_refers_to_are_asked_for(page: JsPage, plain_site: Site, tmp_path: Path) -> None:
    """Weights in the graph, in external files of any names, in one of two shards, and in one file."""
    model = with_weights(FOLDER)
    graph = (FOLDER / "model.onnx").read_bytes()
    weights = (FOLDER / "model.safetensors").read_bytes()
    onnx.save(model, tmp_path / "model.onnx")
    (one, *_), others = model.graph.initializer, tmp_path / "others"
    others.mkdir()
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [one.name], value=one))
    model.graph.initializer.remove(one)
    split = {"save_as_external_data": True, "all_tensors_to_one_file": False, "size_threshold": 64}
    onnx.save(model, others / "model.onnx", convert_attribute=True, **split)
    parts = {file.name: file.read_bytes() for file in others.iterdir()}
    index = {"weight_map": {"lm_head.weight": "one.safetensors", "not in the graph": "two.safetensors"}}
    spare = {"model.safetensors": b"not read", "model.onnx_data": b"not read"}
    folders: dict[str, dict[str, Any]] = {
        "own": spare | {"model.onnx": (tmp_path / "model.onnx").read_bytes()},
        "external": spare | parts,
        "shards": {
            "model.onnx": graph,
            "one.safetensors": weights,
            "two.safetensors": b"not read",
            "model.safetensors.index.json": json.dumps(index),
        },
        "one": {"model.onnx": graph, "model.safetensors": weights},
    }
    needed = {
        "own": {"model.onnx"},
        "external": {*parts},
        "shards": {*folders["shards"], "model.safetensors"} - {"two.safetensors"},
        "one": {"model.onnx", "model.safetensors"},
    }
    assert len(parts) > 5
    for folder, files in folders.items():
        for name, data in files.items():
            plain_site.add(f"/asked/{folder}/{name}", data)
        for name in ("config.json", "generation_config.json"):
            plain_site.add(f"/asked/{folder}/{name}", (FOLDER / name).read_bytes())
    plain_site.clear_log()
    found = page.run(
        START
        + """
        const found = [];
        for (const folder of given.folders) found.push(await from(`/asked/${folder}`));
        return found;
        """,
        given=GIVEN | {"folders": list(folders)},
    )
    assert found == [EXPECTED["tokens"]] * 4
    for folder, names in needed.items():
        asked = {path.rpartition("/")[2] for path in plain_site.requests(f"/asked/{folder}/")}
        assert asked == names | {"config.json", "generation_config.json"}, folder


def test_a_session_keeps_options_of_generate(page: JsPage) -> None:
    found = page.run(
        START
        + """
        const decode = (ids) => ids.join(" ");
        const tokenizer = { encode: () => given.ids, decode };
        const session = await TrainingSession.createFromPretrained(files, { ...config, tokenizer });
        const read = async (options) => {
          const found = [];
          for await (const { text } of session.generate("x", options)) found.push(text);
          return found.join("");
        };
        const text = await read({});
        const open = (await all(session.generate(given.ids, { stop: [] }))).length;
        session.generationConfig = { temperature: 1, topK: 4, maxTokens: 20 };
        const drawn = await all(session.generate(given.ids));
        const again = await all(session.generate(given.ids, { temperature: 1, topK: 4, maxTokens: 20 }));
        const greedy = await all(session.generate(given.ids, { temperature: 0, stop: 0 }));
        const fault = await failure(async () => session.generate(given.ids, { temperature: 0, topK: 2 }));
        await session.release();
        return { text, open, drawn, again, greedy, fault: fault.message };
        """,
        given=GIVEN,
    )
    *tokens, end = EXPECTED["tokens"]
    assert end == 0 and found["text"] == " ".join(map(str, tokens))
    assert found["open"] == 24
    assert found["drawn"] == found["again"] != found["greedy"]
    assert found["greedy"] == EXPECTED["tokens"]
    assert "'topK' changes nothing at temperature 0" in found["fault"]


def test_what_a_folder_lacks_is_said(page: JsPage) -> None:
    found = page.run(
        START
        + """
        const wrong = (folder, others = {}) => failure(() => from(folder, others));
        const model = only("model.onnx", "model.safetensors");
        const json = (text) => [...model, new File([text], "generation_config.json")];
        const index = (map) => [
          ...only("model.onnx"), new File([JSON.stringify({ weight_map: map })], "model.safetensors.index.json"),
        ];
        return [
          await wrong("/nothing"),
          await wrong(only("config.json")),
          await wrong(files, { file: "third.onnx" }),
          await wrong(json("{")),
          await wrong(json("[]")),
          await wrong(only("model.onnx")),
          await wrong(3),
          await wrong(index(["a"])),
          await wrong(index("a")),
          await wrong(index({ a: 3 })),
          await wrong(index({ a: "../a" })),
          await wrong(index({ a: "" })),
          await wrong(index({ a: ".." })),
        ].map(({ name, message }) => `${name}: ${message}`);
        """,
        given=GIVEN,
    )
    parts = [
        "ModelError: '/nothing' has no model.onnx or onnx/model.onnx. Export",
        "ModelError: 'The folder' has no model.onnx",
        "has no third.onnx",
        "ModelError: generation_config.json cannot be read as JSON: ",
        "ModelError: generation_config.json cannot be read as JSON: it has no object",
        "ModelError: ",
        "ModelError: source is 3; it must be a folder",
        *["ModelError: 'weight_map' of model.safetensors.index.json must map"] * 6,
    ]
    for message, part in zip(found, parts, strict=True):
        assert part in message


def test_settings_that_are_not_obeyed_are_warned_of(page: JsPage) -> None:
    found = page.run(
        START
        + """
        const settings = { do_sample: true, eos_token_id: [2, 7], top_p: 0.9, repetition_penalty: 1.1, num_beams: 1,
          suppress_tokens: [], sequence_bias: {}, guidance_scale: 1.5, stop_strings: ["x"] };
        const written = new File([JSON.stringify(settings)], "generation_config.json");
        const said = [];
        const { warn } = console;
        console.warn = (...texts) => said.push(texts.join(" "));
        const others = { lora: { rank: 2 } };
        // The settings for generation go before the model's.
        const model = new File([JSON.stringify({ eos_token_id: 3, max_new_tokens: 5 })], "config.json");
        const folder = [...only("model.onnx", "model.safetensors"), model, written];
        const session = await TrainingSession.createFromPretrained(folder, others);
        console.warn = warn;
        await session.release();
        return { said, generation: session.generationConfig };
        """,
        given=GIVEN,
    )
    assert found["generation"] == {"stop": [2, 7], "maxTokens": 5, "temperature": 1, "topK": 50, "topP": 0.9}
    said = " ".join(found["said"])
    assert "generation_config.json has repetition_penalty, guidance_scale, stop_strings, which generate" in said


def test_node_reads_a_folder_and_its_inference_session_generates(tmp_path: Any) -> None:
    onnx.save(with_weights(FOLDER), tmp_path / "whole.onnx")
    code = f"""
    import {{ InferenceSession, TrainingSession }} from "trainweb";
    const all = async (tokens) => {{
      const found = [];
      for await (const {{ token }} of tokens) found.push(token);
      return found;
    }};
    const session = await TrainingSession.createFromPretrained({json.dumps(str(FOLDER))}, {{ lora: {{ rank: 2 }} }});
    const trained = await all(session.generate({EXPECTED["ids"]}));
    const inference = await InferenceSession.create({json.dumps(str(tmp_path / "whole.onnx"))});
    const two = [3, 9].map((maxTokens) => all(inference.generate({EXPECTED["ids"]}, {{ maxTokens, stop: 0 }})));
    console.log(JSON.stringify([trained, ...await Promise.all(two)]));
    """
    tokens = EXPECTED["tokens"]
    assert json.loads(node(code)) == [tokens, tokens[:3], tokens]


def test_adapters_of_a_causal_language_model_say_so(page: JsPage, plain_site: Site) -> None:
    for name, architecture in (("causal", "LlamaForCausalLM"), ("other", "BertForMaskedLM")):
        plain_site.add(f"/{name}/model.onnx", (FOLDER / "model.onnx").read_bytes())
        plain_site.add(f"/{name}/model.safetensors", (FOLDER / "model.safetensors").read_bytes())
        plain_site.add(f"/{name}/config.json", json.dumps({"architectures": [architecture]}).encode())
    found = page.run(
        """const taskOf = async (folder, more) => {
          const session = await TrainingSession.createFromPretrained(folder, { lora: { rank: 2, ...more } });
          const { config } = await session.adapter();
          await session.release();
          return JSON.parse(config).task_type;
        };
        const given = await taskOf("/causal", { taskType: "FEATURE_EXTRACTION" });
        return [await taskOf("/causal"), given, await taskOf("/other")];"""
    )
    assert found == ["CAUSAL_LM", "FEATURE_EXTRACTION", None]
