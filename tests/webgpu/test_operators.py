"""Samples of operators on the GPU against their float64 references; those without a plan are in a golden list."""

import sys

import pytest
from tests.each import run_each
from tests.ops import test_forward as test_forward_module
from tests.ops import test_gradient as test_gradient_module
from tests.ops import test_sizes
from tests.ops.op_runner import Case, by_operator, reference
from tests.webgpu.operators import (
    BACKWARD,
    FORWARD,
    GOLDEN,
    backward_graph,
    first_that_fit,
    refusals,
    run,
    runs,
)


def forward(case: Case) -> None:
    graph, feeds = test_forward_module.graph_of(case)
    expected = reference(case, test_forward_module.inputs(case))
    for results in runs(graph, feeds):
        for actual, wanted in zip(results.values(), expected, strict=False):
            test_forward_module.compare(case, actual, wanted)


def gradient(case: Case) -> None:
    graph, feeds, weights = backward_graph(case)
    for results in runs(graph, feeds):
        found = {name.removesuffix("_grad"): slope for name, slope in results.items()}
        test_gradient_module.check(case, found, weights, directions=1)


test_forward = by_operator([*first_that_fit(FORWARD, is_gradient=False), *test_sizes.CASES])(forward)
test_gradient = by_operator([*first_that_fit(BACKWARD, is_gradient=True), *test_sizes.DIFFERENTIABLE])(gradient)


def test_maxima_pass_nan_on() -> None:
    test_sizes.test_maxima_pass_nan_on(3, 2, run)


def test_recurrent_layers_in_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatch for each step."""
    monkeypatch.setattr(sys.modules["trainweb.backend.webgpu.templates.recurrence"], "MOST_WORK", 1)
    for check in (forward, gradient):
        run_each(test_sizes.cases("Recurrence"), check)


def test_samples_without_a_plan_are_those_of_the_list() -> None:
    assert [*refusals()] == GOLDEN.read_text().splitlines()
