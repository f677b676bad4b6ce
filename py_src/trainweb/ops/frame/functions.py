"""Model-local functions of operators of ours: files with them run where such operators are not known."""

from __future__ import annotations

from trainweb.model.graph import TRAINWEB, Graph, LocalFunction, Node
from trainweb.model.writer import write_model
from trainweb.ops.frame.op import bind

FUNCTIONS_SINCE = 8
"""The IR version that brought model-local functions."""


def write_interchangeable(graph: Graph) -> bytes:
    """The model as bytes, with the bodies of the operators of ours that have some.

    ONNX Runtime writes them out in the place of their nodes; the reader does not change them. A function has one body,
    so each kind of node has its own function. Its name is the operator's with a number.
    """
    functions: dict[tuple[object, ...], LocalFunction] = {}
    nodes = []
    opset = graph.opsets.get("", graph.opsets.get("ai.onnx", 1))
    for node in graph.nodes:
        body = bind(node, graph.opsets).function(opset) if node.domain == TRAINWEB else None
        if body is None:
            nodes.append(node)
            continue
        kind = (node.op_type, *sorted(node.attrs.items()), *map(bool, node.inputs), *map(bool, node.outputs))
        function = functions.get(kind)
        if function is None:
            number = sum(f.name.startswith(f"{node.op_type}_") for f in functions.values()) + 1
            inputs, outputs = body.inputs[: len(node.inputs)], body.outputs[: len(node.outputs)]
            name, attributes = f"{node.op_type}_{number}", sorted(node.attrs)
            function = LocalFunction(name, inputs, outputs, attributes, body.nodes, {"": opset})
            functions[kind] = function
        nodes.append(Node(function.name, node.inputs, node.outputs, node.attrs, node.domain, node.name, node.notes))
    result = graph.with_nodes(nodes)
    if functions:
        result.ir_version = max(result.ir_version, FUNCTIONS_SINCE)
    return write_model(result, functions.values())
