"""Cases of trainweb.ops.softmax_loss."""

from typing import Any

import numpy as np
from tests.ops.cases import CASES, Bad, Cases, Sample, reference
from tests.ops.literals import f32, i32, i64

from trainweb.ops import softmax_loss

CASES[softmax_loss._Forward] = Cases(
    samples=(
        Sample([(3, 5)]),
        Sample([(2, 3, 4)], {"axis": 1}),
        Sample([(2, 3, 4)], {"axis": 1}, opset=11),
        Sample([(2, 40)], {"axis": -1}),
    ),
    bad=(Bad([(3, 5)], {"axis": 2}),),
)

CASES[softmax_loss._Backward] = Cases(
    samples=(
        Sample([(3, 5), (3, 5)]),
        Sample([(2, 3, 4), (2, 3, 4)], {"axis": 1}),
    ),
    bad=(Bad([(3, 5), (3, 4)]), Bad([(3, 5), (3, 5)], {"axis": 3})),
)

CASES[softmax_loss.SoftmaxCrossEntropyLoss] = Cases(
    samples=(
        Sample([(4, 5), i64([0, 4, 2, 2])], outputs=1),
        Sample([(4, 5), i32([0, 4, 2, 2])], {"reduction": "sum"}, outputs=1),
        Sample([(4, 5), i64([0, 4, -1, 2])], {"ignore_index": -1}, outputs=1),
        Sample(
            [(2, 3, 4), i64([[0, 1, 2, 0], [1, 2, 0, 1]]), f32([0.5, 1.0, 2.0])],
            outputs=1,
            grad=[0],
        ),
        Sample([(4, 5), i64([0, 4, 2, 2])], {"reduction": "none"}, outputs=1),
        Sample([(2, 3, 4), i64([[0, 1, 2, 0], [1, 2, 0, 1]])], outputs=2),
    ),
    bad=(Bad([(4, 5), i64([0, 1])]),),
)

CASES[softmax_loss._CrossEntropyGrad] = Cases(
    samples=(
        Sample([(), (4, 5), i64([0, 4, 2, 2])]),
        Sample([(4,), (4, 5), i64([0, 4, 2, 2])], {"reduction": "none"}),
    ),
    bad=(Bad([(), (4, 5), i64([0, 1])]),),
)

CASES[softmax_loss.NegativeLogLikelihoodLoss] = Cases(
    samples=(
        Sample([(4, 5), i64([0, 4, 2, 2])]),
        Sample([(4, 5), i32([0, 4, -1, 2])], {"reduction": "sum", "ignore_index": -1}),
        Sample([(2, 3, 4), i64([[0, 1, 2, 0], [1, 2, 0, 1]]), f32([0.5, 1.0, 2.0])], grad=[0]),
        Sample([(4, 5), i64([0, 4, 2, 2])], {"reduction": "none"}),
    ),
    bad=(Bad([(4, 5), i64([0, 1])]), Bad([(4, 5), i64([0, 1, 2, 3])], {"reduction": "max"})),
)


def slope(
    op: softmax_loss._CrossEntropy, dy: Any, shape: tuple[int, ...], labels: Any, weights: Any
) -> tuple[Any, Any]:
    """One at each label, and the weight of each position times dY."""
    clipped, w = weights_of(op, labels, shape[1], weights)
    onehot = np.zeros(shape)
    np.put_along_axis(onehot, np.expand_dims(clipped, 1), 1.0, axis=1)
    scale = w * dy / (w.sum() if op.reduction == "mean" and w.sum() else 1.0)
    return onehot, np.expand_dims(scale, 1)


def weights_of(op: softmax_loss._CrossEntropy, labels: Any, classes: int, weights: Any) -> tuple[Any, Any]:
    """(clipped labels, weight of each position) for the reference."""
    kept = np.ones(labels.shape) if op.ignore_index is None else (labels != op.ignore_index) * 1.0
    clipped = np.where(kept > 0, labels, 0).astype(np.int64)
    return clipped, kept if weights is None else kept * weights[clipped]


def as_3d(op: softmax_loss._AlongAxis, x: Any) -> Any:
    """The array as (outer, n, inner)."""
    return x.reshape(softmax_loss.view_3d(x.shape, op.axis_for(x.ndim), op.flattens))


@reference(softmax_loss._Backward)
def softmax_grad(op: softmax_loss._Backward, dy: Any, y: Any) -> Any:
    d, v = as_3d(op, dy), as_3d(op, y)
    if op.log:
        return (d - np.exp(v) * d.sum(axis=1, keepdims=True)).reshape(y.shape)
    return (v * (d - (v * d).sum(axis=1, keepdims=True))).reshape(y.shape)


@reference(softmax_loss._CrossEntropyGrad)
def cross_entropy_grad(
    op: softmax_loss._CrossEntropyGrad, dy: Any, log_prob: Any, labels: Any, weights: Any = None
) -> Any:
    onehot, scale = slope(op, dy, log_prob.shape, labels, weights)
    return ((0 if op.from_log else np.exp(log_prob)) - onehot) * scale
