import numpy as np

import trainweb
from trainweb.artifacts import LossType, OptimType

files = trainweb.artifacts.build_artifacts("first.onnx", loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
state = trainweb.CheckpointState.load_checkpoint(files.checkpoint)
session = trainweb.TrainingSession(state, files.training_model, files.eval_model, files.optimizer_model)

points = np.random.default_rng(0).uniform(-1, 1, (3200, 2)).astype(np.float32)
labels = (np.hypot(points[:, 0], points[:, 1]) < 0.8).astype(np.int64)
history = trainweb.Trainer(session).fit(
    {"points": points, "labels": labels},
    epochs=6,
    batch_size=64,
    schedule={"type": "Constant", "learning_rate": 0.01},
    progress=False,
)
for epoch in history.epochs:
    print(f"epoch {epoch.epoch}: loss {epoch.loss:.3f}")
print(session.profile({"points": points[:64], "labels": labels[:64]}))
