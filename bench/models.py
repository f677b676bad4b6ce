"""Benchmark models on disk, in .build/bench/models: base.onnx, artifacts, initial weights, data and a manifest.

    python bench/models.py [--models A,B,...] [--force]

If TRAINWEB_ORT_PYTHON names an interpreter with onnxruntime-training, models with nodes unknown to it have a separate
training model.

init.bin holds the initial parameters (float32, one after the other), data.bin all inputs of `nb` batches and then
all labels (int32); the manifest has names, shapes and offsets. Every contender starts from these.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from networks import MODELS, Network, batches

from trainweb.artifacts import LossType, build_artifacts
from trainweb.onnxblock.optim import AdamW

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / ".build" / "bench"
FOLDER = BUILD / "models"
N_BATCHES = 4
OWN_OF_ORT = ("recurrent",)
"""Kinds of models for which onnxruntime takes training_model.onnx from the folder `ort`."""
ADAMW = {"lr": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0.0}


@dataclass(frozen=True)
class Built:
    """One model's folder and manifest."""

    name: str
    folder: Path
    manifest: dict[str, Any]


def manifest(net: Network) -> dict[str, Any]:
    """The facts about a model that contenders need."""
    parameters, offset = [], 0
    for p in net.parameters:
        parameters.append(
            dict(name=p.name, shape=list(p.value.shape), offset=offset, size=p.value.size, trainable=p.trainable)
        )
        offset += p.value.size
    return dict(
        model=net.name,
        **net.description,
        nb=N_BATCHES,
        params=parameters,
        n_params=offset,
        n_trainable=net.n_trainable,
        flops=net.flops,
        adamw=ADAMW,
        ort="ort/" if net.description["kind"] in OWN_OF_ORT else "",
    )


def write_inputs(net: Network, folder: Path) -> dict[str, Any]:
    """Write base.onnx, init.bin, data.bin and manifest.json; returns the manifest."""
    model = onnx.shape_inference.infer_shapes(net.model())
    (folder / "base.onnx").write_bytes(model.SerializeToString())
    (folder / "init.bin").write_bytes(b"".join(p.value.tobytes() for p in net.parameters))
    x, y = batches(net, N_BATCHES, len(net.name))
    (folder / "data.bin").write_bytes(x.tobytes() + y.tobytes())
    described = manifest(net) | dict(xsize=int(x[0].size))
    (folder / "manifest.json").write_text(json.dumps(described, indent=1))
    return described


def split_parameters(described: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Names of the trainable and of the frozen parameters."""
    parts: tuple[list[str], list[str]] = ([], [])
    for p in described["params"]:
        parts[0 if p["trainable"] else 1].append(p["name"])
    return parts


def write_artifacts(folder: Path, described: dict[str, Any]) -> None:
    """Write the training artifacts, made by trainweb."""
    trainable, frozen = split_parameters(described)
    frozen = [name for name in frozen if not name.endswith(("mean", "var"))]  # running statistics would be held
    optimizer = AdamW(eps=ADAMW["eps"], weight_decay=ADAMW["wd"])
    built = build_artifacts(folder / "base.onnx", trainable, frozen, LossType.CrossEntropyLoss, optimizer)
    built.write(folder, nominal=True)
    if described["kind"] in OWN_OF_ORT:
        write_ort_model(folder)


def write_ort_model(folder: Path) -> None:
    """Have onnxruntime-training make the training model that it runs."""
    python = os.environ.get("TRAINWEB_ORT_PYTHON")
    if python is None:
        print(f"{folder.name}: onnxruntime has no model to train; TRAINWEB_ORT_PYTHON names no interpreter")
        return
    command = [python, str(HERE / "native" / "ort_training_model.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)


def _fingerprint(name: str) -> str:
    digest = hashlib.sha256(f"{name} {'TRAINWEB_ORT_PYTHON' in os.environ}".encode())
    sources = [HERE / "networks.py", HERE / "models.py"]
    sources += [
        p for f in ("artifacts", "autodiff", "onnxblock") for p in (ROOT / "py_src" / "trainweb" / f).glob("*.py")
    ]
    for path in sorted(sources):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build(name: str, *, force: bool = False) -> Built:
    """Make one model's folder unless it is there already, made by the same sources."""
    folder = FOLDER / name
    stamp = folder / "artifacts.json"
    fingerprint = _fingerprint(name)
    if not force and stamp.is_file() and json.loads(stamp.read_text())["fingerprint"] == fingerprint:
        return Built(name, folder, json.loads((folder / "manifest.json").read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    described = write_inputs(MODELS[name](), folder)
    write_artifacts(folder, described)
    stamp.write_text(json.dumps({"fingerprint": fingerprint}))
    return Built(name, folder, described)


def main() -> int:
    """Build the models named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--force", action="store_true", help="make them even if they are there")
    options = parser.parse_args()
    for name in options.models.split(","):
        m = build(name, force=options.force).manifest
        print(f"{name:3} {m['n_params']:9} parameters, {m['n_trainable']:9} train, {m['flops'] / 1e6:.0f} MFLOP a step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
