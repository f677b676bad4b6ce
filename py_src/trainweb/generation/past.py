"""Language models that take keys and values of earlier tokens, as models of whole texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trainweb.control.operators import read_names
from trainweb.model.graph import ITEM_SIZE, MS, Graph, Node, Tensor, Value, take_name

PAST = re.compile(r"past(_key_values|_(key|value)_|[._]\d|$)")
"""Starts of names of inputs with keys and values of earlier tokens; `past_values` are those of a time series."""
ENCODED = re.compile(r"[._](encoder|cross)[._]")
"""Parts of the names of those that are of an encoder's tokens: without these a decoder does not see its source."""
PRESENT = re.compile(r"present(_key_values|_(key|value)_|[._]\d|$)")
"""Starts of names of outputs with keys and values of all tokens."""
BRANCH = "use_cache_branch"
"""Input of merged decoders: whether there are earlier tokens."""
FLAGS = (BRANCH, "num_logits_to_keep", "logits_to_keep")
"""Inputs that are 0 for the logits of a whole text."""


def without_past(graph: Graph) -> Graph:
    """The model of texts that start with the first token, without inputs and outputs for earlier ones.

    optimum and ONNX Runtime GenAI export `past_key_values.0.key` and `present.0.key`; other models stay as they are.
    """
    inputs = {v.name: v for v in graph.inputs if isinstance(v, Value)}
    outputs = [v for v in graph.outputs if not PRESENT.match(v.name)] or graph.outputs
    flags = [name for name in FLAGS if name in inputs]
    past = [name for name in inputs if PAST.match(name)]
    if not past and not flags and len(outputs) == len(graph.outputs):
        return graph
    result = graph.copy()
    result.outputs = list(outputs)
    for name in flags:
        value = inputs[name]
        result.initializers[name] = Tensor.of(name, value.dtype, (1,) * len(value.shape or ()), [0])
    if BRANCH in flags:
        result.nodes = list(_inlined(result))
    gone = {*flags, *(name for name in past if _is_emptied(result, inputs, name))}
    result.inputs = [v for v in result.inputs if v.name not in gone]
    return result


def _inlined(graph: Graph) -> Iterator[Node]:
    """The nodes, with the nodes of the branch for texts without earlier tokens."""
    for node in graph.nodes:
        if node.op_type != "If" or node.domain or node.inputs != [BRANCH]:
            yield node
            continue
        body = node.attrs["else_branch"]
        graph.initializers |= body.initializers
        yield from body.nodes
        for value, name in zip(body.outputs, node.outputs, strict=True):
            if value.name != name:
                yield Node("Identity", [value.name], [name], {}, "", name)


def _is_emptied(graph: Graph, inputs: Mapping[str, Value], name: str) -> bool:
    """Leave an input out of all nodes, or make a tensor without tokens of it; False if that is not possible."""
    empty, left_out, others = {name}, list[Node](), False
    for node in graph.nodes:
        if empty.isdisjoint((*node.inputs, *(x for body in node.bodies() for x in read_names(body)))):
            continue
        if node.domain == MS or (node.op_type == "Concat" and not node.domain and len(node.inputs) == 2):
            left_out.append(node)
        else:
            others = True
            if node.op_type == "Cast":
                empty.update(node.outputs)
    shape = _shape(inputs, name) if others else []
    if shape is None or (ENCODED.search(name) and (left_out or others)):
        return False
    for node in left_out:
        if node.domain == MS:
            node.inputs = ["" if name in empty else name for name in node.inputs]
        else:
            node.inputs = [name for name in node.inputs if name not in empty]
            node.op_type, node.attrs = "Identity", {}
    if others:
        graph.nodes[:0] = _made(graph, inputs[name], shape)
    return True


def _shape(inputs: Mapping[str, Value], name: str) -> list[int | tuple[str, int]] | None:
    """By axis a size, or the input and axis that has the same; the axis of tokens has none. None: not known."""
    places = {
        d: (v.name, k) for v in inputs.values() if not PAST.match(v.name) for k, d in enumerate(v.shape or ()) if d
    }
    shape = [d if isinstance(d, int) else places.get(d or "") for d in inputs[name].shape or ()]
    if shape.count(None) != 1:
        return None
    return [0 if d is None else d for d in shape]


def _made(graph: Graph, value: Value, shape: list[int | tuple[str, int]]) -> Iterator[Node]:
    """Nodes that make an empty tensor."""
    used, sizes = set(graph.names()), []

    def named(what: str) -> str:
        return take_name(f"{value.name}/{what}", used)

    def constant(number: int) -> str:
        name = named("size")
        graph.initializers[name] = Tensor.of(name, "int64", (1,), [number])
        return name

    for size in shape:
        if isinstance(size, int):
            sizes.append(constant(size))
            continue
        shape_name, part = named("shape"), named("size")
        yield Node("Shape", [size[0]], [shape_name], {}, "", shape_name)
        yield Node("Gather", [shape_name, constant(size[1])], [part], {"axis": 0}, "", part)
        sizes.append(part)
    joined = named("shape")
    yield Node("Concat", sizes, [joined], {"axis": 0}, "", joined)
    zero = Tensor("", value.dtype, (1,), bytes(ITEM_SIZE[value.dtype]))
    yield Node("ConstantOfShape", [joined], [value.name], {"value": zero}, "", value.name)
