"""Feeds whose values decide about shapes belong to the signature: a plan a value, kept and evicted as others."""

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model

import trainweb
from trainweb.artifacts import OptimType, build_artifacts
from trainweb.errors import UnsupportedError
from trainweb.session.inference_session import InferenceSession
from trainweb.training.arrays import to_numpy

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4) / 10


def windowed() -> onnx.ModelProto:
    """The mean of (x w)^2 over the first `count` rows, times `ratio` of them again: what a feed decides."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Slice", ["h", "zero", "count", "zero"], ["part"], "cut"),
        helper.make_node("Mul", ["part", "part"], ["square"], "square"),
        helper.make_node("ReduceMean", ["square"], ["loss"], "loss", keepdims=0),
    ]
    return make_model(
        nodes,
        {"x": ["batch", 3], "count": [1]},
        {"loss": []},
        {"w": WEIGHTS, "zero": np.zeros(1, np.int64)},
        types={"count": TensorProto.INT64},
    )


def gradient(x: np.ndarray, count: int) -> np.ndarray:
    part = x[:count].astype(np.float64)
    return 2 * part.T @ (part @ WEIGHTS) / (len(part) * WEIGHTS.shape[1])


def test_training_follows_the_value_of_a_feed() -> None:
    built = build_artifacts(windowed(), requires_grad=["w"], optimizer=OptimType.SGD)
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    with trainweb.TrainingSession(**built, options={"max_plans": 2}) as session:
        for count in (2, 5, 2, 1, 2):
            session.lazy_reset_grad()
            found = session.train_step({"x": x, "count": [count]})
            expected = float(((x[:count].astype(np.float64) @ WEIGHTS) ** 2).mean())
            assert float(found["loss"]) == pytest.approx(expected, rel=1e-6)
            np.testing.assert_allclose(
                to_numpy(session._core.get_gradient("w")), gradient(x, count), rtol=1e-5, atol=1e-6
            )
        # Of five steps with three values two plans are kept; each of the values had its own.
        assert len(session._core.plans) == 2
        assert {key[3][3] for key in session._core.plans} == {"(1,)", "(2,)"}  # type: ignore[index]


def test_a_plan_is_made_once_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InferenceSession(windowed())
    compiled: list[object] = []
    make = session._core.model.compile
    monkeypatch.setattr(session._core.model, "compile", lambda *a, **k: (compiled.append(a[0]), make(*a, **k))[1])
    x = np.ones((4, 3), np.float32)
    losses = [float(session.run(None, {"x": x, "count": np.array([n])})[0]) for n in (1, 3, 1, 3, 3)]
    assert len(compiled) == 2 and len(set(losses)) == 1
    session.release()


def counted() -> onnx.ModelProto:
    """Positions below the longest of some lengths: a shape that an operator computes which Python does not."""
    nodes = [
        helper.make_node("ReduceMax", ["lengths"], ["most"], keepdims=0),
        helper.make_node("Range", ["zero", "most", "one"], ["positions"]),
        helper.make_node("Unsqueeze", ["lengths", "last"], ["column"]),
        helper.make_node("Less", ["positions", "column"], ["mask"]),
    ]
    scalars = {"zero": np.int64(0), "one": np.int64(1), "last": np.array([1])}
    return make_model(
        nodes,
        {"lengths": ["n"]},
        {"mask": None},
        {k: np.asarray(v) for k, v in scalars.items()},
        types={"lengths": TensorProto.INT64, "mask": TensorProto.BOOL},
    )


def test_shapes_that_the_engine_computes_from_feeds() -> None:
    session, oracle = InferenceSession(counted()), onnx.reference.ReferenceEvaluator(counted())
    for lengths in ([3, 1, 4], [2, 2, 2], [1], [5, 0]):
        feeds = {"lengths": np.array(lengths, np.int64)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], oracle.run(None, feeds)[0])
    session.release()


def test_more_numbers_than_may_decide_are_refused() -> None:
    session = InferenceSession(counted())
    with pytest.raises(UnsupportedError, match="only known at run time"):
        session.run(None, {"lengths": np.ones(5000, np.int64)})
    session.release()


def cut_along_fed_axes() -> onnx.ModelProto:
    """The mean of the squares of x w within a mirrored margin, cut along as many axes as are fed."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Pad", ["h", "pads", "", "padded"], ["wide"], "margin", mode="reflect"),
        helper.make_node("Slice", ["wide", "starts", "ends", "axes", "steps"], ["part"], "cut"),
        helper.make_node("Mul", ["part", "part"], ["square"], "square"),
        helper.make_node("ReduceMean", ["square"], ["loss"], "loss", keepdims=0),
    ]
    fed = {"pads": ["p"], "padded": [1], "starts": ["k"], "ends": ["k"], "axes": ["k"], "steps": ["k"]}
    return make_model(
        nodes,
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3]),
            *(helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in fed.items()),
        ],
        {"loss": []},
        {"w": WEIGHTS},
        opset=18,
    )


def cut_in_numpy(
    x: np.ndarray, w: np.ndarray, axis: int, pads: list[int], cuts: list[tuple[int, int, int, int]]
) -> float:
    """The loss of `cut_along_fed_axes`; each cut is an axis, its start, its end and its step."""
    margins = [(0, 0), (0, 0)]
    margins[axis] = (pads[0], pads[1])
    index = [slice(None), slice(None)]
    for along, start, end, step in cuts:
        index[along] = slice(start, end, step)
    return float((np.pad(x @ w, margins, mode="reflect")[tuple(index)] ** 2).mean())


def test_training_with_as_many_axes_as_are_fed() -> None:
    built = build_artifacts(cut_along_fed_axes(), requires_grad=["w"], optimizer=OptimType.SGD)
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    wide = WEIGHTS.astype(np.float64)
    cases = [
        (0, [2, 1], [(0, 1, 7, 1)]),
        (1, [1, 3], [(0, 1, 5, 2), (1, 2, 8, 1)]),
        (1, [0, 2], [(1, -1, 0, -2), (0, 0, 3, 1)]),
    ]
    with trainweb.TrainingSession(**built) as session:
        for axis, pads, cuts in cases:
            axes, starts, ends, steps = (list(column) for column in zip(*cuts, strict=True))
            fed = {"pads": pads, "padded": [axis], "starts": starts, "ends": ends, "axes": axes, "steps": steps}
            session.lazy_reset_grad()
            found = session.train_step({"x": x, **{name: np.array(n) for name, n in fed.items()}})
            assert float(found["loss"]) == pytest.approx(cut_in_numpy(x, wide, axis, pads, cuts), rel=1e-5)
            expected = np.zeros_like(wide)
            for place in np.ndindex(*wide.shape):
                step = np.zeros_like(wide)
                step[place] = 1e-5
                high, low = (cut_in_numpy(x.astype(np.float64), wide + s, axis, pads, cuts) for s in (step, -step))
                expected[place] = (high - low) / 2e-5
            np.testing.assert_allclose(
                to_numpy(session._core.get_gradient("w")), expected, rtol=1e-4, atol=1e-6, err_msg=str(cuts)
            )


def test_training_with_a_range_of_fed_floats() -> None:
    """The mean of ((x w)_k k / 2)^2 over the positions below a limit, which is a float."""
    nodes = [
        helper.make_node("Range", ["start", "limit", "half"], ["places"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Mul", ["h", "places"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "scaled"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
    ]
    fed = {"x": [2, 3], "limit": [], "start": []}
    proto = make_model(nodes, fed, {"loss": []}, {"w": WEIGHTS, "half": np.float32(0.5)})
    built = build_artifacts(proto, requires_grad=["w"], optimizer=OptimType.SGD)
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    with trainweb.TrainingSession(**built) as session:
        for start, limit in ((0.0, 2.0), (-1.0, 0.9)):  # four places, as w has columns
            session.lazy_reset_grad()
            found = session.train_step({"x": x, "limit": np.float32(limit), "start": np.float32(start)})
            places = np.arange(start, limit, 0.5)
            h = x.astype(np.float64) @ WEIGHTS * places
            assert float(found["loss"]) == pytest.approx(float((h**2).mean()), rel=1e-5)
            expected = x.T.astype(np.float64) @ (2 * h * places / h.size)
            np.testing.assert_allclose(to_numpy(session._core.get_gradient("w")), expected, rtol=1e-4, atol=1e-6)
