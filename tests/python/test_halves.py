"""Frozen matrices of float16 and bfloat16 stay so in kernel memory, and everything else is as in float32."""

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model
from tests.python.sessions import infer, take_steps

import trainweb
from trainweb.backend.wasm.engine import get_engine
from trainweb.checkpoint import read_checkpoint
from trainweb.ir.layout import PARAMETERS
from trainweb.lora import inject
from trainweb.model.checks import Limits
from trainweb.model.reader import read_model
from trainweb.training.inference import InferenceModel
from trainweb.training.state import CheckpointState

DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
WORDS, WIDTH = 1063, 65
"""Both tables have an odd number of elements; one stays outside of Python in a page."""
NAMES = ("embed.weight", "m.fc.weight", "m.norm.weight")


def weights(dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = dict(zip(NAMES, ((WORDS, WIDTH), (WIDTH, WIDTH), (WIDTH,)), strict=True))
    return {name: (rng.standard_normal(shape) / 4).astype(DTYPES[dtype]) for name, shape in shapes.items()}


def model_of(values: dict[str, np.ndarray], *more: onnx.NodeProto, casts: bool = True) -> bytes:
    """A tied head over a layer of tokens; float32 but for its weights, which Cast nodes convert."""
    nodes = [helper.make_node("Cast", [name], [f"{name}.wide"], to=TensorProto.FLOAT) for name in values if casts]
    table, layer, norm = (f"{name}.wide" if casts else name for name in NAMES)
    nodes += [
        helper.make_node("Gather", [table, "ids"], ["rows"]),
        helper.make_node("Transpose", [layer], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned"], ["product"], name="/m/fc/MatMul"),
        helper.make_node("Mul", ["product", norm], ["scaled"]),
        helper.make_node("Tanh", ["scaled"], ["hidden"]),
        helper.make_node("Transpose", [table], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["hidden", "head"], ["logits"]),
        *more,
    ]
    edges = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])]
    results = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", len(values["embed.weight"])])]
    tensors = [numpy_helper.from_array(value, name) for name, value in values.items()]
    return make_model(nodes, edges, results, tensors).SerializeToString()


def widened(values: dict[str, np.ndarray]) -> bytes:
    """The model with float32 weights of the same values."""
    return model_of({name: v.astype(np.float32) for name, v in values.items()}, casts=False)


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {"ids": rng.integers(0, WORDS, 11), "labels": rng.integers(0, WORDS, 11)}


def session_of(model: bytes, **options: Any) -> trainweb.TrainingSession:
    lora = {"rank": 4, "targets": ["m.fc"], "seed": 3}
    arguments = {"loss": "CrossEntropyLoss", "optimizer": "AdamW", "learning_rate": 0.01, "lora": lora}
    return trainweb.TrainingSession.from_model(model, **{**arguments, **options})


def steps(session: trainweb.TrainingSession, count: int = 5) -> list[float]:
    return take_steps(session, dict(zip(session.input_names(), feeds().values(), strict=True)), count)


def loss_in_float64(values: dict[str, np.ndarray]) -> float:
    """The first loss: adapters add nothing yet."""
    table, layer, norm = (values[name].astype(np.float64) for name in NAMES)
    ids, labels = feeds().values()
    scores = np.tanh(table[ids] @ layer.T * norm) @ table.T
    return float(np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(labels.size), labels]))


def saved(values: dict[str, np.ndarray]) -> int:
    """Bytes of the matrices that float32 would take besides; they start at words."""
    return sum(2 * values[name].size // 4 * 4 for name in NAMES[:2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_adapters_train_as_beside_float32_and_weights_take_half_of_the_memory(dtype: str) -> None:
    values = weights(dtype)
    with session_of(model_of(values)) as session, session_of(widened(values)) as twin:
        found, expected = steps(session), steps(twin)
        assert found[0] == pytest.approx(loss_in_float64(values), rel=1e-5)
        assert found[-1] < found[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert twin.memory().parameters - session.memory().parameters == saved(values)
        assert session.memory().prepared == twin.memory().prepared
        plan = session.explain(dict(zip(session.input_names(), feeds().values(), strict=True))).rpartition("@@")[2]
        assert "dequantize_f32(" not in plan.replace("gather_dequantized_f32(", "")
        for trainable_only in (False, True):
            np.testing.assert_allclose(
                session.get_contiguous_parameters(trainable_only),
                twin.get_contiguous_parameters(trainable_only),
                rtol=1e-4,
                atol=1e-6,
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_files_have_the_weights_as_they_were(dtype: str) -> None:
    values = weights(dtype)
    files = inject(read_model(model_of(values)), ["m.fc"], rank=4, seed=3).build_artifacts(
        loss="CrossEntropyLoss", optimizer="AdamW"
    )
    models = files.training_model, files.eval_model, files.optimizer_model
    state = CheckpointState.load_checkpoint(files.checkpoint)
    with trainweb.TrainingSession(state, *models) as session:
        losses = steps(session)
        whole = CheckpointState.save_checkpoint(state, include_optimizer_state=True)
        assert whole is not None
        contents = read_checkpoint(whole)
        frozen = {t.name: t for t in contents.frozen}
        for name, value in values.items():
            assert frozen[name].dtype == dtype and bytes(frozen[name].data) == value.tobytes()
        # Values that 16 bits hold exactly are not there twice.
        assert contents.is_exact and set(contents.exact) == {"m.norm.weight"}
        after = steps(session, 2)
        exported = session.export_model_for_inferencing(["logits"])
    written = {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(exported).graph.initializer}
    for name, value in values.items():
        assert written[name].dtype == value.dtype and written[name].tobytes() == value.tobytes()
    with trainweb.TrainingSession(CheckpointState.load_checkpoint(whole), *models) as session:
        assert steps(session, 2) == after
    assert len(set(losses + after)) == len(losses) + len(after)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_float32_outside_and_rounded_where_they_are_written(dtype: str) -> None:
    values, name = weights(dtype), "m.fc.weight"
    with session_of(model_of(values)) as session:
        assert session.get_parameter_type_and_shape(name) == ("float32", (WIDTH, WIDTH))
        np.testing.assert_array_equal(session.get_parameter(name), values[name].astype(np.float32))
        given = np.random.default_rng(4).standard_normal((WIDTH, WIDTH)).astype(np.float32)
        rounded = given.astype(DTYPES[dtype]).astype(np.float32)
        session.update_parameter(name, given)
        np.testing.assert_array_equal(session.get_parameter(name), rounded)
        session.load_parameters_buffer(session.get_contiguous_parameters(False)[::-1].copy(), False)
        everything = session.get_contiguous_parameters(False)
        session.load_parameters_buffer(everything, False)
        np.testing.assert_array_equal(session.get_contiguous_parameters(False), everything)
        changed = steps(session, 1)
    values[name] = rounded.astype(DTYPES[dtype])
    with session_of(model_of(values)) as session:
        session.load_parameters_buffer(everything, False)
        assert steps(session, 1) == changed


def test_a_trained_weight_becomes_float32() -> None:
    values = weights("float16")
    with session_of(model_of(values), lora=None, frozen_params=[NAMES[0], NAMES[2]]) as session:
        one = dict(zip(NAMES, (2, 4, 4), strict=True))
        assert session.memory().parameters == sum(one[name] * value.size + 3 & -4 for name, value in values.items())
        assert all(np.isfinite(steps(session, 2)))


def with_reader(model: bytes, *nodes: onnx.NodeProto, weight: str) -> bytes:
    """The model, to whose logits the sum of the last node's result is added; `weight` is what "w" of the nodes is."""
    result = onnx.load_from_string(model)
    result.graph.node[-1].output[0] = "raw"
    result.graph.node.extend(nodes)
    for node in result.graph.node:
        node.input[:] = [weight if name == "w" else name for name in node.input]
    result.graph.node.extend([helper.make_node("ReduceMean", [nodes[-1].output[0]], ["mean"], keepdims=0)])
    result.graph.node.append(helper.make_node("Add", ["raw", "mean"], ["logits"]))
    return result.SerializeToString()


READERS = {
    "a sum": [helper.make_node("Mul", ["w", "hidden_mean"], ["other"])],
    "a product with the weight on its left": [helper.make_node("MatMul", ["w", "columns"], ["other"])],
    "a lookup of columns": [helper.make_node("Gather", ["w", "some"], ["other"], axis=1)],
}


@pytest.mark.parametrize("why", READERS)
def test_a_weight_that_something_else_reads_too_has_a_copy_of_the_plan(why: str) -> None:
    values = weights("float16")
    more = [
        helper.make_node("ReduceMean", ["hidden"], ["hidden_mean"], axes=[0, 1], keepdims=0),
        helper.make_node("Transpose", ["hidden"], ["columns"], perm=[1, 0]),
        helper.make_node("Constant", [], ["some"], value_ints=[3, 1]),
    ]
    one, two = (
        with_reader(model, *more, *READERS[why], weight=weight)
        for model, weight in ((model_of(values), "m.fc.weight.wide"), (widened(values), "m.fc.weight"))
    )
    with session_of(one) as session, session_of(two) as twin:
        np.testing.assert_allclose(steps(session), steps(twin), rtol=1e-5)
        assert twin.memory().parameters - session.memory().parameters == saved(values)
        feed = dict(zip(session.input_names(), feeds().values(), strict=True))
        text = session.explain(feed)
        assert "dequantize_f32(" in text.rpartition("@@")[2].replace("gather_dequantized_f32(", "")
        (reason,) = re.findall(
            r"the weight 'm.fc.weight' at Cast node .* stays as it is: (.*), of which a copy is made", text
        )
        assert reason.endswith("reads it in float32") and "'other'" in reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_inference_is_that_of_float32(dtype: str) -> None:
    values, given = weights(dtype), {"ids": feeds()["ids"]}
    one, two = (trainweb.InferenceSession(m) for m in (model_of(values), widened(values)))
    np.testing.assert_array_equal(one.run(None, given)[0], two.run(None, given)[0])
    table, layer, norm = (values[name].astype(np.float64) for name in NAMES)
    expected = np.tanh(table[given["ids"]] @ layer.T * norm) @ table.T
    np.testing.assert_allclose(one.run(None, given)[0], expected, rtol=1e-4, atol=1e-5)
    settings: dict[str, Any] = {"engine": get_engine(), "limits": Limits(), "memory_budget": None}
    models = [InferenceModel(read_model(m), **settings) for m in (model_of(values), widened(values))]
    sizes = [model.segment_bytes[PARAMETERS] for model in models]
    assert sizes[1] > 1.9 * sizes[0]
    one.release()
    two.release()


def test_a_check_of_numerics_leaves_such_weights_alone() -> None:
    values = weights("float16")
    with session_of(model_of(values), options={"debug": {"check_numerics": True}}) as session:
        assert all(np.isfinite(steps(session, 2)))


def test_weights_of_16_bits_beside_a_graph_of_float32_stay_as_they_are(tmp_path: Path) -> None:
    """As repositories of models have them: bfloat16 in a safetensors file."""
    values = weights("bfloat16")
    model = onnx.load_from_string(widened(values))
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    ends = np.cumsum([0, *(value.nbytes for value in values.values())]).tolist()
    header = {
        name: {"dtype": "BF16", "shape": value.shape, "data_offsets": ends[k : k + 2]}
        for k, (name, value) in enumerate(values.items())
    }
    text = json.dumps(header).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(v.tobytes() for v in values.values()))
    with session_of(model.SerializeToString(), weights=file) as session, session_of(widened(values)) as twin:
        assert twin.memory().parameters - session.memory().parameters == saved(values)
        np.testing.assert_allclose(steps(session), steps(twin), rtol=1e-5)
        exported = onnx.load_from_string(session.export_model_for_inferencing(["logits"]))
    written = {t.name: numpy_helper.to_array(t) for t in exported.graph.initializer}
    for name, value in values.items():
        np.testing.assert_array_equal(written[name], value.astype(np.float32))
        assert written[name].dtype == np.float32


def test_a_matrix_that_steps_change_is_float32() -> None:
    """A buffer of the module, as codebooks are: next = center / 2 + the mean of x w, which is the next center."""
    rng, losses = np.random.default_rng(5), []
    w, center = (rng.standard_normal((WIDTH, WIDTH)).astype(np.float16) for _ in range(2))
    x = rng.standard_normal((3, WIDTH)).astype(np.float32)
    for values in ((w, center), (w.astype(np.float32), center.astype(np.float32))):
        nodes = [
            helper.make_node("Cast", ["w"], ["w32"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["center"], ["center32"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["x", "w32"], ["h"]),
            helper.make_node("ReduceMean", ["h"], ["mean"], keepdims=0),
            helper.make_node("Mul", ["center32", "half"], ["kept"]),
            helper.make_node("Add", ["kept", "mean"], ["next"]),
            helper.make_node("MatMul", ["h", "next"], ["y"]),
            helper.make_node("Mul", ["y", "y"], ["square"]),
            helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
        ]
        tensors = dict(zip(("w", "center", "half"), (*values, np.float32(0.5)), strict=True))
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, WIDTH])],
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()],
        )
        notes = "# inputs\np_w: PARAMETER target='w'\n# outputs\nnext: BUFFER_MUTATION target='center'\n"
        graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=notes)
        graph.initializer[0].metadata_props.add(
            key="pkg.torch.export.graph_signature.InputSpec.kind", value="InputKind.PARAMETER"
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, producer_name="pytorch", opset_imports=opsets, ir_version=10)
        with trainweb.TrainingSession.from_model(model.SerializeToString(), loss=None, optimizer="SGD") as session:
            losses.append([float(session.train_step({"x": x})["loss"]) for _ in range(4)])
    assert len(set(losses[0])) == 4
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_a_matrix_that_is_an_output_itself_is_as_declared() -> None:
    values = weights("float16")
    model = onnx.load_from_string(model_of(values))
    model.graph.output.append(helper.make_tensor_value_info("m.fc.weight", TensorProto.FLOAT16, [WIDTH, WIDTH]))
    logits, weight = infer(model.SerializeToString(), {"ids": feeds()["ids"]})
    assert weight.dtype == np.float16 and logits.dtype == np.float32
    np.testing.assert_array_equal(weight, values["m.fc.weight"])
