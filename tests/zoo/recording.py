"""Recordings of the zoo as scripts/record_zoo.py makes them, and how they were trained."""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FOLDER = Path(__file__).parent / "recorded"
STEPS = 5
OLDER = {"dynamo": "dynamo 2.13", "default": "default 2.13"}
"""Files of an older torch by the exporter. Kept where their form is another than the newest torch's."""
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


@lru_cache(2)
def load(name: str) -> Recording:
    with tarfile.open(FOLDER / f"{name}.tar.xz", "r:xz") as archive:
        data = {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}  # type: ignore[union-attr]
    with np.load(io.BytesIO(data.pop("truth.npz"))) as arrays:
        truth = dict(arrays)
    about = json.loads(data.pop("about.json"))
    return Recording(name, about, {key.removesuffix(".onnx"): value for key, value in data.items()}, truth)


def form(file: bytes) -> str:
    """A digest of what is read in a file: nodes, attributes, numbers, notes. Names count without their numbers.

    Torch's versions number results in other ways, and name the arguments of a call after other calls.
    """
    model = onnx.load_from_string(file)
    graph = model.graph
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    def notes(entries: Iterable[onnx.StringStringEntryProto]) -> list[tuple[str, str | list[str]]]:
        read = [(e.key, _unnumbered(e.value)) for e in entries]
        return sorted((key, _ARGUMENTS.findall(value) if key.endswith("fx_node") else value) for key, value in read)

    parts: list[object] = [notes(graph.metadata_props), [(entry.domain, entry.version) for entry in model.opset_import]]
    parts += [(number(value.name), value.name) for value in graph.input]
    for tensor in graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        parts.append((number(tensor.name), _unnumbered(tensor.name), array.shape, array.dtype.str, array.tobytes()))
    for node in graph.node:
        edges = [number(name) for name in (*node.input, *node.output)]
        attributes = sorted(onnx.helper.printable_attribute(attribute) for attribute in node.attribute)
        parts.append((node.op_type, _unnumbered(node.name), edges, attributes, notes(node.metadata_props)))
    values = {value.name: notes(value.metadata_props) for value in graph.value_info}
    parts += [(number(tensor.name), values.get(tensor.name)) for tensor in graph.initializer]
    parts.append([number(value.name) for value in graph.output])
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


_ARGUMENTS = re.compile(r"aten\.\w+|%[pbc]_\w+|None")


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "#", name)
