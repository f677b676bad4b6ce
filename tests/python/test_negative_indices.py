"""Negative indices of an embedding count from the end, as ONNX defines Gather; those before the first row are refused.

PyTorch refuses both. NumPy counts as ONNX does, and is the oracle. test_js_negative_indices.py is the same in a page.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.conformance.models import make_model

import trainweb
from trainweb.errors import FeedError

TABLE = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
IDS = np.array([[-1, 2], [-5, -1]])
TARGET = np.ones((2, 2, 3), np.float32)
RATE = 0.5
OUTSIDE = r"Gather node 'look up': the index -6 at position 1 is out of range"


def model() -> bytes:
    """An embedding of 5 rows."""
    node = helper.make_node("Gather", ["table", "ids"], ["y"], "look up")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2, 3])
    return make_model([node], [ids], [y], {"table": TABLE}).SerializeToString()


def learned() -> np.ndarray:
    """The table after a step of SGD on the mean square."""
    gradient = np.zeros_like(TABLE)
    np.add.at(gradient, IDS, 2 * (TABLE[IDS] - TARGET) / TARGET.size)
    return TABLE - RATE * gradient


def test_negative_indices_count_from_the_end() -> None:
    with trainweb.TrainingSession.from_model(model(), loss="MSELoss", optimizer="SGD", learning_rate=RATE) as session:
        np.testing.assert_array_equal(session.predict({"ids": IDS})["y"], TABLE[IDS])
        session.train_step({"ids": IDS, "target": TARGET})
        session.optimizer_step()
        np.testing.assert_allclose(session.get_parameter("table"), learned(), rtol=1e-6)
        with pytest.raises(FeedError, match=OUTSIDE):
            session.train_step({"ids": np.array([[0, -6], [0, 0]]), "target": TARGET})
