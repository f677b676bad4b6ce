"""Samples of operators on the GPU against their float64 references; those without a plan are in a golden list."""

from tests.ops import test_forward as test_forward_module
from tests.ops import test_gradient as test_gradient_module
from tests.ops.op_runner import Case, by_operator, reference
from tests.webgpu.host import open_device
from tests.webgpu.operators import (
    BACKWARD,
    FORWARD,
    GOLDEN,
    backward_graph,
    first_that_fit,
    forward_graph,
    refusals,
    run,
)


@by_operator(first_that_fit(FORWARD, is_gradient=False))
def test_forward(case: Case) -> None:
    open_device()
    graph, feeds = forward_graph(case)
    expected = reference(case, test_forward_module.inputs(case))
    for actual, wanted in zip(run(graph, feeds).values(), expected, strict=False):
        test_forward_module.compare(case, actual, wanted)


@by_operator(first_that_fit(BACKWARD, is_gradient=True))
def test_gradient(case: Case) -> None:
    open_device()
    graph, feeds, weights = backward_graph(case)
    found = {name.removesuffix("_grad"): slope for name, slope in run(graph, feeds).items()}
    test_gradient_module.check(case, found, weights, directions=1)


def test_samples_without_a_plan_are_those_of_the_list() -> None:
    assert [*refusals()] == GOLDEN.read_text().splitlines()
