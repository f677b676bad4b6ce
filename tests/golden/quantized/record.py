"""Record models that ONNX Runtime's quantizer and `trainweb.quantize` write, and their results in ONNX Runtime.

    python tests/golden/quantized/record.py

Needs onnxruntime 1.32 and onnx-ir beside trainweb's own requirements. Writes a model and an npz file for each case.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "py_src"))

import trainweb  # noqa: E402

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


def by_onnxruntime(*, symmetric: bool, form: QuantFormat, bits: int = 4) -> onnx.ModelProto:
    """The model as its quantizer writes it."""
    # It writes tables as operators alone.
    types = ("MatMul", "Gather") if form is QuantFormat.QOperator else ("MatMul",)
    config = DefaultWeightOnlyQuantConfig(
        block_size=32, is_symmetric=symmetric, quant_format=form, bits=bits, op_types_to_quantize=types
    )
    quantizer = MatMulNBitsQuantizer(floats(tied=False), algo_config=config)
    quantizer.process()
    model: onnx.ModelProto = quantizer.model.model
    return model


def by_trainweb(bits: int, *, tied: bool, only_frozen: bool) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(
        trainweb.quantize(floats(tied=tied).SerializeToString(), bits, only_frozen=only_frozen)
    )


CASES = {
    "ort_symmetric": lambda: by_onnxruntime(symmetric=True, form=QuantFormat.QOperator),
    "ort_zero_points": lambda: by_onnxruntime(symmetric=False, form=QuantFormat.QOperator),
    "ort_qdq": lambda: by_onnxruntime(symmetric=True, form=QuantFormat.QDQ),
    "ort_qdq_zero_points": lambda: by_onnxruntime(symmetric=False, form=QuantFormat.QDQ),
    "ort_8_bits": lambda: by_onnxruntime(symmetric=True, form=QuantFormat.QOperator, bits=8),
    "trainweb_4_tied": lambda: by_trainweb(4, tied=True, only_frozen=True),
    "trainweb_8_tied": lambda: by_trainweb(8, tied=True, only_frozen=True),
    "trainweb_4_all": lambda: by_trainweb(4, tied=False, only_frozen=False),
    "trainweb_8_head": lambda: by_trainweb(8, tied=False, only_frozen=True),
}


def main() -> None:
    """Write all cases."""
    ids = np.array([3, 0, 49, 7, 3, 21], np.int64)
    for name, make in CASES.items():
        model = make()
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (HERE / f"{name}.onnx").write_bytes(model.SerializeToString())
        (y,) = session.run(None, {"ids": ids})
        np.savez(HERE / f"{name}.npz", ids=ids, y=y)
        print(name, sorted({node.op_type for node in model.graph.node}), (HERE / f"{name}.onnx").stat().st_size)


if __name__ == "__main__":
    main()
