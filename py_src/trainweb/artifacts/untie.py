"""Parameters and buffers that torch's dynamo exporter merged or dropped for their values, as in new modules.

Its notes tell them apart. A node has the call of torch that it was made of. The signature has the parameter or
buffer behind each argument of the calls. Copies are several arguments. A tied parameter is one.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from trainweb.artifacts.evidence import FOLDED, KIND, folded_from, is_transposed, note, notes_of, signature
from trainweb.model.calls import call_of
from trainweb.model.encoded import TELLS
from trainweb.model.graph import FX_NODE, Graph, Node, Tensor, take_name
from trainweb.model.uses import PRODUCTS
from trainweb.onnxblock.transforms import prune

_CONSTANT = re.compile(r"(new_)?(ones|zeros|full)(_like)?(_\d+)?|c_\w+|(clone_|detach_)?lift(ed|_fresh)\w*")
"""Arguments that are constants of the module's code."""
_ALIGNED = {"Gemm": re.compile("linear"), "Conv": re.compile(r"conv\w*"), "ConvTranspose": re.compile(r"conv\w*")}
"""Calls whose arguments are the inputs of the operator in the same order, as those of norms are."""
_ARGUMENTS = {"linear": {"MatMul": 1, "Add": 2}, "group_norm": {"Mul": 1, "Add": 2}, "prelu": {"PRelu": 1}}
"""Arguments that the operators read which a call becomes; the InstanceNormalization of `group_norm` reads constants."""
_BIASED = {"Gemm": re.compile("linear|addmm"), "Conv": re.compile(r"conv\w*"), "ConvTranspose": re.compile(r"conv\w*")}
"""Calls with a bias, by the operators that the exporter takes a bias of zeros from."""


def untie(graph: Graph, keep: Collection[str]) -> None:
    """Give each parameter and buffer that a call names its own tensor again; `keep` names tensors that stay."""
    merged = _Merged(graph)
    merged.split_tiles()
    replaced: set[str] = set()
    for node in list(graph.nodes):
        for position, name in enumerate(node.inputs):
            source = merged.sources.get(name)
            if source is None or (name in keep and name != source):
                continue
            target = merged.target(node, position, source)
            if target != source or name in merged.reshaped:
                node.inputs[position] = merged.tensor(node, name, target)
                replaced.add(name)
    for name in replaced.difference(graph.consumers(), prune(graph).initializers):
        del graph.initializers[name]
        graph.value_info.pop(name, None)
    if merged.restore_biases() or replaced:
        order = {name: k for k, name in enumerate(merged.kinds)}  # the module's
        place = {name: order[source] for name, source in merged.sources.items()}
        every = sorted(graph.initializers.items(), key=lambda item: place.get(item[0], len(order)))
        graph.initializers = dict(every)


def forget_calls(graph: Graph) -> None:
    """Drop the notes on calls that only this needs: artifacts would be larger by a line for each parameter."""
    for node in graph.nodes:
        call = node.notes.get(FX_NODE, "")
        # By its call a later build of an exported file knows a norm that is folded into a product.
        if not TELLS.search(call) and not (node.op_type in PRODUCTS and "batch_norm" in call):
            node.notes = {key: note for key, note in node.notes.items() if key != FX_NODE}


class _Merged:
    """The tensors of a graph, by the parameters and buffers that they stand for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        listed = signature(graph)
        self.kinds = {name: kind for kind, name in listed.values()}
        self.arguments = {argument: name for argument, (_, name) in listed.items()}
        self.used = set(graph.names())
        self.copies: dict[tuple[str, str], str] = {}
        self.sources: dict[str, str] = {}
        self.held: set[str] = set()
        readers = graph.consumers()
        self.reshaped: set[str] = set()
        """Vectors of group norms and PReLU, which the exporter reshaped."""
        for name, tensor in graph.initializers.items():
            notes = notes_of(graph, tensor)
            folded = [source for source in folded_from(notes) if source in self.kinds]
            self.held.update(folded, [name])
            if KIND in notes and name in self.kinds:
                self.sources[name] = name
            elif len(folded) == 1:
                calls = {call_of(node)[0] for node in readers.get(name, ())}
                self.reshaped.update([name] if calls and calls <= {"group_norm", "prelu"} else ())
                if is_transposed(tensor, folded_from(notes)) or name in self.reshaped:
                    self.sources[name] = folded[0]

    def target(self, node: Node, position: int, source: str) -> str:
        """The parameter or buffer that a node reads in the place of `source`; empty for a constant."""
        call, arguments = call_of(node)
        order, aligned = _ARGUMENTS.get(call, {}), _ALIGNED.get(node.op_type)
        if node.op_type.endswith("Normalization") or node.op_type in order or (aligned and aligned.fullmatch(call)):
            argument = dict(enumerate(arguments)).get(order.get(node.op_type, position), "")
            if not argument or (call == "group_norm" and node.op_type not in order):
                return "" if "norm" in call else source
            if argument in self.arguments:
                return self.arguments[argument]
        read = [self.arguments[argument] for argument in arguments if argument in self.arguments]
        if source in read:
            return source
        lost = [name for name in read if name not in self.held]
        alike = [name for name in lost if name.rpartition(".")[2] == source.rpartition(".")[2]]
        if len(lost) == 1 or len(alike) == 1:
            return (alike or lost)[0]
        return "" if not lost and any(map(_CONSTANT.fullmatch, arguments)) else source

    def tensor(self, node: Node, name: str, target: str) -> str:
        """The name of the tensor for `target`, which is a copy of the tensor `name`."""
        is_turned = name not in (self.sources[name], *self.reshaped)
        if target in self.graph.initializers and not is_turned:
            return target
        if (target, name) not in self.copies:
            tensor = self.graph.initializers[name]
            notes = {key: note for key, note in notes_of(self.graph, tensor).items() if key not in (KIND, FOLDED)}
            copy = tensor.renamed(take_name((is_turned and "val") or target or f"{name}_constant", self.used))
            if target:
                notes |= {FOLDED: f"[{target!r}]"} if is_turned else {KIND: self.kinds[target]}
            copy.notes = notes
            self.copies[target, name] = copy.name
            if name in self.reshaped:
                copy = Tensor(copy.name, copy.dtype, (tensor.size,), bytes(tensor.data), copy.notes)
                self.copies[target, name] = self._reshape(node, copy.name, tensor.shape)
            self.graph.initializers[copy.name] = copy
            note(self.graph, copy, copy.notes)
            self.sources.update({copy.name: target} if target else {})
        return self.copies[target, name]

    def split_tiles(self) -> None:
        """Let instance norms with running statistics, in evaluation mode, have a Tile for each input."""
        producers, taken = self.graph.producers(), set[str]()
        for index, node in reversed(list(enumerate(self.graph.nodes))):
            for position, name in enumerate(node.inputs) if node.op_type == "BatchNormalization" else ():
                tile = producers.get(name)
                source = self.sources.get(tile.inputs[0]) if tile and tile.op_type == "Tile" else None
                if not tile or not source:
                    continue
                if name in taken:
                    node.inputs[position] = take_name(name, self.used)
                    tile = Node("Tile", list(tile.inputs), [node.inputs[position]])
                    self.graph.nodes.insert(index, tile)
                taken.add(name)
                tile.notes = {}
                tile.inputs[0] = self.tensor(node, source, self.target(node, position, source))

    def restore_biases(self) -> bool:
        """Give products and convolutions the biases back that were dropped as zeros; returns whether any was.

        A parameter `bias` has a number for each channel, as in torch's modules. Other names are of an unknown shape.
        """
        is_changed = False
        for node in self.graph.nodes:
            call, arguments = call_of(node)
            calls = _BIASED.get(node.op_type)
            if calls is None or not calls.fullmatch(call) or len(node.inputs) != 2:
                continue
            argument = dict(enumerate(arguments)).get(0 if call == "addmm" else 2, "")
            name, weight = self.arguments.get(argument, ""), self.graph.initializers.get(node.inputs[1])
            if self.kinds.get(name) != "PARAMETER" or weight is None:
                continue
            if name not in self.graph.initializers:
                if name.rpartition(".")[2] != "bias":
                    continue
                bias = Tensor.of(name, weight.dtype, (_channels(node, weight),), (0,) * _channels(node, weight))
                self.graph.initializers[name] = bias
                note(self.graph, bias, {KIND: "PARAMETER"})
                self.sources[name] = name
            node.inputs.append(name)
            is_changed = True
        return is_changed

    def _reshape(self, node: Node, name: str, shape: tuple[int, ...]) -> str:
        """The name of `name` in another shape, by a node before all others."""
        sizes = Tensor.of(take_name(f"{name}_sizes", self.used), "int64", (len(shape),), shape)
        self.graph.initializers[sizes.name] = sizes
        output = take_name(f"{name}_reshaped", self.used)
        self.graph.nodes.insert(0, Node("Reshape", [name, sizes.name], [output], {}, "", output, node.notes))
        return output


def _channels(node: Node, weight: Tensor) -> int:
    """The number of channels of the results of a product or a convolution."""
    if node.op_type == "ConvTranspose":
        return weight.shape[1] * int(node.attrs.get("group", 1))
    return weight.shape[1 if node.op_type == "Gemm" and not node.attrs.get("transB", 0) else 0]
