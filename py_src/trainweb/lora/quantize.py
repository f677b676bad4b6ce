"""Files whose weights of products and tables have 4 or 8 bits, made of files in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainweb.arguments import checks_keywords, flag
from trainweb.artifacts.recover import recover_parameters
from trainweb.errors import ModelError
from trainweb.lora.kinds import CONV, EMBEDDING, LINEAR, Layer
from trainweb.lora.layers import find_layers
from trainweb.lora.merge import run_nodes
from trainweb.model.graph import MS, Graph, Node, Tensor, Value, take_name
from trainweb.model.reader import read_model
from trainweb.model.uses import LEAST_ELEMENTS
from trainweb.model.writer import write_model
from trainweb.onnxblock.transforms import constants_to_initializers, prune, prune_constants

if TYPE_CHECKING:
    import onnx

BLOCK_SIZES = {4: (32, 16), 8: (128, 64, 32, 16)}
"""Numbers with one scale, by their bits: the first that divides a row, else the last, which pads it."""


@checks_keywords
def quantize(
    model: bytes | str | Path | onnx.ModelProto | Graph, bits: int = 4, *, only_frozen: bool = True, weights: Any = None
) -> bytes:
    """Quantize the weights of a float32 model to 4 or 8 bits.

    Products become MatMulNBits and tables of embeddings GatherBlockQuantized, which ONNX Runtime runs, too. Blocks of
    a row have a scale and no zero point. A head that is tied to the table reads the same numbers. Convolutions, biases
    and norms stay in float32.

    Parameters
    ----------
    model : bytes, path, onnx.ModelProto or Graph
        The forward model.
    bits : {4, 8}
        Bits of a number.
    only_frozen : bool
        Keep the last product in float32, unless it is tied to a table: a head that may be trained whole.
    weights : bytes, path, or a sequence of these, optional
        Safetensors files with the weights that the model lacks, as `TrainingSession.from_model` takes them.

    Returns
    -------
    bytes
        The model as a file.

    Raises
    ------
    ModelError
        `bits` is neither 4 nor 8, no float32 weight is large enough, or `weights` belong to another model.
    """
    only_frozen = flag("only_frozen", only_frozen)
    if not isinstance(bits, int) or isinstance(bits, bool) or bits not in BLOCK_SIZES:
        raise ModelError(f"bits is {bits!r:.40}; it must be 4 or 8.")
    if isinstance(model, Graph) and weights is not None:
        raise ModelError("weights are given, but the model is a Graph, which has its weights: give them to read_model.")
    graph = model if isinstance(model, Graph) else read_model(model, weights=weights)
    graph = recover_parameters(constants_to_initializers(graph)).copy()
    by_weight: dict[str, list[Layer]] = {}
    for layer in find_layers(graph):
        if layer.kind is not CONV and not layer.stored and graph.initializers[layer.weight].size >= LEAST_ELEMENTS:
            by_weight.setdefault(layer.weight, []).append(layer)
    if only_frozen:
        _without_head(graph, by_weight)
    pairs = [pair for pair in by_weight.items() if _fits(graph, bits, pair[1])]
    if not pairs:
        raise ModelError(
            f"The model has no weight of a product or a table to quantize: one in float32 of {LEAST_ELEMENTS} elements "
            "and more that nothing else reads in another way."
        )
    for weight, layers in pairs:
        _quantize(graph, weight, layers, bits)
    graph.opsets.setdefault(MS, 1)
    return write_model(prune_constants(prune(graph)))


def _without_head(graph: Graph, by_weight: dict[str, list[Layer]]) -> None:
    """Leave out the last product, if nothing else reads its weight."""
    order = {id(node): k for k, node in enumerate(graph.nodes)}
    last = {w: max(order[id(s)] for x in layers for s in x.sites) for w, layers in by_weight.items()}
    head = max(last, key=lambda w: last[w], default=None)
    if head is not None and len(by_weight[head]) == 1:
        del by_weight[head]


def _fits(graph: Graph, bits: int, layers: Sequence[Layer]) -> bool:
    """Return whether all layers of a weight can read it as rows in blocks."""
    out, inner = layers[0].shape
    is_even = inner % _block_size(inner, bits) == 0
    alike = all(layer.rows_first == layers[0].rows_first and layer.shape == (out, inner) for layer in layers)
    return alike and (is_even or all(layer.kind is LINEAR for layer in layers))


def _block_size(width: int, bits: int) -> int:
    sizes = BLOCK_SIZES[bits]
    return next((size for size in sizes if width % size == 0), sizes[-1])


def _quantize(graph: Graph, weight: str, layers: Sequence[Layer], bits: int) -> None:
    """Let the layers of a weight read numbers of fewer bits."""
    used = set(graph.names())
    tensor, (out, inner) = graph.initializers[weight], layers[0].shape
    size = _block_size(inner, bits)
    packed, scales = packed_rows(tensor, layers[0].rows_first, bits, size)
    names = [take_name(f"{weight}_{what}", used) for what in (f"Q{bits}", "scales")]
    for name, tensor_of_bits in zip(names, (packed, scales), strict=True):
        graph.initializers[name] = tensor_of_bits.renamed(name)
    for layer in layers:
        for site in layer.sites:
            if layer.kind is EMBEDDING:
                _look_up(graph, site, names, size, bits, used)
            else:
                _multiply(graph, site, names, {"K": inner, "N": out, "bits": bits, "block_size": size}, used)


def _look_up(graph: Graph, site: Node, names: list[str], size: int, bits: int, used: set[str]) -> None:
    """Make a Gather one of the quantized table, whose rows are put together from their blocks."""
    table = f"{names[0]}_rows"
    if table not in used:
        rows, *blocks = graph.initializers[names[0]].shape
        shape = take_name(f"{table}_shape", used)
        graph.initializers[shape] = Tensor.of(shape, "int64", (2,), (rows, blocks[0] * blocks[1]))
        graph.nodes.insert(0, Node("Reshape", [names[0], shape], [take_name(table, used)], {}, "", table))
    site.inputs = [table, site.inputs[1], names[1]]
    site.op_type, site.domain = "GatherBlockQuantized", MS
    site.attrs = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}


def _multiply(graph: Graph, site: Node, names: list[str], attrs: dict[str, int], used: set[str]) -> None:
    """Make a product one with quantized rows; what Gemm adds is added after it."""
    bias, beta = (site.inputs[2:] or [""])[0], float(site.attrs.get("beta", 1.0))
    site.inputs = [site.inputs[0], *names]
    site.op_type, site.domain, site.attrs = "MatMulNBits", MS, dict(attrs)
    if not bias or beta == 0:
        return
    result, at = site.outputs[0], next(k for k, node in enumerate(graph.nodes) if node is site) + 1
    site.outputs = [take_name(f"{result}_product", used)]
    if beta != 1:
        factor, scaled = (take_name(f"{bias}_{what}", used) for what in ("beta", "scaled"))
        graph.initializers[factor] = Tensor.of(factor, "float32", (), [beta])
        graph.nodes.insert(at, Node("Mul", [bias, factor], [scaled], {}, "", scaled))
        bias, at = scaled, at + 1
    graph.nodes.insert(at, Node("Add", [site.outputs[0], bias], [result], {}, "", f"{result}_bias"))


def packed_rows(tensor: Tensor, rows_first: bool, bits: int, size: int) -> tuple[Tensor, Tensor]:
    """Numbers (N, blocks, bytes of a block) and scales (N, blocks) of a weight, computed on the kernels.

    The element of a block that is farthest from zero becomes the least number. An even count of numbers has
    one more below zero than above.
    """
    shape = tensor.shape if rows_first else tensor.shape[::-1]
    rows, width = shape
    blocks, half = -(-width // size), 1 << bits - 1
    nodes = [] if rows_first else [Node("Transpose", ["w"], ["rows"], {"perm": [1, 0]})]
    source = "w" if rows_first else "rows"
    if width % size:
        nodes.append(Node("Pad", [source, "pads"], ["padded"]))
        source = "padded"
    nodes += [
        Node("Reshape", [source, "of blocks"], ["x"]),
        Node("ReduceMax", ["x"], ["high"], {"axes": [1], "keepdims": 1}),
        Node("ReduceMin", ["x"], ["low"], {"axes": [1], "keepdims": 1}),
        Node("Neg", ["low"], ["depth"]),
        Node("Greater", ["high", "depth"], ["is high"]),
        Node("Where", ["is high", "high", "low"], ["farthest"]),
        Node("Div", ["farthest", "least"], ["scales"]),
        Node("Equal", ["scales", "zero"], ["is zero"]),
        Node("Where", ["is zero", "one", "scales"], ["step"]),
        Node("Div", ["x", "step"], ["places"]),
        Node("Round", ["places"], ["rounded"]),
        Node("Add", ["rounded", "half"], ["moved"]),
        Node("Clip", ["moved", "zero", "most"], ["numbers"]),
    ]
    last = "numbers"
    if bits == 4:
        nodes += [
            Node("Reshape", [last, "of pairs"], ["pairs"]),
            Node("MatMul", ["pairs", "places of pairs"], ["bytes"]),
        ]
        last = "bytes"
    nodes += [
        Node("Cast", [last], ["codes"], {"to": 2}),
        Node("Reshape", ["codes", "of bytes"], ["packed"]),
        Node("Reshape", ["scales", "of scales"], ["found"]),
    ]
    numbers = {"least": -half, "zero": 0, "one": 1, "half": half, "most": 2 * half - 1}
    sizes = {
        "pads": (0, 0, 0, blocks * size - width),
        "of blocks": (-1, size),
        "of pairs": (-1, 2),
        "of bytes": (rows, blocks, size * bits // 8),
        "of scales": (rows, blocks),
    }
    tensors = {"w": tensor.renamed("w"), "places of pairs": Tensor.of("", "float32", (2, 1), [1, 16])}
    tensors |= {name: Tensor.of(name, "float32", (), [value]) for name, value in numbers.items()}
    tensors |= {name: Tensor.of(name, "int64", (len(value),), value) for name, value in sizes.items()}
    outputs = [Value("packed", "uint8", None), Value("found", "float32", None)]
    results = run_nodes(nodes, tensors, outputs)
    return results["packed"], results["found"]
