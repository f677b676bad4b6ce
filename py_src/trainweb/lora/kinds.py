"""The kinds of nodes that an adapter fits beside: each says how its adapter is shaped, drawn, computed and merged.

An adapter is nodes of a forward graph: y = f(x, W) + scaling * (x A^T) B^T. https://arxiv.org/abs/2106.09685
Its input may be dropped out. DoRA learns magnitudes m and multiplies the columns of that by m / |W + scaling * B A|.
The norm is a constant for gradients.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from trainweb.errors import UnsupportedError
from trainweb.lora.config import LoraConfig
from trainweb.model.graph import FX_NODE, Graph, Node, Tensor
from trainweb.model.uses import WeightUse

DROPOUT_SINCE = 12
"""ai.onnx version that brought training_mode to Dropout."""
AXES_INPUT_SINCE = 18
"""ai.onnx version in which the axes of ReduceL2 became an input."""

Shape = tuple[int, ...]
_TURNS = ("transA", "transBatchA", "transBatchB")
"""Attributes of products whose adapters would have to read another matrix."""
_CONV_ATTRIBUTES = ("auto_pad", "kernel_shape", "pads", "strides")


@dataclass(slots=True)
class Layer:
    """A weight and the nodes (`sites`) that use it in the same way, in a module of the source model.

    If `rows_first`, the weight is stored as torch has it: a product's is (out, in). `shape` is (out, in) of a product,
    (out, in of a group, *kernel) of a convolution, (entries, width) of a table. `stored` has the bits of the weight and
    the operator that makes floats of them; "" for a weight in float32.
    """

    module: str
    kind: LoraKind
    weight: str
    rows_first: bool
    shape: Shape
    group: int = 1
    sites: list[Node] = field(default_factory=list)
    stored: str = ""


class LoraKind:
    """An adapter's part of one kind of node; the base class is for products.

    `weight_at` and `input_at` are inputs of the node: its weight, and what the adapter reads, too. `has_magnitudes` and
    `drops_out` say whether DoRA and dropout of the adapter's input are supported.
    """

    name = "linear"
    weight_at, input_at = 1, 0
    has_magnitudes = drops_out = True

    def find(self, use: WeightUse) -> Layer | None:
        """The layer of a node that reads a weight; its module is not known yet."""
        tensor, attrs = use.tensor, use.node.attrs
        if use.node.op_type == "MatMulNBits":
            shape = int(attrs["N"]), int(attrs["K"])
        elif len(tensor.shape) != 2 or any(attrs.get(name, 0) for name in _TURNS) or attrs.get("alpha", 1.0) != 1.0:
            return None
        else:
            shape = tensor.shape if use.rows_first else tensor.shape[::-1]
        return Layer("", self, tensor.name, use.rows_first, shape)

    def check(self, layer: Layer, config: LoraConfig) -> None:
        """Raise UnsupportedError where the layer cannot have such an adapter."""
        if config.use_dora and not self.has_magnitudes:
            raise UnsupportedError(
                f"The adapter of {layer.module!r} cannot learn magnitudes: use_dora is for products, and this is a "
                f"{self.name}."
            )
        if config.use_dora and layer.stored:
            raise UnsupportedError(
                f"The adapter of {layer.module!r} cannot learn magnitudes: use_dora needs the norms of a weight in "
                f"float32, and this one is stored in {layer.stored}."
            )

    def shape(self, layer: Layer, rank: int) -> dict[str, Shape]:
        """Shapes of A and B by the last part of PEFT's names."""
        out, inner = layer.shape
        return {"lora_A.weight": (rank, inner), "lora_B.weight": (out, rank)}

    def start(self, shape: Shape, is_b: bool, init: str, rng: random.Random) -> list[float]:
        """Values of a new A or B, as PEFT draws them: the product is zero."""
        size, rank = math.prod(shape), shape[0]
        if is_b:
            return [0.0] * size
        if init == "gaussian":
            return [rng.gauss(0, 1 / rank) for _ in range(size)]
        bound = 1 / math.sqrt(size / rank)  # Kaiming's for a = sqrt(5), over the inputs of a row
        return [rng.uniform(-bound, bound) for _ in range(size)]

    def emit(self, emitter: Emitter, nodes: list[Node], site: Node, source: str, tag: str) -> str:
        """Append nodes that compute B A of the input `source`, without the scaling; the tensor that they make."""
        low = emitter.node(nodes, "MatMul", [source, emitter.turned(emitter.a)], f"{tag}lora_low")
        return emitter.node(nodes, "MatMul", [low, emitter.turned(emitter.b)], f"{tag}lora_out")

    def merge(self, layer: Layer, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Matrices A and B whose product is the weight's change, and whether it is to be transposed for the weight."""
        return a, b, not layer.rows_first


class ConvKind(LoraKind):
    """A convolution: A is one of the same kernel, B one of 1 x 1."""

    name = "conv"
    has_magnitudes = False

    def find(self, use: WeightUse) -> Layer | None:
        tensor = use.tensor
        if len(tensor.shape) < 3:
            return None
        return Layer("", self, tensor.name, True, tensor.shape, int(use.node.attrs.get("group", 1)))

    def check(self, layer: Layer, config: LoraConfig) -> None:
        super().check(layer, config)
        what = f"The adapter of {layer.module!r}"
        if config.rank % layer.group:
            raise UnsupportedError(f"{what}: rank {config.rank} is not a multiple of the {layer.group} groups.")
        if any(d != 1 for site in layer.sites for d in site.attrs.get("dilations", ())):
            raise UnsupportedError(f"{what}: convolutions with dilations have no adapter, as in PEFT.")

    def shape(self, layer: Layer, rank: int) -> dict[str, Shape]:
        out, inner, *kernel = layer.shape
        return {
            "lora_A.weight": (rank, inner * layer.group, *kernel),
            "lora_B.weight": (out, rank // layer.group, *[1] * len(kernel)),
        }

    def emit(self, emitter: Emitter, nodes: list[Node], site: Node, source: str, tag: str) -> str:
        attrs = {k: site.attrs[k] for k in _CONV_ATTRIBUTES if k in site.attrs}
        low = emitter.node(nodes, "Conv", [source, emitter.a], f"{tag}lora_low", **attrs)
        return emitter.node(nodes, "Conv", [low, emitter.b], f"{tag}lora_out", group=emitter.layer.group)

    def merge(self, layer: Layer, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, bool]:
        if layer.group > 1:
            raise UnsupportedError(
                f"The adapter of {layer.module!r} cannot be merged: the convolution has {layer.group} groups, and the "
                "adapter reads all of its input, as in PEFT. Export the model with its adapters instead."
            )
        return _matrix(a), _matrix(b), False


class EmbeddingKind(LoraKind):
    """A table: rows of A are looked up. PEFT stores both transposed and drops nothing out of indices."""

    name = "embedding"
    weight_at, input_at = 0, 1
    has_magnitudes = drops_out = False

    def find(self, use: WeightUse) -> Layer | None:
        tensor, attrs = use.tensor, use.node.attrs
        rows, *columns = tensor.shape or (0,)
        if use.node.op_type == "GatherBlockQuantized":
            width = math.prod(columns) * (2 if tensor.dtype == "uint8" and attrs.get("bits", 4) == 4 else 1)
        elif len(columns) != 1 or use.is_turned or attrs.get("axis", 0) != 0:
            return None
        else:
            (width,) = columns
        return Layer("", self, tensor.name, True, (rows, width))

    def shape(self, layer: Layer, rank: int) -> dict[str, Shape]:
        entries, width = layer.shape
        return {"lora_embedding_A": (rank, entries), "lora_embedding_B": (width, rank)}

    def start(self, shape: Shape, is_b: bool, init: str, rng: random.Random) -> list[float]:
        return [rng.gauss(0, 1) if is_b else 0.0 for _ in range(math.prod(shape))]

    def emit(self, emitter: Emitter, nodes: list[Node], site: Node, source: str, tag: str) -> str:
        low = emitter.node(nodes, "Gather", [emitter.turned(emitter.a), source], f"{tag}lora_low")
        nodes[-1].notes = {FX_NODE: site.notes.get(FX_NODE, "")}  # a padding word has no gradient here, either
        return emitter.node(nodes, "MatMul", [low, emitter.turned(emitter.b)], f"{tag}lora_out")

    def merge(self, layer: Layer, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, bool]:
        return a, b, True


LINEAR, CONV, EMBEDDING = LoraKind(), ConvKind(), EmbeddingKind()
KINDS: dict[str, LoraKind] = {
    **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "MatMulNBits"), LINEAR),
    "Conv": CONV,
    **dict.fromkeys(("Gather", "GatherBlockQuantized"), EMBEDDING),
}
"""By operator."""


def layer_of(use: WeightUse) -> Layer | None:
    """Return the layer of a node that reads a weight, without its module; None if no adapter fits."""
    kind = KINDS.get(use.node.op_type)
    if kind is None or use.position != kind.weight_at or use.is_turned is None:
        return None
    layer = kind.find(use) if use.tensor.dtype == "float32" or use.stored else None
    if layer is not None:
        layer.stored = use.stored
    return layer


def names_of(layer: Layer, config: LoraConfig) -> dict[str, Shape]:
    """The parameters of a layer's adapter, by PEFT's names, with their shapes; the order is A, B, magnitudes."""
    shapes = layer.kind.shape(layer, config.rank)
    if config.use_dora:
        shapes["lora_magnitude_vector"] = layer.shape[:1]
    return {f"{layer.module}.{part}": shape for part, shape in shapes.items()}


def _matrix(tensor: Tensor) -> Tensor:
    rows, *others = tensor.shape
    return Tensor(tensor.name, tensor.dtype, (rows, math.prod(others)), tensor.data)


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
    """Put a layer's adapter beside each of its sites in `graph`; return tensors that are constant for gradients."""
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
        # `scaling_of` finds it by its name.
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
