"""The session that the Python of docs/elsewhere.md exports, and the files of the wines."""

import shutil
from pathlib import Path

from tests.guides.wines import EXAMPLES, steps_of_wines

import trainweb

shutil.copy(EXAMPLES / "models" / "wine.onnx", ".")
Path("steps.json").write_text(steps_of_wines())

session = trainweb.TrainingSession.from_model("first.onnx", loss="CrossEntropyLoss")
