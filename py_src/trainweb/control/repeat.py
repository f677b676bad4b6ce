"""Loop and Scan as a node whose body runs again and again, where writing them out would make too many nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainweb.control.expansion import Expansion, Scope
from trainweb.errors import ModelError, UnsupportedError
from trainweb.ir.dims import static
from trainweb.ir.layout import LOOP_TRIPS
from trainweb.model.graph import TRAINWEB, Graph, Node, Tensor, Value
from trainweb.ops.frame.infer import infer_outputs
from trainweb.ops.frame.op import bind

OPEN_TRIPS = LOOP_TRIPS - 1
"""Iterations at most of a loop whose end is only known at run time: there must be one more, which leaves it."""

WRITTEN_OUT_NODES = 4096
"""Most nodes of all iterations of a loop that is written out: they fuse with the nodes around them."""
REPEAT_NODES = 256
"""Weight in nodes of an inner loop that is not written out: each copy of it is compiled."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A loop: its iterations, its carried tensors, and its scanned and stacked tensors along axis 0.

    `scanned` are tensors, and whether they are read from the end; `backward` is whether rows of each output are written
    from the end. The body of a Loop has the number of the iteration and a condition in front. With `condition`, a
    scalar, the number of iterations is known only at run time. The loop runs until the condition is false, and at most
    `trips` times. `count`, the name of a tensor, may limit it, too. Without one it runs `trips` times, or `count` times
    if that is given: then sizes decide about it.
    """

    trips: int
    states: Sequence[str]
    scanned: Sequence[tuple[str, bool]]
    backward: Sequence[bool]
    is_loop: bool
    condition: str = ""
    count: str = ""


def free_names(graph: Graph) -> list[str]:
    """Return the names that a body reads from outside, each once."""
    inner_names = {*graph.names()}
    read: dict[str, None] = {}
    for node in graph.nodes:
        inner = (name for g in node.bodies() for name in free_names(g))
        read.update((name, None) for name in (*node.inputs, *inner) if name and name not in inner_names)
    read.update((value.name, None) for value in graph.outputs if value.name not in inner_names)
    return list(read)


def _n_nodes(graph: Graph, outer: Mapping[str, Tensor]) -> int:
    """Return the number of nodes that a body becomes, with each iteration of inner loops with constant trip counts."""
    constants = {**outer, **graph.initializers}
    total = 0
    for node in graph.nodes:
        value = node.attrs.get("value")
        if node.op_type == "Constant" and isinstance(value, Tensor):
            constants[node.outputs[0]] = value
        inner = sum(1 + _n_nodes(g, constants) for g in node.bodies())
        count = constants.get(node.inputs[0]) if node.op_type == "Loop" and node.inputs else None
        trips = max(0, int(count.values()[0])) if count is not None and count.size == 1 else 1
        # Beyond, it is a node itself.
        total += 1 + (inner * trips if inner * trips <= WRITTEN_OUT_NODES else REPEAT_NODES)
    return total


def is_short(x: Expansion, trips: int, body: Graph) -> bool:
    """Return whether this number of iterations is written out."""
    return trips * (1 + _n_nodes(body, x.source.initializers)) <= WRITTEN_OUT_NODES


def run_again_and_again(x: Expansion, node: Node, scope: Scope, outline: Outline) -> list[str] | None:
    """Write the loop as one node; its results, or None where it is written out instead.

    The loop is written out if it is short, holds sequences, or has a condition that is only known as it runs. It is
    also written out if its results change shape between iterations.
    """
    if outline.trips > LOOP_TRIPS or is_short(x, outline.trips, x.body(node)):
        return None
    try:
        return write_repeat(x, node, scope, outline)
    except (ModelError, UnsupportedError):
        return None


def write_repeat(x: Expansion, node: Node, scope: Scope, outline: Outline) -> list[str]:
    """Write the loop as one node; its results. Raise ModelError or UnsupportedError if that is not possible."""
    states = [*([outline.condition] if outline.condition else []), *outline.states]
    names = [*states, *(name for name, _ in outline.scanned)]
    if any(name in x.sequences for name in names):
        raise x.unsupported("it carries a sequence")
    captured = captured_tensors(x, x.body(node), scope)
    inner = _body_graph(x, x.body(node), outline, captured)
    attrs = {"body": inner, "carried": len(states), "body_opset": x.graph.opset("")}
    count = outline.count
    if outline.condition:
        attrs["trips"] = outline.trips
    else:
        count = count or x.constant("int64", (), [outline.trips])
        attrs["scanned"] = [int(back) for _, back in outline.scanned]
        attrs["stacked"] = [int(back) for back in outline.backward]
    inputs = [count, *names, *(outer for name, outer in captured.items() if name not in inner.initializers)]
    label = node.name or node.op_type
    results = [x.fresh(f"{label}/result") for _ in inner.outputs]
    op_type = "RepeatWhile" if outline.condition else "Repeat"
    repeat = Node(op_type, inputs, results, attrs, TRAINWEB, x.fresh(f"{label}/{op_type}"))
    x.graph.opsets.setdefault(TRAINWEB, 1)
    infer_outputs(bind(repeat, x.graph.opsets), {name: x.type(name) for name in inputs if name})
    x.write(repeat)
    return results[len(states) - len(outline.states) :]


def captured_tensors(x: Expansion, body: Graph, scope: Scope) -> dict[str, str]:
    """Tensors of the written graph by the names under which the body reads them."""
    captured = {name: scope.resolve(name) for name in free_names(body)}
    for name in captured.values():
        if name in x.sequences:
            raise x.unsupported(f"its body reads the sequence {name!r}")
    for tensor in body.initializers.values():
        captured[tensor.name] = x.share(id(tensor), tensor, tensor.name)
    for node in body.nodes:
        if (weight := _weight(node)) is not None:
            captured[node.outputs[0]] = x.share(id(node), weight, node.outputs[0])
    return captured


def _weight(node: Node) -> Tensor | None:
    """Return the tensor of a Constant node of a body unless it is a scalar or has integers: it may be a parameter."""
    value = node.attrs.get("value")
    if node.op_type != "Constant" or not isinstance(value, Tensor):
        return None
    return value if value.dtype.startswith("float") and value.size > 1 else None


def without_weights(body: Graph) -> list[Node]:
    """Return the nodes of a body without Constants that are tensors of the graph around it (`captured_tensors`)."""
    return [node for node in body.nodes if _weight(node) is None]


def _body_graph(x: Expansion, body: Graph, outline: Outline, captured: dict[str, str]) -> Graph:
    """The body without control flow, whose inputs are declared.

    Of a loop whose end is only known at run time its condition is carried, and is true wherever the body runs.
    """
    formal = [value.name for value in body.inputs]
    number, *rest = formal[:1] + formal[2:] if outline.is_loop else [x.fresh("iteration"), *formal]
    if len(rest) != len(outline.states) + len(outline.scanned):
        raise ModelError(f"{x.node}: its body has {len(formal)} inputs, which do not fit those of the loop.")
    inner = Graph("body", without_weights(body), opsets=dict(x.graph.opsets))
    inner.loop_iterations = x.source.loop_iterations
    inner.inputs = [Value(number, "int64", ())]
    if outline.condition:
        inner.inputs.append(Value(x.fresh("condition"), "bool", ()))
    for name, outer in zip(rest, outline.states, strict=False):
        inner.inputs.append(declared_as(x, name, outer))
    for name, (outer, _) in zip(rest[len(outline.states) :], outline.scanned, strict=True):
        value = declared_as(x, name, outer)
        inner.inputs.append(Value(name, value.dtype, (value.shape or ())[1:]))
    for name, outer in captured.items():
        t = x.type(outer)
        if t.value is not None and static(*t.value) and not t.dtype.startswith("float"):
            inner.initializers[name] = Tensor.of(name, t.dtype, t.shape, t.value)
        else:
            inner.inputs.append(declared_as(x, name, outer))
    first, *results = [v.name for v in body.outputs] if outline.is_loop else ["", *(v.name for v in body.outputs)]
    if outline.is_loop:
        inner.initializers[formal[1]] = Tensor.of(formal[1], "bool", (), [True])
    if outline.condition:
        results = results[: len(outline.states)]
    # The expansion drops results of inner loops that nobody reads: outputs of the body are read.
    inner.outputs = [Value(name, "", None) for name in (first, *results) if name]
    written = Expansion(inner, {}, x.handlers, differentiable=x.differentiable)
    graph = written.run()
    if outline.condition:
        results = [_as_scalar(written, graph, first), *results]
    elif outline.is_loop and written.value(first) is not True and written.value(first) != 1:
        raise x.unsupported("its condition is only known at run time")
    graph.outputs = [Value(name, written.type(name).dtype, None) for name in results]
    graph.value_info = {}
    return graph


def _as_scalar(x: Expansion, graph: Graph, name: str) -> str:
    """Return a body's condition as a new tensor without dimensions."""
    target, shape = x.fresh("goes_on"), Tensor.of(x.fresh("no_dimensions"), "int64", (0,), [])
    graph.initializers[shape.name] = shape
    x.inference.constant(shape)
    x.write(Node("Reshape", [name, shape.name], [target], {}, "", x.fresh("goes_on/Reshape")))
    return target


def declared_as(x: Expansion, name: str, outer: str) -> Value:
    """The declaration of a tensor of the written graph under another name."""
    declared = x.inference.value(outer)
    return Value(name, declared.dtype, declared.shape)


def with_bodies(graph: Graph) -> Graph:
    """`graph` with one iteration of each loop, and both branches, in the place of its node: it tells who reads what."""
    return graph.with_nodes(inner for node in graph.nodes for inner in _one_iteration(node))


def _one_iteration(node: Node) -> Iterator[Node]:
    if node.domain != TRAINWEB:
        yield node
    elif isinstance(body := node.attrs.get("body"), Graph):
        yield from _written_once(node, body, [value.name for value in body.inputs[1:]], node.outputs)
    elif isinstance(then := node.attrs.get("then_branch"), Graph):
        yield from _written_once(node, then, [value.name for value in then.inputs], node.outputs)
        other: Graph = node.attrs["else_branch"]
        yield from _written_once(
            node, other, [value.name for value in other.inputs], [name and f"{name}/else" for name in node.outputs]
        )
    else:
        yield node


def _written_once(node: Node, body: Graph, formal: Sequence[str], outputs: Sequence[str]) -> Iterator[Node]:
    names = dict(zip(formal, node.inputs[1:], strict=False))

    def renamed(edges: Sequence[str]) -> list[str]:
        return [edge and names.setdefault(edge, f"{node.name}/{edge}") for edge in edges]

    for n in body.nodes:
        yield from _one_iteration(
            Node(n.op_type, renamed(n.inputs), renamed(n.outputs), n.attrs, n.domain, f"{node.name}/{n.name}", n.notes)
        )
    for value, target in zip(body.outputs, outputs, strict=False):
        yield Node("Identity", renamed([value.name]), [target], {}, "", f"{node.name}/{target}")
