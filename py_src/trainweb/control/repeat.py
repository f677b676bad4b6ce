"""Loop and Scan as a node whose body runs again and again, where writing them out would make too many nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainweb.control.expansion import Expansion, Scope
from trainweb.errors import ModelError, UnsupportedError
from trainweb.ir.layout import LOOP_TRIPS
from trainweb.model.graph import TRAINWEB, Graph, Node, Tensor, Value
from trainweb.ops.infer import infer_outputs
from trainweb.ops.op import bind

WRITTEN_OUT_NODES = 4096
"""Nodes of all iterations together up to which a loop is written out: they fuse with what is around them."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A loop: its iterations, what it carries, and what it takes apart and puts together along axis 0.

    `scanned` are tensors, and whether they are read from the end; `backward` is whether rows of each output are
    written from the end. The body of a Loop has the number of the iteration and a condition in front.
    """

    trips: int
    states: Sequence[str]
    scanned: Sequence[tuple[str, bool]]
    backward: Sequence[bool]
    is_loop: bool


def free_names(graph: Graph) -> list[str]:
    """What a body reads of outside, each name once."""
    own = {*graph.names()}
    read: dict[str, None] = {}
    for node in graph.nodes:
        inner = (name for g in _subgraphs(node) for name in free_names(g))
        read.update((name, None) for name in (*node.inputs, *inner) if name and name not in own)
    read.update((value.name, None) for value in graph.outputs if value.name not in own)
    return list(read)


def _subgraphs(node: Node) -> Iterator[Graph]:
    return (value for value in node.attrs.values() if isinstance(value, Graph))


def _n_nodes(graph: Graph) -> int:
    return sum(1 + sum(map(_n_nodes, _subgraphs(node))) for node in graph.nodes)


def run_again_and_again(x: Expansion, node: Node, scope: Scope, outline: Outline) -> list[str] | None:
    """Write the loop as one node; its results, or None where it is written out instead.

    That is where it is short, where it holds other loops that are long or sequences, where what it makes has another
    shape in each iteration, and where its condition is only known as it runs.
    """
    body = x.body(node)
    if not x.may_repeat or outline.trips > LOOP_TRIPS or outline.trips * (1 + _n_nodes(body)) <= WRITTEN_OUT_NODES:
        return None
    names = [*outline.states, *(name for name, _ in outline.scanned)]
    if any(name in x.sequences for name in names):
        return None
    captured = _captured(x, body, scope)
    if captured is None:
        return None
    try:
        inner = _body_graph(x, body, outline, captured)
        if inner is None:
            return None
        attrs = {
            "body": inner,
            "trips": outline.trips,
            "carried": len(outline.states),
            "scanned": [int(back) for _, back in outline.scanned],
            "stacked": [int(back) for back in outline.backward],
            "body_opset": x.graph.opset(""),
        }
        inputs = [*names, *(outer for name, outer in captured.items() if name not in inner.initializers)]
        label = node.name or node.op_type
        made = [x.fresh(f"{label}/result") for _ in inner.outputs]
        repeat = Node("Repeat", inputs, made, attrs, TRAINWEB, x.fresh(f"{label}/Repeat"))
        x.graph.opsets.setdefault(TRAINWEB, 1)
        infer_outputs(bind(repeat, x.graph.opsets), {name: x.type(name) for name in inputs})
    except (ModelError, UnsupportedError):
        return None
    x.write(repeat)
    return made


def _captured(x: Expansion, body: Graph, scope: Scope) -> dict[str, str] | None:
    """Tensors of the written graph by the names under which the body reads them; None: a sequence is among them."""
    captured = {name: scope.resolve(name) for name in free_names(body)}
    if any(name in x.sequences for name in captured.values()):
        return None
    for tensor in body.initializers.values():
        captured[tensor.name] = x.share(id(tensor), tensor, tensor.name)
    for node in body.nodes:
        if (weight := _weight(node)) is not None:
            captured[node.outputs[0]] = x.share(id(node), weight, node.outputs[0])
    return captured


def _weight(node: Node) -> Tensor | None:
    """What a Constant node of a body holds, unless it is a number or one of integers: it may be a parameter."""
    value = node.attrs.get("value")
    if node.op_type != "Constant" or not isinstance(value, Tensor):
        return None
    return value if value.dtype.startswith("float") and value.size > 1 else None


def _body_graph(x: Expansion, body: Graph, outline: Outline, captured: dict[str, str]) -> Graph | None:
    """The body without control flow, whose inputs are declared; None: its condition is only known as it runs."""
    formal = [value.name for value in body.inputs]
    number, *rest = formal[:1] + formal[2:] if outline.is_loop else [x.fresh("iteration"), *formal]
    if len(rest) != len(outline.states) + len(outline.scanned):
        raise ModelError(f"{node_text(x)}: its body has {len(formal)} inputs, which do not fit those of the loop.")
    inner = Graph("body", [n for n in body.nodes if _weight(n) is None], opsets=dict(x.graph.opsets))
    inner.inputs = [Value(number, "int64", ())]
    for name, outer in zip(rest, outline.states, strict=False):
        inner.inputs.append(_value(x, name, outer))
    for name, (outer, _) in zip(rest[len(outline.states) :], outline.scanned, strict=True):
        value = _value(x, name, outer)
        inner.inputs.append(Value(name, value.dtype, (value.shape or ())[1:]))
    for name, outer in captured.items():
        t = x.type(outer)
        if t.value is not None and not t.dtype.startswith("float"):
            inner.initializers[name] = Tensor.of(name, t.dtype, t.shape, t.value)
        else:
            inner.inputs.append(_value(x, name, outer))
    first, *results = [v.name for v in body.outputs] if outline.is_loop else ["", *(v.name for v in body.outputs)]
    if outline.is_loop:
        inner.initializers[formal[1]] = Tensor.of(formal[1], "bool", (), [True])
    written = Expansion(inner, {}, x.handlers, differentiable=x.differentiable, may_repeat=False)
    graph = written.run()
    if any(name in written.sequences for name in results):
        return None
    if outline.is_loop and written.value(first) is not True and written.value(first) != 1:
        return None
    graph.outputs = [Value(name, written.type(name).dtype, None) for name in results]
    graph.value_info = {}
    return graph


def node_text(x: Expansion) -> str:
    """The node that is written out, for errors."""
    return str(x.node)


def _value(x: Expansion, name: str, outer: str) -> Value:
    """The declaration of a tensor of the written graph under another name."""
    declared = x.inference.value(outer)
    return Value(name, declared.dtype, declared.shape)
