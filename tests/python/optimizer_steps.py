"""Steps of an optimizer's operator on arrays, through the compiler and the engine."""

from typing import Any

import numpy as np

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
    STATE_LEARNING_RATE,
    STATE_STEP,
)
from trainweb.model.graph import Graph, Node, Value
from trainweb.model.graph import Sequence as SequenceValue
from trainweb.ops.frame.op import find
from trainweb.ops.optim.operators import MS, SCALARS, Optimizer

SEGMENTS = (PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1)
N_SEGMENTS = 1 + max(*SEGMENTS, STATE) + 1


def take_step(
    op_type: str,
    w: np.ndarray,
    g: np.ndarray,
    *moments: np.ndarray,
    rate: float,
    before: int,
    domain: str = MS,
    **attrs: Any,
) -> list[np.ndarray]:
    """(w, moments) after a step with `before` steps before it."""
    cls = find(domain, op_type)
    assert cls is not None and issubclass(cls, Optimizer)
    names = list(cls.inputs)
    graph = Graph("step", opsets={"": 17, MS: 1, "ai.trainweb": 1})
    graph.nodes.append(Node(op_type, names, ["done"], attrs, domain, "optimizer"))
    types = {"learning_rate": ("float32", (1,)), "step": ("int64", (1,))}
    graph.inputs = [Value(n, *types[n]) if n in SCALARS else SequenceValue(n, "float32") for n in names]
    arrays = [w, g, *moments]
    sizes = [0] * N_SEGMENTS
    for segment, array in zip(SEGMENTS, arrays, strict=False):
        sizes[segment] = array.nbytes
    host = PlanHost(get_engine(reproducible=True), sizes)
    try:
        host.write_state(STATE_LEARNING_RATE, rate)
        host.write_state(STATE_STEP, before)
        for segment, array in zip(SEGMENTS, arrays, strict=False):
            host.write_segment(segment, 0, array.tobytes())
        bindings = {
            "learning_rate": Binding(STATE, 4 * STATE_LEARNING_RATE, "float32", (1,)),
            "step": Binding(STATE, 4 * STATE_STEP, "int64", (1,)),
        }
        tensors = [n for n in names if n not in SCALARS]
        sequences = {
            name: BufSequence([Buf(Storage(segment, array.nbytes, 0), "float32", array.shape)])
            for name, segment, array in zip(tensors, SEGMENTS, arrays, strict=False)
        }
        plan = compile_model(
            graph,
            {},
            [],
            bindings={n: b for n, b in bindings.items() if n in names},
            sequences=sequences,
            segment_bytes=host.sizes,
        )
        host.run(host.load(plan))
        updated = zip((PARAMETERS, *SEGMENTS[2:]), (w, *moments), strict=False)
        read = ((host.read_segment(segment, 0, x.nbytes), x.shape) for segment, x in updated)
        return [np.frombuffer(data, np.float32).reshape(shape).copy() for data, shape in read]
    finally:
        host.release()
