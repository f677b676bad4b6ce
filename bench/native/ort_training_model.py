"""ONNX Runtime's own training model, where trainweb's has nodes that it does not know: ort_training_model.py FOLDER.

Writes FOLDER/ort/training_model.onnx; FOLDER provides the checkpoint and the optimizer model.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import onnx
from onnxruntime.training import artifacts


def main() -> None:
    """Build it with the parameters that the manifest names."""
    folder = Path(sys.argv[1])
    described = json.loads((folder / "manifest.json").read_text())
    names: dict[bool, list[str]] = {True: [], False: []}
    for p in described["params"]:
        names[p["trainable"]].append(p["name"])
    with tempfile.TemporaryDirectory() as made:
        artifacts.generate_artifacts(
            onnx.load(folder / "base.onnx"),
            requires_grad=names[True],
            frozen_params=names[False],
            loss=artifacts.LossType.CrossEntropyLoss,
            artifact_directory=made,
        )
        own = folder / "ort"
        own.mkdir(exist_ok=True)
        shutil.copyfile(Path(made) / "training_model.onnx", own / "training_model.onnx")


if __name__ == "__main__":
    main()
