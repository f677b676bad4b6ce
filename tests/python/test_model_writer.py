"""A written model reads as the same, and is valid for ONNX."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from trainweb.errors import LimitError, ModelError
from trainweb.model import Graph, Node, Sequence, Tensor, Value, read_model, write_model
from trainweb.model.lazy import LazyTensor

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
MODELS = sorted(path for path in GOLDEN.glob("**/*.onnx") if "pretrained" not in path.parts)
"""Without the one whose weights are in a safetensors file: onnx refuses it."""


def complaint(model: onnx.ModelProto) -> str:
    """The message of onnx.checker."""
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        return str(error).split("\n")[0]
    return ""


@pytest.mark.parametrize("folder", sorted({str(path.parent.relative_to(GOLDEN)) for path in MODELS}))
def test_recorded_models_round_trip(folder: str) -> None:
    accepted = 0
    for path in sorted((GOLDEN / folder).glob("*.onnx")):
        graph = read_model(path)
        data = write_model(graph)
        assert read_model(data) == graph, path
        assert write_model(read_model(data)) == data, path
        theirs, ours = onnx.load(path), onnx.load_from_string(data)
        assert complaint(ours) == complaint(theirs), path
        accepted += complaint(ours) == ""
        assert same_content(ours, theirs), path
    assert accepted


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs in their attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g)


def same_content(ours: onnx.ModelProto, theirs: onnx.ModelProto) -> bool:
    """Equal but for documentation, what we drop, and the encoding of tensors."""
    for model in (ours, theirs):
        model.ClearField("doc_string")
        model.ClearField("domain")
        model.ClearField("model_version")
        model.ClearField("producer_version")
        model.graph.ClearField("doc_string")
        for node in nodes_of(model.graph):
            node.ClearField("doc_string")
            # presence of an empty text means nothing
            node.domain, node.name = node.domain, node.name
            others = [entry for entry in node.metadata_props if not entry.key.endswith("fx_node")]
            del node.metadata_props[:]  # the reader keeps those calls of torch that tell it something
            node.metadata_props.extend(others)
            for attribute in node.attribute:
                attribute.ClearField("doc_string")
                if attribute.HasField("t"):
                    attribute.t.CopyFrom(plain(attribute.t))
        for body in (attribute.g for node in model.graph.node for attribute in node.attribute):
            for node in nodes_of(body):
                node.name = ""  # two branches may have one name, which the reader changes
        tensors = [plain(tensor) for tensor in model.graph.initializer]
        model.graph.ClearField("initializer")
        model.graph.initializer.extend(tensors)
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
            value.ClearField("doc_string")
        tensors_only = [v for v in model.graph.value_info if v.type.HasField("tensor_type")]
        model.graph.ClearField("value_info")
        model.graph.value_info.extend(tensors_only)
        for entry in model.opset_import:
            entry.domain = entry.domain
        model.producer_name = model.producer_name
    return ours == theirs


def plain(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name)


def graph_of_everything() -> Graph:
    weight = Tensor.of("w", "float32", (2, 2), range(4))
    inner = Graph("inner", [Node("Add", ["x", "w"], ["t"])], [], [Value("t", "float32", None)])
    attrs = {
        "i": 3,
        "yes": True,
        "f": 0.5,
        "s": "ü",
        "b": b"\xff",
        "ints": [1, 2],
        "floats": [1.0, 2],
        "strings": ["a", b"\xfe"],
        "t": weight,
        "ts": [weight],
        "g": inner,
        "gs": [inner],
        "none": [],
    }
    return Graph(
        "everything",
        [Node("Op", ["x", "", "w"], ["y", ""], attrs, "org.test", "n")],
        [
            Value("x", "float32", ("N", None, 3)),
            Sequence("s", "float32"),
            Value("any", "int64", None),
        ],
        [Value("y", "float32", ()), Sequence("s", "float32")],
        {"w": weight},
        {"h": Value("h", "bool", (0,))},
        {"": 17, "org.test": 1},
        9,
        "someone",
        {"key": "value"},
    )


def test_everything_survives() -> None:
    graph = graph_of_everything()
    again = read_model(write_model(graph))
    # a text list is all text or all bytes
    graph.nodes[0].attrs["strings"] = [b"a", b"\xfe"]
    assert again == graph
    assert write_model(again) == write_model(graph)


def test_data_may_be_any_buffer() -> None:
    graph = graph_of_everything()
    expected = write_model(graph)
    data = bytes(graph.initializers["w"].data)
    for buffer in (bytearray(data), memoryview(data)):
        graph.initializers["w"].data = buffer
        assert write_model(graph) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: setattr(g.initializers["w"], "data", bytes(15)), "'w'.*15 bytes"),
        (lambda g: setattr(g.initializers["w"], "dtype", "float"), "'w'.*'float'"),
        (lambda g: g.nodes[0].attrs.update(x=object()), "'x' of org.test.Op node 'n'"),
        (lambda g: g.nodes[0].attrs.update(x=2**63), "'x' of org.test.Op"),
        (lambda g: g.nodes[0].attrs.update(x=[1, "a"]), "'x' of org.test.Op"),
    ],
)
def test_what_onnx_cannot_hold_is_refused(change, message: str) -> None:
    graph = graph_of_everything()
    change(graph)
    with pytest.raises(ModelError, match=message):
        write_model(graph)


def test_more_than_two_gigabytes() -> None:
    graph = graph_of_everything()
    graph.initializers["huge"] = LazyTensor("huge", "uint8", (2**31,), lambda out: None)
    with pytest.raises(LimitError, match="2147483"):
        write_model(graph)


def test_graph_without_name_is_valid() -> None:
    graph = read_model(GOLDEN / "mlp" / "base.onnx")
    graph.name = ""
    onnx.checker.check_model(write_model(graph))


WITHOUT_ONNX = """
import sys
before = set(sys.modules)
from trainweb.checkpoint import read_checkpoint
from trainweb.model import read_model, write_model
write_model(read_model(sys.argv[1] + "/mlp/base.onnx"))
read_checkpoint(sys.argv[1] + "/mlp/checkpoint")
heavy = {"onnx", "numpy", "ml_dtypes", "flatbuffers"}
print(sorted(heavy.intersection(name.split(".")[0] for name in sys.modules)))
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_neither_onnx_nor_numpy_is_imported(implementation: str) -> None:
    env = os.environ | {
        "PYTHONPATH": str(ROOT / "py_src"),
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation,
    }
    command = [sys.executable, "-c", WITHOUT_ONNX, str(GOLDEN)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_schema_lives_in_its_own_pool() -> None:
    """The package onnx and this one may be loaded together, with schemas of different age."""
    from trainweb.model.schema import messages

    ours, theirs = messages().ModelProto, onnx.ModelProto
    assert ours is not theirs
    assert ours.DESCRIPTOR.file.pool is not theirs.DESCRIPTOR.file.pool
    assert messages() is messages()


def test_missing_schema_says_how_to_build_it(monkeypatch) -> None:
    from trainweb import errors
    from trainweb.model import schema

    monkeypatch.setattr(schema, "SCHEMA_FILE", "missing.bin")
    with pytest.raises(errors.EngineError, match=r"run \./build\.sh"):
        schema.messages.__wrapped__()


ORT_PYTHON = os.environ.get("TRAINWEB_ORT_PYTHON", "")

ORT_SCRIPT = """
import sys
import numpy as np
from onnxruntime.training.api import CheckpointState, Module, Optimizer
folder, golden, key, feed = sys.argv[1:]
state = CheckpointState.load_checkpoint(f"{golden}/checkpoint")
module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
module.train()
inputs = np.load(f"{golden}/inputs.npz")
loss = module(*[inputs[f"{feed}.{name}"] for name in module.input_names()])
expected = np.load(f"{golden}/expected.npz")[key]
first = loss[0] if isinstance(loss, (list, tuple)) else loss
np.testing.assert_allclose(np.asarray(first), expected, rtol=1e-5)
optimizer.step()
"""


@pytest.mark.skipif(not ORT_PYTHON, reason="TRAINWEB_ORT_PYTHON names no Python with onnxruntime-training")
def test_onnx_runtime_training_runs_what_is_written(tmp_path: Path) -> None:
    golden = GOLDEN / "mlp"
    for name in ("training_model", "eval_model", "optimizer_model"):
        (tmp_path / f"{name}.onnx").write_bytes(write_model(read_model(golden / f"{name}.onnx")))
    result = subprocess.run(
        [ORT_PYTHON, "-c", ORT_SCRIPT, str(tmp_path), str(golden), *first_step(golden)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def first_step(golden: Path) -> tuple[str, str]:
    """Key of the recorded loss of the first train step, and its feed."""
    import json

    calls = json.loads((golden / "trace.json").read_text())["trace"]
    call = next(call for call in calls if call["op"] == "train")
    key = next(key for name, key in call["results"].items() if name.startswith("out."))
    assert key in np.load(golden / "expected.npz")
    return key, call["feed"]
