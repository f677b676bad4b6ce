"""Cases of trainweb.ops.spectral."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import f32, i64

from trainweb.errors import UnsupportedError
from trainweb.ops import spectral

CASES[spectral.DFT] = Cases(
    samples=(
        Sample([(2, 5, 1)], opset=20),
        Sample([(2, 4, 3, 2), None, i64(1)], {"inverse": 1}, opset=20),
        Sample([(2, 6, 1), i64(4)], {"onesided": 1}, opset=20),
        Sample([(1, 5, 3, 1), i64(8), i64(-3)], opset=20),
        Sample([(2, 6, 2)], {"axis": 1}, opset=17),
        Sample([(2, 4, 2), i64(6)], {"inverse": 1, "onesided": 1}, opset=20),
    ),
    bad=(
        Bad([(2, 5, 3)], opset=20),
        Bad([(2, 5, 2)], {"onesided": 1}, opset=20),
        Bad([(2, 5, 1), None, i64(2)], opset=20),
        Bad([(2, 5, 1), i64(0)], opset=20),
        Bad([(2, 5003, 2)], opset=20, error=UnsupportedError),
    ),
)

CASES[spectral.STFT] = Cases(
    samples=(
        Sample([(2, 12, 1), i64(3), None, i64(6)]),
        Sample([(1, 11, 1), i64(2), (5,)]),
        Sample([(1, 10, 2), i64(4), (4,), i64(4)], {"onesided": 0}),
    ),
    bad=(
        Bad([(2, 12, 1), i64(3)]),
        Bad([(2, 12, 1), i64(0), None, i64(6)]),
        Bad([(2, 12, 1), i64(3), (5,), i64(6)]),
        Bad([(2, 12, 2), i64(3), None, i64(6)]),
        Bad([(2, 4, 1), i64(3), None, i64(6)]),
    ),
)

CASES[spectral.MelWeightMatrix] = Cases(
    samples=(
        Sample([i64(8), i64(16), i64(8192), f32(0.0), f32(4096.0)]),
        Sample([i64(3), i64(32), i64(16000), f32(100.0), f32(7000.0)]),
    ),
    bad=(
        Bad([i64(0), i64(16), i64(8192), f32(0.0), f32(4096.0)]),
        Bad([i64(8), i64(16), i64(8192), f32(0.0), f32(4096.0)], {"output_datatype": 7}, UnsupportedError),
        Bad([i64(8), i64(16), i64(8192), f32(0.0), f32(9000.0)]),
    ),
)
