"""Loops whose end is only known as they run: against onnx's evaluator and differences of it in float64."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.control.test_control_flow import BOOL, FLOAT, INT, LOSS, W, agree, body, gradient_agrees, info, model, node
from tests.control.test_control_flow import run as run_model
from tests.control.test_repeat import run_raw
from tests.python.sessions import take_steps

import trainweb
from trainweb.artifacts import Artifacts, OptimType, build_artifacts
from trainweb.autodiff.gradient import build_gradients
from trainweb.backend.engine import MORE
from trainweb.compiler.compile import compile_model
from trainweb.control import expand_control_flow, repeat
from trainweb.errors import LimitError, UnsupportedError
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import LOOP_ITERATIONS, Graph
from trainweb.model.reader import read_model
from trainweb.session.inference_session import InferenceSession
from trainweb.training.arrays import from_numpy
from trainweb.training.inference import InferenceCore

NO_MAXIMUM = 2**63 - 1
START = [0.1, 0.2, 0.05]
FEEDS = {
    "many": np.array(START, np.float32),
    "one": np.array([2, 2, 2], np.float32),
    "none": np.array([100, 1, 1], np.float32),
}


def growing(
    count: int | None, *, stacks: bool = False, counted: Sequence[Any] = (), outputs: Sequence[Any] = ()
) -> onnx.ModelProto:
    """h = tanh(h w) + h + (x + t / 50) while |h|^2 < 50, at most `count` times. With x of START it runs 17 times.

    It also counts down from seven in whole numbers, which is no state that gradients go through.
    """
    nodes = [
        node("MatMul", ["h", "w"], ["m"]),
        node("Tanh", ["m"], ["a"]),
        node("Add", ["a", "h"], ["s"]),
        node("Gather", ["times", "t"], ["late"], axis=0),
        node("Add", ["s", "late"], ["later"]),
        node("Add", ["later", "x"], ["next"]),
        node("Sub", ["k", "one"], ["fewer"]),
        node("Mul", ["next", "next"], ["sq"]),
        node("ReduceSum", ["sq"], ["length"], keepdims=0),
        node("Less", ["length", "most"], ["shorter"]),
        node("And", ["shorter", "go"], ["still"]),
    ]
    made = [info("still", BOOL, []), info("next", FLOAT, [3]), info("fewer", INT, [])]
    if stacks:
        nodes.append(node("Identity", ["next"], ["row"]))
        made.append(info("row", FLOAT, [3]))
    inner = body(
        nodes,
        [info("t", INT, []), info("go", BOOL, []), info("h", FLOAT, [3]), info("k", INT, [])],
        made,
        {"times": np.arange(1024, dtype=np.float32) / 50, "one": np.array(1)},
    )
    count_name = "count" if count is not None or counted else ""
    results = ["y", "left", *(["rows"] if stacks else [])]
    first = [
        *counted,
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Less", ["total", "most"], ["start"]),
        node("Loop", [count_name, "start", "h0", "seven"], results, "grow", body=inner),
    ]
    constants = {"w": W, "h0": np.full(3, 0.1, np.float32), "most": np.float32(50), "seven": np.array(7)}
    if count is not None:
        constants["count"] = np.array(count)
    made = [info("loss", FLOAT, []), info("y", FLOAT, [3]), info("left", INT, []), *outputs]
    return model([*first, *LOSS], [info("x", FLOAT, [3])], made, constants)


def op_types(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in expand_control_flow(read_model(proto), differentiable=True).nodes]


@pytest.mark.parametrize("x", FEEDS)
@pytest.mark.parametrize("count", [5000, 600, NO_MAXIMUM, None])
def test_a_loop_that_data_end_forward_and_backward(count: int | None, x: str) -> None:
    proto = growing(count)
    assert op_types(proto).count("RepeatWhile") == 1
    agree(proto, {"x": FEEDS[x]})
    gradient_agrees(proto, {"x": FEEDS[x]}, ["h0"] if x == "none" else ["x", "w", "h0"])


def test_the_count_ends_a_loop_whose_condition_holds() -> None:
    """It runs 700 times: nothing grows."""
    proto = growing(700)
    for t in proto.graph.initializer:
        if t.name == "most":
            t.CopyFrom(numpy_helper.from_array(np.float32(1e9), "most"))
    agree(proto, {"x": FEEDS["many"]})
    gradient_agrees(proto, {"x": FEEDS["many"]}, ["x", "h0"])


def test_it_leaves_as_soon_as_the_condition_is_false() -> None:
    """Of 5,000 iterations, 2 run: between instructions a run can be stopped, so slices count them."""
    core = InferenceCore(read_model(growing(5000)))
    loaded = core.plan({"x": TensorType("float32", (3,))})
    core.host.write_feeds(loaded, {"x": from_numpy("x", FEEDS["one"])})
    status, slices = core.engine.run_slice(loaded.ptr, anew=True, milliseconds=0), 1
    while status == MORE:
        status = core.engine.run_slice(loaded.ptr, anew=False, milliseconds=0)
        slices += 1
    core.host.release()
    assert status == 0
    assert slices < 5 * len(loaded.plan.text)


COUNTED = [
    node("ReduceMax", ["x"], ["largest"], keepdims=0),
    node("Mul", ["largest", "twenty"], ["many"]),
    node("Cast", ["many"], ["count"], to=INT),
]


def counted() -> onnx.ModelProto:
    """As `growing`, at most 20 times the largest of x."""
    proto = growing(None, counted=COUNTED)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(20), "twenty"))
    return proto


@pytest.mark.parametrize("largest", [-3.0, 0.01, 0.06, 0.26, 3.0])
def test_a_loop_whose_count_is_computed(largest: float) -> None:
    """0, 0, 1 and 5 times, and until the condition is false."""
    assert op_types(counted()).count("RepeatWhile") == 1
    feeds = {"x": np.array([-0.3, largest, largest / 2], np.float32)}
    agree(counted(), feeds)
    gradient_agrees(counted(), feeds, ["x", "w", "h0"] if largest > 0.05 else ["h0"])


@pytest.mark.parametrize("count", [0, 3, 40])
def test_a_count_that_is_fed_is_no_part_of_a_training_model(count: int) -> None:
    """A model whose artifacts are built leaves it open: it is a number as others are."""
    proto = growing(None, counted=[node("Identity", ["n"], ["count"])])
    proto.graph.input.append(info("n", INT, []))
    feeds = {"x": FEEDS["many"], "n": np.array(count)}
    agree(proto, feeds)
    gradient_agrees(proto, feeds, ["x", "w", "h0"] if count else ["h0"])


def test_rows_that_nobody_reads_do_not_matter() -> None:
    proto = growing(5000, stacks=True)
    agree(proto, {"x": FEEDS["many"]})
    gradient_agrees(proto, {"x": FEEDS["many"]}, ["x", "w"])


def test_rows_of_which_only_the_run_tells_the_number_are_refused_by_name() -> None:
    proto = growing(5000, stacks=True, outputs=[info("rows", FLOAT, None)])
    with pytest.raises(UnsupportedError, match=r"Loop node 'grow': how many rows its output 'rows' has.*ScatterND"):
        build_artifacts(proto, requires_grad=["w"])
    with pytest.raises(UnsupportedError, match=r"how many rows its output 'rows' has"):
        run_model(proto, None, {"x": FEEDS["many"]})


def test_room_of_iterations_that_did_not_run_is_not_looked_at() -> None:
    """This memory holds earlier values, and no numbers of a step."""
    graph = expand_control_flow(read_model(growing(None)), differentiable=True)
    extended = build_gradients(graph, "loss", ["x"])
    plan = compile_model(extended, {"x": TensorType("float32", (3,))}, ["loss", "x_grad"], keep_all=True)
    loops = [n for n in plan.inspected_nodes if n.op.startswith("RepeatWhile")]
    assert [n.op for n in loops] == ["RepeatWhile", "RepeatWhileGradient"]
    for kept in loops:
        names = [*kept.inputs, *kept.outputs]
        assert names
        assert not [name for name in names if "_before_" in name]


# ---- the limit


def test_the_limit_is_an_error_and_can_be_raised() -> None:
    proto, feeds = growing(None), {"x": np.zeros(3, np.float32)}
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((3, 3), np.float32), "w"))
    expected = onnx.reference.ReferenceEvaluator(proto).run(None, feeds)
    ran = 7 - int(np.asarray(expected[2]).item())
    assert 10 < ran < LOOP_ITERATIONS
    for limit in (ran, ran + 1, 65535):
        session = InferenceSession(proto, {"limits": {"loop_iterations": limit}})
        np.testing.assert_allclose(session.run(None, feeds)[1], expected[1], rtol=1e-5)
        session.release()
    session = InferenceSession(proto, {"limits": {"loop_iterations": ran - 1}})
    with pytest.raises(LimitError, match=f"grow.*exceeds the limit of {ran - 1} iterations.*loop_iterations"):
        session.run(None, feeds)
    # A run that ends in time is as good as before.
    np.testing.assert_allclose(
        session.run(["y"], {"x": FEEDS["one"]})[0],
        onnx.reference.ReferenceEvaluator(proto).run(["y"], {"x": FEEDS["one"]})[0],
        rtol=1e-5,
    )
    session.release()


@pytest.mark.parametrize("limit", [0, 65536])
def test_a_limit_that_a_plan_cannot_have_is_refused(limit: int) -> None:
    with pytest.raises(LimitError, match=f"loop_iterations is {limit}; it must be from 1 to 65535"):
        build_artifacts(growing(None), requires_grad=["w"], limits={"loop_iterations": limit})


def artifacts(limit: int) -> Artifacts:
    return build_artifacts(
        normalized(), requires_grad=["w"], optimizer=OptimType.AdamW, limits={"loop_iterations": limit}
    )


def normalized() -> onnx.ModelProto:
    """A batch normalization that trains, before the loop: its running statistics change in a step."""
    proto = growing(None)
    shape = {"by_column": np.array([1, 3, 1]), "as_row": np.array([3])}
    before = [
        node("Reshape", ["data", "by_column"], ["image"]),
        node(
            "BatchNormalization",
            ["image", "scale", "shift", "mean", "variance"],
            ["norm", "new_mean", "new_variance"],
            training_mode=1,
        ),
        node("Reshape", ["norm", "as_row"], ["normal"]),
        node("Add", ["normal", "data"], ["x"]),
    ]
    nodes = [*before, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.input[0].name = "data"
    ones = np.ones(3, np.float32)
    for name, value in {**shape, "scale": ones, "shift": 0 * ones, "mean": 0 * ones, "variance": ones}.items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    return proto


def test_a_step_beyond_the_limit_leaves_the_session_as_it_was() -> None:
    long, short = np.array(START, np.float32), np.array([2, 2, 2], np.float32)
    results = []
    for fails in (False, True):
        built = artifacts(4)
        state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
        with trainweb.TrainingSession(state, built.training_model, built.eval_model, built.optimizer_model) as session:
            losses = []
            for _ in range(3):
                losses.append(session.train_step({"data": short})["loss"])
                if fails:
                    with pytest.raises(LimitError, match="exceeds the limit of 4 iterations"):
                        session.train_step({"data": long})
                losses.append(session.train_step({"data": short + 1})["loss"])
                session.optimizer_step()
                session.lazy_reset_grad()
            buffers = [np.array(state.parameters[name].data) for name in ("mean", "variance", "w")]
            results.append((losses, np.array(session.get_contiguous_parameters()), buffers))
    (losses, w, buffers), (losses_too, w_too, buffers_too) = results
    np.testing.assert_array_equal(losses, losses_too)
    np.testing.assert_array_equal(w, w_too)
    for one, other in zip(buffers, buffers_too, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_loop_that_data_end_trains() -> None:
    with trainweb.TrainingSession.from_model(
        growing(None), requires_grad=["w"], loss=None, optimizer=OptimType.SGD
    ) as session:
        session.set_learning_rate(1e-4)
        losses = take_steps(session, {"x": FEEDS["one"]}, 5)
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["onnx::MatMul_31", "29"])
def test_a_weight_in_the_body_of_a_loop_is_known_by_what_reads_it(name: str) -> None:
    """Exporters give weights such names; a matrix that is multiplied with activations is one all the same."""
    proto = growing(None)
    loop = next(n for n in proto.graph.node if n.op_type == "Loop")
    (inner,) = [a.g for a in loop.attribute if a.name == "body"]
    inner.node[0].input[1] = next(t for t in proto.graph.initializer if t.name == "w").name = name
    (decision,) = [d for d in build_artifacts(proto).decisions if d.name == name]
    assert (decision.trained, decision.doubtful, decision.reason) == (True, False, "weight of a product")


# ---- loops within loops


def nested(outer: int | None, inner: int | None) -> onnx.ModelProto:
    """While the sum of what was reached is small: h grows as in `growing`, shrinks to a third, and is stacked.

    `outer` and `inner` are trip counts in place of conditions.
    """
    grown = body(
        [
            node("MatMul", ["g", "w"], ["m"]),
            node("Tanh", ["m"], ["a"]),
            node("Add", ["a", "g"], ["s"]),
            node("Add", ["s", "x"], ["next"]),
            node("Mul", ["next", "next"], ["sq"]),
            node("ReduceSum", ["sq"], ["length"], keepdims=0),
            node("Less", ["length", "most"], ["still"]),
        ],
        [info("j", INT, []), info("go", BOOL, []), info("g", FLOAT, [3])],
        [info("still" if inner is None else "go", BOOL, []), info("next", FLOAT, [3])],
    )
    nodes = [
        node("Loop", ["inner" if inner else "", "yes", "h"], ["large"], "in", body=grown),
        node("Mul", ["large", "third"], ["small"]),
        node("Add", ["total", "small"], ["sum"]),
        node("Abs", ["sum"], ["sizes"]),
        node("ReduceMax", ["sizes"], ["size"], keepdims=0),
        node("Less", ["size", "five"], ["more"]),
    ]
    made = [info("more" if outer is None else "again", BOOL, []), info("small", FLOAT, [3]), info("sum", FLOAT, [3])]
    results = ["h_last", "y"]
    if outer is not None:
        nodes.append(node("Mul", ["large", "large"], ["row"]))
        made.append(info("row", FLOAT, [3]))
        results.append("rows")
    around = body(
        nodes, [info("t", INT, []), info("again", BOOL, []), info("h", FLOAT, [3]), info("total", FLOAT, [3])], made
    )
    first = node("Loop", ["outer" if outer else "", "yes", "h0", "zeros"], results, "out", body=around)
    last = [*LOSS]
    if outer is not None:
        last = [
            node("Reshape", ["rows", "any"], ["flat"]),
            node("Concat", ["y", "flat"], ["all"], axis=0),
            node("Mul", ["all", "all"], ["squares"]),
            LOSS[1],
        ]
    constants = {"w": W, "h0": np.full(3, 0.1, np.float32), "most": np.float32(20), "five": np.float32(5)}
    constants |= {"zeros": np.zeros(3, np.float32), "third": np.float32(1 / 3), "yes": np.array(True)}
    constants |= {"any": np.array([-1]), "outer": np.array(outer or 0), "inner": np.array(inner or 0)}
    outputs = [info("loss", FLOAT, []), info("y", FLOAT, [3])]
    return model([first, *last], [info("x", FLOAT, [3])], outputs, constants)


NESTS = {"while in while": (None, None), "while in count": (4, None), "count in while": (None, 3), "counts": (4, 3)}


@pytest.mark.parametrize("nest", NESTS)
def test_a_loop_within_a_loop_forward_and_backward(nest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "WRITTEN_OUT_NODES", 0)
    proto, feeds = nested(*NESTS[nest]), {"x": FEEDS["many"]}
    (outer,) = [n for n in expand_control_flow(read_model(proto), differentiable=True).nodes if n.op_type in LOOPS]
    inner = outer.attrs["body"]
    assert isinstance(inner, Graph)
    assert [n.op_type for n in inner.nodes if n.op_type in LOOPS] == [LOOPS[NESTS[nest][1] is None]]
    agree(proto, feeds)
    gradient_agrees(proto, feeds, ["x", "w", "h0"])


LOOPS = ("Repeat", "RepeatWhile")


def test_long_loops_within_each_other_are_few_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "WRITTEN_OUT_NODES", 100)
    proto = nested(50, 40)
    agree(proto, {"x": FEEDS["many"]})
    core = InferenceCore(read_model(proto))
    plan = core.plan({"x": TensorType("float32", (3,))}).plan
    core.host.release()
    assert len(plan.text) < 60


def test_more_iterations_than_a_plan_may_have_are_refused() -> None:
    proto = nested(None, None)
    limits = {"limits": {"loop_iterations": 2000}}
    session = InferenceSession(proto, limits)
    with pytest.raises(LimitError, match=r"2 loops within each other have up to 4004001 iterations.*loop_iterations"):
        session.run(None, {"x": FEEDS["many"]})
    session.release()


# ---- plans that nobody compiled: buffers are 0: the counter, 1: a source, 2: a result

BEGIN, END = ("loop_begin", [0, 3, 0]), ("loop_end", [0, 0, 0])
PUT = ("loop_put", [1, 0, 2, 1, 3, 0])
NULL = 0xFFFFFFFF


def leave(condition: int = NULL, count: int = NULL, *, limit: int = 3, skip: int = 2) -> tuple[str, list[int]]:
    return ("loop_while", [condition, count, 0, limit, skip])


def test_a_false_condition_leaves_out_the_rest_of_the_loop() -> None:
    # The source is 0, 1, 2: its first byte is false.
    assert run_raw(BEGIN, leave(1), PUT, END) == ("TW_OK", [0], bytes(3))


def test_what_is_beyond_the_limit_fails() -> None:
    assert run_raw(BEGIN, leave(limit=2), PUT, END)[0] == "TW_LOOP_LIMIT"
    assert run_raw(leave(limit=1), counter=1)[0] == "TW_LOOP_LIMIT"


def test_a_count_that_is_reached_leaves() -> None:
    # The counter is its own limit.
    assert run_raw(BEGIN, leave(count=0, limit=0), PUT, END)[0] == "TW_OK"


@pytest.mark.parametrize("skip", [0, 1, 7, 2**31 - 1])
def test_to_leave_out_more_than_there_is_ends_the_run(skip: int) -> None:
    assert run_raw(BEGIN, leave(1, skip=skip), PUT, END)[0] == "TW_OK"


@pytest.mark.parametrize(("limit", "skip"), [(-1, 2), (3, -1)])
def test_negative_numbers_are_refused(limit: int, skip: int) -> None:
    assert run_raw(BEGIN, leave(1, limit=limit, skip=skip), PUT, END)[0] == "TW_BAD_ARGUMENT"


def test_a_count_outside_of_a_buffer_is_refused() -> None:
    assert run_raw(BEGIN, leave(count=1), PUT, END)[0] == "TW_BAD_EXTENT"
