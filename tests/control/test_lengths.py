"""Loops as long as a size that varies, or as a number that is fed: built once, trained at any length.

Against onnx's evaluator and differences of it in float64.
"""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.control.test_control_flow import (
    BOOL,
    FLOAT,
    INT,
    LOSS,
    SCANS,
    W,
    agree,
    body,
    gradient_agrees,
    gradients,
    info,
    model,
    node,
    recurrent,
    scan_agrees,
    scanned,
)
from tests.control.test_while import FEEDS, growing
from tests.python.sessions import infer

import trainweb
from trainweb.artifacts import OptimType, build_artifacts
from trainweb.errors import LimitError, UnsupportedError

X = np.random.default_rng(1).standard_normal((9, 3)).astype(np.float32)
LENGTHS = (1, 4, 9)


@pytest.mark.parametrize("n", LENGTHS)
def test_a_loop_over_a_size(n: int) -> None:
    agree(recurrent("size"), {"x": X[:n]})
    # With one row the first state is zero, and so is the gradient of the weight.
    gradient_agrees(recurrent("size"), {"x": X[:n]}, ["x", "w", "h0"] if n > 1 else ["x", "h0"])


@pytest.mark.parametrize("n", LENGTHS)
def test_a_loop_that_stacks_as_often_as_is_fed(n: int) -> None:
    feeds = {"x": X, "count": np.array(n)}
    agree(recurrent(None), feeds)
    gradient_agrees(recurrent(None), feeds, ["x", "w", "h0"] if n > 1 else ["x", "h0"])


@pytest.mark.parametrize("attrs", SCANS, ids=["plain", "one back", "rows back"])
@pytest.mark.parametrize("n", LENGTHS)
def test_a_scan_over_a_size(n: int, attrs: dict[str, Any]) -> None:
    proto = scanned(**attrs)
    for value, shape in zip(proto.graph.input, (["n", 3], [3, "n"]), strict=True):
        value.CopyFrom(info(value.name, FLOAT, shape))
    scan_agrees(proto, {"x": X[:n], "z": np.ascontiguousarray(X[:n].T[::-1])}, attrs)


def collecting(axis: int, new_axis: int, *, count: Any = "size") -> onnx.ModelProto:
    """As `recurrent`, with matrices; a list gets the states, of which all, the last and their number matter."""
    inner = body(
        [
            node("Gather", ["x", "t"], ["row"], axis=0),
            node("MatMul", ["row", "w"], ["m"]),
            node("Add", ["m", "h"], ["s"]),
            node("Tanh", ["s"], ["next"]),
            node("SequenceInsert", ["list", "next"], ["longer"]),
            node("Identity", ["go"], ["still"]),
        ],
        [info("t", INT, []), info("go", BOOL, []), sequence("list"), info("h", FLOAT, [2, 3])],
        [info("still", BOOL, []), sequence("longer"), info("next", FLOAT, [2, 3])],
    )
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "nought"], ["size"], axis=0),
        node("SequenceEmpty", [], ["empty"]),
        node("Loop", [count, "yes", "empty", "h0"], ["states", ""], "collect", body=inner),
        node("Identity", ["states"], ["same"]),
        node("ConcatFromSequence", ["same"], ["together"], axis=axis, new_axis=new_axis),
        node("SequenceAt", ["states", "last"], ["final"]),
        node("SequenceLength", ["states"], ["many"]),
        node("ReduceSum", ["final"], ["total"], keepdims=0),
        node("CastLike", ["many", "total"], ["number"]),
        node("Mul", ["total", "number"], ["weighted"]),
        node("CumSum", ["together", "nought"], ["down"]),
        node("CumSum", ["down", "last"], ["across"]),
        node("Add", ["across", "weighted"], ["y"]),
        *LOSS,
    ]
    constants = {"w": W, "h0": np.full((2, 3), 0.1, np.float32), "yes": np.array(True), "nought": np.array(0)}
    constants |= {"last": np.array(-1), "six": np.array(6)}
    return model(nodes, [info("x", FLOAT, ["n", 2, 3])], [info("loss", FLOAT, []), info("y", FLOAT, None)], constants)


def sequence(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_sequence_value_info(name, FLOAT, None)


@pytest.mark.parametrize(("axis", "new_axis"), [(0, 1), (1, 1), (-1, 1), (0, 0), (1, 0), (-2, 0)])
def test_a_list_that_a_loop_fills(axis: int, new_axis: int) -> None:
    proto = collecting(axis, new_axis)
    for n in (1, 4):
        x = np.random.default_rng(n).standard_normal((n, 2, 3)).astype(np.float32)
        agree(proto, {"x": x})
        gradient_agrees(proto, {"x": x}, ["x", "w", "h0"])
        # The inference session, which knows the length, writes the list out; a training model does not.
        with trainweb.TrainingSession.from_model(
            proto, requires_grad=["w"], loss=None, optimizer=OptimType.SGD
        ) as session:
            loss = onnx.reference.ReferenceEvaluator(proto).run(["loss"], {"x": x})[0]
            np.testing.assert_allclose(session.train_step({"x": x})["loss"], loss, rtol=1e-5)


def test_a_list_that_data_end_is_refused_by_name() -> None:
    proto = collecting(0, 1, count="size")
    loop = next(n for n in proto.graph.node if n.op_type == "Loop")
    (inner,) = [a.g for a in loop.attribute if a.name == "body"]
    inner.node[-1].CopyFrom(node("Less", ["t", "six"], ["still"]))
    inner.node.append(node("ReduceSum", ["next"], ["sum"], keepdims=0))
    inner.node.append(node("Cast", ["sum"], ["still_"], to=BOOL))
    inner.output[0].name = "still_"
    with pytest.raises(UnsupportedError, match=r"Loop node 'collect'.*condition is only known at run time"):
        build_artifacts(proto, requires_grad=["w"])


def test_one_session_trains_at_any_length() -> None:
    """The losses equal a model whose length is fixed."""
    losses = []
    for source in (recurrent("size"), None):
        found = []
        for n in (3, 7, 3):
            proto = source or recurrent(n)
            with trainweb.TrainingSession.from_model(
                proto, requires_grad=["w"], loss=None, optimizer=OptimType.SGD
            ) as session:
                session.set_learning_rate(0.3)
                for _ in range(2):
                    found.append(session.train_step({"x": X[:n]})["loss"])
                    found.append(session.eval_step({"x": X[:n]})["loss"])
                    session.optimizer_step()
                    session.lazy_reset_grad()
        losses.append(found)
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_no_iterations_hand_the_state_on() -> None:
    """Results that are stacked have no rows then, and weights get no gradient."""
    proto = recurrent(None)
    del proto.graph.node[-2:]
    proto.graph.node.extend([node("ReduceSum", ["y"], ["rows"], keepdims=0), node("Mul", ["last", "last"], ["sq"])])
    proto.graph.node.append(node("ReduceSum", ["sq"], ["length"], keepdims=0))
    proto.graph.node.append(node("Add", ["rows", "length"], ["loss"]))
    for t in proto.graph.initializer:
        if t.name == "h0":
            t.CopyFrom(numpy_helper.from_array(np.array([1, 2, 3], np.float32), "h0"))
    feeds = {"x": X, "count": np.array(0)}
    built = build_artifacts(proto, requires_grad=["w", "h0"], optimizer=OptimType.SGD)
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    with trainweb.TrainingSession(state, built.training_model, built.eval_model, built.optimizer_model) as session:
        session.set_learning_rate(0.5)
        assert session.train_step(feeds)["loss"] == 14
        session.optimizer_step()
        np.testing.assert_array_equal(np.array(state.parameters["w"].data), W)
        np.testing.assert_array_equal(np.array(state.parameters["h0"].data), [0, 0, 0])


def test_more_iterations_than_a_plan_can_have_are_refused() -> None:
    proto = recurrent(None)
    with trainweb.TrainingSession.from_model(proto, requires_grad=["w"], loss=None, optimizer=OptimType.SGD) as session:
        too_many = {"x": X, "count": np.array(65537)}
        with pytest.raises(LimitError, match=r"Repeat node 'unroll/Repeat'.*it has 65537 iterations.*at most 65536"):
            session.train_step(too_many)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_loop_that_data_end_in_a_branch_that_data_choose(chosen: bool) -> None:
    """The loop does not run if its branch is not chosen: over zeros it would not end."""
    source = growing(None).graph
    loop = next(n for n in source.node if n.op_type == "Loop")
    (inner,) = [a.g for a in loop.attribute if a.name == "body"]
    inner.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(1024, np.float32), "times"))
    # Zero is not beyond zero, so that it goes on.
    at = next(k for k, n in enumerate(inner.node) if n.op_type == "Less")
    inner.node[at].CopyFrom(node("Greater", ["length", "most"], ["longer"]))
    inner.node.insert(at + 1, node("Not", ["longer"], ["shorter"]))
    then = body([loop, node("Identity", ["y"], ["a"])], [], [info("a", FLOAT, [3])])
    other = body([node("Mul", ["x", "w0"], ["b"])], [], [info("b", FLOAT, [3])])
    nodes = [
        *list(source.node)[:2],
        node("Greater", ["total", "nothing"], ["some"]),
        node("If", ["some"], ["r"], "either", then_branch=then, else_branch=other),
        node("Identity", ["r"], ["y"]),
        *LOSS,
    ]
    constants = {t.name: numpy_helper.to_array(t) for t in source.initializer}
    constants |= {"nothing": np.float32(0), "w0": np.array([0.5, 2, 1], np.float32)}
    proto = model(nodes, [info("x", FLOAT, [3])], [info("loss", FLOAT, [])], constants)
    feeds = {"x": FEEDS["many"] if chosen else -FEEDS["many"]}
    agree(proto, feeds)
    gradient_agrees(proto, feeds, ["x", "w", "h0"] if chosen else ["x", "w0"])


def test_a_gradient_graph_of_a_model_with_a_loop() -> None:
    """`GradientGraphBuilder` writes control flow out, as artifacts do."""
    builder = trainweb.GradientGraphBuilder(recurrent("size"), ["loss"], ["x", "w"], "loss")
    builder.build()
    found = infer(builder.get_model(), {"x": X[:4]}, ["x_grad", "w_grad"])
    expected = gradients(recurrent(4), {"x": X[:4]}, ["x", "w"])
    np.testing.assert_allclose(found[0], expected["x_grad"], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found[1], expected["w_grad"], rtol=1e-5, atol=1e-7)
