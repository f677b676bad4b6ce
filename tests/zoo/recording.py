"""Recordings of the zoo as scripts/record_zoo.py makes them, and how they were trained."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "recorded"
STEPS = 5
OLDER = "dynamo 2.13"
"""The file of an older torch, where it differs from the newest one's in more than the names of tensors."""
RATES = {"SGD": 0.02, "AdamW": 0.002}
ADAMW = {"eps": 1e-6, "weight_decay": 0.01}
"""With epsilon 1e-6 a gradient that is zero but for rounding moves little; with torch's 1e-8 it moves by the rate."""


@dataclass(frozen=True)
class Recording:
    """One model: files by exporter, feeds, and what PyTorch makes of it."""

    name: str
    about: dict[str, Any]
    files: dict[str, bytes]
    truth: dict[str, np.ndarray]

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names start with `prefix`, without it."""
        return {key.removeprefix(prefix): a for key, a in self.truth.items() if key.startswith(prefix)}


def names() -> list[str]:
    """All models that are recorded."""
    return sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))


def load(name: str) -> Recording:
    """The recording of a model."""
    with tarfile.open(FOLDER / f"{name}.tar.xz", "r:xz") as archive:
        data = {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}  # type: ignore[union-attr]
    with np.load(io.BytesIO(data.pop("truth.npz"))) as arrays:
        truth = dict(arrays)
    about = json.loads(data.pop("about.json"))
    return Recording(name, about, {key.removesuffix(".onnx"): value for key, value in data.items()}, truth)
