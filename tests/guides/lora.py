"""The model that the Python of docs/lora.md adapts."""

import shutil
from pathlib import Path

shutil.copy(Path(__file__).parents[1] / "golden" / "generate" / "llama.onnx", "model.onnx")
