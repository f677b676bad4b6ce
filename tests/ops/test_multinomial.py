"""The draws of Multinomial, by the frequencies of a softmax in numpy."""

from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tests.conformance.models import make_model
from tests.python.sessions import infer

LOGITS = np.array([[0.0, 1.0, -2.0, 0.5], [3.0, 3.0, -50.0, 1.0]], np.float32)
SAMPLES = 20_000
SIGMAS = 5


def model(**attrs: Any) -> bytes:
    node = helper.make_node("Multinomial", ["x"], ["y"], sample_size=SAMPLES, **attrs)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])]
    return make_model([node], inputs, {"y": None}, {}, types={"y": TensorProto.INT32}).SerializeToString()


def draws(data: bytes) -> np.ndarray:
    (drawn,) = infer(data, {"x": LOGITS})
    return np.asarray(drawn)


def test_classes_are_drawn_as_often_as_their_probabilities_say() -> None:
    drawn = draws(model())
    assert drawn.dtype == np.int32 and drawn.shape == (2, SAMPLES)
    for row, logits in zip(drawn, LOGITS.astype(np.float64), strict=True):
        p = np.exp(logits - logits.max())
        p /= p.sum()
        share = np.bincount(row, minlength=4) / SAMPLES
        assert (np.abs(share - p) <= SIGMAS * np.sqrt(p * (1 - p) / SAMPLES) + 1e-9).all(), (share, p)


def test_a_seed_gives_the_same_classes_in_each_session() -> None:
    first, second, other = (draws(model(seed=seed)) for seed in (3.0, 3.0, 4.0))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()
