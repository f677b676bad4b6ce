"""Training artifacts by onnxruntime-training, run with an interpreter that has it: ort_artifacts.py FOLDER OUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
from onnxruntime.training import artifacts, onnxblock


def main() -> int:
    """Read base.onnx and manifest.json of FOLDER, write the artifacts to OUT."""
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    described = json.loads((folder / "manifest.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        onnx.load(folder / "base.onnx"),
        requires_grad=[p["name"] for p in described["params"] if p["trainable"]],
        frozen_params=[p["name"] for p in described["params"] if not p["trainable"]],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=onnxblock.optim.AdamW(eps=described["adamw"]["eps"], weight_decay=described["adamw"]["wd"]),
        artifact_directory=out,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
