"""If as one node that waits for its condition: feeds or sizes decide it, and its branches differ in sizes."""

from __future__ import annotations

from collections.abc import Mapping

from trainweb.control.expansion import Expansion, Scope
from trainweb.control.repeat import captured_tensors, declared_as, without_weights
from trainweb.errors import ModelError
from trainweb.ir.dims import Symbol, SymbolicDim, static
from trainweb.model.graph import TRAINWEB, Graph, Node, Tensor, Value
from trainweb.ops.frame.op import Op, bind
from trainweb.ops.view import Inquiry


def is_decided(x: Expansion, name: str) -> bool:
    """Return whether each plan knows the value of a tensor of the written graph, from feeds, sizes and constants."""
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


def what_decides(x: Expansion, name: str) -> tuple[list[str], list[str]]:
    """Dimensions and inputs that decide the value of a tensor of the written graph, as `is_decided` found."""
    makers = {output: node for node in x.graph.nodes for output in node.outputs}
    pending, seen = [name], {""}
    dims: set[str] = set()
    inputs: set[str] = set()
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        value = x.type(each).value
        if each in x.decided:
            inputs.add(each)
        elif value is not None:
            atoms = (a for dim in value if isinstance(dim, SymbolicDim) for a in dim.atoms())
            dims |= {a.key for a in atoms if isinstance(a, Symbol)}
        elif each in makers:
            pending += makers[each].inputs
    fed = {key for key in dims if key in x.decided or key.partition("[")[0] in x.decided}
    return sorted(dims - fed), sorted(inputs | {key.partition("[")[0] for key in fed})


def advice(x: Expansion, name: str) -> str:
    """Advice for an error: the dims and inputs that decide a condition, and how to fix them."""
    dims, inputs = what_decides(x, name)
    ways = []
    if dims:
        ways.append(f"Give {', '.join(map(repr, dims))} a size in dims when artifacts are built")
    if inputs:
        ways.append(f"Make {', '.join(map(repr, inputs))} an initializer of the model in the place of an input")
    names = ", ".join(map(repr, [*dims, *inputs]))
    return f"{names} must be known here, for the branch depends on it. {'. '.join(ways)}"


def write_branch(x: Expansion, node: Node, scope: Scope, branches: Mapping[bool, Graph]) -> None:
    """Write If as one node. Raise ModelError or UnsupportedError if that is not possible."""
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
    bodies: dict[bool, Graph] = {}
    refused: list[ModelError] = []
    for when, body in branches.items():
        try:
            bodies[when] = _body_graph(x, rows, when, body, constants[when])
        except ModelError as error:
            # It is one where this branch is chosen.
            refused.append(error)
            bodies[when] = Graph("branch", [], opsets=dict(x.graph.opsets))
    if len(refused) > 1:
        raise refused[0]
    outputs = [name or x.fresh(f"{node.name or 'If'}/unread") for name in node.outputs]
    attrs = {"then_branch": bodies[True], "else_branch": bodies[False], "body_opset": x.graph.opset("")}
    attrs["refused"] = "".join(map(str, refused))
    x.graph.opsets.setdefault(TRAINWEB, 1)
    label = x.fresh(f"{node.name or 'If'}/Branch")
    x.write(Node("Branch", [condition, *(outer for outer, _ in rows)], outputs, attrs, TRAINWEB, label))


def _body_graph(
    x: Expansion, rows: list[tuple[str, dict[bool, str]]], when: bool, body: Graph, constants: dict[str, Tensor]
) -> Graph:
    """A branch without control flow, whose inputs are declared: the inputs of both branches, under new names."""
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
