"""Write first.onnx, the model of the README's examples: two inputs, 16 units, two classes.

It goes into docs/ and into the Python package; the page's script has it from docs/.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from made_models import checked_model
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
TARGETS = (ROOT / "docs" / "first.onnx", ROOT / "py_src" / "trainweb" / "data" / "first.onnx")
SEED = 1
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
    return checked_model(graph)


def main() -> None:
    data = build_model().SerializeToString(deterministic=True)
    for target in TARGETS:
        target.write_bytes(data)


if __name__ == "__main__":
    main()
