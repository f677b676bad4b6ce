"""The files of the examples that the Python of docs/table.md uses."""

import shutil
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
for file in ("data/wine.csv", "models/wine.onnx"):
    shutil.copy(EXAMPLES / file, ".")
