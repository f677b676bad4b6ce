"""The node tests of the installed `onnx`: one operator each, or the function that defines it, with recorded results."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from trainweb import InferenceSession
from trainweb.errors import TrainwebError
from trainweb.model.graph import ITEM_SIZE

BFLOAT16_RTOL = 2.0**-6
"""Two units in the last place: the recordings round each intermediate result to bfloat16."""
SMALL = 8
"""Float inputs of at most this many elements may be what decides a shape: scales of Resize."""


@dataclass(frozen=True)
class NodeCase:
    """A model, arrays for its inputs and the outputs that it must give."""

    name: str
    model: onnx.ModelProto
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    rtol: float
    atol: float


@dataclass
class Outcome:
    refused: str = ""
    """The message of our error, "" where the case ran."""
    wrong: str = ""
    """How the results differ, "" where they do not."""
    needs_constants: bool = False
    """Whether it ran only with inputs that may decide shapes as constants."""


def node_cases() -> Iterator[NodeCase]:
    """The cases whose inputs and outputs are arrays of numbers or bools that Python can read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        collected = collect_testcases(None)
    for case in collected:
        for inputs, outputs in case.data_sets[:1]:
            arrays = [_array(x) for x in (*inputs, *outputs)]
            if all(x is not None and x.dtype.name in ITEM_SIZE for x in arrays):
                found = [x for x in arrays if x is not None]
                n = len(inputs)
                yield NodeCase(case.name, case.model, found[:n], found[n:], case.rtol, case.atol)


def _array(x: Any) -> np.ndarray | None:
    """Numpy scalars and protos are arrays as well; sequences and maps are not."""
    if isinstance(x, onnx.TensorProto):
        return onnx.numpy_helper.to_array(x)
    return np.asarray(x) if isinstance(x, (np.ndarray, np.generic, int, float)) else None


def run_case(case: NodeCase) -> Outcome:
    """Run a case on the engine; where it is refused, once more with inputs that may decide shapes as constants."""
    outcome = Outcome()
    try:
        results = _run(case, constants=False)
    except TrainwebError:
        outcome.needs_constants = True
        try:
            results = _run(case, constants=True)
        except TrainwebError as error:
            outcome.refused = f"{type(error).__name__}: {error}"
            return outcome
    try:
        _compare(case, results)
    except AssertionError as error:
        outcome.wrong = " ".join(str(error).split())[:300]
    return outcome


def _run(case: NodeCase, *, constants: bool) -> list[np.ndarray]:
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    feeds = {value.name: x for value, x in zip(model.graph.input, case.inputs, strict=False)}
    if constants:
        fixed = {name: x for name, x in feeds.items() if x.dtype.kind in "iub" or x.size <= SMALL}
        model.graph.initializer.extend(onnx.numpy_helper.from_array(x, name) for name, x in fixed.items())
        feeds = {name: x for name, x in feeds.items() if name not in fixed}
        kept = [value for value in model.graph.input if value.name in feeds]
        del model.graph.input[:]
        model.graph.input.extend(kept)
    session = InferenceSession(model.SerializeToString())
    try:
        return session.run(None, feeds)
    finally:
        session.release()


def _compare(case: NodeCase, results: list[np.ndarray]) -> None:
    assert len(results) == len(case.outputs)
    for actual, expected in zip(results, case.outputs, strict=True):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        rtol = case.rtol
        if expected.dtype.name == "bfloat16":
            actual, expected, rtol = actual.astype(np.float32), expected.astype(np.float32), BFLOAT16_RTOL
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=case.atol)
