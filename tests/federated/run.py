"""Federated averaging by a Flower server, once with clients in PyTorch and once with pages in Chromium.

    ./build.sh test-federated [--record]

Same parameters at the start, same rows, same SGD. It compares what each client sent and the average of each round, and
the accuracy at the end, and fails where they are apart. `--record` keeps what the clients in PyTorch sent, which
tests/browser/test_js_flower.py replays without Flower. `--native FOLDER` takes their part from a run before.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright
from tests.browser.conftest import CHROMIUM_FLAGS
from tests.browser.server import ROOT, Site
from tests.federated import task

APP = Path(__file__).parent / "app"
RECORDED = Path(__file__).parent / "rounds.npz"
RECORDED_ROUNDS = 2
CLIENTS, ROUNDS = 3, 5
ACCURACY = 0.01
"""By how much the accuracies after the last round may be apart."""
PARAMETERS = 1e-5
"""By how much a parameter may be: rounding differs, and some 300 steps carry it on. 3e-7 were seen."""
STARTS_S, RUNS_S = 120, 2400
CLIENT = """<!doctype html><link rel="icon" href="data:,"><title>client</title><script type="module">
import { joinFlower, Tensor, TrainingSession } from "/dist/index.js";
const part = new URLSearchParams(location.search).get("part");
const bytes = async (kind) => (await fetch(`/task/part${part}.${kind}`)).arrayBuffer();
const labels = new BigInt64Array(await bytes("labels"));
const image = new Tensor("float32", new Float32Array(await bytes("image")), [labels.length, 1, 28, 28]);
const data = { image, labels: new Tensor("int64", labels, [labels.length]) };
const config = { loss: "CrossEntropyLoss", optimizer: "SGD" };
const session = await TrainingSession.createFromModel("/task/model.onnx", config);
const client = session.federated();
window.state = "joining";
await joinFlower(new URLSearchParams(location.search).get("bridge"), session, {
  onJoin: () => { window.state = "joined"; },
  train: async (parameters, { config }) => {
    await session.setLearningRate(config.lr);
    const options = { epochs: config.epochs, batchSize: config["batch-size"], shuffle: false };
    const update = await client.round(parameters, data, options);
    return { ...update, metrics: { loss: update.history.epochs.at(-1).loss } };
  },
  evaluate: async () => {
    const results = await session.runEvalStep(data);
    return { examples: labels.length, metrics: { loss: results[session.evalOutputNames[0]].data[0] } };
  },
}).then(() => { window.state = "left"; }, (error) => { window.state = String(error); });
</script>"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Flower:
    """The processes of a federation, each with a log."""

    def __init__(self, python: str, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self._bin = Path(python).parent
        home = folder / "home"
        (home / ".flwr").mkdir(parents=True)
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        (home / ".flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{address}"\ninsecure = true\n'
        )
        path = f"{self._bin}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "PATH": path,
            "PYTHONPATH": str(ROOT / "py_src"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        self.start("superlink", "flower-superlink", "--insecure", "--port", str(self.port), NO_INSTALLATION)
        self.wait_for("superlink", "Uvicorn running")

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def start(self, name: str, program: str, *arguments: str) -> None:
        handle = self._stack.enter_context(self.log(name).open("w"))
        words = [str(self._bin / program), *arguments]
        process = subprocess.Popen(words, stdout=handle, stderr=subprocess.STDOUT, env=self.environment)
        self._stack.callback(stop, process)

    def wait_for(self, name: str, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + STARTS_S
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log(name).read_text())
            if found:
                return found
            time.sleep(0.2)
        raise SystemExit(f"{name} did not start:\n{self.log(name).read_text()[-2000:]}")

    def run(self, out: Path, evaluate: float) -> None:
        """The server of the app; returns when its results are there."""
        settings = f'folder="{self.folder}" out="{out}" rounds={ROUNDS} evaluate={evaluate}'
        words = [str(self._bin / "flwr"), "run", str(APP), "local", "--run-config", settings]
        subprocess.run(words, env=self.environment, check=True)
        deadline = time.monotonic() + RUNS_S
        while not out.exists():
            if time.monotonic() > deadline:
                raise SystemExit(f"no result in {RUNS_S} s:\n{self.log('superlink').read_text()[-3000:]}")
            time.sleep(0.5)


NO_INSTALLATION = "--disable-runtime-dependency-installation"


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def federation(python: str) -> Iterator[Flower]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        task.write(Path(name))
        yield Flower(python, Path(name), stack)


def run_native(python: str, target: Path) -> None:
    """Three SuperNodes, each with a part of the rows, which train in PyTorch."""
    with federation(python) as flower:
        for part in range(CLIENTS):
            config = f'part={part} folder="{flower.folder}"'
            address = f"127.0.0.1:{flower.port}"
            words = ("--insecure", "--superlink", address, "--port", str(free_port()), "--node-config", config)
            flower.start(f"node{part}", "flower-supernode", *words)
        flower.run(target / "native.json", evaluate=0.0)


def run_pages(python: str, chromium: str, target: Path) -> None:
    """The bridge and three pages."""
    with federation(python) as flower, ExitStack() as stack:
        words = ("--superlink", f"127.0.0.1:{flower.port}", "--insecure", "--port", "0")
        flower.start("bridge", Path(python).name, "-m", "trainweb.flower", *words)
        bridge = flower.wait_for("bridge", r"ws://\S+(?=,)")[0]
        site = Site(isolated=True, mounts={"/dist/": (ROOT / "dist" / "npm",), "/task/": (flower.folder,)})
        stack.callback(site.close)
        site.add("/client.html", CLIENT)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        stack.callback(browser.close)
        pages = [browser.new_page() for _ in range(CLIENTS)]
        for part, page in enumerate(pages):
            page.goto(site.url(f"/client.html?part={part}&bridge={bridge}"))
        for page in pages:
            page.wait_for_function("window.state === 'joined'", timeout=1000 * STARTS_S)
        flower.run(target / "pages.json", evaluate=1.0)
        states = [page.evaluate("window.state") for page in pages]
        assert states == ["joined"] * CLIENTS, states
        # A page that is closed leaves; the remaining ones learn that the bridge is stopped.
        pages[0].close()
        flower.wait_for("bridge", "the page left")


def compare(native: Path, pages: Path) -> dict[str, Any]:
    """The lines to print; a failure where the runs are apart."""
    measured = [json.loads(path.with_suffix(".json").read_text()) for path in (native, pages)]
    accuracies = [[run["server"][str(k)]["accuracy"] for k in range(ROUNDS + 1)] for run in measured]
    with np.load(native.with_suffix(".npz")) as mine, np.load(pages.with_suffix(".npz")) as theirs:
        assert set(mine.files) == set(theirs.files)
        assert len(mine.files) == ROUNDS * (CLIENTS + 1) * len(task.initial())
        apart: dict[str, float] = {}
        for name in mine.files:
            number = name.split("/")[0]
            apart[number] = max(apart.get(number, 0.0), float(np.abs(mine[name] - theirs[name]).max()))
    evaluated = measured[1]["clients"]
    assert sorted(evaluated) == [str(k) for k in range(1, ROUNDS + 1)], "pages evaluate each round"
    report = {"native": accuracies[0], "pages": accuracies[1], "apart": [apart[str(k)] for k in range(1, ROUNDS + 1)]}
    assert abs(accuracies[0][-1] - accuracies[1][-1]) <= ACCURACY, report
    assert accuracies[1][-1] > accuracies[1][0] + 0.5, report
    assert max(apart.values()) <= PARAMETERS, report
    return report


def table(report: Mapping[str, Any]) -> str:
    """Rows of a table: the rounds, accuracies, and the largest difference."""
    lines = ["| after round | PyTorch | pages | largest difference of a parameter |", "|---|---|---|---|"]
    for k in range(ROUNDS + 1):
        apart = "0" if k == 0 else f"{report['apart'][k - 1]:.1e}"
        lines.append(f"| {k} | {100 * report['native'][k]:.2f} % | {100 * report['pages'][k]:.2f} % | {apart} |")
    return "\n".join(lines)


def record(native: Path) -> None:
    """The first rounds, for the replay."""
    with np.load(native.with_suffix(".npz")) as file:
        kept = {name: file[name] for name in file.files if int(name.split("/")[0]) <= RECORDED_ROUNDS}
    np.savez_compressed(RECORDED, **kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--native", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    python, chromium = os.environ["TRAINWEB_FLOWER_PYTHON"], os.environ["TRAINWEB_CHROMIUM"]
    target = ROOT / ".build" / "federated"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("native", "pages"):
        (target / f"{name}.json").unlink(missing_ok=True)
    start = time.monotonic()
    if options.native is None:
        run_native(python, target)
    else:
        for ending in ("json", "npz"):
            shutil.copyfile(options.native / f"native.{ending}", target / f"native.{ending}")
    run_pages(python, chromium, target)
    report = compare(target / "native", target / "pages")
    if options.record:
        record(target / "native")
    print(f"{datetime.date.today()}, {time.monotonic() - start:.0f} s\n\n{table(report)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
