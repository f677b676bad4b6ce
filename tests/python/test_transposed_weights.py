"""Weights that torch's dynamo exporter stores transposed are those of PyTorch's module, by their names and shapes."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from trainweb.artifacts import OptimType, build_artifacts
from trainweb.artifacts.evidence import FOLDED, SIGNATURE
from trainweb.session.training_session import TrainingSession
from trainweb.training.state import CheckpointState

from .test_safetensors_beside import file_of

RECORDED = Path(__file__).parent.parent / "golden" / "transposed"
MODEL = RECORDED / "model.onnx"
TRUTH = dict(np.load(RECORDED / "recorded.npz"))
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
FEEDS = {"x": TRUTH["x"], "target": TRUTH["target"]}
RATE, STEPS = 0.05, 2
NEAR = {"rtol": 1e-5, "atol": 1e-6}


def state_dict(prefix: str = "other") -> dict[str, np.ndarray]:
    return {name: TRUTH[f"{prefix}.{name}"] for name in NAMES}


def session_of(model: Any = MODEL, optimizer: Any = "SGD") -> TrainingSession:
    return TrainingSession.from_model(model, loss="MSELoss", optimizer=optimizer)


def written_before() -> onnx.ModelProto:
    """A file that `quantize` wrote before: the transpose has the name of the parameter, and the exporter's note."""
    proto = onnx.load(MODEL)
    names = {}
    for info in proto.graph.value_info:
        for note in info.metadata_props:
            if note.key == FOLDED:
                names[info.name] = note.value[2:-2]
                info.name = names[info.name]
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    assert set(names.values()) == {"0.weight", "2.weight"}
    return proto


@pytest.mark.parametrize("form", ["file", "bytes", "proto", "written before"])
def test_weights_of_pytorch_go_in_and_out(form: str) -> None:
    models = {"file": MODEL, "bytes": MODEL.read_bytes(), "proto": onnx.load(MODEL), "written before": written_before()}
    with session_of(models[form]) as session:
        np.testing.assert_allclose(session.predict({"x": TRUTH["x"]})["y"], TRUTH["y"], **NEAR)
        session.load_weights(file_of(state_dict()))
        np.testing.assert_allclose(session.predict({"x": TRUTH["x"]})["y"], TRUTH["y_other"], **NEAR)
        with np.load(io.BytesIO(session.export_weights("npz"))) as found:
            assert {name: found[name].tobytes() for name in found} == {n: a.tobytes() for n, a in state_dict().items()}


def test_files_are_transposed_by_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights are not read at once: here five rows are, and one at least."""
    monkeypatch.setattr("trainweb.model.reader.HELD", 1)
    for nbytes in (5 * 64 * 4, 1):
        monkeypatch.setattr("trainweb.artifacts.recover.LONG_READ", nbytes)
        with session_of() as session, session_of(MODEL.read_bytes()) as held:
            for each in (session, held):
                np.testing.assert_allclose(each.predict({"x": TRUTH["x"]})["y"], TRUTH["y"], **NEAR)


def test_parameters_of_a_state_are_those_of_the_module() -> None:
    with session_of() as session:
        for name, value in state_dict().items():
            assert session.state.parameters[name].data.shape == value.shape
            session.state.parameters[name] = value
        np.testing.assert_allclose(session.predict({"x": TRUTH["x"]})["y"], TRUTH["y_other"], **NEAR)
        for name, value in state_dict().items():
            np.testing.assert_array_equal(session.get_parameter(name), value)


def test_muon_sees_the_axes_of_the_module() -> None:
    made = build_artifacts(MODEL, loss="MSELoss", optimizer={"type": "Muon", "match_rms": False})
    models = made.training_model, made.eval_model, made.optimizer_model
    with TrainingSession(CheckpointState.load_checkpoint(made.checkpoint), *models) as session:
        session.set_learning_rate(RATE)
        for _ in range(STEPS):
            session.lazy_reset_grad()
            session.train_step(FEEDS)
            session.optimizer_step()
        for name, value in state_dict("muon").items():
            np.testing.assert_allclose(session.get_parameter(name), value, rtol=1e-3, atol=2e-5, err_msg=name)


def test_a_round_goes_on_from_parameters_of_pytorch() -> None:
    with session_of() as session:
        start, end = (
            np.concatenate([state_dict(prefix)[name].ravel() for name in session.parameter_names()])
            for prefix in ("other", "sgd")
        )
        session.set_learning_rate(RATE)
        update = session.federated().round(start, FEEDS, epochs=STEPS, batch_size=2, shuffle=False)
        np.testing.assert_allclose(update.delta, end - start, rtol=1e-3, atol=1e-7)


def test_what_is_exported_trains_again() -> None:
    with session_of() as session:
        exported = session.export()
    (y,) = ReferenceEvaluator(exported).run(None, {"x": TRUTH["x"]})
    np.testing.assert_allclose(y, TRUTH["y"], **NEAR)
    with session_of(exported) as again:
        again.load_weights(file_of(state_dict()))
        np.testing.assert_allclose(again.predict({"x": TRUTH["x"]})["y"], TRUTH["y_other"], **NEAR)


@pytest.mark.parametrize("form", ["file", "proto"])
def test_weights_of_16_bits_are_transposed_as_they_are(form: str) -> None:
    path = RECORDED / "half.onnx"
    with session_of(path if form == "file" else onnx.load(path)) as session:
        found = session.predict({"x": TRUTH["wide"]})["y"]
        np.testing.assert_allclose(found.astype(np.float32), TRUTH["y_half"].astype(np.float32), rtol=2e-3, atol=2e-3)
        assert session.get_parameter("0.weight").shape == (64, 128)
        np.testing.assert_array_equal(session.get_parameter("0.weight")[1], TRUTH["half_row"].astype(np.float32))
        with np.load(io.BytesIO(session.export_weights("npz"))) as weights:
            np.testing.assert_array_equal(weights["0.weight"][1], TRUTH["half_row"])


def test_a_weight_that_the_caller_names_as_the_file_does_stays_so() -> None:
    made = build_artifacts(MODEL, loss="MSELoss", optimizer=OptimType.SGD, requires_grad=["val_0", "2.weight"])
    state = CheckpointState.load_checkpoint(made.checkpoint)
    assert state.parameters["val_0"].requires_grad and "0.weight" not in state.parameters
    assert state.parameters["2.weight"].data.shape == (20, 64)


def test_a_matrix_that_two_tensors_come_from_is_neither() -> None:
    """One of two unlike results of a parameter is not its transpose, and the file does not tell which."""
    proto = onnx.load(MODEL)
    for info in proto.graph.value_info:
        for note in info.metadata_props:
            if note.key == FOLDED:
                note.value = "['0.weight']"
    for node in proto.graph.node:
        del node.metadata_props[:]  # by which the two are told apart
    state = CheckpointState.load_checkpoint(build_artifacts(proto, loss="MSELoss", optimizer="SGD").checkpoint)
    assert {"val_0", "val_2"} < set(state.parameters)


@pytest.mark.parametrize(("name", "is_trained"), [("val_7", False), ("t_1", True)])
def test_a_transpose_that_no_product_reads(name: str, is_trained: bool) -> None:
    """A name of torch's own operator tells what it is, and `val_7` may be any function of the parameter."""
    matrix = TRUTH["other.2.weight"][:, :6]
    info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [20, 6])
    info.metadata_props.add(key=FOLDED, value="['w']")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", name], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [20, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [20, 2])],
        [numpy_helper.from_array(matrix.copy(), name), numpy_helper.from_array(np.ones((6, 2), np.float32), "v")],
        value_info=[info],
    )
    graph.metadata_props.add(key=SIGNATURE, value="\np_w: PARAMETER target='w'\np_v: PARAMETER target='v'\n")
    proto = helper.make_model(graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    decisions = {d.name: d for d in build_artifacts(proto, loss="MSELoss", optimizer="SGD").decisions}
    assert decisions["w"].trained == is_trained and decisions["w"].doubtful != is_trained
    with TrainingSession.from_model(proto, loss="MSELoss", optimizer="SGD", requires_grad=["w", "v"]) as session:
        np.testing.assert_array_equal(session.get_parameter("w"), matrix.T)
