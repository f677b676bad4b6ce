"""Every operator infers over symbolic dims what it infers on ints, for any sizes of the symbols."""

import random
from zlib import crc32

from tests.ops.op_runner import Case, by_operator, cases, materialize, single_node

from trainweb.errors import TrainwebError
from trainweb.ir.shapes import TensorType
from trainweb.ir.symbols import SymbolTable
from trainweb.model.graph import Graph, Value
from trainweb.ops.frame.infer import initializer_type
from trainweb.ops.frame.op import bind
from trainweb.ops.frame.shapes import ShapeInference
from trainweb.ops.optim.operators import LinearLearningRate, SequenceOp

NAMED_BY_GRADIENT = {"AveragePoolGrad", "MaxPoolGrad"}
"""Operators that find the forward tensor by the name of its gradient: tests/ops/test_symbolic.py has them in graphs."""
DROPS_ONES = "Squeeze-1"
"""Which dims it drops is decided by which are 1: those stay ints."""
TRIES = 12
CASES = [
    c
    for c in cases()
    if not issubclass(c.cls, (SequenceOp, LinearLearningRate)) and c.cls.op_type() not in NAMED_BY_GRADIENT
]


def graphs(case: Case, shared: bool) -> tuple[Graph, dict[str, int]]:
    """The sample's graph with a symbol for each dim of its float inputs (`shared`: for each size), and the sizes."""
    arrays = materialize(case.sample.inputs, str(case), case.sample)
    constants = [
        k for k, x in enumerate(arrays) if x is not None and (x.dtype.kind != "f" or k in case.cls.static_inputs)
    ]
    outputs = case.sample.outputs or case.cls.n_outputs
    graph = single_node(case.cls, arrays, case.sample.attrs, case.opset, outputs, constants=constants)
    sizes: dict[str, int] = {}
    inputs = []
    for value in graph.inputs:
        assert isinstance(value, Value) and value.shape is not None
        names = [f"s{d}" if shared else f"{value.name}_{k}" for k, d in enumerate(value.shape)]
        least = 2 if str(case) == DROPS_ONES else 1
        kept = [d if isinstance(d, int) and d < least else n for d, n in zip(value.shape, names, strict=True)]
        sizes |= {name: int(d) for name, d in zip(names, value.shape, strict=True) if isinstance(d, int) and d}
        inputs.append(Value(value.name, value.dtype, tuple(kept)))
    graph.inputs = list(inputs)
    return graph, sizes


def on_ints(graph: Graph, shapes: dict[str, tuple[int, ...]]) -> list[TensorType]:
    """Types of the outputs by the operator alone."""
    op = bind(graph.nodes[0], graph.opsets)
    types = {name: initializer_type(t) for name, t in graph.initializers.items()}
    types |= {name: TensorType("float32", shape) for name, shape in shapes.items()}
    op.types = types
    found = op.infer(*op.complete([types[n] if n else None for n in op.node.inputs]))
    return [found] if isinstance(found, TensorType) else list(found)


@by_operator(CASES)
def test_inference_over_dims_is_that_on_ints(case: Case) -> None:
    for shared in (True, False):
        compare_inference(case, shared)


def compare_inference(case: Case, shared: bool) -> None:
    graph, sizes = graphs(case, shared)
    inference = ShapeInference(graph)
    table, draw = inference.table, random.Random(crc32(str(case).encode()))
    assignments = [sizes, *(random_sizes(table, sizes, draw) for _ in range(TRIES))]
    for number, assigned in enumerate(assignments):
        # The operator's demands on the sizes hold for the sample's sizes as they are.
        shapes = {
            v.name: tuple(table.evaluated(d, assigned) for d in inference[v.name].shape)
            for v in graph.inputs
            if isinstance(v, Value)
        }
        if number == 0:
            assert shapes == {
                n: tuple(sizes[d] if isinstance(d, str) else d for d in v) for n, v in declared(graph).items()
            }
        try:
            expected = on_ints(graph, shapes)
        except TrainwebError:
            assert number > 0, "the sample itself"
            continue
        for name, t in zip(graph.nodes[0].outputs, expected, strict=False):
            found = inference[name]
            assert found.dtype == t.dtype
            assert tuple(table.evaluated(d, assigned) for d in found.shape) == t.shape, (assigned, found, t)


def random_sizes(table: SymbolTable, sizes: dict[str, int], draw: random.Random) -> dict[str, int]:
    lows = {n: table.symbols[n].low or 1 if n in table.symbols else 1 for n in sizes}
    return {n: low + draw.randint(0, 8) for n, low in lows.items()}


def declared(graph: Graph) -> dict[str, tuple[int | str | None, ...]]:
    return {v.name: v.shape or () for v in graph.inputs if isinstance(v, Value)}
