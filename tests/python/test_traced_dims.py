"""Dims that the TorchScript exporter makes names up for, and axes that it counts from the end."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model

from trainweb.artifacts import LossType, OptimType, build_artifacts
from trainweb.errors import TrainwebError
from trainweb.model.reader import read_model
from trainweb.session.training_session import TrainingSession
from trainweb.training.state import CheckpointState


@pytest.mark.parametrize("named", [False, True], ids=["made up", "of an input"])
def test_dims_of_an_output_that_have_one_made_up_name_are_two(named: bool) -> None:
    """The TorchScript exporter calls batch and length by one name; labels for both sizes were refused."""
    shape = ["n", 2, "n"] if named else ["Convy_dim_0", 2, "Convy_dim_0"]
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="/Conv")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 3, 1], [0.5] * 6)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "n" if named else "length"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    proto = make_model([node], [x], [y], [weight])
    graph = read_model(proto.SerializeToString())
    assert graph.outputs[0].shape == (("n", 2, "n") if named else (None, 2, None))
    built = build_artifacts(proto.SerializeToString(), loss=LossType.MSELoss, optimizer=OptimType.SGD)
    models = built.training_model, built.eval_model, built.optimizer_model
    with TrainingSession(CheckpointState.load_checkpoint(built.checkpoint), *models) as session:
        (labels,) = set(session.input_names()) - {"x"}
        x_feed, y_feed = np.ones((2, 3, 5), np.float32), np.zeros((2, 2, 5), np.float32)
        if named:
            with pytest.raises(TrainwebError, match="n"):
                session.train_step({"x": x_feed, labels: y_feed})
        else:
            (loss,) = session.train_step({"x": x_feed, labels: y_feed}).values()
            assert float(loss) == pytest.approx(1.5**2)


def test_a_transpose_may_count_axes_from_the_end() -> None:
    """As torch's permute does, which the TorchScript exporter copies into the file."""
    values = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], name="/Transpose", perm=[0, -2, -1, 1]),
        helper.make_node("Mul", ["t", "w"], ["y"], name="/Mul"),
    ]
    w = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4, 5, 3])
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    opsets = [helper.make_opsetid("", 17)]
    file = helper.make_model(graph, opset_imports=opsets, producer_name="pytorch").SerializeToString()
    assert read_model(file).nodes[0].attrs["perm"] == [0, 2, 3, 1]
    built = build_artifacts(file, loss=LossType.MSELoss, optimizer=OptimType.SGD)
    models = built.training_model, built.eval_model, built.optimizer_model
    with TrainingSession(CheckpointState.load_checkpoint(built.checkpoint), *models) as session:
        (labels,) = set(session.input_names()) - {"x"}
        (loss,) = session.train_step({"x": values, labels: np.zeros((2, 4, 5, 3), np.float32)}).values()
    expected = values.transpose(0, 2, 3, 1).astype(np.float64) * [1.0, 2.0, 3.0]
    assert float(loss) == pytest.approx((expected**2).mean(), rel=1e-6)
    with pytest.raises(TrainwebError, match="not a permutation"):
        # ONNX counts from 0, and so do the other exporters.
        build_artifacts(helper.make_model(graph, opset_imports=opsets).SerializeToString(), loss=LossType.MSELoss)
    graph.node[0].attribute[0].ints[1] = -5
    with pytest.raises(TrainwebError, match="not a permutation"):
        build_artifacts(
            helper.make_model(graph, opset_imports=opsets, producer_name="pytorch").SerializeToString(),
            loss=LossType.MSELoss,
        )
