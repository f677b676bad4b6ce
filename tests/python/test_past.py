"""Models with past keys and values, against torch and PEFT (tests/golden/past)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model
from tests.python.sessions import take_steps

from trainweb import InferenceSession, TrainingSession, check
from trainweb.errors import ModelError, UnsupportedError
from trainweb.generation.past import without_past
from trainweb.lora import Adapter, LoraModel
from trainweb.model import read_model, write_model

GOLDEN = Path(__file__).parents[1] / "golden" / "past"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
LOSS = {"type": "CrossEntropyLoss", "ignore_index": -100}
LORA = {"rank": 2, "alpha": 4}
SETTINGS: dict[str, Any] = {"loss": LOSS, "optimizer": "SGD", "learning_rate": 0.5}


def feeds_of(name: str, session: TrainingSession) -> dict[str, np.ndarray]:
    found = {k: np.array(v) for k, v in EXPECTED[name]["feeds"].items()}
    found = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in found.items()}
    found["position_ids"] = np.broadcast_to(np.arange(12), (2, 12))
    return {k: found[k] for k in session.input_names()}


def losses_of(name: str, session: TrainingSession, steps: int = 5) -> list[float]:
    return take_steps(session, feeds_of(name, session), steps)


@pytest.mark.parametrize("name", ["llama", "opt"])
def test_an_adapter_learns_as_in_peft(name: str) -> None:
    """OPT's paths lack the module that its parameters start with."""
    with TrainingSession.from_model(GOLDEN / f"{name}.onnx", lora=LORA, **SETTINGS) as session:
        assert isinstance(session.adapted, LoraModel)
        session.adapted.load_adapter(session, Adapter.load(GOLDEN / f"{name}_adapter"))
        np.testing.assert_allclose(losses_of(name, session), EXPECTED[name]["losses"], rtol=1e-5)


@pytest.mark.parametrize(("file", "name"), [("llama", "llama"), ("opt", "opt"), ("genai", "llama")])
def test_tokens_are_those_of_transformers(file: str, name: str) -> None:
    case = EXPECTED[name]
    path = GOLDEN / f"{file}.onnx"
    with TrainingSession.from_model(path, lora=LORA, **SETTINGS) as session:
        assert [one.token for one in session.generate(case["prompt"], max_tokens=24)] == case["tokens"]
    session = InferenceSession(path)
    assert [one.token for one in session.generate(case["prompt"], max_tokens=24)] == case["tokens"]
    assert "past_key_values.0.key" in {value.name for value in session.get_inputs()}
    core = session._core
    logits = np.frombuffer(core.decoder.logits(core, case["prompt"], "logits", 96, adapter=True), np.float32)
    np.testing.assert_allclose(logits, case["logits"], atol=2e-5)
    session.release()


def test_onnxruntime_genai_packs_projections() -> None:
    with TrainingSession.from_model(GOLDEN / "genai.onnx", lora=LORA, **SETTINGS) as session:
        assert isinstance(session.adapted, LoraModel)
        assert [layer.module for layer in session.adapted.layers] == [
            f"model.layers.{k}.attn.qkv_proj" for k in range(2)
        ]
        losses = losses_of("llama", session, 2)
    assert losses[0] == pytest.approx(EXPECTED["llama"]["losses"][0], rel=1e-5) and losses[1] < losses[0]


def test_a_merged_decoder_trains_by_states_of_its_encoder() -> None:
    """The branch without a cache counts; cross attention reads the states."""
    with TrainingSession.from_model(GOLDEN / "t5.onnx", lora=LORA, **SETTINGS) as session:
        assert isinstance(session.adapted, LoraModel)
        found = losses_of("t5", session, 2)
        assert {layer.module.rpartition(".")[2] for layer in session.adapted.layers} == {"q", "v"}
        with pytest.raises(ModelError, match="'encoder_"):
            next(session.generate([5, 6]))
    assert found[0] == pytest.approx(EXPECTED["t5"]["losses"][0], rel=1e-5) and found[1] < found[0]


def test_a_report_is_of_whole_texts() -> None:
    report = check(GOLDEN / "llama.onnx", loss=LOSS, lora=LORA, dims={"batch_size": 2, "sequence_length": 8})
    assert report.ok, str(report)
    assert {feed.name for feed in report.feeds} == {"input_ids", "attention_mask", "position_ids", "labels"}


PAST = "past_key_values.0.key"
SHAPE = ("batch", "past", 3)


def small(past: str = PAST, shape: Sequence[str | int] = SHAPE) -> onnx.ModelProto:
    """A table whose rows are joined with past ones, whose number the logits depend on, too."""
    nodes = [
        helper.make_node("Cast", [past], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Concat", ["wide", "rows"], ["present.0.key"], axis=1),
        helper.make_node("Shape", ["wide"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["sizes"], ["sum"], keepdims=0),
        helper.make_node("Add", ["present.0.key", "sum"], ["logits"]),
    ]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "n"]),
        helper.make_tensor_value_info(past, TensorProto.FLOAT16, shape),
        helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("logits", "present.0.key")]
    table = numpy_helper.from_array(np.arange(15, dtype=np.float32).reshape(5, 3), "table")
    return make_model(nodes, inputs, outputs, [table])


def test_an_empty_past_has_the_batch_of_the_ids_and_no_tokens() -> None:
    graph = without_past(read_model(small()))
    assert [v.name for v in graph.inputs] == ["input_ids"] and [v.name for v in graph.outputs] == ["logits"]
    assert without_past(graph) is graph
    # generate knows what becomes of a sequence there.
    assert next(node.op_type for node in graph.nodes if node.outputs == ["present.0.key"]) == "Identity"
    session = InferenceSession(write_model(graph))
    (logits,) = session.run(None, {"input_ids": np.array([[1, 2], [3, 4]])})
    expected = np.array([[[3, 4, 5], [6, 7, 8]], [[9, 10, 11], [12, 13, 14]]]) + 2 + 0 + 3
    np.testing.assert_array_equal(logits, expected)
    session.release()


@pytest.mark.parametrize(
    ("past", "shape"),
    [
        (PAST, ["batch", "past", "width"]),
        (PAST, ["batch", 4, 3]),
        (PAST, ["other", "past", 3]),
        ("past_key_values.0.encoder.key", SHAPE),
        ("past_key_cross_0", SHAPE),
    ],
)
def test_a_past_of_an_encoder_or_of_unknown_sizes_stays_an_input(past: str, shape: Sequence[str | int]) -> None:
    graph = without_past(read_model(small(past, shape)))
    assert [v.name for v in graph.inputs] == ["input_ids", past]


@pytest.mark.parametrize("name", ["past_values", "past_observed_mask", "pastoral"])
def test_other_inputs_stay(name: str) -> None:
    """A time series has values of the past."""
    graph = without_past(read_model(small(name)))
    assert [v.name for v in graph.inputs] == ["input_ids", name]


def test_a_file_of_integer_products_is_refused_with_the_way_out() -> None:
    """As onnxruntime's quantize_dynamic makes it, for transformers.js as model_quantized.onnx."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("DynamicQuantizeLinear", ["rows"], ["x", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["x", "q_proj.weight_quantized", "zero"], ["y"], name="product"),
        helper.make_node("Cast", ["y"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "scale"], ["logits"]),
    ]
    weights = [
        numpy_helper.from_array(np.ones((5, 4), np.float32), "table"),
        numpy_helper.from_array(np.ones((4, 5), np.int8), "q_proj.weight_quantized"),
    ]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "n"])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "n", 5])]
    model = make_model(nodes, inputs, outputs, weights)
    text = r"'product': the file rounds activations .* model\.onnx, model_fp16\.onnx or model_q4\.onnx"
    for targets in (None, ["q_proj"]):
        with pytest.raises(UnsupportedError, match=text):
            TrainingSession.from_model(model, lora={"targets": targets}, **SETTINGS)
    session = InferenceSession(model)
    with pytest.raises(UnsupportedError, match=text):
        next(session.generate([1, 2]))
    session.release()
