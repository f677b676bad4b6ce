"""Models that are read by ranges natively: from files and from bytes, without a copy of their weights."""

import gc
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model

import trainweb
from trainweb.errors import ModelError
from trainweb.model import read_model
from trainweb.model.remote import RemoteTensor

ROWS, WIDTH = 2048, 5120
NBYTES = 4 * ROWS * WIDTH
WEIGHTS = ((np.arange(ROWS * WIDTH) % 251 - 125) / 2**16).astype(np.float32).reshape(ROWS, WIDTH)
FEEDS = {"x": np.ones((1, ROWS), np.float32), "labels": np.array([3])}
HELD_ONCE = 0.5
"""Share of the weights that Python may have besides those in kernel memory."""

pytestmark = pytest.mark.skipif(os.name == "nt", reason="files are read at once on Windows")


def matmul() -> onnx.ModelProto:
    return make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [1, ROWS]}, {"y": [1, WIDTH]}, {"w": WEIGHTS}
    )


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """The model with its weights in a file beside it."""
    path = tmp_path / "model.onnx"
    onnx.save(matmul(), str(path), save_as_external_data=True, location="weights", size_threshold=0)
    return path


def inline(folder: Path) -> Path:
    """The model with its weights in it, as `onnx.load` gives one that had them outside."""
    model = matmul()
    model.graph.initializer[0].data_location = TensorProto.DEFAULT
    path = folder / "inline.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def session_of(source: Any) -> trainweb.TrainingSession:
    return trainweb.TrainingSession.from_model(source, loss="CrossEntropyLoss", optimizer="SGD")


@pytest.mark.parametrize("form", ["external", "inline", "bytes"])
def test_a_session_holds_weights_in_kernel_memory_only(form: str, external: Path, tmp_path: Path) -> None:
    source: Any = external if form == "external" else inline(tmp_path)
    if form == "bytes":
        source = source.read_bytes()
    session_of(matmul()).release()  # all modules are loaded
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        session = session_of(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert peak < HELD_ONCE * NBYTES
    (loss,) = session.train_step(FEEDS, session.output_names()[:1]).values()
    logits = WEIGHTS.astype(np.float64).sum(0)
    wanted = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[3]
    assert loss == pytest.approx(wanted, rel=1e-5)
    session.release()


def test_bytes_are_given_back_with_the_call() -> None:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        session = session_of(matmul().SerializeToString())
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert now < HELD_ONCE * NBYTES
    session.release()


def test_a_file_that_changes_is_not_read_on(external: Path) -> None:
    tensor = read_model(external).initializers["w"]
    assert isinstance(tensor, RemoteTensor) and bytes(tensor.data) == WEIGHTS.tobytes()
    beside = external.parent / "weights"
    beside.write_bytes(beside.read_bytes()[:-4] + b"\1\2\3\4")
    os.utime(beside, ns=(1, 1))
    with pytest.raises(ModelError, match="'weights' was changed after the model was read from it"):
        _ = tensor.data


def test_a_file_is_closed_with_its_last_tensor(external: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))

    before = descriptors()
    graph: Any = read_model(external)
    assert descriptors() == before + 1
    del graph
    gc.collect()
    assert descriptors() == before


def test_check_needs_no_copy(external: Path) -> None:
    trainweb.check(matmul(), loss="CrossEntropyLoss")
    gc.collect()
    tracemalloc.start()
    try:
        report = trainweb.check(external, loss="CrossEntropyLoss")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.ok and peak < HELD_ONCE * NBYTES
