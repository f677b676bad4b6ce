"""Serve the examples: make the bundle of examples/personal.html and the model of examples/camera.html, then wait.

    python scripts/examples.py [--port N]

`./build.sh examples` builds first what the pages import.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import teach_backbone
from steps import PYTHON, ROOT, Step, run, run_step

import trainweb

sys.path.insert(0, str(ROOT))
from tests.browser.server import Site

EXAMPLES = ROOT / "examples"
BACKBONE = EXAMPLES / "models" / "camera.onnx"
BUNDLE = EXAMPLES / "models" / "digits.bundle"
DEFAULT_PORT = 8000
PIXELS = [f"p{k}" for k in range(64)]


def write_bundle(
    model: Path, feeds: Sequence[str], out: Path, train: Callable[[trainweb.TrainingSession], object] = lambda _: None
) -> None:
    """Compile a classifier for inputs of these shapes, after it was trained."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainweb.artifacts.generate_artifacts(
            model,
            loss="CrossEntropyLoss",
            optimizer="AdamW",
            additional_output_names=["logits"],
            artifact_directory=folder,
        )
        state = trainweb.CheckpointState.load_checkpoint(folder / "checkpoint")
        training, evaluation, optimizer = (folder / f"{kind}_model.onnx" for kind in ("training", "eval", "optimizer"))
        with trainweb.TrainingSession(state, training, evaluation, optimizer) as session:
            train(session)
            trainweb.CheckpointState.save_checkpoint(state, folder / "checkpoint")
        given = [word for feed in feeds for word in ("--feed", feed)]
        run(Path(PYTHON).with_name("trainweb"), "compile", folder, *given, "--metric", "accuracy", "-o", out)


def _make_bundle() -> None:
    """A session that reads digits as they are: the page gets used to another hand."""
    rows = np.loadtxt(EXAMPLES / "data" / "digits.csv", np.float32, delimiter=",", skiprows=1)
    data = {"image": (rows[:, 1:] / 16).reshape(-1, 1, 8, 8), "labels": rows[:, 0].astype(np.int64)}

    def train(session: trainweb.TrainingSession) -> None:
        session.set_learning_rate(0.004)
        session.fit(data, epochs=4, progress=False)

    write_bundle(EXAMPLES / "models" / "digits.onnx", ["image=float32[32,1,8,8]", "labels=int64[32]"], BUNDLE, train)


def make_bundle() -> None:
    """Write examples/models/digits.bundle, as far as what it is made of has changed."""
    package = ROOT / "py_src" / "trainweb"
    inputs = [Path(__file__), EXAMPLES / "models" / "digits.onnx", EXAMPLES / "data" / "digits.csv", package]
    run_step(Step("example-bundle", _make_bundle, inputs=inputs, outputs=[BUNDLE]))


def make_backbone() -> None:
    """Write examples/models/camera.onnx, of which the weights are fetched once (17 MB)."""
    teach_backbone.make_model("example-backbone", BACKBONE)


def serve(port: int = 0) -> Site:
    """The examples, the package and the documents, as they lie in the project."""
    mounts = {"/examples/": (EXAMPLES,), "/dist/npm/": (ROOT / "dist" / "npm",), "/docs/": (ROOT / "docs",)}
    return Site(isolated=True, mounts=mounts, port=port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    port = parser.parse_args().port
    make_bundle()
    make_backbone()
    site = serve(port)
    print(
        *(f"{site.origin}/examples/{page.name}" for page in sorted(EXAMPLES.glob("*.html"))), "Ctrl+C ends.", sep="\n"
    )
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print()
    finally:
        site.close()


if __name__ == "__main__":
    main()
