"""The session and rows that the Python of docs/fit.md uses."""

import numpy as np

import trainweb

x = np.random.default_rng(0).normal(size=(40, 10)).astype(np.float32)
data = {"x": x, "labels": np.arange(40) % 3}
session = trainweb.TrainingSession.from_model("base.onnx", loss="CrossEntropyLoss", optimizer="AdamW")
