"""Cases of trainweb.ops.regions."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import f32, i64

from trainweb.ops import regions

CASES[regions.MaxUnpool] = Cases(
    samples=(
        Sample([(1, 1, 2, 2), i64([[[[5, 7], [13, 15]]]])], {"kernel_shape": [2, 2], "strides": [2, 2]}, opset=11),
        Sample(
            [(1, 1, 2, 2), i64([[[[5, 7], [13, 15]]]]), i64([1, 1, 5, 5])],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            opset=11,
        ),
        Sample([(2, 1, 2), i64([[[0, 3]], [[5, 6]]])], {"kernel_shape": [2], "strides": [2]}, opset=11),
    ),
    bad=(
        Bad([(1, 1, 2, 2), i64([[[[5, 7]]]])], {"kernel_shape": [2, 2]}, opset=11),
        Bad([(1, 1, 2, 2), i64([[[[5, 7], [13, 15]]]])], {"kernel_shape": [2]}, opset=11),
    ),
)

CASES[regions.RoiAlign] = Cases(
    samples=(
        Sample(
            [(2, 3, 6, 5), f32([[0.3, 0.6, 3.1, 4.2], [1.2, 0.1, 4.7, 5.9], [2.0, 2.0, 9.0, 9.0]]), i64([0, 1, 0])],
            {"output_height": 2, "output_width": 3, "sampling_ratio": 2},
            opset=16,
            grad=(0,),
        ),
        Sample(
            [(1, 2, 5, 5), f32([[0.3, 0.6, 3.1, 4.2]]), i64([0])],
            {"output_height": 2, "output_width": 2, "sampling_ratio": 3, "spatial_scale": 0.5, "mode": "max"},
            opset=16,
            grad=(0,),
        ),
        Sample([(1, 1, 4, 4), f32([[0.0, 0.0, 0.5, 3.0]]), i64([0])], {"sampling_ratio": 1}, opset=10, grad=(0,)),
        Sample(
            [(2, 2, 6, 5), f32([[0.3, 0.6, 3.1, 4.2], [1.2, 0.1, 4.7, 5.9], [2.0, 2.0, 9.0, 9.0]]), i64([0, 1, 0])],
            {"output_height": 2, "output_width": 1},
            opset=16,
            grad=(0,),
        ),
        Sample([(1, 1, 4, 4), f32([[0.0, 0.0, 0.5, 3.0]]), i64([0])], {"output_width": 2}, opset=10, grad=(0,)),
        Sample(
            [(2, 2, 6, 5), f32([[0.3, 0.6, 3.1, 4.2], [1.2, 0.1, 4.7, 5.9], [2.0, 2.0, 9.0, 9.0]]), i64([0, 1, 0])],
            {"output_height": 2, "output_width": 1, "mode": "max"},
            opset=16,
            grad=(0,),
        ),
        # Samples at 0.3, 1.1, 1.9, 2.7: of a pixel below 0 that several read the smallest weight counts.
        Sample(
            [
                f32([[[[-1.0 - (5 * i + 3 * j) % 7 / 8 for j in range(4)] for i in range(4)]]]),
                f32([[0.4, 0.4, 3.6, 3.6]]),
                i64([0]),
            ],
            {"mode": "max"},
            opset=16,
            grad=(),
        ),
        # Bins without samples are 0, and so is a sample outside: pixels below 0 lose against it.
        Sample(
            [
                f32([[[[-1.0, -2.0, -3.0], [-2.5, -1.5, -0.5], [-4.0, 3.0, -2.0]]]]),
                f32([[0.6, 0.8, 2.3, 2.4], [1.0, 1.0, 1.0, 2.0], [-3.0, -3.0, 2.0, 1.0]]),
                i64([0, 0, 0]),
            ],
            {"output_height": 2, "output_width": 2, "mode": "max"},
            opset=16,
            grad=(),
        ),
        Sample(
            [(1, 2, 5, 6), f32([[0.0, 1.0, 4.4, 4.0]]), i64([0])],
            {"output_height": 2, "output_width": 3, "mode": "max"},
            opset=10,
            grad=(0,),
        ),
    ),
    bad=(
        Bad([(1, 1, 4, 4), f32([[0.0, 0.0, 2.0]]), i64([0])], {"sampling_ratio": 1}, opset=16),
        Bad([(1, 1, 4, 4), f32([[0.0, 0.0, 2.0, 2.0]]), i64([0, 0])], {"sampling_ratio": 1}, opset=16),
    ),
)

REGIONS = f32([[0.0, 0.3, 0.6, 3.1, 4.2], [1.0, 1.2, 0.1, 3.7, 4.9]])

CASES[regions.MaxRoiPool] = Cases(
    samples=(
        Sample([(2, 3, 6, 5), REGIONS], {"pooled_shape": [1, 2]}, grad=(0,)),
        Sample(
            [(1, 2, 4, 4), f32([[0.0, 6.0, 6.0, 18.0, 18.0]])],
            {"pooled_shape": [2, 2], "spatial_scale": 0.5},
            grad=(0,),
        ),
    ),
    bad=(
        Bad([(2, 3, 6, 5), f32([[0.0, 1.0, 1.0, 2.0]])], {"pooled_shape": [2, 3]}),
        Bad([(2, 3, 6, 5), REGIONS], {"pooled_shape": [2]}),
        Bad([(2, 3, 6, 5), REGIONS], {"pooled_shape": [2, 0]}),
    ),
)
