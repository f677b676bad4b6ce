"""The quantized model and the checkpoint that the Python of docs/sessions.md uses."""

import shutil
from pathlib import Path

import trainweb

shutil.copy(Path(__file__).parents[1] / "golden" / "quantized" / "trainweb_8_tied.onnx", "model.q8.onnx")
files = trainweb.lora.inject("model.q8.onnx", rank=8).build_artifacts(loss="CrossEntropyLoss", optimizer="AdamW")
Path("checkpoint").write_bytes(files.checkpoint)
