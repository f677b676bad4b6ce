"""Readers of weights: the one table of operators and input numbers, and the one walk from a weight to its readers.

Evidence, adapters, quantization and the recovery of parameters ask it. How kernels read a weight is no concern of a
graph: the compiler's pass `read_packed` decides that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from trainweb.model.graph import ITEM_SIZE, MS, Graph, Node, Tensor

WEIGHT, BIAS, NORM, EMBEDDING = "weight of a product", "bias", "scale or bias of a norm", "embedding table"
STATISTICS, SCORES = "running statistics", "added to attention scores"
BOUND = "a bound that activations are clipped to"
SCALE = "the scale of numbers in fewer bits, which a quantizer chose"
ROTATION = "cosines or sines of a rotary embedding"

_ROLES = {
    "MatMul": {0: WEIGHT, 1: WEIGHT},
    "Gemm": {0: WEIGHT, 1: WEIGHT, 2: BIAS},
    "FusedGemm": {0: WEIGHT, 1: WEIGHT, 2: BIAS},
    "Einsum": {0: WEIGHT, 1: WEIGHT, 2: WEIGHT},
    "Conv": {1: WEIGHT, 2: BIAS},
    "ConvTranspose": {1: WEIGHT, 2: BIAS},
    "CausalConvWithState": {1: WEIGHT, 2: BIAS},
    "DeformConv": {1: WEIGHT, 3: BIAS},
    "LSTM": {1: WEIGHT, 2: WEIGHT, 3: BIAS, 7: WEIGHT},
    "GRU": {1: WEIGHT, 2: WEIGHT, 3: BIAS},
    "RNN": {1: WEIGHT, 2: WEIGHT, 3: BIAS},
    "Gather": {0: EMBEDDING},
    "Clip": {1: BOUND, 2: BOUND},
    "QuantizeLinear": {1: SCALE},
    "DequantizeLinear": {1: SCALE},
    "PRelu": {1: NORM},
    "BatchNormalization": {1: NORM, 2: NORM, 3: STATISTICS, 4: STATISTICS},
    **{f"{kind}Normalization": {1: NORM, 2: NORM} for kind in ("Layer", "Instance", "Group", "RMS", "SimplifiedLayer")},
    "SkipLayerNormalization": {2: NORM, 3: NORM, 4: BIAS},
    "SkipSimplifiedLayerNormalization": {2: NORM, 3: BIAS},
    "FusedConv": {1: WEIGHT, 2: BIAS},
    "FusedMatMul": {0: WEIGHT, 1: WEIGHT},
    "Attention": {3: SCORES},
    "MultiHeadAttention": {3: BIAS, 5: SCORES},
    "GroupQueryAttention": {10: SCORES},
    "RotaryEmbedding": {1: ROTATION, 2: ROTATION},
    "BiasGelu": {1: BIAS},
    "FastGelu": {1: BIAS},
    "EmbedLayerNormalization": {2: EMBEDDING, 3: EMBEDDING, 4: EMBEDDING, 5: NORM, 6: NORM},
    "MatMulNBits": {1: WEIGHT, 5: BIAS},
    "GatherBlockQuantized": {0: EMBEDDING},
}
"""Use of an operator's input, by position."""
_ROLES_OF_MICROSOFT = {
    "Attention": {1: WEIGHT, 2: BIAS, 5: SCORES},
    "RotaryEmbedding": {2: ROTATION, 3: ROTATION},
}
"""Operators whose inputs have another order than those of the same name in ai.onnx; the others are alike."""
CONVOLUTIONS = {"Conv", "ConvTranspose", "FusedConv"}
PRODUCTS = {"MatMul", "Gemm", "FusedGemm", "Einsum", "FusedMatMul"} | CONVOLUTIONS
MOVES_OF_ONE = {"Transpose", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Cast", "Slice", "Expand"}
MOVES = MOVES_OF_ONE | {"Split", "Concat"}
"""A moved tensor keeps its meaning."""
UNPACK = "DequantizeLinear"
"""The operator that makes floats of a quantized weight."""
PATHS = {"Transpose", "Identity", "Reshape", UNPACK}
"""Nodes that may stand between a whole matrix and the node that uses it."""
NBITS = ("MatMulNBits", "GatherBlockQuantized")
"""Operators of com.microsoft that make floats of a quantized weight themselves."""
LEAST_ELEMENTS = 4096
"""Matrices of fewer elements are float32 in memory and in quantized files: they take no room worth unpacking."""
BITS = {"int4": 4, "uint4": 4} | {name: 8 * size for name, size in ITEM_SIZE.items()}
"""By the dtype of a weight."""


def role_at(node: Node, position: int) -> str:
    """Return the role of a node's input, "" where the operator alone does not say."""
    roles = _ROLES_OF_MICROSOFT.get(node.op_type) if node.domain == MS else None
    return (roles or _ROLES.get(node.op_type, {})).get(position, "")


def positions(op_type: str, role: str) -> tuple[int, ...]:
    """Return the inputs of an operator that have a role."""
    return tuple(position for position, known in _ROLES[op_type].items() if known == role)


@dataclass(frozen=True, slots=True)
class WeightUse:
    """A node's read of a weight: its input `position`, the tensor `edge`, which may be what nodes made of the weight.

    `is_turned` is True if the reader gets the transpose of the matrix, None if it gets another part. `stored` has the
    bits of the weight and the operator that makes floats of them; "" for a weight in float32.
    """

    tensor: Tensor
    node: Node
    position: int
    edge: str
    is_turned: bool | None = False
    stored: str = ""

    @property
    def rows_first(self) -> bool:
        """True if a product's weight is stored as torch has it, (out, in), and not transposed."""
        is_transposed = self.node.op_type in NBITS or bool(self.node.attrs.get("transB", 0))
        return is_transposed != bool(self.is_turned)

    def moved(self) -> tuple[Tensor, bool | None, str]:
        """Return the weight, `is_turned` and `stored` of what the node makes, which only moves the weight."""
        tensor, node, is_turned, stored = self.tensor, self.node, self.is_turned, self.stored
        if node.op_type == UNPACK:
            stored = f"{BITS[tensor.dtype]} bits, {UNPACK}"
        elif node.op_type == "Transpose" and is_turned is not None and len(tensor.shape) == 2:
            is_turned = not is_turned if node.attrs.get("perm", [1, 0]) == [1, 0] else None
        elif node.op_type != "Identity" and not (node.op_type == "Reshape" and tensor.dtype == "uint8"):
            is_turned = None  # only rows of a quantized table are put together from their blocks
        return tensor, is_turned, stored


def weight_uses(
    graph: Graph, tensors: Mapping[str, Tensor] | None = None, through: Collection[str] = PATHS
) -> Iterator[WeightUse]:
    """Yield the reads of weights in the order of the nodes.

    Weights are the graph's initializers, or `tensors`. Operators in `through` only move them.
    """
    weights = graph.initializers if tensors is None else tensors
    ways: dict[str, dict[str, tuple[Tensor, bool | None, str]]]
    ways = {name: {name: (tensor, False, "")} for name, tensor in weights.items()}
    for node in graph.nodes:
        stored_as = f"{node.attrs.get('bits', 4)} bits, {node.op_type}" if node.op_type in NBITS else ""
        for position, edge in enumerate(node.inputs):
            is_between = node.op_type in through and (position == 0 or node.op_type == "Concat")
            for name, (tensor, is_turned, stored) in ways.get(edge, {}).items():
                use = WeightUse(tensor, node, position, edge, is_turned, stored or stored_as)
                if not is_between:
                    yield use
                for output in node.outputs if is_between else ():
                    ways.setdefault(output, {}).setdefault(name, use.moved())
