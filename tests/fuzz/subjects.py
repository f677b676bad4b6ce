"""Real plans to mutate, from the golden models and from the samples of all operators with their gradients."""

from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import patch

import compare_plans
import numpy as np
from tests.control.test_control_flow import recurrent
from tests.control.test_while import counted, growing, nested
from tests.ops import test_forward, test_gradient
from tests.ops.op_runner import feeds_of, single_node

from trainweb.autodiff.gradient import build_gradients
from trainweb.backend.plan import Plan
from trainweb.backend.wasm.engine import get_engine
from trainweb.control import expand_control_flow, repeat
from trainweb.ir.layout import ARENA, CONSTANTS, LARGE_CONSTANTS, PREPARED
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import Limits
from trainweb.model.graph import Graph, Value
from trainweb.model.reader import read_model
from trainweb.training.inference import InferenceModel

MAX_BYTES = 1 << 20
"""Larger plans are left out: to fill their segments anew for each run takes longer than the run."""


@dataclass(frozen=True)
class Subject:
    """A plan and the sizes of its segments."""

    name: str
    plan: Plan
    sizes: tuple[int, ...]


def _subject(name: str, plan: Plan, sizes: list[int]) -> Subject:
    sizes = list(sizes)
    sizes[ARENA], sizes[CONSTANTS], sizes[PREPARED] = plan.arena_bytes, len(plan.constants), plan.prepared_bytes
    sizes[LARGE_CONSTANTS:] = [len(plan.large)] if plan.large else []
    return Subject(name, plan, tuple(sizes))


def golden_plans() -> Iterator[Subject]:
    """Train (overwriting and adding), eval and optimizer steps of the golden models, also with a memory budget."""
    for name, folder, given in compare_plans.folders():
        if folder.parent == compare_plans.GOLDEN:
            for title, plan, sizes in compare_plans.plans(name, folder, given):
                yield _subject(title, plan, sizes)


def _compile(name: str, graph: Graph, feeds: dict[str, np.ndarray]) -> Subject:
    model = InferenceModel(graph, engine=get_engine(reproducible=True), limits=Limits(), memory_budget=None)
    plan = model.compile({n: TensorType(str(feeds[n].dtype), feeds[n].shape) for n in model.inputs})
    return _subject(name, plan, model.segment_bytes)


def operator_plans() -> Iterator[Subject]:
    """A plan for each sample of an operator, and one with its gradients."""
    for case in test_forward.CASES:
        arrays = test_forward.inputs(case)
        static, n_outputs = case.cls.static_inputs, case.sample.outputs or 1
        graph = single_node(case.cls, arrays, case.sample.attrs, case.opset, n_outputs, constants=static)
        yield _compile(str(case), graph, feeds_of(graph, arrays))
    for case in test_gradient.CASES:
        graph, feeds, _ = test_gradient.loss_graph(case)
        names = [f"x{k}" for k in test_gradient.wanted(case)]
        backward = build_gradients(graph, "loss", names)
        backward.outputs = [Value(f"{name}_grad", "float32", None) for name in names]
        yield _compile(f"{case} gradient", backward, feeds)


def loop_plans() -> Iterator[Subject]:
    """Loops that are loops in the plan, forward and backward: of a known length, and ended by data.

    They are short: mutations put loops into each other, and the meter is for seconds.
    """
    x = np.random.default_rng(3).standard_normal((20, 3)).astype(np.float32)
    models = {"repeat": (recurrent(20), x), "while": (growing(None), x[0]), "count": (counted(), x[0])}
    models["nest"] = nested(None, None), x[0]
    for name, (proto, feed) in models.items():
        with patch.object(repeat, "WRITTEN_OUT_NODES", 0):
            graph = expand_control_flow(read_model(proto, limits={"loop_iterations": 64}), differentiable=True)
        graph = build_gradients(graph, "loss", ["x", "w"])
        graph.outputs = [Value(wanted, "float32", None) for wanted in ("loss", "x_grad", "w_grad")]
        yield _compile(f"loop {name}", graph, {"x": feed})
