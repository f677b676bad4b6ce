"""Tensors that are split into sequences of thousands of parts: as fast as they are long, or refused at once."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.conformance.models import make_model

from trainweb.control import expand_control_flow
from trainweb.control.sequences import SPLIT_PARTS
from trainweb.errors import LimitError
from trainweb.model.reader import read_model
from trainweb.session.inference_session import InferenceSession


def split_in(parts: int, form: str) -> onnx.ModelProto:
    """A sequence of so many parts of x, joined again."""
    sizes = {"number": np.array(2, np.int64), "list": np.full(parts, 2, np.int64)}.get(form)
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"] if sizes is not None else ["x"], ["parts"], "cut", axis=0),
        helper.make_node("ConcatFromSequence", ["parts"], ["y"], "join", axis=0),
    ]
    rows = parts * (2 if sizes is not None else 1)
    held = {"sizes": sizes} if sizes is not None else {}
    return make_model(nodes, {"x": [rows, 1]}, {"y": [rows, 1]}, held, opset=17)


@pytest.mark.parametrize("form", ["number", "list", "ones"])
def test_a_tensor_is_split_into_as_many_parts_as_the_limit_says(form: str) -> None:
    file = split_in(SPLIT_PARTS, form)
    x = np.arange(file.graph.input[0].type.tensor_type.shape.dim[0].dim_value, dtype=np.float32)[:, None]
    session = InferenceSession(file)
    try:
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, x)
    finally:
        session.release()
    for parts in (SPLIT_PARTS + 1, 10**6):
        with pytest.raises(LimitError, match=f"a sequence of {parts:,} parts; a sequence has at most {SPLIT_PARTS:,}"):
            expand_control_flow(read_model(split_in(parts, form).SerializeToString()))
