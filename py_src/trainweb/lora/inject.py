"""Adapters as nodes of a forward graph: y = f(x, W) + scaling * (x A^T) B^T. https://arxiv.org/abs/2106.09685

The adapter's input may be dropped out. DoRA learns magnitudes m and multiplies the columns of that by
m / |W + scaling * B A|. The norm is a constant for gradients.
"""

from __future__ import annotations

import random

from trainweb.errors import UnsupportedError
from trainweb.lora.config import LoraConfig
from trainweb.lora.kinds import Layer, names_of
from trainweb.model.graph import Graph, Node, Tensor

DROPOUT_SINCE = 12
"""ai.onnx version that brought training_mode to Dropout."""
AXES_INPUT_SINCE = 18
"""ai.onnx version in which the axes of ReduceL2 became an input."""


def check_layer(layer: Layer, config: LoraConfig, opset: int) -> None:
    """Raise UnsupportedError where a layer cannot have such an adapter."""
    if config.dropout and opset < DROPOUT_SINCE:
        raise UnsupportedError(
            f"The adapter of {layer.module!r} needs opset {DROPOUT_SINCE} for its dropout; the model has {opset}."
        )
    layer.kind.check(layer, config)


def start_values(layer: Layer, config: LoraConfig, init: str, rng: random.Random) -> list[Tensor]:
    """A and B of a new adapter, whose product is zero."""
    pair = list(names_of(layer, config).items())[:2]
    return [
        Tensor.of(name, "float32", shape, layer.kind.start(shape, is_b, init, rng))
        for is_b, (name, shape) in zip((False, True), pair, strict=True)
    ]


def add_adapter(graph: Graph, layer: Layer, config: LoraConfig) -> list[str]:
    """Put a layer's adapter beside each of its sites in `graph`, which changes.

    Returns
    -------
    list of str
        Tensors that are constants for gradients.
    """
    emitter = Emitter(graph, layer, config)
    for index, site in enumerate(layer.sites):
        emitter.site(site, index)
    emitter.finish()
    return emitter.stopped


class Emitter:
    """Nodes of one layer's adapter, put before or behind the site they belong to."""

    def __init__(self, graph: Graph, layer: Layer, config: LoraConfig) -> None:
        self.graph, self.layer, self.config = graph, layer, config
        self.a, self.b, *magnitude = names_of(layer, config)
        self.scaling = self._constant("scaling", "float32", (), [config.scaling])
        self.stopped: list[str] = []
        self._shared: list[Node] = []
        self._turned: dict[str, str] = {}
        self.columns = self._columns(magnitude[0]) if magnitude else ""

    def turned(self, name: str) -> str:
        """The transpose of A or B, which all sites share."""
        if name not in self._turned:
            what = name.removeprefix(f"{self.layer.module}.").removesuffix(".weight")
            self._turned[name] = self.node(self._shared, "Transpose", [name], f"{what}.turned", perm=[1, 0])
        return self._turned[name]

    def finish(self) -> None:
        """Put what all sites share before them."""
        self.graph.nodes[:0] = self._shared

    def site(self, site: Node, index: int) -> None:
        """The adapter of one node, whose result keeps its name."""
        tag, nodes, kind = f"{index}." if index else "", list[Node](), self.layer.kind
        result, base = site.outputs[0], f"{site.outputs[0]}.lora_base"
        source = site.inputs[kind.input_at]
        dropped = self._dropped(nodes, source, tag) if kind.drops_out and self.config.dropout else source
        product = kind.emit(self, nodes, site, dropped, tag)
        scaled = self.node(nodes, "Mul", [product, self.scaling], f"{tag}lora_scaled")
        site.outputs[0] = base
        terms = self._with_columns(nodes, site, base, dropped, scaled, tag) if self.columns else [base, scaled]
        at = self.graph.nodes.index(site) + 1
        op = "Add" if len(terms) > 1 else "Identity"
        nodes.append(Node(op, terms, [result], {}, "", self._name(f"{tag}lora_sum")))
        self.graph.nodes[at:at] = nodes

    def _columns(self, magnitude: str) -> str:
        """The factor of the columns: their magnitude by their norm, which is a constant for gradients."""
        rows_first = self.layer.rows_first
        pair = [self.b, self.a] if rows_first else [self.turned(self.a), self.turned(self.b)]
        product = self.node(self._shared, "MatMul", pair, "lora_product")
        scaled = self.node(self._shared, "Mul", [product, self.scaling], "lora_delta")
        adapted = self.node(self._shared, "Add", [self.layer.weight, scaled], "lora_weight")
        norm = self._norm(self._shared, adapted, 1 if rows_first else 0)
        self.stopped.append(norm)
        return self.node(self._shared, "Div", [magnitude, norm], "lora_columns")

    def _with_columns(self, nodes: list[Node], site: Node, base: str, dropped: str, scaled: str, tag: str) -> list[str]:
        """Terms of the result: columns * (f(x, W) + the adapter's part), and what bias or dropout leaves beside it."""
        plain = base
        if dropped != site.inputs[0]:
            weight, attrs = site.inputs[1], {k: v for k, v in site.attrs.items() if k == "transB"}
            plain = self.node(nodes, site.op_type, [dropped, weight], f"{tag}lora_plain", **attrs)
            nodes[-1].domain = site.domain
        elif site.op_type == "Gemm" and len(site.inputs) > 2:
            bias = site.inputs[2]
            if site.attrs.get("beta", 1.0) != 1.0:
                beta = self._constant(f"{tag}beta", "float32", (), [site.attrs["beta"]])
                bias = self.node(nodes, "Mul", [bias, beta], f"{tag}lora_bias")
            plain = self.node(nodes, "Sub", [base, bias], f"{tag}lora_plain")
        both = self.node(nodes, "Add", [plain, scaled], f"{tag}lora_both")
        stretched = self.node(nodes, "Mul", [both, self.columns], f"{tag}lora_stretched")
        if plain == base:
            return [stretched]
        return [base, self.node(nodes, "Sub", [stretched, plain], f"{tag}lora_change")]

    def _dropped(self, nodes: list[Node], source: str, tag: str) -> str:
        ratio = self._constant("dropout", "float32", (), [self.config.dropout])
        training = self._constant("training", "bool", (), [True])
        return self.node(nodes, "Dropout", [source, ratio, training], f"{tag}lora_dropped")

    def _norm(self, nodes: list[Node], weight: str, axis: int) -> str:
        if self.graph.opset("") < AXES_INPUT_SINCE:
            return self.node(nodes, "ReduceL2", [weight], "lora_norm", axes=[axis], keepdims=0)
        axes = self._constant("axes", "int64", (1,), [axis])
        return self.node(nodes, "ReduceL2", [weight, axes], "lora_norm", keepdims=0)

    def node(self, nodes: list[Node], op: str, inputs: list[str], what: str, **attrs: object) -> str:
        """Append a node; the tensor that it makes, which has the name of the module and `what`."""
        name = self._name(what)
        nodes.append(Node(op, inputs, [name], dict(attrs), "", name))
        return name

    def _constant(self, what: str, dtype: str, shape: tuple[int, ...], values: list[float]) -> str:
        name = self._name(f"lora_{what}")
        self.graph.initializers[name] = Tensor.of(name, dtype, shape, values)
        return name

    def _name(self, what: str) -> str:
        return f"{self.layer.module}.{what}"
