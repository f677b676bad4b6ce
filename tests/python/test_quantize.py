"""Files of quantizers compute here what they compute in ONNX Runtime, and what `trainweb.quantize` writes is near."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bench import smol
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model
from tests.golden.quantized.words import OWN_CASES, by_trainweb

import trainweb
from trainweb.cli import main
from trainweb.errors import ModelError
from trainweb.lora import inject
from trainweb.model.reader import read_model
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.inference import InferenceCore

from .test_safetensors_beside import NAME, SHAPE, WEIGHT, file_of, graph_of

RECORDED = Path(__file__).parents[1] / "golden" / "quantized"
CASES = sorted(path.stem for path in RECORDED.glob("*.onnx"))


def results(model: bytes | Path, **feeds: np.ndarray) -> np.ndarray:
    core = InferenceCore(read_model(model))
    try:
        return to_numpy(core.run({name: from_numpy(name, x) for name, x in feeds.items()})["y"])
    finally:
        core.host.release()


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_onnx_runtime(case: str) -> None:
    with np.load(RECORDED / f"{case}.npz") as data:
        np.testing.assert_allclose(results(RECORDED / f"{case}.onnx", ids=data["ids"]), data["y"], rtol=1e-4, atol=1e-5)


def test_all_kinds_were_recorded() -> None:
    assert len(CASES) == 9


@pytest.mark.parametrize("case", CASES)
def test_adapters_have_the_names_of_the_modules(case: str) -> None:
    """As the exporter's names say them, whatever a quantizer makes of these."""
    adapted = inject(RECORDED / f"{case}.onnx", rank=2)
    assert adapted.config.targets == ("q_proj", "v_proj")
    assert inject(RECORDED / f"{case}.onnx", ["embed"], rank=2).config.targets == ("embed",)


@pytest.mark.parametrize("case", OWN_CASES)
def test_the_recorded_files_of_trainweb_are_what_it_writes(case: str) -> None:
    assert by_trainweb(case) == onnx.load(RECORDED / f"{case}.onnx")


def network(*, turned: bool, gemm: bool, width: int = 100) -> tuple[onnx.ModelProto, np.ndarray]:
    """One product whose weight, (width, 70), is stored as it is or turned, and a head."""
    rng = np.random.default_rng(width)
    weight = rng.standard_normal((width, 70)).astype(np.float32)
    weight[:16, 3] = 0  # a block of zeros has no scale
    stored = np.ascontiguousarray(weight.T if turned else weight)
    product = helper.make_node("MatMul", ["x", "fc.weight"], ["h"], "/fc/MatMul")
    nodes = [product]
    if gemm:
        nodes = [helper.make_node("Gemm", ["x", "fc.weight", "bias"], ["h"], "/fc/Gemm", transB=int(turned))]
    elif turned:
        product.input[1] = "turned"
        nodes.insert(0, helper.make_node("Transpose", ["fc.weight"], ["turned"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["h", "head.weight"], ["y"], "/head/MatMul"))
    initializers = {"fc.weight": stored, "head.weight": rng.standard_normal((70, 60)).astype(np.float32)}
    if gemm:
        initializers["bias"] = rng.standard_normal(70).astype(np.float32)
    return make_model(nodes, {"x": ["n", width]}, {"y": ["n", 60]}, initializers, opset=13), weight


def unpacked(model: onnx.ModelProto, weight: str, bits: int) -> np.ndarray:
    """The weight (N, K) of a MatMulNBits by its definition, in float64."""
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    packed, scales = held[f"{weight}_Q{bits}"], held[f"{weight}_scales"].astype(np.float64)
    numbers = packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:2], -1)
    rows = (numbers.astype(np.float64) - (1 << bits - 1)) * scales[..., None]
    return rows.reshape(len(packed), -1)


@pytest.mark.parametrize("gemm", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_no_number_moves_by_more_than_a_step(bits: int, turned: bool, gemm: bool) -> None:
    model, weight = network(turned=turned, gemm=gemm)
    data = trainweb.quantize(model, bits)
    made = onnx.ModelProto.FromString(data)
    found = unpacked(made, "fc.weight", bits)[:, : len(weight)]
    size = 16
    padded = np.pad(weight.T, ((0, 0), (0, -len(weight) % size)))
    largest = abs(padded.reshape(len(padded), -1, size)).max(2).repeat(size, 1)[:, : len(weight)]
    step = largest / (1 << bits - 1)
    # Half a step, or a whole one where the number above the greatest is missing.
    assert (abs(found - weight.T) <= step * (1 + 1e-5)).all()
    assert (abs(found - weight.T) <= step * 0.5 * (1 + 1e-5)).mean() > 0.95
    held = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    zeros = held[f"fc.weight_Q{bits}"][3, 0]
    assert (zeros == (0x88 if bits == 4 else 0x80)).all(), "a block of zeros has the numbers that stand for zero"
    x = np.random.default_rng(1).standard_normal((5, len(weight))).astype(np.float32)
    held = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    expected = (x @ found.T + held.get("bias", 0)) @ held["head.weight"]
    np.testing.assert_allclose(results(data, x=x), expected, rtol=1e-4, atol=1e-3)
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("MatMulNBits") == 1 and "fc.weight" not in {t.name for t in made.graph.initializer}


def test_the_last_product_is_quantized_if_asked_for() -> None:
    model, _ = network(turned=False, gemm=False)
    kinds = [
        node.op_type for node in onnx.ModelProto.FromString(trainweb.quantize(model, only_frozen=False)).graph.node
    ]
    assert kinds == ["MatMulNBits", "MatMulNBits"]


def test_a_weight_that_is_read_in_two_orders_stays() -> None:
    """Its rows are read by one product, and its columns by the other: a square one has the right shape for both."""
    w, v, h = (np.random.default_rng(k).standard_normal((64, 64)).astype(np.float32) for k in range(3))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Gemm", ["a", "w"], ["b"], transB=1),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("MatMul", ["c", "h"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 64]) for n in "xy"]
    weights = [numpy_helper.from_array(array, name) for name, array in (("w", w), ("v", v), ("h", h))]
    model = make_model(nodes, ends[:1], ends[1:], weights)
    data = trainweb.quantize(model, 8)
    assert {"w", "h"} <= {t.name for t in onnx.ModelProto.FromString(data).graph.initializer}
    x = np.random.default_rng(3).standard_normal((3, 64)).astype(np.float32)
    expected = x.astype(np.float64) @ w @ w.T @ v @ h
    np.testing.assert_allclose(results(data, x=x), expected, atol=0.02 * abs(expected).max())


def test_a_head_that_is_tied_to_the_table_is_quantized_with_it(tmp_path: Path) -> None:
    smol.write(tmp_path, smol.Size(layers=1, width=64, heads=4, key_heads=2, hidden=64, vocabulary=2000))
    quantized = read_model(trainweb.quantize(tmp_path / "model.onnx", 4))
    assert "GatherBlockQuantized" in {node.op_type for node in quantized.nodes}
    assert all(t.dtype != "float32" for t in quantized.initializers.values() if 2000 in t.shape and 64 in t.shape)


def test_what_cannot_be_quantized_is_told() -> None:
    model, _ = network(turned=False, gemm=False)
    wrong: list[Any] = [2, 16, True, "4"]
    for bits in wrong:
        with pytest.raises(ModelError, match=r"bits is .*; it must be 4 or 8"):
            trainweb.quantize(model, bits)
    small, _ = network(turned=False, gemm=False, width=20)
    with pytest.raises(ModelError, match="no weight of a product or a table to quantize"):
        trainweb.quantize(small, 4)


def test_the_command_line_writes_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = network(turned=True, gemm=True)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert main(["quantize", str(path), "--bits", "8"]) == 0
    assert (tmp_path / "net.q8.onnx").read_bytes() == trainweb.quantize(model, 8)
    assert main(["quantize", str(path), "-o", str(tmp_path / "all.onnx"), "--all"]) == 0
    assert (tmp_path / "all.onnx").read_bytes() == trainweb.quantize(model, 4, only_frozen=False)
    assert "net.q8.onnx: " in capsys.readouterr().out


@pytest.mark.parametrize("command", [["quantize", "net.onnx"], ["export", ".", "y"]])
def test_a_model_is_not_written_over_its_weights(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(graph_of())
    Path("net.onnx.data").write_bytes(WEIGHT.tobytes())
    with pytest.raises(SystemExit):
        main([*command, "-o", "net.onnx.data"])
    assert "its name must end in .onnx" in capsys.readouterr().err
    assert Path("net.onnx.data").read_bytes() == WEIGHT.tobytes()


def test_weights_beside_the_graph_are_quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one file, of shards and of their index: the file is that of the same model with its weights."""
    whole = onnx.ModelProto.FromString(graph_of())
    whole.graph.initializer[0].raw_data = WEIGHT.tobytes()
    expected = trainweb.quantize(whole, 8, only_frozen=False)
    assert abs(unpacked(onnx.ModelProto.FromString(expected), NAME, 8) - WEIGHT).max() < 0.05
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(graph_of())
    Path("one.safetensors").write_bytes(file_of({NAME: WEIGHT}))
    Path("two.safetensors").write_bytes(file_of({"model.norm.weight": np.ones(3, np.float32)}))
    index = {"weight_map": {NAME: "one.safetensors", "model.norm.weight": "two.safetensors"}}
    Path("all.safetensors.index.json").write_text(json.dumps(index))
    for files in (["one.safetensors"], ["two.safetensors", "one.safetensors"], ["all.safetensors.index.json"]):
        assert main(["quantize", "net.onnx", "--bits", "8", "--all", "--weights", *files]) == 0
        assert Path("net.q8.onnx").read_bytes() == expected
        Path("net.q8.onnx").unlink()
    assert trainweb.quantize(graph_of(), 8, only_frozen=False, weights="one.safetensors") == expected
    x = np.ones((2, SHAPE[1]), np.float32)
    np.testing.assert_allclose(results(expected, x=x), x @ WEIGHT.T, atol=0.5)


def test_weights_that_fit_no_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = network(turned=False, gemm=False)
    weights = file_of({NAME: WEIGHT})
    with pytest.raises(ModelError, match="every initializer of the model has data of its own"):
        trainweb.quantize(model, weights=weights)
    with pytest.raises(ModelError, match="the model is a Graph, which has its weights: give them to read_model"):
        trainweb.quantize(read_model(model), weights=weights)
    (tmp_path / "net.onnx").write_bytes(graph_of())
    assert main(["quantize", str(tmp_path / "net.onnx"), "--weights", str(tmp_path / "gone.index.json")]) == 1
    assert "gone.index.json" in capsys.readouterr().err
