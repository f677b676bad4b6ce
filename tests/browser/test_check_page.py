"""The page "Does my model train?": what it says of a file, what it measures, and the code it gives."""

import json
import re
import struct
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from playwright.sync_api import Browser, Page, expect
from tests.python.test_check import map_of_scores, model
from tests.zoo.recording import load

from trainweb.artifacts import LossType
from trainweb.model.graph import Tensor
from trainweb.model.reader import read_model
from trainweb.model.safetensors import write_safetensors

from .conftest import axe_violations, require_built, watched_page
from .server import ROOT, Site

READY_MS = 120_000
PAGE = ROOT / "site" / "pages" / "check"
ZOO = {"mlp": "CrossEntropyLoss", "nano_gpt": "CrossEntropyLoss", "autoencoder": "MSELoss"}
"""Models, and the loss that the page takes by itself."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The page with the package's folder beside it."""
    require_built(ROOT / "dist" / "npm" / "index.js")
    folders = {"check": PAGE, "trainweb": ROOT / "dist" / "npm", "examples": ROOT / "examples"}
    site = Site(mounts={f"/any/folder/{name}/": (folder,) for name, folder in folders.items()})
    yield site
    site.close()


@pytest.fixture(scope="module")
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """The page, which must send nothing, fetch from its own server alone, and log no error."""
    page, errors = watched_page(browser)
    page.set_default_timeout(READY_MS)
    sent: list[str] = []
    page.on(
        "request",
        lambda r: (
            sent.append(f"{r.method} {r.url}")
            if r.method != "GET" or not r.url.startswith((site.origin, "blob:", "data:"))
            else None
        ),
    )
    page.goto(site.url("/any/folder/check/index.html"))
    yield page
    page.context.close()
    assert sent == []
    if errors.messages:
        pytest.fail("errors in the page:\n" + "\n".join(errors.messages), pytrace=False)


def give(page: Page, *files: tuple[str, bytes]) -> None:
    """Choose files."""
    payload = [{"name": name, "mimeType": "application/octet-stream", "buffer": data} for name, data in files]
    page.set_input_files("#file", payload)  # type: ignore[arg-type]


def verdict(page: Page, text: str) -> None:
    expect(page.locator("#verdict")).to_have_text(text, timeout=READY_MS)


def exported(name: str) -> bytes:
    """A model of the zoo."""
    return next(iter(load(name).files.values()))


@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo_train_on_random_data(page: Page, name: str) -> None:
    data = exported(name)
    give(page, (f"{name}.onnx", data))
    verdict(page, f"{name}.onnx trains.")
    expect(page.locator("#loss")).to_have_value(ZOO[name])
    expect(page.locator("#costs")).to_contain_text(re.compile(r"Time of a step[\d.e+]+ ms \(median of \d+\)"))
    graph = read_model(data)
    for value in (*graph.inputs, *graph.outputs):
        expect(page.locator("#values")).to_contain_text(value.name)
    counts = re.findall(r"(\w+) (\d+)", page.locator("#operators").inner_text())
    assert sum(int(count) for _, count in counts) == len(graph.nodes)
    page.click("#train")
    expect(page.locator("#course")).to_contain_text("Step 100:", timeout=READY_MS)
    last, first = map(float, re.findall(r"loss ([\d.e-]+), ([\d.e-]+) at first", page.inner_text("#course"))[0])
    assert last < first, "the same batch again and again"
    with page.expect_download() as download:
        page.click("#save")
    trained = onnx.load(download.value.path())
    onnx.checker.check_model(trained)
    assert [value.name for value in trained.graph.output] == [value.name for value in graph.outputs]


def run_code(page: Page, code: str) -> tuple[list[float], int]:
    """Run the lines as a script of the page, in whose folder the files lie: the losses, and the size of the result."""
    lines, size = page.evaluate(
        """async (code) => {
            const lines = [];
            globalThis.tell = (...line) => lines.push(line);
            const script = code.replace("console.log", "tell")
                .replace('"trainweb"', JSON.stringify(new URL("../trainweb/index.js", location.href)))
                + "globalThis.trained = trained; await session.release();";
            await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
            return [lines, trained.length];
        }""",
        code,
    )
    return [loss for _, loss in lines], size


def test_the_code_to_copy_trains_the_model(page: Page, site: Site) -> None:
    data = (ROOT / "docs" / "first.onnx").read_bytes()
    give(page, ('my "first".onnx', data))
    verdict(page, 'my "first".onnx trains.')
    code = page.inner_text("#javascript")
    assert 'createFromModel("my \\"first\\".onnx"' in code
    site.add("/any/folder/check/my%20%22first%22.onnx", data)
    site.add('/any/folder/check/my "first".onnx', data)
    losses, size = run_code(page, code)
    assert len(losses) == 100 and losses[-1] < losses[0] and size > 300
    compile(page.inner_text("#python"), "python", "exec")
    assert "trainweb.TrainingSession.from_model" in page.inner_text("#python")


def test_other_settings_are_tried(page: Page) -> None:
    give(page, ("first.onnx", (ROOT / "docs" / "first.onnx").read_bytes()))
    verdict(page, "first.onnx trains.")
    expect(page.locator("#costs")).to_contain_text("points float32[8, 2]")
    page.fill("#dims input[name=batch]", "5")
    page.select_option("#loss", "MSELoss")
    expect(page.locator("#costs")).to_contain_text("points float32[5, 2]", timeout=READY_MS)
    expect(page.locator("#javascript")).to_contain_text('loss: "MSELoss"')
    page.select_option("#loss", "none: it is the output")
    verdict(page, "first.onnx does not train like this.")
    expect(page.locator("#problems")).to_contain_text("is not a loss yet: name one")
    expect(page.locator("#trial")).to_be_hidden()


def test_a_size_that_is_not_entered_yet_is_of_the_file_before(page: Page) -> None:
    first = (ROOT / "docs" / "first.onnx").read_bytes()
    give(page, ("first.onnx", first))
    verdict(page, "first.onnx trains.")
    page.select_option("#loss", "none: it is the output")
    verdict(page, "first.onnx does not train like this.")
    page.locator("#dims input[name=batch]").press_sequentially("7")
    give(page, ("second.onnx", first))
    verdict(page, "second.onnx trains.")
    expect(page.locator("#costs")).to_contain_text("points float32[8, 2]", timeout=READY_MS)


def test_a_map_of_scores_has_its_classes_in_axis_1(page: Page, site: Site) -> None:
    data = map_of_scores("n", 5, "h", "w")
    give(page, ("map.onnx", data))
    verdict(page, "map.onnx trains.")
    expect(page.locator("#loss")).to_have_value("CrossEntropyLoss along axis 1")
    for name, size in {"h": "4", "w": "6"}.items():
        page.fill(f"#dims input[name={name}]", size)
    page.press("#dims input[name=w]", "Enter")
    expect(page.locator("#costs")).to_contain_text("labels int64[8, 4, 6]", timeout=READY_MS)
    site.add("/any/folder/check/map.onnx", data)
    losses, _ = run_code(page, page.inner_text("#javascript"))
    assert len(losses) == 100 and abs(losses[0] - np.log(5)) < 1e-6
    page.select_option("#loss", "MSELoss")
    expect(page.locator("#costs")).to_contain_text("float32[8, 5, 4, 6]", timeout=READY_MS)


def unsupported() -> bytes:
    """A model with an operator that nobody has."""
    return model(("MatMul", ["x", "w"], ["a"]), ("Bogus", ["a"], ["y"]))


def test_what_is_missing_is_said(page: Page) -> None:
    give(page, ("bogus.onnx", unsupported()))
    verdict(page, "bogus.onnx does not train like this.")
    expect(page.locator("#problems")).to_contain_text("Bogus cannot be executed (Bogus_1)")
    expect(page.locator("#trial")).to_be_hidden()
    # A sentence with its reason, and nothing empty below it.
    broken = {
        b"# Readme\n": "the model is not valid ONNX",
        b"<!doctype html>404": "It looks like HTML",
        unsupported()[:40]: "are left",
    }
    for data, reason in broken.items():
        give(page, ("README.md", data))
        verdict(page, "README.md is not a whole ONNX file.")
        expect(page.locator("#reason")).to_contain_text(reason, ignore_case=True)
        expect(page.locator("#reason")).to_contain_text("Download or export it again.")
        for name in ("#report", "#settings", "#trial"):
            expect(page.locator(name)).to_be_hidden()
    give(page, ("bogus.onnx", unsupported()))
    verdict(page, "bogus.onnx does not train like this.")
    expect(page.locator("#reason")).to_be_hidden()


def test_a_model_of_ours_trains_on_a_table(page: Page) -> None:
    """Wines, whose first column is the class; another column is a wrong one, which is said."""
    page.get_by_role("button", name="wine.onnx with wine.csv").click()
    verdict(page, "wine.onnx trains.")
    expect(page.locator("#target")).to_have_value("cultivar", timeout=READY_MS)
    expect(page.locator("#javascript")).to_contain_text('"labels": "cultivar"', timeout=READY_MS)
    code = page.inner_text("#javascript")
    assert '"labels": "cultivar"' in code and 'classes: { "labels": ["A", "B", "C"] }' in code and "zeros" not in code
    losses, _ = run_code(
        page,
        code.replace('"wine.', '"../examples/WHERE/wine.')
        .replace("WHERE/wine.csv", "data/wine.csv")
        .replace("WHERE/wine.onnx", "models/wine.onnx"),
    )
    assert len(losses) == 100 and losses[-1] < 0.1 < losses[0]
    assert 'from_csv("wine.csv", columns' in page.inner_text("#python")
    sizes = page.evaluate("""[...document.querySelectorAll("body *")].filter((one) => one.checkVisibility())
        .map((one) => [parseFloat(getComputedStyle(one).fontSize), one.id])""")
    (largest,) = (name for size, name in sizes if size == max(sizes)[0])
    assert largest == "verdict"
    expect(page.locator("#costs")).to_contain_text("GPU", timeout=READY_MS)
    expect(page.locator("#status")).to_be_empty()
    page.select_option("#target", "ash")
    expect(page.locator("#javascript")).to_contain_text('"labels": "ash"')
    page.select_option("#target", "cultivar")
    page.click("#fit")
    expect(page.locator("#fitted")).to_contain_text("178 rows", timeout=READY_MS)
    training, validation = map(float, re.findall(r"loss (\d+\.\d+)", page.inner_text("#fitted")))
    assert training < 0.2 and validation < np.log(3) / 2
    expect(page.locator("#costs")).to_contain_text(re.compile(r"Kernel memory[\d.]+ [kM]B"))
    disabled = page.eval_on_selector(
        "#loss",
        """(select) => {
            select.value = "MSELoss";
            select.dispatchEvent(new Event("change", { bubbles: true }));
            return document.querySelector("#fit").disabled;
        }""",
    )
    assert disabled, "until the session of the new loss is there"
    page.click("#fit")
    expect(page.locator("#fitted")).not_to_be_empty(timeout=READY_MS)
    give(page, ("first.onnx", (ROOT / "docs" / "first.onnx").read_bytes()), ("a.csv", b"a,b\n1,2\n3,4\n"))
    verdict(page, "first.onnx trains.")
    expect(page.locator("#target")).to_have_value("b", timeout=READY_MS)
    page.click("#fit")
    expect(page.locator("#fitted")).to_have_text("a.csv has 1 columns besides 'b', and 'points' takes 2.")
    give(page, ("a.csv", b"a,b\n1,2\n"))
    expect(page.locator("#verdict")).to_contain_text("Drop the model with it")


def test_every_loss_can_be_chosen(page: Page) -> None:
    give(page, ("first.onnx", (ROOT / "docs" / "first.onnx").read_bytes()))
    verdict(page, "first.onnx trains.")
    options = page.locator("#loss option").all_inner_texts()
    # Preferred answers come in pairs with a reference; the page has rows.
    losses = {loss.name for loss in LossType}
    assert losses.intersection(options) == losses - {"DPOLoss"}


def test_own_classes_replace_the_last_layer(page: Page) -> None:
    give(page, ("first.onnx", (ROOT / "docs" / "first.onnx").read_bytes()))
    verdict(page, "first.onnx trains.")
    page.fill("#classes", "5")
    page.press("#classes", "Enter")
    expect(page.locator("#values")).to_contain_text("[batch, 5]", timeout=READY_MS)
    expect(page.locator("#javascript")).to_contain_text("head: { classes: 5 }")
    sizes = "(names) => names.map((name) => parseFloat(getComputedStyle(document.querySelector(name)).fontSize))"
    largest, *others = page.evaluate(sizes, ["#verdict", "h2", "p.lead", "button", "td"])
    assert largest > 1.5 * max(others), "the verdict is what one came for"


def product() -> bytes:
    """A product with one column."""
    weight = onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in (("x", 3), ("y", 1))]
    graph = onnx.helper.make_graph([node], "one", ends[:1], ends[1:], [weight])
    return bytes(onnx.helper.make_model(graph).SerializeToString())


def test_a_trial_that_fails_is_not_shown_as_running(page: Page) -> None:
    """A table of one row, of which index 1 is none: the report is good, the first step is not."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (int64[n] ids) => (float[n,3] y) { y = Gather (w, ids) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 3), np.float32), "w"))
    page.evaluate("globalThis.drawn = Math.random; Math.random = () => 0")
    try:
        give(page, ("table.onnx", model.SerializeToString()))
        verdict(page, "table.onnx trains.")
        page.evaluate("Math.random = () => 0.7")
        page.select_option("#loss", "MSELoss")
        expect(page.locator("#verdict")).to_contain_text("the index 1", timeout=READY_MS)
        expect(page.locator("#trial")).to_be_hidden()
    finally:
        page.evaluate("Math.random = drawn")


def test_the_file_that_came_last_is_shown(page: Page) -> None:
    """Another one, while the session of the first is still being released."""
    data = product()
    give(page, ("first.onnx", data))
    expect(page.locator("#costs")).to_contain_text("Time of a step", timeout=READY_MS)
    page.evaluate(
        """(bytes) => {
            const input = document.querySelector("#file");
            for (const name of ["second.onnx", "third.onnx"]) {
                const files = new DataTransfer();
                files.items.add(new File([new Uint8Array(bytes)], name));
                input.files = files.files;
                input.dispatchEvent(new Event("change"));
            }
        }""",
        list(data),
    )
    verdict(page, "third.onnx trains.")
    expect(page.locator("#costs")).to_contain_text("Time of a step", timeout=READY_MS)
    verdict(page, "third.onnx trains.")


def test_names_of_a_model_are_text(page: Page) -> None:
    """Text from a file never becomes a part of the page."""
    name = "<img src=x onerror='window.owned = 1'>"
    proto = onnx.load_from_string(model(("MatMul", ["x", "w"], ["y"])))
    node = proto.graph.node[0]
    node.input[0] = proto.graph.input[0].name = name
    node.input[1] = proto.graph.initializer[0].name = name + "w"
    give(page, ("<b>x.onnx", proto.SerializeToString()))
    verdict(page, "<b>x.onnx trains.")
    expect(page.locator("#values")).to_contain_text(name)
    expect(page.locator("#parameters")).to_contain_text(name + "w")
    assert page.evaluate("window.owned ?? document.querySelectorAll('img').length") == 0


def test_weights_beside_the_model_are_given_with_it(page: Page, site: Site) -> None:
    weight = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=weight.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.data")
    proto = onnx.load_from_string(model(("MatMul", ["x", "w"], ["y"])))
    proto.graph.initializer[0].CopyFrom(tensor)
    files = [("weights.data", weight.tobytes()), ("big.onnx", proto.SerializeToString())]
    give(page, *files, ("notes.txt", b"what the model is"))
    verdict(page, "big.onnx trains.")
    expect(page.locator("#parameters")).to_contain_text("weight of a product")
    code = page.inner_text("#javascript")
    assert '{ externalData: ["weights.data"] }' in code
    for name, data in files:
        site.add(f"/any/folder/check/{name}", data)
    losses, _ = run_code(page, code)
    assert len(losses) == 100


def safetensors() -> bytes:
    """A file as Python's side writes it."""
    tensors = {"layer.weight": np.ones((4, 3), np.float32), "ids": np.arange(5)}
    return write_safetensors(Tensor(n, str(a.dtype), a.shape, a.tobytes()) for n, a in tensors.items())


BROKEN: dict[str, Callable[[], bytes]] = {
    "short": lambda: b"\0\0",
    "long header": lambda: struct.pack("<Q", 2**62) + b"{}",
    "no JSON": lambda: struct.pack("<Q", 4) + b"{,,}",
}


def test_safetensors_are_listed_and_told_apart(page: Page) -> None:
    give(page, ("model.safetensors", safetensors()))
    expect(page.locator("#verdict")).to_contain_text("weights without the graph that uses them")
    expect(page.locator("#parameters")).to_contain_text("layer.weight")
    expect(page.locator("#parameters")).to_contain_text("[4, 3]")
    expect(page.locator("#parameter-count")).to_have_text("2 tensors with 17 numbers.")
    for make in BROKEN.values():
        give(page, ("broken.safetensors", make()))
        expect(page.locator("#verdict")).to_contain_text("It is not a safetensors file")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Page, scheme: str) -> None:
    give(page, ("first.onnx", (ROOT / "docs" / "first.onnx").read_bytes()))
    verdict(page, "first.onnx trains.")
    expect(page.locator("#costs")).to_contain_text("Time of a step")
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    found = axe_violations(page)
    assert found == [], json.dumps(found, indent=2)


def test_nothing_is_wider_than_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
