"""Buffers that a module changes as it runs: the training model changes them, too, or refuses."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model
from tests.python.sessions import take_steps

import trainweb
from trainweb.artifacts import OptimType, build_artifacts
from trainweb.errors import ModelError

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
SCOPES = "pkg.torch.onnx.name_scopes"
FX_NODE = "pkg.torch.onnx.fx_node"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
X = np.arange(6, dtype=np.float32).reshape(3, 2) / 3


def centred(target: str = "next", *, inputs: str = "center", notes: dict[str, str] | None = None) -> bytes:
    """loss = mean((x w - next)^2) with next = center / 2 + the mean of x w over rows, which is the next center."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("ReduceMean", ["h", "rows"], ["mean"], keepdims=0),
        helper.make_node("Mul", [inputs, "half"], ["kept"]),
        helper.make_node("Add", ["kept", "mean"], ["next"]),
        helper.make_node("Sub", ["h", "next"], ["far"]),
        helper.make_node("Mul", ["far", "far"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
    ]
    tensors = {
        "w": np.array([1, 2], np.float32),
        inputs: np.array([0.5, -1], np.float32),
        "half": np.float32(0.5),
        "rows": np.array([0], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "centred",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )
    signature = "# inputs\np_w: PARAMETER target='w'\n# outputs\n"
    if target:
        signature += f"{target}: BUFFER_MUTATION target='center'\nloss: USER_OUTPUT\n"
    graph.metadata_props.add(key=SIGNATURE, value=signature)
    graph.initializer[0].metadata_props.add(key=KIND, value="InputKind.PARAMETER")
    for key, value in (notes or {}).items():
        graph.initializer[1].metadata_props.add(key=key, value=value)
    model = helper.make_model(
        graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def train(model: bytes, **arguments: object) -> tuple[list[float], dict[str, np.ndarray]]:
    with trainweb.TrainingSession.from_model(model, loss=None, optimizer=OptimType.SGD, **arguments) as session:
        session.set_learning_rate(0.1)
        losses = take_steps(session, {"x": X}, 3)
        return losses, {name: np.array(session.get_parameter(name)) for name in session.parameter_names()}


def expected(*, moves: bool) -> tuple[list[float], np.ndarray, np.ndarray]:
    """The same in float64, with the gradient of w by hand: none goes through the next center."""
    w, center, losses = np.array([1.0, 2.0]), np.array([0.5, -1.0]), []
    for _ in range(3):
        after = center / 2 + (X * w).mean(0)
        far = X * w - after
        losses.append(float((far**2).mean()))
        w = w - 0.1 * (2 * far * X).sum(0) / far.size
        center = after if moves else center
    return losses, w, center


def test_a_buffer_becomes_what_the_exporter_recorded() -> None:
    losses, found = train(centred())
    wanted, w, center = expected(moves=True)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(found["w"], w, rtol=1e-5)
    np.testing.assert_allclose(found["center"], center, rtol=1e-5)


def test_a_buffer_named_in_frozen_params_stays() -> None:
    losses, found = train(centred(), frozen_params=["center"])
    wanted, w, center = expected(moves=False)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(found["w"], w, rtol=1e-5)
    np.testing.assert_array_equal(found["center"], center.astype(np.float32))


def test_a_buffer_of_which_the_file_does_not_tell_what_it_becomes_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'center' changes whenever .* frozen_params"):
        build_artifacts(centred("gone"))
    assert "'center' changes whenever" in str(trainweb.check(centred("gone")).error)
    train(centred("gone"), frozen_params=["center"])


def test_a_buffer_that_the_exporter_made_a_constant_is_refused() -> None:
    model = centred(inputs="folded", notes={FOLDED: "['center']"})
    with pytest.raises(ModelError, match=r"computed 'folded' from it once: export with optimize=False"):
        build_artifacts(model)


def power_iteration(*, trains: bool) -> bytes:
    """x W / (u W v), as a file without notes has spectral norm: in training v = W u / |W u| first."""
    nodes = [
        helper.make_node("MatMul", ["weight", "parametrizations.weight.0._v"], ["u"]),
        helper.make_node("ReduceL2", ["u"], ["length"], keepdims=1),
        helper.make_node("Div", ["u", "length"], ["unit"]),
        helper.make_node("MatMul", ["unit" if trains else "parametrizations.weight.0._u", "u"], ["sigma"]),
        helper.make_node("Div", ["weight", "sigma"], ["scaled"]),
        helper.make_node("MatMul", ["x", "scaled"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    nodes = nodes if trains else [nodes[0], *nodes[3:]]
    tensors = {
        "weight": np.eye(2, dtype=np.float32),
        "parametrizations.weight.0._v": np.array([0.6, 0.8], np.float32),
        "parametrizations.weight.0._u": np.array([0.6, 0.8], np.float32),
    }
    read = {name for node in nodes for name in node.input}
    model = make_model(
        nodes,
        {"x": [3, 2]},
        {"loss": []},
        {name: array for name, array in tensors.items() if name in read},
        producer="pytorch",
    )
    return model.SerializeToString()


@pytest.mark.filterwarnings("ignore:The file does not settle")
def test_a_power_iteration_is_refused_where_nothing_was_recorded() -> None:
    with pytest.raises(ModelError, match=r"_v' changes whenever .*dynamo=True"):
        build_artifacts(power_iteration(trains=True))
    build_artifacts(power_iteration(trains=False))


def stopped(*, optimized: bool) -> bytes:
    """loss = mean(x w * detach(x w)): its gradient is half the gradient of the square."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("Identity", ["h"], ["detach"]),
        helper.make_node("Mul", ["h", "h" if optimized else "detach"], ["product"]),
        helper.make_node("ReduceMean", ["product"], ["loss"], keepdims=0),
    ]
    nodes[1].metadata_props.add(key=SCOPES, value="['', 'detach']")
    nodes[2].metadata_props.add(key=FX_NODE, value="%product : call_function[target=mul](args = (%h, %detach))")
    graph = helper.make_graph(
        [node for node in nodes if not optimized or node.op_type != "Identity"],
        "stopped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.array([1, 2], np.float32), "w")],
    )
    graph.metadata_props.add(key=SIGNATURE, value="p_w: PARAMETER target='w'\n")
    model = helper.make_model(
        graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    return model.SerializeToString()


def test_no_gradient_goes_through_a_detach_that_is_in_the_file() -> None:
    _, found = train(stopped(optimized=False))
    w = np.array([1.0, 2.0])
    for _ in range(3):
        w = w - 0.1 * (X * (X * w)).sum(0) / X.size
    np.testing.assert_allclose(found["w"], w, rtol=1e-5)


def test_a_detach_that_the_exporter_removed_is_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"'detach' .*export with optimize=False"):
        files = build_artifacts(stopped(optimized=True))
    assert "detach" in {d.name for d in files.decisions if d.doubtful}
