"""Padded windows with their lengths against torch's packed sequences (tests/golden/lengths)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainweb import TrainingSession

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "lengths"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_losses_and_gradients_are_those_of_packed_sequences(name: str) -> None:
    """Whatever numbers stand behind the last step of a window."""
    expected = EXPECTED[name]
    feeds = {key: np.array(value, np.float32) for key, value in expected["feeds"].items()}
    feeds["lengths"] = lengths = feeds["lengths"].astype(np.int32)
    feeds["window"][np.arange(7) >= lengths[:, None]] = 9
    parameters = list(expected["gradients"])
    with TrainingSession.from_model(GOLDEN / f"{name}.onnx", loss="MSELoss", requires_grad=parameters) as session:
        assert float(next(iter(session.train_step(feeds).values()))) == pytest.approx(expected["loss"], rel=1e-6)
        for key, gradient in expected["gradients"].items():
            np.testing.assert_allclose(session.get_gradient(key).ravel(), gradient, atol=2e-7, err_msg=key)
