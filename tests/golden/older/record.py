"""Record steps of AdamOptimizer, the optimizer of ONNX Runtime's older interface, with both modes of weight decay.

Run it with the Python of onnxruntime-training 1.19.2: python tests/golden/older/record.py. LambOptimizer, which is in
the same interface, has no kernel on CPUs.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

WEIGHTS = np.float32([1, 2, -3, 0.5])
GRADIENTS = np.float32([[0.1, -0.2, 0.3, 2], [-1, 0.5, 0.25, -0.125], [0.75, 0, -0.5, 1]])
RATE = 0.1
CASES = [
    {
        "alpha": 0.8,
        "beta": 0.95,
        "epsilon": 1e-4,
        "lambda": decay,
        "weight_decay_mode": mode,
        "do_bias_correction": corrects,
    }
    for decay in (0.0, 0.3)
    for mode in (0, 1)
    for corrects in (0, 1)
]
INPUTS = ["R", "T", "w", "g", "m", "v"]


def make_session(attributes: dict[str, float]) -> onnxruntime.InferenceSession:
    node = helper.make_node("AdamOptimizer", INPUTS, ["t", "m1", "v1", "w1"], domain="com.microsoft", **attributes)

    def value(name: str) -> object:
        scalar, kind = name in ("R", "T", "t"), TensorProto.INT64 if name in ("T", "t") else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind, [1 if scalar else 4])

    graph = helper.make_graph([node], "step", [value(n) for n in INPUTS], [value(n) for n in ("m1", "v1", "w1")])
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def main() -> None:
    found = []
    for attributes in CASES:
        session, w = make_session(attributes), WEIGHTS
        m = v = np.zeros_like(w)
        steps = []
        for t, g in enumerate(GRADIENTS, 1):
            feeds = {"R": np.float32([RATE]), "T": np.int64([t]), "w": w, "g": g, "m": m, "v": v}
            m, v, w = session.run(None, feeds)
            steps.append({"w": w.tolist(), "Moment_1_w": m.tolist(), "Moment_2_w": v.tolist()})
        found.append({"attributes": attributes, "steps": steps})
    start = {"weights": WEIGHTS.tolist(), "gradients": GRADIENTS.tolist(), "rate": RATE}
    Path(__file__).with_name("adam.json").write_text(json.dumps(start | {"cases": found}, indent=1) + "\n")


main()
