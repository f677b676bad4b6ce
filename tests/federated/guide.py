"""The files of docs/federated.md as they stand: two pages and a SuperNode in one run of a Flower server.

    ./build.sh test-federated

Also with statistics that stay with each client, and with adapters. The parameters at the end must be those of
PyTorch's clients with Flower (statistics.npz). Those of adapters must be those of sessions without Flower, which numpy
averages.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from playwright.sync_api import sync_playwright
from tests.browser.conftest import CHROMIUM_FLAGS
from tests.browser.server import ROOT, Site
from tests.federated import norms
from tests.federated.run import PARAMETERS, RUNS_S, STARTS_S, Flower, free_port

import trainweb

LORA = {"rank": 2, "targets": ["0", "3"]}
BRIDGE, TRAINED = "wss://bridge.example", "trained.onnx"
Edits = Sequence[tuple[str, str]]
TRAINED_ONLY: dict[str, Edits] = {
    "server": [("parameter_names()", "parameter_names(True)")],
    "client": [("parameter_names()", "parameter_names(True)"), ('statistics="average"', "")],
    "page": [("federated({ statistics })", "federated()"), ("  statistics,\n", "")],
}
EDITS: dict[str, dict[str, Edits]] = {
    "statistics": {},
    "parameters": TRAINED_ONLY,
    "adapters": {
        "server": [
            *TRAINED_ONLY["server"],
            ('"CrossEntropyLoss"', f'"CrossEntropyLoss", lora={LORA}'),
            ("    session.export", '    session.adapted.adapter(session).save(folder / "adapter")\n    session.export'),
        ],
        "client": [*TRAINED_ONLY["client"], ('"CrossEntropyLoss"', f'"CrossEntropyLoss", lora={LORA}')],
        "page": [*TRAINED_ONLY["page"], ('"CrossEntropyLoss"', f'"CrossEntropyLoss", lora: {json.dumps(LORA)}')],
    },
}
"""What the page says to change, by kind and file."""
PAGE = """<!doctype html><link rel="icon" href="data:,"><title>client</title><script type="module">
import { Tensor } from "/dist/index.js";
window.onunhandledrejection = ({ reason }) => { window.state = String(reason); };
const { x, labels } = await (await fetch(`/files/part${new URLSearchParams(location.search).get("part")}.json`)).json();
const data = { x: new Tensor("float32", x.flat(), [x.length, 3]), labels };
"""


def changed(text: str, edits: Edits) -> str:
    for old, new in edits:
        assert text.count(old) == 1, f"docs/federated.md has {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    return text


def block(language: str, word: str) -> str:
    """The code of the guide that has the word."""
    blocks = re.findall(rf"^```{language}\b.*?\n(.*?)^```$", (ROOT / "docs" / "federated.md").read_text(), re.M | re.S)
    (code,) = (code for code in blocks if word in code)
    return code


def write(kind: str, folder: Path, record: dict[str, np.ndarray]) -> None:
    """The ServerApp's folder, and the clients' rows beside it."""
    for k in range(len(norms.SIZES)):
        rows = {"x": record[f"x{k}"], "labels": record[f"labels{k}"]}
        np.savez(folder.parent / f"part{k}.npz", **rows)
        (folder.parent / f"part{k}.json").write_text(json.dumps({name: array.tolist() for name, array in rows.items()}))
    folder.mkdir()
    onnx.save(norms.model(norms.states(record, 0)), folder / "first.onnx")
    edits = EDITS[kind]
    sizes = [("num_rounds=5", f"num_rounds={norms.ROUNDS}"), ('"epochs": 1', '"epochs": 2')]
    (folder / "server_app.py").write_text(changed(block("python", "ServerApp()"), [*sizes, *edits.get("server", ())]))
    data = ("@client", f'data = dict(np.load("{folder.parent}/part0.npz"))\n\n@client')
    place = ("/path/of/first.onnx", f"{folder}/first.onnx")
    order = ('seed=config["server-round"]', 'seed=config["server-round"], batch_size=8, shuffle=False')
    code = changed(block("python", "@client.train()"), [data, place, order, *edits.get("client", ())])
    (folder / "client_app.py").write_text(code)
    project = [("server_app:client", "client_app:client"), ("/path/of/the/folder", str(folder))]
    (folder / "pyproject.toml").write_text(changed(block("toml", "tool.flwr"), project))


def page_of(kind: str, bridge: str) -> str:
    order = ('seed: config["server-round"]', 'seed: config["server-round"], batchSize: 8, shuffle: false')
    joined = ("  train:", "  onJoin: () => { window.state = 'joined'; },\n  train:")
    places = [('"trainweb"', '"/dist/index.js"'), ("first.onnx", "/files/app/first.onnx"), (BRIDGE, bridge)]
    code = changed(block("js", "joinFlower"), [*places, order, *EDITS[kind].get("page", ()), joined])
    return f"{PAGE}{code}</script>"


def run(python: str, chromium: str, kind: str, folder: Path) -> None:
    """Follow the guide; the ServerApp's folder then has the results."""
    app, count = folder / "app", len(norms.SIZES)
    with ExitStack() as stack:
        flower = Flower(python, folder, stack)
        address = f"127.0.0.1:{flower.port}"
        words = ("--superlink", address, "--insecure", "--port", "0")
        flower.start("bridge", Path(python).name, "-m", "trainweb.flower", *words)
        bridge = flower.wait_for("bridge", r"ws://\S+(?=,)")[0]
        flower.start("node", "flower-supernode", "--insecure", "--superlink", address, "--port", str(free_port()))
        site = Site(isolated=True, mounts={"/dist/": (ROOT / "dist" / "npm",), "/files/": (folder,)})
        stack.callback(site.close)
        site.add("/client.html", page_of(kind, bridge))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        stack.callback(browser.close)
        for part in range(1, count):
            page = browser.new_page()
            page.goto(site.url(f"/client.html?part={part}"))
            page.wait_for_function("window.state", timeout=1000 * STARTS_S)
            assert page.evaluate("window.state") == "joined", page.evaluate("window.state")
        program = Path(python).parent / "flwr"
        subprocess.run([program, "run", ".", "local"], cwd=app, env=flower.environment, check=True)
        deadline, is_over = time.monotonic() + RUNS_S, False
        while not (app / TRAINED).exists():
            if is_over or time.monotonic() > deadline:
                logs = [flower.log(name).read_text()[-3000:] for name in ("superlink", "bridge", "node")]
                raise SystemExit("\n".join(["no result", *logs]))
            is_over = "Finished task" in flower.log("superlink").read_text()
            time.sleep(0.5)


def adapters(record: dict[str, np.ndarray], model: Path) -> dict[str, np.ndarray]:
    """The rounds without Flower: averages in float64 of what native sessions come to."""
    settings = {"loss": "CrossEntropyLoss", "optimizer": "SGD", "learning_rate": norms.RATE, "lora": LORA}
    sessions = [trainweb.TrainingSession.from_model(model, **settings) for _ in norms.SIZES]
    common = sessions[0].get_contiguous_parameters(True)
    for _ in range(norms.ROUNDS):
        learned = []
        for k, session in enumerate(sessions):
            session.federated().round(common, {"x": record[f"x{k}"], "labels": record[f"labels{k}"]}, **norms.OPTIONS)
            learned.append(session.get_contiguous_parameters(True))
        common = np.average(learned, axis=0, weights=norms.SIZES).astype(np.float32)
    sessions[0].load_parameters_buffer(common, True)
    return {f"base_model.model.{name}": sessions[0].get_parameter(name) for name in sessions[0].parameter_names(True)}


def safetensors(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a file of float32 (https://huggingface.co/docs/safetensors)."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    places = {name: (slice(*entry["data_offsets"]), entry["shape"]) for name, entry in header.items()}
    return {name: np.frombuffer(data[start:][at], "<f4").reshape(shape) for name, (at, shape) in places.items()}


def distance(python: str, chromium: str, kind: str) -> float:
    """How far the parameters of a run are from the expected ones."""
    record = norms.recorded()
    folder = Path(tempfile.mkdtemp())
    try:
        write(kind, folder / "app", record)
        run(python, chromium, kind, folder)
        if kind == "adapters":
            actual = safetensors(folder / "app" / "adapter" / "adapter_model.safetensors")
            expected = adapters(record, folder / "app" / "first.onnx")
        else:
            tensors = onnx.load(folder / "app" / TRAINED).graph.initializer
            actual = {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
            expected = norms.states(record, norms.ROUNDS)
            for name in norms.STATISTICS if kind == "parameters" else ():
                del expected[name], actual[name]
        assert set(actual) == set(expected), (set(actual), set(expected))
        return max(float(np.abs(actual[name] - array).max()) for name, array in expected.items())
    finally:
        shutil.rmtree(folder)


def main() -> int:
    for kind in EDITS:
        start = time.monotonic()
        apart = distance(os.environ["TRAINWEB_FLOWER_PYTHON"], os.environ["TRAINWEB_CHROMIUM"], kind)
        print(f"{kind}: two pages and a SuperNode, {apart:.1e} apart, {time.monotonic() - start:.0f} s", flush=True)
        assert apart <= PARAMETERS
    return 0


if __name__ == "__main__":
    sys.exit(main())
