"""ONNX's reference evaluator: its random numbers, and the faults that `test_forward.py` avoids."""

from collections.abc import Iterator

import numpy as np
import onnx.defs
from tests.ops.evaluator_faults import FAULTS
from tests.ops.op_runner import Case, by_operator, evaluate, feeds_of, run, single_node
from tests.ops.test_forward import CASES, inputs

from trainweb.model.graph import Graph

Arrays = dict[str, np.ndarray]

IN_ONNX = [case for case in CASES if not case.cls.domain]
EXACT = [case for case in IN_ONNX if not case.is_random]
RANDOM = [case for case in IN_ONNX if case.is_random and case.cls.op_type() != "Multinomial"]
"""The evaluator has no Multinomial: `test_multinomial.py`."""
SIGMAS = 6.0
"""Standard errors a mean of random numbers may be off."""


def sample_graph(case: Case) -> tuple[Graph, Arrays]:
    arrays = inputs(case)
    outputs, static = case.sample.outputs or 1, case.cls.static_inputs
    graph = single_node(case.cls, arrays, case.sample.attrs, case.opset, outputs, constants=static)
    return graph, feeds_of(graph, arrays)


@by_operator(RANDOM)
def test_random_numbers_have_the_moments_of_those_of_the_evaluator(case: Case) -> None:
    graph, feeds = sample_graph(case)
    (drawn,) = run(graph, feeds).values()
    (other,) = evaluate(graph, feeds)
    assert drawn.dtype == other.dtype and drawn.shape == other.shape and drawn.size > 1000
    ours, theirs = drawn.astype(np.float64), other.astype(np.float64)
    # Means and variances are each within a few standard errors of the difference of two samples of this size.
    assert abs(ours.mean() - theirs.mean()) < SIGMAS * np.sqrt((ours.var() + theirs.var()) / ours.size)
    squares = [(x - x.mean()) ** 2 for x in (ours, theirs)]
    error = np.sqrt(sum(s.var() for s in squares) / ours.size)
    assert abs(ours.var() - theirs.var()) < SIGMAS * error


@by_operator(case for case in EXACT if str(case) in FAULTS)
def test_the_evaluator_is_still_at_fault(case: Case) -> None:
    graph, feeds = sample_graph(case)
    wanted = evaluate(graph, feeds, FAULTS[str(case)])
    try:
        actual = evaluate(graph, feeds)
    except Exception:  # It fails in numpy, in its own checks, or knows no such operator.
        return
    same = all(a.shape == w.shape and np.allclose(a, w) for a, w in zip(actual, wanted, strict=True))
    assert not same, "the evaluator computes this sample now: take it off the list"


def descriptions(schema: onnx.defs.OpSchema) -> Iterator[str]:
    yield schema.doc or ""
    for part in (*schema.inputs, *schema.outputs):
        yield part.description
    for attribute in schema.attributes.values():
        yield attribute.description


def test_quotes_stand_in_the_specification() -> None:
    for name, fault in FAULTS.items():
        schema = onnx.defs.get_schema(*fault.schema, "")
        assert any(fault.quote in " ".join(text.split()) for text in descriptions(schema)), name


def test_every_fault_is_of_a_sample() -> None:
    assert FAULTS.keys() <= {str(case) for case in EXACT}
