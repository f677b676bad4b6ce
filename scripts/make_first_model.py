"""Write first.onnx, the model of the README's examples: two inputs, 16 units, two classes.

It goes into docs/, into the Python package, and as text into the page's script.
"""

from __future__ import annotations

import base64
import textwrap
from pathlib import Path

import numpy as np
import onnx
from made_models import checked_model
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
TARGETS = (ROOT / "docs" / "first.onnx", ROOT / "py_src" / "trainweb" / "data" / "first.onnx")
MODULE = ROOT / "web" / "src" / "data" / "first-model.ts"
WIDTH = 100  # of the lines of MODULE
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


def module_of(data: bytes) -> str:
    """The TypeScript module that has a model as base64."""
    lines = " +\n".join(f'  "{line}"' for line in textwrap.wrap(base64.b64encode(data).decode(), WIDTH))
    return (
        "/** Written by scripts/make_first_model.py. */\n\n"
        "/** first.onnx as base64: no bundler and no policy can keep it from the page. */\n"
        f"export const FIRST_MODEL =\n{lines};\n"
    )


def main() -> None:
    data = build_model().SerializeToString(deterministic=True)
    for target in TARGETS:
        target.write_bytes(data)
    MODULE.write_text(module_of(data))


if __name__ == "__main__":
    main()
