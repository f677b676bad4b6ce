"""Operators that update state: samples on the engine, on segments as sessions have them, against the references."""

from itertools import takewhile

import numpy as np
import pytest
from tests.ops.cases import cases_of
from tests.ops.cases.optim.operators import linear_learning_rate
from tests.ops.op_runner import Case, bound, by_operator, cases, materialize, reference, single_node
from tests.ops.test_forward import CASES, compare, inputs

from trainweb.backend.base import N_SEGMENTS
from trainweb.backend.wasm.engine import get_engine
from trainweb.backend.wasm.host import PlanHost
from trainweb.compiler import Binding, compile_model
from trainweb.ir.instructions import Buf, BufSequence, Storage
from trainweb.ir.layout import (
    GRADIENTS,
    MOMENTUM0,
    MOMENTUM1,
    PARAMETERS,
    STATE,
    STATE_INITIAL_LR,
    STATE_LEARNING_RATE,
    STATE_SCHEDULER,
    STATE_STEP,
    STATE_TOTAL,
    STATE_WARMUP,
)
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.op import registry
from trainweb.ops.optim.operators import MOMENTS, LinearLearningRate, Optimizer, SequenceOp, scheduler_graph
from trainweb.training.arrays import from_numpy, to_numpy

ON_SEQUENCES = [case for case in cases() if issubclass(case.cls, SequenceOp)]
ON_TENSORS = [
    case
    for case in cases()
    if case.cls.state_inputs and not issubclass(case.cls, SequenceOp) and case.cls is not LinearLearningRate
]
SCHEDULES = [case for case in cases() if case.cls is LinearLearningRate]
STATE_OUTPUTS = {"Assign": (0,), "BatchNormInternal": (1, 2), "CacheRows": (0,), "InPlaceAccumulatorV2": (1,)}
"""Outputs of the reference that are also what the state inputs hold afterwards."""
SEGMENT_ELEMENTS = 64
PLACES = (
    *((PARAMETERS, 0), (GRADIENTS, 0), (MOMENTUM0, 0)),
    *((MOMENTUM1, k * SEGMENT_ELEMENTS) for k in range(len(MOMENTS) - 1)),
)
"""Segments of the sequences, and the elements before them."""
HOLE = 5
"""Elements between the two runs of the parameters, as a frozen parameter between trainable ones makes them."""


def test_every_reference_is_run_by_some_test() -> None:
    run = {case.cls for case in (*CASES, *ON_SEQUENCES, *ON_TENSORS, *SCHEDULES)}
    # Gradients that need the node before them: the gradient tests of that node run them.
    elsewhere = {cls for cls in registry() if cases_of(cls).tested_through}
    assert run | elsewhere == set(registry())
    # Loops are expanded before there are operators: tests/control runs them.
    assert {cases_of(cls).tested_through for cls in elsewhere} <= {cls.op_type() for cls in run} | {"If", "Scan"}


class Runs:
    """One sequence of tensors in a segment: all but its first elements lie `hole` elements further back.

    `whole`: the first tensor is all of it, and the second empty.
    """

    def __init__(self, host: PlanHost, place: tuple[int, int], values: np.ndarray, *, whole: bool = False) -> None:
        self.host, self.values = host, values
        self.segment, self.start = place
        self.storage = Storage(self.segment, host.sizes[self.segment], 0)
        self.cut = values.size if whole else values.size // 3
        self.hole = HOLE if self.segment == PARAMETERS else 0
        for run, part in zip(self.bufs(), np.split(values, [self.cut]), strict=True):
            host.write_segment(self.segment, run.shift, part.tobytes())

    def bufs(self) -> list[Buf]:
        sizes = (self.cut, self.values.size - self.cut)
        starts = (self.start, self.start + self.cut + self.hole)
        return [Buf(self.storage, "float32", (n,), shift=4 * start) for n, start in zip(sizes, starts, strict=True)]

    def read(self) -> np.ndarray:
        data = self.host.read_segment(self.segment, 4 * self.start, 4 * SEGMENT_ELEMENTS)
        whole = np.frombuffer(data, np.float32)
        hole = slice(self.cut, self.cut + self.hole)
        assert not whole[hole].any() and not whole[self.values.size + self.hole :].any(), "written beside the runs"
        return np.delete(whole, hole)[: self.values.size]


def new_host() -> PlanHost:
    sizes = [0] * N_SEGMENTS
    for segment, start in PLACES:
        sizes[segment] = 4 * (start + SEGMENT_ELEMENTS)
    return PlanHost(get_engine(reproducible=True), sizes)


RATE = Binding(STATE, 4 * STATE_LEARNING_RATE, "float32", (1,))
STEP = Binding(STATE, 4 * STATE_STEP, "int64", (1,))


def scalars(case: Case, names: list[str], arrays: list[np.ndarray | None]) -> dict[str, np.ndarray]:
    """Learning rate and step of an optimizer, which come before its sequences."""
    before = takewhile(lambda named: named[1] is not None and named[1].shape == (1,), zip(names, arrays, strict=False))
    return {name: x for name, x in before if x is not None}


@by_operator(ON_SEQUENCES)
def test_sequences(case: Case) -> None:
    arrays = materialize(case.sample.inputs, str(case), case.sample)
    graph = single_node(case.cls, arrays, case.sample.attrs, case.opset)
    names = graph.nodes[0].inputs
    given = scalars(case, names, arrays)
    bindings = {name: RATE if x.dtype == np.float32 else STEP for name, x in given.items()}
    taken = 41
    host = new_host()
    try:
        for x in given.values():
            if x.dtype == np.float32:
                host.write_state(STATE_LEARNING_RATE, x.item())
            else:
                taken = x.item() - 1  # the session counts the steps before this one
        host.write_state(STATE_STEP, taken)
        places = PLACES if given else ((GRADIENTS, 0),)
        whole = getattr(case.cls, "per_parameter", False)
        tensors = dict(list(zip(names, arrays, strict=True))[len(given) :])
        assert len(tensors) <= len(places), "give PLACES one more"
        runs = {
            name: Runs(host, place, x, whole=whole)
            for place, (name, x) in zip(places, tensors.items(), strict=False)
            if x is not None
        }
        plan = compile_model(
            graph,
            {},
            [],
            bindings=bindings,
            sequences={name: BufSequence(r.bufs()) for name, r in runs.items()},
            segment_bytes=host.sizes,
        )
        host.run(host.load(plan))
        updated = [names[k] for k in case.cls.state_inputs if k < len(names)]
        for name, values in zip(updated, reference(case, arrays), strict=True):
            compare(case, runs[name].read(), values)
        for name in runs.keys() - updated:
            np.testing.assert_array_equal(runs[name].read(), runs[name].values)
        assert host.read_state(STATE_STEP) == taken + issubclass(case.cls, Optimizer)
    finally:
        host.release()


@by_operator(ON_TENSORS)
def test_tensors(case: Case) -> None:
    arrays = inputs(case)
    constants = [k for k, x in enumerate(arrays) if x is not None and x.dtype == np.bool_]
    graph = single_node(case.cls, arrays, case.sample.attrs, case.opset, case.cls.n_outputs, constants=constants)
    names, outputs = graph.nodes[0].inputs, [v.name for v in graph.outputs]
    host = new_host()
    try:
        bindings = {}
        for k, (segment, _) in zip(case.cls.state_inputs, PLACES, strict=False):
            x = arrays[k]
            assert x is not None
            bindings[names[k]] = Binding(segment, 0, "float32", x.shape)
            host.write_segment(segment, 0, x.tobytes())
        given = {name: x for name, x in zip(names, arrays, strict=False) if x is not None}
        fed = [v.name for v in graph.inputs if v.name not in bindings]
        feeds = {name: from_numpy(name, given[name]) for name in fed}
        plan = compile_model(
            graph,
            {name: TensorType(t.dtype, t.shape) for name, t in feeds.items()},
            outputs,
            bindings=bindings,
            overwrite=False,
            segment_bytes=host.sizes,
        )
        loaded = host.load(plan)
        host.write_feeds(loaded, feeds)
        host.run(loaded)
        expected = reference(case, arrays)
        for name, values in zip(outputs, expected, strict=True):
            compare(case, to_numpy(host.read_outputs(loaded, [name])[name]), values)
        for binding, k in zip(bindings.values(), STATE_OUTPUTS[case.cls.op_type()], strict=True):
            stored = np.frombuffer(host.read_segment(binding.segment, 0, 4 * expected[k].size), np.float32)
            compare(case, stored.reshape(binding.shape), expected[k])
    finally:
        host.release()


@by_operator(SCHEDULES)
def test_schedules(case: Case) -> None:
    step, warmup, total, initial = (x for x in inputs(case) if x is not None)
    graph = scheduler_graph()
    expected = linear_learning_rate(bound(graph), int(step), int(warmup), int(total), float(initial))
    host = new_host()
    try:
        host.write_state(STATE_STEP, int(step))
        host.write_state(STATE_INITIAL_LR, float(initial))
        host.write_state(STATE_SCHEDULER, 1)
        host.write_state(STATE_WARMUP, int(warmup))
        host.write_state(STATE_TOTAL, int(total))
        binding = Binding(STATE, 4 * STATE_LEARNING_RATE, "float32", (1,))
        plan = compile_model(graph, {}, [], bindings={"learning_rate": binding}, segment_bytes=host.sizes)
        host.run(host.load(plan))
        assert host.read_state(STATE_LEARNING_RATE) == pytest.approx(expected, rel=1e-6)
    finally:
        host.release()
