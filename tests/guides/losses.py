"""The session and rows that the Python of docs/losses.md uses."""

import numpy as np

import trainweb

points = np.random.default_rng(0).uniform(-1, 1, (64, 2)).astype(np.float32)
feeds = data = {"points": points, "labels": np.arange(64) % 2}
average = {"decay": 0.999}
session = trainweb.TrainingSession.from_model("first.onnx", loss="CrossEntropyLoss", optimizer="AdamW", ema=average)
