"""ORT format models: what onnxruntime's converter writes is the ONNX model that it was made of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.attacks.checkpoints import INT8, INT32, INT64, UINT8, Raw
from tests.python.remote_files import Host
from tests.python.sessions import infer, take_steps

import trainweb
from trainweb.artifacts import LossType, OptimType, build_artifacts
from trainweb.cli import main
from trainweb.errors import ModelError, UnsupportedError
from trainweb.model import read_model
from trainweb.model.graph import Graph
from trainweb.model.reader import read_metadata
from trainweb.model.remote import RemoteTensor

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = GOLDEN / "ort_format"
EXPECTED = np.load(FOLDER / "expected.npz")
READABLE = sorted(path.name for path in FOLDER.glob("*.ort") if "nchwc" not in path.name)
TOLERANCE = 1e-6
"""Of outputs near 1, of another order of sums."""


def converted_from(name: str) -> Path:
    """The ONNX file."""
    model = name.partition(".")[0]
    return FOLDER / "branches.onnx" if model == "branches" else GOLDEN / model / "base.onnx"


def recorded(name: str, which: str) -> dict[str, np.ndarray]:
    """Feeds or results, as they were recorded."""
    start = f"{name.partition('.')[0]}.{which}."
    return {key.removeprefix(start): EXPECTED[key] for key in EXPECTED if key.startswith(start)}


def nodes_of(graph: Graph) -> list[tuple[Any, ...]]:
    """The nodes in full, with the nodes of subgraphs in their place."""

    def value(attribute: Any) -> Any:
        return nodes_of(attribute) if isinstance(attribute, Graph) else attribute

    return [
        (n.name, n.op_type, n.domain, n.inputs, n.outputs, {k: value(v) for k, v in n.attrs.items()})
        for n in graph.nodes
    ]


@pytest.mark.parametrize("name", ["mlp.plain.ort", "cnn.plain.ort"])
def test_the_graph_is_that_of_the_onnx_file(name: str) -> None:
    ort, onnx = read_model(FOLDER / name), read_model(converted_from(name))
    assert (ort.inputs, ort.outputs, ort.ir_version) == (onnx.inputs, onnx.outputs, onnx.ir_version)
    assert ort.opsets[""] == onnx.opsets[""]
    assert list(ort.initializers.items()) == list(onnx.initializers.items())
    for found, wanted in zip(nodes_of(ort), nodes_of(onnx), strict=True):
        assert found[:-1] == wanted[:-1]
        # Defaults are written out there.
        assert found[-1].items() >= wanted[-1].items()


def test_subgraphs_constants_and_symbols_are_those_of_the_onnx_file() -> None:
    ort, onnx = read_model(FOLDER / "branches.plain.ort"), read_model(FOLDER / "branches.onnx")
    # The Constant node is an initializer there.
    assert ort.initializers["trips"].values() == (3,)
    assert {name: t for name, t in ort.initializers.items() if name != "trips"} == onnx.initializers
    found, wanted = nodes_of(ort), [node for node in nodes_of(onnx) if node[1] != "Constant"]
    assert [node[:-1] for node in found] == [node[:-1] for node in wanted]
    assert found[2][-1] == wanted[2][-1] and found[3][-1] == wanted[3][-1]
    assert (ort.inputs, ort.outputs) == (onnx.inputs, onnx.outputs)
    assert ort.value_info["turned"] == onnx.value_info["turned"]


@pytest.mark.parametrize("name", READABLE)
def test_it_computes_what_onnxruntime_computed(name: str) -> None:
    wanted = recorded(name, "out")
    for source in (FOLDER / name, (FOLDER / name).read_bytes(), bytearray((FOLDER / name).read_bytes())):
        session = trainweb.InferenceSession(source)
        results = session.run(list(wanted), recorded(name, "in"))
        for found, (output, expected) in zip(results, wanted.items(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE, err_msg=output)
        session.release()


@pytest.mark.parametrize("name", ["mlp.plain.ort", "mlp.ort", "cnn.plain.ort"])
def test_it_trains_as_the_onnx_file(name: str) -> None:
    def losses(source: Path) -> tuple[list[str], list[float]]:
        session = trainweb.TrainingSession.from_model(source, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
        session.set_learning_rate(0.01)
        feeds = recorded(name, "in")
        feeds["labels"] = np.arange(len(next(iter(feeds.values())))) % 3
        found = take_steps(session, feeds, 5)
        names = list(session.parameter_names())
        session.release()
        return names, found

    ort, onnx = losses(FOLDER / name), losses(converted_from(name))
    assert ort[0] == onnx[0]
    np.testing.assert_allclose(ort[1], onnx[1], rtol=1e-5)
    assert onnx[1][-1] < onnx[1][0]


def test_it_says_of_itself_what_the_onnx_file_says() -> None:
    found, wanted = read_metadata(FOLDER / "branches.ort"), read_metadata(FOLDER / "branches.onnx")
    # The format has no name of the graph.
    assert found | {"graph_name": wanted["graph_name"]} == wanted
    assert wanted["custom_metadata_map"] == {"author": "somebody", "empty": ""}


def test_a_layout_for_one_processor_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"'Conv' of domain 'com\.microsoft\.nchwc'"):
        build_artifacts(FOLDER / "cnn.nchwc.ort", loss=LossType.CrossEntropyLoss)


def test_the_first_bytes_decide_not_the_name(tmp_path: Path) -> None:
    for source, name in ((FOLDER / "mlp.plain.ort", "a.onnx"), (converted_from("mlp.ort"), "a.ort")):
        (tmp_path / name).write_bytes(source.read_bytes())
        assert read_model(tmp_path / name) == read_model(source)


def test_it_is_checked_before_training() -> None:
    report = trainweb.check(FOLDER / "mlp.plain.ort", loss="CrossEntropyLoss")
    assert report.error is None and len(report.trainable) == 6


VALUES = np.random.default_rng(0).normal(size=(200, 100)).astype(np.float32)


def large_model(**tensor: Any) -> bytes:
    """y = x w, where w has 80,000 bytes; fields of its tensor may be others."""
    raw = Raw()

    def value(name: str, *dims: int) -> list[tuple[int, str, Any]]:
        shape = [(0, "tables", [[(0, "table", [(0, INT8, 1), (1, INT64, dim)])] for dim in dims])]
        return [(0, "string", name), (2, "table", [(1, UINT8, 1), (2, "table", [(0, INT32, 1), (1, "table", shape)])])]

    w = {"dims": (2, "int64s", VALUES.shape), "code": (3, INT32, 1), "data": (4, "blob", VALUES.tobytes())} | tensor
    nodes = [[(0, "string", "product"), (5, "string", "MatMul"), (8, "strings", ["x", "w"]), (9, "strings", ["y"])]]
    graph = [
        (0, "tables", [[(0, "string", "w"), *w.values()]]),
        (1, "tables", [value("x", 2, 200), value("y", 2, 100)]),
        (2, "tables", nodes),
        (5, "strings", ["x"]),
        (6, "strings", ["y"]),
    ]
    model = [(0, INT64, 8), (1, "tables", [[(0, "string", ""), (1, INT64, 17)]]), (7, "table", graph)]
    return raw.file((0, "string", "6"), (1, "table", model), identifier=b"ORTM")


def test_large_tensors_stay_in_the_file() -> None:
    data = large_model()
    x = np.ones((2, 200), np.float32)
    np.testing.assert_allclose(infer(data, {"x": x})[0], x @ VALUES, rtol=1e-4, atol=1e-4)
    graph = read_model(Host().open(data))
    assert isinstance(graph.initializers["w"], RemoteTensor)
    assert bytes(graph.initializers["w"].data) == VALUES.tobytes()


def test_what_a_tensor_says_of_itself_is_checked() -> None:
    with pytest.raises(ModelError, match=r"80000 bytes of data; float32 .* needs 80400"):
        read_model(large_model(dims=(2, "int64s", (201, 100))))
    with pytest.raises(UnsupportedError, match="lies in a file beside the ORT format model"):
        read_model(large_model(offset=(6, INT64, 0)))
    with pytest.raises(ModelError, match="unknown data type 77"):
        read_model(large_model(code=(3, INT32, 77)))


def test_sparse_initializers_are_read() -> None:
    """The converter writes dense ones; the schema has both."""
    raw = Raw()
    numbers = [(0, "string", "w"), (2, "int64s", [2]), (3, INT32, 1), (4, "blob", np.float32([5, 7]).tobytes())]
    places = [(2, "int64s", [2]), (3, INT32, 7), (4, "blob", np.int64([1, 3]).tobytes())]
    graph = [(7, "tables", [[(0, "table", numbers), (1, "table", places), (2, "int64s", [2, 2])]])]
    model = [(0, INT64, 8), (1, "tables", [[(1, INT64, 17)]]), (7, "table", graph)]
    found = read_model(raw.file((1, "table", model), identifier=b"ORTM")).initializers["w"]
    assert (found.shape, found.values()) == ((2, 2), (0.0, 5.0, 0.0, 7.0))


def test_the_command_line_checks_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(FOLDER / "mlp.ort"), "--loss", "CrossEntropyLoss"]) == 0
    assert "com.microsoft.FusedGemm 2" in capsys.readouterr().out
