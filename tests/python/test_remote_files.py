"""Models and checkpoints that Python reads by ranges: the same contents and errors as of bytes, and no large tensor."""

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bench import smol
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model

from trainweb.artifacts import builder
from trainweb.artifacts.evidence import SIGNATURE, Evidence
from trainweb.artifacts.recover import recover_parameters
from trainweb.backend.wasm.engine import get_engine
from trainweb.backend.wasm.host import SegmentMemory
from trainweb.checkpoint import SessionContents, read_checkpoint, write_checkpoint
from trainweb.errors import EngineError, LimitError, TrainwebError
from trainweb.ir.layout import PARAMETERS
from trainweb.model import read_model, remote, write_model
from trainweb.model.checks import Limits
from trainweb.model.graph import Tensor
from trainweb.model.lazy import LazyTensor
from trainweb.model.remote import RemoteTensor
from trainweb.onnxblock import protos
from trainweb.page import bridge
from trainweb.training.models import SessionModels

from .remote_files import Host, fill_segments

GOLDEN = Path(__file__).parent.parent / "golden"
MODELS = sorted(GOLDEN.glob("*/*.onnx"))
CHECKPOINTS = sorted(p for p in GOLDEN.glob("*/*") if p.is_file() and p.read_bytes()[4:8] == b"ODTC")


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of 64 bytes be large, and windows small."""
    monkeypatch.setattr(remote, "LARGE", 64)
    monkeypatch.setattr(remote, "WINDOW", 100)
    monkeypatch.setattr(bridge, "LARGE", 64)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """The holder of the bridge's files; artifacts have no objects of the onnx package, as in a page."""
    made = Host()
    monkeypatch.setattr(bridge, "_files", [made])
    monkeypatch.setattr(protos, "onnx_package", lambda: None)
    return made


def one_gemm(rows: int, width: int, **fields: Any) -> bytes:
    """A model of one matrix of float32 numbers, which count up; `fields` are set in its TensorProto."""
    weights = numpy_helper.from_array(np.arange(rows * width, dtype=np.float32).reshape(rows, width) / 1024, "w")
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(weights, name).extend(value)
        else:
            setattr(weights, name, value)
    return make_model(
        [helper.make_node("Gemm", ["x", "w"], ["y"])],
        {"x": [1, rows]},
        {"y": [1, width]},
        [weights, numpy_helper.from_array(np.ones(3, np.float32), "small")],
    ).SerializeToString()


@pytest.mark.parametrize("path", MODELS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_model_is_the_same(path: Path, low: None) -> None:
    data = path.read_bytes()
    found, wanted = read_model(Host().open(data)), read_model(data)
    assert write_model(found) == write_model(wanted)
    for name, tensor in wanted.initializers.items():
        assert isinstance(found.initializers[name], RemoteTensor) == (tensor.nbytes >= 64 and tensor.dtype != "bool")


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_checkpoint_is_the_same(path: Path, low: None) -> None:
    data = path.read_bytes()
    found, wanted = read_checkpoint(Host().open(data)), read_checkpoint(data)
    assert write_checkpoint(found) == write_checkpoint(wanted)
    pairs = zip((*found.trained, *found.frozen), (*wanted.trained, *wanted.frozen), strict=True)
    for tensor, other in pairs:
        assert isinstance(tensor, LazyTensor) == (not wanted.is_nominal and other.nbytes >= 64)


def test_large_data_is_not_read() -> None:
    model = one_gemm(1024, 2048)
    host = Host()
    graph = read_model(host.open(model))
    weights = graph.initializers["w"]
    assert isinstance(weights, RemoteTensor) and weights.place is not None
    at = weights.place.offset
    assert model[at : at + weights.nbytes] == (np.arange(2**21, dtype=np.float32) / 1024).tobytes()
    assert host.seen(1).sum() < 3 * 2**16
    checkpoint = write_checkpoint(SessionContents.of([Tensor("w", "float32", (2**21,), weights.data)]))
    (tensor,) = read_checkpoint(host.open(checkpoint)).trained
    assert isinstance(tensor, RemoteTensor) and bytes(tensor.data) == weights.data
    assert host.seen(2).sum() == len(checkpoint)  # by `data`, which reads all of it anew


def nested(count: int) -> bytes:
    """A model with tensors of `count` numbers in a Constant node, in branches within a branch, and in a function."""

    def floats(name: str, factor: int) -> TensorProto:
        return numpy_helper.from_array(np.arange(count, dtype=np.float32) * factor, name)

    def branch(name: str, nodes: list[Any], tensors: list[TensorProto]) -> Any:
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [count])], tensors
        )

    inner = branch("z", [helper.make_node("Add", ["x", "a"], ["z"])], [floats("a", 2)])
    other = branch("v", [helper.make_node("Constant", [], ["v"], value=floats("", 3))], [])
    then = branch("t", [helper.make_node("If", ["c"], ["t"], then_branch=inner, else_branch=other)], [])
    orelse = branch("e", [helper.make_node("local", ["x"], ["e"], domain="mine")], [])
    body = [helper.make_node("Constant", [], ["k"], value=floats("", 5)), helper.make_node("Add", ["p", "k"], ["q"])]
    function = helper.make_function("mine", "local", ["p"], ["q"], body, [helper.make_opsetid("", 17)])
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["w"], value=floats("", 7)),
            helper.make_node("If", ["c"], ["r"], then_branch=then, else_branch=orelse),
            helper.make_node("Mul", ["r", "w"], ["y"]),
        ],
        "nested",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [count]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [count])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8).SerializeToString()


def test_large_tensors_in_attributes_subgraphs_and_functions_are_not_read() -> None:
    model, host = nested(2**17), Host()
    found, wanted = read_model(host.open(model)), read_model(model)
    tensors = [t for t in found.tensors() if t.nbytes == 2**19]
    assert len(tensors) == 4 and all(isinstance(t, RemoteTensor) for t in tensors)
    assert host.seen(1).sum() < len(model) / 2
    assert write_model(found) == write_model(wanted)
    for cut in (len(model) - 1, len(model) // 2, 2**19):
        assert outcome(lambda cut=cut: read_model(Host().open(model[:cut]))) == outcome(
            lambda cut=cut: read_model(model[:cut])
        )


def outcome(read: Callable[[], Any]) -> tuple[str, str] | bytes:
    """The contents of a file as bytes, or the error that it gives."""
    try:
        found = read()
        return write_model(found) if hasattr(found, "nodes") else write_checkpoint(found)
    except TrainwebError as error:
        return type(error).__name__, str(error)


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
    """Files that were cut off, changed in a byte, or grown."""
    rng = random.Random(seed)
    for _ in range(40):
        yield data[: rng.randrange(len(data))]
    for _ in range(160):
        changed = bytearray(data)
        # The usual positions of the structure: at the start, the end, and around.
        at = rng.choice([rng.randrange(len(data)), rng.randrange(min(400, len(data))), -1 - rng.randrange(400)])
        changed[at] = rng.choice([0, 1, 127, 128, 255, changed[at] ^ (1 << rng.randrange(8))])
        yield bytes(changed)
    yield data + b"\0"
    yield data + data


@pytest.mark.parametrize("name", ["mlp/base.onnx", "cnn/base.onnx"])
def test_a_damaged_model_gives_the_same_error(name: str, low: None) -> None:
    refused = 0
    for data in damaged((GOLDEN / name).read_bytes(), 5):
        wanted = outcome(lambda data=data: read_model(data))
        assert outcome(lambda data=data: read_model(Host().open(data))) == wanted
        refused += isinstance(wanted, tuple)
    assert refused > 50


def test_a_damaged_checkpoint_gives_the_same_error(low: None) -> None:
    refused = 0
    for data in damaged((GOLDEN / "mlp" / "checkpoint").read_bytes(), 6):
        wanted = outcome(lambda data=data: read_checkpoint(data))
        assert outcome(lambda data=data: read_checkpoint(Host().open(data))) == wanted
        refused += isinstance(wanted, tuple)
    assert refused > 50


@pytest.mark.parametrize(
    "model",
    [
        one_gemm(128, 256, float_data=[1.0]),
        one_gemm(128, 256, dims=[3]),
        one_gemm(128, 256, data_type=TensorProto.BOOL),
        one_gemm(128, 256, data_type=TensorProto.STRING),
        one_gemm(128, 256, data_type=99),
        one_gemm(128, 256, data_location=TensorProto.EXTERNAL),
        one_gemm(128, 256, name="small"),
        one_gemm(128, 256, raw_data=bytes(131_073)),
        b"",
        b"\x1f\x8b" + bytes(70_000),
        (GOLDEN / "mlp" / "checkpoint").read_bytes(),
    ],
    ids=["float_data", "dims", "bool", "string", "99", "external", "twice", "size", "empty", "gzip", "checkpoint"],
)
def test_what_is_wrong_with_a_model_is_said_alike(model: bytes) -> None:
    wanted = outcome(lambda: read_model(model))
    assert isinstance(wanted, tuple)
    assert outcome(lambda: read_model(Host().open(model))) == wanted


def test_numbers_in_float_data_are_read_whole() -> None:
    weights = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[128, 256], float_data=range(128 * 256))
    proto = onnx.load_model_from_string(one_gemm(128, 256))
    proto.graph.initializer[0].CopyFrom(weights)
    found = read_model(Host().open(proto.SerializeToString()))
    assert not isinstance(found.initializers["w"], LazyTensor)
    assert found.initializers["w"].values() == tuple(range(128 * 256))


@pytest.mark.parametrize("limits", [{"file_bytes": 100_000}, {"arena_bytes": 100_000}, {"nodes": 0}])
def test_limits_count_alike(limits: dict[str, int]) -> None:
    model = one_gemm(128, 256)
    wanted = outcome(lambda: read_model(model, limits=Limits.of(limits)))
    assert wanted[0] == "LimitError"
    assert outcome(lambda: read_model(Host().open(model), limits=Limits.of(limits))) == wanted


def test_external_data_that_is_given_stays_where_it_is() -> None:
    data = bytes(64) + (np.arange(128 * 256, dtype=np.float32) / 1024).tobytes()
    proto = onnx.load_model_from_string(one_gemm(128, 256))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "64"), ("length", str(len(data) - 64))):
        tensor.external_data.add(key=key, value=value)
    model, host = proto.SerializeToString(), Host()
    found = read_model(model, external_data={"w.bin": host.open(data)})
    assert isinstance(found.initializers["w"], RemoteTensor) and not host.reads
    assert write_model(found) == write_model(read_model(model, external_data={"w.bin": data}))
    short = {"w.bin": host.open(data[:-1])}
    wanted = outcome(lambda: read_model(model, external_data={"w.bin": data[:-1]}))
    assert outcome(lambda: read_model(model, external_data=short)) == wanted and wanted[0] == "ModelError"


# Facts that decisions need.


@pytest.mark.parametrize("change", [None, 0, 1, 70_001, 99_999])
def test_whether_elements_are_all_the_same(change: int | None) -> None:
    values = np.full(100_000, 0.5, np.float32)
    if change is not None:
        values[change] = np.nextafter(np.float32(0.5), np.float32(1))
    data = remote.RemoteRange(Host().open(b"head" + values.tobytes()), 4, values.nbytes)
    assert RemoteTensor("t", "float32", (100_000,), data).is_uniform() == (change is None)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_tables_of_positions_are_read_a_few_times(is_recorded: bool) -> None:
    """Each layer has its own tables, which are all alike. Notes of the exporter settle what they are."""
    layers, angles = 20, np.arange(64 * 128, dtype=np.float32).reshape(64, 128) / 100
    tables = {
        f"{f.__name__}_{k}": numpy_helper.from_array(f(angles), f"{f.__name__}_{k}")
        for k in range(layers)
        for f in (np.cos, np.sin)
    }
    edges = ["x", *(f"h_{k}" for k in range(1, len(tables))), "y"]
    nodes = [helper.make_node("Mul", [edges[k], name], [edges[k + 1]]) for k, name in enumerate(tables)]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 128])
    graph = helper.make_graph(
        nodes, "rotary", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [*tables.values()]
    )
    if is_recorded:
        graph.metadata_props.add(key=SIGNATURE, value="# inputs")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    host = Host()
    found = read_model(host.open(model.SerializeToString()))
    host.reads.clear()
    evidence = Evidence(found, found.initializers)
    assert len(host.reads) <= (0 if is_recorded else 6 * len(tables))
    assert not any(evidence.decide(tensor).trained for tensor in found.initializers.values())


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_matrices_are_found_alike(is_tied: bool) -> None:
    table = np.random.default_rng(0).standard_normal((512, 64)).astype(np.float32)
    matrix = table.T.copy()
    if not is_tied:
        matrix[-1, -1] += 1
    model = make_model(
        [helper.make_node("Gather", ["t", "i"], ["e"]), helper.make_node("MatMul", ["e", "m"], ["y"])],
        {"i": [4]},
        {"y": [4, 512]},
        {"t": table, "m": matrix},
        types={"i": TensorProto.INT64},
    ).SerializeToString()
    host = Host()
    found = recover_parameters(read_model(host.open(model)))
    assert ("m" not in found.initializers) == is_tied
    assert write_model(found) == write_model(recover_parameters(read_model(model)))


# Sessions.


def answer(result: tuple[str, Any]) -> Any:
    reply = json.loads(result[0])
    assert "error" not in reply, reply
    return reply["ok"]


def filled(made: dict[str, Any], host: Host) -> tuple[list[int], list[bytes], list[list[int]]]:
    """Addresses and contents of the segments after `fill`, and the places that it still wants."""
    engine = get_engine()
    sizes = [segment["bytes"] for segment in made["header"]["segments"]]
    bases = [engine.alloc(size) if size else 0 for size in sizes]
    for base, size in zip(bases, sizes, strict=True):
        if base:
            engine.write(base, bytes(size))
    done = fill_segments(made["handle"], bases)
    for segment, at, file, offset, nbytes, *form in done["copies"]:
        data = host.files[file][offset : offset + nbytes]
        turned = np.frombuffer(data, "<f4").reshape(form[2], -1).T.tobytes() if form else data
        engine.write(bases[segment] + at, turned)
    contents = [engine.read(base, size) if size else b"" for base, size in zip(bases, sizes, strict=True)]
    return bases, contents, done["places"]


def test_a_segment_without_memory_is_not_read() -> None:
    """As of a session on the GPU, until it is claimed."""
    with pytest.raises(EngineError, match="Segment 2 has no memory"):
        SegmentMemory(get_engine(), [0] * 9).read_segment_into(PARAMETERS, 64, memoryview(bytearray(4)))


def free(bases: list[int]) -> None:
    for base in filter(None, bases):
        get_engine().free(base)


@pytest.mark.parametrize("kind", ["create", "create_inference"])
def test_a_session_starts_from_the_same_bytes(kind: str, low: None, host: Host) -> None:
    names = ("training_model.onnx", "checkpoint", "eval_model.onnx", "optimizer_model.onnx")
    files = [(GOLDEN / "mlp" / name).read_bytes() for name in names]
    files = files if kind == "create" else [one_gemm(128, 256)]
    make = getattr(bridge, kind)
    wanted = answer(make(*files, "{}"))
    found = answer(make(*map(host.add, files), "{}"))
    assert found["header"] == wanted["header"]
    (one, contents, in_use), (other, expected, _) = filled(found, host), filled(wanted, host)
    assert contents == expected and any(map(any, contents))
    # The segments have all large data: files need not stay.
    assert in_use == []
    for bases in (one, other):
        free(bases)


def test_weights_go_from_a_model_to_segments_and_artifacts_without_python(host: Host) -> None:
    model = one_gemm(2048, 1024)
    weights = (np.arange(2**21, dtype=np.float32) / 1024).tobytes()
    config = json.dumps({"loss": "CrossEntropyLoss", "optimizer": "AdamW"})
    given = host.add(model)
    answer(bridge.create_from_model(model, config, "{}"))  # imports
    tracemalloc.start()
    try:
        made = answer(bridge.create_from_model(given, config, "{}"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.2 * len(weights)
    bases, contents, in_use = filled(made, host)
    assert weights in contents[2] and {file for file, _, _ in in_use} == {given.index}
    built = builder.build_artifacts(model, loss=builder.LossType.CrossEntropyLoss, optimizer=builder.OptimType.AdamW)
    for name in ("checkpoint", "training_model", "eval_model", "optimizer_model"):
        text, data = bridge.artifact(made["handle"], name)
        file, at = b"", 0
        for part in json.loads(text)["data"]["parts"]:
            if isinstance(part, int):
                file, at = file + data[at : at + part], at + part
            else:
                _, index, offset, nbytes = part
                file += host.files[index][offset : offset + nbytes]
        assert file == getattr(built, name)
    free(bases)


LORA = json.dumps({"loss": "CrossEntropyLoss", "optimizer": "AdamW", "lora": {"rank": 2, "targets": ["q_proj"]}})
SIZE = smol.Size(layers=6, width=192, heads=3, hidden=512, vocabulary=8192)


def written(form: str, folder: Path) -> tuple[bytes, str, bytes]:
    """A language model, the location of its data and its data, as the exporter writes it with or without optimizer."""
    if form == "plain":
        model, data = smol.write(folder, SIZE), folder / smol.DATA
    else:
        model, data = smol.write_optimized(folder, SIZE).values()
    return model.read_bytes(), data.name, data.read_bytes()


@pytest.mark.parametrize("form", ["plain", "default"])
def test_each_byte_of_a_language_model_is_read_once(form: str, tmp_path: Path, host: Host) -> None:
    """Weights go to segments; Python reads no more than constants, and of the file these alone are kept."""
    model, location, data = written(form, tmp_path)
    given = host.add(data)
    made = answer(bridge.create_from_model(model, LORA, "{}", json.dumps([location]), given))
    bases, _, places = filled(made, host)
    constants = 0 if form == "plain" else 4 * SIZE.layers * 2 * 128 * SIZE.head + 4 * 128 * 128
    assert sum(nbytes for _, _, nbytes in places) == constants
    # Small tensors are read with what lies around them.
    assert sum(nbytes for _, _, nbytes in host.reads) <= 2 * constants + 2**20 < len(data) / 8
    host.places = places
    signature = [{"name": name, "dtype": "int64", "dims": [1, 128], "value": None} for name in ("input_ids", "labels")]
    for call, *arguments in (
        (bridge.compile_plan, "train", True, json.dumps(signature), "[]"),
        (bridge.checkpoint, True, "[]", json.dumps(bases)),
        (bridge.export_weights, "safetensors", json.dumps(bases)),
        (bridge.merge_adapter, json.dumps(bases)),
        (bridge.adapter, json.dumps(bases)),
        *((bridge.artifact, name) for name in ("checkpoint", "nominal_checkpoint", *bridge.ARTIFACT_GRAPHS)),
    ):
        text, _ = call(made["handle"], *arguments)
        parts = json.loads(text)["data"]["parts"]
        assert all(part[1:4] in places for part in parts if not isinstance(part, int) and part[0] == "file")
    host.places = None
    free(bases)


def test_frozen_weights_are_read_where_a_question_finds_them(tmp_path: Path, host: Host) -> None:
    """A session on the GPU has no addresses before a claim."""
    model, location, data = written("plain", tmp_path)
    made = answer(bridge.create_from_model(model, LORA, "{}", json.dumps([location]), host.add(data)))
    nowhere = [0] * len(made["header"]["segments"])
    answer(bridge.fill(made["handle"], json.dumps(nowhere)))
    held = bridge._held(bridge._training(made["handle"]))
    frozen = next(t for t in held if isinstance(t, LazyTensor) and t.place and t.place.kind == "segment")
    with pytest.raises(EngineError, match="no memory"):
        _ = frozen.data
    assert frozen.place
    engine, values = get_engine(), bytes(range(256)) * (frozen.nbytes // 256)
    base = engine.alloc(frozen.place.offset + frozen.nbytes)
    engine.write(base + frozen.place.offset, values)
    nowhere[PARAMETERS] = base
    answer(bridge.artifact(made["handle"], "checkpoint", json.dumps(nowhere)))
    assert bytes(frozen.data) == values
    free([base])


def external_model(rows: int, width: int) -> bytes:
    """A model like `one_gemm` whose weights are in the file w.bin."""
    proto = onnx.load_model_from_string(one_gemm(1, 1))
    tensor = proto.graph.initializer[0]
    tensor.dims[:] = [rows, width]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    for value, size in ((proto.graph.input[0], rows), (proto.graph.output[0], width)):
        value.type.tensor_type.shape.dim[1].dim_value = size
    return proto.SerializeToString()


@pytest.mark.parametrize(
    ("mib", "optimizer", "fits"), [(1000, "AdamW", True), (1100, "AdamW", False), (1100, "SGD", True)]
)
def test_more_weights_than_kernel_memory_is_told_with_numbers(mib: int, optimizer: str, fits: bool) -> None:
    model, file = external_model(mib * 256, 1024), remote.RemoteFile(1, mib * 2**20, Host())
    built = builder.build_artifacts(
        model,
        loss=builder.LossType.CrossEntropyLoss,
        optimizer=builder.OptimType[optimizer],
        requires_grad=["w"],
        external_data={"w.bin": file},
    )
    settings: dict[str, Any] = {"engine": get_engine(), "limits": Limits(), "memory_budget": None}
    if fits:
        SessionModels({"w": True}, *built.graphs, **settings)
        return
    with pytest.raises(LimitError, match=f"{4 * mib * 2**20 + 72} bytes .* 4294967296"):
        SessionModels({"w": True}, *built.graphs, **settings)


# Constants of plans.


def lookup(rows: int) -> tuple[bytes, np.ndarray]:
    """A model that gives a row, as it is and divided by a sum over the table, of a table [rows, 64] of int64."""
    table = np.arange(rows * 64, dtype=np.int64).reshape(rows, 64) % 1009 + 1
    model = make_model(
        [
            helper.make_node("Gather", ["table", "row"], ["found"]),
            helper.make_node("Cast", ["table"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["floats"], ["total"], keepdims=0),
            helper.make_node("Cast", ["found"], ["float"], to=TensorProto.FLOAT),
            helper.make_node("Div", ["float", "total"], ["share"]),
        ],
        {"row": [1]},
        {"found": [1, 64], "share": [1, 64]},
        {"table": table},
        types={"row": TensorProto.INT64, "found": TensorProto.INT64},
    )
    return model.SerializeToString(), table


def test_large_constants_of_plans_stay_in_their_file(host: Host) -> None:
    model, table = lookup(2**15)
    signature = json.dumps([{"name": "row", "dtype": "int64", "dims": [1], "value": None}])
    of_bytes, given = answer(bridge.create_inference(model, "{}")), host.add(model)
    whole, whole_data = bridge.compile_plan(of_bytes["handle"], "inference", True, signature, "[]")
    tracemalloc.start()
    try:
        made = answer(bridge.create_inference(given, "{}"))
        text, data = bridge.compile_plan(made["handle"], "inference", True, signature, "[]")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Its hash is made of pieces of 4 MiB.
    assert peak < 10 * 2**20 < table.nbytes
    assert len(data or b"") < 2**16 < table.nbytes < len(whole_data or b"")
    plan, expected = json.loads(text)["ok"], json.loads(whole)["ok"]
    [[_, file, at, nbytes]], [[_, among_blobs, start, length]] = plan["large"], expected["large"]
    assert (file, among_blobs) == (given.index, -1)
    assert model[at : at + nbytes] == table.tobytes() == bytes((whole_data or b"")[start : start + length])
    filled_files = filled(made, host)
    assert filled_files[2] == [[given.index, at, nbytes]]
    free(filled_files[0])
