"""A bundle holds each large tensor once: artifacts and plans share its bytes."""

from pathlib import Path

import onnx
import pytest
from bench import smol
from tests.browser.bundles import carried, header_of

import trainweb
from trainweb.cli import ARTIFACT_FILES, main

SIZE = smol.Size(layers=2, width=256, heads=4, key_heads=4, hidden=512, vocabulary=4096)
LARGE = 16 * 1024
STEP = ["--feed", "input_ids=int64[1,8]", "--feed", "labels=int64[1,8]"]
NAMES = {"train_model": "trainModel", "eval_model": "evalModel", "optimizer_model": "optimizerModel"}


def compiled(model: Path, *settings: str) -> bytes:
    """The bundle of a model's session, whose artifacts lie beside it."""
    folder, bundle = model.parent, model.parent / "session.bundle"
    assert main(["artifacts", str(model), "--loss", "CrossEntropyLoss", *settings, "-o", str(folder)]) == 0
    assert main(["compile", str(folder), *STEP, "-o", str(bundle)]) == 0
    return bundle.read_bytes()


def large_tensors(model: Path) -> list[bytes]:
    tensors = onnx.load(model).graph.initializer
    return [t.raw_data for t in tensors if len(t.raw_data) >= LARGE]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smol.write(tmp_path_factory.mktemp("float32"), SIZE)


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("settings", [["--lora", "2"], ["--freeze", ".*_scales|model.embed_tokens.weight"]])
def test_a_bundle_holds_each_large_tensor_once(
    whole: Path, tmp_path: Path, bits: int | None, settings: list[str]
) -> None:
    """Of a float32 model they are parameters, else constants."""
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx.load(whole).SerializeToString() if bits is None else trainweb.quantize(whole, bits))
    bundle, tensors = compiled(model, *settings), large_tensors(model)
    assert sum(map(len, tensors)) > 1_000_000
    assert [bundle.count(tensor) for tensor in tensors] == [1] * len(tensors)
    assert len(bundle) < sum(map(len, tensors)) + 1_000_000
    for name, file in ARTIFACT_FILES.items():
        assert carried(bundle, NAMES[name]) == (tmp_path / file).read_bytes()
    assert len(carried(bundle, "checkpoint")) < 1000, "parameters are in the segments"
    assert all(start % 64 == 0 for places in header_of(bundle)["models"].values() for start, _ in places)
