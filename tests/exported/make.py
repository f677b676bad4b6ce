"""Exports small torch modules with dynamic shapes, and records the shape of every tensor as ONNX Runtime computes it.

    python tests/exported/make.py     # needs torch, onnx, onnxruntime and onnxscript; made with 2.13, 1.23, 1.31, 0.7

Weights are zeros in the files, so that they stay small; tests fill them.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FOLDER = Path(__file__).parent
LARGE = 32
"""Float initializers with more elements are weights."""


class Block(nn.Module):
    """Causal attention, heads split by view."""

    def __init__(self, d: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out, self.norm = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        parts = self.qkv(self.norm(x)).split(d, dim=2)
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in parts)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(d // self.heads)
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).contiguous().view(b, t, d))


class Gpt(nn.Module):
    """Embeddings of tokens and positions, one block, a head."""

    def __init__(self, words: int = 20, d: int = 16, length: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, d), nn.Embedding(length, d)
        self.block, self.head = Block(d), nn.Linear(d, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.block(x))


class Positions(nn.Module):
    """Rows cut from a table of positions; torch's own encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 32, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.table[:, : x.size(1)])


class UNet(nn.Module):
    """Images that are halved twice and grow again."""

    def __init__(self, c: int = 4) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 2 * c, 3, padding=1)
        self.middle, self.mix = nn.Conv2d(2 * c, 2 * c, 3, padding=1), nn.Conv2d(4 * c, 2 * c, 1)
        self.up, self.last = nn.ConvTranspose2d(2 * c, c, 2, 2), nn.Conv2d(2 * c, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down(x))
        b = F.relu(self.deep(F.max_pool2d(a, 2)))
        m = F.interpolate(F.relu(self.middle(F.max_pool2d(b, 2))), scale_factor=2, mode="nearest")
        m = self.up(self.mix(torch.cat([m, b], 1)))
        return self.last(torch.cat([m, a], 1))


class Interpolate(nn.Module):
    """Back to the size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.conv(x), size=x.shape[2:], mode="bilinear", align_corners=False)


class Flat(nn.Module):
    """An image net whose linear layer fits one size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(4 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.head(y.view(y.size(0), -1))


class Windows(nn.Module):
    """Windows of 4 by 4 as in Swin, shifted and padded."""

    def __init__(self, w: int = 4, d: int = 4) -> None:
        super().__init__()
        self.w, self.linear = w, nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        n = self.w
        y = x.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * n, c)
        y = self.linear(y).view(-1, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        y = torch.roll(y, shifts=(-2, -2), dims=(1, 2))
        return F.pad(y, (0, 0, 1, 2, 0, 3))[:, 1:-1] * 1.0


class Pieces(nn.Module):
    """Chunks, slices, repeats, expansion, stacks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a, b = self.linear(x).chunk(2, -1)
        y, n = a * torch.sigmoid(b), x.shape[1]
        z = torch.cat([y[:, :1].expand(-1, n, -1), y.repeat(1, 1, 2)], dim=2)
        return z.flatten(0, 1), z.mean(1), y[:, n // 2 :], torch.stack([y, y], 1)


class Signal(nn.Module):
    """Strided and dilated convolution in one dimension, pooled with ceil, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv1d(4, 6, 5, stride=3, dilation=2), nn.AvgPool1d(3, 2, ceil_mode=True)
        self.back = nn.ConvTranspose1d(6, 4, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.pool(F.gelu(self.conv(x))))


class Shuffle(nn.Module):
    """Channels shuffled between groups, then moved into space."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        b, c, h, w = y.shape
        y = y.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        return F.pixel_shuffle(y, 2) + F.pixel_shuffle(x, 2)


class Cross(nn.Module):
    """Attention between sequences of two lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = self.linear(x)
        return (a @ y.transpose(1, 2)).softmax(-1) @ y, torch.einsum("bid,bjd->bij", a, y)


@dataclass
class Case:
    """A module, what it is exported with, which dims are dynamic, and other sizes to run it with."""

    module: nn.Module
    inputs: dict[str, Tensor]
    dims: dict[str, dict[int, str]]
    sizes: list[dict[str, int]]


def image(*shape: int) -> dict[str, Tensor]:
    return {"x": torch.randn(*shape)}


SEQUENCE = {"x": {0: "batch", 1: "n"}}
IMAGE = {"x": {0: "batch", 2: "h", 3: "w"}}
CASES = {
    "gpt": Case(
        Gpt(), {"ids": torch.randint(0, 20, (2, 7))}, {"ids": {0: "batch", 1: "n"}}, [{"batch": 3, "n": 11}, {"n": 5}]
    ),
    "positions": Case(Positions(), image(2, 7, 8), SEQUENCE, [{"batch": 3, "n": 11}]),
    "unet": Case(UNet(), image(2, 3, 8, 12), IMAGE, [{"batch": 3, "h": 16, "w": 8}]),
    "interpolate": Case(Interpolate(), image(2, 3, 8, 12), IMAGE, [{"batch": 3, "h": 15, "w": 9}]),
    "flat": Case(Flat(), image(2, 3, 16, 16), IMAGE, [{"batch": 3}]),
    "windows": Case(Windows(), image(2, 8, 12, 4), {"x": {0: "batch", 1: "h", 2: "w"}}, [{"h": 16, "w": 8}]),
    "pieces": Case(Pieces(), image(2, 6, 6), SEQUENCE, [{"batch": 3, "n": 9}, {"n": 4}]),
    "signal": Case(Signal(), image(2, 4, 50), {"x": {0: "batch", 2: "n"}}, [{"batch": 3, "n": 61}, {"n": 44}]),
    "shuffle": Case(Shuffle(), image(2, 8, 6, 4), IMAGE, [{"batch": 3, "h": 5, "w": 7}]),
    "cross": Case(
        Cross(),
        {"x": torch.randn(2, 5, 8), "y": torch.randn(2, 6, 8)},
        {**SEQUENCE, "y": {0: "batch", 1: "m"}},
        [{"batch": 3, "n": 4, "m": 9}],
    ),
}


def export(case: Case, path: Path, *, dynamo: bool) -> onnx.ModelProto:
    """Export with one of torch's two exporters."""
    args, names = tuple(case.inputs.values()), list(case.inputs)
    if dynamo:
        shapes = tuple(dict.fromkeys(case.dims[name], torch.export.Dim.DYNAMIC) for name in names)
        torch.onnx.export(
            case.module, args, path, input_names=names, dynamic_shapes=shapes, dynamo=True, external_data=False
        )
    else:
        torch.onnx.export(
            case.module,
            args,
            path,
            input_names=names,
            dynamic_axes=case.dims,
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
        )
    return onnx.load(path)


def recorded(model: onnx.ModelProto, case: Case, sizes: dict[str, int]) -> dict[str, Any]:
    """Shapes of the inputs, and of all tensors."""
    feeds = {}
    for (name, given), value in zip(case.inputs.items(), model.graph.input, strict=True):
        shape = [sizes.get(case.dims[name].get(axis, ""), size) for axis, size in enumerate(given.shape)]
        whole = given.dtype == torch.int64
        feeds[value.name] = np.ones(shape, np.int64) if whole else np.ones(shape, np.float32)
    whole_model = onnx.ModelProto()
    whole_model.CopyFrom(model)
    known = {value.name for value in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                whole_model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(whole_model.SerializeToString(), options)
    found = zip((v.name for v in session.get_outputs()), session.run(None, feeds), strict=True)
    return {
        "inputs": {name: list(feed.shape) for name, feed in feeds.items()},
        "shapes": {name: list(value.shape) for name, value in found},
    }


def strip(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without comments, inferred types and weights."""
    del model.graph.value_info[:], model.metadata_props[:], model.graph.metadata_props[:], model.functions[:]
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        part.doc_string = ""
        del part.metadata_props[:]
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size > LARGE:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros_like(array), tensor.name))
    return model


def main() -> None:
    """Write everything."""
    torch.manual_seed(0)
    record: dict[str, list[dict[str, Any]]] = {}
    for name, case in CASES.items():
        for dynamo in (False, True):
            path = FOLDER / f"{name}.{'dynamo' if dynamo else 'script'}.onnx"
            model = export(case, path, dynamo=dynamo)
            record[path.stem] = []
            for sizes in ({}, *case.sizes):
                try:
                    record[path.stem].append(recorded(model, case, sizes))
                except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
                    # The first exporter writes some sizes of its example into the graph.
                    print(f"{path.stem} does not run at {sizes}")
            onnx.save(strip(model), path)
    (FOLDER / "shapes.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
