"""The model of the recorded files, and what `trainweb.quantize` makes of it; without ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import trainweb

OWN_CASES: dict[str, dict[str, Any]] = {
    "trainweb_4_tied": {"bits": 4, "tied": True, "only_frozen": True},
    "trainweb_8_tied": {"bits": 8, "tied": True, "only_frozen": True},
    "trainweb_4_all": {"bits": 4, "tied": False, "only_frozen": False},
    "trainweb_8_head": {"bits": 8, "tied": False, "only_frozen": True},
}
"""Files of `trainweb.quantize`, by name."""
WORDS, WIDTH, HIDDEN = 50, 96, 80


def floats(*, tied: bool) -> onnx.ModelProto:
    """ids -> table -> product -> relu -> product -> product with the table, or another one."""
    rng = np.random.default_rng(7)
    weights = {
        "embed.weight": (WORDS, WIDTH),
        "q_proj.weight": (WIDTH, HIDDEN),
        "v_proj.weight": (WIDTH, HIDDEN),
        "v_proj.bias": (WIDTH,),
        "head.weight": (WORDS, WIDTH),
    }
    head = "embed.weight" if tied else "head.weight"
    nodes = [
        helper.make_node("Gather", ["embed.weight", "ids"], ["e"], "/embed/Gather"),
        helper.make_node("MatMul", ["e", "q_proj.weight"], ["h"], "/q_proj/MatMul"),
        helper.make_node("Relu", ["h"], ["r"], "/act/Relu"),
        helper.make_node("Gemm", ["r", "v_proj.weight", "v_proj.bias"], ["g"], "/v_proj/Gemm", transB=1, beta=0.5),
        helper.make_node("Transpose", [head], ["turned"], "/head/Transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["g", "turned"], ["y"], "/head/MatMul"),
    ]
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WORDS])],
        [
            numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), name)
            for name, shape in weights.items()
            if name in read
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def by_trainweb(case: str) -> onnx.ModelProto:
    """The model as trainweb writes it."""
    options = dict(OWN_CASES[case])
    data = floats(tied=options.pop("tied")).SerializeToString()
    return onnx.ModelProto.FromString(trainweb.quantize(data, **options))
