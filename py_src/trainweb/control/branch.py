"""If as a node that waits for its condition, where feeds or sizes decide it and the sizes of its branches differ."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trainweb.control.expansion import Expansion, Scope
from trainweb.control.repeat import captured_tensors, declared_as, without_weights
from trainweb.ir.dims import static
from trainweb.model.graph import TRAINWEB, Graph, Node, Tensor, Value
from trainweb.ops.op import Op, bind
from trainweb.ops.view import Inquiry


def is_decided(x: Expansion, name: str) -> bool:
    """Whether each plan knows the value of a tensor of the written graph: feeds, sizes and constants decide it."""
    makers = {output: node for node in x.graph.nodes for output in node.outputs}
    pending, seen = [name], {""}
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in makers:
            op = bind(makers[each], x.graph.opsets)
            if isinstance(op, Inquiry):
                continue
            if not op.is_pure or type(op).evaluate is Op.evaluate:
                return False
            pending += op.node.inputs
        elif each not in x.decided and not (each in x.graph.initializers and x.type(each).value is not None):
            return False
    return True


def write_branch(x: Expansion, node: Node, scope: Scope, branches: Mapping[bool, Graph]) -> None:
    """Write If as one node.

    Raises
    ------
    ModelError, UnsupportedError
        That is not possible.
    """
    condition = x.scalar(node.inputs[0])
    rows: list[tuple[str, dict[bool, str]]] = []
    constants: dict[bool, dict[str, Tensor]] = {True: {}, False: {}}
    for when, body in branches.items():
        inner = Scope(scope, x.fresh(f"{node.name or 'If'}/{'then' if when else 'else'}/"))
        for formal, outer in captured_tensors(x, body, inner).items():
            t = x.type(outer)
            if t.value is not None and static(*t.value) and not t.dtype.startswith("float"):
                constants[when][formal] = Tensor.of(formal, t.dtype, t.shape, t.value)
                continue
            row = next((r for r in rows if r[0] == outer and when not in r[1]), None)
            if row is None:
                row = outer, {}
                rows.append(row)
            row[1][when] = formal
    make = partial(_body_graph, x, rows)
    bodies = {when: make(when, body, constants[when]) for when, body in branches.items()}
    outputs = [name or x.fresh(f"{node.name or 'If'}/unread") for name in node.outputs]
    attrs = {"then_branch": bodies[True], "else_branch": bodies[False], "body_opset": x.graph.opset("")}
    x.graph.opsets.setdefault(TRAINWEB, 1)
    label = x.fresh(f"{node.name or 'If'}/Branch")
    x.write(Node("Branch", [condition, *(outer for outer, _ in rows)], outputs, attrs, TRAINWEB, label))


def _body_graph(
    x: Expansion, rows: list[tuple[str, dict[bool, str]]], when: bool, body: Graph, constants: dict[str, Tensor]
) -> Graph:
    """A branch without control flow, whose inputs are declared: those of both, under names of its own."""
    inner = Graph("branch", without_weights(body), opsets=dict(x.graph.opsets), initializers=constants)
    inner.loop_iterations = x.source.loop_iterations
    decided = set()
    for k, (outer, formals) in enumerate(rows):
        formal = formals.get(when) or x.fresh(f"unread_{k}")
        inner.inputs.append(declared_as(x, formal, outer))
        if is_decided(x, outer):
            decided.add(formal)
    inner.outputs = [Value(value.name, value.dtype, None) for value in body.outputs]
    written = Expansion(inner, {}, x.handlers, differentiable=x.differentiable, decided=decided)
    graph = written.run()
    for node in graph.nodes:
        op = bind(node, graph.opsets)
        if op.draws or op.state_inputs:
            raise x.unsupported(f"its condition decides whether {node} runs, which draws or updates")
    graph.outputs = [Value(value.name, written.type(value.name).dtype, None) for value in body.outputs]
    graph.value_info = {}
    return graph
