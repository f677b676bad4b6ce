"""Gradients of several steps add up in their buffers, in the workspace of one step."""

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal
from tests.python import sessions
from tests.python.test_hoist import feeds, session

import trainweb
from trainweb.artifacts import LossType, OptimType, build_artifacts
from trainweb.ir.shapes import TensorType
from trainweb.training.step_kind import TRAIN


def gradients(s: trainweb.TrainingSession, batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The buffers after these steps."""
    s.lazy_reset_grad()
    for batch in batches:
        s.train_step(batch)
    parameters = s._core.state.parameters
    return {n: p.grad for n, p in parameters.items() if p.grad is not None}


@pytest.mark.parametrize("kind", ["convolutions", "mlp"])
def test_steps_add_up_without_workspace_for_the_sum(kind: str) -> None:
    draw = feeds if kind == "convolutions" else lambda seed: sessions.batch("mlp", seed=seed)
    with session() if kind == "convolutions" else sessions.session() as s:
        types = {n: TensorType(str(x.dtype), x.shape) for n, x in draw(0).items()}
        overwriting, adding = (s._core.models.compile_step(TRAIN, types, overwrite) for overwrite in (True, False))
        assert adding.arena_bytes - overwriting.arena_bytes < 512
        assert any("accumulate=1" in line for line in adding.text)
        assert not any("accumulate=1" in line for line in overwriting.text)
        if kind == "convolutions":
            assert any("winograd_weight_gradient_f32" in line and "accumulate=1" in line for line in adding.text)
        parts = [gradients(s, [draw(seed)]) for seed in range(3)]
        total = gradients(s, [draw(seed) for seed in range(3)])
        for name, value in total.items():
            want = sum(part[name].astype(np.float64) for part in parts)
            np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-5 * np.abs(want).max(), err_msg=name)


def test_the_gradient_of_a_turned_weight_needs_no_copy() -> None:
    """A torch Linear is exported as x Transpose(W): the product stores the gradient as W lies."""
    rng, weight = np.random.default_rng(3), normal(3, 5)
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["logits"], "linear"),
    ]
    model = make_model(nodes, {"x": ["batch", 5]}, {"logits": ["batch", 3]}, {"w": weight})
    made = build_artifacts(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    x, labels = rng.standard_normal((7, 5)).astype(np.float32), rng.integers(0, 3, 7)
    with trainweb.TrainingSession(**made) as s:
        found = gradients(s, [{"x": x, "labels": labels}])["w"]
        (plan,) = (loaded.plan for loaded in s._core.host.loaded)
        assert not any("copy" in line for line in plan.text)
        scores = np.exp(x.astype(np.float64) @ weight.T)
        scores /= scores.sum(axis=1, keepdims=True)
        expected = (scores - np.eye(3)[labels]).T @ x / 7
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        twice = gradients(s, [{"x": x, "labels": labels}] * 2)["w"]
        np.testing.assert_allclose(twice, 2 * expected, rtol=1e-5, atol=1e-6)
