"""Gradient graphs on the engine against numerical differences of the float64 reference."""

import numpy as np
import pytest
from tests.ops.op_runner import (
    Case,
    by_operator,
    cases,
    feeds_of,
    gradients,
    materialize,
    reference,
    single_node,
    with_loss,
)

from trainweb.model.graph import Graph
from trainweb.ops.optim.operators import SequenceOp

STEP = 1e-5
"""Central differences in float64: errors of STEP^2 and 1e-16 / STEP, both far below the tolerance."""
TOLERANCE = 2e-5
"""Relative to the sum of the magnitudes of what is added up: float32 in the backward graph."""


def wanted(case: Case) -> list[int]:
    """Inputs whose gradient is checked: the differentiable float ones that are not static."""
    sample = case.sample
    allowed = case.cls.differentiable if sample.grad is None else sample.grad
    arrays = materialize(sample.inputs, str(case), sample)
    return [k for k, x in enumerate(arrays) if k in allowed and x is not None and x.dtype == np.float32]


CASES = [c for c in cases() if c.cls.differentiable and not issubclass(c.cls, SequenceOp) and wanted(c)]
OUTPUTS = {"LayerNormalization": 3, "SoftmaxCrossEntropyLoss": 2, "Recurrence": 3}
"""Operators of which other outputs than the first have gradients, too: how many."""


def checked_outputs(case: Case) -> int:
    """All parts of an operator with any number of outputs; else the first output only."""
    asked = case.sample.outputs or 1
    return asked if asked > case.cls.n_outputs else min(asked, OUTPUTS.get(case.cls.op_type(), 1))


def loss_graph(case: Case) -> tuple[Graph, dict[str, np.ndarray], list[np.ndarray]]:
    """The sample's graph with a loss, what to feed it, and the weights of its outputs."""
    sample, inputs = case.sample, wanted(case)
    arrays = materialize(sample.inputs, str(case), sample)
    constants = [k for k, x in enumerate(arrays) if x is not None and k not in inputs]
    graph = single_node(case.cls, arrays, sample.attrs, case.opset, sample.outputs or 1, constants=constants)
    rng = np.random.default_rng(7)
    outputs = reference(case, arrays)[: checked_outputs(case)]
    weights = [rng.standard_normal(y.shape).astype(np.float32) for y in outputs]
    feeds = feeds_of(graph, arrays) | {f"w{k}": w for k, w in enumerate(weights)}
    return with_loss(graph, [(f"y{k}", w) for k, w in enumerate(weights)]), feeds, weights


def differentiate(case: Case) -> None:
    graph, feeds, weights = loss_graph(case)
    found = gradients(graph, [f"x{k}" for k in wanted(case)], feeds)
    check(case, found, weights)


test_gradient = by_operator(CASES)(differentiate)


def check(case: Case, found: dict[str, np.ndarray], weights: list[np.ndarray], directions: int = 3) -> None:
    """Compare gradients with central differences of the reference along some directions."""
    sample, inputs = case.sample, wanted(case)
    arrays = materialize(sample.inputs, str(case), sample)
    rng = np.random.default_rng(11)
    for k in inputs:
        assert found[f"x{k}"].shape == arrays[k].shape  # type: ignore[union-attr]
    for _ in range(directions):
        direction = {k: rng.standard_normal(arrays[k].shape) for k in inputs}  # type: ignore[union-attr]

        def loss(step: float, direction: dict[int, np.ndarray] = direction) -> float:
            moved = [
                x.astype(np.float64) + step * direction[k] if k in direction and x is not None else x
                for k, x in enumerate(arrays)
            ]
            results = reference(case, moved)
            return sum(float((y * w).sum()) for y, w in zip(results, weights, strict=False))

        terms = [found[f"x{k}"].astype(np.float64) * direction[k] for k in inputs]
        analytic = sum(float(t.sum()) for t in terms)
        numeric = (loss(STEP) - loss(-STEP)) / (2 * STEP)
        scale = sum(float(np.abs(t).sum()) for t in terms) + 1e-3
        tolerance = max(TOLERANCE, sample.tolerance or 0)
        assert analytic == pytest.approx(numeric, rel=0, abs=tolerance * scale)
