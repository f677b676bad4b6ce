"""Cases of trainweb.ops.linear_quantization."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import bools, f32, i32, i64, literal

from trainweb.errors import UnsupportedError
from trainweb.ops import linear_quantization

CASES[linear_quantization.QuantizeLinear] = Cases(
    samples=(
        Sample([(3, 4), f32(0.02)]),
        Sample([f32([0.5, 1.5, 2.5, -0.5, -1.5, 3.2, -3.7]), f32(1.0), literal("int8", 3)], opset=10),
        Sample([(3, 4), f32([0.02, 0.5, 0.01, 0.1]), literal("int8", [0, 3, -100, 7])]),
        Sample([(3, 4), f32(0.0001), literal("uint16", 30000)], opset=21),
        Sample([(2, 5), f32([[0.02, 0.5, 0.01], [0.1, 0.2, 0.3]])], {"block_size": 2, "output_dtype": 3}, opset=21),
    ),
    bad=(
        Bad([(3, 4), (3,)]),
        Bad([(3, 4), (2, 2)]),
        Bad([(3, 4), f32([0.1, 0.2, 0.3, 0.4]), literal("int8", 3)]),
        Bad([(3, 1), f32([[0.1]]), literal("int8", 3)], {"block_size": 3, "axis": 0}, opset=21),
        Bad([(3, 4), f32(0.1)], {"output_dtype": 7}, opset=21, error=UnsupportedError),
    ),
)

CASES[linear_quantization.DequantizeLinear] = Cases(
    samples=(
        Sample([literal("uint8", [[0, 3, 255], [1, 2, 4]]), f32(0.5), literal("uint8", 7)]),
        Sample([literal("int8", [[0, 3, -128], [1, 2, 4]]), f32([0.5, 2.0, 3.0])]),
        Sample([i32([2**20, -5]), f32(2.0)]),
        Sample([literal("int16", [[1, 2, 3]]), f32([[0.5, 2.0]])], {"block_size": 2}, opset=21),
        Sample(
            [
                literal("int8", [[[1, 2], [3, 4], [5, 6]], [[7, 8], [-9, 1], [2, 3]]]),
                f32([[[0.5, 2.0], [1.5, 3.0]], [[2.5, 0.1], [4.0, 0.2]]]),
                literal("int8", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
            ],
            {"block_size": 2, "axis": 1},
            opset=21,
        ),
        Sample(
            [literal("int8", [[0, 3, -128], [1, 2, 4]]), f32([0.5, 2.0]), literal("int8", [3, -7])],
            {"axis": -2},
            opset=21,
        ),
        Sample([literal("uint8", [[0, 3, 8], [1, 2, 4]]), f32([[0.5, 2.0], [0.1, 3.0]])], {"block_size": 2}, opset=21),
    ),
    bad=(Bad([(3,), f32(1.0)], error=UnsupportedError), Bad([literal("int8", [1]), f32(1.0), literal("uint8", 1)])),
)

CASES[linear_quantization.Unclipped] = Cases(
    samples=(
        Sample([f32([-20.0, -12.8, 0.0, 3.04, 12.7, 12.8]), f32(0.1), literal("int8", [-128, -128, 0, 30, 127, 127])]),
        Sample(
            [
                f32([[-1.0, 3.0, 0.2], [0.4, 40.0, 6.0]]),
                f32([0.5, 2.0, 0.1]),
                literal("uint8", [[0, 4, 2], [2, 15, 9]]),
                literal("uint8", [1, 2, 0]),
            ]
        ),
    ),
    bad=(
        Bad([(3,), f32(1.0), literal("int8", [1])]),
        Bad([(3,), f32(1.0), f32([1.0, 2.0, 3.0])]),
        Bad([i32([1]), f32(1.0), literal("int8", [1])], error=UnsupportedError),
    ),
)

CASES[linear_quantization.DynamicQuantizeLinear] = Cases(
    samples=(Sample([(3, 4)], outputs=3), Sample([f32([1.0, 2.5, 8.0])], outputs=3)),
    bad=(Bad([i32([1])], error=UnsupportedError),),
)

CASES[linear_quantization.MatMulInteger] = Cases(
    samples=(
        Sample([literal("uint8", [[11, 7, 3], [10, 255, 2]]), literal("int8", [[1, -4], [2, 127], [3, -128]])]),
        Sample(
            [
                literal("uint8", [[11, 7, 3], [10, 255, 2]]),
                literal("uint8", [[1, 4], [2, 255], [3, 6]]),
                literal("uint8", [12, 3]),
                literal("uint8", [1, 255]),
            ]
        ),
    ),
    bad=(Bad([literal("uint8", [[1, 2]]), literal("uint8", [[1, 2]])]),),
)

CASES[linear_quantization.QLinearMatMul] = Cases(
    samples=(
        Sample(
            [
                literal("uint8", [[208, 236, 0], [3, 214, 255]]),
                f32(0.0066),
                literal("uint8", 113),
                literal("uint8", [[152, 51], [60, 26], [0, 127]]),
                f32([0.00705]),
                literal("uint8", [114]),
                f32(0.0107),
                literal("uint8", 118),
            ]
        ),
    ),
    bad=(Bad([literal("uint8", [[1]]), f32(1.0), literal("uint8", 1)]),),
)

CASES[linear_quantization.ConvInteger] = Cases(
    samples=(
        Sample(
            [literal("uint8", [[[[2, 3, 255], [5, 6, 0], [8, 9, 10]]]]), literal("int8", [[[[1, -128], [127, 1]]]])]
        ),
        Sample(
            [
                literal("uint8", [[[[2, 3, 255, 0]]]]),
                literal("uint8", [[[[1, 200, 7]]], [[[0, 255, 3]]]]),
                literal("uint8", 7),
                literal("uint8", [3, 255]),
            ],
            {"pads": [0, 1, 0, 1]},
        ),
    ),
    bad=(
        Bad([literal("uint8", [[[1, 2]]]), literal("uint8", [[[1, 2, 3]]])]),
        Bad([(1, 1, 3), literal("uint8", [[[1, 2, 3]]])], error=UnsupportedError),
    ),
)

CASES[linear_quantization.QLinearConv] = Cases(
    samples=(
        Sample(
            [
                literal("uint8", [[[[255, 174, 162], [25, 203, 168], [58, 0, 77]]]]),
                f32(0.00369),
                literal("uint8", 132),
                literal("uint8", [[[[0, 255], [7, 99]]], [[[1, 2], [3, 254]]]]),
                f32([0.00172, 0.003]),
                literal("uint8", [255, 3]),
                f32(0.00162),
                literal("uint8", 123),
                i32([100, -5000]),
            ],
            {"strides": [1, 1]},
        ),
    ),
    bad=(Bad([literal("uint8", [[[1, 2, 3]]]), f32(1.0), literal("uint8", 0)]),),
)


def numpy_spread(op: linear_quantization._Linear, x: Any, v: Any) -> Any:
    if op.block_size:
        axis = op.axis % x.ndim
        return v.repeat(op.block_size, axis).take(range(x.shape[axis]), axis)
    return v.reshape([-1 if k == op.axis % x.ndim else 1 for k in range(x.ndim)]) if v.size > 1 else v.reshape(())


@reference(linear_quantization.Unclipped)
def unclipped(op: linear_quantization.Unclipped, x: Any, scale: Any, quantized: Any, zero: Any = None) -> Any:
    places = np.rint(x.astype(np.float32) / numpy_spread(op, x, scale).astype(np.float32))
    return places + (0 if zero is None else numpy_spread(op, x, zero).astype(float)) == quantized


CASES[linear_quantization.FakeQuant] = Cases(
    samples=(
        Sample([f32([-3.0, -0.11, 0.0, 0.26, 90.0]), f32(0.1), f32(10.0)], outputs=2, grad=()),
        Sample([(3, 4), f32(0.05), f32(0.0)], {"quant_min": -8, "quant_max": 7}, outputs=2, grad=()),
        Sample([f32([-1e9, 1e9]), f32(1.0), f32(0.0)], outputs=2),
    ),
    bad=(
        Bad([(3,), (2,), f32(0.0)]),
        Bad([(3,), f32(0.1), i64(0)]),
        Bad([i64([1]), f32(1.0), f32(0.0)], error=UnsupportedError),
        Bad([(3,), f32(0.1), f32(0.0)], {"quant_min": 5, "quant_max": 4}),
    ),
)

CASES[linear_quantization.FakeQuantGrad] = Cases(
    samples=(Sample([(4,), bools([True, False, True, True])]),),
    bad=(Bad([(4,), (4,)]), Bad([(4,), bools([True])])),
)


@reference(linear_quantization.FakeQuant)
def fake_quant(op: linear_quantization.FakeQuant, x: Any, scale: Any, zero_point: Any) -> Any:
    steps = np.rint(x / scale + zero_point)
    kept = np.clip(steps, op.quant_min, op.quant_max)
    return (kept - zero_point) * scale, steps == kept


@reference(linear_quantization.FakeQuantGrad)
def fake_quant_grad(op: linear_quantization.FakeQuantGrad, dy: Any, mask: Any) -> Any:
    return np.where(mask, dy, 0)
