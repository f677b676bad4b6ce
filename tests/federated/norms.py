"""A net with a batch norm in training mode, and rounds of three PyTorch clients with it (record_statistics.py)."""

from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

SIZES, ROUNDS, RATE = (8, 16, 40), 3, 0.1
OPTIONS = {"epochs": 2, "batch_size": 8, "shuffle": False}
STATISTICS = ("1.running_mean", "1.running_var")


def recorded() -> dict[str, np.ndarray]:
    """Rows `x<client>` and `labels<client>`, and the averaged state after each round, `<round>/<name>`."""
    with np.load(Path(__file__).parent / "statistics.npz") as file:
        return dict(file)


def states(record: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """The arrays after a round, by PyTorch's names; 0: at the start."""
    prefix = f"{number}/"
    return {name.removeprefix(prefix): array for name, array in record.items() if name.startswith(prefix)}


def model(start: dict[str, np.ndarray]) -> ModelProto:
    """The net of the recording; ONNX keeps 0.9 of the statistics where PyTorch takes 0.1."""
    norm = ["1.weight", "1.bias", *STATISTICS]
    nodes = [
        helper.make_node("Gemm", ["x", "0.weight", "0.bias"], ["h"], transB=1),
        helper.make_node("BatchNormalization", ["h", *norm], ["n", "mean", "variance"], momentum=0.9, training_mode=1),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Gemm", ["r", "3.weight", "3.bias"], ["scores"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "norms",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(array, name) for name, array in start.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
