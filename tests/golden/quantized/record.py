"""Record models that ONNX Runtime's quantizer and `trainweb.quantize` write, and their results in ONNX Runtime.

    python tests/golden/quantized/record.py

Needs onnxruntime 1.32 and onnx-ir beside trainweb's own requirements. Writes a model and an npz file for each case.
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantFormat
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "py_src")]

from tests.golden.quantized.words import OWN_CASES, by_trainweb, floats  # noqa: E402


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


CASES = {
    "ort_symmetric": lambda: by_onnxruntime(symmetric=True, form=QuantFormat.QOperator),
    "ort_zero_points": lambda: by_onnxruntime(symmetric=False, form=QuantFormat.QOperator),
    "ort_qdq": lambda: by_onnxruntime(symmetric=True, form=QuantFormat.QDQ),
    "ort_qdq_zero_points": lambda: by_onnxruntime(symmetric=False, form=QuantFormat.QDQ),
    "ort_8_bits": lambda: by_onnxruntime(symmetric=True, form=QuantFormat.QOperator, bits=8),
    **{name: partial(by_trainweb, name) for name in OWN_CASES},
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
