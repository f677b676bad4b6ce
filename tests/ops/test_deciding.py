"""Inputs that decide about shapes, axes and counts may be fed: what is computed is as if they were constants."""

import numpy as np
from tests.ops.op_runner import Case, by_operator, cases, feeds_of, gradients, materialize, run, single_node
from tests.ops.test_gradient import CASES as WITH_GRADIENT
from tests.ops.test_gradient import loss_graph, wanted

from trainweb.model.graph import Value
from trainweb.training.arrays import to_numpy


def decided(case: Case) -> list[int]:
    """Inputs of a sample that the operator must know."""
    return [k for k in case.cls.static_inputs if k < len(case.sample.inputs) and case.sample.inputs[k] is not None]


CASES = [case for case in cases() if decided(case) and not case.is_random]
TRAINED = [case for case in WITH_GRADIENT if decided(case)]
OF_ANY_LENGTH = [case for case in TRAINED if case.cls.op_type() in ("Pad", "Slice")]
"""Those of which a feed may decide how many axes they work along."""


@by_operator(CASES)
def test_fed_as_constant(case: Case) -> None:
    arrays = materialize(case.sample.inputs, str(case), case.sample)
    outputs = case.sample.outputs or case.cls.n_outputs
    arguments = (case.cls, arrays, case.sample.attrs, case.opset, outputs)
    fed, constant = single_node(*arguments), single_node(*arguments, constants=decided(case))
    found, expected = run(fed, feeds_of(fed, arrays)), run(constant, feeds_of(constant, arrays))
    for name, y in expected.items():
        np.testing.assert_array_equal(found[name], y)


@by_operator(TRAINED)
def test_gradients_fed_as_constant(case: Case) -> None:
    compare_gradients(case, of_any_length=False)


@by_operator(OF_ANY_LENGTH)
def test_gradients_fed_as_constant_of_any_length(case: Case) -> None:
    compare_gradients(case, of_any_length=True)


def compare_gradients(case: Case, *, of_any_length: bool) -> None:
    """Compare gradients where what decides is fed with those where it is constant."""
    graph, feeds, _ = loss_graph(case)
    fed = graph.copy()
    names = [f"x{k}" for k in wanted(case)]
    for k in decided(case):
        tensor = fed.initializers.pop(f"x{k}")
        shape = (f"length_{k}",) if of_any_length and len(tensor.shape) == 1 else tensor.shape
        fed.inputs.append(Value(tensor.name, tensor.dtype, shape))
    more = {f"x{k}": to_numpy(graph.initializers[f"x{k}"]) for k in decided(case)}
    found, expected = gradients(fed, names, {**feeds, **more}), gradients(graph, names, feeds)
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
