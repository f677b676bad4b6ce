"""stop_gradient against the derivative worked out by hand: ONNX has no detach."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal

from trainweb.artifacts import build_artifacts
from trainweb.errors import ModelError
from trainweb.training.session import TrainingSession
from trainweb.training.state import CheckpointState

W, V = normal(3, 2, seed=1), normal(2, 2, seed=2)


def net() -> object:
    """h = x w, loss = mean((h v - h) ** 2): h is both the prediction's source and the target."""
    return make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
            helper.make_node("Identity", ["h"], ["target"], "target"),
            helper.make_node("MatMul", ["h", "v"], ["p"], "second"),
            helper.make_node("Sub", ["p", "target"], ["d"], "difference"),
            helper.make_node("Mul", ["d", "d"], ["s"], "square"),
            helper.make_node("ReduceMean", ["s"], ["loss"], "mean", keepdims=0),
        ],
        {"x": [4, 3]},
        {"loss": []},
        {"w": W, "v": V},
    )


@pytest.mark.parametrize("stopped", [[], ["target"]])
def test_no_gradient_goes_through_a_stopped_tensor(stopped: list[str]) -> None:
    from trainweb.artifacts import OptimType

    made = build_artifacts(net(), optimizer=OptimType.SGD, stop_gradient=stopped)
    x = normal(4, 3, seed=5)
    state = CheckpointState.load_checkpoint(made.checkpoint)
    with TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model) as session:
        session.set_learning_rate(1.0)
        session.train_step({"x": x})
        session.optimizer_step()
        moved = W.astype(np.float64) - session.get_parameter("w")
    x64, w64, v64 = (a.astype(np.float64) for a in (x, W, V))
    slope = 2 * (x64 @ w64 @ v64 - x64 @ w64) / 8
    towards = slope @ v64.T - (0 if stopped else slope)
    np.testing.assert_allclose(moved, x64.T @ towards, rtol=1e-4, atol=1e-6)


def test_what_lies_only_before_a_stop_is_not_trained() -> None:
    made = build_artifacts(net(), stop_gradient=["h"])
    assert [d.name for d in made.decisions if d.trained] == ["v"]
    with pytest.raises(ModelError, match="no tensor 'nothing'"):
        build_artifacts(net(), stop_gradient=["nothing"])
    with pytest.raises(ModelError, match="is the loss"):
        build_artifacts(net(), stop_gradient=["loss"])


def straight_through(added: list[str]) -> object:
    """y = h + (q - h), with h = x w and q = relu(h): what a straight-through estimator is without its detach."""
    return make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
            helper.make_node("Relu", ["h"], ["q"], "quantizer"),
            helper.make_node("Sub", ["q", "h"], ["d"], "difference"),
            helper.make_node("Add", added, ["y"], "again"),
            helper.make_node("MatMul", ["y", "v"], ["p"], "second"),
            helper.make_node("ReduceMean", ["p"], ["loss"], "mean", keepdims=0),
        ],
        {"x": [4, 3]},
        {"loss": []},
        {"w": W, "v": V},
    )


@pytest.mark.parametrize("added", [["h", "d"], ["d", "h"]], ids=["before", "after"])
def test_a_gradient_that_goes_straight_through_without_a_stop_is_warned_of(added: list[str]) -> None:
    with pytest.warns(UserWarning, match="'d' is left out.*stop_gradient"):
        made = build_artifacts(straight_through(added))
    assert [d.name for d in made.decisions if d.doubtful] == ["d"]
    assert [d.name for d in made.decisions if d.trained] == ["w", "v"]


def test_nothing_is_said_where_it_is_stopped_or_something_else_is_added() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_artifacts(straight_through(["h", "d"]), stop_gradient=["d"])
        build_artifacts(straight_through(["q", "d"]))
