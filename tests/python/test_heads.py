"""A new last layer: losses are those of PyTorch with a replaced layer, and what is no plain head is refused."""

import json
import tarfile
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model, normal

import trainweb
from trainweb import TrainingSession
from trainweb.artifacts import build_artifacts
from trainweb.errors import GradientError, ModelError
from trainweb.heads import replace_head
from trainweb.lora import Adapter
from trainweb.model.reader import read_model

RECORDED = Path(__file__).parent.parent / "golden" / "heads"
TRUTH: dict[str, Any] = json.loads((RECORDED / "recorded.json").read_text())
EXPORTERS = ("dynamo", "plain", "script")
SETTINGS = {"classes": 5, "seed": 7}
NEW = "The head .* is new"
TRAINING: dict[str, Any] = {"loss": "CrossEntropyLoss", "optimizer": {"type": "SGD", "learning_rate": 0.1}}


def model_of(name: str, exporter: str = "plain") -> bytes:
    with tarfile.open(RECORDED / "models.tar.xz") as archive:
        member = archive.extractfile(f"{name}_{exporter}.onnx")
        assert member is not None
        return member.read()


def array_of(recorded: list[Any], dtype: str) -> np.ndarray:
    shape, values = recorded
    return np.array(values, dtype).reshape(shape)


def session_of(model: Any, **settings: Any) -> TrainingSession:
    with pytest.warns(UserWarning, match=NEW):
        return TrainingSession.from_model(model, **{**TRAINING, **settings})


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", TRUTH)
def test_losses_are_those_of_pytorch_with_a_replaced_layer(name: str, exporter: str) -> None:
    truth = TRUTH[name]
    feeds = {"x": array_of(truth["x"], "float32"), "labels": array_of(truth["labels"], "int64")}
    losses = []
    with session_of(model_of(name, exporter), head=SETTINGS) as session:
        for _ in truth["losses"]:
            losses.append(float(next(iter(session.train_step(feeds).values()))))
            session.optimizer_step()
            session.lazy_reset_grad()
        assert session.predict({"x": feeds["x"]})["y"].shape[-1] == SETTINGS["classes"]
    np.testing.assert_allclose(losses, truth["losses"], rtol=1e-5)


def test_rows_stay_usable_when_a_class_is_added() -> None:
    feeds = {"x": array_of(TRUTH["probabilities"]["x"], "float32"), "labels": np.arange(4)}
    for classes in (4, 5):
        with session_of(model_of("probabilities"), head={"classes": classes}) as session:
            session.fit(feeds, epochs=1)
            assert session.predict({"x": feeds["x"]})["y"].shape == (4, classes)


def test_all_but_the_head_is_frozen() -> None:
    with session_of(model_of("pooled"), head=SETTINGS, frozen_params="all but head") as session:
        before = {name: np.array(value.data) for name, value in session.state.parameters.items()}
        feeds = {
            "x": array_of(TRUTH["pooled"]["x"], "float32"),
            "labels": array_of(TRUTH["pooled"]["labels"], "int64"),
        }
        session.fit(feeds, epochs=1, batch_size=4)
        changed = {
            name for name, value in before.items() if not np.array_equal(value, session.state.parameters[name].data)
        }
    assert changed == {"fc.weight", "fc.bias"}
    assert {"conv.weight", "conv.bias"} <= set(before)


def test_a_head_alone_has_nothing_else_to_freeze() -> None:
    proto = two_heads()
    del proto.graph.node[2], proto.graph.node[0], proto.graph.output[1], proto.graph.initializer[1:]
    proto.graph.node[0].input[0] = "x"
    with session_of(proto, head={"classes": 5}, frozen_params="all but head") as session:
        assert [name for name, value in session.state.parameters.items() if value.requires_grad] == ["kind.weight"]


def test_constants_of_formulas_are_no_frozen_parameters() -> None:
    proto = two_heads()
    del proto.graph.node[2], proto.graph.output[1]
    proto.graph.node[0].output[0] = "product"
    proto.graph.node.insert(1, helper.make_node("Mul", ["product", "val_4"], ["h"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(2), "val_4"))
    are_frozen = []
    for names in ("all but head", ["body.*", "val_.*"], ["body.weight", "val_4"]):
        with session_of(proto, head={"classes": 5}, frozen_params=names) as session:
            are_frozen.append([name in session.state.parameters for name in ("body.weight", "val_4")])
    assert are_frozen == [[True, False], [True, False], [True, True]]


def test_adapters_train_the_head_whole() -> None:
    with session_of(model_of("tokens"), head=SETTINGS, lora={"targets": ["body"]}) as session:
        assert {name for name, value in session.state.parameters.items() if value.requires_grad} >= {
            "out.weight",
            "out.bias",
        }


def two_heads() -> onnx.ModelProto:
    """Two layers read one tensor; the third is used twice."""
    arrays = {name: np.ones((4, 3), np.float32) for name in ("kind.weight", "age.weight")}
    nodes = [
        helper.make_node("MatMul", ["x", "body.weight"], ["h"]),
        helper.make_node("MatMul", ["h", "kind.weight"], ["kind"]),
        helper.make_node("MatMul", ["h", "age.weight"], ["age"]),
    ]
    arrays["body.weight"] = np.ones((4, 4), np.float32)
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", n])
        for name, n in (("x", 4), ("kind", 3), ("age", 3))
    }
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return make_model(nodes, [values["x"]], [values["kind"], values["age"]], tensors)


def test_several_heads_are_named_and_one_is_chosen() -> None:
    graph = read_model(two_heads())
    with pytest.raises(ModelError, match=r"may be the head of the model are 'kind', 'age'\. Name one"):
        replace_head(graph, {"classes": 2})
    with pytest.raises(ModelError, match=r"'body' cannot be the head\. The layers that may be it are 'kind', 'age'"):
        replace_head(graph, {"classes": 2, "layer": "body"})
    with pytest.warns(UserWarning, match="'age' is new: it has 2 classes and random weights. It had 3 classes."):
        changed, module, parameters = replace_head(graph, {"classes": 2, "layer": "age"})
    assert (module, parameters) == ("age", ["age.weight"])
    assert [getattr(value, "shape", None) for value in changed.outputs] == [("n", 3), ("n", 2)]
    assert graph.initializers["age.weight"].shape == (4, 3)


def behind(op: str, **attrs: Any) -> onnx.ModelProto:
    """A layer, and an operator behind it that needs its number of classes."""
    proto = two_heads()
    del proto.graph.node[2], proto.graph.output[1]
    proto.graph.node[1].output[0] = "scores"
    inputs = {
        "Gather": ["scores", "index"],
        "Mul": ["scores", "row"],
        "MatMul": ["scores", "row"],
        "Add": ["scores", "scores"],
    }
    proto.graph.node.append(helper.make_node(op, inputs[op], ["kind"], **attrs))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("kind", TensorProto.FLOAT, None))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(2), "index"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((3,), np.float32), "row"))
    return proto


@pytest.mark.parametrize(("op", "attrs"), [("Gather", {"axis": 1}), ("Mul", {}), ("MatMul", {})])
def test_what_needs_the_old_number_of_classes_is_refused(op: str, attrs: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="No layer can be the head of the model"):
        replace_head(read_model(behind(op, **attrs)), {"classes": 2})


@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 5)), (1, None)])
def test_a_part_of_the_rows_may_be_chosen_but_not_of_the_classes(axis: int, shape: tuple[int, ...] | None) -> None:
    proto = behind("Gather", axis=0)
    node = proto.graph.node[-1]
    node.op_type, node.input[1:] = "Slice", ["first", "last", "axis"]
    del node.attribute[:]
    for name, value in (("first", 0), ("last", 2), ("axis", axis)):
        proto.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("kind", TensorProto.FLOAT, None))
    if shape is None:
        with pytest.raises(ModelError, match="No layer can be the head of the model"):
            replace_head(read_model(proto), {"classes": 5})
        return
    with session_of(proto, head={"classes": 5}) as session:
        assert session.predict({"x": np.ones((2, 4), np.float32)})["kind"].shape == shape


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_file_in_half_precision_has_a_head_as_its_copy_in_single_precision_has(dtype: Any) -> None:
    losses = []
    feeds = {
        "x": array_of(TRUTH["pooled"]["x"], "float32"),
        "labels": array_of(TRUTH["pooled"]["labels"], "int64"),
    }
    for is_half in (True, False):
        proto = onnx.load_from_string(model_of("pooled", "script"))
        for tensor in proto.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.dtype != np.float32:
                continue
            half, name = array.astype(dtype), tensor.name
            tensor.CopyFrom(numpy_helper.from_array(half if is_half else half.astype(np.float32), name))
            if is_half:
                tensor.name = f"{name}_half"
                proto.graph.node.insert(0, helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
        with session_of(proto, head=SETTINGS, frozen_params="all but head") as session:
            losses.append(session.fit(feeds, epochs=3, batch_size=4, shuffle=False).losses)
    assert len(losses[0]) == 3
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_a_tied_weight_is_no_head(turned: bool) -> None:
    proto = two_heads()
    for product in proto.graph.node[1:]:
        product.input[1] = "turned" if turned else "kind.weight"
    if turned:
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((3, 4), np.float32), "kind.weight"))
        proto.graph.node.insert(0, helper.make_node("Transpose", ["kind.weight"], ["turned"]))
    with pytest.raises(ModelError, match="No layer can be the head of the model"):
        replace_head(read_model(proto), {"classes": 2})


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({}, ModelError, "head needs the setting 'classes'"),
        ({"classes": 0}, ModelError, "head.classes"),
        ({"classes": 2, "layer": 3}, ModelError, "head.layer"),
        ({"classes": 2, "seed": -1}, ModelError, "head.seed"),
        ({"clases": 2}, TypeError, "did you mean 'classes'"),
        (5, ModelError, "a mapping with 'classes'"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TrainingSession.from_model(model_of("tokens"), head=settings, **TRAINING)


def test_all_but_head_needs_a_head() -> None:
    with pytest.raises(ModelError, match="used with 'head'"):
        TrainingSession.from_model(model_of("tokens"), frozen_params="all but head", **TRAINING)


def test_an_adapter_of_a_file_has_its_own_head() -> None:
    config = json.dumps({"peft_type": "LORA", "target_modules": ["body"]})
    with pytest.raises(ModelError, match="left out with the files of an adapter"), pytest.warns(UserWarning, match=NEW):
        TrainingSession.from_model(model_of("tokens"), head=SETTINGS, lora={"adapter_config": config}, **TRAINING)


def test_a_cast_may_stand_before_the_bias() -> None:
    """As in the file of Keras' PyTorch back end, where names do not tell that the head's tensors are parameters."""
    proto = two_heads()
    del proto.graph.node[2], proto.graph.output[1]
    proto.graph.node[1].output[0] = "product"
    proto.graph.node.append(helper.make_node("Cast", ["product"], ["same"], to=TensorProto.FLOAT))
    proto.graph.node.append(helper.make_node("Add", ["same", "onnx::Add_7"], ["kind"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "onnx::Add_7"))
    proto.producer_name = "pytorch"
    with pytest.warns(UserWarning, match="'kind' is new: it has 5 classes and random weights. It had 3 classes."):
        changed, _, parameters = replace_head(read_model(proto), {"classes": 5})
    assert parameters == ["kind.weight", "onnx::Add_7"] and changed.initializers["onnx::Add_7"].shape == (5,)
    with warnings.catch_warnings(record=True) as caught, session_of(proto, head={"classes": 5}) as session:
        trained = {name for name, value in session.state.parameters.items() if value.requires_grad}
    assert trained >= set(parameters) and not any("does not settle" in str(w.message) for w in caught)


def test_the_file_itself_is_not_changed() -> None:
    model = model_of("tokens")
    with session_of(model, head=SETTINGS):
        pass
    assert build_artifacts(model, loss="CrossEntropyLoss").parameters
    assert {t.shape for t in build_artifacts(model, loss="CrossEntropyLoss").parameters} >= {(10, 8), (10,)}


WIDE = 64
"""Products of as many rows and columns are quantized."""


def keras() -> onnx.ModelProto:
    """Three dense layers by the names of tf2onnx, which have no modules."""
    nodes, tensors, source = [], {}, "x"
    for name, width in (("dense", WIDE), ("dense_1", WIDE), ("dense_2", WIDE)):
        path = f"StatefulPartitionedCall/model/{name}"
        weight, bias, out = f"{path}/Cast/ReadVariableOp:0", f"{path}/BiasAdd/ReadVariableOp:0", f"{path}/BiasAdd:0"
        tensors |= {weight: normal(WIDE, width, seed=len(tensors)), bias: normal(width, seed=9 + len(tensors))}
        nodes.append(helper.make_node("MatMul", [source, weight], [f"{path}/MatMul:0"], f"{path}/MatMul"))
        nodes.append(helper.make_node("Add", [f"{path}/MatMul:0", bias], [out], f"{path}/BiasAdd"))
        nodes.append(helper.make_node("Tanh", [out], [source := f"{path}/Tanh:0"], f"{path}/Tanh"))
    return make_model(nodes, {"x": ["batch", WIDE]}, {source: ["batch", WIDE]}, tensors, producer="tf2onnx")


def arrays(file: bytes) -> dict[str, np.ndarray]:
    """The float32 tensors of a safetensors file."""
    start = 8 + int.from_bytes(file[:8], "little")
    header = {name: entry for name, entry in json.loads(file[8:start]).items() if name != "__metadata__"}
    places = {name: slice(*(start + at for at in entry["data_offsets"])) for name, entry in header.items()}
    return {n: np.frombuffer(file[places[n]], "<f4").reshape(entry["shape"]) for n, entry in header.items()}


def test_a_head_beside_adapters_needs_no_names_of_modules(tmp_path: Path) -> None:
    """In a file of Keras, weight and bias of the head are modules of their own."""
    model, feeds = keras(), {"x": normal(6, WIDE, seed=5), "labels": np.arange(6) % 3}
    lora = {"targets": r".*/dense(_1)?/.*", "rank": 2, "alpha": 6}
    settings: dict[str, Any] = {**TRAINING, "head": {"classes": 3}, "lora": lora}
    with session_of(model, **settings) as session:
        for _ in range(3):
            session.train_step(feeds)
            session.optimizer_step()
            session.lazy_reset_grad()
        scores = next(iter(session.predict({"x": feeds["x"]}).values()))
        session.adapted.adapter(session).save(tmp_path)
    stored = arrays((tmp_path / "adapter_model.safetensors").read_bytes())
    saved = {name.removeprefix("base_model.model."): array for name, array in stored.items()}
    h = feeds["x"].astype(np.float64)
    for weight, bias in zip(model.graph.initializer[::2], model.graph.initializer[1::2], strict=True):
        w, b = (saved.get(t.name, numpy_helper.to_array(t)) for t in (weight, bias))
        if weight.name not in saved:
            w = w + 3 * (saved[f"{weight.name}.lora_B.weight"] @ saved[f"{weight.name}.lora_A.weight"]).T
        elif w.shape[0] == 3:
            w = w.T
        h = np.tanh(h @ w + b)
    assert h.shape == (6, 3)
    np.testing.assert_allclose(scores, h, rtol=1e-4, atol=1e-5)
    with session_of(model, **settings) as session:
        session.adapted.load_adapter(session, Adapter.load(tmp_path))
        np.testing.assert_array_equal(next(iter(session.predict({"x": feeds["x"]}).values())), scores)


@pytest.mark.parametrize("layer", [None, "StatefulPartitionedCall/model/dense_2/Cast/ReadVariableOp:0"])
def test_a_quantized_head_is_refused_with_the_way(layer: str | None) -> None:
    model = trainweb.quantize(keras().SerializeToString(), 8, only_frozen=False)
    with pytest.raises(ModelError, match="leave it out of the quantization, as trainweb"):
        TrainingSession.from_model(model, head={"classes": 3, "layer": layer}, **TRAINING)
    allowed = trainweb.quantize(keras().SerializeToString(), 8)
    session_of(allowed, head={"classes": 3}, frozen_params="all but head").release()
    with pytest.raises(GradientError, match='freeze scales or "all but head"'):
        session_of(allowed, head={"classes": 3})
