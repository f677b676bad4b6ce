"""The session that the Python of docs/elsewhere.md exports."""

import trainweb

session = trainweb.TrainingSession.from_model("first.onnx", loss="CrossEntropyLoss")
