"""A small classifier of pictures, which stands for a trained network in docs/pictures.md."""

import numpy as np
from onnx import TensorProto, helper, load_from_string, numpy_helper, shape_inference, utils

SIDE, CHANNELS, CLASSES = 224, 16, 10
STRIDE = 8
OPSET = 17


def classifier() -> bytes:
    """A convolution, the mean of each channel, and scores of ten classes; the weights are random."""
    random = np.random.default_rng(1)
    weights = {
        "conv.weight": random.normal(0, 0.2, (CHANNELS, 3, 3, 3)),
        "conv.bias": random.normal(0, 0.2, CHANNELS),
        "fc.weight": random.normal(0, 0.2, (CLASSES, CHANNELS)),
        "fc.bias": np.zeros(CLASSES),
    }
    nodes = [
        helper.make_node("Conv", ["image", "conv.weight", "conv.bias"], ["maps"], "conv", strides=[STRIDE, STRIDE]),
        helper.make_node("Relu", ["maps"], ["active"], "relu"),
        helper.make_node("GlobalAveragePool", ["active"], ["means"], "pool"),
        helper.make_node("Flatten", ["means"], ["features"], "flatten"),
        helper.make_node("Gemm", ["features", "fc.weight", "fc.bias"], ["logits"], "fc", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)]).SerializeToString()
    return made


def part(source: str, output: str) -> bytes:
    """The layers of the classifier from one tensor to another."""
    whole = shape_inference.infer_shapes(load_from_string(classifier()))
    made: bytes = utils.Extractor(whole).extract_model([source], [output]).SerializeToString()
    return made
