"""Gradients that waited for sizes, on which the expansion of the forward node depends."""

from __future__ import annotations

from trainweb.autodiff.gradient import GRADIENT_SUFFIX, build_gradients, influences
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.ops.frame.composite import CompositeGradient, Types


def differentiate(op: CompositeGradient, types: Types, opsets: dict[str, int]) -> Graph:
    """The graph of the gradients of the forward node; it recomputes the forward values that they need.

    Its inputs are `in_0`, `in_1`, ... and `out_0_grad`, ..., with gaps where the node leaves some out; the gradients
    are `in_0_grad`, ... Compilation merges the recomputed values with the values of the forward graph.
    """
    node = op.forward()
    graph = Graph(op.of, [node], opsets=dict(opsets))
    for name, source in zip(node.inputs, op.node.inputs, strict=False):
        if not name:
            continue
        t = types[source]
        if t.value is None:
            graph.inputs.append(Value(name, t.dtype, t.shape))
        else:
            graph.initializers[name] = Tensor.of(name, t.dtype, t.shape, t.value)
    seeds = [node.outputs[k] for k in op.seeds]
    reached = influences(graph, seeds)
    wanted = [node.inputs[i] for i in op.wanted if node.inputs[i] in reached]
    result = build_gradients(graph, None, wanted, seeds=seeds)
    for i in op.wanted:
        if node.inputs[i] not in wanted:
            result.nodes += zero_gradient(node.inputs[i], types[op.node.inputs[i]], result)
    return result


def zero_gradient(name: str, t: TensorType, graph: Graph) -> list[Node]:
    """The gradient of an input that nothing depends on."""
    shape = f"{name}_shape"
    graph.initializers[shape] = Tensor.of(shape, "int64", (t.rank,), t.shape)
    value = Tensor.of("", t.dtype, (1,), [0.0])
    return [Node("ConstantOfShape", [shape], [name + GRADIENT_SUFFIX], {"value": value})]
