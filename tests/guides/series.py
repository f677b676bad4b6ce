"""The model of the examples that the Python of docs/series.md uses."""

import shutil
from pathlib import Path

shutil.copy(Path(__file__).parents[2] / "examples" / "models" / "series.onnx", ".")
