"""A pass says why it did not fire, and models that it once left alone are fused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model
from tests.python import pipelines
from tests.python.sessions import take_steps

import trainweb
from trainweb.model.graph import Value

TESTS = Path(__file__).parents[1]
FUSED = {
    "two masks are added": TESTS / "lora/quantized/t5_float32.onnx",
    "a cast to the same type follows the mask": TESTS / "golden/past/t5.onnx",
    "the mask is made after the product of the scores": TESTS / "golden/past/llama.onnx",
    "the scale is a Sqrt of a constant": TESTS / "golden/generate/llama.onnx",
    "one head of keys": TESTS / "golden/generate/gemma3.onnx",
}
SIZE = 6
"""Of dims without a number."""


def feeds_of(session: trainweb.TrainingSession) -> dict[str, np.ndarray]:
    rng, feeds = np.random.default_rng(3), {}
    for name, value in session._core.models.inputs["train"].items():
        assert isinstance(value, Value)
        shape = [d if isinstance(d, int) else SIZE for d in value.shape or ()]
        low, high = (1, 2) if "mask" in name else (0, 9)
        is_float = value.dtype == "float32"
        feeds[name] = rng.standard_normal(shape).astype(np.float32) if is_float else rng.integers(low, high, shape)
    return feeds


def losses_of(path: Path) -> tuple[list[float], str]:
    options: dict[str, Any] = {"loss": "CrossEntropyLoss", "optimizer": "AdamW", "lora": {"rank": 2, "seed": 1}}
    with trainweb.TrainingSession.from_model(path, learning_rate=0.05, **options) as session:
        feeds = feeds_of(session)
        text = session.explain(feeds)
        return take_steps(session, feeds, 4), text


@pytest.mark.parametrize("why", FUSED)
def test_attention_of_models_is_fused(why: str) -> None:
    losses, text = losses_of(FUSED[why])
    assert "attention at" not in text
    with pipelines.passes(pipelines.without("fuse_attention")):
        expected, stored = losses_of(FUSED[why])
    assert "attention_gradient_f32" in text and "attention_gradient_f32" not in stored
    assert len(set(expected)) == len(expected)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)


def test_keys_of_one_head_are_rotated_where_they_lie() -> None:
    _, text = losses_of(FUSED["one head of keys"])
    lowered = text.partition("\n\n")[0]
    assert not re.findall(r"(?m)^copy\(.*; Transpose node", lowered)


def with_probabilities() -> bytes:
    """Attention whose probabilities are an output."""
    shapes = {"wq": (16, 16), "wk": (16, 16), "wv": (16, 16)}
    nodes = [helper.make_node("MatMul", ["x", name], [name[1]]) for name in shapes]
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], name="my softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
        helper.make_node("ReduceMean", ["p"], ["mean"], keepdims=0),
        helper.make_node("Add", ["y", "mean"], ["out"]),
    ]
    rng = np.random.default_rng(1)
    return make_model(
        nodes,
        {"x": [2, 12, 16]},
        {"out": [2, 12, 16]},
        {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()},
    ).SerializeToString()


def test_explain_and_check_print_the_reason() -> None:
    reason = "another node reads the probabilities, or they are an output"
    with trainweb.TrainingSession.from_model(with_probabilities(), loss="MSELoss", optimizer="SGD") as session:
        text = session.explain(feeds_of(session))
    assert text.count(reason) == 1
    after = text.partition("\nfuse_attention: no change\n")[2].partition("\n\n")[0]
    assert after == f"attention at Softmax node 'my softmax' stays as it is: {reason}"
    (remark,) = trainweb.check(with_probabilities(), loss="MSELoss", optimizer="SGD").remarks
    assert reason in remark and "Softmax node 'my softmax'" in remark and "docs/slow.md" in remark
