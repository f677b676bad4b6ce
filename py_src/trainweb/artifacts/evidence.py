"""Evidence in a file that an initializer is a parameter of the source model or a constant of its code.

ONNX has one word, initializer, for weights, buffers, causal masks and position tables. The evidence is, in this order:
the exporter's records, then names, use in the graph and values.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from trainweb.control.repeat import with_bodies
from trainweb.model import calls
from trainweb.model.calls import call_of
from trainweb.model.floats import ABOUT_SHAPES
from trainweb.model.graph import FX_NODE, SCOPES, TORCH, Graph, Node, Tensor, Value
from trainweb.model.uses import (
    BIAS,
    BOUND,
    CONVOLUTIONS,
    EMBEDDING,
    MOVES,
    NORM,
    PRODUCTS,
    ROTATION,
    SCALE,
    SCORES,
    STATISTICS,
    WEIGHT,
    WeightUse,
    role_at,
    weight_uses,
)
from trainweb.spelling import ARGUMENT

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_LISTED = re.compile(r"(\w+): (PARAMETER|BUFFER) target='([^']+)'")
PLAIN_NAMES = re.compile(r"\['[^'\\\n]*'(?:, '[^'\\\n]*')*\]")
"""A list of names in Python as nearly all are, which is cheaper to split than to parse."""

_SCRIPTED = r".*::\w*\d+|\d+|/.*_output_\d+|_?tensor_constant\d+"
_GENERATED_BY_SCRIPT = re.compile(_SCRIPTED)
"""Names that torch's TorchScript exporter gives to what had none."""
_GENERATED = re.compile(
    rf"{_SCRIPTED}|[A-Z]\w*_\d+|lifted_tensor_\d+"
    r"|(val|unsqueeze|mul|add|sub|div|cat|cos|sin|view|expand|clone|slice|full|to|triu)(_\d+)?"
    r"|(?i:.*const(ant)?s?_?(fold_opt_*)?\d*)"
)
"""Names that any exporter gives to what had none."""
_DYNAMO_NODE = "node_"
"""Start of names of nodes that torch's dynamo exporter makes."""
NATIVE = re.compile(
    r"(.*\.)?(weight|bias|(weight|bias)_[ih]h(_l\d+(_reverse)?)?|weight_hr_l\d+(_reverse)?"
    r"|in_proj_(weight|bias)|[qkv]_proj_weight|bias_[kv]|original[01]|weight_[gv])"
)
"""Names that torch's own modules give to parameters, and never to buffers."""
_COMPUTED = re.compile(r"ConstantFolding/.*")
"""Names that TensorFlow gives to what it computed from constants."""
_BEFORE_LEARNED = "applied to an input before anything learned is, as fixed filters and statistics are"
_STATISTIC = re.compile(r".*\.running_(mean|var)")
DETACH = re.compile(r"detach(_\d+)?")
"""Names that the dynamo exporter gives to results of `detach`."""
_COPY = re.compile(r"clone(_\d+)?")
"""Names that the dynamo exporter gives to constants of the code, such as `torch.tensor([1.0, 1.0])`, and to clones."""
_DETACHED = re.compile(r"%(detach(?:_\d+)?)\b")
_OF_RECURRENT = re.compile(r"(.*\.)?(weight|bias)_[ih]h_l\d+(_reverse)?")
"""Names that torch gives to parameters of recurrent layers."""
TRANSPOSED = re.compile(r"(val|t|numpy_t|mt|transpose|permute)(_\d+)?", re.IGNORECASE)
"""Names of a matrix that the exporter's optimizer computed by a transposition.

`val_1` is a Transpose that the exporter wrote itself for a linear layer. The others are torch's operators in the
module.
"""
_MERGES = re.compile(r"Identity_\d+")
"""Names of nodes by which the TorchScript exporter makes two tensors one; names of modules' nodes have a path."""
COPIED = (
    "one tensor with {}, of a module like its own, since they were equal: they are tied, unless you export with "
    "training=TrainingMode.TRAINING"
)
LEARNED_SCALAR = re.compile(r".*(temperature|scale|gate|gamma|alpha|beta|tau|lambda).*", re.IGNORECASE)

ANGLES = "angles of a sine or cosine"
ADDEND, FACTOR, OTHER = "added to activations", "multiplied with activations", "read by"
LEARNED_ROLES = (WEIGHT, BIAS, NORM, EMBEDDING)
FIXED_ROLES = {STATISTICS: "running statistics of a batch normalization", SCALE: SCALE, ROTATION: ROTATION}
"""Reasons for roles of what is never learned."""
_FUSED = {"FusedConv", "FusedMatMul", "FusedGemm"}
"""Operators that no exporter writes, but the optimizer of ONNX Runtime."""
_RECURRENT = {"LSTM", "GRU", "RNN"}
"""Operators whose bias an exporter makes of two, so that both halves learn as theirs do."""
_LINEAR = {"Add", "Sub", "Mul", "Div", "Sqrt", "Max", "Cast"}
"""Operators that center and scale an input."""
_SCALES = {"Mul", "Div", "Cast", "Reshape", "Identity", "Where", "Add", "Sub", "Clip", "Tanh"}
"""Operators between attention scores and their softmax."""
_HUGE = 1e30
_MASKED = -50.0
_SPARSE = 16
"""A weight of which one in so many is exactly zero is under a mask."""
_LOOKED_AT = 1 << 20
"""Elements up to which values of a tensor are evidence: GPT-2's mask of 1024 x 1024 has as many."""
_GRID = 1 << 12
"""Elements up to which a tensor may be a grid whatever it is for: grids are small, and weights need not be read."""
_EVEN = 4
"""Numbers of a constant that are evenly spaced by no chance, where it is added; most of those are constants."""
_STEPS = 8
"""Different numbers of a grid, whatever it is for: weights of examples by hand are smaller."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision to train a tensor or not, with its reason.

    Attributes
    ----------
    name : str
        The initializer.
    trained : bool
        True if it gets a gradient.
    reason : str
        In words.
    doubtful : bool
        The file does not settle it: the caller should.
    """

    name: str
    trained: bool
    reason: str
    doubtful: bool = False


class Evidence:
    """Evidence of a graph, with or without a loss, about its initializers; `tensors` are its constants, by name."""

    def __init__(self, graph: Graph, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        written = with_bodies(graph)
        self._consumers, self._producers = written.consumers(), written.producers()
        self._uses: dict[str, list[WeightUse]] = {}
        for use in weight_uses(written, tensors, MOVES):
            self._uses.setdefault(use.tensor.name, []).append(use)
        self._inputs = {value.name for value in graph.inputs}
        self._torch = graph.producer == TORCH
        self._is_fused = any(node.op_type in _FUSED for node in graph.nodes)
        self._advice = "export with do_constant_folding=False"
        if self._is_fused:
            self._advice = "export without ONNX Runtime's optimizer"
        self._notes = {name: value.notes for name, value in graph.value_info.items() if value.notes}
        self._listed, self._reordered = set(listed_parameters(graph)), reordered(written)
        self._recorded = _is_recorded(graph)
        self._generated = generated_names(graph)
        self._outside = read_from_outside(graph)
        self._tables = {} if self._recorded else self._rotary_tables()
        self._linear = _linear_scopes(graph.nodes)
        self._copies = {t.name: n.outputs[0] for n, t in merged(graph) if _is_sibling(t.name, n.outputs[0])}

    def decide(self, tensor: Tensor) -> Decision:
        """The decision on a float32 tensor from which the loss is reached."""
        name = tensor.name
        notes = {**self._notes.get(name, {}), **tensor.notes}
        if name in self._outside:
            reason = (
                "recorded as a parameter, but not read by its module, as where that is called under torch.no_grad(), "
                f"which no file says: then write detach() instead, or name it in {ARGUMENT.frozen_params}"
            )
            return Decision(name, True, reason, doubtful=True)
        if KIND in notes:
            return _of_kind(name, notes[KIND])
        if FOLDED in notes:
            return self._of_folded(tensor, folded_from(notes))
        if name in self._listed:
            reason = "listed as a parameter by the exporter, which merged others into it: export with optimize=False"
            return Decision(name, True, reason, doubtful=True)
        if self._recorded:
            if self._is_beside_weight(name):
                reason = "a bias of the exporter, as where it folds batch normalization: export with optimize=False"
                return Decision(name, True, reason, doubtful=True)
            return Decision(name, False, "the exporter lists it neither as a parameter nor as made from one")
        if name in self._copies:
            return Decision(name, True, COPIED.format(self._copies[name]), doubtful=True)
        if self._torch and self._is_of_frozen_norm(name):
            reason = "beside running statistics that no batch normalization reads, as those of a frozen one are"
            return Decision(name, False, reason, doubtful=not _STATISTIC.fullmatch(name))
        roles = self._roles(name)
        decision = self._by_value(tensor, roles) or self._by_name(tensor, roles)
        if self._torch and self._generated.fullmatch(name) and decision.trained and not decision.doubtful:
            first, *others = dict.fromkeys(use.node.name.rpartition("/")[0] for use in self._uses[name])
            copy = next((scope for scope in others if _is_sibling(first, scope)), None)
            if copy is not None:
                return replace(decision, reason=COPIED.format(f"the weight of {copy[1:]}"), doubtful=True)
        return decision

    def _is_beside_weight(self, name: str) -> bool:
        """Return whether it is the bias of a node whose weight is a listed parameter."""
        biased = (use.node for use in self._uses.get(name, ()) if role_at(use.node, use.position) == BIAS)
        return any(node.inputs[1] in self._listed for node in biased)

    def _is_of_frozen_norm(self, name: str) -> bool:
        """Return whether it belongs to a norm written as arithmetic with running statistics: FrozenBatchNorm2d."""
        module, _, attribute = name.rpartition(".")
        variance = f"{module}.running_var"
        if attribute not in ("weight", "bias", "running_mean", "running_var") or variance not in self._tensors:
            return False
        readers = self._consumers.get(variance, ())
        return bool(readers) and not any(node.op_type == "BatchNormalization" for node in readers)

    # What was recorded.

    def _of_folded(self, tensor: Tensor, sources: list[str]) -> Decision:
        learned = [source for source in sources if source in self._listed]
        if not learned:
            return Decision(tensor.name, False, "computed from constants by the exporter")
        parameters = ", ".join(learned)
        if tensor.name in self._reordered:
            return Decision(tensor.name, True, f"{parameters}, in the order that ONNX gives to gates")
        roles = self._roles(tensor.name)
        weight = WEIGHT in roles
        if is_transposed(tensor, sources) and weight:
            return Decision(tensor.name, True, f"{parameters}, a parameter, transposed by the exporter")
        reason = f"the exporter computed it from {parameters}, which it does not hold: export with optimize=False"
        readers = {node.op_type for node in self._consumers.get(tensor.name, ())}
        is_packed = BIAS in roles and not readers.isdisjoint(_RECURRENT)
        return Decision(tensor.name, weight or is_packed, reason, doubtful=True)

    # What values say.

    def _by_value(self, tensor: Tensor, roles: list[str]) -> Decision | None:
        name = tensor.name
        fixed = next((reason for role, reason in FIXED_ROLES.items() if role in roles), None)
        if fixed is not None:
            return Decision(name, False, fixed)
        if BOUND in roles and (not self._torch or self._generated.fullmatch(name)):
            return Decision(name, False, BOUND)
        if name in self._tables:
            return Decision(name, False, f"a table of cosines and sines, as {self._tables[name]} is its other half")
        if _is_grid(tensor):
            reason = f"{_use(roles)}, and evenly spaced numbers, as those of fixed grids are"
            return Decision(name, False, reason, doubtful=True)
        if all(role in LEARNED_ROLES for role in roles) and (not self._torch or NATIVE.fullmatch(name)):
            return None  # not worth reading every element of every weight
        if tensor.size > _LOOKED_AT or not tensor.size:
            return None
        values = _floats(tensor)
        low, high = min(values), max(values)
        if not (low > -_HUGE and high < _HUGE):
            return Decision(name, False, f"holds {low if low <= -_HUGE else high:g}: a mask, no learned number")
        if low <= _MASKED and high == 0 and set(values) == {low, high}:
            return Decision(name, False, f"holds only 0 and {low:g}: a mask")
        if FACTOR in roles and low == 0 and high == 1 and set(values) == {0, 1}:
            return Decision(name, False, "a factor that holds only 0 and 1, as masks do", doubtful=True)
        if ADDEND in roles and len(tensor.shape) == 1 and _is_even(values):
            return Decision(name, False, "evenly spaced numbers, as knots and positions are", doubtful=True)
        if ADDEND in roles and _is_sinusoidal(tensor, values):
            return Decision(name, False, "a table of sinusoidal positions")
        return None

    def _rotary_tables(self) -> dict[str, str]:
        """Pairs of tables a, b of one shape with a^2 + b^2 = 1, both factors, as they are or parts of them."""
        partners: dict[str, str] = {}
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for tensor in self._tensors.values():
            if tensor.dtype != "float32" or not 1 < tensor.size <= _LOOKED_AT:
                continue
            if not {FACTOR, EMBEDDING}.isdisjoint(self._roles(tensor.name)):
                by_shape.setdefault(tensor.shape, []).append(tensor)
        for group in by_shape.values():
            starts = {t.name: _floats(t)[:_STEPS].tolist() for t in group if len(group) > 1}
            for a, b in combinations(group, 2):
                if {a.name, b.name} <= partners.keys() or not _lie_on_circle(starts[a.name], starts[b.name]):
                    continue
                if _lie_on_circle(_floats(a), _floats(b)) and len(set(a.values())) > 1:
                    partners[a.name], partners[b.name] = b.name, a.name
        return partners

    # Evidence of names and uses.

    def _by_name(self, tensor: Tensor, roles: list[str]) -> Decision:
        name, use = tensor.name, _use(roles)
        generated = bool(self._generated.fullmatch(name))
        if not tensor.shape:
            return self._scalar(name, generated)
        if SCORES in roles:
            return Decision(name, False, "added to attention scores, as a mask or a position bias", doubtful=True)
        if ANGLES in roles and not NATIVE.fullmatch(name):
            return Decision(name, False, "frequencies or positions of sines and cosines", doubtful=True)
        if self._torch and generated and WEIGHT in roles and self._was_computed(tensor):
            reason = f"{use}, which the exporter computed from parameters that the file does not hold: {self._advice}"
            return Decision(name, True, reason, doubtful=True)
        is_learned = any(role in LEARNED_ROLES for role in roles)
        if _COMPUTED.fullmatch(name):
            return Decision(name, is_learned, f"{use}, which TensorFlow computed from constants", doubtful=True)
        if is_learned:
            if self._torch and generated and self._is_convolved(name):
                folded = (
                    "batch normalization was folded into it, as evaluation mode does; export with "
                    "training=TrainingMode.TRAINING and do_constant_folding=False"
                )
                reason = f"{use}, which the exporter computed: {self._advice if self._is_fused else folded}"
                return Decision(name, True, reason, doubtful=True)
            if not self._torch or generated or NATIVE.fullmatch(name):
                return Decision(name, True, use)
            return self._custom(name, use)
        if not self._torch and self._scales_input(name):
            return Decision(name, False, f"{use}, {_BEFORE_LEARNED}", doubtful=True)
        if generated:
            reason = f"{use}, under a name made by an exporter"
            if self._torch:
                reason += f": if it computed it from parameters, {self._advice}"
            return Decision(name, not self._torch and ("::" not in name), reason, doubtful=True)
        if not self._torch or NATIVE.fullmatch(name):
            return Decision(name, True, f"{use}, under a name of its own")
        return self._custom(name, use)

    def _is_convolved(self, name: str) -> bool:
        """Return whether a convolution reads it: nothing is transposed there, so only computed tensors lose names."""
        return any(use.node.op_type in CONVOLUTIONS and use.edge == name for use in self._uses.get(name, ()))

    def _was_computed(self, tensor: Tensor) -> bool:
        """Return whether a weight without a name may be more than a parameter that constant folding transposed.

        Gemm turns its weight round itself, so that a parameter keeps its name there. Weights of MatMul belong to linear
        layers, which add a bias or are a module of their own. Values may say otherwise: masked weights have zeros, and
        sums with their transpose are symmetric.
        """
        uses = self._consumers.get(tensor.name, ())
        if any(node.op_type == "Gemm" and node.inputs[1] == tensor.name for node in uses):
            return True
        products = [node for node in uses if node.op_type == "MatMul"]
        if len(tensor.shape) != 2 or not products:
            return False
        if not all(self._is_linear(node) for node in products):
            return True
        if not 1 < tensor.size <= _LOOKED_AT:
            return False
        values = _floats(tensor)
        zeros = sum(not value for value in values)
        return len(values) // _SPARSE < zeros < len(values) or _is_symmetric(tensor, values)

    def _is_linear(self, product: Node) -> bool:
        """Return whether a bias under torch's name is added to a product, or nothing else is in its module.

        Exporters before torch 1.13 wrote no paths of modules.
        """
        scope = product.name.rpartition("/")[0]
        if not product.name.startswith("/"):
            return True
        added = (node for node in self._consumers.get(product.outputs[0], ()) if node.op_type == "Add")
        return scope in self._linear or any(self._is_native(edge) for node in added for edge in node.inputs)

    def _scalar(self, name: str, generated: bool) -> Decision:
        if self._torch and not generated:
            return Decision(name, True, "a scalar under a name of its own: learned, or a buffer", doubtful=True)
        doubtful = not generated and bool(LEARNED_SCALAR.fullmatch(name))
        return Decision(name, False, "a scalar, as constants of formulas are", doubtful)

    def _custom(self, name: str, use: str) -> Decision:
        """An attribute of a module in a file that does not tell parameters from buffers."""
        if self._first(name):
            return Decision(name, False, f"{use}, {_BEFORE_LEARNED}", doubtful=True)
        reason = f"{use}; this export does not tell parameters from buffers"
        return Decision(name, True, reason, doubtful=True)

    def _scales_input(self, name: str) -> bool:
        """Return whether the tensor helps to center and scale an input before weights, as statistics of data do."""
        scaled = [n.outputs[0] for n in self._consumers.get(name, ()) if self._is_scaled(n.outputs[0])]
        return any(WEIGHT in self._roles(n) for n in self._ahead(scaled) if n in self._tensors)

    def _is_scaled(self, edge: str) -> bool:
        """Return whether a tensor is made of inputs and constants only by arithmetic of single elements."""
        edges, is_scaled = [edge], False
        seen = set[str]()
        while edges:
            edge = edges.pop()
            node = self._producers.get(edge)
            if node is not None and node.op_type not in _LINEAR | MOVES:
                return False
            is_scaled |= edge in self._inputs
            edges += [n for n in (node.inputs if node else ()) if n not in seen]
            seen.update(edges)
        return is_scaled

    def _first(self, name: str) -> bool:
        """Return whether the tensor meets inputs of the model before anything learned does, which comes later."""
        for node in self._consumers.get(name, ()):
            before = behind([edge for edge in node.inputs if edge != name], self._producers)
            if self._inputs.isdisjoint(before) or any(map(self._is_native, before)):
                continue
            if any(map(self._is_native, self._ahead(node.outputs))):
                return True
        return False

    def _is_native(self, edge: str) -> bool:
        return edge in self._tensors and NATIVE.fullmatch(edge) is not None

    def _ahead(self, edges: Iterable[str]) -> set[str]:
        """Return `edges`, the tensors computed from them, and the constants that are read on the way."""
        stack, seen = [edge for edge in edges if edge], set[str]()
        while stack:
            edge = stack.pop()
            if edge not in seen:
                seen.add(edge)
                for node in self._consumers.get(edge, ()):
                    seen.update(n for n in node.inputs if n in self._tensors)
                    stack += [n for n in node.outputs if n]
        return seen

    def _roles(self, name: str) -> list[str]:
        uses = self._uses.get(name, ())
        return list(dict.fromkeys(role_at(u.node, u.position) or self._role(u.node, u.edge) for u in uses))

    def _role(self, node: Node, name: str) -> str:
        """The role of a tensor whose reader does not decide it by operator and position."""
        others = [edge for edge in node.inputs if edge and edge != name]
        if node.op_type in ("Add", "Sub", "Where"):
            if any(self._are_scores(edge) for edge in others) and self._meets(node.outputs[0], {"Softmax"}, _SCALES):
                return SCORES
            rank = len(self._tensors[name].shape) if name in self._tensors else 0
            if rank == 1 and any(self._made_by_weights(edge) for edge in others):
                return BIAS
            return ADDEND if node.op_type != "Where" else f"{OTHER} {node}"
        is_turned = node.op_type in ("Mul", "MatMul") and self._meets(node.outputs[0], {"Sin", "Cos"}, {*MOVES, "Mul"})
        if node.op_type in ("Sin", "Cos") or is_turned:
            return ANGLES
        return FACTOR if node.op_type in ("Mul", "Div", "Pow") else f"{OTHER} {node}"

    def _made_by_weights(self, edge: str) -> bool:
        node = self._producers.get(edge)
        return node is not None and node.op_type in PRODUCTS and any(self._is_constant(n) for n in node.inputs)

    def _is_constant(self, edge: str) -> bool:
        while (node := self._producers.get(edge)) is not None and node.op_type in MOVES:
            edge = node.inputs[0]
        return edge in self._tensors

    def _are_scores(self, edge: str) -> bool:
        """Return whether the tensor is a scaled product of two activations."""
        while (node := self._producers.get(edge)) is not None and node.op_type in _SCALES:
            edge = next((n for n in node.inputs if n in self._producers and not self._is_constant(n)), "")
        if node is None or node.op_type not in ("MatMul", "Einsum", "FusedMatMul"):
            return False
        return not any(self._is_constant(n) for n in node.inputs if n)

    def _meets(self, edge: str, targets: set[str], through: Iterable[str]) -> bool:
        edges, stack = {edge}, [edge]
        while stack:
            for node in self._consumers.get(stack.pop(), ()):
                if node.op_type in targets:
                    return True
                if node.op_type in through and node.outputs[0] not in edges:
                    edges.add(node.outputs[0])
                    stack.append(node.outputs[0])
        return False


def behind(edges: Iterable[str], producers: Mapping[str, Node]) -> set[str]:
    """Return tensors and all that they are computed from; a size is computed from no tensor."""
    stack, seen = list(edges), set[str]()
    while stack:
        edge = stack.pop()
        if edge and edge not in seen:
            seen.add(edge)
            node = producers.get(edge)
            stack += node.inputs if node is not None and node.op_type not in ABOUT_SHAPES else ()
    return seen


def signature(graph: Graph) -> dict[str, tuple[str, str]]:
    """PARAMETER or BUFFER and its name in the source module, by argument of calls, as torch's dynamo exporter noted.

    Tied parameters have an argument each, of which calls have only one.
    """
    return {argument: (kind, name) for argument, kind, name in _LISTED.findall(graph.notes.get(SIGNATURE, ""))}


def listed_parameters(graph: Graph) -> list[str]:
    """Names of all parameters of the source module, as torch's dynamo exporter noted them; tied ones twice."""
    return calls.listed_parameters(graph.notes)


def named_by_calls(graph: Graph) -> set[str]:
    """Parameters and buffers that are arguments of the calls which nodes were made of."""
    listed = signature(graph)
    return {listed[name][1] for node in graph.nodes for name in call_of(node)[1] if name in listed} if listed else set()


def _is_recorded(graph: Graph) -> bool:
    """Return whether torch's dynamo exporter noted what is a parameter."""
    return SIGNATURE in graph.notes or any(KIND in value.notes for value in graph.value_info.values())


def untold(graph: Graph) -> str | None:
    """Describe facts that training depends on and files of this exporter lack; None if nothing is known."""
    if graph.producer != TORCH or _is_recorded(graph):
        return None
    return (
        "Files of torch's TorchScript exporter have no trace of detach, of torch.no_grad, of buffers that forward "
        "changes and of an autograd.Function's own backward. If the module has any, its gradients may differ here: "
        "export it with dynamo=True and optimize=False, or let trainweb.torch.export compare."
    )


def detached(graph: Graph) -> list[str]:
    """Results of torch's `detach`, where the dynamo exporter wrote its node (it does without its optimizer)."""
    return [
        node.outputs[0]
        for node in graph.nodes
        if node.op_type == "Identity" and DETACH.fullmatch((_names(node.notes.get(SCOPES, "")) or [""])[-1])
    ]


def lost_detaches(graph: Graph) -> list[Decision]:
    """Results of torch's `detach` that nodes were made of, and that the exporter's optimizer removed."""
    detaches = set(detached(graph))
    named = (name for node in graph.nodes for name in _DETACHED.findall(node.notes.get(FX_NODE, "")))
    reason = "a detach that the exporter's optimizer removed, so that gradients go through: export with optimize=False"
    return [Decision(name, False, reason, doubtful=True) for name in dict.fromkeys(named) if name not in detaches]


def read_from_outside(graph: Graph) -> set[str]:
    """Recorded parameters of parts of a module that only a module around it reads, as `torch.no_grad()` leaves it.

    torch.export takes what is under it for the forward of the module that says so. The parameters of a module's own
    parts are read by many, as of the projection within MultiheadAttention, and tell nothing.
    """
    readers: dict[str, set[str]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            tensor = graph.initializers.get(name)
            if tensor is not None and node.notes.get(SCOPES) and "PARAMETER" in notes_of(graph, tensor).get(KIND, ""):
                readers.setdefault(name, set()).add(module_of(node))
    outside = set()
    for name, modules in readers.items():
        owner = re.sub(r"\.\d+$", "", name.rpartition(".")[0])  # an item of a list is a part of the list's owner
        around = owner.rpartition(".")[0]
        if around and all(
            module != around and f"{around}.".startswith(f"{module}." if module else "") for module in modules
        ):
            outside.add(name)
    return outside


def merged(graph: Graph) -> list[tuple[Node, Tensor]]:
    """Names that the TorchScript exporter gives to tensors it holds under another one, by Identity nodes."""
    if graph.producer != TORCH:
        return []
    generated = generated_names(graph)
    return [
        (node, graph.initializers[node.inputs[0]])
        for node in graph.nodes
        if node.op_type == "Identity"
        and _MERGES.fullmatch(node.name)
        and node.inputs[0] in graph.initializers
        and not generated.fullmatch(node.outputs[0])
    ]


def generated_names(graph: Graph) -> re.Pattern[str]:
    """Names that the exporter of a file generates; an author's module may have names that another one generates."""
    is_scripted = graph.producer == TORCH and not _is_recorded(graph)
    is_scripted &= not any(node.name.startswith(_DYNAMO_NODE) for node in graph.nodes)
    return _GENERATED_BY_SCRIPT if is_scripted else _GENERATED


def _is_sibling(name: str, other: str) -> bool:
    """Return whether two names differ only in a number, such as names of layers in a list."""
    return name != other and re.sub(r"\d+", "0", name) == re.sub(r"\d+", "0", other)


def notes_of(graph: Graph, tensor: Tensor) -> dict[str, str]:
    """Return the exporter's notes about an initializer, on itself or on its value info."""
    value = graph.value_info.get(tensor.name)
    return {**value.notes, **tensor.notes} if value else tensor.notes


def note(graph: Graph, tensor: Tensor, notes: dict[str, str]) -> None:
    """Give an initializer notes. The exporter's stand on its value info, which artifacts and exported models keep."""
    tensor.notes = {key: text for key, text in notes.items() if key not in (KIND, FOLDED)}
    records = {key: text for key, text in notes.items() if key in (KIND, FOLDED)}
    graph.value_info[tensor.name] = Value(tensor.name, tensor.dtype, tensor.shape, records)


def lost_parameters(graph: Graph) -> list[Decision]:
    """Parameters of the source module that the exporter's optimizer left no tensor of.

    The optimizer leaves no Constant node of the exporter. Without the optimizer, a parameter that lacks a tensor is
    another name of a tied parameter, or has no reader. Quantized weights have other names.
    """
    if any((node.op_type == "Constant" and SCOPES in node.notes) or "NBits" in node.op_type for node in graph.nodes):
        return []
    held, called = set(graph.initializers).union(*reordered(with_bodies(graph)).values()), named_by_calls(graph)
    for tensor in graph.initializers.values():
        sources = folded_from(notes_of(graph, tensor))
        if is_transposed(tensor, sources):
            held.update(sources)
    transposes = {node.outputs[0]: node.inputs[0] for node in graph.nodes if node.op_type == "Transpose"}
    readers: dict[str, set[str]] = {}
    for node in graph.nodes:
        # A parameter that a module reads under the name of another module's is tied to it, unless calls name both.
        for name in (transposes.get(edge, edge) for edge in node.inputs):
            read = graph.initializers.get(name)
            notes = notes_of(graph, read) if read else {}
            if read and (KIND in notes or is_transposed(read, folded_from(notes))):
                alias = f"{module_of(node)}.{name.rpartition('.')[2]}"
                held.update({alias} if name not in called else {alias} - called)
                readers.setdefault(name, set()).add(module_of(node))
    for modules in readers.values():
        held.update(alias for module in modules if len(modules) > 1 for alias in _names_of_transformers(module, held))
    reasons = {
        norm: f"folded by the exporter into {names[0]!r}, with which it is trained: export with optimize=False"
        for norm, names in folded_layers(graph).items()
    }
    reason = (
        "not in the file: the output does not depend on it, or the exporter's optimizer removed or merged it: export "
        "with optimize=False"
    )
    lost = [
        Decision(name, False, reasons.get(name.rpartition(".")[0], reason), doubtful=True)
        for name in sorted(set(listed_parameters(graph)) - held)
    ]
    return lost + _merged_constants(graph, called)


def _names_of_transformers(module: str, held: Collection[str]) -> list[str]:
    """Names that models of transformers give a table which several modules read, and the bias of a head that reads it.

    The table of BART and T5 is `shared` in a module around encoder and decoder. The bias of BERT's head for masked
    words belongs to the module around, too.
    """
    around = module.rpartition(".")[0]
    names = [f"{around}.bias"] if f"{module}.bias" in held else []
    while around:
        names.append(f"{around}.shared.weight")
        around = around.rpartition(".")[0]
    return [*names, "shared.weight"]


def _merged_constants(graph: Graph, called: set[str]) -> list[Decision]:
    """Copies, of constants most likely, in the place of which nodes read parameters that other nodes' calls name."""
    results, listed = {name for node in graph.nodes for name in node.outputs}, signature(graph)
    decisions = []
    for node in graph.nodes:
        arguments = call_of(node)[1]
        copies = [argument for argument in arguments if _COPY.fullmatch(argument) and argument not in results]
        read = called.intersection(node.inputs) - {listed[name][1] for name in arguments if name in listed}
        if copies and read:
            reason = f"{node} reads {min(read)!r} in its place, which equals it: export with optimize=False"
            decisions.append(Decision(copies[0], False, reason, doubtful=True))
    return decisions


def folded_layers(graph: Graph) -> dict[str, list[str]]:
    """Tensors of each layer into which the exporter's optimizer folded a batch normalization, by the norm's module."""
    if SIGNATURE not in graph.notes:
        return {}
    listed, layers = signature(graph), dict[str, list[str]]()
    transposes = {node.outputs[0]: node.inputs[0] for node in graph.nodes if node.op_type == "Transpose"}
    for node in graph.nodes if listed else ():
        for argument in call_of(node)[1] if node.op_type in PRODUCTS else ():
            module, _, statistic = listed.get(argument, ("", ""))[1].rpartition(".")
            if statistic == "running_var" and f"{module}.{statistic}" not in graph.initializers:
                layers[module] = [transposes.get(name, name) for name in node.inputs[1:]]
    return layers


def reordered(graph: Graph) -> dict[str, list[str]]:
    """Parameters of torch's recurrent layers by the tensors that have their numbers, in ONNX's order of gates."""
    kinds = {name: kind for kind, name in signature(graph).values()}
    tensors: dict[str, list[str]] = {}
    for name in (n for node in graph.nodes if node.op_type in _RECURRENT for n in node.inputs[1:4]):
        sources = folded_from(notes_of(graph, graph.initializers[name])) if name in graph.initializers else []
        learned = [source for source in sources if source in kinds]
        if learned and all(kinds[one] == "PARAMETER" and _OF_RECURRENT.fullmatch(one) for one in learned):
            tensors[name] = learned
    return tensors


def is_transposed(tensor: Tensor, sources: list[str]) -> bool:
    """Return whether an exporter's result from `sources` is one matrix in another orientation.

    The name decides, which may be the source's by now: `exp`, `softmax` and `tanh` are made of one matrix, too.
    """
    if len(sources) != 1 or len(tensor.shape) != 2:
        return False
    return tensor.name == sources[0] or TRANSPOSED.fullmatch(tensor.name) is not None


def module_of(node: Node) -> str:
    """Dotted path of the module whose forward made a node; empty where none was noted."""
    scopes = _names(node.notes.get(SCOPES, ""))
    return scopes[-2] if len(scopes) > 1 else ""


def folded_from(notes: dict[str, str]) -> list[str]:
    """Names of the source model from which the exporter's optimizer computed a tensor."""
    return _names(notes.get(FOLDED, ""))


def _names(text: str) -> list[str]:
    if not text:
        return []
    if PLAIN_NAMES.fullmatch(text):
        return text[2:-2].split("', '")
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [str(name) for name in names] if isinstance(names, (list, tuple)) else []


def _of_kind(name: str, kind: str) -> Decision:
    if "PARAMETER" in kind:
        return Decision(name, True, "recorded as a parameter by the exporter")
    what = "a buffer" if "BUFFER" in kind else "a constant"
    return Decision(name, False, f"recorded as {what} by the exporter")


def _use(roles: list[str]) -> str:
    return roles[0] if roles else OTHER


def _is_grid(tensor: Tensor) -> bool:
    """Return whether a small tensor has only numbers at equal distances: a range, or coordinates of a grid.

    Of trained numbers no few are so. Quantized ones are, but neither whole nor halves nor each as frequent.
    """
    if not _STEPS <= tensor.size <= _GRID:
        return False
    values = tensor.values()
    if not all(map(math.isfinite, values)):
        return False
    some = sorted(set(values[:_STEPS]))
    step = min((b - a for a, b in pairwise(some)), default=0)
    if not all(abs((v - some[0]) / step - round((v - some[0]) / step)) < 1e-2 for v in some[1:]):
        return False
    counts = Counter(values)
    levels = sorted(counts)
    if len(levels) < _STEPS or not _is_even(levels):
        return False
    return len(set(counts.values())) == 1 or all((2 * v).is_integer() for v in levels)


def _is_even(values: Sequence[float] | memoryview[float]) -> bool:
    """Return whether there are at least four numbers at equal distances that are not zero."""
    n, step = len(values), (values[-1] - values[0]) / max(1, len(values) - 1)
    return (
        n >= _EVEN and step != 0 and all(abs(values[i] - values[0] - i * step) < 1e-4 * abs(n * step) for i in range(n))
    )


def _linear_scopes(nodes: Iterable[Node]) -> set[str]:
    """Paths of modules, as the TorchScript exporter puts them before the names of nodes, that are one product."""
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        scope = node.name.rpartition("/")[0]
        kinds.setdefault(scope, []).append(node.op_type)
        while scope:
            scope = scope.rpartition("/")[0]
            kinds.setdefault(scope, []).append("")
    return {scope for scope, operators in kinds.items() if scope and set(operators) <= {"MatMul", "Add"}}


def _floats(tensor: Tensor) -> memoryview[float]:
    return memoryview(tensor.data).cast("B").cast("f")


def _lie_on_circle(xs: Sequence[float] | memoryview[float], ys: Sequence[float] | memoryview[float]) -> bool:
    """Return whether the squares of numbers in two lists add up to one."""
    return all(abs(x * x + y * y - 1) < 1e-4 for x, y in zip(xs, ys, strict=True))


def _is_symmetric(tensor: Tensor, values: memoryview[float]) -> bool:
    """Return whether a square matrix is its own transpose, and no multiple of the identity."""
    rows, columns = tensor.shape
    if rows != columns or not any(values[1:columns]):
        return False
    return all(values[i * rows : (i + 1) * rows].tolist() == values[i::rows].tolist() for i in range(rows))


def _is_sinusoidal(tensor: Tensor, values: memoryview[float]) -> bool:
    """Return whether each row has sines and cosines of the same angles: squares that add up to half its length."""
    if len(tensor.shape) < 2 or not tensor.size:
        return False
    width = tensor.shape[-1]
    rows = tensor.size // width
    if width % 2 or rows < 2 or len(set(values)) < 3:
        return False
    sums = (math.fsum(v * v for v in values[i * width : (i + 1) * width]) for i in range(rows))
    return all(abs(total - width / 2) < 1e-3 * width for total in sums)
