"""Prompt tuning: trained vectors in front of the embeddings of each text. https://arxiv.org/abs/2104.08691

The model gets n more tokens in front. Positions and masks follow, because the model derives them from the shape of the
ids. Their embeddings are the vectors, and the head leaves their rows out of the logits.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainweb.arguments import checks_keywords, instance_of
from trainweb.artifacts.evidence import module_of
from trainweb.artifacts.recover import recover_parameters
from trainweb.control import expand_control_flow, has_control_flow
from trainweb.errors import FeedError, ModelError, UnsupportedError
from trainweb.generation.incremental import COMPANIONS, FRAME, OWN, PROMPT, VECTORS, ids_of
from trainweb.generation.past import without_past
from trainweb.ir.dims import static
from trainweb.lora.adapted import AdaptedModel, Source
from trainweb.lora.adapter import Adapter
from trainweb.lora.prompt_config import PromptConfig
from trainweb.model.checks import DTYPE_CODES
from trainweb.model.floats import computed_in_float32
from trainweb.model.graph import MS, Graph, Node, Tensor, Value
from trainweb.model.reader import read_model
from trainweb.onnxblock.transforms import constants_to_initializers
from trainweb.ops.frame.op import Elementwise, bind
from trainweb.ops.frame.shapes import ShapeInference
from trainweb.settings import Ids
from trainweb.training.export import inference_graph
from trainweb.training.inference import InferenceCore

if TYPE_CHECKING:
    from trainweb.lora.config import LoraConfig

OPSET = 13
"""ai.onnx version from which Pad takes integers and bool, and Min integers."""
VIEWS = ("Cast", "Identity", "Reshape")
"""Nodes that may stand between the ids and the table."""
SIZES = ("Shape", "Size")
TABLES = {("", "Gather"), (MS, "GatherBlockQuantized")}
HEADS = {("", "MatMul"), (MS, "MatMulNBits"), (MS, "FusedMatMul")}
"""Products that may make logits of rows, by domain and name."""
SCALE = "embed_scale"
"""The last part of transformers' name of a factor of embeddings that belongs to their module."""


@checks_keywords
def inject_prompt(
    model: Any,
    tokens: int = 20,
    init: Sequence[int] | None = None,
    *,
    seed: int = 0,
    config: PromptConfig | None = None,
) -> PromptModel:
    """Put vectors to train in front of the embeddings of a causal language model.

    Parameters
    ----------
    model : bytes, path, onnx.ModelProto or Graph
        The forward model. Its inputs are ids (batch, sequence) and, if it needs them, `attention_mask`, `position_ids`
        and `token_type_ids`; its output is logits (batch, sequence, vocabulary).
    tokens : int
        Number of vectors.
    init : sequence of int, optional
        Token ids, for instance of a text: the vectors start as their embeddings. They are repeated or cut to `tokens`.
        None: normal numbers with deviation 1, as in PEFT.
    seed : int
        Of the numbers that are drawn.
    config : PromptConfig, optional
        As `Adapter.load(...).config` has it, in the place of `tokens`.

    Returns
    -------
    PromptModel

    Raises
    ------
    ModelError
        The model is malformed or no causal language model, or a setting is out of range.
    UnsupportedError
        A node computes something of the ids that has no meaning for vectors.
    """
    graph = model if isinstance(model, Graph) else read_model(model)
    graph = without_past(graph)
    base = recover_parameters(constants_to_initializers(computed_in_float32(graph)))
    if has_control_flow(base):
        base = expand_control_flow(base, differentiable=True)
    if config is None:
        config = PromptConfig(tokens)
    found = _Found(base)
    if instance_of(PromptConfig, "config", config).width not in (None, found.width):
        raise ModelError(
            f"The prompt has vectors of {config.width} numbers; the model's embeddings have {found.width}."
        )
    config = replace(config, width=found.width)
    if init is None:
        rng = random.Random(seed)
        values = [rng.gauss(0, 1) for _ in range(config.tokens * found.width)]
    else:
        Ids().check("init", init)
        values = found.embeddings([int(one) for one in init], config.tokens)
    return PromptModel(base, config, Tensor.of(PROMPT, "float32", (config.tokens, found.width), values))


class PromptModel(AdaptedModel):
    """A forward model and its trained prompt; `inject_prompt` makes it.

    Parameters
    ----------
    base : Graph
        The model without the prompt.
    config : PromptConfig
        The settings of the prompt.
    vectors : Tensor
        The vectors, as training starts from them.
    """

    config: PromptConfig

    def __init__(self, base: Graph, config: PromptConfig, vectors: Tensor) -> None:
        self.base, self.config = base, config
        self.start = {PROMPT: vectors}
        self.parameter_names = [PROMPT]
        self.graph = _Found(base).with_vectors(config.tokens)
        self.graph.initializers |= self.start

    def merged(self, source: Source | Adapter) -> Graph:
        """Make the graph that `merge` writes: it takes the same inputs, and contains the vectors.

        Parameters
        ----------
        source : TrainingSession, CheckpointState or Adapter
            Who learned.
        """
        result = self.graph.copy()
        result.initializers |= self._held(source)
        return result

    def _check_config(self, config: LoraConfig | PromptConfig) -> None:
        """The shape says all that prompts can differ in."""


class _Found:
    """The places of a graph at which vectors come in and go out.

    Raises
    ------
    ModelError, UnsupportedError
        A place was not found.
    """

    def __init__(self, base: Graph) -> None:
        try:
            self.base, self.ids = base, ids_of(base)
        except ModelError as error:
            raise ModelError(f"Prompt tuning takes a causal language model. {error}") from error
        if base.opset("") < OPSET:
            raise UnsupportedError(f"Prompt tuning needs opset {OPSET}; the model has {base.opset('')}.")
        if PROMPT in base.names():
            raise ModelError(f"The model contains a prompt, {PROMPT!r}. Start from the model without one.")
        self.types, self.consumers = ShapeInference(base), base.consumers()
        shape = self.types[self.ids].shape
        if len(shape) != 2 or static(shape[1]):
            raise ModelError(
                f"Input {self.ids!r} has the shape {self.types.value(self.ids).shape}; a prompt makes it longer. "
                "Export the model with dynamic axes for batch and sequence (dynamic_shapes of torch.onnx.export)."
            )
        self.sequence = shape[1]
        self.fed = self._fed()
        self.embedded = self._embedded()
        self.width = int(self.types[self.embedded].shape[-1])
        self.hidden = self._hidden()

    def embeddings(self, ids: Sequence[int], tokens: int) -> list[float]:
        """The embeddings of so many of the ids, which are repeated."""
        repeated = [*ids] * (-(-tokens // len(ids)))
        feed = Tensor.of(self.ids, self.types[self.ids].dtype, (1, tokens), repeated[:tokens])
        core = InferenceCore(inference_graph(self.base, [self.embedded], {}))
        try:
            return array("f", bytes(core.run({self.ids: feed})[self.embedded].data)).tolist()
        except FeedError as error:
            raise ModelError(f"'init' has an id without an embedding: {error}") from error
        finally:
            core.host.release()

    def with_vectors(self, tokens: int) -> Graph:
        """The model with an input of so many vectors, and without logits of them."""
        graph = self.base.copy()
        made = _Front(graph, self.ids, self.types.dtype(self.ids), tokens)
        longer = {self.ids: made.ids}
        for name, (kind, rank) in self.fed.items():
            if name != self.ids:
                longer[name] = made.longer(name, self.types.dtype(name), kind, rank)
        for node in graph.nodes:
            node.inputs = [longer.get(name, name) for name in node.inputs]
        graph.nodes[:0] = made.nodes
        _interpose(graph, VECTORS, "Where", [*made.vectors, self.embedded], self.embedded)
        bounds = {"start": tokens, "end": 2**63 - 1, "axis": 1}
        cut = [made.constant(what, (1,), [value]) for what, value in bounds.items()]
        _interpose(graph, FRAME, "Slice", [self.hidden, *cut], self.hidden)
        remade = {name for node in graph.nodes for name in node.outputs}
        graph.value_info = {name: value for name, value in graph.value_info.items() if name not in remade}
        return graph

    def _fed(self) -> dict[str, tuple[str, int]]:
        """The kind and the rank of each input."""
        found = {}
        for value in self.base.inputs:
            parts = [part for part in COMPANIONS if part in value.name.lower()]
            kind = "ids" if value.name == self.ids else next(iter(parts), None)
            shape = self.types[value.name].shape if isinstance(value, Value) else ()
            if kind is None or len(shape) not in (1, 2) or shape[-1] != self.sequence:
                raise ModelError(
                    f"Prompt tuning cannot make the input {value.name!r} longer. Export the model with the inputs "
                    "input_ids, and if needed attention_mask, position_ids and past_key_values.*."
                )
            found[value.name] = kind, len(shape)
        return found

    def _has_rows(self, name: str) -> bool:
        """Return whether a tensor has the shape (batch, sequence, width)."""
        shape = self.types[name].shape
        return len(shape) == 3 and shape[1] == self.sequence

    def _embedded(self) -> str:
        """The embeddings of the ids, with the factor that their module multiplies them by."""
        found, stack = list[Node](), [self.ids]
        while stack:
            name = stack.pop()
            for node in self.consumers.get(name, ()):
                of_onnx = node.op_type if not node.domain else ""
                if of_onnx in VIEWS and self.types[node.outputs[0]].shape == self.types[self.ids].shape:
                    stack.append(node.outputs[0])
                elif (node.domain, node.op_type) in TABLES and node.inputs.index(name) == 1:
                    found.append(node)
                elif of_onnx not in SIZES:
                    raise UnsupportedError(f"{node} reads the ids {self.ids!r}, and vectors of a prompt have no ids.")
        if len(found) != 1 or not self._has_rows(found[0].outputs[0]):
            nodes = " and ".join(map(str, found)) or "no node"
            raise UnsupportedError(f"Prompt tuning needs one table of embeddings, and {nodes} looks up {self.ids!r}.")
        node = found[0]
        readers = self.consumers.get(node.outputs[0], [])
        is_scaled = len(readers) == 1 and readers[0].op_type == "Mul" and not readers[0].domain
        if is_scaled and self._is_scale(node, readers[0]):
            return readers[0].outputs[0]
        return node.outputs[0]

    def _is_scale(self, table: Node, product: Node) -> bool:
        """Return whether a product with a constant belongs to the module of the table."""
        factors = [name for name in product.inputs if name in self.base.initializers]
        is_named = any(name.rpartition(".")[2] == SCALE for name in factors)
        return is_named or (bool(factors) and module_of(table) == module_of(product) != "")

    def _hidden(self) -> str:
        """The rows that the head makes logits of, or the logits, where the head was not found."""
        if len(self.base.outputs) != 1:
            names = ", ".join(value.name for value in self.base.outputs)
            raise ModelError(f"Prompt tuning needs a model whose only output is logits; this one has {names}.")
        name, made_by, varying = self.base.outputs[0].name, self.base.producers(), self._varying()
        if name not in made_by or not self._has_rows(name):
            raise UnsupportedError(
                f"{made_by.get(name, 'No node')} makes the output {name!r} of shape {self.types.value(name).shape}; "
                "prompt tuning needs logits (batch, sequence, vocabulary) of all tokens."
            )
        is_head = False
        while not is_head:
            node = made_by[name]
            sources = [one for one in node.inputs if one in varying]
            is_head = (node.domain, node.op_type) in HEADS and sources == node.inputs[:1]
            by_element = len(sources) == 1 and isinstance(bind(node, self.base.opsets), Elementwise)
            if not (is_head or by_element) or len(self.consumers[sources[0]]) > 1:
                break
            if sources[0] not in made_by or not self._has_rows(sources[0]):
                break
            name = sources[0]
        return name

    def _varying(self) -> set[str]:
        """Names of the tensors that depend on what is fed."""
        found = {value.name for value in self.base.inputs}
        for node in self.base.nodes:
            if found.intersection(node.inputs):
                found.update(node.outputs)
        return found


class _Front:
    """Nodes before all others, which make inputs longer and pick vectors."""

    def __init__(self, graph: Graph, ids: str, dtype: str, tokens: int) -> None:
        self.graph, self.tokens = graph, tokens
        self.nodes: list[Node] = []
        self.ids = self._padded(ids, dtype, 2, 0)
        zero, one = self.constant("zero", (), [0]), self.constant("one", (), [1])
        sizes = self._node("Shape", [self.ids], "sizes")
        length = self._node("Gather", [sizes, one], "length")
        self.rows = self._node("Range", [zero, length, one], "rows")
        self.is_vector = self._node("Less", [self.rows, self.constant("tokens", (), [tokens])], "is_vector")
        column = self._node("Reshape", [self.is_vector, self.constant("column", (2,), [-1, 1])], "is_vector_column")
        nearest = self._node("Min", [self.rows, self.constant("last", (), [tokens - 1])], "nearest")
        self.vectors = column, self._node("Gather", [PROMPT, nearest], "rows_of_vectors")

    def longer(self, name: str, dtype: str, kind: str, rank: int) -> str:
        """An input with the places of the vectors in front: a mask is open there, and positions count from 0."""
        if kind != "position":
            return self._padded(name, dtype, rank, int(kind == "mask"))
        count = self.constant(f"tokens_{dtype}", (), [self.tokens], dtype)
        later = self._node("Add", [name, count], f"{name}/later", FRAME)
        places = self._node("Cast", [self.rows], f"{name}/places", to=DTYPE_CODES[dtype])
        return self._node("Where", [self.is_vector, places, self._padded(later, dtype, rank, 0)], f"{name}/all", FRAME)

    def constant(self, what: str, shape: tuple[int, ...], values: Sequence[int], dtype: str = "int64") -> str:
        """Add a tensor of the graph."""
        name = f"{OWN}{what}"
        self.graph.initializers[name] = Tensor.of(name, dtype, shape, values)
        return name

    def _padded(self, name: str, dtype: str, rank: int, value: int) -> str:
        pads = self.constant(f"pads_{rank}", (2 * rank,), [*[0] * (rank - 1), self.tokens, *[0] * rank])
        return self._node("Pad", [name, pads, self.constant(f"{dtype}_{value}", (), [value], dtype)], name, FRAME)

    def _node(self, op: str, inputs: list[str], what: str, prefix: str = OWN, **attrs: object) -> str:
        """Append a node; the tensor that it makes."""
        name = f"{prefix}{what}"
        self.nodes.append(Node(op, inputs, [name], dict(attrs), "", name))
        return name


def _interpose(graph: Graph, prefix: str, op: str, inputs: list[str], name: str) -> None:
    """Put a node between the maker of the tensor `name`, one of its inputs, and the readers."""
    at, maker = next((k, node) for k, node in enumerate(graph.nodes) if name in node.outputs)
    made = f"{prefix}{name}"
    maker.outputs = [made if one == name else one for one in maker.outputs]
    graph.nodes.insert(at + 1, Node(op, [made if one == name else one for one in inputs], [name], {}, "", made))
