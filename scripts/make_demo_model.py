"""Write the digit classifier of the demo: a small convolutional network with random weights.

    python scripts/make_demo_model.py OUTPUT.onnx

Only the forward pass; the page builds training, eval and optimizer models from it by itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from made_models import checked_model, write_model
from onnx import TensorProto, helper, numpy_helper

SEED = 7
SIDE = 28
CLASSES = 10
CONV1, CONV2, HIDDEN = 16, 32, 128
KERNEL = 3


def he_uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Weights of variance 2 / fan_in, for layers that a ReLU follows (He et al. 2015)."""
    bound = math.sqrt(6.0 / math.prod(shape[1:]))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def build_model() -> onnx.ModelProto:
    """Return the classifier: ``image`` (batch, 1, 28, 28) in [0, 1] -> ``logits`` (batch, 10)."""
    rng = np.random.default_rng(SEED)
    flat = CONV2 * (SIDE // 4) ** 2
    layers = {
        "conv1": (CONV1, 1, KERNEL, KERNEL),
        "conv2": (CONV2, CONV1, KERNEL, KERNEL),
        "fc1": (HIDDEN, flat),
        "fc2": (CLASSES, HIDDEN),
    }
    initializers = []
    for name, shape in layers.items():
        initializers.append(numpy_helper.from_array(he_uniform(rng, shape), f"{name}.weight"))
        bias = np.zeros(shape[0], np.float32)
        initializers.append(numpy_helper.from_array(bias, f"{name}.bias"))

    def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)

    conv = {"kernel_shape": [KERNEL, KERNEL], "pads": [1, 1, 1, 1]}
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("Conv", "image conv1.weight conv1.bias", "conv1", **conv),
        node("Relu", "conv1", "relu1"),
        node("MaxPool", "relu1", "pool1", **pool),
        node("Conv", "pool1 conv2.weight conv2.bias", "conv2", **conv),
        node("Relu", "conv2", "relu2"),
        node("MaxPool", "relu2", "pool2", **pool),
        node("Flatten", "pool2", "flat", axis=1),
        node("Gemm", "flat fc1.weight fc1.bias", "fc1", transB=1),
        node("Relu", "fc1", "relu3"),
        node("Gemm", "relu3 fc2.weight fc2.bias", "logits", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        initializers,
    )
    return checked_model(graph, producer_name="trainweb-demo")


if __name__ == "__main__":
    write_model(__doc__, build_model)
