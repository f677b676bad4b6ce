"""Sizes that fill vectors, tiles, blocks and chunks of kernels and leave a rest, on both builds.

The samples of tests/ops/cases are small. Here are also numbers far from zero, ties, NaN and infinities.
"""

from collections.abc import Callable, Sequence
from itertools import cycle, product
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from tests.ops.cases import Sample
from tests.ops.literals import f32, i32, i64
from tests.ops.op_runner import Case, by_operator, reference, run, single_node
from tests.ops.test_forward import compare, graph_of, inputs
from tests.ops.test_gradient import differentiate, wanted

from trainweb.ops.frame.op import registry
from trainweb.ops.pool import MaxPool
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.inference import InferenceCore

RNG = np.random.default_rng(0)


def numbers(*shape: int, mean: float = 0.0, deviation: float = 1.0) -> np.ndarray:
    return (mean + deviation * RNG.standard_normal(shape)).astype(np.float32)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def holes(x: np.ndarray) -> np.ndarray:
    """NaN in a sixth of the elements."""
    return np.where(RNG.random(x.shape) < 1 / 6, np.float32(nan), x)


AXES = (
    *((5, 257), (6, 5000), (1, 1000, 3), (2, 33, 2100), (3, 100, 64), (1, 70, 133), (40, 3, 200), (700, 90)),
    *((1, 1), (70001, 3)),
)
"""Shapes that are reduced along axis 1."""
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-30, -1e-30, 88.9, -88.9, 104.0, 1e30, -1e30, 0.5, 2.5, -3.5], np.float32
)
MASKED = np.array([[1e30, 0, -1e30], [-inf, 2, 2], [-300, -300, -inf]], np.float32)
EXTREMES = np.repeat(np.array([[nan, 1], [inf, 1], [-inf, 1], [-inf, -inf]], np.float32), 20, 1)


def along(*shapes: tuple[int, ...], **attrs: Any) -> list[Sample]:
    return [Sample([shape], {"axis": 1, **attrs}, grad=()) for shape in shapes]


def reductions(shapes: Sequence[Any], **settings: Any) -> list[Sample]:
    return [Sample([shape, i64([1])], {"keepdims": 0}, opset=18, **settings) for shape in shapes]


def losses(*, summed: str, ignored: int | None = None) -> list[Sample]:
    samples = []
    for n, c, *inner in ((300, 7), (40, 1000), (3, 6, 5), (2, 3, 8)):
        labels = integers(0, c, n, *inner, dtype=np.int32 if n % 2 else np.int64)
        if ignored is not None:
            labels[RNG.random(labels.shape) < 0.3] = ignored
        attrs = {"reduction": summed} | ({} if ignored is None else {"ignore_index": ignored})
        weights = RNG.random(c).astype(np.float32)
        samples += [Sample([(n, c, *inner), labels], attrs), Sample([(n, c, *inner), labels, weights], attrs, grad=[0])]
    return samples


LOSSES = [
    s
    for summed in ("none", "mean", "sum")
    for ignored in (None, 2, -100)
    for s in losses(summed=summed, ignored=ignored)
]
LOSSES += [Sample([(4, 5), i64([-1] * 4)], {"ignore_index": -1, "reduction": "sum"})]
WINDOWS: list[tuple[Any, dict[str, Any]]] = [
    ((1, 2, 28, 28), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((1, 3, 9, 11), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((1, 3, 6, 2), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((1, 2, 3, 7, 13), {"kernel_shape": [1, 2, 2], "strides": [1, 2, 2]}),
    ((1, 2, 11, 10), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 2, 14, 13), {"kernel_shape": [3, 3], "strides": [5, 5]}),
    ((1, 2, 3, 610), {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 0, 1]}),
    ((1, 2, 2, 800), {"kernel_shape": [1, 4], "strides": [1, 3], "pads": [0, 2, 0, 0]}),
    ((1, 2, 4, 5, 6), {"kernel_shape": [2, 3, 2], "strides": [2, 1, 2], "pads": [0, 1, 1, 1, 1, 0]}),
    ((1, 40, 12, 12), {"kernel_shape": [2, 2], "strides": [2, 2]}),
]
DILATED: list[tuple[Any, dict[str, Any]]] = [
    ((1, 1, 2, 530), {"kernel_shape": [1, 3], "dilations": [1, 4], "pads": [0, 4, 0, 4]}),
    ((1, 2, 12, 13), {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [2, 2], "pads": [1, 1, 1, 1]}),
]
PERMUTED = [
    *(((37, 53), [1, 0]), ((3, 17, 2, 19), [0, 2, 1, 3]), ((2, 33, 18), [0, 2, 1]), ((130, 300), [1, 0])),
    ((2, 3, 1, 2, 3, 2, 1, 2), [7, 5, 3, 1, 0, 2, 4, 6]),
]
VECTORS = [(64, 128), (7, 1023), (2000, 64), (33, 770)]
FAR = 3e-4
"""The tolerance of numbers that lie hundreds of deviations from zero: subtracting the mean loses so much."""
CHANNELS = [(16, 3), (70, 130), (4, 5, 2), (8, 16, 49), (2, 7, 1024), (64, 40, 16)]
TRAINED: dict[str, Any] = {"opset": 15, "outputs": 3, "grad": ()}
GROUPS = [(3, 6, 1, 2), (4, 6, 2, 3), (2, 12, 49, 4), (5, 7, 64, 7), (2, 8, 1021, 1)]
INDEXED = integers(-9, 9, 300)

PRODUCTS = [
    *((1, 1, 1), (1, 7, 13), (17, 1, 5), (5, 3, 2), (4, 4, 4), (33, 65, 67), (3, 130, 1031), (64, 10, 2000)),
    *((33, 70, 5), (65, 129, 37), (64, 32, 1100), (1, 7, 1100), (70, 1, 300), (5, 70, 300), (33, 8, 700)),
]
"""Rows, columns, and products of a sum."""
FILTERS: list[tuple[Any, dict[str, Any]]] = [
    ([(2, 3, 9, 11), (5, 3, 3, 3), (5,)], {"pads": [1, 1, 1, 1]}),
    ([(1, 4, 8, 7), (6, 2, 3, 2), (6,)], {"group": 2, "strides": [2, 2], "dilations": [1, 2], "pads": [1, 0, 1, 0]}),
    ([(3, 7, 6, 6), (7, 1, 5, 5), (7,)], {"group": 7, "pads": [2, 2, 2, 2]}),
    ([(2, 2, 5, 4, 6), (3, 2, 2, 3, 3), (3,)], {"strides": [2, 1, 2], "pads": [1, 1, 0, 1, 1, 0]}),
    ([(1, 1, 1, 1), (1, 1, 1, 1), (1,)], {}),
    ([(2, 6, 7, 9), (5, 6, 1, 1), (5,)], {"strides": [2, 2]}),
    ([(2, 3, 13, 12), (4, 3, 7, 7), (4,)], {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ([(2, 2, 1, 40), (3, 2, 1, 11), (3,)], {"dilations": [1, 2], "pads": [0, 5, 0, 5]}),
    ([(2, 36, 9, 7), (40, 36, 3, 3)], {"pads": [1, 1, 1, 1]}),
]
"""Windows of one element, as wide as a tile of a line, and wider."""
BYTES = [integers(0, 2, 2, 5, n, dtype=t) for t, n in ((bool, 1), (np.uint8, 3), (bool, 8), (np.uint8, 6))]
"""Rows that share words."""


SIZES: dict[str, list[Sample]] = {
    "Div": [
        Sample([*shapes], positive=True)
        for shapes in (
            ((1,), (1,)),
            ((7, 13), (13,)),
            ((7, 1, 5), (1, 11, 1)),
            ((70001,), (70001,)),
            ((3, 1), (3, 997)),
        )
    ],
    **{name: [Sample([SPECIAL[:, None], SPECIAL])] for name in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")},
    **{name: [Sample([SPECIAL[:, None], SPECIAL], grad=())] for name in ("Equal", "Max", "Min")},
    "Gemm": [
        Sample([(k, m) if ta else (m, k), (n, k) if tb else (k, n), (n,)], {"transA": ta, "transB": tb, "alpha": 0.5})
        for (m, n, k), (ta, tb) in zip(PRODUCTS, cycle(product((0, 1), (0, 1))), strict=False)
    ],
    "MatMul": [Sample([(2, 3, 5, 7), (3, 7, 6)])],
    "Conv": [Sample(shapes, attrs) for shapes, attrs in FILTERS],
    "Recurrence": [
        Sample(
            [*(numbers(*s, deviation=0.25) for s in ((4, 3, n), (n, 67), (n,))), i32([4, 2, 3]), *states],
            {"cell": cell},
            outputs=outputs,
        )
        for cell, n, states, outputs in (
            ("lstm", 268, [(3, 67)] * 2, 3),
            *((cell, 201, [(3, 67)], 2) for cell in ("gru", "gru_linear")),
            *((cell, 67, [(3, 67)], 2) for cell in ("rnn_tanh", "rnn_relu")),
        )
    ],
    "LayerNormalization": [
        *(Sample([shape, shape[1:], shape[1:]], outputs=3, grad=()) for shape in VECTORS),
        *(Sample([shape, shape[1:], shape[1:]], outputs=1, grad=g) for shape in VECTORS for g in (None, [0], [1, 2])),
        Sample([(33, 770), (770,)], outputs=1),
        Sample([numbers(7, 1023, mean=1000), (1023,), (1023,)], outputs=1, grad=(), tolerance=FAR),
    ],
    "LayerNormalizationGrad": [Sample([s, s, s[1:], (s[0], 1), (s[0], 1)], positive=True) for s in VECTORS],
    "RMSNormalization": [Sample([shape, shape[1:]], opset=23) for shape in VECTORS],
    "SimplifiedLayerNormalizationGrad": [Sample([s, s, s[1:], (s[0], 1)], positive=True) for s in VECTORS],
    "BatchNormalization": [
        *(Sample([s, *[(s[1],)] * 4], {"training_mode": 1}, positive=True, **TRAINED) for s in CHANNELS),
        *(Sample([s, *[(s[1],)] * 4], positive=True) for s in CHANNELS),
        Sample(
            [numbers(16, 3, mean=300), (3,), (3,), (3,), np.ones(3, np.float32)],
            {"training_mode": 1},
            tolerance=FAR,
            **TRAINED,
        ),
        Sample(
            [numbers(8, 5, 49, mean=300), *[(5,)] * 3, np.ones(5, np.float32)],
            {"training_mode": 1},
            tolerance=FAR,
            **TRAINED,
        ),
    ],
    "BatchNormalizationGrad": [Sample([s, s, *[(s[1],)] * 3], positive=True) for s in CHANNELS],
    "GroupNormalization": [
        *(Sample([(n, c, size), (c,), (c,)], {"num_groups": g}, opset=21) for n, c, size, g in GROUPS[2:]),
        Sample([numbers(5, 7, 64, mean=300), (7,), (7,)], {"num_groups": 7}, opset=21, grad=(), tolerance=FAR),
    ],
    "GroupNormalizationGrad": [
        Sample([(n, c, size), (n, c, size), (c,)], {"num_groups": g}) for n, c, size, g in GROUPS[1:]
    ],
    "Softmax": [
        *along((40, 33), (2, 5, 7), (1, 50257), (2, 700, 9), (600, 50)),
        *(Sample([numbers(*shape, deviation=30)], {"axis": 1}, grad=()) for shape in ((40, 33), (2, 700, 9))),
        *(Sample([x], {"axis": 1}, grad=()) for x in (MASKED, np.repeat(MASKED[..., None], 6, 2))),
    ],
    "LogSoftmax": along((40, 33), (2, 5, 7), (1, 50257), (2, 700, 9), (600, 50)),
    "SoftmaxGrad_13": [Sample([s, s], {"axis": 1}) for s in ((40, 33), (2, 5, 7), (1, 50257), (2, 700, 9))],
    "LogSoftmaxGrad_13": [Sample([s, s], {"axis": 1}) for s in ((40, 33), (2, 5, 7), (1, 50257), (2, 700, 9))],
    "SoftmaxCrossEntropyLoss": LOSSES,
    "NegativeLogLikelihoodLoss": LOSSES,
    **{f"Reduce{name}": reductions(AXES, grad=()) for name in ("Mean", "SumSquare", "L1", "L2")},
    **{f"Reduce{name}": reductions([*AXES, EXTREMES], grad=()) for name in ("Sum", "Max", "Min")},
    "ReduceLogSumExp": reductions([*AXES, EXTREMES[:3]], grad=()),
    "ReduceProd": reductions([np.exp(numbers(*s, deviation=0.05)) for s in AXES], grad=(), tolerance=1e-4),
    "ReduceLogSum": reductions(AXES, grad=(), positive=True),
    **{
        f"Arg{name}": [
            Sample([x], {"axis": 1, "select_last_index": last})
            for x in (integers(0, 4, 4, 9, dtype=np.float32), holes(integers(0, 4, 2, 6, 5, dtype=np.float32)))
            for last in (0, 1)
        ]
        for name in ("Max", "Min")
    },
    "TopK": [
        *(
            Sample([x, i64([x.shape[1]])], {"axis": 1, "largest": largest}, outputs=2, grad=())
            for x in (np.ones((1, 1), np.float32), integers(-9, 9, 3, 67, 5, dtype=np.float32))
            for largest in (0, 1)
        ),
        Sample([np.tile(SPECIAL, (2, 8)), i64([20])], {"axis": 1}, outputs=2, grad=()),
    ],
    "OneHot": [Sample([integers(-130, 130, 3, 5), i64(130), f32([0.5, 2])], {"axis": 1})],
    "CumSum": [Sample([(3, 50, 4), i64(1)], {"exclusive": e, "reverse": r}) for e in (0, 1) for r in (0, 1)],
    "Gather": [
        *(Sample([integers(0, 200, 2, 9, 80, dtype=t), INDEXED], {"axis": 1}) for t in (np.float32, np.uint8)),
        *(Sample([x, integers(-5, 5, 7)], {"axis": 1}) for x in BYTES),
    ],
    "GatherND": [
        *(Sample([x, integers(-5, 5, 2, 3, 1)], {"batch_dims": 1}) for x in BYTES),
        Sample([(2, 3, 4, 5), integers(-1, 2, 2, 6, 2)], {"batch_dims": 1}),
    ],
    "GatherElements": [Sample([(5, 7, 6), integers(-7, 7, 5, 4, 6)], {"axis": 1})],
    "ScatterElements": [
        Sample([(5, 7, 6), integers(-7, 7, 5, 4, 6), (5, 4, 6)], {"axis": 1, "reduction": r}, opset=18, grad=g)
        for r, g in (("none", ()), ("add", None), ("mul", None), ("max", None), ("min", None))
    ],
    "GatherGrad": [
        Sample([i64([9, 130]), integers(-9, 9, 700), (700, 130)]),
        Sample([i64([2, 9, 80]), INDEXED, (2, 300, 80)], {"axis": 1}),
    ],
    "ScatterND": [
        Sample([f32([nan, 1, 2, 3]), i64([[0], [1], [2]]), f32([4, nan, 9])], {"reduction": r}, opset=18, grad=())
        for r in ("max", "min")
    ],
    "MaxPool": [
        *(Sample([shape], attrs, outputs=1) for shape, attrs in (*WINDOWS, *DILATED)),
        *(
            Sample([integers(0, 3, *shape, dtype=np.float32)], attrs, outputs=2, grad=())
            for shape, attrs in (*WINDOWS[:7], *DILATED)
        ),
    ],
    "AveragePool": [
        Sample([shape], {**attrs, "count_include_pad": counted}, opset=19)
        for shape, attrs in (*WINDOWS, *DILATED)
        for counted in (0, 1)
    ],
    "Transpose": [
        *(Sample([shape], {"perm": perm}) for shape, perm in PERMUTED),
        *(Sample([integers(0, 99, 37, 53, dtype=t)], {"perm": [1, 0]}) for t in (np.uint8, np.uint16, np.int64)),
    ],
    "Slice": [Sample([(7, 9, 11), i64([5, 8, 9]), i64([0, -(2**63), 1]), i64([0, 1, 2]), i64([-1, -1, -2])])],
    "Expand": [Sample([(1, 5, 1), i64([3, 5, 6])])],
}


def cases(name: str) -> list[Case]:
    (cls,) = (cls for cls in registry() if cls.op_type() == name)
    # Other numbers than those of tests/ops/cases, of which the evaluator has faults.
    return [Case(cls, number, sample) for number, sample in enumerate(SIZES[name], 1000)]


CASES = [case for name in SIZES for case in cases(name)]
DIFFERENTIABLE = [case for case in CASES if case.cls.differentiable and wanted(case)]


@by_operator(CASES)
def test_results(case: Case) -> None:
    graph, feeds = graph_of(case)
    for reproducible in (False, True):
        core = InferenceCore(graph, reproducible=reproducible)
        try:
            results = core.run({name: from_numpy(name, x) for name, x in feeds.items()})
            for actual, expected in zip(results.values(), reference(case, inputs(case)), strict=False):
                compare(case, to_numpy(actual), expected)
        finally:
            core.host.release()


test_gradients = by_operator(DIFFERENTIABLE)(differentiate)


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1), (12, 1)])
def test_maxima_pass_nan_on(kernel: int, stride: int, run: Callable[..., Any] = run) -> None:
    x = holes(numbers(2, 3, 12, 13))
    sample = Sample([x], {"kernel_shape": [kernel] * 2, "strides": [stride] * 2})
    graph = single_node(MaxPool, [x], sample.attrs, 17)
    expected = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3)).max((4, 5))
    np.testing.assert_array_equal(run(graph, {"x0": x})["y0"], expected[:, :, ::stride, ::stride])
