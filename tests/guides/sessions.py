"""The quantized model, checkpoint and session that the Python of docs/sessions.md uses."""

import shutil
from pathlib import Path

import numpy as np

import trainweb

shutil.copy(Path(__file__).parents[1] / "golden" / "quantized" / "trainweb_8_tied.onnx", "model.q8.onnx")
files = trainweb.lora.inject("model.q8.onnx", rank=8).build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW")
Path("checkpoint").write_bytes(files.checkpoint)
points = np.random.default_rng(0).uniform(-1, 1, (64, 2)).astype(np.float32)
feeds = {"points": points, "labels": np.arange(64) % 2}
session = trainweb.TrainingSession.from_model("first.onnx", loss="CrossEntropyLoss")
