"""Each sample on the engine against the reference in float64 and ONNX's reference evaluator, and bad inputs."""

import numpy as np
import pytest
from tests.ops.cases import Bad, cases_of
from tests.ops.evaluator_faults import FAULTS
from tests.ops.op_runner import (
    Case,
    bound,
    by_operator,
    cases,
    evaluate,
    feeds_of,
    materialize,
    reference,
    run,
    single_node,
)

from trainweb.errors import TrainwebError
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph
from trainweb.ops.frame.op import Op, registry
from trainweb.ops.optim.operators import SequenceOp
from trainweb.training.arrays import from_numpy
from trainweb.training.inference import InferenceCore

RTOL, ATOL = 1e-5, 2e-6
"""A few roundings of float32; `ATOL` is relative to the largest element. `Sample.tolerance` replaces both."""


def runs_alone(cls: type[Op]) -> bool:
    """Operators on the session's state, on sequences, or next to another node are tested with those."""
    return not issubclass(cls, SequenceOp) and not cls.state_inputs and not cases_of(cls).tested_through


CASES = [case for case in cases() if runs_alone(case.cls)]


def inputs(case: Case) -> list[np.ndarray | None]:
    return materialize(case.sample.inputs, str(case), case.sample)


def graph_of(case: Case) -> tuple[Graph, dict[str, np.ndarray]]:
    """A sample and what to feed it."""
    arrays, sample = inputs(case), case.sample
    static = case.cls.static_inputs
    graph = single_node(case.cls, arrays, sample.attrs, case.opset, sample.outputs or 1, constants=static)
    return graph, feeds_of(graph, arrays)


def compare(case: Case, actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    if expected.dtype.kind != "f":
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)
        return
    finite = expected[np.isfinite(expected)]
    scale = float(np.abs(finite).max(initial=1.0))
    tolerance = case.sample.tolerance
    np.testing.assert_allclose(
        actual.astype(np.float64),
        expected,
        rtol=RTOL if tolerance is None else tolerance,
        atol=scale * (ATOL if tolerance is None else tolerance),
    )


@by_operator([c for c in CASES if not c.is_random])
def test_forward(case: Case) -> None:
    graph, feeds = graph_of(case)
    results = [*run(graph, feeds).values()]
    expected = reference(case, inputs(case))
    assert len(expected) >= len(results)
    for k, actual in enumerate(results):
        compare(case, actual, expected[k])
    if case.cls.domain:
        return
    # Operators' own references share helpers with what they check (windows, margins, axes). These numbers share none.
    of_onnx = evaluate(graph, feeds, FAULTS.get(str(case)))
    assert [y.dtype for y in results] == [y.dtype for y in of_onnx]
    for actual, other in zip(results, of_onnx, strict=True):
        compare(case, actual, other)


@by_operator([c for c in CASES if c.is_random])
def test_random_numbers_differ_from_run_to_run(case: Case) -> None:
    arrays = inputs(case)
    graph = single_node(case.cls, arrays, case.sample.attrs, case.opset)
    core = InferenceCore(graph)
    feeds = {name: from_numpy(name, x) for name, x in feeds_of(graph, arrays).items()}
    first, second = (bytes(core.run(feeds)["y0"].data) for _ in range(2))
    core.host.release()
    assert first != second


EVALUATED = [
    c for c in CASES if c.cls.evaluate is not Op.evaluate and all(hasattr(x, "values") for x in c.sample.inputs)
]


@by_operator(EVALUATED)
def test_what_is_computed_in_python_is_what_the_reference_says(case: Case) -> None:
    arrays = inputs(case)
    op = bound(single_node(case.cls, arrays, case.sample.attrs, case.opset, case.sample.outputs or 1))
    types = [TensorType(t.dtype, t.shape, t.values()) for t in case.sample.inputs]
    value = op.evaluate(*types)
    # If Python has no number (1 / 0 in a branch not taken), floats are left to the engine.
    assert value is not None or any(x is not None and x.dtype.kind == "f" for x in arrays)
    if value is not None:
        np.testing.assert_allclose(np.array(value), reference(case, arrays)[0].ravel(), rtol=RTOL)


@by_operator([c for c in CASES if not c.is_random])
def test_constant_inputs_give_the_same(case: Case) -> None:
    arrays = inputs(case)
    everything = range(len(arrays))
    graph = single_node(case.cls, arrays, case.sample.attrs, case.opset, case.sample.outputs or 1, constants=everything)
    for k, actual in enumerate(run(graph, {}).values()):
        compare(case, actual, reference(case, arrays)[k])


BAD = [
    Case(cls, number, bad)  # type: ignore[arg-type]
    for cls in registry()
    if not cases_of(cls).tested_through
    for number, bad in enumerate(cases_of(cls).bad)
]


@by_operator(BAD)
def test_bad_inputs_are_refused(case: Case) -> None:
    bad: Bad = case.sample  # type: ignore[assignment]
    arrays = materialize(bad.inputs, f"bad {case}")
    constants = [k for k, item in enumerate(bad.inputs) if not isinstance(item, tuple)]
    graph = single_node(case.cls, arrays, bad.attrs, case.opset, constants=constants)
    with pytest.raises(TrainwebError) as caught:
        run(graph, feeds_of(graph, arrays))
    assert type(caught.value) is bad.error, caught.value
    assert "'node'" in str(caught.value)
