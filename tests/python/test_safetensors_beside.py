"""Graphs whose weights lie in safetensors files, as in a repository of Hugging Face."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model

import trainweb
from trainweb.errors import ModelError
from trainweb.model import read_model

NAME = "model.layers.0.mlp.up_proj.weight"
SHAPE = (192, 128)
CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}
RANDOM = np.random.default_rng(5)


def file_of(tensors: dict[str, np.ndarray]) -> bytes:
    """A safetensors file, by the words of the format's description."""
    header, body = {}, b""
    for name, array in tensors.items():
        place = [len(body), len(body) + array.nbytes]
        header[name] = {"dtype": CODES[str(array.dtype)], "shape": list(array.shape), "data_offsets": place}
        body += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def graph_of(location: str = "", code: int = TensorProto.FLOAT) -> bytes:
    """A product with a weight that has no data, or lies at a location."""
    weight = TensorProto(name=NAME, data_type=code, dims=SHAPE)
    if location:
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.append(onnx.StringStringEntryProto(key="location", value=location))
    return make_model(
        [helper.make_node("Transpose", [NAME], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["x", "t"], ["y"])],
        {"x": ["n", SHAPE[1]]},
        {"y": ["n", SHAPE[0]]},
        [weight],
    ).SerializeToString()


WEIGHT = RANDOM.standard_normal(SHAPE, np.float32)


def loss_of(session: trainweb.TrainingSession) -> tuple[float, float]:
    """The loss of a session on some rows, and by NumPy of the exact weights."""
    x, labels = np.ones((3, SHAPE[1]), np.float32), np.array([0, 5, 191])
    try:
        feeds = dict(zip(session.input_names(), (x, labels), strict=True))
        (found,) = session.train_step(feeds, session.output_names()[:1]).values()
    finally:
        session.release()
    logits = WEIGHT.astype(np.float64).sum(1)
    return float(found), float(np.log(np.exp(logits).sum()) - logits[labels].mean())


@pytest.mark.parametrize("lora", [None, {"rank": 2, "targets": ["up_proj"]}])
@pytest.mark.parametrize("form", ["path", "bytes", "shards", "location"])
def test_weights_come_from_files_by_their_names(form: str, lora: Any, tmp_path: Path) -> None:
    path, graph = tmp_path / "model.safetensors", tmp_path / "model.onnx"
    content = file_of({NAME: WEIGHT, "lm_head.weight": np.ones(2**19, np.float32)})
    path.write_bytes(content)
    graph.write_bytes(graph_of("model.safetensors" if form == "location" else ""))
    shards = [file_of({"model.norm.weight": np.ones(3, np.float32)}), path]
    weights = {"path": path, "bytes": content, "shards": shards, "location": None}[form]
    given: dict[str, Any] = {} if weights is None else {"weights": weights}
    session = trainweb.TrainingSession.from_model(graph, loss="CrossEntropyLoss", lora=lora, **given)
    found, wanted = loss_of(session)
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_converted_as_the_model_declares(dtype: str) -> None:
    half = WEIGHT.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    (tensor,) = read_model(graph_of(), weights=file_of({NAME: half})).initializers.values()
    assert tensor.dtype == "float32" and bytes(tensor.data) == half.astype(np.float32).tobytes()


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"layers.0.mlp.up_proj.weight": WEIGHT}, "no tensor of that name.*nearest is 'layers.0.mlp.up_proj.weight'"),
        ({NAME: WEIGHT.T.copy()}, r"has shape \[128, 192\]; the model declares \[192, 128\]"),
        ({NAME: np.ones(SHAPE, np.int64)}, "is int64; the model declares float32"),
    ],
)
def test_other_weights_are_refused(tensors: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        read_model(graph_of(), weights=file_of(tensors))


def test_files_that_cannot_be_used_are_refused() -> None:
    file = file_of({NAME: WEIGHT})
    with pytest.raises(ModelError, match=r"weights 0.*cannot be used"):
        read_model(graph_of(), weights=file[:-1])
    with pytest.raises(ModelError, match="Two files of weights"):
        read_model(graph_of(), weights=[file, file])
    with pytest.raises(ModelError, match="pass weights="):
        read_model(graph_of("model.safetensors"))
    full = onnx.load_from_string(graph_of())
    full.graph.initializer[0].raw_data = WEIGHT.tobytes()
    with pytest.raises(ModelError, match="every initializer of the model has data of its own"):
        read_model(full, weights=file)


TIED = Path(__file__).parents[1] / "lora" / "recorded" / "tied.dynamo.onnx"
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def tied_model(more: str = "") -> tuple[bytes, np.ndarray]:
    """A language model of transformers without its tied table, which the exporter calls by the head's name; the table.

    `more` is appended to the exporter's list of parameters.
    """
    model = onnx.load(TIED)
    (tensor,) = (t for t in model.graph.initializer if t.name == HEAD)
    table = onnx.numpy_helper.to_array(tensor)
    tensor.ClearField("raw_data")
    (signature,) = (p for p in model.graph.metadata_props if p.key.endswith("graph_signature"))
    signature.value = more + signature.value
    return model.SerializeToString(), table


@pytest.mark.parametrize("form", ["weights", "location"])
def test_a_tied_table_is_found_by_its_other_name(form: str, tmp_path: Path) -> None:
    model, table = tied_model()
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({TABLE: table, "model.norm.weight": np.ones(8, np.float32)}))
    if form == "location":
        proto = onnx.load_from_string(model)
        (tensor,) = (t for t in proto.graph.initializer if t.name == HEAD)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.append(onnx.StringStringEntryProto(key="location", value=path.name))
        model = proto.SerializeToString()
    (tmp_path / "model.onnx").write_bytes(model)
    graph = read_model(tmp_path / "model.onnx", **({"weights": path} if form == "weights" else {}))
    assert bytes(graph.initializers[HEAD].data) == table.tobytes()


@pytest.mark.parametrize(
    ("names", "more"),
    [
        ([f"other.{TABLE}"], ""),
        ([TABLE, "other.weight"], "p_other_weight: PARAMETER target='other.weight'\n"),
        (["model.norm.weight"], ""),
    ],
    ids=["unknown", "two", "another shape"],
)
def test_a_table_that_may_be_another_is_refused(names: list[str], more: str) -> None:
    model, table = tied_model(more)
    tensors = {name: table if "norm" not in name else table[0] for name in names}
    with pytest.raises(ModelError, match=r"Initializer 'lm_head.weight' has no data.*no tensor of that name"):
        read_model(model, weights=file_of(tensors))
