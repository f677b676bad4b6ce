"""The network and the pictures that the Python of docs/pictures.md uses."""

import shutil
from pathlib import Path

from PIL import Image
from tests.guides.classifier import classifier, part

Path("model.onnx").write_bytes(classifier())
Path("features.onnx").write_bytes(part("image", "features"))
Path("last.onnx").write_bytes(part("features", "logits"))
for name, colour in {"cat": (200, 80, 80), "dog": (80, 200, 80), "fox": (80, 80, 200)}.items():
    Path("photographs", name).mkdir(parents=True)
    for k in range(20):
        light = tuple(round((0.6 + k / 50) * part) for part in colour)
        Image.new("RGB", (32, 32), light).save(Path("photographs", name, f"{k:02}.png"))
for name in ("train/cat", "train/dog", "train/fox", "val/cat", "val/fox"):
    Path("parts", name).mkdir(parents=True)
    for file in ("00.png", "01.png"):
        shutil.copy(Path("photographs", name[-3:], file), Path("parts", name))
