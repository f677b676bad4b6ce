"""The plans of a session hold large quantized weights once."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bench import smol
from tests.conftest import bytes_in_use

import trainweb
from trainweb import TrainingSession
from trainweb.backend.plan import Plan
from trainweb.compiler import compile_model
from trainweb.ir.shapes import TensorType
from trainweb.model.floats import as_float32
from trainweb.model.graph import Graph, Node, Value
from trainweb.model.lazy import LazyTensor, Place
from trainweb.page.bundle import Blobs, _large_json
from trainweb.training.arrays import from_numpy

SIZE = smol.Size(layers=2, width=256, heads=4, key_heads=4, hidden=512, vocabulary=4096)
LARGE = 65_536
PROMPT = [5, 17, 4000, 23]
LORA = {"rank": 2, "seed": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two layers of SmolLM2 with weights of 8 bits."""
    folder: Path = smol.write(tmp_path_factory.mktemp("smol"), SIZE)
    return trainweb.quantize(folder, 8)


def large_bytes(model: bytes) -> int:
    tensors = onnx.ModelProto.FromString(model).graph.initializer
    sizes = [len(t.raw_data) for t in tensors if t.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)]
    return sum(n for n in sizes if n >= LARGE)


def feeds(length: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(length).integers(0, SIZE.vocabulary, (1, length))
    return {"input_ids": ids, "labels": np.roll(ids, -1, 1)}


def opened(model: bytes, **options: Any) -> TrainingSession:
    return TrainingSession.from_model(
        model, options={"reproducible": True, **options}, loss="CrossEntropyLoss", lora=LORA, learning_rate=0.01
    )


def run(session: TrainingSession) -> list[Any]:
    """Losses and tokens of all families of plans, two rounds of them."""
    found: list[Any] = []
    for _ in range(2):
        found.append(session.train_step(feeds(8))["onnx::loss::2"].item())
        session.optimizer_step()
        session.lazy_reset_grad()
        found.append(session.eval_step(feeds(8))["onnx::loss::2"].item())
        found.append(session.predict({"input_ids": feeds(6)["input_ids"]})["logits"].argmax())
        texts = [session.generate(PROMPT, max_tokens=4, adapter=adapter) for adapter in (True, False)]
        found += [[one.token for one in text] for text in texts]
    return found


def test_all_plans_of_a_session_hold_large_weights_once(model: bytes) -> None:
    weights = large_bytes(model)
    assert weights > 2_000_000
    with opened(model) as session:
        before = bytes_in_use()
        session.train_step(feeds(8))
        first = bytes_in_use() - before
        assert first > weights
        run(session)
        assert bytes_in_use() - before < first + weights
        session.train_step(feeds(300))  # with tables of positions that are as large
        assert weights < session.memory().plans < 1.5 * weights


def test_large_constants_have_one_order_whatever_reads_them_first() -> None:
    def plan_of(*order: str) -> Plan:
        names = ["x", "h", "y"]
        nodes = [Node("MatMul", [names[k], name], [names[k + 1]]) for k, name in enumerate(order)]
        graph = Graph("chain", nodes=nodes, opsets={"": 17}, inputs=[Value("x", "float32", (2, 128))])
        graph.initializers = {name: from_numpy(name, np.full((128, 128), k, np.float32)) for k, name in enumerate("ab")}
        return compile_model(graph, {"x": TensorType("float32", (2, 128))}, ["y"])

    one, other = plan_of("a", "b"), plan_of("b", "a")
    assert one.text != other.text
    assert len(one.large) == 2 * 128 * 128 * 4 and one.large == other.large
    assert plan_of("a", "a").large != one.large


def test_a_page_gets_a_large_constant_in_the_type_that_it_is_read_as() -> None:
    values = np.random.default_rng(0).standard_normal(40_000).astype(np.float16)

    def read_into(out: memoryview) -> None:
        out[:] = values.tobytes()

    stored = LazyTensor("table", "float16", values.shape, read_into, Place("file", 3, 64, values.nbytes))
    blobs = Blobs()
    assert _large_json(stored, blobs) == [3, 64, values.nbytes] and not blobs.data
    file, start, nbytes = _large_json(as_float32(stored), blobs)
    assert file == -1
    assert blobs.data[start : start + nbytes] == values.astype(np.float32).tobytes()


@pytest.mark.parametrize("max_plans", [1, 2, 3])
def test_eviction_changes_no_result_and_frees_the_weights_with_their_last_plan(model: bytes, max_plans: int) -> None:
    before = bytes_in_use()
    with opened(model) as session:
        expected = run(session)
    with opened(model, max_plans=max_plans) as session:
        assert run(session) == expected
        assert session.memory().plans < 2 * large_bytes(model)
    assert bytes_in_use() == before
