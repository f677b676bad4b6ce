"""The demo of voices: an adapter learns beside a language model, in Chromium, against onnx's reference evaluator."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from playwright.sync_api import Browser, Page, expect

from .conftest import axe_violations, require_built, silent_page
from .server import ROOT, Site

# isort: split
# In scripts/, which conftest puts on the path.
from demo import PHONE, build_voice_page, serve

READY_MS = 240_000
MODEL = ROOT / "web" / "demo" / "voice" / "model"
#: Of PEFT and tokenizers (scripts/record_voice.py).
RECORDED = json.loads((ROOT / "tests" / "golden" / "voice" / "peft.json").read_text())
PREFIX = "base_model.model."
FILES = ("adapter_model.safetensors", "adapter_config.json")
COMPARED = 12
LEARNED = re.compile(r"It has learned\. Pass (\d+) was the best, and stays\.")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    require_built(ROOT / "dist" / "npm" / "index.js")
    build_voice_page()
    site = serve(isolated=False)
    yield site
    site.close()


@pytest.fixture(scope="module")
def requests() -> list[str]:
    """Addresses that the page asked for before its button was clicked."""
    return []


@pytest.fixture(scope="module")
def page(browser: Browser, site: Site, requests: list[str]) -> Iterator[Page]:
    """The page without isolation, with the small model."""
    with silent_page(browser, READY_MS) as page:
        page.on("request", lambda r: requests.append(r.url))
        page.goto(site.url("/voice/index.html"))
        page.wait_for_function("document.querySelector('#text').value !== ''")
        before = list(requests)
        page.locator("#temperature").fill("0")
        page.click("#load")
        wait_until_free(page)
        requests[:] = before
        yield page


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Tensors by name: a length, a header of JSON, and the data (the format's description)."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    types = {"F16": np.float16, "F32": np.float32}
    return {
        name: np.frombuffer(
            data[8 + size + one["data_offsets"][0] : 8 + size + one["data_offsets"][1]], types[one["dtype"]]
        )
        .reshape(one["shape"])
        .astype(np.float32)
        for name, one in header.items()
    }


def merged(adapter: Path | None) -> onnx.ModelProto:
    """The model with its weights, to which the product of each pair of matrices was added: W + B A alpha / r."""
    weights = read_safetensors(MODEL / "model.safetensors")
    if adapter is not None:
        pairs = read_safetensors(adapter)
        scale = RECORDED["config"]["lora_alpha"] / RECORDED["config"]["r"]
        for name in [name for name in pairs if ".lora_A." in name]:
            module = name.removeprefix(PREFIX).replace(".lora_A", "")
            weights[module] = weights[module] + scale * pairs[name.replace("lora_A", "lora_B")] @ pairs[name]
    model = onnx.load(MODEL / "model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = weights[tensor.name].tobytes()
    return model


@cache
def vocabulary() -> dict[int, str]:
    """Tokens by id, with the signs of byte pairs for spaces and line feeds replaced."""
    found: dict[str, int] = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    return {k: token.replace("\u0120", " ").replace("\u010a", "\n") for token, k in found.items()}


def continued(model: onnx.ModelProto, count: int = COMPARED) -> str:
    """The prompt with the likeliest tokens after it."""
    evaluator = ReferenceEvaluator(model)
    ids = list(RECORDED["prompt"]["ids"])
    for _ in range(count):
        given = np.array([ids])
        (logits,) = evaluator.run(["logits"], {"input_ids": given, "attention_mask": np.ones_like(given)})
        ids.append(int(np.asarray(logits)[0, -1].argmax()))
    return "".join(vocabulary()[k] for k in ids)


def wait_until_free(page: Page) -> None:
    """Wait until the page has done all that it was asked for."""
    expect(page.locator("#write:enabled")).to_have_text("Write", timeout=READY_MS)


def train(page: Page, passes: int) -> None:
    page.fill("#passes", str(passes))
    page.click("#train")
    expect(page.locator("#training-status")).to_have_text(LEARNED, timeout=READY_MS)
    wait_until_free(page)


def save(page: Page, folder: Path) -> list[Path]:
    for button, name in zip(("#save", "#save-config"), FILES, strict=True):
        with page.expect_download() as download:
            page.click(button)
        assert download.value.suggested_filename == name
        download.value.save_as(folder / name)
    return [folder / name for name in FILES]


def text_of(page: Page, pane: str) -> str:
    return page.locator(pane).text_content() or ""


def test_it_says_what_it_takes_before_it_takes_it(page: Page, requests: list[str]) -> None:
    """Neither the model nor trainweb's files are fetched before a click, and the sizes are true."""
    assert [url for url in requests if re.search(r"/model/|wasm|snapshot|python", url)] == []
    megabytes = sum(path.stat().st_size for path in MODEL.iterdir()) / 1e6
    expect(page.locator("#takes")).to_contain_text(f"The small model takes {megabytes:.1f} MB to download")
    expect(page.locator("#needs")).to_have_text(
        re.compile(
            r"Training takes at most \d+ (s|min) for \d+ steps on this machine\. The page takes some \d+ MB of memory\."
        )
    )
    expect(page.locator("#save")).to_be_disabled()


def test_the_voice_is_learned_beside_the_model(page: Page, tmp_path: Path) -> None:
    base = continued(merged(None))
    assert base.startswith(RECORDED["prompt"]["text"])
    assert text_of(page, "#before").startswith(base)
    train(page, 8)
    adapter, config = save(page, tmp_path)
    found = json.loads(config.read_text())
    assert {name: list(value.shape) for name, value in read_safetensors(adapter).items()} == RECORDED["shapes"]
    assert (found["r"], found["lora_alpha"]) == (RECORDED["config"]["r"], RECORDED["config"]["lora_alpha"])
    assert found["peft_type"] == "LORA"
    # PEFT's names of tensors are those of the adapted modules.
    assert {f"{PREFIX}{module}.lora_A.weight" for module in found["target_modules"]} < RECORDED["shapes"].keys()

    after = continued(merged(adapter))
    assert after != base
    # The text before is written anew, without the adapter.
    for prompt in ("Tuesday.", RECORDED["prompt"]["text"]):
        page.fill("#prompt", prompt)
        page.click("#write")
        wait_until_free(page)
    assert text_of(page, "#before").startswith(base)
    assert text_of(page, "#after").startswith(after)
    assert float(page.inner_text("#loss")) < 2.5


def test_another_session_goes_on_with_the_adapter(page: Page, tmp_path: Path) -> None:
    after = text_of(page, "#after")
    files = save(page, tmp_path)
    page.set_input_files("#folder", MODEL)
    expect(page.locator("#takes")).to_contain_text("model is read from your disk: 0.7 MB.")
    page.click("#load")
    expect(page.locator("#status")).to_have_text("Ready: model.", timeout=READY_MS)
    wait_until_free(page)
    expect(page.locator("#save")).to_be_disabled()
    assert text_of(page, "#after") == ""
    page.set_input_files("#resume", files[0])
    expect(page.locator("#alert")).to_contain_text("An adapter has two files")
    page.set_input_files("#resume", files)
    expect(page.locator("#save")).to_be_enabled(timeout=READY_MS)
    assert text_of(page, "#after") == after


def test_training_stops(page: Page) -> None:
    page.fill("#passes", "500")
    page.click("#train")
    page.wait_for_function(
        "parseInt(document.querySelector('#step').textContent) > 3 && !document.querySelector('#train').disabled"
    )
    expect(page.locator("#train")).to_have_text("Stop")
    page.click("#train")
    expect(page.locator("#training-status")).to_have_text("Stopped.", timeout=READY_MS)
    wait_until_free(page)
    assert int(page.inner_text("#step").replace(",", "")) < 500 * 13


def test_writing_stops_and_repeats(page: Page) -> None:
    """The text of another beginning ends where the button was pressed; whole, it is the model's."""
    page.fill("#prompt", "Tuesday.")
    page.evaluate("""() => {
        const [before, write] = ["before", "write"].map((id) => document.getElementById(id));
        const observer = new MutationObserver(() => {
            if (before.textContent.length > "Tuesday.".length && write.textContent === "Stop") {
                observer.disconnect();
                write.click();
            }
        });
        observer.observe(before, { childList: true });
        write.click();
    }""")
    wait_until_free(page)
    part = text_of(page, "#before")
    page.click("#write")
    wait_until_free(page)
    whole = text_of(page, "#before")
    assert whole.startswith(part)
    assert len(whole) > len(part)


def test_a_text_that_is_too_short_is_refused(page: Page) -> None:
    text = page.input_value("#text")
    page.fill("#text", "A short one.")
    page.click("#train")
    expect(page.locator("#alert")).to_have_text(
        re.compile(r"The text has \d+ tokens\. This model needs more than 256\.")
    )
    page.fill("#text", text)


def test_files_are_dropped(page: Page) -> None:
    """A text on its card, and folders on the model's: of files with one name, those near the outermost graph count."""
    page.evaluate("""() => {
        const drop = (id, data) => {
            const event = new DragEvent("drop", { bubbles: true, cancelable: true });
            Object.defineProperty(event, "dataTransfer", { value: data });
            document.getElementById(id).dispatchEvent(event);
        };
        const text = new DataTransfer();
        text.items.add(new File(["A dropped text."], "text.txt"));
        drop("text", text);
        const fileOf = (name, text = "{}") => ({ name, isFile: true, file: (take) => take(new File([text], name)) });
        const folderOf = (name, ...inner) => ({ name, isFile: false, inner });
        const placed = (entry, above = "") => {
            entry.fullPath = `${above}/${entry.name}`;
            const portions = [(entry.inner ?? []).slice(0, 1), (entry.inner ?? []).slice(1), []];
            entry.createReader = () => ({ readEntries: (take) => take(portions.shift()) });
            (entry.inner ?? []).forEach((one) => placed(one, entry.fullPath));
            return entry;
        };
        const droppedOn = (folder) => () => drop("load", { items: [{ webkitGetAsEntry: () => placed(folder) }] });
        const worse = ["tokenizer.json", "config.json", "model.onnx"].map((name) => fileOf(name, "no JSON"));
        const graph = folderOf("onnx", fileOf("model.onnx"), fileOf("config.json", '{ "n_layer": 2, "n_embd": 8 }'));
        window.dropped = droppedOn(folderOf(
            "mine", folderOf(".git", fileOf("other.onnx")), folderOf("runs", folderOf("checkpoint-1", ...worse)),
            fileOf("config.json", "no JSON"), graph, fileOf("tokenizer.json"),
        ));
        const many = Array.from({ length: 1001 }, (_, k) => fileOf(`${k}.txt`));
        window.droppedMany = droppedOn(folderOf("home", ...many));
        const [a, b] = ["a", "b"].map((name) => folderOf(name, fileOf("model.onnx")));
        window.droppedTwo = droppedOn(folderOf("models", a, b));
    }""")
    expect(page.locator("#text")).to_have_value("A dropped text.")
    page.wait_for_function("!document.querySelector('#load').disabled")
    page.evaluate("dropped()")
    expect(page.locator("#takes")).to_contain_text("mine is read from your disk")
    expect(page.locator("#takes")).not_to_contain_text("or more.")
    page.evaluate("droppedMany()")
    expect(page.locator("#alert")).to_have_text("There are more than 1000 files: choose the folder of a model.")
    page.evaluate("droppedTwo()")
    expect(page.locator("#alert")).to_have_text(
        "There are 2 models, models/a/model.onnx and models/b/model.onnx: choose the folder of one."
    )


def test_memory_and_time_are_told_by_the_size_of_the_model(page: Page) -> None:
    """Chromium took 490 to 570 MB beside the weights for the layers of SmolLM2-135M, and 20 s of processor time.

    The page measures how fast it is where it runs. Here every reading of the clock is later by a set time.
    """
    page.evaluate("() => { let time = 0; performance.now = () => (time += window.tick); window.tick = 5; }")
    config = {"num_hidden_layers": 30, "hidden_size": 576}
    model = [("model.onnx", b""), ("model.onnx_data", bytes(7_000_000)), TOKENIZER]
    page.set_input_files("#files", payloads([*model, ("config.json", json.dumps(config).encode())]))
    told = page.locator("#takes")
    expect(told).to_have_text(re.compile(r"model\.onnx is read from your disk: 7\.0 MB\..* until the model writes\."))
    memory, seconds = map(int, re.findall(r"some (\d+) (?:MB|s)", told.inner_text()))
    assert 490 < memory - 7 < 570
    assert 15 < seconds < 25
    page.evaluate("() => { window.tick = 50; }")
    page.set_input_files("#files", payloads(model))
    expect(told).to_contain_text("or more.")
    page.set_input_files("#files", payloads([*model, ("config.json", json.dumps(config).encode())]))
    expect(told).to_contain_text("and some 3 min until the model writes.")
    page.evaluate("() => { delete performance.now; }")


TOKENIZER = ("tokenizer.json", (MODEL / "tokenizer.json").read_bytes())
REFUSED: dict[str, tuple[list[tuple[str, bytes]], str]] = {
    "text": (
        [("notes.txt", b"notes")],
        "There is no .onnx file among notes.txt; a model needs model.onnx, its weights and tokenizer.json.",
    ),
    "no tokenizer": (
        [("model.onnx", b"")],
        "There is no tokenizer.json beside model.onnx or in a folder above it; "
        "a model needs model.onnx, its weights and tokenizer.json.",
    ),
    "no JSON": ([("model.onnx", b""), ("tokenizer.json", b"{")], "tokenizer.json is not a JSON object."),
    "null": (
        [("model.onnx", b""), ("tokenizer.json", b"{}"), ("config.json", b"null")],
        "config.json is not a JSON object.",
    ),
    "two": (
        [("a.onnx", b""), ("b.onnx", b""), TOKENIZER],
        "There are 2 .onnx files, and none is named model.onnx: choose one model.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_no_model_are_told_in_a_sentence(page: Page, name: str) -> None:
    files, told = REFUSED[name]
    page.set_input_files("#files", payloads(files))
    expect(page.locator("#alert")).to_have_text(told)


def payloads(files: list[tuple[str, bytes]]) -> list[Any]:
    return [{"name": name, "mimeType": "application/octet-stream", "buffer": data} for name, data in files]


UNFIT = {
    "no model": (b"this is not a model", [TOKENIZER], "model.onnx cannot be taught here: "),
    "no language": ((ROOT / "docs" / "first.onnx").read_bytes(), [TOKENIZER], "model.onnx cannot be taught here: "),
    "no tokenizer": (b"", [("tokenizer.json", b"{}")], "tokenizer.json is no tokenizer that this page reads: "),
    "pictures": (
        (ROOT / "examples" / "models" / "sentences.onnx").read_bytes(),
        [TOKENIZER],
        "model.onnx takes words, but this page teaches models that take input_ids",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_models_that_do_not_fit_are_told(page: Page, name: str) -> None:
    """Without weights in the file too."""
    model, others, told = UNFIT[name]
    page.set_input_files("#files", payloads([("model.onnx", model), *others]))
    expect(page.locator("#takes")).to_contain_text("model.onnx is read from your disk")
    page.click("#load")
    expect(page.locator("#alert")).to_contain_text(told, timeout=READY_MS)
    expect(page.locator("#status")).to_have_text("model.onnx could not be loaded.")
    expect(page.locator("#train")).to_be_disabled()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    assert axe_violations(page) == []


def test_nothing_is_wider_than_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    # Curves follow the width with the next frames.
    page.wait_for_function(f"document.documentElement.scrollWidth <= {PHONE[0]}")
