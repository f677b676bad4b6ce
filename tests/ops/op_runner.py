"""Runs single operators: their samples become models, models run on the native engine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import onnx.parser
from onnx.reference import ReferenceEvaluator
from tests.each import grouped
from tests.ops.cases import Sample, cases_of, reference_of
from tests.ops.evaluator_faults import FAULTS, Fault

from trainweb.autodiff.gradient import build_gradients
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.model.writer import write_model
from trainweb.ops.frame.op import Op, bind, registry
from trainweb.ops.random import Dropout
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.inference import InferenceCore

DEFAULT_OPSET = 17
DISTANCE = 0.05
"""How far random inputs stay from a kink: much more than the step of the numerical differences."""


@dataclass(frozen=True)
class Case:
    """One sample of one operator."""

    cls: type[Op]
    number: int
    sample: Sample

    def __str__(self) -> str:
        return f"{label(self.cls)}-{self.number}"

    @property
    def opset(self) -> int:
        return self.sample.opset or (max(DEFAULT_OPSET, self.cls.versions[0]) if not self.cls.domain else DEFAULT_OPSET)

    @property
    def is_random(self) -> bool:
        """Whether output 0 is drawn at random. No sample of Dropout drops anything."""
        return self.cls.draws and self.cls is not Dropout


def label(cls: type[Op]) -> str:
    """Name with the domain before it."""
    return f"{cls.domain}.{cls.op_type()}" if cls.domain else cls.op_type()


def cases() -> Iterator[Case]:
    """All samples of all operators."""
    for cls in registry():
        for number, sample in enumerate(cases_of(cls).samples):
            yield Case(cls, number, sample)


def by_operator(samples: Iterable[Case]) -> Callable[[Callable[[Case], None]], Callable[..., None]]:
    """Make a test of a check of one sample: parametrized by operator, its failure names the samples."""
    return grouped(samples, lambda case: label(case.cls))


def materialize(given: Sequence[Any], seed: str, sample: Sample | None = None) -> list[np.ndarray | None]:
    """Arrays of a sample: literal tensors as they are, shapes filled with normal numbers."""
    rng = np.random.default_rng(crc32(seed.encode()))
    arrays: list[np.ndarray | None] = []
    for item in given:
        if item is None:
            arrays.append(None)
        elif isinstance(item, Tensor):
            arrays.append(to_numpy(item))
        elif isinstance(item, tuple):
            x = rng.standard_normal(item)
            if sample is not None and sample.positive:
                x = np.abs(x) + 0.5
            for kink in sample.away_from if sample is not None else ():
                near = np.abs(x - kink) < DISTANCE
                x = np.where(near, kink + np.where(x < kink, -DISTANCE, DISTANCE), x)
            arrays.append(np.asarray(x, np.float32))
        else:
            arrays.append(np.asarray(item))
    return arrays


def single_node(
    cls: type[Op],
    arrays: Sequence[np.ndarray | None],
    attrs: dict[str, Any],
    opset: int,
    n_outputs: int = 1,
    *,
    constants: Sequence[int] = (),
) -> Graph:
    """A graph of one node; inputs in `constants` are initializers, the others are fed."""
    names = [f"x{k}" if x is not None else "" for k, x in enumerate(arrays)]
    outputs = [f"y{k}" for k in range(n_outputs)]
    graph = Graph("sample", opsets={"": opset, "com.microsoft": 1, "ai.trainweb": 1})
    graph.nodes.append(Node(cls.op_type(), names, outputs, dict(attrs), cls.domain, "node"))
    for k, x in enumerate(arrays):
        if x is None:
            continue
        tensor = from_numpy(names[k], x)
        if k in constants:
            graph.initializers[names[k]] = tensor
        else:
            graph.inputs.append(Value(names[k], tensor.dtype, tensor.shape))
    graph.outputs = [Value(name, "float32", None) for name in outputs]
    return graph


def run(graph: Graph, feeds: dict[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Outputs of a graph on the native engine."""
    if outputs is not None:
        graph = graph.copy()
        graph.outputs = [Value(name, "float32", None) for name in outputs]
    core = InferenceCore(graph)
    try:
        results = core.run({name: from_numpy(name, feeds[name]) for name in core.inputs})
        return {name: to_numpy(tensor).copy() for name, tensor in results.items()}
    finally:
        core.host.release()


def feeds_of(graph: Graph, arrays: Sequence[np.ndarray | None]) -> dict[str, np.ndarray]:
    return {f"x{k}": x for k, x in enumerate(arrays) if x is not None and f"x{k}" not in graph.initializers}


def bound(graph: Graph) -> Op:
    """The operator of a graph of one node."""
    return bind(graph.nodes[0], graph.opsets)


def reference(case: Case, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The results of a sample with these inputs, in float64."""
    graph = single_node(case.cls, arrays, case.sample.attrs, case.opset, case.sample.outputs or 1)
    return computed(bound(graph), arrays, FAULTS.get(str(case)))


def computed(op: Op, arrays: Sequence[np.ndarray | None], fault: Fault | None = None) -> list[np.ndarray]:
    """Results in float64: of the reference in numpy, else of ONNX's reference evaluator."""
    wide = [x.astype(np.float64) if x is not None and x.dtype == np.float32 else x for x in arrays]
    function = reference_of(type(op))
    if function is None:
        return evaluate(*alone(op, wide), fault)
    with np.errstate(all="ignore"):
        result = function(op, *wide)
    return [np.asarray(y) for y in (result if isinstance(result, tuple) else (result,))]


def alone(op: Op, arrays: Sequence[np.ndarray | None]) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of the operator's node alone, and what to feed it."""
    feeds = {name: x for name, x in zip(op.node.inputs, arrays, strict=False) if x is not None}
    tensors = [from_numpy(name, x) for name, x in feeds.items()]
    graph = Graph("alone", [op.node], [Value(t.name, t.dtype, t.shape) for t in tensors], opsets={"": op.opset})
    graph.outputs = [Value(name, "float32", None) for name in op.node.outputs if name]
    return graph, feeds


def evaluate(graph: Graph, feeds: dict[str, np.ndarray], fault: Fault | None = None) -> list[np.ndarray]:
    """Outputs of a graph by ONNX's reference evaluator; with a fault, those of the nodes in its place."""
    model = onnx.load_from_string(write_model(graph))
    if fault is not None:
        del model.graph.node[:]
        model.graph.node.extend(onnx.parser.parse_graph(f"g () => () {{ {fault.nodes} }}").node)
        if fault.opset is not None:
            (opset,) = (o for o in model.opset_import if not o.domain)
            opset.version = fault.opset
        if any(x.dtype == np.float64 for x in feeds.values()):
            _widen(model.graph)
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]


def _widen(graph: onnx.GraphProto) -> None:
    """Make float64 of the numbers that constants hold as float32."""
    for node in graph.node:
        floats = [a for a in node.attribute if a.name in ("value_float", "value_floats")]
        if node.op_type == "Constant" and floats:
            tensor = onnx.numpy_helper.from_array(np.array(list(floats[0].floats) or floats[0].f, np.float64))
            node.CopyFrom(onnx.helper.make_node("Constant", [], list(node.output), value=tensor))


def with_loss(graph: Graph, outputs: Sequence[tuple[str, np.ndarray]]) -> Graph:
    """`graph` with `loss`: the sum of the outputs weighted by arrays that are fed as `w0`, `w1`, ..."""
    graph = graph.copy()
    terms = []
    for k, (name, weights) in enumerate(outputs):
        graph.inputs.append(Value(f"w{k}", "float32", weights.shape))
        graph.nodes.append(Node("Mul", [name, f"w{k}"], [f"p{k}"], {}, "", f"M{k}"))
        graph.nodes.append(Node("ReduceSum", [f"p{k}"], [f"s{k}"], {"keepdims": 0}, "", f"S{k}"))
        terms.append(f"s{k}")
    graph.nodes.append(Node("Sum", terms, ["loss"], {}, "", "L"))
    graph.outputs = [Value("loss", "float32", ())]
    return graph


def gradients(graph: Graph, wanted: Sequence[str], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradient of `loss` for the wanted tensors, by our own backward graph on the engine."""
    extended = build_gradients(graph, "loss", list(wanted))
    results = run(extended, feeds, [f"{name}_grad" for name in wanted])
    return {name: results[f"{name}_grad"] for name in wanted}
