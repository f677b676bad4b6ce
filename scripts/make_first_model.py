"""Write docs/first.onnx, the model of the README's examples: two inputs, 16 units, two classes.

python scripts/make_first_model.py [OUTPUT.onnx]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TARGET = Path(__file__).resolve().parents[1] / "docs" / "first.onnx"
SEED = 1
OPSET = 17
IR_VERSION = 8
HIDDEN = 16


def build_model() -> onnx.ModelProto:
    """Return the classifier: ``points`` (batch, 2) -> ``logits`` (batch, 2)."""
    rng = np.random.default_rng(SEED)
    parameters = {
        "hidden.weight": rng.normal(0, 1, (HIDDEN, 2)),
        "hidden.bias": np.zeros(HIDDEN),
        "output.weight": rng.normal(0, 0.25, (2, HIDDEN)),
        "output.bias": np.zeros(2),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["points", "hidden.weight", "hidden.bias"], ["hidden"], transB=1),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "output.weight", "output.bias"], ["logits"], transB=1),
        ],
        "inside_the_circle",
        [helper.make_tensor_value_info("points", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in parameters.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def main() -> None:
    model = build_model()
    onnx.checker.check_model(model, full_check=True)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
