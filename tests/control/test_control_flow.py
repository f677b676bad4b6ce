"""Control flow: forward against onnx's evaluator, gradients against central differences of it in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.python.sessions import infer

import trainweb
from trainweb.artifacts import OptimType, build_artifacts
from trainweb.autodiff.gradient import build_gradients
from trainweb.control import expand_control_flow
from trainweb.control.expansion import Expansion
from trainweb.errors import LimitError, ModelError, UnsupportedError
from trainweb.model.graph import Graph, Node, Value
from trainweb.model.reader import read_model
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.inference import InferenceCore

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
STEP = 1e-5
"""Central differences in float64: errors of STEP^2 and 1e-16 / STEP."""
node = helper.make_node


def info(name: str, dtype: int = FLOAT, dims: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def body(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, np.ndarray] | None = None
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    return helper.make_graph(nodes, "body", inputs, outputs, tensors)


def model(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = body(nodes, inputs, outputs, constants)
    graph.name = "model"
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(proto: onnx.ModelProto, names: Sequence[str] | None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return infer(proto, feeds, names)


def agree(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Our results equal onnx's evaluator."""
    for found, expected in zip(
        run(proto, None, feeds), onnx.reference.ReferenceEvaluator(proto).run(None, feeds), strict=True
    ):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def gradients(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], wanted: Sequence[str]) -> dict[str, np.ndarray]:
    """Our gradients of `loss`."""
    graph = expand_control_flow(read_model(proto), differentiable=True)
    extended = build_gradients(graph, "loss", list(wanted))
    extended.outputs = [Value(f"{w}_grad", "float32", None) for w in wanted]
    core = InferenceCore(extended)
    found = {n: to_numpy(t) for n, t in core.run({n: from_numpy(n, feeds[n]) for n in core.inputs}).items()}
    core.host.release()
    return found


def gradient_agrees(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], wanted: Sequence[str]) -> None:
    """The gradient of `loss` by float feeds and initializers is that of differences of onnx's evaluator in float64."""
    found = gradients(proto, feeds, wanted)
    wide = as_float64(proto)
    values = {**{t.name: numpy_helper.to_array(t) for t in wide.graph.initializer}, **feeds}

    def loss(**moved: np.ndarray) -> float:
        changed = onnx.ModelProto.FromString(wide.SerializeToString())
        for t in changed.graph.initializer:
            if t.name in moved:
                t.CopyFrom(numpy_helper.from_array(moved[t.name], t.name))
        given = {n: moved.get(n, x.astype(np.float64) if x.dtype == np.float32 else x) for n, x in feeds.items()}
        with np.errstate(all="ignore"):
            return float(np.asarray(onnx.reference.ReferenceEvaluator(changed).run(["loss"], given)[0]).item())

    check_differences(found, values, loss, wanted)


def check_differences(
    found: dict[str, np.ndarray], values: dict[str, np.ndarray], loss: Callable[..., float], wanted: Sequence[str]
) -> None:
    """Gradients along a random direction are differences of the loss."""
    rng = np.random.default_rng(5)
    for name in wanted:
        x = values[name].astype(np.float64)
        direction = rng.standard_normal(x.shape)
        numeric = (loss(**{name: x + STEP * direction}) - loss(**{name: x - STEP * direction})) / (2 * STEP)
        terms = found[f"{name}_grad"].astype(np.float64) * direction
        assert np.isfinite(terms).all()
        assert np.abs(terms).sum() > 1e-4, "nothing was tested"
        assert float(terms.sum()) == pytest.approx(numeric, rel=0, abs=1e-4 * float(np.abs(terms).sum()))


def as_float64(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with doubles for floats, in bodies too."""
    wide = onnx.ModelProto.FromString(proto.SerializeToString())

    def widen(graph: onnx.GraphProto) -> None:
        for t in graph.initializer:
            if t.data_type == FLOAT:
                t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))
        for v in (*graph.input, *graph.output, *graph.value_info):
            if v.type.tensor_type.elem_type == FLOAT:
                v.type.tensor_type.elem_type = TensorProto.DOUBLE
        for n in graph.node:
            for a in n.attribute:
                if a.HasField("g"):
                    widen(a.g)

    widen(wide.graph)
    return wide


X = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
W = np.random.default_rng(2).standard_normal((3, 3)).astype(np.float32) / 2
LOSS = [node("Mul", ["y", "y"], ["squares"]), node("ReduceMean", ["squares"], ["loss"], keepdims=0)]


def branches(condition: list[Any], *inputs: Any) -> onnx.ModelProto:
    """y = tanh(x w) or sqrt(x w + 9): each captures x and the weight."""
    then = body([node("MatMul", ["x", "w"], ["h"]), node("Tanh", ["h"], ["t"])], [], [info("t", FLOAT, ["n", 3])])
    other = body(
        [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "nine"], ["s"]), node("Sqrt", ["s"], ["t"])],
        [],
        [info("t", FLOAT, ["n", 3])],
        {"nine": np.float32(9)},
    )
    nodes = [*condition, node("If", ["c"], ["y"], "choice", then_branch=then, else_branch=other), *LOSS]
    return model(nodes, [info("x", FLOAT, ["n", 3]), *inputs], [info("loss", FLOAT, [])], {"w": W})


CONDITION = [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "nought"], ["c"])]


def by_data() -> onnx.ModelProto:
    proto = branches(CONDITION)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0), "nought"))
    return proto


@pytest.mark.parametrize("sign", [1, -1])
def test_both_branches_run_where_data_choose(sign: int) -> None:
    feeds = {"x": sign * np.abs(X)}
    agree(by_data(), feeds)
    gradient_agrees(by_data(), feeds, ["x", "w"])


def test_no_gradient_of_the_branch_that_is_not_chosen_gets_through() -> None:
    """The root of a negative number, and its gradient, are no numbers: x w + 9 with x = 100 has some."""
    feeds = {"x": 100 * np.abs(X)}
    with np.errstate(invalid="ignore"):
        assert np.isnan(np.sqrt(feeds["x"] @ W + 9)).any()
    proto = by_data()
    then = next(a.g for a in proto.graph.node[2].attribute if a.name == "then_branch")
    then.node[1].op_type = "Identity"  # tanh would be flat
    gradient_agrees(proto, feeds, ["x", "w"])


@pytest.mark.parametrize("chosen", [True, False])
def test_a_condition_that_is_fed(chosen: bool) -> None:
    proto = branches([], info("c", BOOL, []))
    feeds = {"x": X, "c": np.array(chosen)}
    agree(proto, feeds)
    gradient_agrees(proto, feeds, ["x", "w"])


def test_a_known_condition_is_its_branch_whatever_the_other_is() -> None:
    """Rank decides in exports of torch.squeeze: the branches have other shapes, and one is not even supported."""
    then = body([node("Squeeze", ["x", "one"], ["a"])], [], [info("a", FLOAT, None)])
    other = body([node("RandomUniformLike", ["x"], ["a"])], [], [info("a", FLOAT, None)])
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["size"], axis=0),
        node("Equal", ["size", "one"], ["c"]),
        node("If", ["c"], ["y"], "squeeze", then_branch=then, else_branch=other),
    ]
    proto = model(nodes, [info("x", FLOAT, ["n", 1, 3])], [info("y", FLOAT, None)], {"one": np.array([1])})
    agree(proto, {"x": X[:, None]})
    graph = expand_control_flow(read_model(proto))
    assert [n.op_type for n in graph.nodes if n.op_type not in ("Shape", "Gather", "Equal")] == ["Squeeze", "Identity"]


def of_other_sizes(
    condition: list[Any], *inputs: Any, constants: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """y = the first rows of tanh(x w), or x u twice, a column beside the other: u is a weight of its branch."""
    then = body(
        [
            node("MatMul", ["x", "w"], ["h"]),
            node("Tanh", ["h"], ["t"]),
            node("Slice", ["t", "from", "to", "from"], ["a"]),
        ],
        [],
        [info("a", FLOAT, ["rows", "columns"])],
        {"from": np.array([0]), "to": np.array([2])},
    )
    other = body(
        [node("MatMul", ["x", "u"], ["h"]), node("Concat", ["h", "h", "x"], ["a"], axis=1)],
        [],
        [info("a", FLOAT, ["rows", "columns"])],
        {"u": W[:, :2] + 1},
    )
    nodes = [*condition, node("If", ["c"], ["y"], "sizes", then_branch=then, else_branch=other), *LOSS]
    return model(nodes, [info("x", FLOAT, ["n", 3]), *inputs], [info("loss", FLOAT, [])], {"w": W, **(constants or {})})


BY_COUNT = [node("Mul", ["count", "two"], ["twice"]), node("Greater", ["twice", "limit"], ["c"])]
BY_SIZE = [
    node("Shape", ["x"], ["shape"]),
    node("Gather", ["shape", "nought"], ["rows"], axis=0),
    node("Less", ["rows", "limit"], ["c"]),
]
NUMBERS = {"two": np.array([2]), "limit": np.array([5]), "nought": np.array([0])}
SIZES = [
    (of_other_sizes([], info("c", BOOL, [])), {"x": X, "c": np.array(True)}, "w"),
    (of_other_sizes([], info("c", BOOL, [1])), {"x": X, "c": np.array([False])}, "u"),
    (of_other_sizes(BY_COUNT, info("count", INT, [1]), constants=NUMBERS), {"x": X, "count": np.array([3])}, "w"),
    (of_other_sizes(BY_COUNT, info("count", INT, [1]), constants=NUMBERS), {"x": X, "count": np.array([2])}, "u"),
    (of_other_sizes(BY_SIZE, constants=NUMBERS), {"x": X}, "w"),
    (of_other_sizes(BY_SIZE, constants=NUMBERS), {"x": np.concatenate([X, X])}, "u"),
]


@pytest.mark.parametrize(("proto", "feeds", "read"), SIZES)
def test_branches_of_other_sizes_train_where_feeds_or_sizes_choose(
    proto: onnx.ModelProto, feeds: dict[str, np.ndarray], read: str
) -> None:
    agree(proto, feeds)
    graph = expand_control_flow(read_model(proto), differentiable=True)
    assert [n.op_type for n in graph.nodes if n.op_type in ("Branch", "Where")] == ["Branch"]
    lifted = onnx.ModelProto()
    lifted.CopyFrom(proto)
    other = next(a.g for n in lifted.graph.node for a in n.attribute if a.name == "else_branch")
    lifted.graph.initializer.append(other.initializer.pop())
    gradient_agrees(lifted, feeds, ["x", read])
    unread = "u" if read == "w" else "w"
    assert not gradients(lifted, feeds, [unread])[f"{unread}_grad"].any()


def test_a_fed_condition_is_part_of_the_signature() -> None:
    """Each value has a plan with the nodes of its branch alone; labels do not decide, and are not among them."""
    proto = of_other_sizes([], info("c", BOOL, []))
    proto.graph.input.append(info("scale", INT, [1]))
    proto.graph.node.extend([node("Cast", ["scale"], ["by"], to=FLOAT), node("Mul", ["loss", "by"], ["scaled"])])
    proto.graph.output[0].CopyFrom(info("scaled", FLOAT, None))
    with trainweb.TrainingSession.from_model(
        proto, requires_grad=["w", "u"], loss=None, optimizer=OptimType.SGD
    ) as session:
        for c, scale in ((True, 1), (False, 1), (True, 2), (False, 3)):
            session.lazy_reset_grad()
            found = session.train_step({"x": X, "c": np.array(c), "scale": np.array([scale])})
            y = np.tanh(X @ W)[:2] if c else np.concatenate([X @ (W[:, :2] + 1)] * 2 + [X], axis=1)
            assert float(found["scaled"].reshape(())) == pytest.approx(scale * float((y**2).mean()), rel=1e-5)
            for name, chosen in (("w", c), ("u", not c)):
                assert to_numpy(session._core.get_gradient(name)).any() == chosen
        assert len(session._core.plans) == 2


def test_what_decides_within_a_branch_decides_and_nothing_else() -> None:
    """Rows that a branch cuts off by a feed; what the loss is multiplied with is read in no branch."""
    then = body([node("Slice", ["h", "nought", "count", "nought"], ["a"])], [], [info("a", FLOAT, None)])
    other = body([node("Concat", ["h", "h"], ["a"], axis=1)], [], [info("a", FLOAT, None)])
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("If", ["c"], ["y"], "cut", then_branch=then, else_branch=other),
        *LOSS,
        node("Cast", ["scale"], ["by"], to=FLOAT),
        node("Mul", ["loss", "by"], ["scaled"]),
    ]
    inputs = [info("x", FLOAT, ["n", 3]), info("c", BOOL, []), info("count", INT, [1]), info("scale", INT, [])]
    proto = model(nodes, inputs, [info("scaled", FLOAT, [])], {"w": W, "nought": np.array([0])})
    built = build_artifacts(proto, requires_grad=["w"], optimizer=OptimType.SGD)
    models = (built.training_model, built.eval_model, built.optimizer_model)
    oracle = onnx.reference.ReferenceEvaluator(proto)
    with trainweb.TrainingSession(trainweb.CheckpointState.load_checkpoint(built.checkpoint), *models) as session:
        assert session._core.models.deciding["train"] == {"c", "count"}
        for c, count, scale in ((True, 1, 2), (True, 3, 5), (False, 3, 5)):
            feeds = {"x": X, "c": np.array(c), "count": np.array([count]), "scale": np.array(scale)}
            np.testing.assert_allclose(session.train_step(feeds)["scaled"], oracle.run(None, feeds)[0], rtol=1e-5)


@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("d", [True, False])
def test_a_fed_condition_within_a_branch_before_a_layer(c: bool, d: bool) -> None:
    first = body([node("Slice", ["x", "nought", "one", "nought"], ["b"])], [], [info("b", FLOAT, None)])
    all_ = body([node("Mul", ["x", "x"], ["b"])], [], [info("b", FLOAT, None)])
    then = body([node("Concat", ["x", "x"], ["a"], axis=0)], [], [info("a", FLOAT, None)])
    other = body([node("If", ["d"], ["a"], "inner", then_branch=first, else_branch=all_)], [], [info("a", FLOAT, None)])
    nodes = [
        node("If", ["c"], ["h"], "outer", then_branch=then, else_branch=other),
        node("MatMul", ["h", "w"], ["y"]),
        *LOSS,
    ]
    inputs = [info("x", FLOAT, ["n", 3]), info("c", BOOL, []), info("d", BOOL, [])]
    proto = model(nodes, inputs, [info("loss", FLOAT, [])], {"w": W, "nought": np.array([0]), "one": np.array([1])})
    feeds = {"x": X, "c": np.array(c), "d": np.array(d)}
    agree(proto, feeds)
    gradient_agrees(proto, feeds, ["x", "w"])


def test_what_a_branch_demands_of_sizes_holds_where_it_is_chosen() -> None:
    """One needs images of 3, the other of 5 rows; that such demands exclude each other does not matter."""
    parts = []
    for rows in (3, 5):
        nodes = [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["t", "v"], ["a"])]
        v = {"v": np.random.default_rng(rows).standard_normal((rows, rows)).astype(np.float32)}
        parts.append(body(nodes, [], [info("a", FLOAT, None)], v))
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("If", ["c"], ["y"], "images", then_branch=parts[0], else_branch=parts[1]),
        node("ReduceMean", ["h"], ["mean"], keepdims=0),
        node("Mul", ["y", "mean"], ["scaled"]),
        node("ReduceMean", ["scaled"], ["loss"], keepdims=0),
    ]
    inputs = [info("x", FLOAT, ["n", 3]), info("c", BOOL, [])]
    proto = model(nodes, inputs, [info("loss", FLOAT, [])], {"w": W})
    built = build_artifacts(proto, requires_grad=["w"], optimizer=OptimType.SGD)
    models = (built.training_model, built.eval_model, built.optimizer_model)
    oracle = onnx.reference.ReferenceEvaluator(proto)
    with trainweb.TrainingSession(trainweb.CheckpointState.load_checkpoint(built.checkpoint), *models) as session:
        for c, n in ((True, 3), (False, 5)):
            feeds = {"x": np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32), "c": np.array(c)}
            found = session.train_step(feeds)["loss"]
            np.testing.assert_allclose(found, oracle.run(None, feeds)[0], rtol=1e-5)
        with pytest.raises(ModelError, match="MatMul"):
            session.train_step({"x": np.zeros((5, 3), np.float32), "c": np.array(True)})


def test_branches_of_other_ranks_or_of_other_sizes_by_data_are_refused() -> None:
    by_data = of_other_sizes(CONDITION, constants={"nought": np.float32(0)})
    with pytest.raises(UnsupportedError, match=r"sizes.*whether a result is"):
        build_artifacts(by_data, requires_grad=["w"])
    proto = of_other_sizes([], info("c", BOOL, []))
    then = next(a.g for a in proto.graph.node[0].attribute if a.name == "then_branch")
    then.node.append(node("ReduceMax", ["a"], ["b"], keepdims=0))
    then.output[0].CopyFrom(info("b", FLOAT, []))
    with pytest.raises(UnsupportedError, match=r"sizes.*'c' must be known here.*Make 'c' an initializer"):
        build_artifacts(proto, requires_grad=["w"])


def test_a_branch_that_draws_needs_a_known_condition() -> None:
    then = body([node("RandomNormalLike", ["x"], ["a"], seed=1.0)], [], [info("a", FLOAT, ["n", 3])])
    other = body([node("Identity", ["x"], ["a"])], [], [info("a", FLOAT, ["n", 3])])
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "nought"], ["c"]),
        node("If", ["c"], ["y"], "drawn", then_branch=then, else_branch=other),
    ]
    proto = model(nodes, [info("x", FLOAT, ["n", 3])], [info("y", FLOAT, None)], {"nought": np.float32(0)})
    with pytest.raises(UnsupportedError, match=r"drawn.*RandomNormalLike"):
        run(proto, None, {"x": X})


def recurrent(count: Any, condition: bool = True) -> onnx.ModelProto:
    """h = tanh(x[t] + h w) for t below `count`; all h are stacked."""
    inner = body(
        [
            node("Gather", ["x", "t"], ["row"], axis=0),
            node("MatMul", ["h", "w"], ["m"]),
            node("Add", ["m", "row"], ["s"]),
            node("Tanh", ["s"], ["next"]),
            node("Identity", ["go"], ["still"]),
        ],
        [info("t", INT, []), info("go", BOOL, []), info("h", FLOAT, [3])],
        [info("still", BOOL, []), info("next", FLOAT, [3]), info("next", FLOAT, [3])],
    )
    inner.output[2].name = "row_out"
    inner.node.append(node("Identity", ["next"], ["row_out"]))
    nodes = [node("Loop", ["count", "yes", "h0"], ["last", "y"], "unroll", body=inner), *LOSS]
    inputs = [info("x", FLOAT, ["n", 3])]
    constants = {"w": W, "h0": np.zeros(3, np.float32), "yes": np.array(condition)}
    if count is None:
        inputs.append(info("count", INT, []))
    elif count == "size":
        nodes = [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "first"], ["count"], axis=0),
            *nodes,
        ]
        constants["first"] = np.array(0)
    else:
        constants["count"] = np.array(count)
    return model(nodes, inputs, [info("loss", FLOAT, []), info("last", FLOAT, [3])], constants)


def test_a_loop_of_known_length_forward_and_backward() -> None:
    agree(recurrent(4), {"x": X})
    gradient_agrees(recurrent(4), {"x": X}, ["x", "w", "h0"])


@pytest.mark.parametrize("n", [1, 3, 4])
def test_the_length_may_be_a_size_or_fed(n: int) -> None:
    agree(recurrent("size"), {"x": X[:n]})
    agree(recurrent(None), {"x": X, "count": np.array(n)})


def test_a_loop_without_iterations_hands_its_state_on() -> None:
    found = run(recurrent(0), ["last"], {"x": X})
    np.testing.assert_array_equal(found[0], np.zeros(3))
    np.testing.assert_array_equal(run(recurrent(4, condition=False), ["last"], {"x": X})[0], np.zeros(3))


def test_a_loop_trains_and_its_weight_is_one_parameter() -> None:
    proto = recurrent(4)
    with trainweb.TrainingSession.from_model(proto, requires_grad=["w"], loss=None, optimizer=OptimType.SGD) as session:
        session.set_learning_rate(0.5)
        expected = session.get_contiguous_parameters() - 0.5 * gradients(proto, {"x": X}, ["w"])["w_grad"].reshape(-1)
        losses = []
        for step in range(5):
            losses.append(float(session.train_step({"x": X})["loss"]))
            session.optimizer_step()
            session.lazy_reset_grad()
            if step == 0:
                np.testing.assert_allclose(session.get_contiguous_parameters(), expected, rtol=1e-5, atol=1e-6)
        assert losses[-1] < losses[0]


def with_count(count: int) -> onnx.ModelProto:
    """A loop of a constant count whose condition is handed on."""
    proto = halving(start=True)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(count), "ten"))
    return proto


@pytest.mark.parametrize("last", ["handed on", "a constant"])
@pytest.mark.parametrize("count", [65537, 10**9, 2**62, 2**63 - 1])
def test_loops_that_become_too_large_are_refused(count: int, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Node] = []
    monkeypatch.setattr(Expansion, "write", lambda x, n, real=Expansion.write: (written.append(n), real(x, n)))
    proto = with_count(count)
    if last == "a constant":
        inner = proto.graph.node[2].attribute[0].g
        inner.node[2].CopyFrom(node("Identity", ["true"], ["still"]))
        inner.initializer.append(numpy_helper.from_array(np.array(True), "true"))
    with pytest.raises(LimitError, match=f"halve.*it has {count} iterations; a loop in a plan has at most 65536"):
        run(proto, None, {"x": np.ones(3, np.float32)})
    assert len(written) < 10, "iterations were written first"


def test_a_loop_that_cannot_be_a_node_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Node] = []
    monkeypatch.setattr(Expansion, "write", lambda x, n, real=Expansion.write: (written.append(n), real(x, n)))
    proto = with_count(60_000)
    proto.graph.node[2].attribute[0].g.node[0].CopyFrom(node("Concat", ["v", "v"], ["next"], axis=0))
    with pytest.raises(LimitError, match=r"halve.*more than 20000 nodes"):
        run(proto, None, {"x": np.ones(3, np.float32)})
    assert len(written) < 10, "iterations were written first"


@pytest.mark.parametrize("count", [0, -1, -(2**63)])
def test_a_loop_of_no_iterations_or_less_hands_its_state_on(count: int) -> None:
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(run(with_count(count), ["y"], {"x": x})[0], x)


def test_a_condition_that_is_computed_ends_a_loop_of_any_count() -> None:
    proto = with_count(2**62)
    proto.graph.node[2].attribute[0].g.node[2].CopyFrom(node("Less", ["t", "two"], ["still"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(2), "two"))
    found = run(proto, ["y"], {"x": np.array([8, 16, 24], np.float32)})
    np.testing.assert_array_equal(found[0], [1, 2, 3])


def halving(*, start: bool = False) -> onnx.ModelProto:
    """v is halved until it is below one, ten times at the most: data decide how often."""
    inner = body(
        [
            node("Mul", ["v", "half"], ["next"]),
            node("ReduceMax", ["next"], ["most"], keepdims=0),
            node("Greater", ["most", "one"], ["still"]),
        ],
        [info("t", INT, []), info("go", BOOL, []), info("v", FLOAT, [3])],
        [info("still", BOOL, []), info("next", FLOAT, [3])],
        {"half": np.float32(0.5), "one": np.float32(1)},
    )
    if start:
        inner.node[2].CopyFrom(node("Identity", ["go"], ["still"]))
    nodes = [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Greater", ["most", "unit"], ["start"]),
        node("Loop", ["ten", "" if start else "start", "x"], ["y"], "halve", body=inner),
        *LOSS,
    ]
    constants = {"ten": np.array(10), "unit": np.float32(1)}
    return model(nodes, [info("x", FLOAT, [3])], [info("loss", FLOAT, []), info("y", FLOAT, [3])], constants)


@pytest.mark.parametrize("most", [0.5, 3.0, 100.0, 1e5])
def test_a_loop_that_data_end(most: float) -> None:
    feeds = {"x": np.array([most / 2, most, 0.1], np.float32)}
    agree(halving(), feeds)
    gradient_agrees(halving(), feeds, ["x"])


def scanned(**attrs: Any) -> onnx.ModelProto:
    """Running sums of x w and of a second input, which is scanned along its last axis."""
    inner = body(
        [
            node("MatMul", ["row", "w"], ["m"]),
            node("Add", ["m", "other"], ["a"]),
            node("Add", ["state", "a"], ["next"]),
            node("Tanh", ["next"], ["out"]),
        ],
        [info("state", FLOAT, [3]), info("row", FLOAT, [3]), info("other", FLOAT, [3])],
        [info("next", FLOAT, [3]), info("out", FLOAT, [3])],
    )
    nodes = [
        node("Scan", ["s0", "x", "z"], ["last", "y"], "scan", body=inner, num_scan_inputs=2, **attrs),
        *LOSS,
    ]
    inputs = [info("x", FLOAT, [4, 3]), info("z", FLOAT, [3, 4])]
    constants = {"w": W, "s0": np.full(3, 0.1, np.float32)}
    return model(nodes, inputs, [info("loss", FLOAT, []), info("last", FLOAT, [3]), info("y", FLOAT, None)], constants)


SCANS = [
    {"scan_input_axes": [0, 1]},
    {"scan_input_axes": [0, -1], "scan_input_directions": [1, 0]},
    {"scan_input_axes": [0, 1], "scan_output_axes": [1], "scan_output_directions": [1]},
]


@pytest.mark.parametrize("attrs", SCANS, ids=str)
def test_scan_forward_and_backward(attrs: dict[str, Any]) -> None:
    scan_agrees(scanned(**attrs), {"x": X, "z": np.ascontiguousarray(X.T[::-1])}, attrs)


def scan_agrees(onnx_proto: onnx.ModelProto, feeds: dict[str, np.ndarray], attrs: dict[str, Any]) -> None:
    """Results and gradients equal `running_sums` and its differences."""
    wanted = ["x", "z", "w", "s0"]
    values = {**feeds, "w": W, "s0": np.full(3, 0.1)}

    def loss(**moved: np.ndarray) -> float:
        return float((running_sums({**values, **moved}, attrs)[1] ** 2).mean())

    check_differences(gradients(onnx_proto, feeds, wanted), values, loss, wanted)
    states, outs = running_sums(values, attrs)
    _, last, y = run(onnx_proto, None, feeds)
    np.testing.assert_allclose(last, states, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, outs, rtol=1e-5, atol=1e-6)


def running_sums(feeds: dict[str, np.ndarray], attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The same by hand, as onnx's evaluator knows no axes of Scan."""
    rows = feeds["x"][::-1] if attrs.get("scan_input_directions", [0])[0] else feeds["x"]
    steps = np.cumsum(rows @ feeds["w"] + feeds["z"].T, axis=0) + feeds["s0"]
    outs = np.tanh(steps)
    outs = outs[::-1] if attrs.get("scan_output_directions", [0])[0] else outs
    return steps[-1], outs.T if attrs.get("scan_output_axes", [0])[0] else outs


def sequence_model() -> onnx.ModelProto:
    """Chunks of x, the second of which goes elsewhere; all together again."""
    nodes = [
        node("SplitToSequence", ["x", "three"], ["parts"], axis=1),
        node("SequenceLength", ["parts"], ["length"]),
        node("SequenceAt", ["parts", "one"], ["second"]),
        node("SequenceErase", ["parts", "one"], ["fewer"]),
        node("Tanh", ["second"], ["moved"]),
        node("SequenceInsert", ["fewer", "moved"], ["more"]),
        node("SequenceInsert", ["more", "second", "first"], ["most"]),
        node("ConcatFromSequence", ["most"], ["y"], axis=-1),
        *LOSS,
    ]
    constants = {"three": np.array(3), "one": np.array(1), "first": np.array(-1)}
    outputs = [info("loss", FLOAT, []), info("y", FLOAT, None), info("length", INT, [])]
    return model(nodes, [info("x", FLOAT, ["n", 8])], outputs, constants)


def test_sequences_forward_and_backward() -> None:
    x = np.random.default_rng(3).standard_normal((2, 8)).astype(np.float32)
    agree(sequence_model(), {"x": x})
    gradient_agrees(sequence_model(), {"x": x}, ["x"])


def test_a_loop_that_fills_a_sequence() -> None:
    """As torch's exporters write lists that grow."""
    sequence = helper.make_tensor_sequence_value_info
    inner = body(
        [
            node("Gather", ["x", "t"], ["row"], axis=0),
            node("Mul", ["row", "row"], ["square"]),
            node("SequenceInsert", ["list", "square"], ["longer"]),
            node("Identity", ["go"], ["still"]),
        ],
        [info("t", INT, []), info("go", BOOL, []), sequence("list", FLOAT, None)],
        [info("still", BOOL, []), sequence("longer", FLOAT, None)],
    )
    nodes = [
        node("SequenceEmpty", [], ["none"], dtype=FLOAT),
        node("Loop", ["count", "yes", "none"], ["all"], "fill", body=inner),
        node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1),
        *LOSS,
    ]
    proto = model(
        nodes,
        [info("x", FLOAT, [4, 3])],
        [info("loss", FLOAT, []), info("y", FLOAT, None)],
        {"count": np.array(3), "yes": np.array(True)},
    )
    agree(proto, {"x": X})
    gradient_agrees(proto, {"x": X}, ["x"])


def test_a_weight_inside_a_body_is_one_for_all_iterations() -> None:
    inner = body(
        [
            node("MatMul", ["h", "inner.weight"], ["m"]),
            node("Tanh", ["m"], ["next"]),
            node("Identity", ["go"], ["still"]),
        ],
        [info("t", INT, []), info("go", BOOL, []), info("h", FLOAT, ["n", 3])],
        [info("still", BOOL, []), info("next", FLOAT, ["n", 3])],
        {"inner.weight": W},
    )
    nodes = [node("Loop", ["count", "yes", "x"], ["y"], body=inner), *LOSS]
    proto = model(
        nodes, [info("x", FLOAT, ["n", 3])], [info("loss", FLOAT, [])], {"count": np.array(3), "yes": np.array(True)}
    )
    agree(proto, {"x": X})
    graph: Graph = expand_control_flow(read_model(proto))
    assert [n for n, t in graph.initializers.items() if t.shape == (3, 3)] == ["inner.weight"]
    built = build_artifacts(proto)
    assert [d.name for d in built.decisions if d.trained] == ["inner.weight"]


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda p: p.graph.node[0].attribute[0].g.input.pop(), ModelError),
        (lambda p: p.graph.node[0].attribute.pop(0), ModelError),
    ],
)
def test_broken_loops_are_named(spoil: Callable[[onnx.ModelProto], object], error: type[Exception]) -> None:
    proto = recurrent(4)
    spoil(proto)
    with pytest.raises(error, match=r"unroll|nothing in the model makes"):
        run(proto, None, {"x": X})
