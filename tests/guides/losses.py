"""The models, session and rows that the Python of docs/losses.md uses."""

from pathlib import Path

import numpy as np
from tests.guides.people import people

import trainweb

Path("people.onnx").write_bytes(people())
x = points = np.random.default_rng(0).uniform(-1, 1, (64, 2)).astype(np.float32)
labels, kinds, ages, w = np.arange(64) % 2, np.arange(64) % 3, 20 + points[:, :1], np.ones(64)
feeds = data = {"points": points, "labels": labels}
average = {"decay": 0.999}
session = trainweb.TrainingSession.from_model("first.onnx", loss="CrossEntropyLoss", optimizer="AdamW", ema=average)
