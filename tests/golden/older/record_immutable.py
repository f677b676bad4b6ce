"""Record which weights TrainingParameters.immutable_weights leaves alone.

Run it with a Python of onnxruntime-training 1.16.3, the last but one with that interface: python
tests/golden/older/record_immutable.py. It names weights anew, so what is kept is how many are trained.
"""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = {"w": [1, 2, 3, 4], "many": [0.625] * 4, "one": [0.75], "half": 0.5, "quarter": 0.25, "twice": 0.125}
CASES = [
    {},
    {"Mul": [[1, 0.5]]},
    {"Mul": [[1, 0.50000001]]},  # the same float32
    {"Mul": [[1, 0.5000005]]},
    {"Mul": [[1, 0.75]]},  # of shape (1,)
    {"Mul": [[1, 0.625]]},
    {"Mul": [[1, 0.25]]},  # it is the other input
    {"Mul": [[0, 0.25]]},
    {"Mul": [[0, 0.25], [1, 0.5]]},
    {"Mul": [[5, 0.5]]},
    {"Mul": [[1, 0.125]]},  # another node reads it, too
    {"Add": [[1, 0.125]]},
    {"Mul": [[1, 0.125]], "Add": [[1, 0.125]]},
]


def model() -> bytes:
    """Products with all weights; the last is added as well."""
    names = ["w", "half", "one", "many", "quarter", "twice"]
    nodes, x = [], "x"
    for k, name in enumerate(names):
        inputs = [name, x] if name == "quarter" else [x, name]
        nodes.append(helper.make_node("Mul", inputs, [f"x{k}"], f"mul{k}"))
        x = f"x{k}"
    nodes.append(helper.make_node("Add", [x, "twice"], ["sum"], "add"))
    nodes.append(helper.make_node("ReduceSum", ["sum"], ["loss"], "loss", keepdims=0))
    graph = helper.make_graph(
        nodes,
        "immutable",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.array(values, np.float32), name) for name, values in WEIGHTS.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)
    data: bytes = made.SerializeToString()
    return data


def main() -> None:
    """Record."""
    from onnxruntime.capi import _pybind_state as C

    counts = []
    for case in CASES:
        parameters = C.TrainingParameters()
        parameters.loss_output_name = "loss"
        parameters.set_gradients_as_graph_outputs = True
        parameters.immutable_weights = {op_type: [tuple(pair) for pair in pairs] for op_type, pairs in case.items()}
        options = C.SessionOptions()
        options.log_severity_level = 4
        session = C.TrainingSession(options)
        session.read_bytes(model(), parameters, ["CPUExecutionProvider"], [{}])
        counts.append(sum(output.name.endswith("_grad") for output in session.outputs_meta))
    Path(__file__).with_name("immutable.json").write_text(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main()
