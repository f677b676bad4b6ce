"""The reverse walk: names, sums, stops, errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model
from tests.python.sessions import infer

import trainweb
from trainweb.artifacts.builder import add_loss, build_artifacts
from trainweb.autodiff.gradient import build_gradients, influences
from trainweb.compat.gradient_graph import GradientGraphBuilder
from trainweb.errors import GradientError, LimitError, ModelError, SessionError
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.model.writer import write_model
from trainweb.onnxblock.models import build_training_models
from trainweb.ops.frame import shapes


def graph_of(
    nodes: list[Node],
    inputs: dict[str, Any],
    initializers: list[Tensor] | None = None,
    opset: int = 17,
) -> Graph:
    """A graph with float inputs whose output comes from the last node."""
    return Graph(
        "test",
        nodes,
        [Value(name, "float32", shape) for name, shape in inputs.items()],
        [Value(nodes[-1].outputs[0], "float32", None)],
        {t.name: t for t in initializers or []},
        opsets={"": opset},
    )


def run(graph: Graph, feeds: dict[str, np.ndarray], outputs: list[str]) -> list[np.ndarray]:
    graph.outputs = [Value(name, "float32", None) for name in outputs]
    return infer(write_model(graph), feeds, outputs)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_one_consumer_gets_the_plain_name_and_several_are_summed() -> None:
    graph = graph_of(
        [
            Node("Mul", ["x", "w"], ["a"], name="first"),
            Node("Mul", ["a", "x"], ["b"], name="second"),
            Node("ReduceSum", ["b"], ["loss"], {"keepdims": 0}, name="sum"),
        ],
        {"x": (3,), "w": (3,)},
    )
    result = build_gradients(graph, "loss", ["x", "w"])
    made = {name: node for node in result.nodes for name in node.outputs}
    assert made["w_grad"].name.startswith("first_Grad/")
    total = made["x_grad"]
    assert (total.op_type, total.name) == ("Sum", "AccumulateGrad_x_grad")
    assert total.inputs == ["x_grad_0", "x_grad_1"]
    assert result.initializers["loss_grad"].values() == (1.0,)
    assert {"x_grad", "w_grad", "a_grad", "x_grad_0"} <= set(result.value_info)
    assert result.value_info["x_grad"].shape == (3,)
    x, w = normal(3), normal(3, seed=1)
    got = run(result, {"x": x, "w": w}, ["x_grad", "w_grad"])
    np.testing.assert_allclose(got[0], 2 * x * w, rtol=1e-6)
    np.testing.assert_allclose(got[1], x * x, rtol=1e-6)


def test_the_forward_graph_is_not_changed() -> None:
    graph = graph_of(
        [Node("Abs", ["x"], ["y"]), Node("ReduceSum", ["y"], ["loss"], {"keepdims": 0})],
        {"x": (3,)},
    )
    before = repr(graph)
    build_gradients(graph, "loss", ["x"])
    assert repr(graph) == before


def test_a_tensor_used_twice_by_one_node() -> None:
    graph = graph_of(
        [Node("Mul", ["w", "w"], ["s"]), Node("ReduceSum", ["s"], ["loss"], {"keepdims": 0})],
        {"w": (4,)},
    )
    w = normal(4)
    np.testing.assert_allclose(run(build_gradients(graph, "loss", ["w"]), {"w": w}, ["w_grad"])[0], 2 * w, rtol=1e-6)


def test_a_gradient_passed_on_to_two_inputs_gets_two_names() -> None:
    graph = graph_of(
        [Node("Add", ["a", "b"], ["s"]), Node("ReduceSum", ["s"], ["loss"], {"keepdims": 0})],
        {"a": (2, 3), "b": (2, 3)},
    )
    result = build_gradients(graph, "loss", ["a", "b"])
    got = run(result, {"a": normal(2, 3), "b": normal(2, 3)}, ["a_grad", "b_grad"])
    np.testing.assert_array_equal(got[0], np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(got[1], np.ones((2, 3), np.float32))


def test_nothing_is_emitted_for_what_is_not_wanted() -> None:
    graph = graph_of(
        [
            Node("MatMul", ["x", "w1"], ["h"], name="one"),
            Node("MatMul", ["h", "w2"], ["y"], name="two"),
            Node("ReduceSum", ["y"], ["loss"], {"keepdims": 0}),
        ],
        {"x": (2, 3), "w1": (3, 4), "w2": (4, 5)},
    )
    names = {name for node in build_gradients(graph, "loss", ["w2"]).nodes for name in node.outputs}
    assert "w2_grad" in names and not {"h_grad", "w1_grad", "x_grad"} & names


def test_tensors_that_are_wanted_and_lie_inside() -> None:
    graph = graph_of(
        [
            Node("Mul", ["x", "x"], ["y"]),
            Node("Mul", ["y", "y"], ["z"]),
            Node("ReduceSum", ["z"], ["loss"], {"keepdims": 0}),
        ],
        {"x": (3,)},
    )
    x = normal(3)
    got = run(build_gradients(graph, "loss", ["y", "x"]), {"x": x}, ["y_grad", "x_grad"])
    np.testing.assert_allclose(got[0], 2 * x**2, rtol=1e-5)
    np.testing.assert_allclose(got[1], 4 * x**3, rtol=1e-5)


def test_integers_and_stop_edges_carry_no_gradient() -> None:
    graph = graph_of(
        [
            Node("Cast", ["x"], ["i"], {"to": 7}),
            Node("Cast", ["i"], ["f"], {"to": 1}),
            Node("Floor", ["w"], ["g"]),
            Node("Mul", ["f", "w"], ["a"]),
            Node("Add", ["a", "g"], ["y"]),
            Node("ReduceSum", ["y"], ["loss"], {"keepdims": 0}),
        ],
        {"x": (3,), "w": (3,)},
    )
    assert influences(graph, ["loss"]) >= {"w", "a", "f"}
    assert "x" not in influences(graph, ["loss"])
    with pytest.raises(GradientError, match="partial derivative for 'x' as it's unreachable"):
        build_gradients(graph, "loss", ["w", "x"])
    x = np.array([1.5, -2.5, 3.0], np.float32)
    got = run(build_gradients(graph, "loss", ["w"]), {"x": x, "w": normal(3)}, ["w_grad"])[0]
    np.testing.assert_array_equal(got, np.trunc(x))


def test_an_operator_without_gradient_is_named_with_the_way_to_it() -> None:
    graph = graph_of(
        [
            Node("Mul", ["x", "w"], ["a"], name="scale"),
            Node("ReluGrad", ["a", "x"], ["b"], {}, "com.microsoft", "bad"),
            Node("Mul", ["b", "x"], ["c"], name="after"),
            Node("ReduceSum", ["c"], ["loss"], {"keepdims": 0}, name="total"),
        ],
        {"x": (3,), "w": (3,)},
    )
    with pytest.raises(GradientError, match="ReluGrad") as caught:
        build_gradients(graph, "loss", ["w"])
    error = caught.value
    assert (error.op, error.node, error.path) == ("ReluGrad", "bad", ["total", "after", "bad"])


def test_a_tensor_named_like_a_gradient_is_refused() -> None:
    graph = graph_of(
        [Node("Mul", ["w", "w_grad"], ["y"]), Node("ReduceSum", ["y"], ["loss"], {"keepdims": 0})],
        {"w": (3,), "w_grad": (3,)},
    )
    with pytest.raises(ModelError, match="'w_grad', the name of a gradient"):
        build_gradients(graph, "loss", ["w"])


@pytest.mark.parametrize("opset", [11, 12, 13, 18])
def test_broadcast_axes_are_summed_also_where_sizes_are_symbolic(opset: int) -> None:
    graph = graph_of(
        [
            Node("Mul", ["x", "w"], ["y"]),
            Node("Mul", ["y", "v"], ["z"]),
            Node("ReduceSum", ["z"], ["loss"], {"keepdims": 0}),
        ],
        {"x": ("n", 3, "k"), "w": ("m", "k"), "v": (3, 1)},
        opset=opset,
    )
    result = build_gradients(graph, "loss", ["x", "w", "v"])
    for m in (1, 3):
        x, w, v = normal(2, 3, 4), normal(m, 4, seed=1), normal(3, 1, seed=2)
        got = run(result, {"x": x, "w": w, "v": v}, ["x_grad", "w_grad", "v_grad"])
        np.testing.assert_allclose(got[0], np.broadcast_to(w * v, x.shape), rtol=1e-5)
        np.testing.assert_allclose(got[1], (x * v).sum((0, 1) if m == 1 else 0).reshape(m, 4), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[2], (x * w).sum((0, 2))[:, None], rtol=1e-4, atol=1e-5)


# GradientGraphBuilder


def test_gradient_graph_builder_gives_the_gradients_as_outputs() -> None:
    graph = graph_of(
        [Node("MatMul", ["x", "w"], ["y"]), Node("ReduceSum", ["y"], ["loss"], {"keepdims": 0})],
        {"x": ("n", 3)},
        [Tensor.of("w", "float32", (3, 2), [1, 2, 3, 4, 5, 6])],
    )
    builder = GradientGraphBuilder(write_model(graph), {"loss"}, {"x", "w"}, "loss")
    with pytest.raises(SessionError, match="not built"):
        builder.get_model()
    builder.build()
    session = trainweb.InferenceSession(builder.get_model())
    assert session.output_names == ["loss", "w_grad", "x_grad"]
    x = normal(2, 3)
    loss, w_grad, x_grad = session.run(None, {"x": x})
    session.release()
    np.testing.assert_allclose(w_grad, np.repeat(x.sum(0)[:, None], 2, 1), rtol=1e-5)
    np.testing.assert_array_equal(x_grad, np.array([[3, 7, 11]] * 2, np.float32))
    assert loss.shape == ()


def test_gradient_graph_builder_takes_incoming_gradients_as_inputs() -> None:
    graph = graph_of([Node("Mul", ["x", "x"], ["a"]), Node("Mul", ["a", "x"], ["b"])], {"x": (3,)})
    graph.outputs.append(Value("a", "float32", (3,)))
    builder = GradientGraphBuilder(write_model(graph), ["a", "b"], ["x"])
    builder.build()
    session = trainweb.InferenceSession(builder.get_model())
    assert session.input_names == ["x", "a_grad", "b_grad"]
    x, da, db = normal(3), normal(3, seed=1), normal(3, seed=2)
    got = session.run(["x_grad"], {"x": x, "a_grad": da, "b_grad": db})[0]
    session.release()
    np.testing.assert_allclose(got, 2 * x * da + 3 * x**2 * db, rtol=1e-4, atol=1e-6)


def test_gradient_graph_builder_takes_external_data_and_limits() -> None:
    model = make_model(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        {"x": [3]},
        {"y": [3]},
        [TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)],
    )
    model.graph.initializer[0].external_data.add(key="location", value="w.bin")
    data, w, x = model.SerializeToString(), normal(3), normal(3, seed=1)
    with pytest.raises(ModelError, match="external_data="):
        GradientGraphBuilder(data, ["y"], ["x"])
    with pytest.raises(LimitError, match="exceed the limit of 8 bytes"):
        GradientGraphBuilder(data, ["y"], ["x"], external_data={"w.bin": w.tobytes()}, limits={"arena_bytes": 8})
    builder = GradientGraphBuilder(data, ["y"], ["x", "w"], external_data={"w.bin": w.tobytes()})
    builder.build()
    found = infer(builder.get_model(), {"x": x, "y_grad": np.ones(3, np.float32)}, ["x_grad", "w_grad"])
    np.testing.assert_array_equal(found, [w, x])


def test_gradient_graph_builder_refuses_unknown_names() -> None:
    graph = graph_of([Node("Abs", ["x"], ["y"])], {"x": (3,)})
    with pytest.raises(ModelError, match="Node arg zz is not found"):
        GradientGraphBuilder(write_model(graph), ["y"], ["zz"])
    with pytest.raises(ModelError, match="at least one output"):
        GradientGraphBuilder(write_model(graph), [], ["x"])


@pytest.mark.parametrize(
    ("name", "batch"), [("mlp", None), ("mlp", 5), ("cnn", None), ("cnn", 5), ("transformer", None)]
)
def test_types_that_were_inferred_before_change_nothing(
    name: str, batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the graph with its loss, whose parameters are constants; those without symbols are not inferred again."""
    forward = read_model(Path(__file__).parent.parent / "golden" / name / "base.onnx")
    if batch is not None:
        values = [v for v in forward.inputs if isinstance(v, Value)]
        sizes = [tuple(d if isinstance(d, int) else batch for d in v.shape or ()) for v in values]
        forward.inputs = [Value(v.name, v.dtype, shape) for v, shape in zip(values, sizes, strict=True)]
        forward.outputs = [Value(v.name, v.dtype, None) for v in forward.outputs if isinstance(v, Value)]
    graph, accessor = add_loss(forward, "CrossEntropyLoss")
    former = accessor.inference()
    built = build_artifacts(forward, loss="CrossEntropyLoss", optimizer=None)
    trained = [t.name for t in built.contents().trained]
    calls: list[str] = []
    infer = shapes.infer_outputs

    def counted(op: Any, types: Any, infer: Any = infer, calls: list[str] = calls) -> Any:
        calls.append(op.node.name)
        return infer(op, types)

    with monkeypatch.context() as patched:
        patched.setattr(shapes, "infer_outputs", counted)
        wanted = build_training_models(graph, trained, [])
        n = len(calls)
        found = build_training_models(graph, trained, [], former=former)
    assert write_model(found.training) == write_model(wanted.training)
    assert write_model(found.evaluation) == write_model(wanted.evaluation)
    assert len(calls) - n < n + (batch is None)
