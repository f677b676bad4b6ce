"""Adapters as nodes of a forward graph: y = f(x, W) + scaling * (x A^T) B^T. https://arxiv.org/abs/2106.09685

The adapter's input may be dropped out. Where magnitudes m are learned (DoRA), the columns of that are multiplied by
m / |W + scaling * B A|, whose norm is a constant for gradients.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from trainweb.errors import UnsupportedError
from trainweb.lora.config import LoraConfig
from trainweb.lora.layers import CONV, EMBEDDING, LINEAR, Layer
from trainweb.model.graph import Graph, Node, Tensor

DROPOUT_SINCE = 12
"""ai.onnx version that brought training_mode to Dropout."""
AXES_INPUT_SINCE = 18
"""ai.onnx version in which the axes of ReduceL2 became an input."""
_CONV_ATTRIBUTES = ("auto_pad", "kernel_shape", "pads", "strides")


def names_of(layer: Layer, config: LoraConfig) -> dict[str, tuple[int, ...]]:
    """The parameters of a layer's adapter, by PEFT's names, with their shapes; the order is A, B, magnitudes."""
    rank = config.rank
    if layer.kind == EMBEDDING:
        entries, width = layer.shape
        a, b = (rank, entries), (width, rank)
        return {f"{layer.module}.lora_embedding_A": a, f"{layer.module}.lora_embedding_B": b}
    out, inner, *kernel = layer.shape
    shapes: dict[str, tuple[int, ...]] = {
        "lora_A.weight": (rank, inner * layer.group, *kernel),
        "lora_B.weight": (out, rank // layer.group, *[1] * len(kernel)),
        **({"lora_magnitude_vector": (out,)} if config.use_dora else {}),
    }
    return {f"{layer.module}.{part}": shape for part, shape in shapes.items()}


def check_layer(layer: Layer, config: LoraConfig, opset: int) -> None:
    """Raise UnsupportedError where a layer cannot have such an adapter."""
    what = f"The adapter of {layer.module!r}"
    if config.dropout and opset < DROPOUT_SINCE:
        raise UnsupportedError(f"{what} needs opset {DROPOUT_SINCE} for its dropout; the model has {opset}.")
    if config.use_dora and layer.kind != LINEAR:
        raise UnsupportedError(f"{what} cannot learn magnitudes: use_dora is for products, and this is a {layer.kind}.")
    if layer.kind == CONV:
        if config.rank % layer.group:
            raise UnsupportedError(f"{what}: rank {config.rank} is no multiple of the {layer.group} groups.")
        if any(d != 1 for site in layer.sites for d in site.attrs.get("dilations", ())):
            raise UnsupportedError(f"{what}: convolutions with dilations have no adapter, as in PEFT.")


def start_values(layer: Layer, config: LoraConfig, init: str, rng: random.Random) -> list[Tensor]:
    """A and B of a new adapter, whose product is zero, drawn as PEFT draws them."""
    tensors = []
    for name, shape in names_of(layer, config).items():
        size = math.prod(shape)
        values: Sequence[float]
        if name.endswith("lora_embedding_B"):
            values = [rng.gauss(0, 1) for _ in range(size)]
        elif not name.endswith("lora_A.weight"):
            values = [0.0] * size
        elif init == "gaussian":
            values = [rng.gauss(0, 1 / config.rank) for _ in range(size)]
        else:
            bound = 1 / math.sqrt(size / config.rank)  # Kaiming's for a = sqrt(5), over the inputs of a row
            values = [rng.uniform(-bound, bound) for _ in range(size)]
        tensors.append(Tensor.of(name, "float32", shape, values))
    return tensors


def add_adapter(graph: Graph, layer: Layer, config: LoraConfig) -> list[str]:
    """Put a layer's adapter beside each of its sites in `graph`, which changes.

    Returns
    -------
    list of str
        Tensors that are constants for gradients.
    """
    emit = _Emitter(graph, layer, config)
    emit.weights()
    for index, site in enumerate(layer.sites):
        emit.site(site, index)
    return emit.stopped


class _Emitter:
    """Nodes of one layer's adapter, put before or behind the site they belong to."""

    def __init__(self, graph: Graph, layer: Layer, config: LoraConfig) -> None:
        self.graph, self.layer, self.config = graph, layer, config
        self.a, self.b, *magnitude = names_of(layer, config)
        self.magnitude = magnitude[0] if magnitude else ""
        self.scaling = self._constant("scaling", "float32", (), [config.scaling])
        self.stopped: list[str] = []
        self.columns = ""

    def weights(self) -> None:
        """What all sites share: A and B turned for products, and the factor of the columns."""
        if self.layer.kind == CONV:
            return
        before: list[Node] = []
        self.a_turned = self._node(before, "Transpose", [self.a], "lora_A.turned", perm=[1, 0])
        self.b_turned = self._node(before, "Transpose", [self.b], "lora_B.turned", perm=[1, 0])
        if self.magnitude:
            rows_first = self.layer.rows_first
            pair = [self.b, self.a] if rows_first else [self.a_turned, self.b_turned]
            product = self._node(before, "MatMul", pair, "lora_product")
            scaled = self._node(before, "Mul", [product, self.scaling], "lora_delta")
            adapted = self._node(before, "Add", [self.layer.weight, scaled], "lora_weight")
            norm = self._norm(before, adapted, 1 if rows_first else 0)
            self.stopped.append(norm)
            self.columns = self._node(before, "Div", [self.magnitude, norm], "lora_columns")
        self.graph.nodes[:0] = before

    def site(self, site: Node, index: int) -> None:
        """The adapter of one node, whose result keeps its name."""
        tag, nodes = f"{index}." if index else "", list[Node]()
        result, base = site.outputs[0], f"{site.outputs[0]}.lora_base"
        source = site.inputs[1 if self.layer.kind == EMBEDDING else 0]
        dropped = self._dropped(nodes, source, tag)
        if self.layer.kind == CONV:
            attrs = {k: site.attrs[k] for k in _CONV_ATTRIBUTES if k in site.attrs}
            low = self._node(nodes, "Conv", [dropped, self.a], f"{tag}lora_low", **attrs)
            product = self._node(nodes, "Conv", [low, self.b], f"{tag}lora_out", group=self.layer.group)
        else:
            op, pair = ("Gather", [self.a_turned, source]) if self.layer.kind == EMBEDDING else (
                "MatMul", [dropped, self.a_turned]
            )  # fmt: skip
            low = self._node(nodes, op, pair, f"{tag}lora_low")
            product = self._node(nodes, "MatMul", [low, self.b_turned], f"{tag}lora_out")
        scaled = self._node(nodes, "Mul", [product, self.scaling], f"{tag}lora_scaled")
        site.outputs[0] = base
        terms = self._with_columns(nodes, site, base, dropped, scaled, tag) if self.columns else [base, scaled]
        at = self.graph.nodes.index(site) + 1
        op = "Add" if len(terms) > 1 else "Identity"
        nodes.append(Node(op, terms, [result], {}, "", self._name(f"{tag}lora_sum")))
        self.graph.nodes[at:at] = nodes

    def _with_columns(self, nodes: list[Node], site: Node, base: str, dropped: str, scaled: str, tag: str) -> list[str]:
        """Terms of the result: columns * (f(x, W) + the adapter's part), and what bias or dropout leaves beside it."""
        plain = base
        if dropped != site.inputs[0]:
            weight, attrs = site.inputs[1], {k: v for k, v in site.attrs.items() if k == "transB"}
            plain = self._node(nodes, site.op_type, [dropped, weight], f"{tag}lora_plain", **attrs)
        elif site.op_type == "Gemm" and len(site.inputs) > 2:
            bias = site.inputs[2]
            if site.attrs.get("beta", 1.0) != 1.0:
                beta = self._constant(f"{tag}beta", "float32", (), [site.attrs["beta"]])
                bias = self._node(nodes, "Mul", [bias, beta], f"{tag}lora_bias")
            plain = self._node(nodes, "Sub", [base, bias], f"{tag}lora_plain")
        both = self._node(nodes, "Add", [plain, scaled], f"{tag}lora_both")
        stretched = self._node(nodes, "Mul", [both, self.columns], f"{tag}lora_stretched")
        if plain == base:
            return [stretched]
        return [base, self._node(nodes, "Sub", [stretched, plain], f"{tag}lora_change")]

    def _dropped(self, nodes: list[Node], source: str, tag: str) -> str:
        if not self.config.dropout or self.layer.kind == EMBEDDING:
            return source  # PEFT drops nothing out of indices either
        ratio = self._constant("dropout", "float32", (), [self.config.dropout])
        training = self._constant("training", "bool", (), [True])
        return self._node(nodes, "Dropout", [source, ratio, training], f"{tag}lora_dropped")

    def _norm(self, nodes: list[Node], weight: str, axis: int) -> str:
        if self.graph.opset("") < AXES_INPUT_SINCE:
            return self._node(nodes, "ReduceL2", [weight], "lora_norm", axes=[axis], keepdims=0)
        axes = self._constant("axes", "int64", (1,), [axis])
        return self._node(nodes, "ReduceL2", [weight, axes], "lora_norm", keepdims=0)

    def _node(self, nodes: list[Node], op: str, inputs: list[str], what: str, **attrs: object) -> str:
        name = self._name(what)
        nodes.append(Node(op, inputs, [name], dict(attrs), "", name))
        return name

    def _constant(self, what: str, dtype: str, shape: tuple[int, ...], values: list[float]) -> str:
        name = self._name(f"lora_{what}")
        self.graph.initializers[name] = Tensor.of(name, dtype, shape, values)
        return name

    def _name(self, what: str) -> str:
        return f"{self.layer.module}.{what}"
