"""A new last layer for an own number of classes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter
from math import prod, sqrt
from random import Random
from typing import Any

from trainweb import messages
from trainweb.arguments import warn
from trainweb.artifacts.evidence import KIND, lost_parameters, note, notes_of
from trainweb.artifacts.recover import exact_names, recover_parameters
from trainweb.control.repeat import with_bodies
from trainweb.errors import ModelError
from trainweb.lora.config import shown
from trainweb.lora.kinds import Layer
from trainweb.lora.layers import find_layers
from trainweb.model.floats import computed_in_float32
from trainweb.model.graph import DECLARED_TYPE, Graph, Node, Tensor, Value, as_float32, take_name
from trainweb.model.uses import weight_uses
from trainweb.onnxblock.transforms import constants_to_initializers
from trainweb.ops.frame.shapes import ShapeInference
from trainweb.settings import SEED, Field, Text, Whole, checked_values

HEAD = {
    "classes": Field(Whole(least=1), Parameter.empty, is_optional=False),
    "layer": Field(Text(), None, is_optional=True),
    "seed": Field(SEED, 0, is_optional=False),
}
"""Settings of a new last layer, the option "head"."""
ALL_BUT_HEAD = "all but head"
"""A value of `frozen_params`."""
ACTIVATIONS = ("Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Relu", "Clip", "Tanh", "Exp", "Log")
SHAPING = ("Identity", "Cast", "Dropout", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Resize")
REDUCTIONS = ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceLogSumExp", "ArgMax")
POOLS = ("GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", *REDUCTIONS)
FOLLOWERS = frozenset((*ACTIVATIONS, *SHAPING, *POOLS))
"""Operators that take any number of classes."""
CHOOSERS = ("Gather", "GatherND", "Slice")
"""Operators that do so unless they choose among the classes: they may choose a token or a place."""
PROBE = 10007
"""A number of classes by which the axis of the classes is found in shapes: no axis has this prime number by chance."""
SCALARS = ("Add", "Sub", "Mul", "Div")
"""Operators that do so if their other operand is one number."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A layer that only `FOLLOWERS` and `CHOOSERS` stand behind, its bias, and the Reshape nodes behind it."""

    layer: Layer
    bias: str | None
    reshapes: tuple[Node, ...]
    choosers: tuple[Node, ...]


def take_head(
    graph: Graph, arguments: dict[str, Any], lora: Mapping[str, Any] | None
) -> tuple[Graph, Mapping[str, Any] | None]:
    """Take the option `head` out of arguments of `build_artifacts`, and return the model with that head.

    `frozen_params` that is `ALL_BUT_HEAD` becomes an expression. Settings of adapters, if any, are returned with the
    head among the modules that PEFT saves whole.
    """
    frozen, settings = arguments.get("frozen_params"), arguments.pop("head")
    named = [arguments.get(name) for name in ("requires_grad", "frozen_params")]
    keep = exact_names(*(names for names in named if names != ALL_BUT_HEAD))
    graph, module, parameters = replace_head(graph, settings, keep)
    if frozen == ALL_BUT_HEAD:
        has_others = any(t.dtype == "float32" and name not in parameters for name, t in graph.initializers.items())
        pattern = f"(?!(?:{'|'.join(map(re.escape, parameters))})$).*"
        arguments["frozen_params"] = [pattern] if has_others else None
    if lora is not None:
        if not isinstance(lora, Mapping) or "adapter_config" in lora:
            raise messages.BAD_SETTING(name="head", value=settings, expected="left out with the files of an adapter")
        # Files of Keras name no modules: the weight and the bias are their own.
        saved, heads = lora.get("modules_to_save") or [], parameters if module in parameters else [module]
        lora = {**lora, "modules_to_save": [*saved, *(name for name in heads if name not in saved)]}
    return graph, lora


def replace_head(graph: Graph, settings: Mapping[str, Any], keep: Collection[str] = ()) -> tuple[Graph, str, list[str]]:
    """Replace the layer that makes the scores of classes by a new one, by the settings of `HEAD`.

    The weight and the bias are drawn as PyTorch initializes `Linear` and `Conv2d`. Return the model by PyTorch's
    names (those in `keep` stay), the layer, and the names of its parameters. Raise ModelError for a wrong setting, and
    without one layer that may be the head; the text names the candidates.
    """
    if not isinstance(settings, Mapping):
        raise messages.BAD_SETTING(name="head", value=settings, expected="a mapping with 'classes'")
    values = checked_values("head", settings, HEAD, "head.")
    result = recover_parameters(computed_in_float32(graph), keep)
    head = _chosen(result, values["layer"])
    classes, layer = values["classes"], head.layer
    old = layer.shape[0]
    _resize(result, head.reshapes, old, classes)
    draw, bound = _uniform(values["seed"]), 1 / sqrt(prod(layer.shape[1:]))
    weight = _drawn(draw, bound, (classes, *layer.shape[1:]))
    _set(result, layer.weight, (classes, *layer.shape[1:]), weight, is_turned=not layer.rows_first)
    bias = head.bias or _added_bias(result, layer)
    if bias is not None:
        *ones, _ = result.initializers[bias].shape
        _set(result, bias, (*ones, classes), _drawn(draw, bound, (classes,)))
    _infer_outputs(result, layer)
    change = f" It had {old} classes." if classes != old else ""
    warn(f"The head {layer.module!r} is new: it has {classes} classes and random weights.{change}")
    return result, layer.module, [layer.weight, *([bias] if bias is not None else [])]


def _chosen(graph: Graph, name: str | None) -> _Candidate:
    """The layer that is the head."""
    candidates = {candidate.layer.module: candidate for candidate in _candidates(graph)}
    if name is None and len(candidates) == 1:
        return next(iter(candidates.values()))
    names = ", ".join(map(shown, candidates))
    if not names:
        raise ModelError(
            "No layer can be the head of the model: one node reads its weight, which is no quantized one, and what "
            "follows takes any number of classes. Replace the last layer before the export. If it is quantized, leave "
            "it out of the quantization, as trainweb.quantize does."
        )
    if name is None:
        raise ModelError(
            f"The layers that may be the head of the model are {names}. Name one as the setting 'layer' of 'head'."
        )
    if name not in candidates:
        raise ModelError(f"The layer {name!r} cannot be the head. The layers that may be it are {names}.")
    return candidates[name]


def _candidates(graph: Graph) -> Iterator[_Candidate]:
    """The layers that are not quantized and with which only the number of classes in the outputs changes."""
    consumers, outputs = with_bodies(graph).consumers(), {value.name for value in graph.outputs}
    reads = Counter(use.tensor.name for use in weight_uses(graph, through={"Transpose"}))
    constants = dict(constants_to_initializers(graph).initializers)
    constants |= {
        node.outputs[0]: constants[node.inputs[0]]
        for node in graph.nodes
        if node.op_type == "Cast" and node.inputs[0] in constants
    }
    for layer in find_layers(graph):
        site = layer.sites[0]
        if layer.stored or layer.group != 1 or layer.kind.weight_at != 1:
            continue
        candidate = _followed(constants, layer, site, consumers, outputs) if reads[layer.weight] == 1 else None
        if candidate and (not candidate.choosers or _keep_classes(graph, candidate)):
            yield candidate


def _followed(
    constants: Mapping[str, Tensor],
    layer: Layer,
    site: Node,
    consumers: Mapping[str, list[Node]],
    outputs: set[str],
) -> _Candidate | None:
    """The candidate of a layer; None if what follows depends on the number of classes, or is no output."""
    bias = site.inputs[2] if len(site.inputs) > 2 and site.inputs[2] else None
    waiting, reshapes, choosers, is_output = [site.outputs[0]], list[Node](), list[Node](), False
    products = {site.outputs[0]}
    while waiting:
        name = waiting.pop()
        is_output = is_output or name in outputs
        for node in consumers.get(name, []):
            others = [constants.get(other) for other in node.inputs if other != name]
            other = others[0] if len(others) == 1 else None
            if node.op_type == "Shape":
                continue  # sizes that are computed are those of any number of classes
            if node.op_type == "Cast" and name in products:  # Keras writes casts from float32 to float32
                products.update(node.outputs)
            if node.op_type == "Add" and bias is None and name in products and other and other.size > 1:
                bias = other.name
            elif node.op_type == "Reshape" and name == node.inputs[0]:
                reshapes.append(node)
            elif node.op_type in CHOOSERS and name == node.inputs[0]:
                choosers.append(node)
            elif node.op_type in SCALARS and not node.domain and other and other.size == 1:
                pass
            elif node.op_type not in FOLLOWERS or node.domain or name != node.inputs[0]:
                return None
            waiting += [output for output in node.outputs if output]
    tensor = None if bias is None else constants.get(bias)
    if bias is not None and (tensor is None or tensor.size not in (1, layer.shape[0]) or tensor.dtype != "float32"):
        return None
    if not is_output or (tensor is not None and len(consumers[tensor.name]) > 1):
        return None
    bias = bias if tensor is not None and tensor.size == layer.shape[0] else None
    return _Candidate(layer, bias, tuple(reshapes), tuple(choosers))


def _keep_classes(graph: Graph, candidate: _Candidate) -> bool:
    """True if each chooser behind a candidate has all classes in its result."""
    trial, layer = graph.copy(), candidate.layer
    by_output = {node.outputs[0]: node for node in trial.nodes}
    _resize(trial, tuple(by_output[node.outputs[0]] for node in candidate.reshapes), layer.shape[0], PROBE)
    for name in filter(None, (layer.weight, candidate.bias)):
        shape = list(trial.initializers.pop(name).shape)
        shape[0 if name == layer.weight and layer.rows_first else -1] = PROBE
        trial.inputs.append(Value(name, "float32", tuple(shape)))
    try:
        inference = ShapeInference(trial)
    except ModelError:
        return False
    return all(PROBE in inference[node.outputs[0]].shape for node in candidate.choosers)


def _added_bias(graph: Graph, layer: Layer) -> str | None:
    """Add the bias that the module has and the file lacks, since an exporter leaves out zeros; None if it has none."""
    name, site = f"{layer.module}.bias", layer.sites[0]
    if name not in {decision.name for decision in lost_parameters(graph)}:
        return None
    graph.initializers[name] = Tensor.of(name, "float32", (layer.shape[0],), [0.0] * layer.shape[0])
    note(graph, graph.initializers[name], dict(notes_of(graph, graph.initializers[layer.weight])))
    if site.op_type == "MatMul":
        product, sum_ = take_name(f"{site.outputs[0]}_product", set(graph.names())), site.outputs[0]
        site.outputs[0] = product
        graph.nodes.insert(graph.nodes.index(site) + 1, Node("Add", [product, name], [sum_], notes=site.notes))
    else:
        site.inputs[2:] = [name]
    return name


def _uniform(seed: int) -> Iterator[float]:
    """Numbers in [0, 1) as of `torch.manual_seed(seed)`: 24 bits of each word of a Mersenne Twister."""
    words = [seed % 2**32]
    for k in range(1, 624):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + k) % 2**32)
    twister = Random()
    twister.setstate((3, (*words, 624), None))
    while True:
        yield (twister.getrandbits(32) % 2**24) / 2**24


def _drawn(numbers: Iterator[float], bound: float, shape: tuple[int, ...]) -> list[float]:
    """Numbers in [-bound, bound), row by row."""
    least = as_float32(-bound)
    width = as_float32(bound) - least
    return [as_float32(next(numbers) * width + least) for _ in range(prod(shape))]


def _set(graph: Graph, name: str, shape: tuple[int, ...], values: list[float], *, is_turned: bool = False) -> None:
    """Put values in the place of an initializer; `is_turned`: it is stored as (in, out)."""
    if is_turned:
        rows, columns = shape
        shape, values = (columns, rows), [values[r * columns + c] for c in range(columns) for r in range(rows)]
    notes = dict(notes_of(graph, graph.initializers[name]))
    notes.pop(DECLARED_TYPE, None)  # the new numbers would be rounded to it
    graph.initializers[name] = tensor = Tensor.of(name, "float32", shape, values)
    graph.value_info.pop(name, None)
    note(graph, tensor, notes)
    tensor.notes = {**tensor.notes, KIND: "PARAMETER"}  # of this tensor alone: other tensors have no such record


def _resize(graph: Graph, reshapes: tuple[Node, ...], old: int, classes: int) -> None:
    """Write the new number of classes into the shapes that Reshape nodes make of the old one."""
    taken, inference = set(graph.names()), ShapeInference(graph) if reshapes else None
    for node in reshapes:
        value = inference.value(node.outputs[0]) if inference else None
        shape = list(value.shape or ()) if isinstance(value, Value) else []
        if shape.count(old) == 1 and sum(isinstance(size, str) for size in shape) < 2:
            shape[shape.index(old)] = classes
            node.inputs[1] = name = take_name(f"{node.inputs[1]}_head", taken)
            sizes = [size if isinstance(size, int) else -1 for size in shape]
            graph.initializers[name] = Tensor.of(name, "int64", (len(sizes),), sizes)


def _infer_outputs(graph: Graph, layer: Layer) -> None:
    """Give what follows its new shape."""
    consumers, waiting = graph.consumers(), [layer.sites[0].outputs[0], layer.weight]
    while waiting:
        name = waiting.pop()
        if name not in graph.initializers:
            graph.value_info.pop(name, None)
        waiting += [output for node in consumers.get(name, []) for output in node.outputs]
    declared, graph.outputs = graph.outputs, [Value(value.name, value.dtype, None) for value in graph.outputs]
    inference = ShapeInference(graph)
    graph.outputs = [
        Value(value.name, value.dtype, getattr(inference.value(value.name), "shape", None), getattr(value, "notes", {}))
        for value in declared
    ]
