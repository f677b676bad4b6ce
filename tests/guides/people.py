"""A network with two outputs, which docs/losses.md trains by a loss for each."""

import numpy as np
from onnx import helper
from tests.conformance.models import make_model

SIZES = {"kind": 3, "age": 1}


def people() -> bytes:
    """Scores of three kinds and an age, of two numbers; the weights are random."""
    random = np.random.default_rng(1)
    weights = {"hidden": random.normal(0, 0.5, (2, 8)).astype(np.float32)}
    weights |= {f"{name}.weight": random.normal(0, 0.5, (8, n)).astype(np.float32) for name, n in SIZES.items()}
    nodes = [helper.make_node("MatMul", ["x", "hidden"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
    nodes += [helper.make_node("MatMul", ["r", f"{name}.weight"], [name]) for name in SIZES]
    outputs = {name: ["N", n] for name, n in SIZES.items()}
    return bytes(make_model(nodes, {"x": ["N", 2]}, outputs, weights).SerializeToString())
