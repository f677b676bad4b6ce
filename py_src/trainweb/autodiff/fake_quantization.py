"""Fake quantization: QuantizeLinear and DequantizeLinear by one scale, as models are trained to be quantized.

Its gradient goes straight through where nothing was clipped, and is zero elsewhere; scale and zero point have none.
torch's exporters write `fake_quantize_per_tensor_affine` and `fake_quantize_per_channel_affine` so. They write real
quantization by torch (`quantize_per_tensor`), which has no gradient there, with Casts in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from trainweb.errors import UnsupportedError
from trainweb.model.floats import ABOUT_SHAPES
from trainweb.model.graph import TRAINWEB, Graph, Node, take_name

_DEFAULTS = {"axis": 1, "block_size": 0}
"""Attributes that say which numbers have which scale."""


ROUNDING = ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")
"""Operators of files that round activations as they run, such as `model_quantized.onnx` of transformers.js."""


def refuse_rounding(nodes: Iterable[Node]) -> None:
    """Raise UnsupportedError for a node that rounds: of its results only a scale would have a gradient."""
    node = next((n for n in nodes if n.op_type in ROUNDING and not n.domain), None)
    if node is not None:
        raise UnsupportedError(
            f"{node}: the file rounds activations to 8 bits as it runs. Such products have no gradient, and generate "
            "cannot cache them. Take a file of the model that rounds only weights, or nothing: model.onnx, "
            "model_fp16.onnx or model_q4.onnx. trainweb.quantize makes one of 8 bits.",
            op=node.op_type,
            node=node.name,
        )


def between(graph: Graph, sources: Iterable[str], results: Iterable[str], stopped: Iterable[str]) -> Iterator[Node]:
    """The nodes by which values of `sources`, not their sizes, decide `results`, the last one first."""
    reached, read, nodes = {*sources}, {*results}, list[Node]()
    for node in graph.nodes:
        if not reached.isdisjoint(node.inputs) and node.op_type not in ABOUT_SHAPES:
            reached.update({*node.outputs} - {"", *stopped})
            nodes.append(node)
    for node in reversed(nodes):
        if not read.isdisjoint(node.outputs):
            read.update(node.inputs)
            yield node


def with_straight_gradients(graph: Graph, stopped: Sequence[str]) -> tuple[Graph, list[str]]:
    """The graph with each fake quantization q of x as h + (q - h), and the tensors that no gradient goes through.

    h is x where it was not clipped and q elsewhere, so that the sum is q to the bit. The difference of two numbers that
    are at most half a step apart is exact. A graph without fake quantization is the result itself. `stopped` are
    tensors that no gradient goes through already. If the quantized tensor is among them, its gradient stops.
    """
    producers = graph.producers()
    pairs = {id(node): pair for node in graph.nodes if (pair := _quantizer(node, producers, stopped)) is not None}
    if not pairs:
        return graph, list(stopped)
    result, constants = graph.copy(), list(stopped)
    result.nodes, used = [], set(graph.names())
    result.opsets.setdefault(TRAINWEB, 1)
    for node in graph.nodes:
        quantizer = pairs.get(id(node))
        if quantizer is None:
            result.nodes.append(node)
            continue
        (x, scale), zero, (y,) = quantizer.inputs[:2], quantizer.inputs[2:3], node.outputs
        inside, q, h, step = (take_name(f"{y}/{name}", used) for name in ("unclipped", "quantized", "through", "step"))
        attrs = {name: value for name, value in quantizer.attrs.items() if name in _DEFAULTS}
        result.nodes += [
            Node(node.op_type, node.inputs, [q], node.attrs, node.domain, node.name, node.notes),
            Node("Unclipped", [x, scale, node.inputs[0], *zero], [inside], attrs, TRAINWEB, inside),
            Node("Where", [inside, x, q], [h], {}, "", h),
            Node("Sub", [q, h], [step], {}, "", step),
            Node("Add", [h, step], [y], {}, "", f"{y}/straight"),
        ]
        constants += [q, step]
    return result, constants


def _quantizer(node: Node, producers: Mapping[str, Node], stopped: Sequence[str]) -> Node | None:
    """The QuantizeLinear whose result a DequantizeLinear takes back by the same scale and zero point, if it is one."""
    if node.op_type != "DequantizeLinear" or node.domain:
        return None
    maker = producers.get(node.inputs[0])
    while maker is not None and maker.op_type == "Clip" and maker.outputs[0] not in stopped:
        maker = producers.get(maker.inputs[0])
    if maker is None or maker.op_type != "QuantizeLinear" or maker.domain or maker.outputs[0] in stopped:
        return None
    same = all(maker.attrs.get(name, value) == node.attrs.get(name, value) for name, value in _DEFAULTS.items())
    return maker if same and maker.inputs[1:] == node.inputs[1:] else None
