"""Gradient norms, dead units and one batch by heart, against numpy in float64."""

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal

import trainweb
from trainweb.artifacts import LossType, OptimType
from trainweb.errors import FeedError

from .sessions import batch, session, unchanged


def opened(model: Any, loss: LossType = LossType.MSELoss, **options: Any) -> trainweb.TrainingSession:
    return trainweb.TrainingSession.from_model(model, loss=loss, optimizer=OptimType.AdamW, **options)


def test_norms_are_those_of_the_gradients() -> None:
    with session() as s:
        assert set(s.gradient_norms().values()) == {0.0}
        s.train_step(batch(seed=1))
        s.train_step(batch(seed=2))
        norms = s.gradient_norms()
        assert list(norms) == s.parameter_names(trainable_only=True)
        for name, norm in norms.items():
            gradient = s.get_gradient(name).astype(np.float64)
            assert norm == pytest.approx(np.linalg.norm(gradient), rel=1e-12) and norm > 0


def test_norms_beyond_float32() -> None:
    net = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["b", 2]}, {"y": ["b", 1]}, {"w": normal(2, 1)}
    )
    with opened(net) as s:
        x = np.full((1, 2), 1e15, np.float32)
        (target,) = {*s.input_names()} - {"x"}
        s.train_step({"x": x, target: np.zeros((1, 1), np.float32)})
        gradient = s.get_gradient("w").astype(np.float64)
        # The squares are beyond float32.
        assert (np.abs(gradient) > 1e20).all()
        assert s.gradient_norms()["w"] == pytest.approx(np.sqrt((gradient**2).sum()))


DEAD = np.array([1.0, -50.0, 1.0, -50.0], np.float32)
"""Biases: the second and the fourth unit never fire."""


def dense(rectifier: Any) -> Any:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "bias"], ["h"]),
        *rectifier,
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    constants = {"w": normal(3, 4), "bias": DEAD, "v": normal(4, 2), "zero": np.float32(0), "six": np.float32(6)}
    return make_model(nodes, {"x": ["b", 3]}, {"y": ["b", 2]}, constants)


RECTIFIERS = {
    "Relu": [helper.make_node("Relu", ["h"], ["r"], "act")],
    "ReLU6": [helper.make_node("Clip", ["h", "zero", "six"], ["r"], "act")],
    "ThresholdedRelu": [helper.make_node("ThresholdedRelu", ["h"], ["r"], "act", alpha=0.5)],
}


@pytest.mark.parametrize("kind", list(RECTIFIERS))
def test_units_that_never_fire(kind: str) -> None:
    with opened(dense(RECTIFIERS[kind])) as s:
        warm_feeds = [feeds_of(s, normal(5, 3, seed=k)) for k in range(2)]
        with unchanged(s):
            (found,) = s.dead_units(warm_feeds)
        assert (found.tensor, found.axis, found.units, found.dead) == ("r", 1, 4, [1, 3])
        assert "'act'" in found.node
        # One row that makes the second unit fire is enough.
        w, bias = s.get_parameter("w").astype(np.float64), DEAD
        x = 200 * w[:, 1] / np.dot(w[:, 1], w[:, 1])
        fires = ((np.concatenate([*(f["x"] for f in warm_feeds), x[None]]) @ w + bias) > 0).any(axis=0)
        (found,) = s.dead_units([*warm_feeds, feeds_of(s, x[None].astype(np.float32))])
        assert found.dead == np.flatnonzero(~fires).tolist() and 1 not in found.dead


def feeds_of(s: trainweb.TrainingSession, x: np.ndarray, columns: int = 2) -> dict[str, np.ndarray]:
    (target,) = {*s.input_names(training=False)} - {"x"}
    return {"x": x, target: np.zeros((len(x), columns), np.float32)}


def test_units_of_convolutions_are_channels_and_those_of_products_columns() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "bias"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("BatchNormalization", ["c", "one", "none", "none", "one"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["m"], axes=[3], keepdims=0),
        helper.make_node("MatMul", ["m", "v"], ["p"]),
        helper.make_node("Add", ["p", "shift"], ["q"]),
        helper.make_node("Relu", ["q"], ["z"]),
        helper.make_node("ReduceMean", ["z"], ["y"], axes=[1], keepdims=0),
    ]
    constants = {
        "w": np.ones((4, 1, 1, 1), np.float32),
        "bias": DEAD,
        "one": np.ones(4, np.float32),
        "none": np.zeros(4, np.float32),
        "v": np.ones((3, 2), np.float32),
        "shift": np.array([0, -99], np.float32),
    }
    net = make_model(nodes, {"x": ["b", 1, 3, 5]}, {"y": ["b", 2]}, constants)
    with opened(net) as s:
        first, second = s.dead_units([feeds_of(s, np.ones((2, 1, 3, 5), np.float32))])
    assert (first.tensor, first.axis, first.dead) == ("r", 1, [1, 3])
    assert (second.tensor, second.axis, second.units, second.dead) == ("z", 2, 2, [1])


def test_wrong_batches_are_refused() -> None:
    with session() as s:
        with pytest.raises(FeedError, match="There are no batches"):
            s.dead_units([])
        with pytest.raises(TypeError, match="'batches' must be a sequence of feeds"):
            s.dead_units(batch())  # type: ignore[arg-type]
        with pytest.raises(FeedError):
            s.dead_units([{"x": np.zeros((2, 5), np.float32)}])
